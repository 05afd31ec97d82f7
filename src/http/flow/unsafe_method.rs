//! Unsafe methods: the request is forwarded, and the URIs it concerns are
//! invalidated (RFC 9111, 4.4).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Uri, header, response};
use http_body::Body;
use tower_service::Service;

use crate::entry::ComputationStart;
use crate::flight::door::{Caller, Conclusion, ForwardPlace, try_lead};
use crate::http::body::{ResponseBody, SourceBody};
use crate::http::cache_for::CacheFor;
use crate::http::flow::answer::{self, Provenance};
use crate::http::flow::fill::ArrivalTime;
use crate::http::flow::forward::Forward;
use crate::http::flow::forwarded;
use crate::http::flow::lead::{Head, OriginOutcome};
use crate::http::flow::lookup::{
    ClientRequest, HttpCaller, automatic_tags, group_origin, owned_primary_key, scheme,
};
use crate::http::flow::nested;
use crate::http::flow::normal_form;
use crate::http::flow::request_end::RequestEnd;
use crate::http::layer::rules::Rules;
use crate::http::rules::key::received_uri;
use crate::http::rules::request::{
    BypassReason, Credentials, RequestFacts, RequestMethod, Wishes, credentials,
};
use crate::http::rules::request_directives;
use crate::http::rules::shape::Shape;
use crate::http::rules::steering::{self, GroupOrigin};
use crate::http::rules::storable::{DeclineReason, Plan, ResponseFacts};
use crate::http::rules::target::{absolute_uri, every_absolute_uri, same_origin_target};
use crate::http::stored::response::HttpCache;
use crate::invalidation::ASKED_NOW;
use crate::key::{Tag, UriReach};

/// The facts of a request that are needed after the service has taken it.
struct Sent {
    method: Method,
    target: Option<Uri>,
    /// What it may be a request for, where it does not name exactly one host.
    ambiguous: Vec<Uri>,
    scheme: Box<str>,
    /// For the rule of the application about writes, if there is one.
    parts: Option<Parts>,
    credentials: Credentials,
    headers: HeaderMap,
    primary: Option<crate::key::Key>,
    tags: Box<[Tag]>,
    group_origin: GroupOrigin,
    started: ComputationStart,
}

/// Forwards a write. A layer that is not the outermost one of its handle gets the response as it is.
pub(super) async fn pass<S, Q, B>(
    cache: Arc<HttpCache>,
    rules: Arc<Rules>,
    service: S,
    parts: Parts,
    body: Q,
    is_outermost: bool,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<Q>, Response = Response<B>>,
    S::Error: 'static,
    Q: Body + 'static,
    B: SourceBody,
{
    let place = match is_outermost {
        true => forwarded::take_place(&cache, &rules, &parts).await,
        // It counts in the outer layer.
        false => Ok(ForwardPlace::NOT_NEEDED),
    };
    let place = match place {
        Ok(place) => place,
        Err(error) => return Ok(answer::refusal(&rules, error)),
    };
    // From here on the service may have changed something. Until its response says what, `unknown`
    // invalidates when it is dropped.
    let (body, end) = RequestEnd::watch(&parts, body);
    let sent = Sent::of(&cache, &rules, &parts);
    let mut unknown = Unknown { cache: &cache, rules: &rules, sent: &sent, end };
    // The service has received nothing of a request that failed so.
    let is_unsent = |error: &S::Error| rules.unsent.as_ref().is_some_and(|is| is(error));
    let response = place.drive(nested::call(service, Request::from_parts(parts, body))).await;
    if response.as_ref().map_or_else(is_unsent, |_| true) {
        // The response says what was touched, or nothing was.
        unknown.end = None;
    }
    drop(unknown);
    let (mut head, body) = response?.into_parts();
    // What a handler says is for the outermost layer.
    let cache_for = if is_outermost { CacheFor::take_from(&mut head.extensions) } else { None };
    let touched = head.status.is_success() || head.status.is_redirection();
    let said = cache_for.as_ref();
    // Read before anything is judged by it.
    let seq = cache.engine.log.seq();
    // Where there are several layers, the GETs of this URI may be for one that the POST does
    // not pass.
    let may_store = touched && is_outermost && cache.layers.load(Ordering::Relaxed) <= 1;
    let plan = if may_store { sent.storable(&cache, &rules, &head, &body, said) } else { None };
    let mut own = 0;
    if touched {
        // What the origin says of groups counts for every write.
        let groups = steering::invalidated(&head.headers, &sent.group_origin, &rules.config);
        own = groups.len() as u64;
        if !groups.is_empty() {
            cache.invalidate_tags(groups.into()).await;
        }
    }
    if touched && sent.lets_invalidate(&rules, Some(&head)) {
        // Before the answer: its client may ask another process next.
        let reach = sent.reach(&cache, &rules, Some(&head));
        own += cache.invalidate_uris(reach).await.1;
    }
    let response = Response::from_parts(head, body);
    let came = Provenance::bypass(BypassReason::Method);
    // After the invalidation: what is kept now is newer than all that was ended.
    let response = match plan {
        Some(plan) => {
            let tags = sent.own_tags(&rules, response.headers(), said);
            sent.keep(cache, &rules, response, plan, &tags.unwrap_or_default(), seq + own).await
        }
        None => response.map(ResponseBody::inner),
    };
    if !is_outermost {
        return Ok(response);
    }
    Ok(answer::from_service(&rules, response, &Shape::Whole, came))
}

/// A request without a known end: its client hung up, or the
/// service failed or panicked. Where the whole request was sent, it may have changed the
/// resource all the same, so the stored responses are invalidated.
struct Unknown<'a> {
    cache: &'a Arc<HttpCache>,
    rules: &'a Rules,
    sent: &'a Sent,
    /// `None` once the end is known, or where nothing says how much was sent.
    end: Option<RequestEnd>,
}

