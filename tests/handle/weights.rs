//! What values weigh, and how types that are not weighed are estimated.

use std::sync::Arc;

use tower_stampede::{Builder, Stampede, Weigh};

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::*;

/// What one entry of this value weighs.
async fn weight<V: Clone + Send + Sync + 'static>(
    set: impl FnOnce(Builder<V>) -> Builder<V>,
    value: V,
) -> u64 {
    let cache = set(settings()).build().unwrap();
    cache.put("k", value).await;
    assert_eq!(cache.stats().entries, 1);
    cache.stats().bytes
}

const LARGE: usize = 100_000;

/// A type that the cache does not know.
#[derive(Clone)]
struct Page(Vec<String>);

impl Weigh for Page {
    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

#[tokio::test(start_paused = true)]
async fn strings_and_bytes_are_weighed_without_a_weigher() {
    let text = "x".repeat(LARGE);
    let weights = [
        weight(|it| it, text.clone()).await,
        weight(|it| it, Some(text.clone())).await,
        weight(|it| it, text.clone().into_bytes()).await,
        weight(|it| it, bytes::Bytes::from(text.clone())).await,
        weight(|it| it, Arc::<str>::from(text.as_str())).await,
        weight(|it| it, Arc::<[u8]>::from(text.as_bytes())).await,
        weight(|it| it, Arc::new(text.clone())).await,
        weight(|it| it, Box::<str>::from(text.as_str())).await,
    ];
    let least = LARGE as u64;
    assert!(weights.iter().all(|it| (least..least + 1000).contains(it)), "{weights:?}");
    let inline = weight(|it| it, [0_u8; 5000]).await;
    assert!((5000..6000).contains(&inline), "a type that owns nothing weighs its size: {inline}");
}

#[tokio::test(start_paused = true)]
async fn other_types_are_weighed_by_their_trait_or_a_weigher() {
    let page = Page(vec!["x".repeat(LARGE); 2]);
    let by_trait = weight(Builder::weigh, page.clone()).await;
    let by_hand = weight(|it| it.weigher(|page| page.0.heap_bytes()), page).await;
    assert_eq!(by_trait, by_hand);
    assert!((2 * LARGE..2 * LARGE + 1000).contains(&(by_trait as usize)), "{by_trait}");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_strings_of_a_mebibyte_stay_within_the_bound() {
    let cache: Stampede<String> = settings().max_bytes(64 << 20).build().unwrap();
    for n in 0..1000_u64 {
        cache.put(n, "x".repeat(1 << 20)).await;
    }
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.evictions), (63, 937));
    assert!(stats.bytes <= 64 << 20);
}

/// A value as applications have them, of a type that the cache does not know.
#[derive(Clone)]
struct User {
    name: String,
    mail: String,
}

impl Weigh for User {
    fn heap_bytes(&self) -> usize {
        self.name.heap_bytes() + self.mail.heap_bytes()
    }
}

fn user(bytes: usize) -> User {
    User { name: "x".repeat(bytes / 2), mail: "x".repeat(bytes / 2) }
}

#[tokio::test(start_paused = true)]
async fn twenty_thousand_small_users_that_are_not_weighed_are_read_twice_and_loaded_once() {
    let cache: Stampede<User> = settings().build().unwrap();
    for id in (0..20_000_u64).chain(0..20_000) {
        let load = || async { Ok::<_, OriginError>(user(40)) };
        cache.get_or_compute(id, load).await.unwrap();
    }
    let stats = cache.stats();
    assert_eq!((stats.computations, stats.hits, stats.evictions), (20_000, 20_000, 0));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_not_weighed_counts_with_its_size_and_an_assumed_kibibyte() {
    let assumed = weight(|it| it, user(100_000)).await;
    assert_eq!(assumed, weight(|it| it.weigher(|_| 1024), user(0)).await);
    let weighed = weight(Builder::weigh, user(100_000)).await;
    assert!((100_000..101_000).contains(&weighed), "{weighed}");
    let bounded = weight(|it| it.max_entries(1 << 20), user(0)).await;
    assert!(bounded < 500, "a bound on the number adds nothing: {bounded}");
}

#[tokio::test(start_paused = true)]
async fn max_bytes_holds_for_estimated_weights() {
    for max_bytes in [2000, 9_999, 100_000] {
        let cache: Stampede<Page> = settings().max_bytes(max_bytes).build().unwrap();
        for n in 0..300_u64 {
            cache.put(n, Page(Vec::new())).await;
        }
        let stats = cache.stats();
        assert!(stats.bytes <= max_bytes, "{} bytes in {} entries", stats.bytes, stats.entries);
        assert!(stats.entries > 0, "{max_bytes}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_warning_says_that_a_full_cache_only_estimates_and_what_to_do() {
    let log = TextLog::default();
    let _listening = log.listen(tracing::Level::WARN);
    let small = || settings::<Page>().max_bytes(10_000);
    let fill = async |cache: Stampede<Page>| {
        for n in 0..100_u64 {
            cache.put(n, Page(Vec::new())).await;
            let _ = cache.stats();
        }
    };
    fill(settings().build().unwrap()).await;
    fill(small().weigh().build().unwrap()).await;
    fill(small().max_entries(10).build().unwrap()).await;
    assert_eq!(log.text(), "", "not full, weighed, or bounded by number");
    fill(small().build().unwrap()).await;
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let parts = ["WARN", "Page", "assumed_bytes=1024", "Weigh", "weigher", "max_entries"];
    assert_says(&lines[0], &parts);
}

// Many texts are written piece by piece, and end with room to spare.
#[tokio::test(start_paused = true)]
async fn a_computed_value_is_stored_without_its_spare_capacity() {
    let roomy = || async {
        let mut text = String::with_capacity(LARGE);
        text.push('x');
        Ok::<_, OriginError>(text)
    };
    for form in 0..3 {
        let cache: Stampede<String> = settings().build().unwrap();
        match form {
            0 => drop(cache.get_or_compute("k", roomy).await.unwrap()),
            1 => drop(cache.get_or_compute_scoped("k", roomy).await.unwrap()),
            _ => drop(cache.refresh("k", roomy).await.unwrap()),
        }
        let bytes = cache.stats().bytes;
        assert!(bytes < 1000, "form {form}: the entry weighs {bytes} bytes");
    }
}
