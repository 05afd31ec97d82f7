//! `Vary`: a variant answers only requests that select it.

use http::Request;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpStampede, Stampede};

use crate::kit::http::*;

fn speaks(vary: &'static str) -> Origin {
    Origin::new(move |call| {
        let language = call.header("accept-language").unwrap_or("none").to_owned();
        Answer::ok("max-age=60", language).header("vary", vary)
    })
}

fn language(language: &str) -> Request<axum::body::Body> {
    with("/report", &[("accept-language", language)])
}

#[tokio::test(start_paused = true)]
async fn a_stored_variant_answers_only_requests_that_select_it() {
    let origin = speaks("Accept-Language");
    let app = app(&origin);
    for name in ["de", "en", "none", "fr"] {
        assert_eq!(send(&app, language(name)).await.text(), name);
    }
    for name in ["fr", "de", "en"] {
        let reply = send(&app, language(name)).await;
        assert!(reply.is(Hit) && reply.text() == name);
    }
    assert_eq!(origin.calls(), 4);
    assert_eq!(send(&app, get("/report")).await.text(), "none");
    assert_eq!(origin.calls(), 5, "an absent field is not an empty one");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_over_several_variants_is_one_computation_each() {
    const NAMES: [&str; 5] = ["de", "en", "fr", "it", "es"];
    for warm in [false, true] {
        let origin = speaks("Accept-Language");
        let app = app(&origin);
        let mut before = 0;
        if warm {
            crowd(&app, 5, |i| language(NAMES[i])).await;
            pass(secs(61)).await;
            before = origin.calls();
        }
        let replies = crowd(&app, 500, |i| language(NAMES[i % 5])).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), NAMES[i % 5]);
        }
        assert_eq!(origin.calls(), before + 5);
        // Predicted, they run at once; else the others wait for the first.
        assert_eq!(slowest(&replies), WORK * if warm { 1 } else { 2 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_over_several_variants_is_one_computation_each_on_many_threads() {
    const NAMES: [&str; 5] = ["de", "en", "fr", "it", "es"];
    for round in 0..50 {
        let origin = Origin::new(move |call| {
            let language = call.header("accept-language").unwrap_or("none").to_owned();
            let answer = Answer::ok("max-age=60", language).header("vary", "accept-language");
            answer.after(ms(5))
        });
        let app = app(&origin);
        let replies = crowd(&app, 200, |i| language(NAMES[i % 5])).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), NAMES[i % 5]);
        }
        assert_eq!(origin.calls(), 5, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_vary_that_was_not_predicted_is_obeyed() {
    // The first answer does not vary, the second does, the third by more.
    let origin = Origin::new(|call| {
        let of = |name| call.header(name).unwrap_or("none").to_owned();
        let answer = Answer::ok("max-age=10", format!("{} {}", of("a"), of("b")));
        match call.n {
            0 => answer,
            1 => answer.header("vary", "a"),
            _ => answer.header("vary", "a").header("vary", "b"),
        }
    });
    let app = app(&origin);
    let ask = |a: &str, b: &str| with("/report", &[("a", a), ("b", b)]);
    assert_eq!(send(&app, ask("1", "1")).await.text(), "1 1");
    assert_eq!(send(&app, ask("2", "2")).await.text(), "1 1");
    pass(secs(11)).await;
    let replies = crowd(&app, 8, |i| ask(&(i % 2).to_string(), &(i / 4).to_string())).await;
    for (i, reply) in replies.iter().enumerate() {
        let text = reply.text();
        let expected = format!("{} {}", i % 2, i / 4);
        // Whom the second answer reached, it said to be for all `b`.
        let by_second = i % 2 == 0 && text == "0 0";
        assert!(text == expected || by_second, "{i}: {text}");
    }
    assert!(origin.calls() <= 6, "{}", origin.calls());
    for (a, b) in [("1", "1"), ("1", "0"), ("7", "7")] {
        assert_eq!(send(&app, ask(a, b)).await.text(), format!("{a} {b}"));
    }
}

#[tokio::test(start_paused = true)]
async fn of_several_that_match_the_most_recent_is_used() {
    // RFC 9111, 4: "a cache MUST use the most recent one".
    let origin = Origin::new(|call| {
        let vary = call.header("x-vary").unwrap().to_owned();
        Answer::ok("max-age=600", call.n.to_string()).header("vary", &vary)
    });
    let app = app(&origin);
    let ask =
        |a: &str, b: &str, vary: &str| with("/report", &[("a", a), ("b", b), ("x-vary", vary)]);
    send(&app, ask("1", "1", "b")).await; // 0: b=1
    pass(secs(10)).await;
    send(&app, ask("1", "2", "a")).await; // 1: a=1
    pass(secs(10)).await;
    send(&app, ask("2", "3", "b")).await; // 2: b=3, and `b` is predicted
    pass(secs(10)).await;
    let reply = send(&app, ask("1", "1", "b")).await;
    assert!(reply.is(Hit) && reply.text() == "1", "{}", reply.text());
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_star_in_any_position_of_vary_matches_nobody() {
    for lines in [&["*"][..], &["a, *"], &["*, a"], &["a", " * "], &["a", "*", "b"]] {
        let origin = Origin::new(move |call| {
            let answer = Answer::ok("public, max-age=60", call.n.to_string());
            lines.iter().fold(answer, |answer, line| answer.header("vary", line))
        });
        let app = app(&origin);
        let replies = crowd(&app, 10, |_| get("/report")).await;
        assert!(replies.iter().all(|reply| !reply.is(Joined) && !reply.is(Hit)));
        assert!(send(&app, get("/report")).await.is(Computed));
        assert_eq!(origin.calls(), 11);
    }
}

#[tokio::test(start_paused = true)]
async fn over_the_cap_the_least_recently_used_variant_of_the_same_uri_makes_room() {
    let origin = speaks("accept-language");
    let app = layered(origin_only().http_layer().max_variants(3), &origin);
    send(&app, with("/other", &[("accept-language", "de")])).await;
    for name in ["de", "en", "fr"] {
        send(&app, language(name)).await;
        pass(secs(1)).await;
    }
    assert!(send(&app, language("de")).await.is(Hit));
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 4);
    send(&app, language("it")).await; // in place of "en"
    for (name, kept) in [("de", true), ("fr", true), ("it", true), ("en", false)] {
        assert_eq!(send(&app, language(name)).await.is(Hit), kept, "{name}");
        pass(secs(1)).await;
    }
    assert!(send(&app, with("/other", &[("accept-language", "de")])).await.is(Hit));
    assert_eq!(origin.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn being_filled_counts_as_being_used() {
    let origin = speaks("accept-language");
    let app = layered(origin_only().http_layer().max_variants(2), &origin);
    send(&app, language("de")).await;
    pass(secs(1)).await;
    assert!(send(&app, language("de")).await.is(Hit));
    pass(secs(1)).await;
    send(&app, language("en")).await;
    pass(secs(1)).await;
    send(&app, language("fr")).await;
    assert!(send(&app, language("en")).await.is(Hit), "filled after `de` was last used");
    assert!(!send(&app, language("de")).await.is(Hit));
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn values_that_mean_the_same_select_the_same_variant() {
    let origin = speaks("Accept-Language, accept-encoding");
    let app = app(&origin);
    let first = [("accept-language", "de, en;q=0.5"), ("accept-encoding", "gzip, br")];
    send(&app, with("/report", &first)).await;
    let same = [("accept-encoding", "br,gzip"), ("accept-language", "DE,en; q=0.50")];
    assert!(send(&app, with("/report", &same)).await.is(Hit));
    let other = [("accept-encoding", "br,gzip"), ("accept-language", "en, de;q=0.5")];
    assert!(!send(&app, with("/report", &other)).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn languages_of_equal_weight_select_by_their_order() {
    let origin = speaks("Accept-Language");
    let app = app(&origin);
    let ask = async |languages: &[&'static str]| {
        let fields: Vec<_> = languages.iter().map(|line| ("accept-language", *line)).collect();
        let reply = send(&app, with("/report", &fields)).await;
        (reply.is(Hit), reply.text().to_owned())
    };
    // To this service, the first language is the preferred one.
    for languages in ["de, en", "en, de", "fr, de;q=0.5, en;q=0.5", "fr, en;q=0.5, de;q=0.5"] {
        assert_eq!(ask(&[languages]).await, (false, languages.into()));
    }
    assert_eq!(ask(&["de, en"]).await, (true, "de, en".into()));
    assert_eq!(ask(&["EN;q=1.0", "de"]).await, (true, "en, de".into()), "lines are joined");
    let sorted = ask(&["en;q=0.5, fr, de;q=0.5"]).await;
    assert_eq!(sorted, (true, "fr, en;q=0.5, de;q=0.5".into()), "weights come before places");
}

#[tokio::test(start_paused = true)]
async fn fields_that_every_response_varies_by_select_although_none_says_so() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60", call.header("x-tenant").unwrap_or("none").to_owned())
    });
    let app = layered(origin_only().http_layer().vary(["x-tenant"]), &origin);
    let replies = crowd(&app, 100, |i| with("/report", &[("x-tenant", ["a", "b"][i % 2])])).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), ["a", "b"][i % 2]);
    }
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn urls_that_are_asked_for_once_push_out_no_page_that_was_asked_for_again() {
    let origin = Origin::new(|_| Answer::ok("max-age=3600", "page").header("vary", "accept"));
    let cache: HttpStampede =
        Stampede::builder("test").origin_only().max_entries(400).build().unwrap();
    let app = layered(cache.http_layer(), &origin);
    // An index and a variant each: half of the store.
    for _ in 0..2 {
        for page in 0..100 {
            send(&app, get(&format!("/page/{page}"))).await;
        }
    }
    for n in 0..2_000 {
        send(&app, get(&format!("/once/{n}"))).await;
    }
    for page in 0..100 {
        assert!(send(&app, get(&format!("/page/{page}"))).await.is(Hit), "page {page}");
    }
}
