//! What a process leaves to the next one.

use std::time::Duration;

use tower_stampede::{Manifest, Stampede};

use crate::kit::origin::*;

/// A cache with keys that took so many milliseconds and were used so often.
async fn used(keys: &[(&str, u64, u32)]) -> Stampede<u64> {
    let cache: Stampede<u64> = settings().build().unwrap();
    for (key, takes, uses) in keys {
        let origin = Origin::taking(Duration::from_millis(*takes));
        cache.get_or_compute(*key, origin.compute()).await.unwrap();
        for _ in 0..*uses {
            cache.get(*key).await.unwrap();
        }
    }
    cache
}

fn keys(manifest: &Manifest) -> Vec<String> {
    manifest.keys().collect()
}

#[tokio::test(start_paused = true)]
async fn the_keys_that_are_worth_the_most_come_first_and_the_rest_is_left_out() {
    let cache =
        used(&[("cheap", 1, 100), ("unused", 500, 0), ("slow", 1000, 3), ("b", 1, 1)]).await;
    let all = cache.manifest(100).await;
    assert_eq!(keys(&all), ["slow", "unused", "cheap", "b"]);
    assert_eq!(keys(&cache.manifest(2).await), ["slow", "unused"]);
    assert!(cache.manifest(0).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_read_and_keys_of_any_bytes_among_it() {
    let cache = used(&[("a b\n%", 5, 1), ("é", 6, 1)]).await;
    cache.put(&[0_u8, 255, b' '][..], 1).await;
    cache.put(("of two", 7), 1).await;
    let manifest = cache.manifest(100).await;
    let read = Manifest::read(&manifest.to_string(), "test").unwrap();
    assert_eq!((&read, read.len()), (&manifest, 4));
    assert!(keys(&read).contains(&"a b\n%".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn what_has_expired_or_was_invalidated_is_not_in_it() {
    let cache = used(&[("old", 5, 1)]).await;
    pass(2 * MINUTE).await;
    cache.put("ended", 1).await;
    cache.put("there", 1).await;
    cache.invalidate("ended").await;
    assert_eq!(keys(&cache.manifest(100).await), ["there"]);
}

#[tokio::test(start_paused = true)]
async fn a_manifest_of_a_stranger_or_another_version_or_a_part_of_one_is_refused_with_the_reason() {
    let text = used(&[("a", 5, 1), ("b", 6, 1)]).await.manifest(100).await.to_string();
    let refused = |text: &str, cache| Manifest::read(text, cache).unwrap_err().to_string();
    let cases = [
        (text.clone(), "other", "is of the cache `test`, and not of `other`"),
        (text.replace("manifest-1", "manifest-2"), "test", "`tower-stampede-manifest-2`"),
        ("hello".into(), "test", "is no manifest"),
        (String::new(), "test", "is no manifest"),
        (text.replace("5000 1 a\n", ""), "test", "is not whole"),
        (text[..text.len() - 1].into(), "test", "is not whole"),
        (text.replace("6000 1", "6000"), "test", "cannot be read at line 2"),
        (text.replace("6000 1", "-6000 1"), "test", "cannot be read at line 2"),
        (format!("{text}1 1 %G0\n"), "test", "cannot be read at line 4"),
        (format!("{text}1 1 x\n"), "test", "is not whole"),
    ];
    for (text, cache, reason) in cases {
        let said = refused(&text, cache);
        assert!(said.contains(reason) && said.contains("manifest"), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_text_that_begins_with_a_nul_is_read_as_it_was_and_a_key_of_several_parts_is_no_text() {
    let cache = used(&[("\0x", 5, 1)]).await;
    cache.put(("of two", "parts"), 1).await;
    cache.put(Some("thing"), 1).await;
    let manifest = cache.manifest(100).await;
    assert_eq!((manifest.len(), keys(&manifest)), (3, vec!["\0x".to_owned()]));
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text: String, name: String) {
        let _ = Manifest::read(&text, &name);
        let _ = Manifest::read(&format!("tower-stampede-manifest-1 {name} {text}"), &name);
    }
}
