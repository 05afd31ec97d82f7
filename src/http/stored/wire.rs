//! Stored responses as bytes.
//!
//! Written by hand and not by serde: the body is read without a copy, and every
//! field is checked as if a client had sent it. What another version of this
//! crate wrote in another form, or what breaks a rule of [`crate::http::rules::storable`], is
//! not read. Numbers are big-endian; a list stands behind its length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::http::body::{Content, MOST_MARKS, PaceMark, StreamPace};
use crate::http::rules::codings::{Coding, Codings};
use crate::http::rules::directives::{Directives, Lifetime, MAX_SECONDS};
use crate::http::rules::fields::HOP_BY_HOP;
use crate::http::rules::lifetime::Source;
use crate::http::rules::request::Credentials;
use crate::http::rules::storable::content_length;
use crate::http::rules::vary::{Fingerprint, MAX_NAMES, VaryList};
use crate::http::stored::generation::Generation;
use crate::http::stored::response::{
    CachedResponse, Facts, Index, MAX_LISTS, Slot, StoredResponse,
};
use crate::remote::{Codec, Remotable};

/// The first byte says what follows; another form gets other numbers.
const RESPONSE: u8 = 3;
pub(crate) const INDEX: u8 = 4;
/// A response whose entity tag the cache made.
const RESPONSE_WITH_OWN_ETAG: u8 = 5;
/// The pace of a stream; the form of a response follows. A process of an older version does not
/// read it, and computes the response again.
const PACE: u8 = 6;

pub(crate) const MAX_FIELDS: usize = 16_384;
/// The least that a field takes: two lengths, a name, a mark.
const LEAST_FIELD: usize = 8;
const SENSITIVE: u8 = 1;

impl Remotable for StoredResponse {
    fn encode(&self) -> Option<Bytes> {
        match self.slot() {
            Slot::Response(stored) => write_response(stored),
            Slot::Index(index) => write_index(index),
        }
    }

    fn decode(bytes: Bytes) -> Option<Self> {
        let mut from = bytes;
        let mut kind = from.try_get_u8().ok()?;
        let pace = if kind == PACE { Some(read_pace(&mut from)?) } else { None };
        if pace.is_some() {
            kind = from.try_get_u8().ok().filter(|kind| *kind != INDEX)?;
        }
        let read = match kind {
            kind @ (RESPONSE | RESPONSE_WITH_OWN_ETAG) => {
                let mut stored = read_response(&mut from)?;
                stored.has_own_etag = kind == RESPONSE_WITH_OWN_ETAG;
                if let (Some(pace), Content::Whole(bytes)) = (pace, &stored.body) {
                    stored.body = Content::Paced(bytes.clone(), pace);
                }
                stored.into()
            }
            INDEX => read_index(&mut from)?.into(),
            _ => return None,
        };
        from.is_empty().then_some(read)
    }

    /// The form names itself in its first byte, and outlives the names of our types.
    fn codec() -> Codec<Self> {
        Codec::new(Self::encode, Self::decode).fingerprint(0)
    }
}

fn write_response(stored: &CachedResponse) -> Option<Bytes> {
    let body = stored.body.whole()?;
    let fields = stored.headers.iter();
    let fields = fields.map(|(name, value)| LEAST_FIELD + name.as_str().len() + value.len());
    let mut out = BytesMut::with_capacity(128 + fields.sum::<usize>() + body.len());
    if let Content::Paced(_, pace) = &stored.body {
        write_pace(&mut out, pace)?;
    }
    out.put_u8(if stored.has_own_etag { RESPONSE_WITH_OWN_ETAG } else { RESPONSE });
    write_facts(&mut out, &stored.facts)?;
    write_fields(&mut out, &stored.headers)?;
    out.put_u64(body.len() as u64);
    out.put_slice(body);
    Some(out.freeze())
}

fn write_pace(out: &mut BytesMut, pace: &StreamPace) -> Option<()> {
    out.put_u8(PACE);
    out.put_u32(pace.heartbeat);
    out.put_u16(u16::try_from(pace.marks.len()).ok()?);
    for mark in &*pace.marks {
        out.put_u32(mark.end);
        out.put_u32(mark.after);
    }
    Some(())
}

