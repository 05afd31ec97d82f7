//! Every line of the log: its level, its text and its fields.
//!
//! There is no other way to write one: [`Line`] wants a [`LogMessage`]. A test holds
//! `docs/observability.md` against this table.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::key::Key;

/// How loud a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "only tracing writes lines"))]
pub(crate) enum LineLevel {
    /// What happens in normal operation.
    Debug,
    /// What is worth knowing after the fact.
    Info,
    /// What an operator may have to do something about.
    Warn,
}

macro_rules! lines {
    ($($(#[$doc:meta])* $name:ident: $level:ident $text:literal [$($field:ident)*];)+) => {
        /// A line of the log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(
            not(all(feature = "http", feature = "redis", feature = "tracing")),
            allow(dead_code, reason = "some things happen to HTTP or to a remote alone")
        )]
        pub(crate) enum LogMessage {
            $($(#[$doc])* $name,)+
        }

        #[cfg_attr(
            not(all(test, feature = "tracing")),
            allow(dead_code, reason = "for the tests that hold the page against it")
        )]
        impl LogMessage {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            pub(crate) const fn level(self) -> LineLevel {
                match self {
                    $(Self::$name => LineLevel::$level,)+
                }
            }

            pub(crate) const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// Returns the names of the fields that it can have, beside `cache`.
            pub(crate) const fn fields(self) -> &'static [&'static str] {
                match self {
                    $(Self::$name => &[$(stringify!($field)),*],)+
                }
            }
        }
    };
}

lines! {
    Computed: Debug "computed" [key_hash key took end];
    BatchCalled: Debug "called a batch loader" [keys took];
    FillRefused: Debug "fill refused" [key_hash key];
    BodyRefused: Debug "no room for an arriving body" [key_hash key];
    Waited: Debug "waited" [role waited];
    WaitTimedOut: Debug "waited too long" [key_hash key];
    Overloaded: Debug "overloaded" [key_hash key];
    Held: Debug "held" [key_hash key];
    RemoteCalled: Debug "asked the remote" [op took error];
    Damaged: Debug "damaged value in the remote" [how];
    Unshareable: Debug "not for the remote" [key_hash key];
    NoWriteSeen: Debug "this cache has stored 100 responses and seen no write; where writes go to \
        these URIs, a layer of the cache must be around them too (in \
        get(page).layer(cache).post(save) it is not), or the application must call \
        invalidate_path" [];
    /// Limited.
    WaitsLong: Info "another process still computes this key: this process has waited for its \
        result for longer than the lease setting" [key_hash key waited lease left_out left_out_others];
    /// Limited.
    TookOver: Info "the process that computed this key has not renewed its lease (killed, frozen \
        or cut off from the remote): this process computes the key now"
        [key_hash key waited lease left_out left_out_others];
    /// Limited.
    ComputationTimedOut: Warn "a computation took longer than compute_timeout and was dropped"
        [key_hash key took callers_got held_for left_out left_out_others];
    /// Limited.
    Deposed: Warn "a computation was neither polled nor dropped for longer than compute_timeout \
        and was given up" [key_hash key callers_got left_out left_out_others];
    /// Limited.
    ComputationPanicked: Warn "a computation panicked"
        [key_hash key took callers_got held_for left_out left_out_others];
    /// At the 1st, 2nd, 4th, 8th failure and so on. Limited.
    FailureHidden: Warn "computations fail, and no caller learns of it: callers are served stale \
        values as long as stale_for and stale_if_error permit, then errors"
        [key_hash key failures oldest_stale cause remedy left_out left_out_others];
    RemoteAway: Warn "the remote is away: this process goes on with what it has and computes \
        for itself" [server op error];
    RemoteBack: Warn "the remote answers again: this process shares values and computations \
        with other processes again" [server away_for];
    LocksAreEvicted: Warn "the server's maxmemory-policy may evict refresh locks or the \
        invalidation log: volatile-lfu does not" [server policy];
    Unreachable: Warn "no connection to the remote can be made, or it refuses every call, and that \
        does not mend itself" [server cause remedy];
    Unheard: Warn "messages of other processes do not arrive, though the server answers commands: \
        requests that wait look again by themselves, which takes longer; Redis::check says what the \
        server refuses" [server error];
    WeightsEstimated: Warn "the cache is full by an estimate, because it cannot see what values of \
        this type hold on the heap: each counts with assumed_bytes beside its size; implement Weigh \
        for the type and call Builder::weigh, or set Builder::weigher or Builder::max_entries"
        [type_name assumed_bytes];
    BodyTypeUnknown: Debug "a request is forwarded uncached because the layer cannot make a body \
        of its type; HttpLayer::request_body says how" [type_name];
    CredentialRefused: Warn "a response was not shared because its request carries a field that \
        counts as a credential; if the field does not say which user asks, exempt it with \
        HttpLayer::not_a_credential; if each value of it may have responses of its own, name it \
        in HttpLayer::vary" [field];
    TypeDiffers: Warn "the remote has values of another type, codec or schema under the name of this \
        cache: they are a miss, and replaced; during a deploy they come from the older program, and \
        this ends with it; otherwise two caches of different types have one name and namespace: \
        rename one, or give both a number with Codec::fingerprint if they mean the same" [type_name];
    ValuesAltered: Warn "values of this type cannot be written, or are not read as they were written, \
        so they stay in their process: look for the serde attributes skip_serializing_if, \
        skip_serializing, skip, tag, flatten and untagged, and for serde_json::Value; \
        Builder::codec(Codec::json()) takes most of them" [type_name];
    NameShared: Warn "another living handle of this process has the name of this cache: each has its \
        own values, and their metrics and log lines cannot be told apart; clone the first handle, or \
        give the second one another name with Stampede::builder" [];
    LayerNested: Warn "an HTTP layer is inside of another one of the same handle: it passes requests \
        on, and its settings do nothing but keep responses from being shared; give them to the outer \
        layer with HttpLayer::route_rules, and remove the inner one" [];
    TaskLocalMissing: Warn "a computation panicked because a task-local value is missing: it runs on \
        a task of its own, not on its caller's; for a handler take the value along with \
        HttpLayer::carry_context, for a closure read it before, or use get_or_compute_scoped" [];
}

