//! Callers that are polled in unusual ways: many in one task, one by one, once and then no more,
//! and computations that ask for further keys.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, poll, stream};
use tower_stampede::Stampede;

use crate::kit::origin::*;
use crate::kit::spawn;

/// Computes the key `depth` of the one below it.
fn ask_down(cache: Stampede<u64>, depth: u64) -> BoxFuture<'static, Result<u64, OriginError>> {
    async move {
        let below = cache.clone();
        let compute = move || async move {
            match depth {
                0 => Ok(0),
                _ => ask_down(below, depth - 1).await.map(|value| value + 1),
            }
        };
        cache.get_or_compute(depth, compute).await.map_err(|_| OriginError(0))
    }
    .boxed()
}

#[test]
fn a_computation_may_ask_for_a_further_key_a_thousand_times_inside_each_other() {
    // As small as the stack of a worker thread.
    let on_small_stack = std::thread::Builder::new().stack_size(2 << 20).spawn(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let cache = settings().build().unwrap();
            assert_eq!(ask_down(cache.clone(), 1_000).await.unwrap(), 1_000);
            assert_eq!(cache.stats().computations, 1_001);
            assert_quiet(&cache);
        });
    });
    on_small_stack.unwrap().join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_stream_that_is_read_slowly_hold_up_no_other_caller() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(20 * MS));
    // All are polled once; then the reader is busy with the first one for a second.
    let reads = {
        let (cache, origin) = (cache.clone(), origin.clone());
        let read = move |key: u64| {
            let (cache, origin) = (cache.clone(), origin.clone());
            async move { cache.get_or_compute(key, origin.compute()).await }
        };
        let busy = |answer: Result<u64, _>| async move {
            answer.unwrap();
            pass(SECOND).await;
        };
        spawn(stream::iter(0..6).map(read).buffered(3).for_each(busy))
    };
    all_have_run().await;
    let from = tokio::time::Instant::now();
    for key in 0..3_u64 {
        cache.get_or_compute(key, origin.compute()).await.unwrap();
    }
    assert!(from.elapsed() <= 20 * MS, "not later than the origin");
    reads.await.unwrap();
    assert_eq!(origin.calls(), 6);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_polled_once_may_wait_for_another_caller_of_its_key() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(20 * MS));
    let mut first = pin!(cache.get_or_compute("k", origin.compute()));
    assert!(poll!(&mut first).is_pending());
    let second = cache.get_or_compute("k", origin.compute()).await;
    assert_eq!((second.unwrap(), first.await.unwrap()), (1, 1));
    assert_eq!(origin.calls(), 1);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn callers_of_one_key_in_one_task_share_one_call_that_is_ready_at_once() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(Duration::ZERO));
    let asked = (0..10).map(|_| cache.get_or_compute("k", origin.compute()));
    let answers = futures_util::future::join_all(asked).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap() == 1));
    assert_eq!(origin.calls(), 1);
}