/// Marks that are not in order would be read in no order.
fn read_pace(from: &mut Bytes) -> Option<StreamPace> {
    let heartbeat = from.try_get_u32().ok()?;
    let count = usize::from(from.try_get_u16().ok()?);
    if count > MOST_MARKS || count > from.len() / size_of::<PaceMark>() {
        return None;
    }
    let mut read =
        || Some(PaceMark { end: from.try_get_u32().ok()?, after: from.try_get_u32().ok()? });
    let marks = (0..count).map(|_| read()).collect::<Option<Vec<_>>>()?;
    let is_in_order = |two: &[PaceMark]| two[0].end < two[1].end && two[0].after <= two[1].after;
    marks.windows(2).all(is_in_order).then(|| StreamPace { marks: marks.into(), heartbeat })
}

fn read_response(from: &mut Bytes) -> Option<CachedResponse> {
    let facts = read_facts(from)?;
    let headers = read_fields(from)?;
    let length = from.try_get_u64().ok()?;
    let body = take(from, usize::try_from(length).ok()?)?;
    // Another length would shift the end of the response for the client.
    let declared = content_length(&headers).ok()?;
    let is_whole = declared.is_none_or(|declared| declared == length);
    is_whole.then(|| CachedResponse::from_wire(headers, body, facts))
}

fn write_facts(out: &mut BytesMut, facts: &Facts) -> Option<()> {
    out.put_u16(facts.status.as_u16());
    write_directives(out, &facts.directives);
    out.put_u8(facts.permits.to_wire());
    out.put_u8(facts.from.to_wire());
    out.put_u8(u8::from(facts.explicit));
    out.put_u8(facts.source as u8);
    match (&facts.vary, facts.fingerprint) {
        (None, None) => out.put_u8(0),
        (Some(list), Some(fingerprint)) => {
            out.put_u8(1);
            write_list(out, list)?;
            out.put_u8(facts.coding.as_byte());
            out.put_slice(fingerprint.as_bytes());
        }
        // Neither is of use without the other.
        _ => return None,
    }
    Some(())
}

fn read_facts(from: &mut Bytes) -> Option<Facts> {
    let status = read_status(from)?;
    let directives = read_directives(from)?;
    let permits = Credentials::from_wire(from.try_get_u8().ok()?)?;
    let carried = Credentials::from_wire(from.try_get_u8().ok()?)?;
    let explicit = read_bool(from)?;
    let sources = [Source::CacheFor, Source::Origin, Source::Layer, Source::Heuristic];
    let source = *sources.get(usize::from(from.try_get_u8().ok()?))?;
    let (vary, coding, fingerprint) = if read_bool(from)? {
        let list = read_list(from)?;
        let coding = Coding::from_wire(from.try_get_u8().ok()?)?;
        (Some(list), coding, Some(read_fingerprint(from)?))
    } else {
        (None, Coding::Other, None)
    };
    Some(Facts {
        directives,
        permits,
        from: carried,
        explicit,
        source,
        status,
        vary,
        coding,
        fingerprint,
    })
}

/// Statuses that are never stored would not be answers.
fn read_status(from: &mut Bytes) -> Option<StatusCode> {
    let status = StatusCode::from_u16(from.try_get_u16().ok()?).ok()?;
    let is_partial = matches!(status, StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED);
    (!status.is_informational() && !is_partial).then_some(status)
}

fn write_directives(out: &mut BytesMut, directives: &Directives) {
    let Directives { lifetime, stale_while_revalidate, stale_if_error, .. } = *directives;
    out.put_u16(directives.flag_bits());
    match lifetime {
        Lifetime::Unsaid => out.put_u8(0),
        Lifetime::Stale => out.put_u8(1),
        Lifetime::Seconds(seconds) => {
            out.put_u8(2);
            out.put_u32(seconds);
        }
    }
    for window in [stale_while_revalidate, stale_if_error] {
        out.put_u8(u8::from(window.is_some()));
        if let Some(seconds) = window {
            out.put_u32(seconds);
        }
    }
}

fn read_directives(from: &mut Bytes) -> Option<Directives> {
    let flags = Directives::of_flag_bits(from.try_get_u16().ok()?)?;
    let lifetime = match from.try_get_u8().ok()? {
        0 => Lifetime::Unsaid,
        1 => Lifetime::Stale,
        2 => Lifetime::Seconds(read_seconds(from)?),
        _ => return None,
    };
    Some(Directives {
        lifetime,
        stale_while_revalidate: read_window(from)?,
        stale_if_error: read_window(from)?,
        ..flags
    })
}

fn read_window(from: &mut Bytes) -> Option<Option<u32>> {
    if read_bool(from)? { read_seconds(from).map(Some) } else { Some(None) }
}

fn read_seconds(from: &mut Bytes) -> Option<u32> {
    from.try_get_u32().ok().filter(|seconds| *seconds <= MAX_SECONDS)
}

