//! Sections 5.2.2 and 5.2.3.

use tower_stampede::CacheFor;

use super::lab::*;
use crate::kit::http::*;

cases! {
    "R5.2.2-1" "directives in every spelling" spellings_of_a_lifetime;
    "R5.2.2-1" "invalid and contradictory lifetimes are stale" nonsense_is_stale;
    "R5.2.2.2-1" "must-revalidate: validated once stale" must_revalidate;
    "R5.2.2.2-2" "must-revalidate: no setting lifts it" no_setting_lifts_it;
    "R5.2.2.2-3" "must-revalidate: disconnected is an error" disconnected_is_an_error;
    "R5.2.2.2-4" "must-revalidate: that error is 504" that_error_is_504;
    "R5.2.2.3-1" "must-understand lifts no-store" must_understand;
    "R5.2.2.4-1" "no-cache: validated each time, and successfully" no_cache;
    "R5.2.2.4-1" "no-cache: a flight is for those that came before it began" no_cache_in_flight;
    "R5.2.2.5-1" "no-store: not stored" no_store;
    "R5.2.2.5-2" "no-store: nobody shares a flight" no_store_in_flight;
    "R5.2.2.5-3" "no-store: not a byte in memory" no_store_in_memory;
    "R5.2.2.6-1" "no-transform: the same bytes" no_transform;
    "R5.2.2.7-1" "private: not stored, not handed over" private;
    "R5.2.2.7-2" "private with names: stored without them" private_fields;
    "R5.2.2.8-1" "proxy-revalidate: validated once stale" proxy_revalidate;
    "R5.2.2.10-1" "s-maxage: validated once stale" shared_age;
    "R5.2.3-1" "unknown directives are ignored" unknown_directives;
}

async fn spellings_of_a_lifetime() {
    let sixty: [&[&str]; 12] = [
        &["max-age=60"],
        &["MAX-AGE=60"],
        &["max-age=\"60\""],
        &["max-age=060"],
        &["public,max-age=60"],
        &[" ,, max-age=60 , "],
        &["public", "Max-Age=60"],
        &["max-age=60, max-age=60"],
        &["max-age=60", "max-age=\"60\""],
        &["s-maxage=60, max-age=0"],
        &["max-age=0", "S-MaxAge=\"60\""],
        &["x=\"max-age=0, y\", max-age=60"],
    ];
    for lines in sixty {
        let fields: Vec<_> = lines.iter().map(|line| ("cache-control", line.trim())).collect();
        assert!(reused_after(59, &fields).await, "{lines:?}");
        assert!(!reused_after(60, &fields).await, "{lines:?}");
    }
}

async fn nonsense_is_stale() {
    let nonsense: [&[&str]; 12] = [
        &["max-age"],
        &["max-age="],
        &["max-age=x"],
        &["max-age=-1"],
        &["max-age=6.0"],
        &["max-age=+60"],
        &["max-age=60s"],
        &["max-age=1, max-age=60"],
        &["max-age=60", "max-age=61"],
        &["max-age=60, max-age"],
        &["s-maxage=x, max-age=60"],
        &["s-maxage=60", "s-maxage=61"],
    ];
    for lines in nonsense {
        let fields: Vec<_> = lines.iter().map(|line| ("cache-control", *line)).collect();
        assert!(!reused(&fields).await, "{lines:?}");
    }
}

/// Stored with a tag for ten seconds; expired, it must not be seen unless a
/// validation succeeds.
async fn asked_for_once_stale(said: &str) {
    let fields = owned(&[("cache-control", said), ("etag", "\"a\"")]);
    let lab = Lab::new(move |call| {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        match call.header("if-none-match") {
            Some(_) => unchanged(&[]),
            None => say(call, 200, &fields),
        }
    });
    lab.get().await;
    assert_eq!(lab.get().await.text(), "0", "{said}: while fresh");
    pass(secs(15)).await;
    assert_eq!(lab.get().await.text(), "0", "{said}: validated");
    assert_eq!(lab.calls(), 2, "{said}");
    pass(secs(15)).await;
    lab.origin.answers(|call| say(call, 500, &[]));
    assert_eq!(lab.get().await.status, 500, "{said}");
}

async fn must_revalidate() {
    asked_for_once_stale("max-age=10, must-revalidate").await;
    asked_for_once_stale(
        "must-revalidate, max-age=10, stale-while-revalidate=99, stale-if-error=99",
    )
    .await;
}

async fn proxy_revalidate() {
    asked_for_once_stale("max-age=10, proxy-revalidate").await;
    asked_for_once_stale("proxy-revalidate, max-age=10, stale-while-revalidate=99").await;
}

