//! Which responses are shared streams, and when one of them is complete.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

#[cfg(feature = "serde")]
use crate::settings::file::duration;
use crate::settings::layer::checks::is_token;

const EVENTS: &str = "text/event-stream";

/// Says which responses are shared streams, and when one of them is complete: for
/// [`HttpLayer::share_streams`](crate::HttpLayer::share_streams).
///
/// A complete stream is stored, any other one is not. A stream is complete if its connection ended
/// without an error and its end is the one that the rule names. In event streams the end must
/// be a whole event, with the blank line behind it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{HttpStampede, Stampede, StreamReplay, StreamRule};
///
/// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
/// let rule = StreamRule::end_mark("data: [DONE]")
///     .ttl(Duration::from_secs(3600))
///     .replay(StreamReplay::Paced);
/// let layer = cache.http_layer().share_streams(rule);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default = "StreamRule::without_end"))]
#[must_use]
pub struct StreamRule {
    // One of these four.
    pub(crate) end_mark: Option<String>,
    pub(crate) last_event: Option<String>,
    pub(crate) finish_reason: bool,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) complete_if: Option<EndRule>,
    pub(crate) content_types: Vec<String>,
    #[cfg_attr(feature = "serde", serde(deserialize_with = "duration"))]
    pub(crate) ttl: Option<Duration>,
    pub(crate) replay: StreamReplay,
    #[cfg_attr(feature = "serde", serde(deserialize_with = "duration"))]
    pub(crate) heartbeat: Option<Duration>,
}

/// How a stored stream is given to later clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StreamReplay {
    /// All of it as fast as the client reads.
    #[default]
    AtOnce,
    /// At the pace at which it came, counted from the moment when its head was there.
    ///
    /// The moments of at most 4,096 chunks are stored with it, in 8 bytes each; of a stream with
    /// more, neighbours are merged. It has no `Content-Length`.
    Paced,
}

/// A function of the application.
#[derive(Clone)]
pub(crate) struct EndRule(pub(crate) Arc<dyn Fn(&Bytes) -> bool + Send + Sync>);

impl fmt::Debug for EndRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndRule")
    }
}

impl PartialEq for EndRule {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

// A panic of the function is caught where it is called.
impl UnwindSafe for EndRule {}
impl RefUnwindSafe for EndRule {}

impl StreamRule {
    fn without_end() -> Self {
        Self {
            end_mark: None,
            last_event: None,
            finish_reason: false,
            complete_if: None,
            content_types: vec![EVENTS.into()],
            ttl: None,
            replay: StreamReplay::AtOnce,
            heartbeat: None,
        }
    }

    /// A stream is complete if its last event has this line: `data: [DONE]`, for example. In other
    /// content types, if it is the last line that is not empty.
    pub fn end_mark(line: impl Into<String>) -> Self {
        Self { end_mark: Some(line.into()), ..Self::without_end() }
    }

    /// A stream is complete if its last event has this name: `done` for `event: done`.
    pub fn last_event(name: impl Into<String>) -> Self {
        Self { last_event: Some(name.into()), ..Self::without_end() }
    }

    /// A stream is complete if the JSON in its last `data` line has a text as `finish_reason`, in each
    /// choice that has the key; one that lies deeper than another does not count. Nor do
    /// a `[DONE]` after it, and JSON with empty `choices`. In other content types each line is JSON.
    /// Each JSON must be on one line. Any text counts, `error` and `length` too.
    ///
    /// Where several answers run in one stream, the first one to finish may be the last line of a
    /// stream that was cut without an error: use [`end_mark`](Self::end_mark) for these.
    pub fn finish_reason() -> Self {
        Self { finish_reason: true, ..Self::without_end() }
    }

    /// A stream is complete if `is_complete` says so of all its bytes. It is called once for each
    /// stream that ended without an error, on the task that reads the stream, and must not block.
    /// Where it panics, the stream is not complete.
    pub fn complete_if(is_complete: impl Fn(&Bytes) -> bool + Send + Sync + 'static) -> Self {
        Self { complete_if: Some(EndRule(Arc::new(is_complete))), ..Self::without_end() }
    }

    /// Sets the content types of the responses that the rule is for, without parameters. Defaults
    /// to `text/event-stream` alone. Responses of other types are bodies like all others.
    pub fn content_types<'a>(mut self, types: impl IntoIterator<Item = &'a str>) -> Self {
        self.content_types = types.into_iter().map(str::to_owned).collect();
        self
    }

    /// Sets the lifetime of streams whose own fields state none above zero, counted from the
    /// arrival of the head; and says that `no-cache` in the response counts for nothing. Defaults to
    /// none: the response's own fields and the layer's `ttl` govern, and `no-cache` without a
    /// validator forbids to share.
    ///
    /// `CacheFor` of the handler and a lifetime above zero of the origin go before it. It lifts no
    /// other prohibition: `private`, `no-store`, `Set-Cookie`, `Vary: *` and the rules for
    /// credentials hold, and `must-revalidate` forbids stale answers. Choose one that is longer
    /// than the longest stream: no request joins a stream, and none is stored, whose lifetime is over.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how a stored stream is given to later clients. Defaults to [`StreamReplay::AtOnce`].
    pub fn replay(mut self, replay: StreamReplay) -> Self {
        self.replay = replay;
        self
    }

    /// Sets how long a reader of an event stream waits for the next bytes until it gets a comment,
    /// `:` and a blank line, so that proxies do not cut it off. Defaults to 15 s; zero switches
    /// it off.
    ///
    /// It begins when the head of the response is there, and comes only between whole events. It
    /// is never stored, and never sent where the response has a `Content-Length`.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = Some(every);
        self
    }

    /// Returns what cannot work: what [`HttpLayer::share_streams`](crate::HttpLayer::share_streams)
    /// panics with. For settings from elsewhere; those of a file are checked when the cache is
    /// built.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let Self { end_mark, last_event, content_types: types, ttl, heartbeat, .. } = self;
        let ends = [
            end_mark.is_some(),
            last_event.is_some(),
            self.finish_reason,
            self.complete_if.is_some(),
        ];
        let is_line = |text: &String| !text.trim().is_empty() && !text.contains(['\r', '\n']);
        let is_type = |name: &String| {
            name.split_once('/').is_some_and(|(one, other)| is_token(one) && is_token(other))
        };
        let is_events = |name: &String| name.eq_ignore_ascii_case(EVENTS);
        let why = if ends.into_iter().filter(|is| *is).count() != 1 {
            "a stream has one end: set one of `end_mark`, `last_event` and `finish_reason = true`"
        } else if !end_mark.iter().chain(last_event).all(is_line) {
            "`end_mark` and `last_event` must be one line that is not empty"
        } else if types.is_empty() || !types.iter().all(is_type) {
            "`content_types` must be content types; write for example `text/event-stream`"
        } else if last_event.is_some() && !types.iter().all(is_events) {
            "`last_event` is for `text/event-stream` alone; use another end"
        } else if ttl.is_some_and(|ttl| ttl.is_zero()) {
            "`ttl` is zero; leave it out where the response's own fields govern"
        } else if heartbeat.is_some_and(|it| !it.is_zero() && it < Duration::from_secs(1)) {
            "`heartbeat` must be 1 s or longer, or zero: none"
        } else {
            return None;
        };
        Some(why.into())
    }
}
