//! What a victim got, held against what it would have got.

use std::collections::HashSet;

use http::HeaderMap;
use http::request::Parts;

use crate::ask::Ask;
use crate::persona::{Answer, Kind, Persona};
use crate::world::{CALL, DIGEST};

/// Where a reply came from, as the cache says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Hit,
    Stale,
    Joined,
    /// The origin's answer to this very request.
    Own,
    /// The cache itself, or a failure.
    Nobody,
}

/// A reply as a client got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) digest: Option<String>,
    pub(crate) call: Option<usize>,
    pub(crate) sets_cookie: bool,
    /// Several parts that a compressor has coded as one body.
    pub(crate) has_coded_parts: bool,
    /// A compressor around the layer has coded the body: it is compared by its digest.
    pub(crate) is_compressed: bool,
    pub(crate) source: Source,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn new(status: u16, headers: &HeaderMap, source: Source, body: &[u8]) -> Self {
        let get = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
        let call = get(CALL).and_then(|call| call.parse().ok());
        Self {
            status,
            location: get("location"),
            digest: get(DIGEST),
            call,
            sets_cookie: headers.contains_key("set-cookie"),
            has_coded_parts: status == 206
                && headers.contains_key("content-encoding")
                && !headers.contains_key("content-range"),
            is_compressed: false,
            source: if call.is_none() { Source::Nobody } else { source },
            body: String::from_utf8_lossy(body).into_owned(),
        }
    }

    pub(crate) fn shown(&self) -> String {
        let body: String = self.body.chars().take(120).collect();
        let to = self.location.as_deref().map_or(String::new(), |to| format!(" to {to}"));
        let cookie = if self.sets_cookie { ", with Set-Cookie" } else { "" };
        format!("{}{to} {body:?} ({:?}{cookie})", self.status, self.source)
    }
}

/// One request of a case, with all that is known of it.
#[derive(Clone)]
pub(crate) struct Exchange {
    pub(crate) step: usize,
    pub(crate) reply: Option<Reply>,
    /// The head as an origin without a cache gets it.
    pub(crate) seen: Option<Parts>,
    /// States that may be shown: the last one whose write was answered before
    /// this was sent, and the one when this was answered.
    pub(crate) versions: (u64, u64),
}

/// What a client would have got in place of parts that a compressor has coded.
pub(crate) const CODED_PARTS: &str = "several parts without a coding, or the whole";

/// A response that its client would not have got for its own request.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) step: usize,
    pub(crate) got: String,
    pub(crate) expected: String,
}

/// Returns the calls whose answers went straight to the client that made
/// them. All others were made by the cache itself, for a refresh.
pub(crate) fn foreground_calls(exchanges: &[Exchange]) -> HashSet<usize> {
    let own = exchanges.iter().filter_map(|exchange| exchange.reply.as_ref());
    own.filter(|reply| reply.source == Source::Own).filter_map(|reply| reply.call).collect()
}

/// Judges what one victim got.
pub(crate) fn judge(
    persona: &Persona,
    ask: &Ask,
    exchange: &Exchange,
    foreground: &HashSet<usize>,
) -> Option<Finding> {
    let (reply, seen) = (exchange.reply.as_ref()?, exchange.seen.as_ref()?);
    let call = reply.call?;
    let finding = |expected: String| Finding { step: exchange.step, got: reply.shown(), expected };
    if reply.sets_cookie && reply.source != Source::Own {
        return Some(finding("no cookie of another client".into()));
    }
    if reply.has_coded_parts {
        return Some(finding(CODED_PARTS.into()));
    }
    let mut expected = expected(persona, seen, ask, exchange.versions);
    if let Kind::Refreshed(name) = persona.kind {
        if foreground.contains(&call) {
            // The origin's own fault: it names no `Vary`.
            return None;
        }
        let mut neutral = seen.clone();
        neutral.headers.remove(name);
        expected.push(persona.answer(&neutral, &ask.body, 0));
    }
    if matches!(persona.kind, Kind::Precompressed) {
        // What is not coded and names no `Vary` is for all.
        let mut plain = seen.clone();
        plain.headers.remove("accept-encoding");
        expected.push(persona.answer(&plain, &ask.body, 0));
    }
    if expected.iter().any(|answer| is_it(ask, reply, answer)) {
        return None;
    }
    let shown: Vec<_> = expected.iter().map(show).collect();
    Some(finding(shown.join(", or ")))
}

fn expected(persona: &Persona, seen: &Parts, ask: &Ask, versions: (u64, u64)) -> Vec<Answer> {
    (versions.0..=versions.1).map(|version| persona.answer(seen, &ask.body, version)).collect()
}

/// Returns whether a reply is this answer, or a part of it that was asked for.
fn is_it(ask: &Ask, reply: &Reply, answer: &Answer) -> bool {
    let straight = Reply {
        status: answer.status,
        location: answer.location.clone(),
        digest: Some(answer.digest()),
        call: None,
        sets_cookie: false,
        has_coded_parts: false,
        is_compressed: false,
        source: Source::Own,
        body: answer.body.clone(),
    };
    is_same(ask, reply, &straight)
}

/// Returns whether a reply is what the straight one says, or a part of it that
/// was asked for.
pub(crate) fn is_same(ask: &Ask, reply: &Reply, straight: &Reply) -> bool {
    let is_alike = reply.digest == straight.digest && reply.location == straight.location;
    match reply.status {
        206 if ask.get("range").is_some_and(|range| range.contains(',')) => {
            is_alike && straight.status == 200 && are_parts(&reply.body, &straight.body)
        }
        206 if ask.get("range").is_some() => {
            is_alike && straight.status == 200 && straight.body.starts_with(&reply.body)
        }
        304 if ask.get("if-none-match").is_some() => is_alike,
        status if ask.method == "HEAD" => is_alike && status == straight.status,
        status => {
            let has_body = reply.is_compressed || reply.body == straight.body;
            is_alike && status == straight.status && has_body
        }
    }
}

/// Returns whether a `multipart/byteranges` has parts of this body; one part alone, or a part
/// without a head, is the beginning of it.
fn are_parts(multipart: &str, whole: &str) -> bool {
    if !multipart.contains("Content-Range: bytes ") && !multipart.contains("content-range: bytes ")
    {
        return whole.starts_with(multipart);
    }
    let is_part = |part: &str| {
        let (head, content) = part.split_once("\r\n\r\n")?;
        let head = head.to_ascii_lowercase();
        let range = head.split("content-range: bytes ").nth(1)?.split('/').next()?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (usize, usize) = (first.parse().ok()?, last.trim().parse().ok()?);
        Some(whole.as_bytes().get(first..=last)? == content.as_bytes())
    };
    let marker = multipart.trim_start().split("\r\n").next().unwrap_or_default();
    let mut parts =
        multipart.split(marker).skip(1).map(|part| part.strip_suffix("\r\n").unwrap_or(part));
    let mut parts = parts.by_ref().filter(|part| !part.starts_with("--"));
    parts.all(|part| is_part(part) == Some(true))
}

fn show(answer: &Answer) -> String {
    let body: String = answer.body.chars().take(120).collect();
    let to = answer.location.as_deref().map_or(String::new(), |to| format!(" to {to}"));
    format!("{}{to} {body:?}", answer.status)
}
