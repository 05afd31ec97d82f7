//! What may stand in the remote beside values of this process's own kind.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tower_stampede::remote::{Codec, Double, RemoteSettings};
use tower_stampede::{Key, Remotable, Stampede};
use tracing::Level;

use crate::kit::log::{TextLog, assert_says};
use crate::kit::origin::{MS, Origin, OriginError, SECOND, settings};

fn process(double: &Double, schema: u32) -> Stampede<u64> {
    settings().schema(schema).remote(double.process(), RemoteSettings::new()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn processes_of_two_schemas_replace_each_others_values_and_read_their_own() {
    let (double, old, new) = (Double::new(), Origin::new(), Origin::new());
    let before = process(&double, 1);
    assert_eq!(before.get_or_compute("k", old.compute()).await.unwrap(), 1);
    let after = process(&double, 2);
    assert_eq!(after.get_or_compute("k", new.compute()).await.unwrap(), 1);
    assert_eq!(after.stats().damaged, 1);
    // The one that began before goes on with its copy.
    before.get_or_compute("k", old.compute()).await.unwrap();
    assert_eq!((old.calls(), new.calls()), (1, 1));
    // One that begins now does not take the newer kind for its own.
    assert_eq!(process(&double, 1).get_or_compute("k", old.compute()).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_invalidation_reaches_processes_of_another_schema() {
    let (double, origin) = (Double::new(), Origin::new());
    let (before, after) = (process(&double, 1), process(&double, 2));
    before.get_or_compute("k", origin.compute()).await.unwrap();
    // Its first call makes it listen.
    after.get_or_compute("other", origin.compute()).await.unwrap();
    after.invalidate("k").await;
    tokio::time::sleep(SECOND).await;
    before.get_or_compute("k", origin.compute()).await.unwrap();
    assert_eq!(origin.calls(), 3);
}

/// However large a value another client puts there: it is not taken, so it is
/// no reason to wait for longer.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_too_large_makes_no_call_take_longer() {
    let (double, origin) = (Double::new(), Origin::new());
    let limits = RemoteSettings::new()
        .op_timeout(50 * MS)
        .op_timeout_per_mib(Duration::from_secs(3600))
        .max_value_bytes(1);
    let cache: Stampede<u64> = settings().remote(double.process(), limits).build().unwrap();
    double.set_raw(&Key::from("large"), vec![b'x'; 1 << 20]);
    cache.get_or_compute("large", origin.compute()).await.unwrap();

    double.freeze();
    let from = Instant::now();
    cache.get_or_compute("k", origin.compute()).await.unwrap();
    assert!(from.elapsed() <= 60 * MS, "{:?}", from.elapsed());
}

/// A cache of another process, for values of any type.
fn of_type<V: Remotable + Clone>(double: &Double, codec: Codec<V>) -> Stampede<V> {
    settings().codec(codec).remote(double.process(), RemoteSettings::new()).build().unwrap()
}

/// Asks for `k`; returns `value` if it was not there.
async fn load<V: Clone + Send + Sync + 'static>(cache: &Stampede<V>, value: V) -> V {
    cache.get_or_compute("k", || async { Ok::<_, OriginError>(value) }).await.unwrap()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct User {
    visits: u64,
    name: String,
    is_admin: bool,
}

/// Bytes of a [`User`] can be read as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    count: u64,
    title: String,
    is_paid: bool,
}

fn user() -> User {
    User { visits: 7, name: "Ada".into(), is_admin: true }
}

fn order() -> Order {
    Order { count: 1, title: "tea".into(), is_paid: false }
}

#[tokio::test(start_paused = true)]
async fn two_types_under_one_name_are_misses_for_each_other_and_one_line_names_the_remedy() {
    let double = Double::new();
    assert_eq!(load(&of_type(&double, User::codec()), user()).await, user());
    let log = TextLog::default();
    let _listening = log.listen(Level::WARN);
    let orders = of_type(&double, Order::codec());
    assert_eq!(load(&orders, order()).await, order());
    assert_eq!(orders.stats().damaged, 1);
    // And back: the order has replaced the user.
    assert_eq!(load(&of_type(&double, User::codec()), user()).await, user());
    orders.invalidate("k").await;
    assert_eq!(load(&of_type(&double, User::codec()), user()).await, user());
    assert_eq!(load(&orders, order()).await, order());
    let lines = log.lines();
    let is_of_orders = |line: &&String| line.contains("another type") && line.contains("Order");
    let of_orders: Vec<_> = lines.iter().filter(is_of_orders).collect();
    let [line] = &of_orders[..] else { panic!("{}", log.text()) };
    assert_says(line, &["cache=\"test\"", "during a deploy", "have one name", "rename one"]);
}

/// A program from before fingerprints writes its schema, and postcard.
#[tokio::test(start_paused = true)]
async fn old_and_new_programs_are_misses_for_each_other() {
    let double = Double::new();
    let old = || of_type(&double, User::codec().fingerprint(0));
    assert_eq!(load(&old(), user()).await, user());
    let newer = User { visits: 8, ..user() };
    assert_eq!(load(&of_type(&double, User::codec()), newer.clone()).await, newer);
    assert_eq!(load(&old(), user()).await, user());
}

#[tokio::test(start_paused = true)]
async fn programs_that_state_one_number_share_their_values() {
    let double = Double::new();
    let own = || Codec::new(User::encode, User::decode);
    let first = of_type(&double, own().fingerprint(9));
    assert_eq!(load(&first, user()).await, user());
    // Also where their types have other names.
    let orders = of_type(&double, Order::codec().fingerprint(9));
    assert_eq!(load(&orders, order()).await.title, "Ada");
    let newer = settings().schema(1).codec(own().fingerprint(8));
    let newer = newer.remote(double.process(), RemoteSettings::new()).build().unwrap();
    assert_eq!(load(&newer, User { visits: 8, ..user() }).await, user());
    let another = of_type(&double, own().fingerprint(10));
    let value = User { visits: 8, ..user() };
    assert_eq!(load(&another, value.clone()).await, value);
}

#[tokio::test(start_paused = true)]
async fn processes_share_json_and_read_no_postcard() {
    let double = Double::new();
    let value = serde_json::json!({"name": "Ada", "ids": [1, -2, 0.1]});
    let json = || of_type(&double, Codec::json());
    assert_eq!(load(&json(), value.clone()).await, value);
    assert_eq!(load(&json(), serde_json::Value::Null).await, value);
    let users = || of_type(&double, User::codec());
    assert_eq!(load(&users(), user()).await, user());
    assert_eq!(load(&users(), User { visits: 8, ..user() }).await, user());
}

#[tokio::test(start_paused = true)]
async fn values_that_are_not_weighed_count_with_the_mean_length_of_those_that_were_encoded() {
    #[derive(Clone, Serialize, Deserialize)]
    struct User {
        name: String,
    }

    let double = Double::new();
    let caches: [Stampede<User>; 2] = [(); 2]
        .map(|()| settings().remote(double.process(), RemoteSettings::new()).build().unwrap());
    let load = || async { Ok::<_, OriginError>(User { name: "x".repeat(20_000) }) };
    for (cache, from) in [(&caches[0], "computed"), (&caches[1], "read from the remote")] {
        for id in 0..100_u64 {
            cache.get_or_compute(id, load).await.unwrap();
        }
        let bytes = cache.lookup(99).unwrap().bytes;
        assert!((19_000..21_500).contains(&bytes), "{from}: {bytes}");
    }
    assert_eq!(caches[1].stats().computations, 0);
}
