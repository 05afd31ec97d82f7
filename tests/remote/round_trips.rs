//! Types that serde writes in another way than it reads them: no process is served a value
//! that was never computed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::num::NonZeroU64;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tower_stampede::Stampede;
use tower_stampede::remote::{Codec, Double, RemoteSettings};
use tracing::Level;

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::{OriginError, settings};

/// A cache of another process, whose bound on entries is set so that it does not warn of it.
fn process<V>(double: &Double, codec: Codec<V>) -> Stampede<V>
where
    V: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let cache = settings().max_entries(1000).codec(codec);
    cache.remote(double.process(), RemoteSettings::new()).build().unwrap()
}

async fn load<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, key: u64, value: V) -> V {
    cache.get_or_compute(key, || async { Ok::<_, OriginError>(value) }).await.unwrap()
}

/// Computes `values` in one process and asks another, whose own value is always `other`. Returns
/// how many it got from the first, and the lines of both.
async fn shared<V>(codec: fn() -> Codec<V>, values: &[V], other: &V) -> (usize, Vec<String>)
where
    V: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let double = Double::new();
    let log = TextLog::default();
    let _listening = log.listen(Level::WARN);
    let (one, two) = (process(&double, codec()), process(&double, codec()));
    let mut taken = 0;
    for (key, value) in (0..).zip(values) {
        assert_eq!(load(&one, key, value.clone()).await, *value);
        let got = load(&two, key, other.clone()).await;
        assert!(got == *value || got == *other, "no process has computed {got:?}");
        taken += usize::from(got == *value);
    }
    (taken, log.lines())
}

/// Asserts that each of the two processes has said it once.
fn assert_warned(lines: &[String]) {
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        assert_says(line, &["are not read as they were written", "skip_serializing_if", "flatten"]);
        assert_says(line, &["Codec::json()", "cache=\"test\"", "round_trips::"]);
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Page {
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    offset: u64,
    ids: Vec<u64>,
}

fn pages() -> Vec<Page> {
    let page = |n: u64| Page {
        next: n.is_multiple_of(3).then_some(n),
        offset: n % 4,
        ids: vec![n % 5; 3],
    };
    (0..100).map(page).collect()
}

fn other_page() -> Page {
    Page { next: Some(1), offset: 1000, ids: vec![] }
}

#[tokio::test(start_paused = true)]
async fn a_type_with_skip_serializing_if_stays_in_its_process_from_the_beginning() {
    let (taken, lines) = shared(Codec::postcard, &pages(), &other_page()).await;
    assert_eq!(taken, 0);
    assert_warned(&lines);
    // JSON has the names.
    let (taken, lines) = shared(Codec::json, &pages(), &other_page()).await;
    assert_eq!((taken, lines.len()), (100, 0));
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Numbered {
    number: NonZeroU64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    offset: u64,
    ids: Vec<u64>,
}

/// Nothing is known beforehand of a type that refuses made-up values.
#[tokio::test(start_paused = true)]
async fn each_value_of_a_type_that_refuses_samples_is_checked() {
    let numbered = |n: u64| Numbered {
        number: NonZeroU64::new(n + 1).unwrap(),
        next: (n < 40).then_some(n),
        offset: 1,
        ids: vec![5, 0],
    };
    let values: Vec<_> = (0..60).map(numbered).collect();
    let other = Numbered { offset: 1000, ..numbered(0) };
    let (taken, lines) = shared(Codec::postcard, &values, &other).await;
    // All have a next one, until the first without.
    assert_eq!(taken, 40);
    assert!(!lines.is_empty());
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Marked {
    #[serde(skip_serializing_if = "is_answer")]
    mark: u64,
    offset: u64,
    ids: Vec<u64>,
}

fn is_answer(mark: &u64) -> bool {
    *mark == 42
}

/// Its samples do not meet the condition.
#[tokio::test(start_paused = true)]
async fn the_first_fills_find_what_the_samples_do_not() {
    let marked = |mark| Marked { mark, offset: 1, ids: vec![5, 0] };
    let other = marked(1000);
    let (taken, lines) = shared(Codec::postcard, &[1, 42, 2, 42].map(marked), &other).await;
    assert_eq!(taken, 1);
    assert!(!lines.is_empty());
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Session {
    id: u64,
    #[serde(skip)]
    hits: u64,
    names: Vec<String>,
}

/// serde was told to drop it.
#[tokio::test(start_paused = true)]
async fn a_skipped_field_has_its_default_in_other_processes() {
    let double = Double::new();
    let value = Session { id: 1, hits: 7, names: vec!["a".into()] };
    let (one, two) = (process(&double, Codec::postcard()), process(&double, Codec::postcard()));
    assert_eq!(load(&one, 1, value.clone()).await, value);
    assert_eq!(load(&two, 1, value.clone()).await, Session { hits: 0, ..value });
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Circle { radius: u64 },
    Square { side: u64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u64),
    Text(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Flat {
    id: u64,
    #[serde(flatten)]
    rest: BTreeMap<String, u64>,
}

#[tokio::test(start_paused = true)]
async fn types_that_describe_themselves_stay_in_their_process_and_are_shared_as_json() {
    let circle = [Tagged::Circle { radius: 1 }];
    let square = Tagged::Square { side: 2 };
    let (taken, lines) = shared(Codec::postcard, &circle, &square).await;
    assert_eq!(taken, 0);
    assert_warned(&lines);
    assert_eq!(shared(Codec::json, &circle, &square).await, (1, vec![]));

    let (number, text) = ([Untagged::Number(1)], Untagged::Text("a".into()));
    let (taken, lines) = shared(Codec::postcard, &number, &text).await;
    assert_eq!(taken, 0);
    assert_warned(&lines);
    assert_eq!(shared(Codec::json, &number, &text).await, (1, vec![]));

    let flat = |id| Flat { id, rest: BTreeMap::from([("a".into(), id)]) };
    let (taken, lines) = shared(Codec::postcard, &[flat(1)], &flat(2)).await;
    assert_eq!(taken, 0);
    assert_warned(&lines);
    assert_eq!(shared(Codec::json, &[flat(1)], &flat(2)).await, (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_json_value_stays_in_its_process_and_is_shared_as_json() {
    let value = serde_json::json!({"a": [1, -1, 0.1, null], "b": {"c": true}});
    let (taken, lines) =
        shared(Codec::postcard, std::slice::from_ref(&value), &serde_json::json!(1)).await;
    assert_eq!((taken, lines.len()), (0, 2));
    assert_eq!(shared(Codec::json, &[value], &serde_json::json!(1)).await, (1, vec![]));
}

/// They come back in another order, which is no other value.
#[tokio::test(start_paused = true)]
async fn maps_and_sets_are_shared_in_whatever_order_they_come_back() {
    type Value = (HashMap<String, HashMap<u64, u64>>, HashSet<u64>, Vec<HashMap<u8, bool>>);
    let value = |n: u64| -> Value {
        let inner: HashMap<_, _> = (0..9).map(|key| (key, n * key)).collect();
        let outer = (0..7).map(|key| (format!("key {key}"), inner.clone())).collect();
        (outer, (0..30).collect(), vec![(0..5).map(|key| (key, key > 2)).collect(); 3])
    };
    for codec in [Codec::postcard, Codec::json] {
        let values: Vec<_> = (0..40).map(value).collect();
        let (taken, lines) = shared(codec, &values, &value(1000)).await;
        assert_eq!((taken, lines.len()), (40, 0));
    }
}
