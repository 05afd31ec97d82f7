//! Streams of functions at the edges: values that still arrive where only whole ones belong,
//! limits of nothing, and chunks whose code is the user's.

use std::collections::HashMap;
use std::io;

use futures_util::{StreamExt, TryStreamExt, stream};
use tower_stampede::{BoxError, Computed, ErrorKind, Mode, Producer, Recording, Stampede};

use crate::kit::origin::{MS, SECOND, pass, settings};

type Answers = Stampede<Recording<u64>>;

fn answers() -> Answers {
    settings().build().unwrap()
}

fn three() -> Producer<u64> {
    let chunks = stream::iter(1..=3).then(|chunk| async move {
        pass(MS).await;
        Ok::<u64, io::Error>(chunk)
    });
    Producer::new(Box::pin(chunks))
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_arrives_cannot_be_put_and_the_older_value_ends() {
    let cache = answers();
    cache.put("key", Recording::from_iter([7])).await;
    cache.put_with("key", three().begin().await.unwrap()).await;
    pass(SECOND).await;
    assert!(cache.get("key").await.is_none());
    cache.put_with_now("key", three().begin().await.unwrap());
    assert!(cache.get("key").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_first_chunk_that_is_too_large_is_not_stored() {
    let cache = answers();
    let one = || three().max_bytes(0);
    let all: Vec<u64> =
        cache.entry("key").get_or_stream(one).await.unwrap().try_collect().await.unwrap();
    assert_eq!(all, [1, 2, 3]);
    let one = || Producer::new(stream::iter([Ok::<u64, io::Error>(1)])).max_bytes(0);
    let all: Vec<u64> =
        cache.entry("key").get_or_stream(one).await.unwrap().try_collect().await.unwrap();
    assert_eq!(all, [1]);
    assert!(cache.get("key").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_batch_may_return_streams_in_each_mode() {
    for mode in [Mode::On, Mode::Observe, Mode::Off] {
        let cache = answers();
        cache.set_mode(mode);
        let load = |keys: Vec<u64>| async move {
            let mut streams = HashMap::new();
            for key in keys {
                streams.insert(key, three().begin().await?);
            }
            Ok::<HashMap<u64, Computed<Recording<u64>>>, BoxError>(streams)
        };
        let read = cache.get_many([1_u64, 2], load).await;
        for key in [1, 2] {
            let chunks: Vec<u64> = read.values[&key].stream().try_collect().await.unwrap();
            assert_eq!(chunks, [1, 2, 3], "{mode:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_asks_its_own_key_before_its_first_chunk_is_an_error() {
    let cache = answers();
    let inner = cache.clone();
    let produce = move || {
        stream::once(async move {
            let own = inner.entry("key").get_or_stream(three).await;
            own.map(|_| 1).map_err(|error| Box::new(error) as BoxError)
        })
    };
    let asked = cache.entry("key").get_or_stream(|| Box::pin(produce())).await;
    assert!(asked.is_err());
}

#[tokio::test(start_paused = true)]
async fn time_outs_and_weights_may_have_any_size() {
    let cache = answers();
    let endless = || three().chunk_timeout(std::time::Duration::MAX);
    assert_eq!(cache.entry("a").get_or_stream(endless).await.unwrap().count().await, 3);
    let heavy = || three().weigh(|_| usize::MAX);
    assert_eq!(cache.entry("b").get_or_stream(heavy).await.unwrap().count().await, 3);
    let hasty = || three().chunk_timeout(std::time::Duration::ZERO);
    let read: Result<Vec<u64>, _> =
        cache.entry("c").get_or_stream(hasty).await.unwrap().try_collect().await;
    assert!(read.is_err());
    let empty = || stream::iter((0..100_000).map(|_| Ok::<(), io::Error>(())));
    let nothing: Stampede<Recording<()>> = settings().build().unwrap();
    assert_eq!(nothing.entry("d").get_or_stream(empty).await.unwrap().count().await, 100_000);
    assert_eq!(cache.stats().arriving_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_whose_clone_panics_harms_its_reader_alone() {
    #[derive(Debug)]
    struct Fragile(std::sync::Arc<std::sync::atomic::AtomicBool>);
    impl Clone for Fragile {
        fn clone(&self) -> Self {
            if self.0.swap(false, std::sync::atomic::Ordering::SeqCst) {
                std::panic::resume_unwind(Box::new("the clone panics"));
            }
            Self(self.0.clone())
        }
    }
    let cache: Stampede<Recording<Fragile>> = settings().build().unwrap();
    let fails = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let ask = || {
        let fails = fails.clone();
        let cache = cache.clone();
        async move {
            let produce = move || {
                stream::iter((0..3).map(move |_| Ok::<_, io::Error>(Fragile(fails.clone()))))
            };
            cache.entry("key").get_or_stream(produce).await.unwrap().count().await
        }
    };
    assert!(crate::kit::spawn(ask()).await.unwrap_err().is_panic());
    assert_eq!(ask().await, 3);
    assert_eq!(cache.stats().computations, 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_comes_too_late_for_a_stream_waits_for_its_own_no_longer_than_for_another() {
    let cache: Answers = settings().compute_timeout(SECOND).build().unwrap();
    let passing = || three().max_bytes(0);
    let leader = {
        let cache = cache.clone();
        crate::kit::spawn(async move { cache.entry("key").get_or_stream(passing).await })
    };
    tokio::task::yield_now().await;
    let silent = || stream::pending::<io::Result<u64>>();
    let mut late = Box::pin(cache.entry("key").get_or_stream(silent));
    assert!(futures_util::poll!(&mut late).is_pending());
    let read: Vec<u64> = leader.await.unwrap().unwrap().try_collect().await.unwrap();
    assert_eq!(read, [1, 2, 3]);
    let error =
        tokio::time::timeout(60 * SECOND, late).await.expect("it is not stuck").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ComputeTimeout);
}

#[tokio::test(start_paused = true)]
async fn a_computation_inside_its_caller_may_return_a_stream_that_passes() {
    let cache = answers();
    let began = tokio::time::Instant::now();
    let many = || Producer::new(stream::iter((0..500).map(Ok::<u64, io::Error>))).max_bytes(0);
    let served = cache.entry("key").get_or_compute_scoped(|| many().begin()).await.unwrap();
    let all: Vec<u64> = served.stream().try_collect().await.unwrap();
    assert_eq!(all.len(), 500);
    assert!(began.elapsed() < SECOND, "it waits for no reader that is not there");
}

#[tokio::test(start_paused = true)]
async fn bytes_that_still_arrive_are_stored_under_no_other_key() {
    let cache: Stampede<Recording<bytes::Bytes>> = settings().build().unwrap();
    let chunk = bytes::Bytes::from_static(b"chunk");
    let endless = stream::iter([Ok::<_, io::Error>(chunk)]).chain(stream::pending());
    let served = cache.entry("key").get_or_compute(|| Producer::new(endless).begin()).await;
    let arriving = served.unwrap().into_value();
    cache.put("other", arriving.clone()).await;
    assert!(cache.get("other").await.is_none());
    assert!(arriving.stream().next().await.is_some());
}
