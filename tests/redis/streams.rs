//! Streams of functions between processes: one produces, the others get the whole, and nothing
//! that is cut reaches Redis.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tower_stampede::{Chunks, Health, Producer, Recording, Redis, Stampede};

use super::operator_log::OtherProcess;
use crate::kit::origin::{MINUTE, MS, SECOND, settings, within};
use crate::kit::redis::{Server, eventually};
use crate::kit::redis_caches::{DELAYED, LIMIT, OP_TIMEOUT, record, registered};
use crate::kit::spawn;

type Streams = Stampede<Recording<Vec<u8>>>;

/// The lease of processes that give up early.
const LEASE: Duration = Duration::from_secs(4);

fn process(url: &str, op_timeout: Duration, lease: Duration) -> Streams {
    let redis = Redis::lazy(url).unwrap().namespace("stampede").op_timeout(op_timeout);
    let builder = settings().ttl(60 * MINUTE).wait_timeout(LIMIT).lease(lease);
    builder.redis(redis).build().unwrap()
}

async fn listen(caches: &[Streams]) {
    for cache in caches {
        assert!(cache.get("nothing is here").await.is_none());
    }
    eventually("every process is well", || caches.iter().all(|cache| cache.health() == Health::Up))
        .await;
}

/// Processes that do not give up, for exact counts.
async fn patient<const N: usize>(server: &Server) -> [Streams; N] {
    let caches = std::array::from_fn(|_| process(&server.url(), 30 * SECOND, 100 * SECOND));
    listen(&caches).await;
    caches
}

async fn hasty<const N: usize>(server: &Server) -> [Streams; N] {
    let caches = std::array::from_fn(|_| process(&server.url(), OP_TIMEOUT, LEASE));
    listen(&caches).await;
    caches
}

/// The `n`th chunk of a producer: bytes of every kind, and sometimes none.
fn chunk(producer: usize, n: usize) -> Vec<u8> {
    (0..n * 997).map(|byte| (byte ^ (producer * 91)) as u8).collect()
}

fn chunks(producer: usize, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| chunk(producer, n)).collect()
}

type Sender = mpsc::UnboundedSender<Vec<u8>>;

/// Producers that do what the test says, numbered in the order in which they begin.
#[derive(Clone, Default)]
struct Source(Arc<Mutex<Vec<Begun>>>);

/// The way to the readers of a stream, and how many chunks went there; `None` once it has ended.
type Begun = Option<(Sender, usize)>;

impl Source {
    fn produce(&self) -> impl FnOnce() -> Producer<Vec<u8>> + Send + use<> {
        let producers = Arc::clone(&self.0);
        move || {
            let (sender, mut receiver) = mpsc::unbounded_channel();
            producers.lock().unwrap().push(Some((sender, 0)));
            let received = stream::poll_fn(move |cx| receiver.poll_recv(cx));
            Producer::new(received.map(Ok::<_, io::Error>)).chunk_timeout(LIMIT)
        }
    }