async fn shared_age() {
    asked_for_once_stale("s-maxage=10").await;
    asked_for_once_stale("s-maxage=10, max-age=99, must-revalidate, stale-if-error=99").await;
}

async fn no_setting_lifts_it() {
    let windows = |layer: tower_stampede::HttpLayer| {
        layer.ttl(secs(99)).stale_for(secs(99)).stale_if_error(secs(99))
    };
    for by_handler in [false, true] {
        let layer = windows(with_ttl(99).http_layer());
        let lab = Lab::with_layer(layer, move |call| {
            let answer = say(call, 200, &[("cache-control", "max-age=10, must-revalidate")]);
            let lifetime = CacheFor::new(secs(10)).stale_for(secs(99)).stale_if_error(secs(99));
            if by_handler { answer.extension(lifetime.public()) } else { answer }
        });
        lab.get().await;
        pass(secs(15)).await;
        assert_eq!(lab.get().await.text(), "1", "{by_handler}");
        pass(secs(15)).await;
        lab.origin.answers(|_| Answer::error());
        let reply = lab.attempt(&[]).await;
        assert!(reply.is_err() || reply.unwrap().status >= 500);
    }
}

/// A crowd on an expired entry while the origin is away; the cache may know
/// that the service's errors mean that.
async fn disconnected(told_apart: bool) -> Vec<Got<OriginError>> {
    let layer = origin_only().http_layer().stale_if_error(secs(99)).stale_for(secs(99));
    let layer = layer.stale_if_disconnected(secs(99));
    let layer = if told_apart { layer.disconnected(|_: &OriginError| true) } else { layer };
    let lab = Lab::with_layer(layer, |call| {
        say(call, 200, &[("cache-control", "max-age=10, must-revalidate")])
    });
    lab.get().await;
    pass(secs(15)).await;
    lab.origin.answers(|_| Answer::error());
    crowd_of(&lab.app, 4, |_| with(URI, &[])).await
}

async fn disconnected_is_an_error() {
    for told_apart in [false, true] {
        for got in disconnected(told_apart).await {
            if let Got::Reply(reply) = got {
                assert!(reply.status >= 500 && reply.text() != "0", "{reply:?}");
            }
        }
    }
}

async fn that_error_is_504() {
    let statuses: Vec<_> =
        disconnected(true).await.into_iter().map(|got| got.reply().status).collect();
    assert_eq!(statuses, [504; 4]);
}

async fn must_understand() {
    let lifted = ["must-understand, no-store, max-age=60", "No-Store, max-age=60, Must-Understand"];
    for said in lifted {
        let fields = [("cache-control", said)];
        for status in [200, 404, 301] {
            assert!(reused_from(status, 0, &fields).await, "{status} {said}");
        }
        for status in [299, 499, 599] {
            assert!(!reused_from(status, 0, &fields).await, "{status} {said}");
        }
    }
    assert!(!reused(&[("cache-control", "must-understand, private, max-age=60")]).await);
}

async fn no_cache() {
    let fields = [("cache-control", "no-cache, max-age=60, stale-if-error=60"), ("etag", "\"a\"")];
    let lab = Lab::new(move |call| match call.header("if-none-match") {
        Some("\"a\"") => unchanged(&[("x-n", &call.n.to_string())]),
        _ => say(call, 200, &fields),
    });
    for n in 0..3 {
        assert_eq!(lab.get().await.text(), "0");
        assert_eq!(lab.calls(), n + 1, "each is asked for");
    }
    for failure in [500, 503, 404] {
        lab.origin.answers(move |call| say(call, failure, &[]));
        let reply = lab.get().await;
        assert_eq!(reply.status, failure, "validation did not succeed");
    }
    lab.origin.answers(|_| Answer::error());
    assert!(lab.attempt(&[]).await.map_or(true, |reply| reply.text() != "0"));
}

/// How many of ten concurrent clients have an answer that no other client has.
async fn own_answers(said: &str) -> usize {
    let lab = Lab::new({
        let said = said.to_owned();
        move |call| {
            let fields = [("cache-control", &*said), ("etag", "\"a\"")];
            say(call, 200, &fields).after(ms(100))
        }
    });
    let all = crowd(&lab.app, 10, |_| with(URI, &[])).await;
    let mut bodies: Vec<_> = all.iter().map(|reply| reply.text().to_owned()).collect();
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), lab.calls());
    bodies.len()
}

