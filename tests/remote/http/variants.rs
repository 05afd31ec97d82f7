//! Responses that vary, in many processes.

use tower_layer::Layer;
use tower_stampede::CacheOutcome;
use tower_stampede::remote::Double;

use super::{App, everywhere, joined, process, processes, settings};
use crate::kit::http::{Answer, Origin, get, pass, secs, send, with};
use crate::kit::spawn;

const LANGUAGES: [&str; 3] = ["de", "en", "fr"];

fn by_language() -> Origin {
    Origin::new(|call| {
        let language = call.header("accept-language").unwrap_or("none").to_owned();
        Answer::ok("max-age=60", language).header("vary", "accept-language")
    })
}

async fn in_language(app: &App, language: &str) -> String {
    let reply = send(app, with("http://a/x", &[("accept-language", language)])).await;
    reply.text().to_owned()
}

#[tokio::test(start_paused = true)]
async fn known_variants_are_computed_once_over_all_processes() {
    let (double, origin) = (Double::new(), by_language());
    let apps = processes(&double, &origin, 4);
    everywhere(&apps, 1, |_| with("http://a/x", &[("accept-language", "it")])).await;
    pass(secs(1)).await;
    let before = origin.calls();
    let ask = |i: usize| with("http://a/x", &[("accept-language", LANGUAGES[i % 3])]);
    let replies = everywhere(&apps, 30, ask).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), LANGUAGES[i / 4 % 3]);
    }
    assert_eq!(origin.calls() - before, 3);
}

#[tokio::test(start_paused = true)]
async fn the_first_contact_of_a_crowd_is_one_call_per_variant_and_a_few() {
    let (double, origin) = (Double::new(), by_language());
    let apps = processes(&double, &origin, 4);
    let ask = |i: usize| with("http://a/x", &[("accept-language", LANGUAGES[i % 3])]);
    let replies = everywhere(&apps, 30, ask).await;
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(reply.text(), LANGUAGES[i / 4 % 3]);
    }
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_knows_nothing_finds_a_variant_through_the_index() {
    let (double, origin) = (Double::new(), by_language());
    let first = process(&double, &origin);
    for language in LANGUAGES {
        in_language(&first, language).await;
    }
    pass(secs(1)).await;
    let fresh = process(&double, &origin);
    for language in LANGUAGES {
        assert_eq!(in_language(&fresh, language).await, language);
    }
    assert_eq!(origin.calls(), 3);
    // And keeps it.
    let reply = send(&fresh, with("http://a/x", &[("accept-language", "de")])).await;
    assert!(reply.is(CacheOutcome::Hit));
    assert_eq!(in_language(&fresh, "it").await, "it");
    pass(secs(1)).await;
    assert_eq!(in_language(&first, "it").await, "it");
    assert_eq!(origin.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_varies_anew_reaches_every_process_and_the_wrong_variant_nobody() {
    let (double, origin) = (Double::new(), by_language());
    let apps = processes(&double, &origin, 3);
    for language in LANGUAGES {
        everywhere(&apps, 1, |_| with("http://a/x", &[("accept-language", language)])).await;
    }
    pass(secs(61)).await;
    // From now on by another field.
    origin.answers(|call| {
        let device = call.header("x-device").unwrap_or("none").to_owned();
        Answer::ok("max-age=60", device).header("vary", "x-device")
    });
    for round in 0..3 {
        let device = |i: usize| ["phone", "desk"][i % 2];
        let ask = |i: usize| {
            let language = LANGUAGES[i % 3];
            with("http://a/x", &[("accept-language", language), ("x-device", device(i))])
        };
        let replies = everywhere(&apps, 12, ask).await;
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.text(), device(i / 3), "round {round}");
        }
        pass(secs(1)).await;
    }
    // The three old variants, the new two, at most once in each process.
    assert!(origin.calls() <= 3 + 9, "{}", origin.calls());
    let settled = origin.calls();
    everywhere(&apps, 4, |_| with("http://a/x", &[("x-device", "phone")])).await;
    assert!(origin.calls() - settled <= 3, "{}", origin.calls() - settled);
}

#[tokio::test(start_paused = true)]
async fn a_process_keeps_no_more_variants_than_it_may_of_those_it_takes_over() {
    let (double, origin) = (Double::new(), by_language());
    let first = process(&double, &origin);
    let cache = joined(&double, settings());
    let other = cache.http_layer().max_variants(4).layer(origin.clone());
    for n in 0..20 {
        in_language(&first, &format!("l{n}")).await;
    }
    pass(secs(1)).await;
    let calls = origin.calls();
    for n in 0..20 {
        assert_eq!(in_language(&other, &format!("l{n}")).await, format!("l{n}"));
    }
    assert_eq!(origin.calls(), calls);
    // Four of them, and the index.
    assert!(cache.stats().entries <= 5, "{}", cache.stats().entries);
    let reply = send(&other, with("http://a/x", &[("accept-language", "l19")])).await;
    assert!(reply.is(CacheOutcome::Hit));
}

#[tokio::test(start_paused = true)]
async fn invalidation_reaches_every_variant_everywhere() {
    let (double, origin) = (Double::new(), by_language());
    let caches: Vec<_> = (0..2).map(|_| joined(&double, settings())).collect();
    let apps: Vec<_> = caches.iter().map(|c| c.http_layer().layer(origin.clone())).collect();
    let ask = |i: usize| with("http://a/x", &[("accept-language", LANGUAGES[i % 3])]);
    everywhere(&apps, 3, ask).await;
    caches[0].invalidate_path("/x").await;
    origin.answers(|_| Answer::ok("max-age=60", "new").header("vary", "accept-language"));
    let replies = everywhere(&apps, 3, ask).await;
    assert!(replies.iter().all(|reply| reply.text() == "new"), "{replies:?}");
}

/// The variant goes under a key of its own, with a lease that is taken when the
/// response is there already: its age still counts from the computation.
#[tokio::test(start_paused = true)]
async fn a_variant_that_was_invalidated_while_it_was_computed_is_dead_where_it_is_stored() {
    let (double, origin) = (Double::new(), by_language());
    let caches: Vec<_> = (0..2).map(|_| joined(&double, settings())).collect();
    let apps: Vec<_> = caches.iter().map(|c| c.http_layer().layer(origin.clone())).collect();
    // Both are linked.
    everywhere(&apps, 1, |_| get("http://a/other")).await;
    origin.answers(|_| {
        let old = Answer::ok("max-age=60", "old").header("vary", "accept-language");
        old.after(secs(1))
    });
    let app = apps[0].clone();
    let early = spawn(async move { in_language(&app, "de").await });
    pass(secs(1) / 2).await;
    double.lose_messages(true);
    caches[1].invalidate_path("/x").await;
    double.lose_messages(false);
    assert_eq!(early.await.unwrap(), "old");
    pass(secs(1)).await;
    origin.answers(|_| Answer::ok("max-age=60", "new").header("vary", "accept-language"));
    assert_eq!(in_language(&apps[1], "de").await, "new");
    assert_eq!(in_language(&process(&double, &origin), "de").await, "new");
}
