//! Sections 4 and 4.1.

use super::dates::date;
use super::lab::*;
use crate::kit::http::*;

cases! {
    "R4-1" "another target is another response" another_target;
    "R4-2" "a stored GET answers GET and HEAD alone" only_get_and_head;
    "R4-3" "another value of a field that Vary names" another_value;
    "R4-4" "no-cache is asked for each time" no_cache_is_validated;
    "R4-5" "what is not fresh is asked for again" not_fresh;
    "R4-6" "Age replaces Age" age_replaces_age;
    "R4-7" "unsafe methods reach the origin first" unsafe_methods_reach_the_origin;
    "R4-8" "the most recent of two that match" the_most_recent;
    "R4.1-1" "Vary, field by field" vary_field_by_field;
    "R4.1-1" "Vary with * in any position" vary_star;
    "R4.1-2" "one with Vary before one without" with_vary_first;
}

const FRESH: (&str, &str) = ("cache-control", "max-age=60");

async fn another_target() {
    let targets = [
        "http://a.test/report",
        "https://a.test/report",
        "http://b.test/report",
        "http://a.test:81/report",
        "http://a.test/Report",
        "http://a.test/report/",
        "http://a.test/report?",
        "http://a.test/report?a=1",
        "http://a.test/report?a=1&a=1",
        "http://a.test/%72eport",
    ];
    let lab = Lab::saying(&[FRESH]);
    for (n, uri) in targets.iter().enumerate() {
        assert_eq!(lab.send("GET", uri, &[]).await.text(), n.to_string(), "{uri}");
    }
    for (n, uri) in targets.iter().enumerate() {
        assert_eq!(lab.send("GET", uri, &[]).await.text(), n.to_string(), "{uri}");
    }
    assert_eq!(lab.send("GET", "http://A.TEST:80/report", &[]).await.text(), "0");
}

async fn only_get_and_head() {
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"] {
        let lab = Lab::saying(&[FRESH]);
        lab.get().await;
        assert_eq!(lab.send(method, URI, &[]).await.text(), "1", "{method}");
    }
    let lab = Lab::saying(&[FRESH, ("x-end", "1"), ("content-length", "1")]);
    lab.get().await;
    let head = lab.send("HEAD", URI, &[]).await;
    assert_eq!((head.status, head.text(), head.header("x-end")), (200, "", Some("1")));
    assert_eq!((head.header("content-length"), lab.calls()), (Some("1"), 1));
}

async fn another_value() {
    let lab = Lab::saying(&[FRESH, ("vary", "a")]);
    for (n, value) in [(0, "1"), (1, "2"), (0, "1"), (1, "2")] {
        assert_eq!(lab.with(&[("a", value)]).await.text(), n.to_string());
    }
    assert_eq!(lab.get().await.text(), "2", "none is a value of its own");
    assert_eq!(lab.get().await.text(), "2");
}

async fn no_cache_is_validated() {
    for said in
        ["no-cache", "no-cache, max-age=60", "max-age=60, No-Cache", "no-cache, no-cache=\"x\""]
    {
        let fields = [("cache-control", said), ("etag", "\"a\"")];
        assert!(!reused(&fields).await, "{said}");
    }
}

async fn not_fresh() {
    assert!(reused_after(59, &[FRESH]).await);
    assert!(!reused_after(60, &[FRESH]).await, "a lifetime is greater than the age");
    assert!(!reused_after(3600, &[FRESH]).await);
    assert!(!reused(&[("cache-control", "max-age=0")]).await);
    assert!(!reused(&[FRESH, ("age", "60")]).await);
    assert!(reused(&[FRESH, ("age", "50")]).await);
    assert!(!reused(&[FRESH, ("date", &date(-61))]).await);
}

async fn age_replaces_age() {
    let lab = Lab::saying(&[FRESH, ("age", "5"), ("age", "70")]);
    assert_eq!(lab.get().await.all("age"), ["5", "70"], "a forwarded one keeps its own");
    pass(secs(10)).await;
    assert_eq!(lab.get().await.all("age"), ["15"]);
    let lab = Lab::saying(&[FRESH]);
    assert_eq!(lab.get().await.header("age"), None);
    assert_eq!(lab.get().await.all("age"), ["0"]);
    assert_eq!(lab.send("HEAD", URI, &[]).await.all("age"), ["0"]);
}

