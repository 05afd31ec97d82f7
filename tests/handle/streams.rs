//! Streams of functions: one producer, any number of readers from the first chunk on.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tower_stampede::{
    CacheOutcome, Chunks, Error, ErrorKind, Mode, Producer, Recording, Stampede, StreamError,
    StreamErrorKind,
};

use crate::kit::origin::{MS, SECOND, all_have_run, pass, settings};
use crate::kit::spawn;

type Answers = Stampede<Recording<u64>>;
type Read = Result<Vec<u64>, StreamError>;

fn answers() -> Answers {
    settings().build().unwrap()
}

/// Producers that do what the test says, one for each call.
#[derive(Clone, Default)]
struct Model {
    senders: Arc<Mutex<Vec<mpsc::UnboundedSender<io::Result<u64>>>>>,
}

impl Model {
    fn produce(&self) -> impl FnOnce() -> Producer<u64> + Send + use<> {
        let senders = Arc::clone(&self.senders);
        move || {
            let (sender, receiver) = mpsc::unbounded_channel();
            senders.lock().unwrap().push(sender);
            Producer::new(received(receiver)).chunk_timeout(10 * SECOND)
        }
    }

    fn calls(&self) -> usize {
        self.senders.lock().unwrap().len()
    }

    async fn say(&self, call: usize, chunk: u64) {
        let _ = self.senders.lock().unwrap()[call].send(Ok(chunk));
        all_have_run().await;
    }

    async fn fail(&self, call: usize) {
        let _ = self.senders.lock().unwrap()[call].send(Err(io::Error::other("away")));
        all_have_run().await;
    }

    /// Ends the stream well.
    async fn end(&self, call: usize) {
        let (closed, _) = mpsc::unbounded_channel();
        drop(std::mem::replace(&mut self.senders.lock().unwrap()[call], closed));
        all_have_run().await;
    }

    fn is_polled(&self, call: usize) -> bool {
        !self.senders.lock().unwrap()[call].is_closed()
    }
}

fn received(
    receiver: mpsc::UnboundedReceiver<io::Result<u64>>,
) -> impl Stream<Item = io::Result<u64>> + Send {
    stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}

async fn ask(cache: &Answers, model: &Model) -> Result<Chunks<u64>, Error> {
    cache.entry("key").get_or_stream(model.produce()).await
}

/// Asks, and reads all.
fn read(cache: &Answers, model: &Model) -> JoinHandle<Result<Read, Error>> {
    let (cache, model) = (cache.clone(), model.clone());
    spawn(async move {
        let chunks = ask(&cache, &model).await?;
        Ok(chunks.try_collect().await)
    })
}

fn now(chunks: &mut Chunks<u64>) -> Option<Option<Result<u64, StreamErrorKind>>> {
    let next = chunks.next().now_or_never();
    next.map(|next| next.map(|next| next.map_err(|error| error.kind())))
}

