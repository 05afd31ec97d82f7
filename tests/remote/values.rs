//! What may stand in the remote beside values of this process's own kind.

use std::time::Duration;

use tokio::time::Instant;
use tower_stampede::remote::{Double, RemoteSettings};
use tower_stampede::{Key, Stampede};

use crate::kit::origin::{MS, Origin, SECOND, settings};

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