/// So many characters of the text of an application's error are written.
const CAUSE_CHARS: usize = 200;

/// Returns what a line says of a failure, and what there is to do about it.
///
/// Runs code of the user: the `Display` of the error.
pub(super) fn explain(error: &Error) -> (String, &'static str) {
    let remedy = match error.kind() {
        ErrorKind::Inner => "look at what computes these values: cause is its last error",
        ErrorKind::Panicked => "the computation has a defect: the panic message has the place",
        ErrorKind::ComputeTimeout => {
            "look at what computes these values; compute_timeout must be above its 99th percentile"
        }
        ErrorKind::WaitTimeout => "computations take longer than wait_timeout: look at them first",
        ErrorKind::Overloaded => {
            "raise max_computations or max_waiters_in_all, if what computes the values can bear it"
        }
        ErrorKind::Held => "the computation failed in another process: look at the log of that",
        ErrorKind::ShutDown => "the runtime shuts down",
        ErrorKind::Cycle => "let the computation ask for another key than its own",
    };
    // Not the whole error: that of a cycle names the key.
    let cause = error.cause().map_or_else(|| error.kind().text().to_owned(), ToString::to_string);
    let cause = cause.chars().take(CAUSE_CHARS).flat_map(char::escape_debug).collect();
    (cause, remedy)
}

/// A line of the log, and the fields it can have.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "only tracing writes lines"))]
pub(super) struct Line<'a> {
    pub(super) message: LogMessage,
    pub(super) key: Option<&'a Key>,
    pub(super) took: Option<Duration>,
    pub(super) waited: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) away_for: Option<Duration>,
    pub(super) held_for: Option<Duration>,
    pub(super) oldest_stale: Option<Duration>,
    pub(super) callers_got: Option<&'static str>,
    pub(super) role: Option<&'static str>,
    pub(super) end: Option<&'static str>,
    pub(super) op: Option<&'static str>,
    pub(super) error: Option<&'static str>,
    pub(super) how: Option<&'static str>,
    pub(super) server: Option<&'a str>,
    pub(super) policy: Option<&'a str>,
    pub(super) cause: Option<&'a str>,
    pub(super) remedy: Option<&'static str>,
    pub(super) field: Option<&'a str>,
    pub(super) type_name: Option<&'a str>,
    pub(super) assumed_bytes: Option<usize>,
    pub(super) keys: Option<u64>,
    pub(super) failures: Option<u64>,
}

impl Line<'_> {
    pub(super) const fn of(message: LogMessage) -> Self {
        Self {
            message,
            key: None,
            took: None,
            waited: None,
            lease: None,
            away_for: None,
            held_for: None,
            oldest_stale: None,
            callers_got: None,
            role: None,
            end: None,
            op: None,
            error: None,
            how: None,
            server: None,
            policy: None,
            cause: None,
            remedy: None,
            field: None,
            type_name: None,
            assumed_bytes: None,
            keys: None,
            failures: None,
        }
    }
}
