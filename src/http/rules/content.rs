//! The content of a request, as a part of its key (RFC 10008, 2.7).

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName};
use http::{Method, request::Parts};

use crate::key::KeyBuf;

/// Says what the bytes of a body mean (RFC 9110, 8): part of the key with them.
pub(crate) const METADATA: [HeaderName; 4] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
];

/// How the part of a key begins that stands for a body. No URI and no field has a zero byte.
const CONTENT: [u8; 2] = [0, b'c'];

/// A body that was read to its end. It stands in the extensions of a request between the
/// reading and the key.
#[derive(Clone)]
pub(crate) struct RequestContent {
    pub(crate) bytes: Bytes,
    /// Stands for the method, the body and what the body means.
    key: [u8; 32],
}

impl RequestContent {
    /// Takes the body of a request. The `own` key of the application stands for the bytes,
    /// where it has one.
    pub(crate) fn of(parts: &Parts, bytes: Bytes, own: Option<&KeyBuf>) -> Self {
        let mut key = KeyBuf::new();
        key.push_part(parts.method.as_str().as_bytes());
        push_values(&mut key, &parts.headers, &METADATA);
        match own {
            Some(own) => key.push_part(&[b"k", own.as_bytes()].concat()),
            None => key.push_part(&[b"b", &blake3::hash(&bytes).as_bytes()[..]].concat()),
        }
        Self { bytes, key: *blake3::hash(key.as_bytes()).as_bytes() }
    }

    /// Returns the content of a request whose body was read.
    #[inline]
    pub(crate) fn of_request(parts: &Parts) -> Option<&Self> {
        if matches!(parts.method, Method::GET | Method::HEAD) {
            return None;
        }
        parts.extensions.get()
    }

    /// Appends it to a key that already has all that names a GET.
    pub(crate) fn push_to(&self, key: &mut KeyBuf) {
        key.push_part(&CONTENT);
        key.push_part(&self.key);
    }
}

/// Appends the values of fields, and how many there are of each.
pub(crate) fn push_values(key: &mut KeyBuf, headers: &HeaderMap, names: &[HeaderName]) {
    for name in names {
        let values = headers.get_all(name);
        key.push(&(values.iter().count() as u64).to_be_bytes());
        values.iter().for_each(|value| key.push_part(value.as_bytes()));
    }
}

/// Returns whether a method is QUERY: safe, with a body that is a part of what is asked.
pub(crate) fn is_query(method: &Method) -> bool {
    method.as_str() == "QUERY"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::rules::request::tests::request;

    fn key(
        method: &str,
        fields: &[(&str, &str)],
        body: &'static str,
        own: Option<&str>,
    ) -> Vec<u8> {
        let own = own.map(KeyBuf::of);
        let parts = request(method, "/", fields);
        let content = RequestContent::of(&parts, Bytes::from_static(body.as_bytes()), own.as_ref());
        let mut key = KeyBuf::new();
        content.push_to(&mut key);
        key.as_bytes().to_vec()
    }

    #[test]
    fn the_key_has_the_method_the_body_and_what_it_means() {
        let json = [("content-type", "application/json")];
        let keys = [
            key("QUERY", &json, "a", None),
            key("POST", &json, "a", None),
            key("QUERY", &json, "b", None),
            key("QUERY", &json, "", None),
            key("QUERY", &[], "a", None),
            key("QUERY", &[("content-type", "text/plain")], "a", None),
            key("QUERY", &[json[0], ("content-encoding", "gzip")], "a", None),
            key("QUERY", &[json[0], ("content-language", "gzip")], "a", None),
            key("QUERY", &[json[0], json[0]], "a", None),
            key("POST", &json, "a", Some("a")),
            key("POST", &json, "a", Some("b")),
        ];
        for (i, one) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|other| other != one), "{i}");
        }
        assert_eq!(keys[0], key("QUERY", &[json[0], ("accept", "x")], "a", None));
        assert_eq!(key("POST", &json, "x", Some("a")), key("POST", &json, "y", Some("a")));
    }
}
