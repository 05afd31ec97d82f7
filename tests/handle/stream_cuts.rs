//! Streams of functions that are cut at random points: producers fail, panic or fall silent,
//! callers leave, and the key is invalidated, marked or refreshed in the middle.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;
use tower_stampede::{Mode, Producer, Recording, Stampede, Weigh};

use crate::kit::cases::cases;
use crate::kit::origin::{MS, SECOND};
use crate::kit::spawn;

/// The number of the producer, and that of the chunk.
type Chunk = (usize, usize);
type Answers = Stampede<Recording<Chunk>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    None,
    Fails,
    Panics,
    FallsSilent,
}

/// What one producer has done.
#[derive(Debug)]
struct Life {
    began: Instant,
    produced: usize,
    /// How its stream ended, where that is.
    end: Option<(Cut, Instant)>,
    dropped: Option<Instant>,
    /// Whether the whole may be stored, where it is not too large.
    keeps: bool,
    max_bytes: u64,
}

#[derive(Default, Debug)]
struct Record {
    lives: Vec<Life>,
    /// What lets a second producer begin beside one that runs.
    permits: Vec<Instant>,
    /// Whether any number of producers may run: the mode was switched, the cache shut down,
    /// or what is not kept passes.
    is_free: bool,
    /// When the last invalidation returned.
    invalidated: Option<Instant>,
}

type Shared = Arc<Mutex<Record>>;

struct Counted<S> {
    stream: S,
    record: Shared,
    number: usize,
}

impl Record {
    /// Returns a producer that has begun beside another one, where nothing allows that.
    fn second_at_once(&self) -> Option<usize> {
        let is_beside = |first: &Life, second: &Life| {
            let silence = |(cut, at)| if cut == Cut::FallsSilent { at + SECOND } else { at };
            let over = first.end.map(silence).into_iter().chain(first.dropped).min();
            let mut permits = self.permits.iter();
            over.is_none_or(|over| over > second.began)
                && !permits.any(|at| (first.began..=second.began).contains(at))
        };
        let mut numbers = 1..self.lives.len();
        numbers.find(|at| self.lives[..*at].iter().any(|first| is_beside(first, &self.lives[*at])))
    }
}

impl<S: Stream<Item = io::Result<Chunk>> + Unpin> Stream for Counted<S> {
    type Item = io::Result<Chunk>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.poll_next_unpin(cx)
    }
}

impl<S> Drop for Counted<S> {
    fn drop(&mut self) {
        self.record.lock().lives[self.number].dropped = Some(Instant::now());
    }
}

#[derive(Clone, Copy)]
struct Plan {
    chunks: usize,
    pause: u32,
    cut: Cut,
    keeps: bool,
    max_bytes: u64,
}

fn plan(random: &mut fastrand::Rng, speaks: bool) -> Plan {
    let cut = [Cut::None, Cut::None, Cut::None, Cut::Fails, Cut::Panics, Cut::FallsSilent];
    Plan {
        chunks: random.usize(usize::from(speaks)..12),
        pause: random.u32(0..12),
        cut: cut[random.usize(0..cut.len())],
        keeps: random.u32(0..5) != 0,
        max_bytes: if random.u32(0..5) == 0 { random.u64(0..400) } else { u64::MAX },
    }
}

fn produce(record: &Shared, plan: Plan) -> impl FnOnce() -> Producer<Chunk> + Send + use<> {
    let record = Arc::clone(record);
    move || {
        let Plan { chunks, pause, cut, keeps, max_bytes } = plan;
        let number = {
            let mut record = record.lock();
            record.is_free |= max_bytes != u64::MAX;
            let (began, end) = (Instant::now(), None);
            record.lives.push(Life { began, produced: 0, end, dropped: None, keeps, max_bytes });
            record.lives.len() - 1
        };
        let inner = Arc::clone(&record);
        let chunks = stream::unfold(0, move |next| {
            let record = Arc::clone(&inner);
            async move {
                if pause > 0 {
                    tokio::time::sleep(pause * MS).await;
                }
                if next < chunks {
                    record.lock().lives[number].produced = next + 1;
                    return Some((Ok((number, next)), next + 1));
                }
                if next > chunks {
                    return None;
                }
                record.lock().lives[number].end = Some((cut, Instant::now()));
                match cut {
                    Cut::None => None,
                    Cut::Fails => Some((Err(io::Error::other("away")), next + 1)),
                    // Without the lines of the panic hook, thousands of times.
                    Cut::Panics => std::panic::resume_unwind(Box::new("the producer panics")),
                    Cut::FallsSilent => std::future::pending().await,
                }
            }
        });
        let counted = Counted { stream: Box::pin(chunks), record, number };
        Producer::new(counted).chunk_timeout(SECOND).max_bytes(max_bytes).store_if(move |_| keeps)
    }
}

#[derive(Debug, Default)]
struct Reading {
    chunks: Vec<Chunk>,
    /// Whether the stream has ended without an error.
    end: Option<bool>,
    /// It got more after its end.
    goes_on: bool,
}

fn one_of_one_producer(reading: &[Chunk]) -> bool {
    let first = reading.first().map_or(0, |chunk| chunk.0);
    reading.iter().enumerate().all(|(at, chunk)| *chunk == (first, at))
}

