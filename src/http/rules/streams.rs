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
        (self.may_have_comments(length) && !every.is_zero()).then_some(every)
    }

    fn may_have_comments(&self, length: Option<u64>) -> bool {
        self.is_events && self.may_be_changed && length.is_none()
    }

    /// Returns what takes the comments of another such cache out of it.
    pub(crate) fn comment_filter(&self, length: Option<u64>) -> CommentFilter {
        let held = self.may_have_comments(length).then_some(0);
        CommentFilter { tail: StreamTail::default(), held }
    }

    pub(crate) fn is_paced(&self) -> bool {
        self.rule.replay == StreamReplay::Paced
    }

    /// Returns whether these bytes are a complete stream.
    pub(crate) fn is_complete(&self, bytes: &Bytes) -> bool {
        let StreamRule { end_mark, last_event: last_name, complete_if, .. } = &*self.rule;
        if let Some(EndRule(is)) = complete_if {
            return catch_unwind(AssertUnwindSafe(|| is(bytes))).unwrap_or(false);
        }
        let is_events = self.is_events;
        let Some(last) = last_event(bytes, is_events) else { return false };
        let mut last = fields(Lines { bytes: last, at: 0 }, is_events);
        match (end_mark, last_name) {
            (Some(mark), _) => {
                let mark = field(mark.trim().as_bytes(), is_events);
                last.any(|field| field == mark)
            }
            // The last field of the name counts.
            (_, Some(name)) => {
                let named = last.filter(|(field, _)| *field == b"event").last();
                named.is_some_and(|(_, is)| is == name.as_bytes())
            }
            _ => {
                let data = fields(Lines::of(bytes), is_events).filter(|(name, _)| *name == b"data");
                let texts = data.map(|(_, text)| text).filter(|text| !may_follow(text));
                texts.last().is_some_and(has_finish_reason)
            }
        }
    }
}

/// Whether the fields say of the bytes of a body which they are: those of a strong entity tag or of a
/// date, with a digest, or such that no cache may change (RFC 9111, 5.2.2.6).
fn states_its_bytes(headers: &HeaderMap) -> bool {
    let has_digest = ["content-digest", "repr-digest", "digest", "content-md5", "last-modified"]
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
/// several events name is no place; events without one follow that before them, and come again. The
/// bytes come in parts, of which none is copied.
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
}

/// Takes comments such as ours out of an event stream, wherever a connection has cut it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommentFilter {
    /// Of what has come, without comments.
    tail: StreamTail,
    /// So many bytes may be those of a comment; `None` where the stream is left as it is.
    held: Option<usize>,
}

impl CommentFilter {
    /// Returns a chunk without comments, after what was held back before it.
    pub(crate) fn take(&mut self, chunk: Bytes) -> Bytes {
        let Some(mut held) = self.held else { return chunk };
        if held == 0 && !self.may_have_comment(&chunk) {
            self.tail.note(&chunk);
            return chunk;
        }
        let mut kept = Vec::with_capacity(held + chunk.len());
        for &byte in &chunk {
            if byte == COMMENT[held] && (held > 0 || self.tail.is_between_events()) {
                held = (held + 1) % COMMENT.len();
                continue;
            }
            let no_comment = &COMMENT[..std::mem::take(&mut held)];
            kept.extend_from_slice(no_comment);
            kept.push(byte);
            self.tail.note(no_comment);
            self.tail.note(&[byte]);
        }
        self.held = Some(held);
        kept.into()
    }

    /// Returns what is held back at the end of the stream.
    pub(crate) fn finish(&mut self) -> Bytes {
        let held = self.held.as_mut().map(std::mem::take).unwrap_or_default();
        Bytes::from_static(&COMMENT[..held])
    }

    /// Returns whether a line of the chunk begins as a comment does.
    fn may_have_comment(&self, chunk: &[u8]) -> bool {
        let begins = |at: usize| at.checked_sub(1).map_or(self.tail.0[2], |before| chunk[before]);
        let is_colon =
            |(at, &byte): (usize, &u8)| byte == b':' && matches!(begins(at), b'\n' | b'\r');
        chunk.iter().enumerate().any(is_colon)
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

fn fields(lines: Lines<'_>, has_events: bool) -> impl Iterator<Item = Field<'_>> {
    lines.map(move |line| field(line, has_events))
}

/// Returns the lines of the last event; `None` where there is none, or a part of one is left at the
/// end. A line of a stream without events is an event: one without its end may be a part.
fn last_event(bytes: &[u8], has_events: bool) -> Option<&[u8]> {
    if !has_events && !bytes.ends_with(b"\n") && !bytes.ends_with(b"\r") {
        return None;
    }
    let (mut lines, mut last, mut begin) = (Lines::of(bytes), None, None);
    loop {
        let from = lines.at;
        let Some(line) = lines.next() else { break };
        let (name, value) = field(line, has_events);
        if !name.is_empty() && (has_events || !value.is_empty()) {
            begin.get_or_insert(from);
        }
        if line.is_empty() || !has_events {
            last = begin.take().map(|begin| &bytes[begin..lines.at]).or(last);
        }
    }
    last.filter(|_| begin.is_none())
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
    text.trim_ascii() == b"[DONE]" || each_value(text, b"\"choices\"", is_empty)
}

/// Returns whether each `finish_reason` of JSON is a text. An empty one is a reason for nothing.
fn has_finish_reason(text: &[u8]) -> bool {
    let is_text = |value: &[u8]| value.starts_with(b"\"") && !value.starts_with(b"\"\"");
    each_value(text, b"\"finish_reason\"", is_text)
}

/// Returns whether JSON has a key, and each of its values is such a one. What lies deeper than
/// another is within the answer, and does not count.
fn each_value(json: &[u8], key: &[u8], is_it: impl Fn(&[u8]) -> bool) -> bool {
    let (mut depth, mut found) = (0_usize, None);
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        let mut to = at + 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                to = end_of_text(json, to);
                let value = json[to..].trim_ascii_start().strip_prefix(b":");
                if let Some(value) = value.filter(|_| json[at..to] == *key) {
                    let is_it = is_it(value.trim_ascii_start());
                    found = match found {
                        Some((least, _)) if least < depth => found,
                        Some((least, so_far)) if least == depth => Some((least, so_far && is_it)),
                        _ => Some((depth, is_it)),
                    };
                }
            }
            _ => {}
        }
        at = to;
    }
    found.is_some_and(|(_, is_it)| is_it)
}

/// Returns where a text of JSON ends whose characters begin at `at`.
fn end_of_text(json: &[u8], mut at: usize) -> usize {
    while let Some(byte) = json.get(at) {
        at += match byte {
            b'"' => return at + 1,
            b'\\' => 2,
            _ => 1,
        };
    }
    json.len()
}