    fn calls(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Lets a producer produce so many chunks more.
    fn say(&self, producer: usize, count: usize) {
        let mut producers = self.0.lock().unwrap();
        let (sender, said) = producers[producer].as_mut().expect("it has not ended");
        for _ in 0..count {
            // It is dropped where its stream is of no use.
            let _ = sender.send(chunk(producer, *said));
            *said += 1;
        }
    }

    fn end(&self, producer: usize) {
        self.0.lock().unwrap()[producer] = None;
    }

    /// Asks as a new producer's caller, and returns once that has produced a chunk.
    async fn lead(&self, cache: &Streams, key: &str) -> Chunks<Vec<u8>> {
        let number = self.calls();
        let asking = cache.entry(key).get_or_stream(self.produce());
        let saying = async {
            eventually("it produces", || self.calls() > number).await;
            self.say(number, 1);
        };
        within(LIMIT, async { tokio::join!(asking, saying) }).await.0.unwrap()
    }

    /// Asks, and reads all.
    fn read(&self, cache: &Streams, key: &str) -> JoinHandle<Vec<Vec<u8>>> {
        let (cache, key, produce) = (cache.clone(), key.to_owned(), self.produce());
        spawn(async move {
            let chunks = within(LIMIT, cache.entry(&*key).get_or_stream(produce)).await;
            rest(chunks.expect("no caller fails because of Redis")).await
        })
    }
}

/// Reads to the end.
async fn rest(chunks: Chunks<Vec<u8>>) -> Vec<Vec<u8>> {
    let read = within(LIMIT, chunks.try_collect()).await;
    read.expect("no reader fails because of Redis")
}

fn has_record(server: &Server, key: &str, ending: char) -> bool {
    server.cli(&["EXISTS", &record(key, ending)]).int() == 1
}

/// What a process gets that has nothing of its own.
async fn stored(server: &Server, key: &str) -> Option<Vec<Vec<u8>>> {
    let [fresh] = patient(server).await;
    let stored = fresh.get(key).await?;
    Some(stored.chunks().expect("what is stored is whole").cloned().collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_produces_and_the_other_gets_the_same_bytes_at_the_end() {
    let server = Server::start();
    let (source, [leads, waits, beside]) = (Source::default(), patient(&server).await);
    let leader = source.lead(&leads, "k").await;
    let waiters: Vec<_> = (0..10).map(|_| source.read(&waits, "k")).collect();
    eventually("the other process waits", || registered(&server, "k") == 1).await;
    let own = beside.entry("k").beside_other_processes();
    let number = source.calls();
    assert_eq!(number, 1, "one producer");
    let own = {
        let asking = own.get_or_stream(source.produce());
        let saying = async {
            eventually("it produces beside", || source.calls() == 2).await;
            source.say(1, 3);
            source.end(1);
        };
        within(LIMIT, async { tokio::join!(asking, saying) }).await.0.unwrap()
    };
    assert_eq!(rest(own).await, chunks(1, 3), "live, and not the other's");
    assert!(!has_record(&server, "k", 'v'), "what is produced beside stays in its process");
    source.say(0, 19);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "nothing before the end");
    source.end(0);
    let whole = chunks(0, 20);
    for waiter in join_all(waiters).await {
        assert!(waiter.unwrap() == whole, "byte for byte");
    }
    assert!(rest(leader).await == whole);
    assert!(stored(&server, "k").await == Some(whole));
    let kept = beside.get("k").await.expect("it has its own");
    assert!(kept.chunks().unwrap().eq(&chunks(1, 3)));
    assert_eq!(source.calls(), 2);
}

/// Where the other process finds Redis; it is there in that process alone.
const URL: &str = "KILLED_PRODUCER_REDIS";

/// Produces `k` until it is killed, and says in Redis that it is in the middle.
async fn produce_for_ever(url: &str) {
    let cache = process(url, OP_TIMEOUT, LEASE);
    let endless = stream::unfold(0, |n| async move {
        tokio::time::sleep(MS).await;
        Some((Ok::<_, io::Error>(chunk(7, 1)), n + 1))
    });
    let mut chunks = cache.entry("k").get_or_stream(|| Box::pin(endless)).await.unwrap();
    for _ in 0..20 {
        chunks.next().await.unwrap().unwrap();
    }
    cache.put("middle", Recording::from_iter([Vec::new()])).await;
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_producer_leaves_nothing_and_the_next_process_produces_the_whole() {
    if let Ok(url) = std::env::var(URL) {
        return produce_for_ever(&url).await;
    }
    let server = Server::start();
    let (source, [cache]) = (Source::default(), hasty(&server).await);
    let mut other = OtherProcess::start(URL, &server.url());
    eventually("the other is in the middle", || has_record(&server, "middle", 'v')).await;
    let readers: Vec<_> = (0..10).map(|_| source.read(&cache, "k")).collect();
    eventually("this process waits", || registered(&server, "k") == 1).await;
    assert_eq!(source.calls(), 0);
    other.kill();
    let killed = Instant::now();
    eventually("this process produces", || source.calls() == 1).await;
    assert!(killed.elapsed() < LEASE + DELAYED, "{:?}", killed.elapsed());
    source.say(0, 5);
    assert!(!has_record(&server, "k", 'v'), "nothing incomplete is stored");
    source.end(0);
    for reader in join_all(readers).await {
        assert!(reader.unwrap() == chunks(0, 5), "of one producer, from its beginning");
    }
    eventually("the whole is stored", || has_record(&server, "k", 'v')).await;
    assert!(stored(&server, "k").await == Some(chunks(0, 5)));
    assert_eq!(source.calls(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_lasts_longer_than_its_lease_keeps_it() {
    let server = Server::start();
    let (source, [leads, waits]) = (Source::default(), hasty(&server).await);
    let (leader, begun) = (source.lead(&leads, "k").await, Instant::now());
    let waiter = source.read(&waits, "k");
    eventually("the other process waits", || registered(&server, "k") == 1).await;
    let lease = server.cli(&["GET", &record("k", 'l')]).text();
    assert!(!lease.is_empty());
    let mut count = 1;
    while begun.elapsed() < LEASE * 2 {
        tokio::time::sleep(100 * MS).await;
        source.say(0, 1);
        count += 1;
        assert_eq!(server.cli(&["GET", &record("k", 'l')]).text(), lease, "the same lease");
    }
    source.end(0);
    assert!(waiter.await.unwrap() == chunks(0, count));
    assert!(rest(leader).await == chunks(0, count));
    assert_eq!(source.calls(), 1, "no other process took the lead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_freezes_in_the_middle_fails_no_reader_and_begins_no_stampede() {
    let server = Server::start();
    let (source, [leads, waits]) = (Source::default(), hasty(&server).await);
    let leader = source.lead(&leads, "k").await;
    let mut readers: Vec<_> = (0..10).map(|_| source.read(&leads, "k")).collect();
    let mut waiters: Vec<_> = (0..10).map(|_| source.read(&waits, "k")).collect();
    eventually("the other process waits", || registered(&server, "k") == 1).await;
    server.freeze();
    source.say(0, 1);
    eventually("the other process produces for itself", || source.calls() == 2).await;
    source.say(1, 2);
    readers.extend((0..10).map(|_| source.read(&leads, "k")));
    waiters.extend((0..10).map(|_| source.read(&waits, "k")));
    source.say(0, 3);
    source.end(0);
    source.say(1, 4);
    source.end(1);
    assert!(rest(leader).await == chunks(0, 5));
    for (number, readers, count) in [(0, readers, 5), (1, waiters, 6)] {
        for reader in join_all(readers).await {
            assert!(reader.unwrap() == chunks(number, count), "of one producer");
        }
    }
    assert_eq!(source.calls(), 2, "one in each process");
    server.thaw();
    let stored = stored(&server, "k").await;
    let is_whole = |it: &Vec<Vec<u8>>| *it == chunks(0, 5) || *it == chunks(1, 6);
    assert!(stored.as_ref().is_none_or(is_whole), "a whole, or nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_process_invalidates_in_the_middle_is_not_stored() {
    let server = Server::start();
    let (source, [leads, invalidates]) = (Source::default(), patient(&server).await);
    for is_last in [false, true] {
        let key = if is_last { "last" } else { "first" };
        let old = source.calls();
        let leader = source.lead(&leads, key).await;
        within(LIMIT, invalidates.invalidate(key)).await;
        // It does not wait for what has been invalidated.
        let next = source.lead(&invalidates, key).await;
        let new = old + 1;
        let mut ends = [(old, 3), (new, 2)];
        if is_last {
            ends.reverse();
        }
        for (number, more) in ends {
            source.say(number, more);
            source.end(number);
            let has_ended = || match number == old {
                true => leads.stats().flights == 0,
                false => invalidates.stats().flights == 0,
            };
            eventually("it ends", has_ended).await;
            if number == old && !is_last {
                assert!(!has_record(&server, key, 'v'), "nothing older is stored");
            }
        }
        assert!(rest(leader).await == chunks(old, 4), "its reader gets the rest");
        assert!(rest(next).await == chunks(new, 3));
        assert!(stored(&server, key).await == Some(chunks(new, 3)), "{key}");
        let here = leads.get(key).await.expect("it is in Redis");
        assert!(here.chunks().unwrap().eq(&chunks(new, 3)), "{key}");
    }
}
