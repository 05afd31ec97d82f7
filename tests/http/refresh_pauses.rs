//! After a refresh whose response is not stored, refreshes of that entry pause: for
//! how long, and what crowds cost meanwhile.

use axum::body::Body;
use tower_stampede::CacheOutcome::*;

use crate::kit::http::*;
use crate::kit::spawn;

const SWR: &str = "max-age=10, stale-while-revalidate=600";

/// The pause belongs to what was stored then.
#[tokio::test(start_paused = true)]
async fn what_was_filled_anew_is_refreshed_though_refreshes_of_the_old_one_were_declined() {
    let origin = Origin::new(|call| Answer::ok(SWR, call.n.to_string()));
    let cache = origin_only();
    let app = layered(cache.http_layer(), &origin);
    send(&app, get("/page")).await;
    origin.answers(|_| Answer::status(302).header("location", "/maintenance"));
    pass(secs(11)).await;
    for _ in 0..700 {
        assert!(send(&app, get("/page")).await.is(Stale));
        pass(ms(100)).await;
    }
    // The maintenance is over, and the page is another one.
    origin.answers(|call| Answer::ok(SWR, call.n.to_string()));
    cache.invalidate_path("/page").await;
    assert_eq!(send(&app, get("/page")).await.status, 200);
    let before = origin.calls();
    pass(secs(11)).await;
    for _ in 0..20 {
        send(&app, get("/page")).await;
        pass(ms(100)).await;
    }
    assert_eq!(origin.calls() - before, 1, "one refresh within 2 s");
}

/// One flight key for two classes: the pause of the one holds the other back.
#[tokio::test(start_paused = true)]
async fn clients_without_a_credential_do_not_keep_an_entry_from_being_refreshed() {
    let origin = Origin::new(|call| match call.header("x-api-key") {
        Some(_) => {
            Answer::ok("public, max-age=10, stale-while-revalidate=3600", call.n.to_string())
        }
        None => Answer::status(401),
    });
    let app = app(&origin);
    let keyed = || with("/page", &[("x-api-key", "1")]);
    assert_eq!(send(&app, keyed()).await.text(), "0");
    pass(secs(11)).await;
    // Nine in ten have none.
    for i in 0..3000 {
        let one = if i % 10 == 9 { keyed() } else { get("/page") };
        send(&app, one).await;
        pass(ms(100)).await;
    }
    let reply = send(&app, keyed()).await;
    assert_ne!(reply.text(), "0", "after five minutes: {}", reply.cache_status());
}

/// A crowd that comes while the last refresh is under way.
#[tokio::test(start_paused = true)]
async fn a_crowd_at_the_end_of_the_stale_window_costs_two_calls() {
    let origin = Origin::new(|call| match call.header("user-agent") {
        Some(_) => Answer::ok("max-age=10, stale-while-revalidate=10", "page"),
        None => Answer::status(302).after(secs(2)),
    });
    let app = app(&origin);
    let ask = |_| with("/page", &[("user-agent", "x")]);
    send(&app, ask(0)).await;
    pass(secs(19)).await;
    assert!(send(&app, ask(0)).await.is(Stale));
    pass(ms(1200)).await;
    let before = origin.calls();
    let replies = crowd(&app, 50, ask).await;
    assert!(replies.iter().all(|reply| reply.text() == "page"));
    assert_eq!(origin.calls() - before, 1, "{:?}", slowest(&replies));
}

/// The same where all that comes may not be stored: bounded, and not one by one.
#[tokio::test(start_paused = true)]
async fn a_crowd_behind_a_declined_refresh_does_not_queue() {
    for status in [302, 404, 403] {
        let origin = Origin::new(|_| Answer::ok("max-age=10, stale-while-revalidate=10", "page"));
        let app = app(&origin);
        send(&app, get("/page")).await;
        origin.answers(move |_| {
            Answer::status(status).header("cache-control", "no-store").after(secs(2))
        });
        pass(secs(19)).await;
        assert!(send(&app, get("/page")).await.is(Stale));
        pass(ms(1200)).await;
        let replies = crowd(&app, 50, |_| get("/page")).await;
        assert!(slowest(&replies) < secs(8), "{status} {:?}", slowest(&replies));
        assert!(origin.calls() <= 52, "{status} {}", origin.calls());
    }
}