/// Writes the fields in their order, each repetition for itself.
fn write_fields(out: &mut BytesMut, headers: &HeaderMap) -> Option<()> {
    out.put_u16(u16::try_from(headers.len()).ok().filter(|n| usize::from(*n) <= MAX_FIELDS)?);
    for (name, value) in headers {
        write_name(out, name)?;
        out.put_u8(if value.is_sensitive() { SENSITIVE } else { 0 });
        out.put_u32(u32::try_from(value.len()).ok()?);
        out.put_slice(value.as_bytes());
    }
    Some(())
}

fn read_fields(from: &mut Bytes) -> Option<HeaderMap> {
    let count = usize::from(from.try_get_u16().ok()?);
    if count > MAX_FIELDS || count > from.len() / LEAST_FIELD {
        return None;
    }
    let mut headers = HeaderMap::try_with_capacity(count).ok()?;
    for _ in 0..count {
        let name = read_name(from)?;
        if HOP_BY_HOP.contains(&name) {
            return None;
        }
        headers.try_append(name, read_value(from)?).ok()?;
    }
    Some(headers)
}

fn read_value(from: &mut Bytes) -> Option<HeaderValue> {
    let mark = from.try_get_u8().ok()?;
    let len = usize::try_from(from.try_get_u32().ok()?).ok()?;
    let mut value = HeaderValue::from_maybe_shared(take(from, len)?).ok()?;
    value.set_sensitive(mark == SENSITIVE);
    (mark <= SENSITIVE).then_some(value)
}

fn write_name(out: &mut BytesMut, name: &HeaderName) -> Option<()> {
    out.put_u16(u16::try_from(name.as_str().len()).ok()?);
    out.put_slice(name.as_str().as_bytes());
    Some(())
}

fn read_name(from: &mut Bytes) -> Option<HeaderName> {
    let len = usize::from(from.try_get_u16().ok()?);
    HeaderName::from_lowercase(&take(from, len)?).ok()
}

fn write_index(index: &Index) -> Option<Bytes> {
    let mut out = BytesMut::with_capacity(64 + index.variants.len() * size_of::<Fingerprint>());
    out.put_u8(INDEX);
    out.put_slice(index.generation?.as_bytes());
    out.put_u8(u8::try_from(index.lists.len()).ok().filter(|n| usize::from(*n) <= MAX_LISTS)?);
    for list in &index.lists {
        write_list(&mut out, list)?;
    }
    out.put_u16(index.codings.to_wire());
    out.put_u16(u16::try_from(index.variants.len()).ok()?);
    for fingerprint in &index.variants {
        out.put_slice(fingerprint.as_bytes());
    }
    Some(out.freeze())
}

fn read_index(from: &mut Bytes) -> Option<Index> {
    let generation = take(from, 16)?.first_chunk().copied().map(Generation::from_wire);
    let lists = from.try_get_u8().ok().filter(|n| usize::from(*n) <= MAX_LISTS)?;
    let lists = (0..lists).map(|_| read_list(from)).collect::<Option<_>>()?;
    let codings = Codings::from_wire(from.try_get_u16().ok()?)?;
    let variants = usize::from(from.try_get_u16().ok()?);
    if variants > from.len() / size_of::<Fingerprint>() {
        return None;
    }
    let variants = (0..variants).map(|_| read_fingerprint(from)).collect::<Option<_>>()?;
    Some(Index { lists, variants, codings, generation, ..Index::default() })
}

fn write_list(out: &mut BytesMut, list: &VaryList) -> Option<()> {
    let names = list.names();
    out.put_u16(u16::try_from(names.len()).ok().filter(|n| usize::from(*n) <= MAX_NAMES)?);
    names.iter().try_for_each(|name| write_name(out, name))
}

fn read_list(from: &mut Bytes) -> Option<VaryList> {
    let names = from.try_get_u16().ok().filter(|n| usize::from(*n) <= MAX_NAMES)?;
    let names = (0..names).map(|_| read_name(from)).collect::<Option<_>>()?;
    VaryList::from_wire(names)
}

fn read_fingerprint(from: &mut Bytes) -> Option<Fingerprint> {
    take(from, size_of::<Fingerprint>())?.first_chunk().copied().map(Fingerprint::from_wire)
}

fn read_bool(from: &mut Bytes) -> Option<bool> {
    match from.try_get_u8().ok()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn take(from: &mut Bytes, len: usize) -> Option<Bytes> {
    (len <= from.len()).then(|| from.split_to(len))
}

#[cfg(feature = "__fuzz")]
mod samples;
#[cfg(feature = "__fuzz")]
pub(crate) use samples::samples;
