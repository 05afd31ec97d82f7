//! The rules of a layer, as its settings make them.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, Response, request, response};

use crate::cache::state::HintWatch;
use crate::flight::client_key::ClientKey;
use crate::flight::door::ForwardBound;
use crate::http::config::HttpConfig;
use crate::http::flow::error_response::Refusal;
use crate::http::layer::route_table::RouteTable;
use crate::http::rules::fields::HitStatus;
use crate::http::rules::key::key_start;
use crate::key::KeyBuf;

pub(super) type KeyRule = Arc<dyn Fn(&Parts, &mut KeyBuf) -> bool + Send + Sync>;
pub(super) type RequestRule = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type ServiceErrorRule = Arc<dyn Fn(&dyn Any) -> bool + Send + Sync>;
pub(super) type RefusalRule = Arc<dyn Fn(&Refusal) -> Response<Bytes> + Send + Sync>;
pub(super) type PostKeyRule = Arc<dyn Fn(&Parts, &Bytes) -> Option<KeyBuf> + Send + Sync>;
pub(super) type ClientRule = Arc<dyn Fn(&Parts) -> Option<ClientKey> + Send + Sync>;
pub(super) type WriteRule =
    Arc<dyn Fn(&request::Parts, Option<&response::Parts>) -> bool + Send + Sync>;

/// Work on a task of its own. Its result does not show: it leaves by another way.
pub(in crate::http) type TaskWork = Pin<Box<dyn Future<Output = ()> + Send>>;
/// What was taken from the caller's task, as a wrapper of the work.
pub(in crate::http) type ContextWrap = Box<dyn FnOnce(TaskWork) -> TaskWork + Send>;
/// Takes it.
pub(in crate::http) type ContextRule = Arc<dyn Fn(&Parts) -> ContextWrap + Send + Sync>;

/// The rules of one layer: data, and closures of the user's.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    pub(in crate::http) config: HttpConfig,
    /// Each adds to the key, or sends the request past the cache.
    pub(in crate::http) key_rules: Vec<KeyRule>,
    /// Whether one of them finds out whose a request is.
    pub(in crate::http) has_identity: bool,
    /// Counts what was not stored for credentials beside an identity, until something is stored.
    pub(in crate::http) identity_watch: Arc<HintWatch<20>>,
    /// Each sends requests past the cache.
    pub(in crate::http) bypass: Vec<RequestRule>,
    /// Which client a request is of.
    pub(in crate::http) client: Option<ClientRule>,
    /// The places for requests that are forwarded outside of flights, if they are bounded.
    pub(in crate::http) forwarded: Option<ForwardBound>,
    /// Which errors of the service say that it was not reached.
    pub(in crate::http) disconnected: Option<ServiceErrorRule>,
    /// Which errors of the service say that it has received nothing.
    pub(in crate::http) unsent: Option<ServiceErrorRule>,
    /// Which writes invalidate; all without it.
    pub(in crate::http) invalidates: Option<WriteRule>,
    /// A `fn() -> Q` for the request bodies of one type.
    pub(in crate::http) empty_body: Option<Arc<dyn Any + Send + Sync>>,
    /// A `fn(RequestBody<Q>) -> Q` for the same.
    pub(in crate::http) request_body: Option<Arc<dyn Any + Send + Sync>>,
    /// Which POSTs change nothing, by their heads.
    pub(in crate::http) posts: Option<RequestRule>,
    /// The key of their bodies; `None` for those that may change something.
    pub(in crate::http) post_key: Option<PostKeyRule>,
    pub(in crate::http) refusal: Option<RefusalRule>,
    /// Made of the settings once there is a service: what every hit needs.
    pub(in crate::http) hit_status: Option<HitStatus>,
    /// How the keys begin of requests that name no other scheme.
    pub(in crate::http) key_start: Box<[u8]>,
    /// Each removes from a background refresh what is of one client.
    pub(in crate::http) forgets: Vec<fn(&mut Extensions)>,
    /// Each takes something of a caller's task along to the task of its computation.
    pub(in crate::http) contexts: Vec<ContextRule>,
    /// The rules of routes that have some of their own.
    pub(in crate::http) route_table: Option<Arc<RouteTable<Rules>>>,
    /// Whether it was seen that the layer is inside of another one of its handle.
    pub(in crate::http) is_known_as_nested: Arc<AtomicBool>,
}

impl Rules {
    /// Makes what follows from the settings once there is a service.
    pub(in crate::http) fn finish(mut self) -> Self {
        self.config.exempt_keyed();
        if self.has_identity {
            let covered = self.config.covered.clone();
            self.config.exempt(&covered);
        }
        self.hit_status = self.config.cache_status.as_deref().map(HitStatus::new);
        self.key_start = key_start(self.config.scope.as_deref(), &self.config.scheme);
        self.is_known_as_nested = Arc::default();
        self.identity_watch = Arc::default();
        self
    }

    /// Returns whether two layers share the same responses to GETs among the same clients, for
    /// however long. Rules of the application may read what something between the two adds to a
    /// request: then they do not.
    pub(in crate::http) fn share_like(&self, other: &Self) -> bool {
        let have_rules =
            [self, other].iter().any(|it| !it.bypass.is_empty() || !it.key_rules.is_empty());
        !have_rules
            && self.forgets.len() == other.forgets.len()
            && self.config.shares_like(&other.config)
    }

    /// Returns whether a write invalidates that touches its resource, or may have done so.
    pub(in crate::http) fn lets_invalidate(
        &self,
        request: &request::Parts,
        response: Option<&response::Parts>,
    ) -> bool {
        let Some(rule) = &self.invalidates else { return true };
        // It may be called while a panic unwinds: a second one would end the process.
        catch_unwind(AssertUnwindSafe(|| rule(request, response))).unwrap_or(true)
    }
}
