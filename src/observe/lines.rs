//! Every line of the log: its level, its text and its fields.
//!
//! There is no other way to write one: [`Line`] wants a [`LogMessage`]. A test holds
//! `docs/observability.md` against this table.

use std::time::Duration;

use tracing::Level;

use crate::error::{Error, ErrorKind};
use crate::key::Key;

macro_rules! lines {
    ($($(#[$doc:meta])* $name:ident: $level:ident $text:literal [$($field:ident)*];)+) => {
        /// A line of the log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(
            not(all(feature = "http", feature = "redis")),
            allow(dead_code, reason = "some things happen to HTTP or to a remote alone")
        )]
        pub(crate) enum LogMessage {
            $($(#[$doc])* $name,)+
        }

        #[cfg_attr(
            not(test),
            allow(dead_code, reason = "for the tests that hold the page against it")
        )]
        impl LogMessage {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            /// DEBUG: what happens in normal operation. INFO: what is worth knowing after the fact.
            /// WARN: what an operator may have to do something about.
            pub(crate) const fn level(self) -> Level {
                match self {
                    $(Self::$name => Level::$level,)+
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
    Computed: DEBUG "computed" [key_hash key took end];
    ModeChanged: INFO "the mode was switched" [mode];
    BatchCalled: DEBUG "called a batch loader" [keys took];
    FillRefused: DEBUG "fill refused" [key_hash key];
    BodyRefused: DEBUG "no room for an arriving body" [key_hash key];
    Waited: DEBUG "waited" [role waited];
    WaitTimedOut: DEBUG "waited too long" [key_hash key];
    Overloaded: DEBUG "overloaded" [key_hash key];
    Held: DEBUG "held" [key_hash key];
    RemoteCalled: DEBUG "asked the remote" [op took error];
    Damaged: DEBUG "damaged value in the remote" [how];
    Unshareable: DEBUG "not for the remote" [key_hash key];
    NoWriteSeen: DEBUG "this cache has stored 100 responses and seen no write; where writes go to \
        these URIs, a layer of the cache must be around them too (in \
        get(page).layer(cache).post(save) it is not), or the application must call \
        invalidate_path" [];
    /// Limited.
    WaitsLong: INFO "another process still computes this key: this process has waited for its \
        result for longer than the lease setting" [key_hash key waited lease left_out left_out_others];
    /// Limited.
    TookOver: INFO "the process that computed this key has not renewed its lease (killed, frozen \
        or cut off from the remote): this process computes the key now"
        [key_hash key waited lease left_out left_out_others];
    /// Limited.
    ComputationTimedOut: WARN "a computation took longer than compute_timeout and was dropped"
        [key_hash key took callers_got held_for left_out left_out_others];
    /// Limited.
    Deposed: WARN "a computation was neither polled nor dropped for longer than compute_timeout \
        and was given up" [key_hash key callers_got left_out left_out_others];
    /// Limited.
    ComputationPanicked: WARN "a computation panicked"
        [key_hash key took callers_got held_for left_out left_out_others];
    /// At the 1st, 2nd, 4th, 8th failure and so on. Limited.
    FailureHidden: WARN "failures reach no caller: callers are served stale values as long as \
        stale_for and stale_if_error permit, and get errors after that"
        [key_hash key failures oldest_stale cause remedy left_out left_out_others];
    /// Limited.
    FailuresEnded: INFO "a computation succeeded: no failure is hidden any more"
        [key_hash key hidden lasted left_out left_out_others];
    RemoteAway: WARN "the remote is away: this process goes on with what it has and computes \
        for itself" [server op error];
    RemoteBack: WARN "the remote answers again: this process shares values and computations \
        with other processes again" [server away_for];
    LocksAreEvicted: WARN "the server's maxmemory-policy may evict refresh locks or the \
        invalidation log: volatile-lfu does not" [server policy];
    Unreachable: WARN "no connection to the remote can be made, or it refuses every call, and that \
        does not mend itself" [server cause remedy];
    Unheard: WARN "messages of other processes do not arrive, though the server answers commands: \
        requests that wait look again by themselves, which takes longer; Redis::check says what the \
        server refuses" [server error];
    WeightsEstimated: WARN "the cache is full by an estimate, because it cannot see what values of \
        this type hold on the heap: each counts with assumed_bytes beside its size; implement Weigh \
        for the type and call Builder::weigh, or set Builder::weigher or Builder::max_entries"
        [type_name assumed_bytes];
    BodyTypeUnknown: DEBUG "a request is forwarded uncached because the layer cannot make a body \
        of its type; HttpLayer::request_body says how" [type_name];
    CredentialRefused: WARN "a response was not shared because its request carries a field that \
        counts as a credential; if the field does not say which user asks, exempt it with \
        HttpLayer::not_a_credential; if each value of it may have responses of its own, name it \
        in HttpLayer::vary" [field];
    IdentityUncovered: WARN "the layer has an identity, and the first 20 responses that it could have \
        stored were not shared because a credential came with the request; if the identity stands for \
        the field, name it in HttpLayer::identity_covers" [field];
    CacheForUnread: WARN "a response with CacheFor was dropped before a layer had read it, and is not \
        cached: put the HTTP layer around its route (a route that is added after Router::layer is not \
        behind it), and let nothing between the two replace the response" [];
    TypeDiffers: WARN "the remote has values of another type, codec or schema under the name of this \
        cache: they are a miss, and replaced; during a deploy they come from the older program, and \
        this ends with it; otherwise two caches of different types have one name and namespace: \
        rename one, or give both a number with Codec::fingerprint if they mean the same" [type_name];
    ValuesAltered: WARN "values of this type cannot be written, or are not read as they were written, \
        so they stay in their process: look for the serde attributes skip_serializing_if, \
        skip_serializing, skip, tag, flatten and untagged, and for serde_json::Value; \
        Builder::codec(Codec::json()) takes most of them" [type_name];
    NameShared: WARN "another living handle of this process has the name of this cache: each has its \
        own values, and their metrics and log lines cannot be told apart; clone the first handle, or \
        give the second one another name with Stampede::builder" [];
    LayerNested: WARN "an HTTP layer is inside of another one of the same handle: it passes requests \
        on, and its settings do nothing but keep responses from being shared; give them to the outer \
        layer with HttpLayer::route_rules, and remove the inner one" [];
    TaskLocalMissing: WARN "a computation panicked because a task-local value is missing: it runs on \
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
        ErrorKind::Panicked | ErrorKind::Cycle => "the computation has a defect",
        ErrorKind::ComputeTimeout | ErrorKind::WaitTimeout => {
            "computations take too long: look at them"
        }
        ErrorKind::Overloaded => {
            "raise max_computations or max_waiters_in_all, or look at the load"
        }
        ErrorKind::Held => "the computation failed in another process: look at the log of that",
        ErrorKind::ShutDown => "the runtime shuts down",
    };
    // Not the whole error: that of a cycle names the key.
    let cause = error.cause().map_or_else(|| error.kind().text().to_owned(), ToString::to_string);
    let cause = cause.chars().take(CAUSE_CHARS).flat_map(char::escape_debug).collect();
    (cause, remedy)
}

macro_rules! fields {
    ($($field:ident: $type:ty,)+) => {
        /// A line of the log, and the fields it can have.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Line<'a> {
            pub(super) message: LogMessage,
            $(pub(super) $field: Option<$type>,)+
        }

        impl Line<'_> {
            pub(super) const fn of(message: LogMessage) -> Self {
                Self { message, $($field: None,)+ }
            }
        }
    };
}

fields! {
    key: &'a Key,
    took: Duration,
    waited: Duration,
    lease: Duration,
    away_for: Duration,
    held_for: Duration,
    lasted: Duration,
    oldest_stale: Duration,
    callers_got: &'static str,
    role: &'static str,
    end: &'static str,
    op: &'static str,
    error: &'static str,
    how: &'static str,
    server: &'a str,
    policy: &'a str,
    cause: &'a str,
    remedy: &'static str,
    field: &'a str,
    mode: &'static str,
    type_name: &'a str,
    assumed_bytes: usize,
    keys: u64,
    failures: u64,
    hidden: u64,
}