/// How long the pause lasts, and that without it there is none.
#[tokio::test(start_paused = true)]
async fn a_pause_of_refreshes_ends_with_the_entry() {
    let mut waited = Vec::new();
    for declined in [false, true] {
        let origin = Origin::new(|call| Answer::ok(SWR, call.n.to_string()));
        let cache = origin_only();
        let app = layered(cache.http_layer(), &origin);
        send(&app, get("/page")).await;
        if declined {
            origin.answers(|_| Answer::status(302).header("location", "/maintenance"));
        }
        pass(secs(11)).await;
        for _ in 0..700 {
            send(&app, get("/page")).await;
            pass(ms(100)).await;
        }
        origin.answers(|call| Answer::ok(SWR, call.n.to_string()));
        cache.invalidate_path("/page").await;
        let new = send(&app, get("/page")).await;
        assert_eq!(new.status, 200);
        let before = origin.calls();
        pass(secs(11)).await;
        let mut tenths = 0;
        while origin.calls() == before && tenths < 1000 {
            send(&app, get("/page")).await;
            pass(ms(100)).await;
            tenths += 1;
        }
        waited.push((declined, tenths));
    }
    assert!(waited.iter().all(|(_, tenths)| *tenths < 20), "declined, tenths: {waited:?}");
}

/// Who belongs to what a refresh brings waits for it.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_comes_while_a_refresh_another_vary_arrives_is_no_call() {
    let origin = Origin::new(|_| {
        Answer::ok("max-age=10, stale-while-revalidate=10", "old").header("vary", "accept-language")
    });
    let app = app(&origin);
    let ask = |_| with("/page", &[("accept-language", "de")]);
    send(&app, ask(0)).await;
    origin.answers(|_| {
        let chunks = futures_util::stream::unfold(0, |n| async move {
            tokio::time::sleep(ms(500)).await;
            (n < 6).then(|| (Ok::<_, std::io::Error>("new "), n + 1))
        });
        Answer::ok("max-age=10, stale-while-revalidate=10", Body::from_stream(chunks))
            .header("vary", "accept-language, x-theme")
    });
    pass(secs(19)).await;
    assert!(send(&app, ask(0)).await.is(Stale));
    pass(ms(1500)).await;
    let before = origin.calls();
    assert_eq!(before, 2);
    let replies = crowd(&app, 50, ask).await;
    assert!(replies.iter().all(|reply| reply.text().starts_with("new")), "{:?}", replies[0]);
    assert_eq!(origin.calls() - before, 0);
}

/// The control: a crowd joins a leader in the foreground.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_comes_while_a_miss_with_another_vary_arrives_is_no_call() {
    let origin = Origin::new(|_| Answer::ok("max-age=10", "old").header("vary", "accept-language"));
    let app = app(&origin);
    let ask = |_| with("/page", &[("accept-language", "de")]);
    send(&app, ask(0)).await;
    origin.answers(|_| {
        let chunks = futures_util::stream::unfold(0, |n| async move {
            tokio::time::sleep(ms(500)).await;
            (n < 6).then(|| (Ok::<_, std::io::Error>("new "), n + 1))
        });
        Answer::ok("max-age=10", Body::from_stream(chunks))
            .header("vary", "accept-language, x-theme")
    });
    pass(secs(19)).await;
    let first = spawn({
        let app = app.clone();
        async move { send(&app, ask(0)).await }
    });
    pass(ms(1500)).await;
    assert_eq!(origin.calls(), 2);
    let replies = crowd(&app, 50, ask).await;
    assert!(replies.iter().all(|reply| reply.text().starts_with("new")));
    assert_eq!(origin.calls(), 2);
    first.await.unwrap();
}

/// The stale window of an entry that is refreshed for no client: a layer used twice, one HEAD.
#[tokio::test(start_paused = true)]
async fn a_pause_after_a_full_stale_window_does_not_hold_the_next_entry_back() {
    let origin = Origin::new(|call| match call.header("user-agent") {
        // The refresh is sent on to where a browser is asked for.
        None => Answer::status(302).header("location", "/browsers"),
        Some(_) => Answer::ok("max-age=10, stale-while-revalidate=60", call.n.to_string()),
    });
    let app = app(&origin);
    let ask = || with("/page", &[("user-agent", "x")]);
    send(&app, ask()).await;
    for _ in 0..750 {
        send(&app, ask()).await;
        pass(ms(100)).await;
    }
    // The proxy between learns to do without.
    origin.answers(|call| Answer::ok("max-age=10, stale-while-revalidate=60", call.n.to_string()));
    let new = send(&app, ask()).await;
    assert!(new.is(Hit), "filled in the foreground: {}", new.cache_status());
    let before = origin.calls();
    pass(secs(10)).await;
    let mut tenths = 0;
    while origin.calls() == before && tenths < 1000 {
        send(&app, ask()).await;
        pass(ms(100)).await;
        tenths += 1;
    }
    assert!(tenths < 30, "{tenths} tenths of a second without a refresh");
}