/// Returns which promise was not kept.
async fn cut_streams(seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    // Nothing bounds the wait for a first chunk while the cache is not on, or was shut down.
    let switches = random.u32(0..3) == 0;
    let stale = random.u32(0..3) == 0;
    let mut builder = Stampede::builder("cuts").ttl(30 * SECOND).jitter(0.0);
    builder = builder.compute_timeout(SECOND).wait_timeout(5 * SECOND);
    if stale {
        builder = builder.ttl(random.u32(20..60) * MS).stale_for(60 * SECOND);
    }
    let is_narrow = random.u32(0..6) == 0;
    if is_narrow {
        builder = builder.max_arriving_bytes(random.u64(1..600));
    }
    let cache: Answers = builder.build().map_err(|error| error.to_string())?;
    let record = Shared::default();
    record.lock().is_free = is_narrow;
    let mut readers = Vec::new();
    for _ in 0..random.usize(3..16) {
        tokio::time::sleep(random.u32(0..25) * MS).await;
        let now = Instant::now();
        match random.u32(0..30) {
            0 => {
                record.lock().permits.push(now);
                cache.invalidate("key").await;
                record.lock().invalidated = Some(Instant::now());
            }
            1 => {
                record.lock().permits.push(now);
                cache.invalidate_tag("tag").await;
                record.lock().invalidated = Some(Instant::now());
            }
            2 => {
                record.lock().permits.push(now);
                cache.mark_tag_stale("tag").await;
            }
            3 => {
                record.lock().permits.push(now);
                let (cache, produce) =
                    (cache.clone(), produce(&record, plan(&mut random, switches)));
                readers.push(spawn(async move {
                    let begin = move || async move { produce().begin().await };
                    drop(cache.entry("key").tag("tag").refresh(begin).await);
                    None
                }));
            }
            4 if switches => {
                record.lock().is_free = true;
                let mode = [Mode::On, Mode::Off, Mode::Observe][random.usize(0..3)];
                cache.set_mode(mode);
            }
            5 if switches => {
                record.lock().is_free = true;
                cache.shutdown(10 * MS).await;
            }
            _ => (),
        }
        let (cache, produce) = (cache.clone(), produce(&record, plan(&mut random, switches)));
        let (before, pace, leaves) = (
            random.bool().then(|| random.u32(0..200) * MS),
            random.u32(0..8) * MS,
            (random.u32(0..6) == 0).then(|| random.usize(0..4)),
        );
        let reader = spawn(async move {
            let asked = cache.entry("key").tag("tag").get_or_stream(produce).await;
            let Ok(mut chunks) = asked else { return None };
            if let Some(before) = before {
                tokio::time::sleep(before).await;
            }
            let mut reading = Reading::default();
            while leaves.is_none_or(|most| reading.chunks.len() < most) {
                match chunks.next().await {
                    Some(Ok(chunk)) => reading.chunks.push(chunk),
                    Some(Err(_)) => reading.end = Some(false),
                    None => reading.end = Some(true),
                }
                if reading.end.is_some() {
                    reading.goes_on = chunks.next().await.is_some();
                    break;
                }
                if !pace.is_zero() {
                    tokio::time::sleep(pace).await;
                }
            }
            Some(reading)
        });
        if random.u32(0..8) == 0 {
            let (abort, after) = (reader.abort_handle(), random.u32(0..100) * MS);
            spawn(async move {
                tokio::time::sleep(after).await;
                abort.abort();
            });
        }
        readers.push(reader);
    }
    for reader in readers {
        let Ok(ended) = tokio::time::timeout(600 * SECOND, reader).await else {
            return Err("a reader is stuck".to_owned());
        };
        // It was cut, has panicked with its producer, or has failed before the first chunk.
        let Ok(Some(reading)) = ended else { continue };
        let record = record.lock();
        if !one_of_one_producer(&reading.chunks) || reading.goes_on {
            return Err(format!("{reading:?}"));
        }
        let Some((producer, _)) = reading.chunks.first() else { continue };
        let life = &record.lives[*producer];
        let is_whole =
            matches!(life.end, Some((Cut::None, _))) && life.produced == reading.chunks.len();
        if reading.end == Some(true) && !is_whole {
            return Err(format!("an end without the whole: {reading:?} of {life:?}"));
        }
    }
    // Streams without a reader may still arrive.
    tokio::time::sleep(3 * SECOND).await;
    let stats = cache.stats();
    if (stats.flights, stats.waiting, stats.arriving_bytes) != (0, 0, 0) {
        return Err(format!(
            "left over {} {} {}",
            stats.flights, stats.waiting, stats.arriving_bytes
        ));
    }
    cache.set_mode(Mode::On);
    let stored = cache.entry("key").get().await;
    let record = record.lock();
    if let Some(stored) = stored {
        let Some(chunks) = stored.chunks() else {
            return Err("a stream is stored that arrives".to_owned());
        };
        let chunks: Vec<_> = chunks.copied().collect();
        if let Some((producer, _)) = chunks.first() {
            let life = &record.lives[*producer];
            let is_whole = matches!(life.end, Some((Cut::None, _)))
                && life.produced == chunks.len()
                && one_of_one_producer(&chunks);
            let is_too_large = stored.heap_bytes() as u64 > life.max_bytes;
            if !is_whole
                || is_too_large
                || !life.keeps
                || record.invalidated.is_some_and(|at| life.began < at)
            {
                return Err(format!("stored {chunks:?} of {life:?}, {:?}", record.invalidated));
            }
        }
    }
    if !record.is_free
        && let Some(second) = record.second_at_once()
    {
        return Err(format!("producer {second} began beside another: {record:?}"));
    }
    if record.lives.iter().any(|life| life.dropped.is_none()) {
        return Err(format!("a producer is left: {record:?}"));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn no_stream_that_is_cut_is_stored_or_leaves_a_reader_waiting() {
    let first = cases("STAMPEDE_CUTS_FROM", 0_u64);
    for seed in first..first + cases("STAMPEDE_CUTS", 1_000_u64) {
        if let Err(broken) = cut_streams(seed).await {
            panic!("STAMPEDE_CUTS_FROM={seed}: {broken}");
        }
    }
}
