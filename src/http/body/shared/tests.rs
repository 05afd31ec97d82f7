use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use crate::budget::{ByteBudget, Reservation};
use crate::http::body::shared::*;
use crate::stream::readers::ReadGate;

const STALL: Duration = Duration::from_secs(5);
const CHUNK: usize = 1024;

/// Memory of the user's, counted.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Room for any body.
fn roomy() -> Reservation {
    ByteBudget::new(u64::MAX).reserve(0).unwrap()
}

struct Fed {
    body: Arc<SharedBody>,
    feed: Feed,
    chunks: Arc<AtomicUsize>,
}

impl Fed {
    fn new(chunks: usize) -> Self {
        let (body, feed) = SharedBody::new(None, roomy());
        let fed = Self { body, feed, chunks: Arc::default() };
        (0..chunks).for_each(|_| fed.push());
        fed
    }

    fn push(&self) {
        self.chunks.fetch_add(1, Ordering::SeqCst);
        let owner = Counted(vec![b'x'; CHUNK], Arc::clone(&self.chunks));
        assert!(self.feed.push(Bytes::from_owner(owner)));
    }

    /// How many chunks are held by the body and its readers.
    fn held(&self) -> usize {
        self.chunks.load(Ordering::SeqCst)
    }

    fn gate(&self) -> ReadGate {
        self.feed.gate(&Context::from_waker(Waker::noop()), STALL)
    }
}

/// Reads so many chunks; the last one may be the end, or not there yet.
fn read(reader: &mut Reader, chunks: usize) {
    for _ in 0..chunks {
        let _ = reader.poll_frame(&Context::from_waker(Waker::noop()));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_to_be_stored_is_kept_and_what_is_not_is_freed_when_all_have_read_it() {
    let fed = Fed::new(10);
    let (mut fast, mut slow) = (fed.body.reader(), fed.body.reader());
    read(&mut fast, 10);
    read(&mut slow, 3);
    assert_eq!(fed.held(), 10);
    fed.feed.pass();
    assert_eq!(fed.held(), 7);
    read(&mut slow, 2);
    assert_eq!(fed.held(), 5);
    fed.push();
    assert_eq!(fed.held(), 6);
    drop(slow);
    assert_eq!(fed.held(), 1, "the share of one who is gone is freed");
    drop(fast);
    assert_eq!(fed.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_evicted_reader_frees_its_share_and_takes_no_part_any_more() {
    let fed = Fed::new(100);
    let (mut fast, mut slow) = (fed.body.reader(), fed.body.reader());
    fed.feed.pass();
    read(&mut fast, 101);
    assert!(matches!(fed.gate(), ReadGate::Closed(Some(_))));
    tokio::time::advance(STALL).await;
    assert_eq!(fed.held(), 100);
    assert_eq!(fed.gate(), ReadGate::Open);
    assert_eq!(fed.held(), 0);
    let cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Some(Err(error))) = slow.poll_frame(&cx) else { panic!("it is told") };
    assert_eq!(error.kind(), BodyErrorKind::Stalled);
    assert!(matches!(slow.poll_frame(&cx), Poll::Ready(None)));
    assert!(slow.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_part_in_a_body_is_had_only_from_its_beginning() {
    let fed = Fed::new(10);
    let mut reader = fed.body.reader();
    read(&mut reader, 1);
    assert!(fed.body.claim().is_some());
    let claim = fed.body.claim();
    fed.feed.pass();
    read(&mut reader, 5);
    assert!(fed.body.claim().is_some(), "as long as somebody holds a claim");
    drop(claim);
    assert!(fed.body.claim().is_none());
    let mut late = fed.body.reader();
    let first = late.poll_frame(&Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Err(error))) = first else { panic!("there is nothing for it") };
    assert_eq!(error.kind(), BodyErrorKind::Ended);
}

#[tokio::test(start_paused = true)]
async fn there_is_no_part_in_a_body_that_has_failed_but_for_those_who_had_it() {
    let fed = Fed::new(1);
    let claim = fed.body.claim();
    let (body, feed) = (fed.body, fed.feed);
    drop(feed);
    assert!(body.claim().is_none());
    let mut reader = body.reader();
    let cx = Context::from_waker(Waker::noop());
    assert!(matches!(reader.poll_frame(&cx), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(reader.poll_frame(&cx), Poll::Ready(Some(Err(_)))));
    drop(claim);
}

#[tokio::test(start_paused = true)]
async fn the_whole_body_is_one_piece_of_its_own() {
    let fed = Fed::new(10);
    let mut reader = fed.body.reader();
    read(&mut reader, 2);
    let whole = fed.feed.whole();
    assert_eq!((whole.len(), fed.held()), (10 * CHUNK, 0));
    let next = reader.poll_frame(&Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Ok(frame))) = next else { panic!("there is more") };
    assert_eq!(frame.into_data().unwrap(), whole.slice(2 * CHUNK..));
}