async fn no_cache_in_flight() {
    assert_eq!(answers_to_late("no-cache, max-age=60").await, ["0", "1"]);
    assert_eq!(answers_to_late("max-age=60").await, ["0"], "the control");
}

/// What ten clients get, nine of which come while the first one's request runs.
async fn answers_to_late(said: &str) -> Vec<String> {
    let lab = Lab::new({
        let said = said.to_owned();
        move |call| {
            let fields = [("cache-control", &*said), ("etag", "\"a\"")];
            say(call, 200, &fields).after(ms(100))
        }
    });
    let late = async {
        tokio::time::sleep(ms(50)).await;
        crowd(&lab.app, 9, |_| with(URI, &[])).await
    };
    let (first, mut all) = tokio::join!(send(&lab.app, with(URI, &[])), late);
    all.push(first);
    let mut bodies: Vec<_> = all.iter().map(|reply| reply.text().to_owned()).collect();
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), lab.calls());
    bodies
}

async fn no_store_in_flight() {
    assert_eq!(own_answers("no-store").await, 10);
    assert_eq!(own_answers("max-age=60, public, No-Store").await, 10);
}

async fn no_store() {
    assert!(!reused(&[("cache-control", "no-store, public, s-maxage=60")]).await);
    assert!(!reused(&[("cdn-cache-control", "no-store"), ("cache-control", "max-age=60")]).await);
    assert!(!reused(&[("cdn-cache-control", "max-age=60, no-store")]).await);
}

async fn no_store_in_memory() {
    assert!(!kept_in_memory(&[("cache-control", "no-store, max-age=60")], &[]).await);
}

async fn no_transform() {
    let bytes: Vec<u8> = (0..=255).collect();
    let content = bytes.clone();
    let lab = Lab::new(move |call| {
        let fields = [
            ("cache-control", "no-transform, max-age=60"),
            ("content-encoding", "br"),
            ("content-type", "text/html; charset=latin1"),
        ];
        say(call, 200, &fields).body(content.clone())
    });
    for accept in ["br", "gzip, br;q=0.5", "*"] {
        let reply = lab.with(&[("accept-encoding", accept)]).await;
        assert_eq!(reply.body, bytes);
        assert_eq!(reply.all("content-encoding"), ["br"]);
        assert_eq!(reply.all("content-type"), ["text/html; charset=latin1"]);
    }
    assert_eq!(lab.calls(), 1);
}

async fn private() {
    assert!(!reused(&[("cache-control", "private, public, s-maxage=60")]).await);
    assert!(!reused(&[("cdn-cache-control", "private"), ("cache-control", "max-age=60")]).await);
    assert_eq!(own_answers("private, max-age=60").await, 10);
    assert!(!kept_in_memory(&[("cache-control", "private, max-age=60")], &[]).await);
}

async fn private_fields() {
    assert!(!reused(&[("cache-control", "max-age=60, private=x-user")]).await, "only in quotes");
    let lab = Lab::saying(&[
        ("cache-control", "max-age=60, private=\"X-User, x-mail\", Private=\"x-token\""),
        ("x-user", "alice"),
        ("x-user", "anna"),
        ("x-mail", "a@a.test"),
        ("x-token", "secret"),
        ("x-open", "1"),
    ]);
    assert_eq!(lab.get().await.all("x-user"), ["alice", "anna"], "for whom it was made");
    let hit = lab.get().await;
    assert_eq!((hit.text(), hit.header("x-open")), ("0", Some("1")));
    for name in ["x-user", "x-mail", "x-token"] {
        assert_eq!(hit.header(name), None, "{name}");
    }
    let slow = Lab::new(|call| {
        let fields = [("cache-control", "max-age=60, private=\"x-user\""), ("x-user", "alice")];
        say(call, 200, &fields).after(ms(100))
    });
    let all = crowd(&slow.app, 5, |_| with(URI, &[])).await;
    let with_it = all.iter().filter(|reply| reply.header("x-user").is_some()).count();
    assert_eq!((with_it, slow.calls()), (1, 1));
}

async fn unknown_directives() {
    let unknown = [
        "x-unknown",
        "x-unknown=1",
        "x-unknown=\"no-store, private\"",
        "no-storage",
        "privately",
        "x=\"\\\"no-store\\\"\"",
        "immutable",
        "community=\"UCI\"",
    ];
    for said in unknown {
        let after = format!("max-age=60, {said}");
        let before = format!("{said}, max-age=60");
        assert!(reused(&[("cache-control", &after)]).await, "{after}");
        assert!(reused(&[("cache-control", &before)]).await, "{before}");
    }
}