async fn unsafe_methods_reach_the_origin() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "BREW"] {
        let lab = Lab::saying(&[FRESH, ("content-location", "/report")]);
        lab.get().await;
        for fields in [&[][..], &[("cache-control", "only-if-cached, max-stale")]] {
            let before = lab.calls();
            let reply = lab.send(method, URI, fields).await;
            assert_eq!(reply.text(), before.to_string(), "{method}");
            assert_eq!(lab.origin.last().parts.method.as_str(), method);
        }
    }
}

/// Two stored responses that both match a third request.
async fn of_two(first: i64, second: i64) -> String {
    let dates = [date(first), date(second)];
    let lab = Lab::new(move |call| {
        let vary = ["a", "b"][call.n.min(1)];
        say(call, 200, &[FRESH, ("vary", vary), ("date", &dates[call.n.min(1)])])
    });
    lab.with(&[("a", "1"), ("b", "2")]).await;
    lab.with(&[("a", "2"), ("b", "1")]).await;
    let both = lab.with(&[("a", "1"), ("b", "1")]).await;
    assert_eq!(lab.calls(), 2);
    both.text().to_owned()
}

async fn the_most_recent() {
    assert_eq!(of_two(-10, -5).await, "1");
    assert_eq!(of_two(-5, -10).await, "0", "by Date, not by receipt");
}

async fn vary_field_by_field() {
    type Row = (&'static str, &'static [(&'static str, &'static str)], bool);
    // Against a first request with `a: 1, 2`, `b: x` and no `c`.
    let rows: [Row; 12] = [
        ("a", &[("a", "1, 2")], true),
        ("A", &[("a", "1"), ("a", "2")], true),
        ("a", &[("a", "1 ,2")], true),
        ("a", &[("a", "2, 1")], false),
        ("a", &[("a", "1")], false),
        ("a", &[], false),
        ("a, b", &[("a", "1, 2"), ("b", "x")], true),
        ("a, b", &[("a", "1, 2"), ("b", "y")], false),
        ("a, b", &[("b", "x")], false),
        ("c", &[("a", "9")], true),
        ("c", &[("c", "")], false),
        ("b", &[("b", "X")], false),
    ];
    for (vary, second, shared) in rows {
        for split in [false, true] {
            let lines: Vec<_> = if split { vary.split(", ").collect() } else { vec![vary] };
            let fields: Vec<_> =
                lines.into_iter().map(|line| ("vary", line)).chain([FRESH]).collect();
            let lab = Lab::saying(&fields);
            lab.with(&[("a", "1, 2"), ("b", "x")]).await;
            assert_eq!(lab.with(second).await.text() == "0", shared, "{vary} {second:?}");
        }
    }
}

async fn vary_star() {
    let lists: [&[&str]; 6] =
        [&["*"], &["a, *"], &["*, a"], &["a", "*"], &["a,b , * ,c"], &["a", " *", "b"]];
    for lines in lists {
        let mut fields = vec![("cache-control", "public, max-age=60"), ("etag", "\"a\"")];
        fields.extend(lines.iter().map(|line| ("vary", line.trim())));
        assert!(!reused(&fields).await, "{lines:?}");
    }
}

async fn with_vary_first() {
    // The one without takes the place of those with, and the other way round:
    // the two never stand side by side.
    let lab = Lab::new(|call| {
        let varying = [("cache-control", "max-age=10"), ("vary", "a")];
        say(call, 200, if call.n == 1 { &varying[..1] } else { &varying })
    });
    lab.with(&[("a", "1")]).await;
    assert_eq!(lab.with(&[("a", "2")]).await.text(), "1");
    assert_eq!(lab.with(&[("a", "3")]).await.text(), "1");
    pass(secs(15)).await;
    assert_eq!(lab.with(&[("a", "1")]).await.text(), "2");
    assert_eq!(lab.with(&[("a", "2")]).await.text(), "3", "not the one without");
    assert_eq!(lab.with(&[("a", "1")]).await.text(), "2");
}
