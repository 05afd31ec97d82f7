//! Sections 1.2.2 and 3.

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::StreamBody;

use super::dates::date;
use super::lab::*;
use crate::kit::http::*;

cases! {
    "R1.2.2-1" "numbers beyond any range count as the largest" numbers_saturate;
    "R3-1" "no method but GET fills the store" only_get_fills;
    "R3-2" "no interim status is stored" no_interim_status;
    "R3-3" "206, 304 and statuses with `must-understand` that nobody knows" only_known_statuses;
    "R3-4" "no-store, however it is written" no_store_in_any_form;
    "R3-5" "private, however it is written" private_in_any_form;
    "R3-6" "a response to Authorization without permission" authorization_needs_permission;
    "R3-7" "something must allow it" something_must_allow_it;
    "R3.1-1" "all fields, in order, unknown and repeated ones too" all_fields_are_kept;
    "R3.1-2" "fields of the proxy and of the connection" fields_of_the_connection;
    "R3.1-3" "trailers stay trailers" trailers_stay_trailers;
    "R3.3-1" "a part is not stored" parts_are_not_stored;
    "R3.3-2" "what broke off answers nobody" what_broke_off_answers_nobody;
    "R3.3-3" "a part is a 206" a_part_is_a_206;
    "R3.5-1" "Authorization, by directive" authorization_by_directive;
}

const FRESH: (&str, &str) = ("cache-control", "max-age=60");

async fn numbers_saturate() {
    for directive in ["max-age", "s-maxage"] {
        for digits in [10, 20, 400] {
            let said = format!("{directive}={}", "9".repeat(digits));
            assert!(reused_after(86_400, &[("cache-control", &said)]).await, "{said}");
        }
    }
    for age in ["4294967296", "18446744073709551616", &"9".repeat(400)] {
        assert!(!reused(&[FRESH, ("age", age)]).await, "{age}");
    }
    // Both at the top: whichever wins, nothing overflows.
    let top = [("cache-control", "max-age=18446744073709551615"), ("age", "18446744073709551615")];
    reused_after(86_400, &top).await;
}

async fn only_get_fills() {
    for method in ["POST", "PUT", "OPTIONS", "PROPFIND", "BREW"] {
        let lab = Lab::saying(&[FRESH]);
        lab.send(method, URI, &[]).await;
        assert_eq!(lab.send(method, URI, &[]).await.text(), "1", "{method}");
        assert_eq!(lab.get().await.text(), "2", "{method}");
    }
    // RFC 10008, 2.7: for later queries only.
    let lab = Lab::saying(&[FRESH]);
    for _ in 0..2 {
        assert_eq!(lab.send("QUERY", URI, &[]).await.text(), "0");
        assert_eq!(lab.get().await.text(), "1");
    }
}

async fn no_interim_status() {
    for status in [100, 102, 103, 199] {
        let fields = [("cache-control", "public, max-age=60")];
        assert!(!reused_from(status, 0, &fields).await, "{status}");
    }
}

async fn only_known_statuses() {
    let said = [("cache-control", "public, max-age=60"), ("content-range", "bytes 0-0/9")];
    assert!(!reused_from(206, 0, &said).await);
    assert!(!reused_from(304, 0, &said[..1]).await);
    let understood = [("cache-control", "must-understand, public, max-age=60")];
    assert!(reused_from(200, 0, &understood).await);
    for status in [299, 399, 499, 599] {
        assert!(!reused_from(status, 0, &understood).await, "{status}");
        assert!(reused_from(status, 0, &[FRESH]).await, "{status}");
    }
}

/// Spellings of one directive beside a lifetime.
fn spellings(name: &str) -> Vec<Vec<String>> {
    let mixed: String = name
        .chars()
        .enumerate()
        .map(|(i, c)| if i % 2 == 0 { c.to_ascii_uppercase() } else { c })
        .collect();
    let line = |text: String| vec![text];
    vec![
        line(name.to_owned()),
        line(format!("{name}, max-age=60")),
        line(format!("max-age=60,{name}")),
        line(format!("max-age=60 ,\t, {mixed} ,, public")),
        line(format!("{name}=\"\", max-age=60")),
        line(format!("x=\"a, b\", {name}, max-age=60")),
        line(format!("x=\"\\\"\", {name}, max-age=60")),
        vec!["max-age=60".into(), name.to_owned()],
        vec![mixed.clone(), "public, max-age=60".into()],
        vec!["max-age=60".into(), String::new(), format!("{name},{mixed}")],
    ]
}

async fn never_reused(name: &str) {
    for lines in spellings(name) {
        let fields: Vec<_> = lines.iter().map(|line| ("cache-control", &**line)).collect();
        assert!(!reused(&fields).await, "{lines:?}");
    }
}

async fn no_store_in_any_form() {
    never_reused("no-store").await;
    assert!(!reused(&[("cache-control", "no-store=\"x\", max-age=60")]).await);
    assert!(!reused(&[("cache-control", "no-store=yes, max-age=60")]).await);
}

async fn private_in_any_form() {
    never_reused("private").await;
}

async fn authorization_needs_permission() {
    let lab = Lab::saying(&[FRESH]);
    let asking = [("authorization", "alice")];
    assert_eq!(lab.with(&asking).await.text(), "0");
    assert_eq!(lab.with(&asking).await.text(), "1");
    assert_eq!(lab.get().await.text(), "2");
}

