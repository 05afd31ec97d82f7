//! The background refresh of a response that is served stale meanwhile.

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName};
use http::{Method, Request};
use http_body::Body;

use crate::flight::door::{self, Caller};
use crate::flight::request::LedFor;
use crate::http::body::SourceBody;
use crate::http::flow::OriginService;
use crate::http::flow::fill::key_of;
use crate::http::flow::lookup::{self, ClientRequest, FlightKind, HttpCaller, RefreshedEntry};
use crate::http::flow::work::HttpWork;
use crate::http::rules::content::METADATA;
use crate::http::rules::request::{Credentials, RequestFacts, RequestMethod, Wishes, credentials};
use crate::http::rules::shape::ask_for_the_whole;
use crate::http::rules::streams::LAST_EVENT_ID;
use crate::http::rules::vary::VaryList;
use crate::http::stored::response::{HttpCache, Slot, StoredEntry, variant_of};

/// Refreshes in the background, as a GET (a QUERY, a POST) without the fields that belong to the client
/// whose request triggered it.
pub(super) fn refresh<S, Q, B>(
    mut caller: HttpCaller,
    seen: &StoredEntry,
    service: S,
    mut request: Request<Q>,
) where
    S: OriginService<Q, B>,
    Q: Body + Send + 'static,
    B: SourceBody,
{
    // A rule of the application may key any field: then the refresh must carry all of them.
    let keeps_all =
        caller.may_be_keyed_by_any_field() && caller.request.rules.config.refresh_headers.is_none();
    let is_of_another_method = keeps_all && *request.method() == Method::HEAD;
    if caller.request.wishes.no_store || is_of_another_method {
        // The rules have not seen the GET that this one would become.
        return;
    }
    if *request.method() == Method::HEAD {
        *request.method_mut() = Method::GET;
    }
    ask_for_the_whole(request.headers_mut());
    if caller.request.wishes.last_event {
        request.headers_mut().remove(LAST_EVENT_ID);
    }
    // From here it is the request of no client: fields, extensions and wishes of the one that came are
    // gone.
    let (mut parts, body) = request.into_parts();
    let is_for_all = keep_what_is_keyed(&caller, seen, keeps_all, &mut parts.headers);
    caller.request.rules.forgets.iter().for_each(|forget| forget(&mut parts.extensions));
    let sent = credentials(&parts.headers, &caller.request.rules.config);
    caller.request = Arc::new(ClientRequest {
        headers: parts.headers.clone(),
        asked: RequestFacts { method: RequestMethod::Get, credentials: sent },
        wishes: Wishes::default(),
        ..(*caller.request).clone()
    });
    let request = Request::from_parts(parts, body);
    caller.stale = Some(Arc::clone(seen));
    caller.refreshed = Some(RefreshedEntry { entry: Arc::clone(seen), is_for_all });
    let flight = caller.flight_request();
    let engine = Arc::clone(&caller.request.cache.engine);
    let from = seen.value.response().map(|stored| stored.facts.from).unwrap_or_default();
    let lacks_credentials = !caller.request.asked.credentials.contains(from);
    if lacks_credentials && engine.has_declined_refresh(&flight.key) {
        // Left to a client with credentials, for which the response was computed.
        return;
    }
    let (cache, place) = (Arc::clone(&caller.request.cache), key_of(&caller, seen));
    // Asked under the lock of the key: another refresh may have ended meanwhile.
    let is_still_wanted =
        || cache.is_still(place.as_bytes(), seen) && cache.engine.log.is_alive(seen);
    let lead = door::begin_refresh(&engine, flight, LedFor::Refresh, is_still_wanted);
    if let Some(lead) = lead {
        let (context, work) = HttpWork::new(caller, service, request).take_context();
        drop(lead.in_background(|lead| work.lead_in(context, lead)));
    }
}

/// Returns whether a refresh of this entry runs. Makes no key of its own for it.
pub(super) fn is_being_refreshed(cache: &HttpCache, primary: &[u8], seen: &StoredEntry) -> bool {
    let Some(stored) = seen.value.response() else { return false };
    let key = lookup::flight_key(stored.facts.from, variant_of(seen), FlightKind::Gets, primary);
    cache.engine.has_flight_for(key.as_bytes())
}

/// Returns the lists of fields by which responses of a URI are selected: the list
/// of `entry`, and the lists in its index.
fn selecting_fields(
    cache: &HttpCache,
    primary: &[u8],
    entry: Option<&StoredEntry>,
) -> Vec<VaryList> {
    let own =
        entry.and_then(|entry| entry.value.response()).and_then(|stored| stored.facts.vary.clone());
    let mut lists: Vec<_> = own.into_iter().collect();
    if let Some(at_primary) = cache.local.peek(primary)
        && let Slot::Index(index) = at_primary.value.slot()
    {
        lists.extend(index.lists.iter().cloned());
    }
    lists
}

/// Returns whether a field is part of the key where the body is, or says its length.
fn is_of_the_body(name: &HeaderName) -> bool {
    METADATA.contains(name) || *name == header::CONTENT_LENGTH
}

/// Removes the fields that selected nothing: one client's fields must not shape the
/// response for other clients.
///
/// A rule of the application may make the key of any field, and only the rule
/// knows of which. Without the field the service would answer for another key.
/// So where there are rules, all fields stay, unless the application has named
/// the fields that a refresh carries. A rule is never run to find out: it may rely on
/// what the application's other layers write into every request.
///
/// Returns whether all fields that stay are keyed.
fn keep_what_is_keyed(
    caller: &HttpCaller,
    seen: &StoredEntry,
    keeps_all: bool,
    headers: &mut HeaderMap,
) -> bool {
    let ClientRequest { cache, rules, .. } = &*caller.request;
    let config = &rules.config;
    let from = seen.value.response().map(|stored| stored.facts.from).unwrap_or_default();
    let lists = selecting_fields(cache, caller.request.primary.as_bytes(), Some(seen));
    let is_keyed = |name: &HeaderName| {
        *name == header::HOST
            || caller.request.content.is_some() && is_of_the_body(name)
            || config.keys(name)
            || lists.iter().any(|list| list.selects(name))
    };
    let stays = |name: &HeaderName| {
        if config.is_credential(name) {
            return from.contains(Credentials::of(name));
        }
        keeps_all
            || is_keyed(name)
            || config.unkeyed_headers.contains(name)
            || rules.has_identity && config.covered.contains(name)
            || config.refresh_headers.as_ref().is_some_and(|kept| kept.contains(name))
    };
    let others: Vec<_> = headers.keys().filter(|name| !stays(name)).cloned().collect();
    for name in others {
        headers.remove(name);
    }
    headers.keys().all(is_keyed)
}
