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
    /// Whether its readers may get comments.
    may_be_changed: bool,
}

impl SharedStream {
    /// Returns the rule for a 200 with these fields; an error where its bytes are coded, or it has
    /// several types, so that no rule can read them.
    pub(crate) fn of(config: &HttpConfig, headers: &HeaderMap) -> Result<Option<Self>, ()> {
        let Some(rule) = &config.share_streams else { return Ok(None) };
        let lines = headers.get_all(header::CONTENT_TYPE).iter();
        let types = lines.flat_map(|line| line.as_bytes().split(|&b| b == b','));
        let is_named = |of: &[u8]| {
            let name = of.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
            rule.content_types.iter().any(|one| name.eq_ignore_ascii_case(one.as_bytes()))
        };
        let is_named: Vec<_> = types.map(is_named).collect();
        if !is_named.contains(&true) {
            return Ok(None);
        }
        // Of several types no client knows which is meant.
        if is_named.len() > 1 || Coding::of_response(headers).is_coded() {
            return Err(());
        }
        Ok(Some(Self {
            rule: Arc::clone(rule),
            is_events: is_event_stream(headers),
            may_be_changed: !states_its_bytes(headers),
        }))
    }

    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.rule.ttl
    }

    /// Returns how long a reader waits for a comment, if it gets some.
    pub(crate) fn heartbeat(&self, length: Option<u64>) -> Option<Duration> {
        let every = self.rule.heartbeat.unwrap_or(HEARTBEAT);
        let may_be_longer = self.may_be_changed && length.is_none();
        (self.is_events && may_be_longer && !every.is_zero()).then_some(every)
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
        let Some(last) = events.last() else { return false };
        match (end_mark, last_event) {
            (Some(mark), _) => last.contains(&field(mark.trim().as_bytes(), self.is_events)),
            // The last field of the name counts.
            (_, Some(name)) => {
                let named = last.iter().rfind(|(field, _)| *field == b"event");
                named.is_some_and(|(_, is)| *is == name.as_bytes())
            }
            _ => {
                let fields = events.iter().flatten().rev();
                let texts = fields.filter(|(name, _)| *name == b"data").map(|(_, text)| *text);
                texts.into_iter().find(|text| !may_follow(text)).is_some_and(has_finish_reason)
            }
        }
    }
}

/// Whether the fields say of the bytes of a body which they are: those of a strong entity tag, with a
/// digest, or such that no cache may change (RFC 9111, 5.2.2.6).
fn states_its_bytes(headers: &HeaderMap) -> bool {
    let has_digest = ["content-digest", "repr-digest", "digest", "content-md5"]
        .iter()
        .any(|name| headers.contains_key(*name));
    let is_strong = headers.get(header::ETAG).is_some_and(|tag| !tag.as_bytes().starts_with(b"W/"));
    let mut said = headers.get_all(header::CACHE_CONTROL).iter();
    let is_no_transform = |one: &[u8]| one.trim_ascii().eq_ignore_ascii_case(b"no-transform");
    let is_fixed = said.any(|line| line.as_bytes().split(|&b| b == b',').any(is_no_transform));
    has_digest || is_strong || is_fixed
}

/// Whether the fields say that the body is an event stream.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    // A list is no media type, but a client that reads its first or last member
    // waits for events.
    let is_it = |part: &[u8]| part.trim_ascii().eq_ignore_ascii_case(b"text/event-stream");
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    values.any(|value| value.as_bytes().split(|b| matches!(b, b';' | b',')).any(is_it))
}