async fn something_must_allow_it() {
    let (now, ahead, before) = (date(0), date(600), date(-86_400));
    let (date, expires) = (("date", &*now), ("expires", &*ahead));
    let modified = ("last-modified", &*before);
    let public = ("cache-control", "public");
    assert!(!reused(&[date]).await);
    assert!(reused(&[date, expires]).await);
    assert!(reused(&[date, FRESH]).await);
    assert!(reused(&[date, ("cache-control", "s-maxage=60")]).await);
    assert!(reused(&[date, ("cdn-cache-control", "max-age=60")]).await);
    for (status, by_status) in [(200, true), (203, true), (404, true), (410, true), (501, true)]
        .into_iter()
        .chain([(302, false), (307, false), (400, false), (403, false), (500, false)])
    {
        assert_eq!(reused_from(status, 0, &[date, modified]).await, by_status, "{status}");
        assert!(!reused_from(status, 0, &[date]).await, "{status}");
    }
    for status in [302, 307, 403] {
        assert!(reused_from(status, 0, &[date, modified, public]).await, "{status}");
        assert!(reused_from(status, 0, &[date, FRESH]).await, "{status}");
        assert!(reused_from(status, 0, &[date, expires]).await, "{status}");
    }
}

async fn all_fields_are_kept() {
    let lab = Lab::saying(&[
        FRESH,
        ("x-unknown", "2"),
        ("link", "</a>; rel=x"),
        ("x-unknown", "1"),
        ("x-unknown", ""),
        ("content-language", "en"),
        ("link", "</b>; rel=x"),
    ]);
    lab.get().await;
    let hit = lab.get().await;
    assert_eq!(lab.calls(), 1);
    assert_eq!(hit.all("x-unknown"), ["2", "1", ""]);
    assert_eq!(hit.all("link"), ["</a>; rel=x", "</b>; rel=x"]);
    assert_eq!(hit.header("content-language"), Some("en"));
}

async fn fields_of_the_connection() {
    let gone = [
        ("proxy-authenticate", "Basic"),
        ("proxy-authentication-info", "x=1"),
        ("proxy-authorization", "x"),
        ("connection", "X-Hop, close"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("proxy-connection", "close"),
    ];
    let lab = Lab::saying(&[&gone[..], &[FRESH, ("x-end", "1")]].concat());
    lab.get().await;
    let hit = lab.get().await;
    assert_eq!(lab.calls(), 1);
    for (name, _) in gone {
        assert_eq!(hit.header(name), None, "{name}");
    }
    assert_eq!(hit.header("x-end"), Some("1"));
}

async fn trailers_stay_trailers() {
    let lab = Lab::new(|call| {
        let trailers =
            HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), "7".parse().unwrap())]);
        let data = Frame::data(Bytes::from(call.n.to_string()));
        let frames = [Ok::<_, OriginError>(data), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        say(call, 200, &[FRESH]).body(Body::new(body))
    });
    for n in ["0", "1"] {
        let reply = lab.get().await;
        assert_eq!((reply.text(), reply.header("x-sum")), (n, None));
        assert_eq!(reply.trailers.unwrap()["x-sum"], "7");
    }
}

async fn parts_are_not_stored() {
    let part = [FRESH, ("content-range", "bytes 0-0/9"), ("etag", "\"a\"")];
    let lab = Lab::status(206, &part);
    let range = [("range", "bytes=0-0")];
    // The whole is asked for first; what comes is none.
    assert_eq!(lab.with(&range).await.text(), "1");
    assert_eq!(lab.with(&range).await.text(), "3");
    assert_eq!(lab.get().await.text(), "4");
}

async fn what_broke_off_answers_nobody() {
    let lab = Lab::new(|call| {
        let data = Ok(Frame::data(Bytes::from(call.n.to_string())));
        let frames = if call.n == 0 { vec![data, Err(OriginError)] } else { vec![data] };
        let body = StreamBody::new(futures_util::stream::iter(frames));
        say(call, 200, &[FRESH]).body(Body::new(body))
    });
    assert!(lab.get().await.broken);
    let next = lab.get().await;
    assert_eq!((next.text(), next.broken), ("1", false));
    let range = lab.with(&[("range", "bytes=0-0")]).await;
    assert_eq!(range.text(), "1");
}

async fn a_part_is_a_206() {
    let lab = Lab::new(|call| say(call, 200, &[FRESH]).body("0123456789"));
    assert_eq!((lab.get().await.status, lab.get().await.status), (200, 200));
    for (range, part) in [("bytes=2-4", "234"), ("bytes=-2", "89"), ("bytes=7-", "789")] {
        let reply = lab.with(&[("range", range)]).await;
        assert_eq!((reply.status, reply.text()), (206, part));
        assert!(reply.header("content-range").unwrap().ends_with("/10"));
    }
    let whole = lab.get().await;
    assert_eq!((whole.status, whole.text(), lab.calls()), (200, "0123456789", 1));
}

async fn authorization_by_directive() {
    let bare = ["", "proxy-revalidate, ", "immutable, ", "private=\"x\", "];
    let permits = ["public, ", "s-maxage=60, ", "must-revalidate, ", "PUBLIC, "];
    let rows = bare.iter().map(|said| (said, false));
    for (said, shared) in rows.chain(permits.iter().map(|said| (said, true))) {
        let said = format!("{said}max-age=60");
        let lab = Lab::saying(&[("cache-control", &said)]);
        lab.with(&[("authorization", "alice")]).await;
        let next = lab.with(&[("authorization", "bob")]).await;
        assert_eq!(next.text() == "0", shared, "{said}");
        // And it binds: once stale, it is asked for again.
        pass(secs(61)).await;
        let later = lab.with(&[("authorization", "bob")]).await;
        assert_ne!(later.text(), "0", "{said}");
    }
}
