//! Sections 3.2, 4.3.1, 4.3.3, 4.3.4 and 4.3.5.

use super::dates::date;
use super::lab::*;
use crate::kit::http::*;

cases! {
    "R3.2-1" "a 304 replaces the fields it brings" a_304_replaces_fields;
    "R3.2-2" "a 304 leaves what keeps the body whole" a_304_leaves_framing;
    "R4.3.1-1" "the stored entity tag is sent" the_tag_is_sent;
    "R4.3.1-2" "the stored Last-Modified is sent" the_date_is_sent;
    "R4.3.3-1" "a full response is the answer" a_full_response_is_the_answer;
    "R4.3.4-1" "a 304 for another response updates nothing" a_304_for_another;
    "R4.3.4-2" "a 304 makes it fresh again" a_304_makes_fresh;
    "R4.3.4-2" "a 304 that forbids storing ends it" a_304_is_judged;
    "R4.3.5-1" "a HEAD tells about the stored GET" head_updates;
    "R4.3.5-2" "a HEAD that agrees makes it fresh" head_updates;
    "R4.3.5-3" "a HEAD that differs makes nothing fresh" head_that_differs;
    "R4.3.5-4" "a HEAD replaces fields" head_updates;
}

const TEN: (&str, &str) = ("cache-control", "max-age=10");
const TAG: (&str, &str) = ("etag", "\"a\"");

/// First this 200, then this 304 to a request that names the stored tag; else
/// 200 again.
fn validating(first: Fields<'_>, then: Fields<'_>) -> Lab {
    let (first, then) = (owned(first), owned(then));
    Lab::new(move |call| {
        let asked =
            call.header("if-none-match").is_some() || call.header("if-modified-since").is_some();
        let fields = if asked { &then } else { &first };
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        if asked { unchanged(&fields) } else { say(call, 200, &fields) }
    })
}

/// Stores, lets it expire, and validates.
async fn validated(lab: &Lab) -> Reply {
    assert_eq!(lab.get().await.text(), "0");
    pass(secs(15)).await;
    lab.get().await
}

async fn a_304_replaces_fields() {
    let lab = validating(
        &[TEN, TAG, ("x-a", "1"), ("x-a", "2"), ("x-kept", "k")],
        &[("cache-control", "max-age=100"), ("x-a", "3"), ("x-new", "n"), ("x-new", "m"), TAG],
    );
    assert_eq!(validated(&lab).await.text(), "0");
    pass(secs(50)).await;
    let hit = lab.get().await;
    assert_eq!((hit.text(), hit.status, lab.calls()), ("0", 200, 2));
    assert_eq!(hit.all("x-a"), ["3"]);
    assert_eq!(hit.all("x-new"), ["n", "m"]);
    assert_eq!(hit.all("x-kept"), ["k"]);
    assert_eq!(hit.all("cache-control"), ["max-age=100"]);
    assert_eq!(hit.all("etag"), ["\"a\""]);
}

