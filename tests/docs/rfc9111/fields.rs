//! Sections 5.1, 5.2.1 and 5.3.

use super::dates::date;
use super::lab::*;
use crate::kit::http::*;

cases! {
    "R5.1-1" "of several ages the first" the_first_age;
    "R5.1-2" "an invalid Age says nothing" invalid_ages;
    "R5.2-1" "directives are passed on, both ways" directives_are_passed_on;
    "R5.2.1.5-1" "a request with no-store leaves nothing behind" request_no_store;
    "R5.2.1.5-2" "nor a byte in memory" request_no_store_in_memory;
    "R5.2.1.7-1" "only-if-cached is answered from the store or with 504" only_if_cached;
    "R5.3-1" "invalid dates are in the past" invalid_expires;
    "R5.3-2" "max-age before Expires" max_age_before_expires;
    "R5.3-3" "s-maxage before Expires" shared_age_before_expires;
}

const FRESH: (&str, &str) = ("cache-control", "max-age=60");

async fn the_first_age() {
    let rows: [&[&str]; 4] = [&["5, 1000"], &["5", "1000"], &["5 ,x"], &["5,"]];
    for lines in rows {
        let mut fields = vec![FRESH];
        fields.extend(lines.iter().map(|line| ("age", *line)));
        let lab = Lab::saying(&fields);
        lab.get().await;
        assert_eq!(lab.get().await.header("age"), Some("5"), "{lines:?}");
    }
    assert!(!reused(&[FRESH, ("age", "1000, 5")]).await);
}

async fn invalid_ages() {
    for age in ["x", "-1", "+70", "70.5", "0x70", "7 0", "\"70\"", "", "70s", "x, 70"] {
        let lab = Lab::saying(&[FRESH, ("age", age)]);
        lab.get().await;
        assert_eq!(lab.get().await.header("age"), Some("0"), "{age}");
    }
}

async fn directives_are_passed_on() {
    let said = [
        ("cache-control", "Max-Age=60, x-unknown=\"a, b\""),
        ("cdn-cache-control", "max-age=60, x-unknown"),
        ("cache-control", "public,no-transform"),
        ("x-cache-control", "no-store"),
    ];
    let lab = Lab::saying(&said);
    let asked = [("cache-control", "max-stale=5, x-mine=\"1\""), ("cache-control", "no-transform")];
    for hit in [false, true] {
        let reply = lab.with(&asked).await;
        assert_eq!(lab.calls(), 1, "{hit}");
        assert_eq!(reply.all("cache-control"), [said[0].1, said[2].1]);
        assert_eq!(reply.all("cdn-cache-control"), [said[1].1]);
        assert_eq!(reply.all("x-cache-control"), ["no-store"]);
    }
    let seen = lab.origin.last().parts.headers;
    let seen: Vec<_> = seen.get_all("cache-control").iter().collect();
    assert_eq!(seen, [asked[0].1, asked[1].1]);
    let lab = Lab::saying(&[("cache-control", "no-store, x-unknown")]);
    assert_eq!(lab.get().await.all("cache-control"), ["no-store, x-unknown"]);
}

async fn request_no_store() {
    for said in ["no-store", "No-Store", "max-age=0, no-store", "no-store=1"] {
        let asked = [("cache-control", said)];
        let lab = Lab::saying(&[("cache-control", "public, max-age=60")]);
        assert_eq!(lab.with(&asked).await.text(), "0");
        assert_eq!(lab.with(&asked).await.text(), "1", "{said}");
        assert_eq!(lab.get().await.text(), "2", "{said}");
        assert_eq!(lab.with(&asked).await.text(), "2", "fresh in the store: may be used");
    }
}

async fn request_no_store_in_memory() {
    let asked = [("cache-control", "no-store")];
    assert!(!kept_in_memory(&[FRESH], &asked).await);
    assert!(kept_in_memory(&[FRESH], &[]).await, "the control");
}

async fn only_if_cached() {
    let asked = [("cache-control", "only-if-cached")];
    let lab = Lab::saying(&[FRESH]);
    assert_eq!(lab.with(&asked).await.status, 504);
    assert_eq!(lab.calls(), 0);
    lab.get().await;
    let hit = lab.with(&asked).await;
    assert_eq!((hit.status, hit.text()), (200, "0"));
    pass(secs(61)).await;
    assert_eq!(lab.with(&asked).await.status, 504);
    assert_eq!(lab.calls(), 1);
    // Nor does it wait for a flight.
    let slow = Lab::new(|call| say(call, 200, &[FRESH]).after(secs(5)));
    let all = crowd(&slow.app, 2, |i| with(URI, if i == 0 { &[] } else { &asked })).await;
    assert_eq!((all[0].status, all[1].status), (200, 504));
    assert_eq!(all[1].took, ms(0));
}

async fn invalid_expires() {
    let (now, before, ahead) = (date(0), date(-86_400), date(60));
    let base = [("date", &*now), ("last-modified", &*before)];
    let other = date(90);
    let invalid = ["0", "-1", "", "never", "60", &ahead[..20], &ahead.replace(':', "."), &now];
    for expires in invalid {
        assert!(!reused(&[&base[..], &[("expires", expires)]].concat()).await, "{expires}");
        let public = [("expires", expires), ("cache-control", "public")];
        assert!(!reused(&[&base[..], &public].concat()).await, "{expires}");
    }
    for second in [&*other, "0", &*ahead] {
        let twice = [("expires", &*ahead), ("expires", second)];
        assert!(!reused(&[&base[..], &twice].concat()).await, "{second}");
    }
    assert!(reused(&[&base[..], &[("expires", &*ahead)]].concat()).await, "the control");
}

async fn before_expires(directive: &str) {
    let (now, past, ahead) = (date(0), date(-60), date(600));
    fn fields<'a>(now: &'a str, said: &'a str, expires: &'a str) -> [(&'a str, &'a str); 3] {
        [("date", now), ("expires", expires), ("cache-control", said)]
    }
    let said = |argument: &str| format!("{directive}={argument}");
    for expires in [&*past, "0", ""] {
        assert!(reused_after(50, &fields(&now, &said("60"), expires)).await, "{expires}");
        assert!(!reused_after(60, &fields(&now, &said("60"), &ahead)).await);
    }
    for argument in ["0", "x", "-1", "", "60, max-age=x, s-maxage=x"] {
        assert!(!reused(&fields(&now, &said(argument), &ahead)).await, "{argument}");
    }
    assert!(
        reused(&fields(&now, "public", &ahead)).await,
        "other directives leave Expires in force"
    );
}

async fn max_age_before_expires() {
    before_expires("max-age").await;
}

async fn shared_age_before_expires() {
    before_expires("s-maxage").await;
}
