//! Where a fuzzer begins.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, header};

use crate::http::config::HttpConfig;
use crate::http::rules::codings::Coding;
use crate::http::rules::directives;
use crate::http::rules::lifetime::Source;
use crate::http::rules::request::Credentials;
use crate::http::rules::vary::{self, Fingerprint, VaryList};
use crate::http::stored::generation::Generation;
use crate::http::stored::response::{CachedResponse, Facts, Index, StoredResponse};
use crate::remote::Remotable;

/// Returns responses and indexes of every form.
pub(crate) fn samples() -> Vec<Bytes> {
    let language = list("accept-language, x-tenant");
    let (none, config) = (HeaderMap::new(), HttpConfig::default());
    let print = vary::fingerprint(&language, &none, &config, Coding::Other);
    let lists = vec![language.clone(), list("cookie")];
    let variants = vec![print, Fingerprint::from_wire([7; 16])];
    let cache_control = "public, max-age=60, stale-while-revalidate=5, stale-if-error=7";
    let rich = [
        (header::CACHE_CONTROL, cache_control),
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_LENGTH, "21"),
        (header::AGE, "0"),
        (HeaderName::from_static("cache-status"), ""),
        (HeaderName::from_static("x-request-kind"), "sample"),
        (header::LINK, "</a>; rel=next"),
        (header::LINK, "</b>; rel=prev"),
    ];
    let of =
        |fields: &[(HeaderName, &'static str)], body, vary| response(fields, body, vary).into();
    let all: [StoredResponse; 4] = [
        of(&[], b"", None),
        of(&rich, b"<p>a short report</p>", None),
        of(&rich[..2], b"vary", Some((language, print))),
        Index {
            lists,
            variants,
            generation: Some(Generation::from_wire([7; 16])),
            ..Index::default()
        }
        .into(),
    ];
    all.iter().filter_map(StoredResponse::encode).collect()
}

fn response(
    fields: &[(HeaderName, &'static str)],
    body: &'static [u8],
    varies: Option<(VaryList, Fingerprint)>,
) -> CachedResponse {
    let fields = fields.iter().cloned();
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(name, HeaderValue::from_static(value));
    }
    let (vary, fingerprint) = varies.unzip();
    let facts = Facts {
        directives: directives::parse(&headers).directives,
        permits: Credentials::ALL,
        from: Credentials::COOKIE,
        explicit: true,
        source: Source::Origin,
        status: StatusCode::OK,
        vary,
        coding: Coding::Other,
        fingerprint,
    };
    CachedResponse::from_wire(headers, Bytes::from_static(body), facts)
}

fn list(names: &'static str) -> VaryList {
    let headers = HeaderMap::from_iter([(header::VARY, HeaderValue::from_static(names))]);
    vary::parse(&headers, &[]).ok().flatten().expect("these are names")
}