impl Drop for Unknown<'_> {
    fn drop(&mut self) {
        let Self { cache, rules, sent, end } = self;
        let is_sent = end.as_ref().is_some_and(RequestEnd::is_noted);
        if is_sent && sent.lets_invalidate(rules, None) {
            cache.invalidate_uris_in_background(sent.reach(cache, rules, None));
        }
    }
}

impl Sent {
    fn of(cache: &HttpCache, rules: &Rules, parts: &Parts) -> Self {
        let uri = received_uri(parts);
        let target = absolute_uri(parts, uri, scheme(uri, rules)).ok();
        let ambiguous = match target {
            Some(_) => Vec::new(),
            None => every_absolute_uri(parts, uri, scheme(uri, rules)),
        };
        let is_post = parts.method == Method::POST;
        // RFC 9111, 5.2.1.5
        let forbids = || request_directives::read(&parts.headers).no_store;
        // Unlike a GET, a POST goes on as it came: what it says beside its key
        // must not shape what all get.
        let is_wanted = is_post && rules.config.store_post_responses;
        let may_store = is_wanted && !normal_form::is_other(parts, rules) && !forbids();
        // They are live from here on, before the number of the log is read.
        let tags = may_store.then(|| automatic_tags(cache, parts, rules));
        Self {
            method: parts.method.clone(),
            target,
            ambiguous,
            scheme: scheme(uri, rules).into(),
            parts: rules.invalidates.is_some().then(|| parts.clone()),
            credentials: credentials(&parts.headers, &rules.config),
            headers: if may_store { parts.headers.clone() } else { HeaderMap::new() },
            primary: owned_primary_key(parts, rules).filter(|_| may_store),
            tags: tags.unwrap_or_default(),
            group_origin: group_origin(parts, rules),
            started: ComputationStart { tick: cache.now(), seq: cache.engine.log.seq() },
        }
    }

    fn lets_invalidate(&self, rules: &Rules, head: Option<&response::Parts>) -> bool {
        self.parts.as_ref().is_none_or(|parts| rules.lets_invalidate(parts, head))
    }

    /// Returns all that the request touched: its URI, and those that the response names.
    fn reach(&self, cache: &HttpCache, rules: &Rules, head: Option<&response::Parts>) -> UriReach {
        let scope = rules.config.scope.as_deref();
        let reach_of =
            |uri: &Uri, ends_both| cache.queries.reach(uri, (&*self.scheme, ends_both), scope);
        let Some(target) = &self.target else {
            let mut reach = UriReach::default();
            for uri in &self.ambiguous {
                reach.extend(reach_of(uri, rules.config.invalidate_other_scheme));
            }
            return reach;
        };
        let mut reach = reach_of(target, rules.config.invalidate_other_scheme);
        for name in [header::LOCATION, header::CONTENT_LOCATION] {
            for value in head.iter().flat_map(|head| head.headers.get_all(&name)) {
                let other = same_origin_target(target, value).filter(|other| other != target);
                // RFC 9111, 4.4: what another URI names must have the same origin, so one scheme.
                other.iter().for_each(|other| reach.extend(reach_of(other, false)));
            }
        }
        reach
    }

