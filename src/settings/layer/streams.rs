//! Which responses are shared streams, and when one of them is complete.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

const EVENTS: &str = "text/event-stream";
/// What most proxies on the way wait for, and more.
const HEARTBEAT: Duration = Duration::from_secs(15);

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
#[must_use]
pub struct StreamRule {
    pub(crate) end: StreamEnd,
    pub(crate) content_types: Vec<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) replay: StreamReplay,
    pub(crate) heartbeat: Duration,
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

/// What a complete stream ends with.
#[derive(Clone)]
pub(crate) enum StreamEnd {
    Mark(String),
    Event(String),
    FinishReason,
    Rule(Arc<dyn Fn(&Bytes) -> bool + Send + Sync>),
}

impl StreamRule {
    fn new(end: StreamEnd) -> Self {
        Self {
            end,
            content_types: vec![EVENTS.into()],
            ttl: None,
            replay: StreamReplay::AtOnce,
            heartbeat: HEARTBEAT,
        }
    }

    /// A stream is complete if its last event has this line: `data: [DONE]`, for example. In other
    /// content types, if it is the last line that is not empty.
    pub fn end_mark(line: impl Into<String>) -> Self {
        Self::new(StreamEnd::Mark(line.into()))
    }

    /// A stream is complete if its last event has this name: `done` for `event: done`.
    pub fn last_event(name: impl Into<String>) -> Self {
        Self::new(StreamEnd::Event(name.into()))
    }

    /// A stream is complete if the JSON in its last `data` line has a text as `finish_reason`, at
    /// any depth. A `[DONE]` after it, and JSON with empty `choices`, do not count. In other content
    /// types each line is JSON. Each JSON must be on one line.
    ///
    /// Where several answers run in one stream, the first one to finish may be the last line of a
    /// stream that was cut without an error: use [`end_mark`](Self::end_mark) for these.
    pub fn finish_reason() -> Self {
        Self::new(StreamEnd::FinishReason)
    }

    /// A stream is complete if `is_complete` says so of all its bytes. It is called once for each
    /// stream that ended without an error, on the task that reads the stream, and must not block.
    /// Where it panics, the stream is not complete.
    pub fn complete_if(is_complete: impl Fn(&Bytes) -> bool + Send + Sync + 'static) -> Self {
        Self::new(StreamEnd::Rule(Arc::new(is_complete)))
    }

    /// Sets the content types of the responses that the rule is for, without parameters. Defaults
    /// to `text/event-stream` alone. Responses of other types are bodies like all others.
    pub fn content_types<'a>(mut self, types: impl IntoIterator<Item = &'a str>) -> Self {
        self.content_types = types.into_iter().map(str::to_ascii_lowercase).collect();
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
        self.heartbeat = every;
        self
    }

    /// Returns what cannot work: what [`HttpLayer::share_streams`](crate::HttpLayer::share_streams)
    /// panics with. For settings from elsewhere; those of a file are checked when the cache is
    /// built.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let (what, text) = match &self.end {
            StreamEnd::Mark(line) => ("end_mark", line.as_str()),
            StreamEnd::Event(name) => ("last_event", name.as_str()),
            StreamEnd::FinishReason | StreamEnd::Rule(_) => ("", "any"),
        };
        let is_type = |name: &str| {
            let is_char = |b: u8| b.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&b);
            let is_part = |part: &str| !part.is_empty() && part.bytes().all(is_char);
            name.split_once('/').is_some_and(|(one, other)| is_part(one) && is_part(other))
        };
        let wrong = self.content_types.iter().find(|name| !is_type(name));
        let has_others = self.content_types.iter().any(|name| name != EVENTS);
        if text.trim().is_empty() || text.contains(['\r', '\n']) {
            Some(format!("`{what}` must be one line that is not empty"))
        } else if let Some(wrong) = wrong {
            Some(format!("`{wrong}` is no content type; write for example `text/event-stream`"))
        } else if self.content_types.is_empty() {
            Some("`content_types` is empty; name one, or leave it out".into())
        } else if what == "last_event" && has_others {
            Some("`last_event` is for `text/event-stream` alone; use another end".into())
        } else if self.ttl.is_some_and(|ttl| ttl.is_zero()) {
            Some("`ttl` is zero; leave it out where the response's own fields govern".into())
        } else if !self.heartbeat.is_zero() && self.heartbeat < Duration::from_secs(1) {
            let said = self.heartbeat;
            Some(format!("`heartbeat` ({said:?}) must be 1 s or longer, or zero: none"))
        } else {
            None
        }
    }
}

impl fmt::Debug for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark(line) => f.debug_tuple("Mark").field(line).finish(),
            Self::Event(name) => f.debug_tuple("Event").field(name).finish(),
            Self::FinishReason => f.write_str("FinishReason"),
            Self::Rule(_) => f.write_str("Rule"),
        }
    }
}

impl PartialEq for StreamEnd {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Mark(one), Self::Mark(other)) | (Self::Event(one), Self::Event(other)) => {
                one == other
            }
            (Self::FinishReason, Self::FinishReason) => true,
            (Self::Rule(one), Self::Rule(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// The rule as a file has it.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamTable {
    content_types: Option<Vec<String>>,
    end_mark: Option<String>,
    last_event: Option<String>,
    #[serde(default)]
    finish_reason: bool,
    #[serde(default, deserialize_with = "crate::settings::file::duration")]
    ttl: Option<Duration>,
    #[serde(default)]
    replay: StreamReplay,
    #[serde(default, deserialize_with = "crate::settings::file::duration")]
    heartbeat: Option<Duration>,
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for StreamRule {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = StreamTable::deserialize(from)?;
        let mut rule = match (read.end_mark, read.last_event, read.finish_reason) {
            (Some(line), None, false) => Self::end_mark(line),
            (None, Some(name), false) => Self::last_event(name),
            (None, None, true) => Self::finish_reason(),
            _ => {
                let why = "a stream has one end: set one of `end_mark`, `last_event` and \
                           `finish_reason = true`";
                return Err(serde::de::Error::custom(why));
            }
        };
        if let Some(types) = &read.content_types {
            rule = rule.content_types(types.iter().map(String::as_str));
        }
        let heartbeat = read.heartbeat.unwrap_or(rule.heartbeat);
        Ok(Self { ttl: read.ttl, replay: read.replay, heartbeat, ..rule })
    }
}
