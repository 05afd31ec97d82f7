//! Several parts of a body in one response (RFC 9110, 14.6).

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};

use crate::http::rules::range::Part;
use crate::lease::grant::Token;

/// The parts of one `multipart/byteranges` body, each with its head.
///
/// It is always shorter than the whole body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Multipart {
    boundary: String,
    /// The heads of all parts, one after the other, and the last boundary.
    heads: Bytes,
    /// Where the head of each part ends in `heads`, and the part.
    parts: Vec<(usize, Part)>,
    length: u64,
}

impl Multipart {
    /// Puts parts of a body of `complete` bytes together. `None` where that would be no shorter
    /// than the whole: the heads repeat the type, which may be long.
    ///
    /// Also `None` for a body with a content coding: a client could take the coding for that of
    /// the parts or for that of all of them together.
    pub(super) fn of(parts: Vec<Part>, response: &HeaderMap, complete: u64) -> Option<Self> {
        if response.contains_key(header::CONTENT_ENCODING) {
            return None;
        }
        let boundary = boundary();
        let content_type = response.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        let (mut heads, mut length, mut placed) = (Vec::new(), 0_u64, Vec::new());
        for part in parts {
            let start = if heads.is_empty() { "--" } else { "\r\n--" };
            heads.extend_from_slice(start.as_bytes());
            heads.extend_from_slice(boundary.as_bytes());
            if let Some(content_type) = content_type {
                heads.extend_from_slice(b"\r\ncontent-type: ");
                heads.extend_from_slice(content_type);
            }
            heads.extend_from_slice(b"\r\ncontent-range: ");
            heads.extend_from_slice(part.content_range().as_bytes());
            heads.extend_from_slice(b"\r\n\r\n");
            length = length.saturating_add(part.length());
            if length.saturating_add(heads.len() as u64) >= complete {
                return None;
            }
            placed.push((heads.len(), part));
        }
        heads.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        let length = length.saturating_add(heads.len() as u64);
        let heads = heads.into();
        (length < complete).then_some(Self { boundary, heads, parts: placed, length })
    }

    /// Returns how many bytes the body of the response has.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn content_type(&self) -> HeaderValue {
        let value = format!("multipart/byteranges; boundary={}", self.boundary);
        HeaderValue::try_from(value).expect("hexadecimal digits are visible ASCII")
    }

    /// Returns the body, in pieces: slices of the whole, and of the heads.
    pub(super) fn pieces<'a>(&'a self, whole: &'a Bytes) -> impl Iterator<Item = Bytes> + 'a {
        let ends = self.parts.iter().map(|(end, _)| *end);
        let starts = std::iter::once(0).chain(ends);
        let after = self.parts.last().map_or(0, |(end, _)| *end);
        let parts =
            self.parts.iter().zip(starts).flat_map(move |((end, part), start)| {
                [self.heads.slice(start..*end), part.of(whole)]
            });
        parts.chain(std::iter::once_with(move || self.heads.slice(after..)))
    }
}

/// Makes a text that no content can be made to contain: it is random, and used once.
fn boundary() -> String {
    Token::random().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::rules::range::tests::parts_of;
    use proptest::prelude::*;

    fn typed(content_type: &str) -> HeaderMap {
        let value = HeaderValue::from_str(content_type).unwrap();
        HeaderMap::from_iter([(header::CONTENT_TYPE, value)])
    }

    fn joined(multipart: &Multipart, whole: &Bytes) -> Vec<u8> {
        multipart.pieces(whole).flatten().collect()
    }

    #[test]
    fn each_part_has_its_type_and_its_place() {
        let whole = Bytes::from(vec![b'x'; 1000]);
        let parts = parts_of("bytes=900-901,0-1", 1000);
        let multipart = Multipart::of(parts, &typed("text/plain"), 1000).unwrap();
        let b = &multipart.boundary;
        let expected = format!(
            "--{b}\r\ncontent-type: text/plain\r\ncontent-range: bytes 900-901/1000\r\n\r\nxx\r\n\
             --{b}\r\ncontent-type: text/plain\r\ncontent-range: bytes 0-1/1000\r\n\r\nxx\r\n\
             --{b}--\r\n"
        );
        assert_eq!(String::from_utf8(joined(&multipart, &whole)).unwrap(), expected);
        assert_eq!(multipart.length(), expected.len() as u64);
        assert_eq!(multipart.content_type(), format!("multipart/byteranges; boundary={b}"));
    }

    #[test]
    fn a_boundary_is_used_once() {
        let all: std::collections::HashSet<_> = (0..1000).map(|_| boundary()).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|text| text.len() == 32));
    }

    #[test]
    fn parts_that_would_take_more_than_the_whole_are_not_put_together() {
        let parts = || parts_of("bytes=0-9,190-199", 200);
        assert_eq!(Multipart::of(parts(), &HeaderMap::new(), 200), None);
        let parts = || parts_of("bytes=0-9,2000-2009", 3000);
        assert!(Multipart::of(parts(), &HeaderMap::new(), 3000).is_some());
        assert_eq!(Multipart::of(parts(), &typed(&"x".repeat(1500)), 3000), None);
    }

    #[test]
    fn a_body_with_a_coding_is_not_put_together_of_parts() {
        let gzip = (header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let parts = parts_of("bytes=0-9,2000-2009", 3000);
        assert_eq!(Multipart::of(parts, &HeaderMap::from_iter([gzip]), 3000), None);
    }

    proptest! {
        #[test]
        fn the_parts_are_true_slices_in_less_than_the_whole(
            ranges in proptest::collection::vec((0..8000, 0..50), 2..8),
            body in proptest::collection::vec(any::<u8>(), 0..8000),
        ) {
            let whole = Bytes::from(body);
            let complete = whole.len() as u64;
            let ranges = ranges.iter().map(|(first, more)| format!("{first}-{}", first + more));
            let ranges = format!("bytes={}", ranges.collect::<Vec<_>>().join(","));
            let parts = parts_of(&ranges, complete);
            let multipart = Multipart::of(parts.clone(), &HeaderMap::new(), complete);
            let Some(multipart) = multipart.filter(|_| parts.len() > 1) else { return Ok(()) };
            let sent = joined(&multipart, &whole);
            prop_assert_eq!(sent.len() as u64, multipart.length());
            prop_assert!(sent.len() < whole.len());
            let mut rest = &sent[..];
            for part in parts {
                let head = format!(
                    "--{}\r\ncontent-range: {}\r\n\r\n",
                    multipart.boundary,
                    part.content_range().to_str().unwrap(),
                );
                rest = rest.strip_prefix(head.as_bytes()).unwrap();
                rest = rest.strip_prefix(&part.of(&whole)[..]).unwrap();
                rest = rest.strip_prefix(b"\r\n").unwrap();
            }
            let end = format!("--{}--\r\n", multipart.boundary);
            prop_assert_eq!(rest, end.as_bytes());
        }
    }
}
