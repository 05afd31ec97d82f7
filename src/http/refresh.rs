//! Computes anew what is served stale meanwhile.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use super::layer::Rules;
use super::lead::lead;
use super::lookup::{self, HttpCaller, Stored, owned_primary_key};
use super::remote::Purpose;
use super::request::{AskedMethod, Credentials, Wishes, credentials};
use super::shape::ask_for_the_whole;
use crate::engine::waiter::Caller;
use crate::error::BoxError;
use crate::key::Key;
use crate::serve::Seen;

/// Refreshes in the background, as a GET without what belongs to the client
/// that happened to ask.
pub(super) fn refresh<S, Q, B>(
    mut caller: HttpCaller,
    seen: &Stored,
    service: S,
    mut request: Request<Q>,
) where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    if caller.wishes.no_store {
        return;
    }
    *request.method_mut() = Method::GET;
    ask_for_the_whole(request.headers_mut());
    let (mut parts, body) = request.into_parts();
    keep_what_is_keyed(&caller, seen, &mut parts);
    caller.headers = parts.headers.clone();
    forget_extensions(&caller.rules, &mut parts);
    let request = Request::from_parts(parts, body);
    caller.asked.method = AskedMethod::Get;
    caller.wishes = Wishes::default();
    caller.stale = Some(Arc::clone(seen));
    caller.asked.credentials = credentials(&caller.headers, &caller.rules.config);
    let boarding = caller.boarding().without_waiting();
    let engine = Arc::clone(&caller.cache.engine);
    let (cache, rules) = (Arc::clone(&caller.cache), Arc::clone(&caller.rules));
    let (primary, asked) = (caller.primary.clone(), caller.asked);
    let headers = caller.headers.clone();
    let still_wanted = || {
        let now = lookup::find(&cache, &rules, primary.as_bytes(), &asked, &headers);
        now.is_ok_and(|entry| Arc::ptr_eq(&entry, seen))
    };
    let purpose = Purpose::Refresh(Seen::of(seen));
    engine.refresh(&boarding, still_wanted, |leader| async move {
        drop(lead(caller, leader, purpose, service, request).await);
    });
}

/// Removes the fields by which nothing was selected: what a client says there
/// must not shape what others get, and this client's answer is another one.
fn keep_what_is_keyed(caller: &HttpCaller, seen: &Stored, parts: &mut Parts) {
    let HttpCaller { cache, rules, .. } = caller;
    let config = &rules.config;
    let from = seen.value.response().map(|stored| stored.facts.from).unwrap_or_default();
    let lists = lookup::selecting_fields(cache, caller.primary.as_bytes(), seen);
    let is_selected_by = |name: &HeaderName| lists.iter().any(|list| list.contains(name));
    let stays = |name: &HeaderName| {
        *name == header::HOST
            || config.keyed_headers.contains(name)
            || config.vary.contains(name)
            || config.refresh_headers.contains(name)
            || is_selected_by(name)
            || config.is_credential(name) && from.contains(Credentials::of(name))
    };
    let others = parts.headers.keys().filter(|name| !stays(name)).cloned().collect();
    let mut others = Others { names: others, removed: Vec::new() };
    if rules.key_rules.is_empty() && rules.bypass.is_none() {
        others.remove(parts, 0..others.names.len());
        return;
    }
    // A rule of the application may read any field: those stay on which the
    // key depends.
    let before = key_of(parts, rules);
    others.reduce(parts, 0..others.names.len(), &|parts| key_of(parts, rules) == before);
}

/// Removes the extensions that a refresh is told not to carry, unless a rule of
/// the application makes another key without them: then the response would be
/// stored for the wrong client.
fn forget_extensions(rules: &Rules, parts: &mut Parts) {
    if rules.forgets.is_empty() {
        return;
    }
    let before = key_of(parts, rules);
    let all = parts.extensions.clone();
    rules.forgets.iter().for_each(|forget| forget(&mut parts.extensions));
    if key_of(parts, rules) != before {
        parts.extensions = all;
    }
}

/// Returns the key of a request as the rules of the application make it. A rule
/// that cannot do without a field may panic; then the key is another one.
fn key_of(parts: &Parts, rules: &Rules) -> Option<Key> {
    let key = AssertUnwindSafe(|| owned_primary_key(parts, rules));
    std::panic::catch_unwind(key).ok().flatten()
}

/// Fields that may not be needed.
struct Others {
    names: Vec<HeaderName>,
    /// The values of those that are removed for a try.
    removed: Vec<(HeaderName, HeaderValue)>,
}

impl Others {
    fn remove(&mut self, parts: &mut Parts, range: Range<usize>) {
        for name in &self.names[range] {
            let values = parts.headers.get_all(name).iter();
            self.removed.extend(values.map(|value| (name.clone(), value.clone())));
            parts.headers.remove(name);
        }
    }

    /// Removes each field without which the key is the same: all at once where
    /// that goes, else one half after the other.
    fn reduce(&mut self, parts: &mut Parts, range: Range<usize>, is_same: &dyn Fn(&Parts) -> bool) {
        if range.is_empty() {
            return;
        }
        self.removed.clear();
        self.remove(parts, range.clone());
        if is_same(parts) {
            return;
        }
        for (name, value) in self.removed.drain(..) {
            parts.headers.append(name, value);
        }
        if range.len() > 1 {
            let middle = range.start + range.len() / 2;
            self.reduce(parts, range.start..middle, is_same);
            self.reduce(parts, middle..range.end, is_same);
        }
    }
}
