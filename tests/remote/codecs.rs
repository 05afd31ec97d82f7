//! Values that are compressed and encrypted on their way between processes.

use bytes::Bytes;
use tower_stampede::remote::{Codec, Double, EncryptionKeys, Remote, RemoteSettings};
use tower_stampede::{Key, Remotable, Stampede};

use crate::kit::origin::{Origin, OriginError, settings};

const KIB: usize = 1024;

fn process<V: Remotable + Clone>(double: &Double, codec: Codec<V>) -> Stampede<V> {
    let limits = RemoteSettings::new().max_value_bytes(64 * KIB);
    settings().codec(codec).remote(double.process(), limits).build().unwrap()
}

async fn load<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, key: &str, value: V) -> V {
    cache.get_or_compute(key, || async { Ok::<_, OriginError>(value) }).await.unwrap()
}

async fn stored(double: &Double, key: &str) -> Bytes {
    double.process().get(&Key::from(key)).await.unwrap().unwrap()
}

fn keys(number: u32) -> EncryptionKeys {
    EncryptionKeys::new(number, &[number as u8; 32])
}

#[tokio::test(start_paused = true)]
async fn every_form_is_shared_in_every_coding() {
    async fn is_shared<V>(codec: impl Fn() -> Codec<V>, value: V, other: V)
    where
        V: Remotable + Clone + PartialEq + std::fmt::Debug,
    {
        for coded in [
            &(|codec| codec) as &dyn Fn(Codec<V>) -> Codec<V>,
            &|codec| codec.compress_above(64),
            &|codec| codec.encrypt(keys(1)),
            &|codec| codec.compress_above(64).encrypt(keys(1)),
        ] {
            let double = Double::new();
            assert_eq!(load(&process(&double, coded(codec())), "k", value.clone()).await, value);
            let second = process(&double, coded(codec()));
            assert_eq!(load(&second, "k", other.clone()).await, value);
            assert_eq!(second.stats().damaged, 0);
        }
    }
    let text = "value ".repeat(100);
    is_shared(Codec::postcard, text.clone(), "other".into()).await;
    is_shared(Codec::json, text.clone(), "other".into()).await;
    is_shared(Codec::bytes, Bytes::from(text), Bytes::from_static(b"other")).await;
}

#[tokio::test(start_paused = true)]
async fn bytes_are_stored_as_they_are() {
    let double = Double::new();
    let value = Bytes::from_static(b"plain bytes");
    load(&process(&double, Codec::bytes()), "k", value.clone()).await;
    assert!(stored(&double, "k").await.ends_with(b"kplain bytes"));
}

/// A client that may write to the remote copies an answer to another user's key.
#[tokio::test(start_paused = true)]
async fn an_encrypted_value_is_a_miss_under_another_key() {
    let double = Double::new();
    let encrypted = || process(&double, Codec::<String>::postcard().encrypt(keys(1)));
    load(&encrypted(), "ada", "of Ada".into()).await;
    let copied = stored(&double, "ada").await;
    for word in ["of Ada", "ada"] {
        assert!(!copied.windows(word.len()).any(|at| at == word.as_bytes()), "{word}");
    }
    double.set_raw(&Key::from("bob"), copied.clone());
    let process = encrypted();
    assert_eq!(load(&process, "bob", "of Bob".into()).await, "of Bob");
    assert!(process.stats().damaged > 0);
    assert_eq!(load(&process, "ada", "?".into()).await, "of Ada");
    // One without encryption is none either.
    load(&self::process(&double, Codec::<String>::postcard()), "eve", "of Eve".into()).await;
    assert_eq!(load(&encrypted(), "eve", "own".into()).await, "own");
}

/// Each step of the change has reached half of the processes while requests go on.
#[tokio::test(start_paused = true)]
async fn a_new_key_comes_while_processes_share_and_no_read_fails() {
    let double = Double::new();
    let steps: [fn() -> EncryptionKeys; 4] = [
        || keys(1),
        || keys(1).and_read(2, &[2; 32]),
        || keys(2).and_read(1, &[1; 32]),
        || keys(2),
    ];
    let origin = Origin::new();
    for (step, pair) in steps.windows(2).enumerate() {
        let encrypted = |keys: fn() -> EncryptionKeys| {
            process(&double, Codec::<u64>::postcard().encrypt(keys()))
        };
        let mut processes = Vec::new();
        for n in 0..6 {
            processes.push(encrypted(pair[n % 2]));
        }
        for key in 0..40 {
            let key = format!("{step} {key}");
            for n in 0..processes.len() {
                // Another one begins each time.
                let process = &processes[(n + step + key.len()) % processes.len()];
                process.get_or_compute(key.as_str(), origin.compute()).await.unwrap();
            }
        }
        assert_eq!(origin.calls(), 40 * (step + 1), "once for each key");
        assert!(processes.iter().all(|process| process.stats().damaged == 0));
    }
}

/// Readers bound what they unpack, so it would be a miss for each of them.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_too_large_stays_in_its_process_however_small_it_can_be_made() {
    let double = Double::new();
    let compressed = || process(&double, Codec::<String>::postcard().compress_above(64));
    let large = "x".repeat(64 * KIB);
    assert_eq!(load(&compressed(), "k", large.clone()).await, large);
    let second = compressed();
    assert_eq!(load(&second, "k", "own".into()).await, "own");
    assert_eq!(second.stats().damaged, 0);
    let fits = "x".repeat(63 * KIB);
    assert_eq!(load(&compressed(), "fits", fits.clone()).await, fits);
    assert!(stored(&double, "fits").await.len() < KIB);
    assert_eq!(load(&second, "fits", "own".into()).await, fits);
}
