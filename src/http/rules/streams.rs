//! Shared streams: which responses are some, where an event is, and whether one is complete.
//!
//! Event streams are read as the HTML standard says (9.2.6): lines end with LF, CR or both, and a
//! blank line ends an event.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName};

use crate::http::config::HttpConfig;
use crate::http::rules::codings::Coding;
use crate::settings::layer::{EndRule, StreamReplay, StreamRule};

pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Proxies cut off what is silent for half a minute, or longer.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// A response that is a shared stream by the layer's rule.
#[derive(Clone, Debug)]
pub(crate) struct SharedStream {
    rule: Arc<StreamRule>,
    is_events: bool,
}

impl SharedStream {
    /// Returns the rule for a 200 with these fields; an error where its bytes are coded, so that
    /// no rule can read them.
    pub(crate) fn of(config: &HttpConfig, headers: &HeaderMap) -> Result<Option<Self>, ()> {
        let Some(rule) = &config.share_streams else { return Ok(None) };
        let mut lines = headers.get_all(header::CONTENT_TYPE).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return Ok(None) };
        let name = line.as_bytes().split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
        let is_named = |one: &String| name.eq_ignore_ascii_case(one.as_bytes());
        match rule.content_types.iter().any(is_named) {
            false => Ok(None),
            true if Coding::of_response(headers).is_coded() => Err(()),
            true => Ok(Some(Self { rule: Arc::clone(rule), is_events: is_event_stream(headers) })),
        }
    }

    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.rule.ttl
    }

    /// Returns how long a reader waits for a comment, if it gets some.
    pub(crate) fn heartbeat(&self, length: Option<u64>) -> Option<Duration> {
        let every = self.rule.heartbeat.unwrap_or(HEARTBEAT);
        (self.is_events && length.is_none() && !every.is_zero()).then_some(every)
    }

    pub(crate) fn is_paced(&self) -> bool {
        self.rule.replay == StreamReplay::Paced
    }

    /// Returns whether these bytes are a complete stream.
    pub(crate) fn is_complete(&self, bytes: &Bytes) -> bool {
        let StreamRule { end_mark, last_event, complete_if, .. } = &*self.rule;
        if let Some(EndRule(is)) = complete_if {
            return catch_unwind(AssertUnwindSafe(|| is(bytes))).unwrap_or(false);
        }
        let Some(events) = events(bytes, self.is_events) else { return false };
        let ends_with = |field| events.last().is_some_and(|event| event.contains(&field));
        match (end_mark, last_event) {
            (Some(mark), _) => ends_with(field(mark.trim().as_bytes(), self.is_events)),
            (_, Some(name)) => ends_with((b"event", name.as_bytes())),
            _ => {
                let fields = events.iter().flatten().rev();
                let texts = fields.filter(|(name, _)| *name == b"data").map(|(_, text)| *text);
                texts.into_iter().find(|text| !may_follow(text)).is_some_and(has_finish_reason)
            }
        }
    }
}

/// Whether the fields say that the body is an event stream.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    // A list is no media type, but a client that reads its first or last member
    // waits for events.
    let is_it = |part: &[u8]| part.trim_ascii().eq_ignore_ascii_case(b"text/event-stream");
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    values.any(|value| value.as_bytes().split(|b| matches!(b, b';' | b',')).any(is_it))
}

/// Returns where the bytes begin that follow the first event with the id that a request names.
pub(crate) fn resume_at(request: &HeaderMap, bytes: &[u8]) -> Option<usize> {
    let wanted = request.get(LAST_EVENT_ID)?.as_bytes();
    let mut id = None;
    for line in Lines::of(bytes).filter(|line| line.has_end) {
        if line.text.is_empty() && id.take() == Some(wanted) {
            return Some(line.end);
        }
        // Without a value it resets the id.
        if let (b"id", value) = field(line.text, true)
            && !value.contains(&0)
        {
            id = Some(value);
        }
    }
    None
}

/// Returns whether the next bytes begin an event, where these are the last ones before them. All
/// that counts is in the last three.
pub(crate) fn is_between_events(tail: &[u8; 3]) -> bool {
    let rest = tail.strip_suffix(b"\r\n").or_else(|| tail.strip_suffix(b"\n"));
    let rest = rest.or_else(|| tail.strip_suffix(b"\r"));
    rest.is_some_and(|rest| rest.ends_with(b"\n") || rest.ends_with(b"\r"))
}

type Field<'a> = (&'a [u8], &'a [u8]);

/// Reads a line; one of a stream without events is data.
fn field(line: &[u8], is_event: bool) -> Field<'_> {
    match line.iter().position(|&b| b == b':') {
        _ if !is_event => (b"data", line.trim_ascii()),
        Some(at) => {
            let value = &line[at + 1..];
            (&line[..at], value.strip_prefix(b" ").unwrap_or(value))
        }
        None => (line, b""),
    }
}

/// The fields of each event, without comments; `None` where a part of one is left at the end. A line
/// of a stream without events is an event.
fn events(bytes: &[u8], has_events: bool) -> Option<Vec<Vec<Field<'_>>>> {
    let (mut events, mut event) = (Vec::new(), Vec::new());
    for line in Lines::of(bytes) {
        let field = field(line.text, has_events);
        event.extend(
            Some(field)
                .filter(|(name, value)| !name.is_empty() && (has_events || !value.is_empty())),
        );
        if (line.text.is_empty() || !has_events) && !event.is_empty() {
            events.push(std::mem::take(&mut event));
        }
    }
    event.is_empty().then_some(events)
}

struct Line<'a> {
    text: &'a [u8],
    /// Where the next line begins.
    end: usize,
    has_end: bool,
}

/// The lines of a stream, without the byte order mark.
struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Lines<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 },
        }
    }
}

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let length = rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
        let text = &rest[..length.unwrap_or(rest.len())];
        let ending = match &rest[text.len()..] {
            [b'\r', b'\n', ..] => 2,
            [_, ..] => 1,
            [] => 0,
        };
        self.at += text.len() + ending;
        Some(Line { text, end: self.at, has_end: ending > 0 })
    }
}

/// Returns whether a text may follow the one that ends an answer.
fn may_follow(text: &[u8]) -> bool {
    let is_empty = |list: &[u8]| {
        list.strip_prefix(b"[").is_some_and(|it| it.trim_ascii_start().starts_with(b"]"))
    };
    text.trim_ascii() == b"[DONE]" || after_key(text, b"\"choices\"").is_some_and(is_empty)
}

/// Returns whether JSON has a text as `finish_reason`.
fn has_finish_reason(text: &[u8]) -> bool {
    after_key(text, b"\"finish_reason\"").is_some_and(|value| value.starts_with(b"\""))
}

/// Returns what follows a key of JSON: the last one that has a value other than `null`. Within a
/// text there is a backslash before each quotation mark.
fn after_key<'a>(json: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let is_key = |at: &usize| json[*at..].starts_with(key) && (*at == 0 || json[at - 1] != b'\\');
    let mut values = (0..json.len()).filter(is_key).filter_map(|at| {
        let value = json[at + key.len()..].trim_ascii_start().strip_prefix(b":")?;
        Some(value.trim_ascii_start())
    });
    values.rfind(|value| !value.starts_with(b"null"))
}