async fn a_304_leaves_framing() {
    let lab = validating(
        &[
            TEN,
            TAG,
            ("content-encoding", "x-plain"),
            ("content-length", "1"),
            ("content-language", "en"),
        ],
        &[
            ("content-encoding", "gzip"),
            ("content-range", "bytes 0-0/9"),
            ("set-cookie", "a=b"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("content-language", "de"),
            ("content-type", "text/plain"),
            ("x-end", "1"),
        ],
    );
    validated(&lab).await;
    let hit = lab.get().await;
    assert_eq!((hit.text(), lab.calls()), ("0", 2));
    assert_eq!(hit.all("content-encoding"), ["x-plain"]);
    assert_eq!(hit.declared, Some(1));
    for name in ["content-range", "set-cookie", "connection", "x-hop"] {
        assert_eq!(hit.header(name), None, "{name}");
    }
    for (name, value) in
        [("content-language", "de"), ("content-type", "text/plain"), ("x-end", "1")]
    {
        assert_eq!(hit.all(name), [value]);
    }
}

async fn the_tag_is_sent() {
    for tag in ["\"a\"", "W/\"a\"", "\"a b,c\"", "\"\""] {
        let lab = validating(&[TEN, ("etag", tag)], &[]);
        assert_eq!(validated(&lab).await.text(), "0", "{tag}");
        assert_eq!(lab.origin.last().header("if-none-match"), Some(tag));
    }
    let lab = validating(&[TEN, TAG], &[]);
    lab.get().await;
    pass(secs(15)).await;
    lab.with(&[("if-none-match", "\"mine\", \"a\"")]).await;
    assert!(lab.origin.last().header("if-none-match").unwrap().contains("\"a\""));
}

async fn the_date_is_sent() {
    for before in [date(-86_400), super::dates::asctime(-86_400)] {
        for tag in [None, Some(TAG)] {
            let mut fields = vec![TEN, ("last-modified", &*before)];
            fields.extend(tag);
            let lab = validating(&fields, &[]);
            assert_eq!(validated(&lab).await.text(), "0");
            assert_eq!(lab.origin.last().header("if-modified-since"), Some(&*before));
            assert_eq!(lab.origin.last().header("if-none-match").is_some(), tag.is_some());
        }
    }
}

async fn a_full_response_is_the_answer() {
    for status in [200, 404, 403, 301, 410] {
        let lab =
            Lab::new(move |call| say(call, if call.n == 1 { status } else { 200 }, &[TEN, TAG]));
        let reply = validated(&lab).await;
        assert_eq!((reply.status, reply.text()), (status, "1"));
        // And it takes the place of the stored one, if it may.
        assert_eq!(lab.get().await.text(), "1", "{status}");
    }
}

async fn a_304_for_another() {
    let lab = Lab::new(|call| match call.header("if-none-match") {
        Some(_) => {
            unchanged(&[("etag", "\"other\""), ("x-a", "2"), ("cache-control", "max-age=99")])
        }
        None => say(call, 200, &[TEN, TAG, ("x-a", "1")]),
    });
    let reply = validated(&lab).await;
    assert_eq!((reply.status, reply.text(), reply.header("x-a")), (200, "2", Some("1")));
    assert_eq!(lab.calls(), 3, "one more, without conditions");
    // A weak tag that compares equal is no other one.
    let weak = validating(&[TEN, ("etag", "W/\"a\"")], &[("etag", "W/\"a\"")]);
    assert_eq!(validated(&weak).await.text(), "0");
}

async fn a_304_makes_fresh() {
    let lab = validating(&[TEN, TAG, ("age", "3")], &[("x-a", "1")]);
    assert_eq!(validated(&lab).await.text(), "0");
    pass(secs(9)).await;
    let hit = lab.get().await;
    assert_eq!((lab.calls(), hit.header("age")), (2, Some("9")));
    pass(secs(2)).await;
    lab.get().await;
    assert_eq!(lab.calls(), 3);
}

async fn a_304_is_judged() {
    for said in ["no-store", "private", "max-age=0"] {
        let lab = validating(&[TEN, TAG], &[("cache-control", said)]);
        assert_eq!(validated(&lab).await.text(), "0", "{said}");
        let before = lab.calls();
        lab.get().await;
        assert_eq!(lab.calls(), before + 1, "{said}");
    }
    let lab = validating(&[TEN, TAG], &[("vary", "*")]);
    validated(&lab).await;
    let before = lab.calls();
    lab.get().await;
    assert_eq!(lab.calls(), before + 1);
}

/// A stored GET of ten seconds, expired; then a HEAD with these fields, which
/// the origin answers, and a GET.
async fn after_head(stored: Fields<'_>, told: Fields<'_>) -> (Lab, Reply) {
    let (stored, told) = (owned(stored), owned(told));
    let lab = Lab::new(move |call| {
        let head = call.parts.method == http::Method::HEAD;
        let fields = if head { &told } else { &stored };
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        if head { say(call, 200, &fields).body("") } else { say(call, 200, &fields) }
    });
    lab.get().await;
    pass(secs(15)).await;
    lab.send("HEAD", URI, &[]).await;
    assert_eq!(lab.origin.last().parts.method, "HEAD");
    let reply = lab.get().await;
    (lab, reply)
}

async fn head_updates() {
    let before = date(-86_400);
    let modified = ("last-modified", &*before);
    let length = ("content-length", "1");
    let told: [Vec<(&str, &str)>; 4] =
        [vec![TAG], vec![TAG, length], vec![modified, length], vec![TAG, modified]];
    for told in told {
        let told = [&told[..], &[("cache-control", "max-age=100"), ("x-a", "2")]].concat();
        let stored = [TEN, TAG, modified, ("x-a", "1"), ("x-a", "0"), ("x-kept", "k")];
        let (lab, reply) = after_head(&stored, &told).await;
        assert_eq!((reply.text(), lab.calls()), ("0", 2), "{told:?}");
        assert_eq!(reply.all("x-a"), ["2"]);
        assert_eq!(reply.all("x-kept"), ["k"]);
        pass(secs(90)).await;
        assert_eq!(lab.get().await.text(), "0");
    }
}

async fn head_that_differs() {
    let before = date(-86_400);
    let modified = ("last-modified", &*before);
    let told: [&[(&str, &str)]; 4] = [
        &[("etag", "\"b\"")],
        &[TAG, ("content-length", "2")],
        &[TAG, ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")],
        &[("etag", "\"b\""), modified],
    ];
    for told in told {
        let told = [told, &[("cache-control", "max-age=100"), ("x-a", "2")]].concat();
        let (lab, reply) = after_head(&[TEN, TAG, modified, ("x-a", "1")], &told).await;
        assert_eq!((reply.text(), lab.calls()), ("2", 3), "{told:?}");
        assert_eq!(reply.all("x-a"), ["1"]);
    }
}