/// Returns where the bytes begin that follow the event with the id that a request names. An id that
/// several events have names no place. The bytes come in parts, of which none is copied.
pub(crate) fn resume_at<'a>(
    request: &HeaderMap,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Option<usize> {
    let mut ids = request.get_all(LAST_EVENT_ID).iter();
    let (Some(wanted), None) = (ids.next().map(|id| id.as_bytes()), ids.next()) else {
        return None;
    };
    // As much of a line as says whether it is this id, and whether it has an id at all.
    let most = BYTE_ORDER_MARK.len() + b"id: ".len() + wanted.len() + 1;
    let (mut line, mut has_null) = (Vec::with_capacity(most), false);
    let (mut is_first, mut after_cr) = (true, false);
    let (mut is_wanted, mut found) = (false, None);
    for (at, &byte) in parts.into_iter().flatten().enumerate() {
        let ends_cr = std::mem::replace(&mut after_cr, byte == b'\r') && byte == b'\n';
        if ends_cr {
            // A line may end with two bytes.
            found = found.map(|end| if end == at { at + 1 } else { end });
            continue;
        }
        if !matches!(byte, b'\n' | b'\r') {
            has_null |= byte == 0;
            line.extend((line.len() < most).then_some(byte));
            continue;
        }
        let is_marked = std::mem::take(&mut is_first) && line.starts_with(BYTE_ORDER_MARK);
        let text = &line[if is_marked { BYTE_ORDER_MARK.len() } else { 0 }..];
        if text.is_empty() {
            if std::mem::take(&mut is_wanted) && found.replace(at + 1).is_some() {
                return None;
            }
        } else if let (b"id", value) = field(text, true)
            && !has_null
        {
            // Without a value it resets the id.
            is_wanted = value == wanted;
        }
        line.clear();
        has_null = false;
    }
    found
}

/// What a reader gets while a stream is silent.
pub(crate) const COMMENT: &[u8] = b":\n\n";

/// The last bytes of an event stream. All that counts is in three.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamTail([u8; 3]);

impl Default for StreamTail {
    /// As if blank lines came before it.
    fn default() -> Self {
        Self(*b"\n\n\n")
    }
}

impl StreamTail {
    pub(crate) fn note(&mut self, chunk: &[u8]) {
        for &byte in &chunk[chunk.len().saturating_sub(3)..] {
            self.0 = [self.0[1], self.0[2], byte];
        }
    }

    /// Returns whether the next bytes begin an event.
    pub(crate) fn is_between_events(self) -> bool {
        let rest = self.0.strip_suffix(b"\r\n").or_else(|| self.0.strip_suffix(b"\n"));
        let rest = rest.or_else(|| self.0.strip_suffix(b"\r"));
        rest.is_some_and(|rest| rest.ends_with(b"\n") || rest.ends_with(b"\r"))
    }

    /// Returns whether a chunk has nothing but comments such as ours.
    pub(crate) fn is_before_comments(self, chunk: &[u8]) -> bool {
        let is_it = |one: &[u8]| one == COMMENT;
        !chunk.is_empty() && self.is_between_events() && chunk.chunks(COMMENT.len()).all(is_it)
    }
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
/// of a stream without events is an event: one without its end may be a part.
fn events(bytes: &[u8], has_events: bool) -> Option<Vec<Vec<Field<'_>>>> {
    if !has_events && !bytes.ends_with(b"\n") && !bytes.ends_with(b"\r") {
        return None;
    }
    let (mut events, mut event) = (Vec::new(), Vec::new());
    for line in Lines::of(bytes) {
        let field = field(line, has_events);
        event.extend(
            Some(field)
                .filter(|(name, value)| !name.is_empty() && (has_events || !value.is_empty())),
        );
        if (line.is_empty() || !has_events) && !event.is_empty() {
            events.push(std::mem::take(&mut event));
        }
    }
    event.is_empty().then_some(events)
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
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let length = rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
        let text = &rest[..length.unwrap_or(rest.len())];
        let ending = match &rest[text.len()..] {
            [b'\r', b'\n', ..] => 2,
            [_, ..] => 1,
            [] => 0,
        };
        self.at += text.len() + ending;
        Some(text)
    }
}

/// Returns whether a text may follow the one that ends an answer.
fn may_follow(text: &[u8]) -> bool {
    let is_empty = |list: &[u8]| {
        list.strip_prefix(b"[").is_some_and(|it| it.trim_ascii_start().starts_with(b"]"))
    };
    text.trim_ascii() == b"[DONE]" || after_key(text, b"\"choices\"").is_some_and(is_empty)
}

/// Returns whether JSON has a text as `finish_reason`. An empty one is a reason for nothing.
fn has_finish_reason(text: &[u8]) -> bool {
    let value = after_key(text, b"\"finish_reason\"");
    value.is_some_and(|value| value.starts_with(b"\"") && !value.starts_with(b"\"\""))
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
