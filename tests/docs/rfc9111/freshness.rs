//! Section 4.2.

use tower_stampede::Stampede;

use super::dates::{asctime, date, in_zone, rfc850};
use super::lab::*;
use crate::kit::http::*;

cases! {
    "R4.2-1" "dates in three forms and any case" dates_in_any_case;
    "R4.2-3" "a lifetime by Expires is the same everywhere" expires_counts_from_date;
    "R4.2-4" "zones other than GMT are the past" other_zones;
    "R4.2.2-1" "nothing is guessed beside something explicit" no_guess_beside_explicit;
    "R4.2.2-1" "a guess is bounded" a_guess_is_bounded;
    "R4.2.3-1" "Age counts from the time of the request" age_counts_from_the_request;
    "R4.2.4-1" "stale where it is prohibited" stale_where_prohibited;
    "R4.2.4-2" "stale where nothing permits it" stale_without_permission;
    "R4.2.4-2" "stale within the windows of the response" stale_within_windows;
}

async fn dates_in_any_case() {
    let now = date(0);
    for ahead in [date(60), rfc850(60), asctime(60)] {
        for text in [ahead.clone(), ahead.to_lowercase(), ahead.to_uppercase()] {
            for now in [now.clone(), now.to_lowercase()] {
                let fields = [("date", &*now), ("expires", &*text)];
                assert!(reused_after(50, &fields).await, "{text}");
                assert!(!reused_after(61, &fields).await, "{text}");
            }
        }
    }
}

async fn expires_counts_from_date() {
    // Both an hour ahead of our clock: the difference is what counts.
    for (now, ahead) in [(0, 60), (3600, 3660)] {
        let (now, ahead) = (date(now), date(ahead));
        let fields = [("date", &*now), ("expires", &*ahead)];
        assert!(reused_after(50, &fields).await);
        assert!(!reused_after(61, &fields).await);
    }
    let (now, same) = (date(0), date(0));
    assert!(!reused(&[("date", &*now), ("expires", &*same)]).await);
}

async fn other_zones() {
    let now = date(0);
    for zone in ["PST", "CET", "UTC", "+0000", "-0800", "Z", ""] {
        let ahead = in_zone(86_400, zone);
        assert!(!reused(&[("date", &*now), ("expires", ahead.trim())]).await, "{zone}");
    }
}

async fn no_guess_beside_explicit() {
    let (now, before, past) = (date(0), date(-86_400), date(-60));
    let base = [("date", &*now), ("last-modified", &*before)];
    assert!(reused(&base).await);
    let explicit = [
        ("cache-control", "max-age=0"),
        ("cache-control", "s-maxage=0"),
        ("cache-control", "max-age=x"),
        ("cache-control", "max-age=-1"),
        ("cache-control", "max-age=1, max-age=60"),
        ("cdn-cache-control", "max-age=0"),
        ("expires", "0"),
        ("expires", ""),
        ("expires", &*past),
    ];
    for said in explicit {
        assert!(!reused(&[&base[..], &[said]].concat()).await, "{said:?}");
    }
    let ten = [&base[..], &[("cache-control", "max-age=10")]].concat();
    assert!(!reused_after(11, &ten).await);
}

async fn a_guess_is_bounded() {
    let now = date(0);
    let (recent, long_ago, ahead) = (date(-1000), date(-315_360_000), date(60));
    let modified = |at| [("date", &*now), ("last-modified", at)];
    assert!(reused_after(95, &modified(&*recent)).await);
    assert!(!reused_after(101, &modified(&*recent)).await);
    assert!(reused_after(86_000, &modified(&*long_ago)).await);
    assert!(!reused_after(86_401, &modified(&*long_ago)).await);
    assert!(!reused(&modified(&*ahead)).await);
    assert!(!reused(&modified("yesterday")).await);
}

async fn age_counts_from_the_request() {
    let lab = Lab::new(|call| {
        let fields = [("cache-control", "max-age=20"), ("age", "10")];
        say(call, 200, &fields).after(secs(5))
    });
    lab.get().await;
    pass(secs(2)).await;
    assert_eq!(lab.get().await.header("age"), Some("17"));
    pass(secs(3)).await;
    assert_eq!(lab.get().await.text(), "1", "10 + 5 + 5 is no longer fresh");
}

/// Stored, expired, and then everything a client may get while the origin
/// fails.
async fn after_expiry(lab: &Lab, failure: fn(&Call) -> Answer) -> String {
    assert_eq!(lab.get().await.text(), "0");
    pass(secs(15)).await;
    lab.origin.answers(failure);
    match lab.attempt(&[("cache-control", "max-stale")]).await {
        Ok(reply) => reply.text().to_owned(),
        Err(error) => error.to_string(),
    }
}

const FAILURES: [fn(&Call) -> Answer; 4] = [
    |call| say(call, 408, &[]),
    |call| say(call, 500, &[]),
    |call| say(call, 503, &[]),
    |_| Answer::error(),
];

/// Whether the answer is given although it is 5 s over.
async fn served_stale(windows: bool, said: &str) -> bool {
    let mut served = Vec::new();
    for failure in FAILURES {
        let window = secs(if windows { 60 } else { 0 });
        let cache = Stampede::builder("test").origin_only().build().unwrap();
        let layer = cache.http_layer().stale_for(window).stale_if_error(window);
        let fields = owned(&[("cache-control", said), ("etag", "\"a\"")]);
        let lab = Lab::with_layer(layer, move |call| {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
            say(call, 200, &fields)
        });
        served.push(after_expiry(&lab, failure).await == "0");
    }
    assert!(served.iter().all(|one| *one == served[0]), "{said}: {served:?}");
    served[0]
}

async fn stale_where_prohibited() {
    let windows = "stale-while-revalidate=60, stale-if-error=60";
    assert!(served_stale(true, "max-age=10").await, "the control");
    for said in ["no-cache", "must-revalidate", "proxy-revalidate", "Must-Revalidate"] {
        assert!(!served_stale(true, &format!("max-age=10, {said}")).await, "{said}");
        assert!(!served_stale(false, &format!("max-age=10, {said}, {windows}")).await, "{said}");
    }
    assert!(!served_stale(true, "s-maxage=10").await);
    assert!(!served_stale(true, "s-maxage=10, must-revalidate, stale-if-error=60").await);
}

async fn stale_without_permission() {
    assert!(!served_stale(false, "max-age=10").await);
    assert!(!served_stale(false, "max-age=10, stale-if-error=4, stale-while-revalidate=4").await);
    assert!(!served_stale(false, "max-age=10, stale-if-error=x, stale-while-revalidate").await);
    let ahead = [("date", &*date(0)), ("expires", &*date(10))];
    let lab = Lab::saying(&ahead);
    assert_ne!(after_expiry(&lab, FAILURES[0]).await, "0");
}

async fn stale_within_windows() {
    assert!(served_stale(false, "max-age=10, stale-if-error=6").await);
    assert!(served_stale(false, "max-age=10, stale-while-revalidate=6").await);
    // The one liberal reading: the same field that says s-maxage permits it.
    assert!(served_stale(false, "s-maxage=10, stale-if-error=6").await);
    assert!(served_stale(false, "s-maxage=10, stale-while-revalidate=6").await);
}
