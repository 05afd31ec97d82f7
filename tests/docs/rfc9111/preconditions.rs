//! Section 4.3.2.

use super::dates::date;
use super::lab::*;
use crate::kit::http::*;

cases! {
    "R4.3.2-1" "preconditions are held against the stored response" against_what_is_stored;
    "R4.3.2-1" "and only against a stored 2xx" only_against_success;
    "R4.3.2-2" "those for the origin go to the origin" those_for_the_origin;
    "R4.3.2-3" "Date in place of Last-Modified" date_for_last_modified;
    "R4.3.2-5" "a 304 that the client did not ask for is a 200" a_304_not_asked_for;
}

const FRESH: (&str, &str) = ("cache-control", "max-age=60");
const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const LATER: &str = "Sunday, 06-Nov-94 08:49:38 GMT";

async fn against_what_is_stored() {
    let rows: [(&[(&str, &str)], u16); 21] = [
        (&[("if-none-match", "\"a\"")], 304),
        (&[("if-none-match", "W/\"a\"")], 304),
        (&[("if-none-match", "\"b\", W/\"a\" , \"c\"")], 304),
        (&[("if-none-match", "\"b\""), ("if-none-match", "\"a\"")], 304),
        (&[("if-none-match", "*")], 304),
        (&[("if-none-match", "\"b\"")], 200),
        (&[("if-none-match", "\"A\"")], 200),
        (&[("if-modified-since", MODIFIED)], 304),
        (&[("if-modified-since", LATER)], 304),
        (&[("if-modified-since", EARLIER)], 200),
        (&[("if-modified-since", "whenever")], 200),
        (&[("if-none-match", "\"b\""), ("if-modified-since", LATER)], 200),
        (&[("if-none-match", "\"a\""), ("if-modified-since", EARLIER)], 304),
        (&[("range", "bytes=0-0"), ("if-range", "\"a\"")], 206),
        (&[("range", "bytes=0-0"), ("if-range", "W/\"a\"")], 200),
        (&[("range", "bytes=0-0"), ("if-range", "\"b\"")], 200),
        (&[("range", "bytes=0-0"), ("if-range", MODIFIED)], 206),
        (&[("range", "bytes=0-0"), ("if-range", LATER)], 200),
        (&[("range", "bytes=0-0"), ("if-none-match", "\"a\"")], 304),
        (&[("range", "bytes=0-0"), ("if-none-match", "\"b\"")], 206),
        (&[("range", "bytes=10-")], 416),
    ];
    for (asked, status) in rows {
        let fields = [FRESH, ("etag", "\"a\""), ("last-modified", MODIFIED), ("vary", "x")];
        let lab = Lab::saying(&fields);
        lab.get().await;
        let reply = lab.with(asked).await;
        assert_eq!((reply.status, lab.calls()), (status, 1), "{asked:?}");
        if status == 304 {
            assert_eq!((reply.text(), reply.header("etag")), ("", Some("\"a\"")));
            assert_eq!(reply.header("vary"), Some("x"));
        }
    }
    let weak = Lab::saying(&[FRESH, ("etag", "W/\"a\"")]);
    weak.get().await;
    assert_eq!(weak.with(&[("if-none-match", "\"a\"")]).await.status, 304);
    assert_eq!(weak.send("HEAD", URI, &[("if-none-match", "\"a\"")]).await.status, 304);
    assert_eq!(weak.with(&[("range", "bytes=0-0"), ("if-range", "W/\"a\"")]).await.status, 200);
    assert_eq!(weak.calls(), 1);
}

async fn only_against_success() {
    for status in [301, 404, 410] {
        let lab = Lab::status(status, &[FRESH, ("etag", "\"a\"")]);
        lab.get().await;
        for asked in [("if-none-match", "\"a\""), ("if-none-match", "*"), ("range", "bytes=0-0")] {
            assert_eq!(lab.with(&[asked]).await.status, status, "{asked:?}");
        }
    }
}

async fn those_for_the_origin() {
    let for_origin =
        [[("if-match", "\"b\"")], [("if-match", "*")], [("if-unmodified-since", EARLIER)]];
    for asked in for_origin {
        let lab = Lab::saying(&[FRESH, ("etag", "\"a\""), ("last-modified", MODIFIED)]);
        lab.get().await;
        assert_eq!(lab.with(&asked).await.text(), "1", "{asked:?}");
        assert_eq!(lab.origin.last().header(asked[0].0), Some(asked[0].1));
    }
    for method in ["PUT", "POST", "DELETE"] {
        for asked in [("if-none-match", "*"), ("if-none-match", "\"a\""), ("if-match", "\"b\"")] {
            let lab = Lab::saying(&[FRESH, ("etag", "\"a\"")]);
            lab.get().await;
            assert_eq!(lab.send(method, URI, &[asked]).await.text(), "1", "{asked:?}");
            assert_eq!(lab.origin.last().header(asked.0), Some(asked.1));
        }
    }
    // What is not stored is not judged by us: the origin decides.
    let lab = Lab::saying(&[("cache-control", "no-store"), ("etag", "\"a\"")]);
    lab.get().await;
    let reply = lab.with(&[("if-none-match", "\"a\"")]).await;
    assert_eq!((reply.status, reply.text()), (200, "1"));
    assert_eq!(lab.origin.last().header("if-none-match"), Some("\"a\""));
}

async fn date_for_last_modified() {
    let (now, before, after) = (date(-20), date(-21), date(-19));
    for (asked, status) in [(&now, 304), (&after, 304), (&before, 200)] {
        let lab = Lab::saying(&[FRESH, ("date", &now)]);
        lab.get().await;
        let reply = lab.with(&[("if-modified-since", asked)]).await;
        assert_eq!((reply.status, lab.calls()), (status, 1), "{asked}");
    }
    for (seconds, status) in [(-60, 200), (60, 304)] {
        let lab = Lab::saying(&[FRESH]);
        lab.get().await;
        assert_eq!(lab.with(&[("if-modified-since", &date(seconds))]).await.status, status);
    }
}

async fn a_304_not_asked_for() {
    let asked: [&[(&str, &str)]; 4] = [
        &[],
        &[("if-none-match", "\"mine\"")],
        &[("if-modified-since", EARLIER)],
        &[("if-none-match", "\"mine\""), ("if-modified-since", LATER)],
    ];
    for asked in asked {
        let lab = Lab::new(|call| match call.header("if-none-match") {
            Some(tags) if tags.contains("\"a\"") => unchanged(&[("etag", "\"a\""), ("x-a", "2")]),
            _ => say(
                call,
                200,
                &[FRESH, ("etag", "\"a\""), ("last-modified", MODIFIED), ("x-a", "1")],
            ),
        });
        lab.get().await;
        pass(secs(61)).await;
        let reply = lab.with(asked).await;
        assert_eq!((reply.status, reply.text(), lab.calls()), (200, "0", 2), "{asked:?}");
        assert_eq!(reply.all("x-a"), ["2"]);
    }
}
