//! What values weigh, and what happens to types that cannot be weighed.

use std::sync::Arc;

use tower_stampede::{Builder, Stampede, Weigh};

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

async fn entries_of<V: Clone + Send + Sync + 'static>(builder: Builder<V>, value: V) -> u64 {
    let cache = builder.build().unwrap();
    for n in 0..12_000_u64 {
        cache.put(n, value.clone()).await;
    }
    cache.stats().entries
}

#[tokio::test(start_paused = true)]
async fn values_that_cannot_be_weighed_are_ten_thousand_at_most() {
    let page = Page(Vec::new());
    let entries = entries_of(settings(), page.clone()).await;
    assert!((9_990..=10_000).contains(&entries), "{entries}");
    assert_eq!(entries_of(settings().weigh(), page.clone()).await, 12_000);
    assert_eq!(entries_of(settings().weigher(|_| 0), page.clone()).await, 12_000);
    assert_eq!(entries_of(settings().max_entries(11_000), page).await, 11_000);
    assert_eq!(entries_of(settings(), String::new()).await, 12_000);
}

/// Without a way to weigh the values the number of entries is bounded too, at 10,000. With fewer
/// bytes than that, the bound on the bytes is the lower one.
#[tokio::test(start_paused = true)]
async fn max_bytes_holds_for_values_that_cannot_be_weighed_also_where_it_is_small() {
    for max_bytes in [1000, 9_999, 10_000, 15_000, 100_000] {
        let cache: Stampede<Page> = settings().max_bytes(max_bytes).build().unwrap();
        for n in 0..300_u64 {
            cache.put(n, Page(Vec::new())).await;
        }
        let stats = cache.stats();
        assert!(stats.bytes <= max_bytes, "{} bytes in {} entries", stats.bytes, stats.entries);
        assert!(stats.entries > 0, "{max_bytes}");
    }
}

#[test]
fn one_warning_says_that_values_cannot_be_weighed_and_what_to_do() {
    use std::sync::Mutex;

    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).finish();
    let _listening = crate::kit::log::listen(subscriber);
    let _known: Stampede<String> = settings().build().unwrap();
    let _bounded: Stampede<Page> = settings().max_entries(10).build().unwrap();
    assert_eq!(lines.0.lock().unwrap().len(), 0);
    let _unknown: Stampede<Page> = settings().build().unwrap();
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("WARN").count(), 1, "{text}");
    for part in ["Page", "10000", "Weigh", "weigher", "max_entries"] {
        assert!(text.contains(part), "{part}: {text}");
    }
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