#[tokio::test(start_paused = true)]
async fn all_readers_get_the_chunks_of_one_producer_from_the_first_on() {
    let (cache, model) = (answers(), Model::default());
    let early: Vec<_> = (0..100).map(|_| read(&cache, &model)).collect();
    all_have_run().await;
    assert_eq!(model.calls(), 1);
    model.say(0, 1).await;
    model.say(0, 2).await;
    let late: Vec<_> = (0..100).map(|_| read(&cache, &model)).collect();
    all_have_run().await;
    model.say(0, 3).await;
    model.end(0).await;
    for reader in early.into_iter().chain(late) {
        assert_eq!(reader.await.unwrap().unwrap().unwrap(), [1, 2, 3]);
    }
    let later = read(&cache, &model).await.unwrap().unwrap().unwrap();
    assert_eq!((later, model.calls(), cache.stats().computations), (vec![1, 2, 3], 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_chunk_is_there_before_the_next_is_produced() {
    let (cache, model) = (answers(), Model::default());
    let waiting = read(&cache, &model);
    all_have_run().await;
    model.say(0, 1).await;
    let mut chunks = ask(&cache, &model).await.unwrap();
    assert_eq!(now(&mut chunks), Some(Some(Ok(1))));
    assert_eq!(now(&mut chunks), None);
    model.say(0, 2).await;
    assert_eq!(now(&mut chunks), Some(Some(Ok(2))));
    assert!(cache.get("key").await.is_none(), "it is not whole");
    model.end(0).await;
    assert_eq!(now(&mut chunks), Some(None));
    let stored = cache.get("key").await.unwrap();
    assert_eq!(stored.chunks().unwrap().copied().collect::<Vec<_>>(), [1, 2]);
    waiting.await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_lifetime_counts_from_the_end() {
    let (cache, model) = (answers(), Model::default());
    let reader = read(&cache, &model);
    all_have_run().await;
    for chunk in 0..20 {
        model.say(0, chunk).await;
        pass(8 * SECOND).await;
    }
    let joined = read(&cache, &model);
    all_have_run().await;
    assert_eq!(model.calls(), 1, "160 s of a stream, and a lifetime of 60 s");
    model.end(0).await;
    assert_eq!(reader.await.unwrap().unwrap().unwrap().len(), 20);
    assert_eq!(joined.await.unwrap().unwrap().unwrap().len(), 20);
    pass(59 * SECOND).await;
    drop(ask(&cache, &model).await.unwrap());
    assert_eq!(model.calls(), 1);
    pass(2 * SECOND).await;
    let again = read(&cache, &model);
    all_have_run().await;
    assert_eq!(model.calls(), 2);
    again.abort();
}

#[tokio::test(start_paused = true)]
async fn a_failed_stream_ends_with_its_error_for_all_and_is_not_stored() {
    let (cache, model) = (answers(), Model::default());
    let readers: Vec<_> = (0..10).map(|_| read(&cache, &model)).collect();
    all_have_run().await;
    model.say(0, 1).await;
    model.fail(0).await;
    for reader in readers {
        let error = reader.await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.kind(), StreamErrorKind::Inner);
        assert_eq!(error.inner::<io::Error>().unwrap().to_string(), "away");
    }
    assert!(cache.get("key").await.is_none());
    // It counts as a failure: callers without a value are held for a moment.
    let held = ask(&cache, &model).await.unwrap_err();
    assert_eq!((held.kind(), model.calls()), (ErrorKind::Held, 1));
    assert_eq!(cache.stats().failures, 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_before_the_first_chunk_is_that_of_the_call() {
    let (cache, model) = (answers(), Model::default());
    let readers: Vec<_> = (0..10).map(|_| read(&cache, &model)).collect();
    all_have_run().await;
    model.fail(0).await;
    for reader in readers {
        let error = reader.await.unwrap().unwrap_err();
        assert_eq!(error.inner::<io::Error>().unwrap().to_string(), "away");
    }
    assert_eq!(model.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_ends_after_its_chunk_timeout() {
    let (cache, model) = (answers(), Model::default());
    let reader = read(&cache, &model);
    all_have_run().await;
    model.say(0, 1).await;
    pass(9 * SECOND).await;
    model.say(0, 2).await;
    pass(9 * SECOND).await;
    assert!(!reader.is_finished());
    pass(2 * SECOND).await;
    let error = reader.await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), StreamErrorKind::ChunkTimeout);
    assert!(!model.is_polled(0), "its producer is dropped");
    assert_eq!(cache.stats().flights, 0);
}

#[tokio::test(start_paused = true)]
async fn the_first_chunk_has_the_compute_timeout() {
    let cache: Answers =
        settings().compute_timeout(2 * SECOND).wait_timeout(20 * SECOND).build().unwrap();
    let model = Model::default();
    let reader = read(&cache, &model);
    all_have_run().await;
    pass(3 * SECOND).await;
    assert_eq!(reader.await.unwrap().unwrap_err().kind(), ErrorKind::ComputeTimeout);
}

#[tokio::test(start_paused = true)]
async fn the_stream_goes_on_without_its_leader_and_without_any_reader() {
    let (cache, model) = (answers(), Model::default());
    let (leader, waiter) = (read(&cache, &model), read(&cache, &model));
    all_have_run().await;
    model.say(0, 1).await;
    leader.abort();
    model.say(0, 2).await;
    waiter.abort();
    model.say(0, 3).await;
    model.end(0).await;
    let stored = read(&cache, &model).await.unwrap().unwrap().unwrap();
    assert_eq!((stored, model.calls()), (vec![1, 2, 3], 1));
}

#[tokio::test(start_paused = true)]
async fn after_an_invalidation_later_callers_begin_another_stream_and_no_reader_sees_both() {
    let (cache, model) = (answers(), Model::default());
    let before = read(&cache, &model);
    all_have_run().await;
    model.say(0, 1).await;
    cache.invalidate("key").await;
    let after = read(&cache, &model);
    all_have_run().await;
    assert_eq!(model.calls(), 2);
    model.say(1, 11).await;
    model.say(0, 2).await;
    model.say(1, 12).await;
    model.end(1).await;
    model.end(0).await;
    assert_eq!(before.await.unwrap().unwrap().unwrap(), [1, 2]);
    assert_eq!(after.await.unwrap().unwrap().unwrap(), [11, 12]);
    let stored = read(&cache, &model).await.unwrap().unwrap().unwrap();
    assert_eq!((stored, model.calls()), (vec![11, 12], 2));
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_stream_without_a_reader_is_dropped() {
    let (cache, model) = (answers(), Model::default());
    let reader = read(&cache, &model);
    all_have_run().await;
    model.say(0, 1).await;
    reader.abort();
    cache.invalidate("key").await;
    model.say(0, 2).await;
    assert!(!model.is_polled(0));
    assert_eq!(cache.stats().flights, 0);
}

#[tokio::test(start_paused = true)]
async fn a_tag_of_the_call_reaches_a_stream_that_arrives() {
    let (cache, model) = (answers(), Model::default());
    let tagged = || {
        let (cache, produce) = (cache.clone(), model.produce());
        async move { cache.entry("key").tag("model:1").get_or_stream(produce).await }
    };
    let (first, ()) = tokio::join!(tagged(), async {
        all_have_run().await;
        model.say(0, 1).await;
    });
    let mut first = first.unwrap();
    cache.invalidate_tag("model:1").await;
    let second = spawn(tagged());
    all_have_run().await;
    assert_eq!(model.calls(), 2);
    model.end(0).await;
    assert_eq!((now(&mut first), now(&mut first)), (Some(Some(Ok(1))), Some(None)));
    assert!(cache.get("key").await.is_none());
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn a_panic_cuts_the_stream_off_and_the_next_caller_begins_anew() {
    let (cache, calls) = (answers(), Arc::new(AtomicUsize::new(0)));
    let ask = || {
        let calls = Arc::clone(&calls);
        let panics = move || {
            let call = calls.fetch_add(1, SeqCst);
            let chunks = stream::iter([Ok::<u64, io::Error>(1), Ok(2)]);
            chunks.inspect(move |chunk| {
                assert!(call > 0 || !matches!(chunk, Ok(2)), "the producer panics");
            })
        };
        cache.entry("key").get_or_stream(panics)
    };
    let mut chunks = ask().await.unwrap();
    all_have_run().await;
    assert_eq!(now(&mut chunks), Some(Some(Ok(1))));
    assert_eq!(now(&mut chunks), Some(Some(Err(StreamErrorKind::CutOff))));
    assert_eq!(now(&mut chunks), Some(None));
    let again: Vec<u64> = ask().await.unwrap().try_collect().await.unwrap();
    assert_eq!((again, calls.load(SeqCst)), (vec![1, 2], 2));
}

#[tokio::test(start_paused = true)]
async fn what_the_producer_does_not_want_kept_goes_to_the_readers_of_then() {
    let (cache, model) = (answers(), Model::default());
    let ask = || {
        let produce = model.produce();
        let complete = |chunks: &[Arc<u64>]| chunks.last().is_some_and(|last| **last == 99);
        let produce = move || produce().store_if(complete);
        let cache = cache.clone();
        spawn(async move { cache.entry("key").get_or_stream(produce).await })
    };
    let (one, two) = (ask(), ask());
    all_have_run().await;
    model.say(0, 1).await;
    model.end(0).await;
    for reader in [one, two] {
        let read: Vec<u64> = reader.await.unwrap().unwrap().try_collect().await.unwrap();
        assert_eq!(read, [1]);
    }
    assert!(cache.get("key").await.is_none());
    let third = ask();
    all_have_run().await;
    model.say(1, 99).await;
    model.end(1).await;
    drop(third.await.unwrap().unwrap());
    assert_eq!((model.calls(), cache.get("key").await.is_some()), (2, true));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_reads_nothing_holds_no_other_back() {
    let (cache, model) = (answers(), Model::default());
    let reader = read(&cache, &model);
    all_have_run().await;
    model.say(0, 0).await;
    let mut idle = ask(&cache, &model).await.unwrap();
    for chunk in 1..1000 {
        model.say(0, chunk).await;
    }
    model.end(0).await;
    assert_eq!(reader.await.unwrap().unwrap().unwrap().len(), 1000);
    pass(3600 * SECOND).await;
    assert_eq!(now(&mut idle), Some(Some(Ok(0))));
    assert_eq!(idle.try_collect::<Vec<_>>().await.unwrap().len(), 999);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_too_large_passes_at_the_speed_of_its_slowest_reader() {
    let (cache, calls) = (answers(), Arc::new(AtomicUsize::new(0)));
    let produced = Arc::new(AtomicUsize::new(0));
    let ask = || {
        let (calls, produced) = (Arc::clone(&calls), Arc::clone(&produced));
        cache.entry("key").get_or_stream(move || {
            calls.fetch_add(1, SeqCst);
            let chunks = stream::iter((0..10_000).map(Ok::<u64, io::Error>));
            let counted = chunks.inspect(move |_| {
                produced.fetch_add(1, SeqCst);
            });
            Producer::new(counted).max_bytes(4096)
        })
    };
    let mut slow = ask().await.unwrap();
    let mut fast = ask().await.unwrap();
    all_have_run().await;
    let ahead = produced.load(SeqCst);
    assert!(ahead < 300, "{ahead} were produced, and none was read");
    assert_eq!((calls.load(SeqCst), cache.stats().arriving_bytes), (1, 0));
    // The slow one reads no more: the fast one has all, once that has stalled.
    assert_eq!(slow.next().await.unwrap().unwrap(), 0);
    let all: Vec<u64> = fast.by_ref().try_collect().await.unwrap();
    assert_eq!(all.len(), 10_000);
    let rest: Result<Vec<u64>, _> = slow.try_collect().await;
    assert_eq!(rest.unwrap_err().kind(), StreamErrorKind::Stalled);
    // Nothing is stored; the next caller begins another one.
    assert!(cache.get("key").await.is_none());
    let again: Vec<u64> = ask().await.unwrap().try_collect().await.unwrap();
    assert_eq!((again.len(), calls.load(SeqCst)), (10_000, 2));
}

#[tokio::test(start_paused = true)]
async fn what_arrives_counts_until_it_has_ended() {
    let cache: Stampede<Recording<Bytes>> = settings().max_arriving_bytes(10_000).build().unwrap();
    let (sender, mut receiver) = mpsc::unbounded_channel::<Bytes>();
    let produce = move || stream::poll_fn(move |cx| receiver.poll_recv(cx)).map(Ok::<_, io::Error>);
    sender.send(Bytes::from(vec![0; 1000])).unwrap();
    let chunks = cache.entry("key").get_or_stream(produce).await.unwrap();
    all_have_run().await;
    let one = cache.stats().arriving_bytes;
    assert!((1000..1200).contains(&one), "{one}");
    sender.send(Bytes::from(vec![0; 1000])).unwrap();
    all_have_run().await;
    assert_eq!(cache.stats().arriving_bytes, 2 * one);
    drop(sender);
    all_have_run().await;
    assert_eq!(cache.stats().arriving_bytes, 0);
    assert_eq!(chunks.count().await, 2);
    let stored = cache.stats().bytes;
    assert!((2000..2600).contains(&stored), "{stored}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_room_passes_and_begins_no_stampede() {
    let cache: Stampede<Recording<Bytes>> = settings().max_arriving_bytes(1500).build().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let ask = || {
        let calls = Arc::clone(&calls);
        cache.entry("key").get_or_stream(move || {
            calls.fetch_add(1, SeqCst);
            stream::iter((0..10).map(|_| Ok::<_, io::Error>(Bytes::from(vec![0; 1000]))))
        })
    };
    let readers = futures_util::future::join_all((0..50).map(|_| ask())).await;
    let read = readers.into_iter().map(|reader| reader.unwrap().count());
    assert_eq!(futures_util::future::join_all(read).await, [10; 50]);
    assert_eq!(calls.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_empty_stream_is_a_value() {
    let cache = answers();
    let none = || stream::iter([] as [io::Result<u64>; 0]);
    assert_eq!(cache.entry("key").get_or_stream(none).await.unwrap().count().await, 0);
    assert_eq!(cache.get("key").await.unwrap().chunks().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stale_stream_is_served_while_the_next_one_arrives() {
    let cache: Answers = settings().ttl(SECOND).stale_for(60 * SECOND).build().unwrap();
    let model = Model::default();
    let first = read(&cache, &model);
    all_have_run().await;
    model.say(0, 1).await;
    model.end(0).await;
    first.await.unwrap().unwrap().unwrap();
    pass(2 * SECOND).await;
    let stale = read(&cache, &model).await.unwrap().unwrap().unwrap();
    all_have_run().await;
    assert_eq!((stale, model.calls()), (vec![1], 2));
    model.say(1, 2).await;
    let stale = read(&cache, &model).await.unwrap().unwrap().unwrap();
    assert_eq!((stale, model.calls()), (vec![1], 2));
    model.end(1).await;
    assert_eq!(read(&cache, &model).await.unwrap().unwrap().unwrap(), [2]);
    assert_eq!(model.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_refresh_leaves_the_older_stream() {
    let cache: Answers = settings().ttl(SECOND).stale_for(600 * SECOND).build().unwrap();
    let model = Model::default();
    let first = read(&cache, &model);
    all_have_run().await;
    model.say(0, 1).await;
    model.end(0).await;
    first.await.unwrap().unwrap().unwrap();
    pass(2 * SECOND).await;
    read(&cache, &model).await.unwrap().unwrap().unwrap();
    all_have_run().await;
    model.say(1, 2).await;
    model.fail(1).await;
    assert_eq!(read(&cache, &model).await.unwrap().unwrap().unwrap(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_cuts_streams_off() {
    let (cache, model) = (answers(), Model::default());
    let reader = read(&cache, &model);
    all_have_run().await;
    model.say(0, 1).await;
    cache.shutdown(SECOND).await;
    let read = reader.await.unwrap().unwrap();
    assert_eq!(read.unwrap_err().kind(), StreamErrorKind::CutOff);
    assert!(!model.is_polled(0));
}

#[tokio::test(start_paused = true)]
async fn while_the_cache_is_off_each_caller_has_a_stream_of_its_own() {
    let (cache, model) = (answers(), Model::default());
    cache.set_mode(Mode::Off);
    let (one, two) = (read(&cache, &model), read(&cache, &model));
    all_have_run().await;
    assert_eq!(model.calls(), 2);
    for call in [0, 1] {
        model.say(call, call as u64).await;
        model.end(call).await;
    }
    let (one, two) = (one.await.unwrap().unwrap().unwrap(), two.await.unwrap().unwrap().unwrap());
    assert_eq!([one, two].concat().iter().sum::<u64>(), 1);
    cache.set_mode(Mode::On);
    assert!(cache.get("key").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_computation_may_return_a_stream_with_a_lifetime_of_its_own() {
    let (cache, model) = (answers(), Model::default());
    let compute = || {
        let produce = model.produce();
        move || async move {
            Ok::<_, tower_stampede::BoxError>(produce().begin().await?.ttl(SECOND).tag("t"))
        }
    };
    let call = |compute| {
        let cache = cache.clone();
        spawn(async move { cache.entry("key").get_or_compute(compute).await.unwrap() })
    };
    let (one, two) = (call(compute()), call(compute()));
    all_have_run().await;
    model.say(0, 7).await;
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    assert_eq!((one.outcome(), two.outcome()), (CacheOutcome::Computed, CacheOutcome::Joined));
    model.end(0).await;
    assert_eq!(one.stream().count().await + two.stream().count().await, 2);
    pass(SECOND + MS).await;
    assert!(cache.get("key").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_running_stream_takes_a_place_until_it_has_ended() {
    let cache: Answers = settings().max_computations(1).build().unwrap();
    let model = Model::default();
    let first = read(&cache, &model);
    all_have_run().await;
    model.say(0, 1).await;
    let other = {
        let (cache, produce) = (cache.clone(), model.produce());
        spawn(async move { cache.entry("other").get_or_stream(produce).await.map(drop) })
    };
    all_have_run().await;
    assert_eq!(model.calls(), 1);
    model.end(0).await;
    assert_eq!(model.calls(), 2);
    first.await.unwrap().unwrap().unwrap();
    other.abort();
}

#[tokio::test(start_paused = true)]
async fn a_chunk_whose_clone_asks_the_cache_stops_nothing() {
    #[derive(Debug)]
    struct Asking(Stampede<Recording<Asking>>);
    impl Clone for Asking {
        fn clone(&self) -> Self {
            let looked = self.0.entry("key").get().now_or_never();
            assert!(looked.is_some());
            drop(self.0.stats());
            Self(self.0.clone())
        }
    }
    let cache: Stampede<Recording<Asking>> = Stampede::in_memory(60 * SECOND);
    let inner = cache.clone();
    let produce =
        move || stream::iter((0..3).map(move |_| Ok::<_, io::Error>(Asking(inner.clone()))));
    let chunks = cache.entry("key").get_or_stream(produce).await.unwrap();
    assert_eq!(chunks.count().await, 3);
    cache.shutdown(SECOND).await;
}
