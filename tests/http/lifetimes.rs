//! From which moment a lifetime counts.
//!
//! A lifetime that the application chose (`ttl`, `Computed::ttl`, `CacheFor`)
//! counts from the end of the computation: for HTTP, from the arrival of the
//! head of the response. A lifetime that the origin states in its fields counts
//! as RFC 9111, 4.2.3 says, so the response delay is part of the age. The order
//! against invalidations counts from the start.

use std::time::Duration;

use crate::kit::origin::*;
use crate::kit::spawn;
use tower_stampede::{Computed, Stampede};

/// Shorter than the work, so that a lifetime that counts from the start of the
/// computation is over before the value arrives.
const LIFETIME: Duration = Duration::from_millis(1500);
const WORK: Duration = Duration::from_secs(2);

fn short_lived() -> Stampede<u64> {
    settings().ttl(LIFETIME).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_ttl_shorter_than_the_work_still_gives_hits() {
    let (cache, origin) = (short_lived(), Origin::taking(WORK));
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    pass(LIFETIME - MS).await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    pass(MS).await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_of_the_value_itself_counts_from_the_end_of_the_computation() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let origin = Origin::taking(WORK);
    let load = || {
        let origin = origin.clone();
        cache.get_or_compute_with("k", move || async move {
            Ok::<_, OriginError>(Computed::new(origin.load().await?).ttl(LIFETIME))
        })
    };
    assert_eq!(load().await.unwrap(), 1);
    pass(LIFETIME - MS).await;
    assert_eq!(load().await.unwrap(), 1);
    pass(MS).await;
    assert_eq!(load().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_lifetime_of_an_absent_value_counts_from_the_end_of_the_computation() {
    let settings = Stampede::<Option<u64>>::builder("test").ttl(MINUTE).jitter(0.0);
    let cache = settings.negative_ttl(LIFETIME).build().unwrap();
    let origin = Origin::taking(WORK);
    let load = || {
        let origin = origin.clone();
        cache.get_or_compute("k", move || async move { origin.load().await.map(|_| None) })
    };
    load().await.unwrap();
    pass(LIFETIME - MS).await;
    load().await.unwrap();
    assert_eq!(origin.calls(), 1);
    pass(MS).await;
    load().await.unwrap();
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn jitter_shortens_the_time_after_the_computation() {
    let cache: Stampede<u64> = settings().ttl(LIFETIME).jitter(0.1).build().unwrap();
    let origin = Origin::taking(WORK);
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    pass(LIFETIME.mul_f64(0.9) - MS).await;
    assert_eq!(cache.get("k").await, Some(1));
    pass(LIFETIME.mul_f64(0.1) + MS).await;
    assert_eq!(cache.get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stale_window_begins_where_the_lifetime_ends() {
    let cache: Stampede<u64> = settings().ttl(LIFETIME).stale_for(SECOND).build().unwrap();
    let origin = Origin::taking(WORK);
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    pass(LIFETIME + SECOND - MS).await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1);
    assert_eq!(origin.calls(), 1, "the refresh has not begun");
    pass(MS).await;
    assert_eq!(origin.calls(), 2, "the value was stale");
    assert_eq!(cache.get("k").await, None, "the stale window is over");
}

#[tokio::test(start_paused = true)]
async fn a_ttl_of_zero_is_served_only_in_a_stale_window_which_counts_from_the_end() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let origin = Origin::taking(WORK);
    let load = || {
        let origin = origin.clone();
        cache.get_or_compute_with("k", move || async move {
            let value = Computed::new(origin.load().await?);
            Ok::<_, OriginError>(value.ttl(Duration::ZERO).stale_for(SECOND))
        })
    };
    load().await.unwrap();
    pass(SECOND - MS).await;
    assert_eq!(load().await.unwrap(), 1);
    pass(MS).await;
    assert_eq!(origin.calls(), 2, "the value is never fresh, so its first use starts a refresh");
}

#[tokio::test(start_paused = true)]
async fn marking_stale_ends_a_lifetime_that_counts_from_the_end() {
    let cache: Stampede<u64> = settings().ttl(LIFETIME).stale_for(SECOND).build().unwrap();
    let origin = Origin::taking(WORK);
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    pass(SECOND).await;
    assert!(cache.mark_stale("k").await.local);
    pass(SECOND - MS).await;
    assert_eq!(cache.get_or_compute("k", origin.compute()).await.unwrap(), 1, "still stale");
    pass(MS).await;
    assert_eq!(origin.calls(), 2, "a refresh has begun");
    assert_eq!(cache.get("k").await, None, "the stale window began with the mark");
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_during_the_computation_ends_its_result() {
    for by_tag in [false, true] {
        let (cache, origin) = (short_lived(), Origin::taking(WORK));
        let load = || {
            let (cache, origin) = (cache.clone(), origin.clone());
            spawn(async move {
                let work = || async move {
                    Ok::<_, OriginError>(Computed::new(origin.load().await?).tag("t"))
                };
                cache.get_or_compute_with("k", work).await.unwrap()
            })
        };
        let first = load();
        pass(SECOND).await;
        if by_tag {
            cache.invalidate_tag("t").await;
        } else {
            cache.invalidate("k").await;
        }
        assert_eq!(first.await.unwrap(), 1);
        assert_eq!(cache.get("k").await, None, "by tag: {by_tag}");
        assert_eq!(load().await.unwrap(), 2, "by tag: {by_tag}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_counts_from_the_put() {
    let cache = short_lived();
    pass(MINUTE).await;
    cache.put("k", 7).await;
    pass(LIFETIME - MS).await;
    assert_eq!(cache.get("k").await, Some(7));
    pass(MS).await;
    assert_eq!(cache.get("k").await, None);
}

#[tokio::test(start_paused = true)]
async fn an_early_refresh_falls_into_the_last_part_of_the_time_after_the_computation() {
    let settings = settings().ttl(8 * SECOND).early_refresh(1000.0).early_refresh_share(0.25);
    let cache: Stampede<u64> = settings.build().unwrap();
    let origin = Origin::taking(10 * SECOND);
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    // With work this long and a `beta` this large, practically every reader in
    // the share draws the refresh.
    pass(6 * SECOND - MS).await;
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    all_have_run().await;
    assert_eq!(origin.calls(), 1, "before the last quarter");
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    all_have_run().await;
    assert_eq!(origin.calls(), 2, "in the last quarter");
}

mod between_processes {
    use super::*;
    use crate::kit::remote::*;
    use tower_stampede::Builder;
    use tower_stampede::remote::Double;

    fn short_lived() -> Builder<u64> {
        settings().ttl(LIFETIME)
    }

    /// What the translation between the clocks of processes may cost.
    const CLOCKS: Duration = Duration::from_millis(5);

    #[tokio::test(start_paused = true)]
    async fn a_value_of_another_process_is_fresh_until_the_same_moment() {
        let double = Double::new();
        let processes = Process::several_with(3, &double, short_lived).await;
        let origin = Origin::taking(WORK);
        assert_eq!(processes[0].load(&origin).await, 1);
        all_have_run().await;
        pass(LIFETIME - CLOCKS).await;
        assert_eq!(processes[1].load(&origin).await, 1, "read from the remote at the end");
        pass(CLOCKS).await;
        assert_eq!(processes[1].get("k").await, None, "its copy has ended");
        assert_eq!(processes[2].get("k").await, None, "what stands in the remote has ended");
        assert_eq!(processes[0].get("k").await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_waits_for_another_takes_its_value() {
        let double = Double::new();
        let processes = Process::several_with(2, &double, short_lived).await;
        let origin = Origin::taking(WORK);
        let callers = herd(100, |i| {
            let (process, origin) = (processes[i % 2].clone(), origin.clone());
            async move { process.load(&origin).await }
        });
        assert!(callers.await.iter().all(|value| *value == 1));
        pass(SECOND).await;
        assert_eq!(processes[1].load(&origin).await, 1);
        assert_eq!(origin.calls(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_put_is_fresh_until_the_same_moment_in_another_process() {
        let double = Double::new();
        let processes = Process::several_with(2, &double, short_lived).await;
        pass(SECOND).await;
        processes[0].put("k", 7).await;
        pass(LIFETIME - CLOCKS).await;
        assert_eq!(processes[1].get("k").await, Some(7));
        pass(CLOCKS).await;
        assert_eq!(processes[1].get("k").await, None);
    }
}

mod over_http {
    use super::{LIFETIME, WORK};
    use crate::kit::http::*;
    use std::time::Duration;
    use tower_layer::Layer;
    use tower_stampede::CacheOutcome::*;
    use tower_stampede::{CacheFor, Stampede};

    const MS: Duration = Duration::from_millis(1);

    fn slow(answer: Answer) -> Answer {
        answer.after(WORK)
    }

    /// Asserts that a response is fresh for [`LIFETIME`] after its arrival.
    async fn assert_fresh_for_the_lifetime(
        app: &tower_stampede::HttpService<Origin>,
        origin: &Origin,
    ) {
        send(app, get("/")).await;
        pass(LIFETIME - MS).await;
        assert!(send(app, get("/")).await.is(Hit));
        pass(MS).await;
        assert!(!send(app, get("/")).await.is(Hit));
        assert_eq!(origin.calls(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_for_counts_from_the_arrival_of_the_response() {
        let said = || CacheFor::new(LIFETIME);
        let origin = Origin::new(move |_| slow(Answer::status(200).body("a").extension(said())));
        assert_fresh_for_the_lifetime(&app(&origin), &origin).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_ttl_of_a_layer_counts_from_the_arrival_of_the_response() {
        let origin = Origin::new(|_| slow(Answer::status(200).body("a")));
        let cache = Stampede::builder("test").ttl(LIFETIME).jitter(0.0).build().unwrap();
        assert_fresh_for_the_lifetime(&layered(cache.http_layer(), &origin), &origin).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lifetime_of_our_own_counts_from_the_arrival_whatever_age_the_response_has() {
        // What `Date` and `Age` say of the time before the arrival counts in
        // the field `Age` of a hit, and not against a lifetime of our own.
        let said = || CacheFor::new(LIFETIME);
        let origin = Origin::new(move |_| {
            slow(Answer::status(200).body("a").extension(said()).header("age", "20"))
        });
        let app = app(&origin);
        send(&app, get("/")).await;
        pass(LIFETIME - MS).await;
        let hit = send(&app, get("/")).await;
        assert!(hit.is(Hit));
        assert_eq!(hit.header("age"), Some("21"));
        pass(MS).await;
        assert!(!send(&app, get("/")).await.is(Hit));
    }

    #[tokio::test(start_paused = true)]
    async fn age_counts_from_the_request_also_where_the_lifetime_is_our_own() {
        let origin = Origin::new(|_| slow(Answer::status(200).body("a")));
        let app = layered(with_ttl(60).http_layer(), &origin);
        send(&app, get("/")).await;
        pass(secs(10)).await;
        assert_eq!(send(&app, get("/")).await.header("age"), Some("12"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_stale_at_its_arrival_where_the_origin_states_less_than_it_took() {
        let origin = Origin::new(|_| slow(Answer::ok("max-age=1", "a")));
        let app = app(&origin);
        let replies = crowd(&app, 10, |_| get("/")).await;
        assert!(replies.iter().all(|reply| reply.text() == "a"));
        assert_eq!(origin.calls(), 1, "those who waited share it");
        assert!(!send(&app, get("/")).await.is(Hit));
        assert_eq!(origin.calls(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_stale_window_of_a_cache_for_begins_where_its_lifetime_ends() {
        let said = || CacheFor::new(LIFETIME).stale_for(secs(1));
        let origin = Origin::new(move |_| slow(Answer::status(200).body("a").extension(said())));
        let app = app(&origin);
        send(&app, get("/")).await;
        pass(LIFETIME + secs(1) - MS).await;
        assert!(send(&app, get("/")).await.is(Stale));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_never_fresh_is_validated_for_each_crowd() {
        // With a lifetime of zero no request takes a validation that began before it came.
        let said = || CacheFor::new(Duration::ZERO);
        let origin = Origin::new(move |_| {
            slow(Answer::status(200).header("etag", "\"1\"").body("a").extension(said()))
        });
        let app = app(&origin);
        send(&app, get("/")).await;
        let replies = crowd(&app, 3, |_| get("/")).await;
        assert_eq!(slowest(&replies), WORK);
        assert_eq!(origin.calls(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_of_another_process_is_fresh_until_the_same_moment() {
        use tower_stampede::remote::{Double, RemoteSettings};
        let double = Double::new();
        let said = || CacheFor::new(LIFETIME);
        let origin = Origin::new(move |_| {
            slow(Answer::status(200).body("a").extension(said()).header("age", "20"))
        });
        let process = || {
            let settings = Stampede::builder("web").origin_only();
            let cache = settings.remote(double.process(), RemoteSettings::new()).build().unwrap();
            cache.http_layer().layer(origin.clone())
        };
        let apps = [process(), process(), process()];
        send(&apps[0], get("/")).await;
        // The drift that two clocks are granted over the age costs the rest.
        pass(LIFETIME - 20 * MS).await;
        let hit = send(&apps[1], get("/")).await;
        assert!(hit.is(Hit));
        assert_eq!(hit.header("age"), Some("21"));
        pass(20 * MS).await;
        assert!(!send(&apps[1], get("/")).await.is(Hit));
        assert_eq!(origin.calls(), 2);
    }
}