    /// Returns how the response to a POST is stored for later GETs, if it is.
    fn storable<B: Body>(
        &self,
        cache: &HttpCache,
        rules: &Rules,
        head: &response::Parts,
        body: &B,
        cache_for: Option<&CacheFor>,
    ) -> Option<Plan> {
        let target = self.target.as_ref()?;
        self.primary.as_ref()?;
        if cache.engine.shared.get().is_some() {
            // What other processes changed meanwhile is known too late.
            return None;
        }
        // Another request changed the resource meanwhile: this is not its
        // latest state.
        let own_tags = self.own_tags(rules, &head.headers, cache_for).ok()?;
        let is_dead = |tags: &[Tag]| cache.engine.log.is_dead(tags, self.started.seq, ASKED_NOW);
        if is_dead(&self.tags) || is_dead(&own_tags) {
            return None;
        }
        let (length, times) =
            (body.size_hint().exact(), ArrivalTime::now(cache, self.started).times());
        let asked = &RequestFacts { method: RequestMethod::Get, credentials: self.credentials };
        let (parts, config) = (head, &rules.config);
        let facts = ResponseFacts { asked, parts, length, cache_for, config, times };
        facts.judge_post(&self.method, target).ok()
    }

    /// Returns the tags that the response itself names.
    fn own_tags(
        &self,
        rules: &Rules,
        headers: &HeaderMap,
        cache_for: Option<&CacheFor>,
    ) -> Result<Vec<Tag>, DeclineReason> {
        let said = cache_for.map_or(&[][..], |said| &said.tags);
        steering::tags(headers, said, &self.group_origin, &rules.config)
    }

    /// Stores the response under a flight of its own, taken without waiting
    /// and after the invalidation.
    async fn keep<B: SourceBody>(
        self,
        cache: Arc<HttpCache>,
        rules: &Arc<Rules>,
        response: Response<B>,
        plan: Plan,
        own_tags: &[Tag],
        expected_seq: u64,
    ) -> Response<ResponseBody<B>> {
        let Some(primary) = self.primary else { return response.map(ResponseBody::inner) };
        let (at, wall) = (cache.now(), cache.engine.clock.wall());
        let request = ClientRequest {
            cache: Arc::clone(&cache),
            rules: Arc::clone(rules),
            asked: RequestFacts { method: RequestMethod::Get, credentials: self.credentials },
            wishes: Wishes::default(),
            not_before: 0,
            headers: self.headers,
            primary,
            content: None,
            tags: self.tags,
            anchor: None,
            group_origin: self.group_origin,
            credential: None,
            client: None,
            may_fill_from_range: false,
            asks_in: None,
        };
        let mut caller = HttpCaller::new(Arc::new(request), Forward::UriMiss);
        // Where another caller computes the key, its result may be older or newer: nothing is kept.
        let Some(lead) = try_lead(&cache.engine, caller.flight_request()) else {
            return response.map(ResponseBody::inner);
        };
        let facts = lead.facts();
        if facts.started.seq != expected_seq {
            // Another caller has invalidated since this response was judged,
            // perhaps this very resource.
            lead.end(Conclusion::Withdraw);
            return response.map(ResponseBody::inner);
        }
        // Its age counts from the request; invalidations count from now, as all of this write are done.
        let started = ComputationStart { tick: self.started.tick, seq: facts.started.seq };
        let tags = caller.request.tags.iter().chain(own_tags).cloned().collect();
        let received = ArrivalTime { started, at, wall };
        let head = Head { caller, lead, facts, received, stale_until: None, occupied: false };
        match head.keep::<B, std::convert::Infallible>(response, plan, tags).await {
            OriginOutcome::Response { response, .. } | OriginOutcome::Failed { response, .. } => {
                response
            }
            OriginOutcome::Error { error, .. } => match error {},
            OriginOutcome::Nothing(_) | OriginOutcome::Unasked => {
                unreachable!("keeping a response ends with a response")
            }
        }
    }
}
