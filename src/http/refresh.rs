//! Computes anew what is served stale meanwhile.

use std::sync::Arc;

use http::{HeaderMap, Method, Request, Response, header};
use http_body::Body;
use tower_service::Service;

use super::layer::Rules;
use super::lead::lead;
use super::lookup::{self, HttpCaller, Stored};
use super::remote::Purpose;
use super::request::{AskedMethod, Credentials, Wishes, credentials};
use super::shape::ask_for_the_whole;
use crate::engine::waiter::Caller;
use crate::error::BoxError;
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
    if caller.wishes.only_if_cached {
        // Another cache on the way would not ask either.
        request.headers_mut().remove(header::CACHE_CONTROL);
    }
    caller.asked.method = AskedMethod::Get;
    caller.wishes = Wishes::default();
    caller.stale = Some(Arc::clone(seen));
    let from = seen.value.response().map(|stored| stored.facts.from).unwrap_or_default();
    drop_credentials(request.headers_mut(), &caller.rules, from);
    drop_credentials(&mut caller.headers, &caller.rules, from);
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

/// Removes the credentials that the stored response did not depend on.
fn drop_credentials(headers: &mut HeaderMap, rules: &Rules, keep: Credentials) {
    if !keep.contains(Credentials::AUTHORIZATION) {
        headers.remove(header::AUTHORIZATION);
    }
    if !keep.contains(Credentials::COOKIE) {
        headers.remove(header::COOKIE);
    }
    if !keep.contains(Credentials::OTHER) {
        for name in rules.config.credential_headers.iter() {
            headers.remove(name);
        }
    }
}
