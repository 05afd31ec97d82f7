//! Models of a stream that several threads feed, read and leave: see `src/flight/model/`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use shuttle::future::block_on;

use crate::budget::ByteBudget;
use crate::error::{BoxError, Error};
use crate::flight::model::{check, choice, join_all, pause, spawn};
use crate::stream::chunks::{ChunkLine, Weighed};
use crate::stream::rest::StreamFlight;
use crate::stream::shared::{FedReader, FedStream, StreamFeed};
use crate::stream::{CutOff, Medium, Producer, Recording, StreamPart};
use crate::sync::{AtomicUsize, Ordering};

/// A day: no timer comes due.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Chunks of which the source may be two ahead.
enum Narrow {}

impl Medium for Narrow {
    type Chunk = Weighed<u64>;
    type Held = ChunkLine<u64>;
    type Tail = ();
    type Error = CutOff;

    const WINDOW: u64 = 2;

    fn cut_off(why: CutOff) -> CutOff {
        why
    }
}

fn chunk(chunk: u64) -> Weighed<u64> {
    Weighed { chunk: Arc::new(chunk), bytes: 1 }
}

/// Reads to the end, or so many chunks.
async fn read(reader: &mut FedReader<Narrow>, most: usize) -> (Vec<u64>, Option<CutOff>) {
    let mut read = Vec::new();
    while read.len() < most {
        match poll_fn(|cx| reader.poll_part(cx)).await {
            Some(Ok(StreamPart::Chunk(held))) => read.push(*held.chunk),
            Some(Ok(StreamPart::Tail(()))) | None => break,
            Some(Err(why)) => return (read, Some(why)),
        }
    }
    (read, None)
}

/// Feeds three chunks as fast as the readers allow, and ends.
fn feed_gated(feed: StreamFeed<Narrow>) {
    let mut stalls = Box::pin(tokio::time::sleep(LONG));
    let mut next = 0;
    block_on(async {
        while next < 3 {
            let gate =
                poll_fn(|cx| feed.poll_gated(LONG, stalls.as_mut(), cx, |_| Poll::Ready(())));
            if gate.await.is_none() {
                return;
            }
            feed.push(chunk(next));
            next += 1;
        }
        feed.end();
    });
}

#[test]
fn a_reader_that_registers_while_a_chunk_is_pushed_gets_all_chunks_and_the_end() {
    check(|| {
        let (shared, feed) = FedStream::<Narrow>::new(None, None);
        let readers = (0..2).map(|_| {
            let mut reader = shared.reader();
            spawn(move || assert_eq!(block_on(read(&mut reader, 9)), (vec![0, 1, 2], None)))
        });
        let mut threads: Vec<_> = readers.collect();
        let other = Arc::clone(&shared);
        threads.push(spawn(move || {
            pause();
            let mut late = other.reader();
            let expected = match late.id == u64::MAX {
                true => (vec![], Some(CutOff::Ended)),
                false => (vec![0, 1, 2], None),
            };
            assert_eq!(block_on(read(&mut late, 9)), expected, "it gets all or nothing");
        }));
        // From some chunk on, or never, nothing is kept that all have read.
        let passes_before = u64::from(choice(6));
        for next in 0..3 {
            pause();
            if next == passes_before {
                feed.pass();
            }
            feed.push(chunk(next));
        }
        if passes_before == 3 {
            feed.pass();
        }
        feed.end();
        join_all(threads);
    });
}

#[test]
fn a_source_that_waits_for_the_slowest_reader_goes_on_when_that_reads_or_leaves() {
    check(|| {
        let (shared, feed) = FedStream::<Narrow>::new(None, None);
        let (mut stays, mut leaves) = (shared.reader(), shared.reader());
        let after = choice(3) as usize;
        feed.pass();
        let stays = spawn(move || assert_eq!(block_on(read(&mut stays, 9)), (vec![0, 1, 2], None)));
        let leaves = spawn(move || {
            let (read, why) = block_on(read(&mut leaves, after));
            assert_eq!((read.len(), why), (after, None));
        });
        let feeds = spawn(move || feed_gated(feed));
        join_all([stays, leaves, feeds]);
        assert_eq!(shared.look(|state| crate::stream::Held::end(&state.held)), 3);
    });
}

/// The flight of a stream that is of no use without a reader. Counts how it ends.
struct Useless {
    ended: Arc<AtomicUsize>,
    chunks: usize,
}

impl Drop for Useless {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl StreamFlight<Recording<u64>> for Useless {
    fn goes_on(&self, _: Duration) {}

    fn is_of_use(&self) -> bool {
        false
    }

    fn complete(self: Box<Self>, whole: Recording<u64>, _: bool) -> BoxFuture<'static, ()> {
        assert_eq!(whole.chunks().expect("it is whole").len(), self.chunks);
        Box::pin(async move { drop(self) })
    }

    fn fail(self: Box<Self>, _: Error) -> BoxFuture<'static, ()> {
        panic!("the source does not fail")
    }

    fn is_late(self: Box<Self>) -> BoxFuture<'static, ()> {
        panic!("no timer comes due")
    }

    fn decline(self: Box<Self>) -> BoxFuture<'static, ()> {
        panic!("there is room")
    }
}

#[test]
fn the_last_reader_that_leaves_while_the_source_ends_leaves_no_task_and_no_reader_behind() {
    check(|| {
        let (ends, chunks) = (choice(2) == 0, 1 + choice(2) as usize);
        // Where the source does not end, no chunk wakes its task: the last reader does.
        let source = stream::iter(0..chunks as u64).then(|chunk| async move {
            shuttle::future::yield_now().await;
            Ok::<u64, BoxError>(chunk)
        });
        let source = match ends {
            true => source.boxed(),
            false => source.chain(stream::pending()).boxed(),
        };
        let producer = Producer::new(source).chunk_timeout(LONG);
        let begun = block_on(producer.begin()).expect("its first chunk comes");
        let (recording, rest) = (begun.value, begun.rest.expect("it has just begun"));
        let ended = Arc::new(AtomicUsize::new(0));
        let flight = Box::new(Useless { ended: Arc::clone(&ended), chunks });
        let reserved = ByteBudget::new(1 << 20).reserve(0);
        let drive = rest.drive(Some(flight), reserved).expect("it is driven once");
        let drives = spawn(move || block_on(drive));
        let other = recording.clone();
        let leave = spawn(move || {
            let mut own = recording.stream();
            for _ in 0..choice(1 + chunks as u32) {
                assert!(matches!(block_on(own.next()), Some(Ok(_))));
            }
        });
        let comes = spawn(move || {
            pause();
            let mut late = other.stream();
            if late.is_late() {
                return;
            }
            // While it reads the stream is not given up. It leaves when it has all there is.
            for next in 0..chunks as u64 {
                assert_eq!(block_on(late.next()).and_then(Result::ok), Some(next));
            }
            assert!(!ends || block_on(late.next()).is_none());
        });
        join_all([leave, comes, drives]);
        assert_eq!(ended.load(Ordering::SeqCst), 1, "its flight has ended once");
    });
}
