//! Carries a body from the service to its readers, and the response into
//! the store once it is complete.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::StatusCode;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use crate::clock::Tick;
use crate::flight::door::{Arrival, Conclusion};
use crate::http::body::{
    BodyError, BodyErrorKind, Content, Feed, Limits, Next, SourceBody, poll_bytes,
};
use crate::http::flow::fill;
use crate::http::flow::lead::kept_stream::KeptStream;
use crate::http::flow::lead::{note_declined, note_kept};
use crate::http::flow::lookup::HttpCaller;
use crate::http::rules::storable::DeclineReason;
use crate::http::rules::streams::CommentFilter;
use crate::http::stored::response::{HttpCache, StoredResponse};
use crate::mode::Mode;
use crate::stream::shared::Turns;

/// A flight whose answer is published, and whose body arrives.
pub(super) struct ArrivingBody {
    pub(super) arrival: Arrival<StoredResponse, HttpCaller>,
    pub(super) status: StatusCode,
    pub(super) stale_until: Option<Tick>,
    /// What a shared stream needs to be stored.
    pub(super) stream: Option<KeptStream>,
}

impl ArrivingBody {
    fn complete(self, body: Bytes) {
        let Self { arrival, stream, .. } = self;
        let content = match stream {
            None => Some(Content::Whole(body)),
            Some(stream) => stream.complete(body),
        };
        let Some(content) = content else { return arrival.end(Conclusion::NotShared) };
        if let Some(whole) = fill::completed(arrival.place(), arrival.entry(), content) {
            let cache = Arc::clone(&arrival.place().request.cache);
            let _ = note_kept(&cache, arrival.complete(&whole));
        }
    }

    fn decline(self, why: DeclineReason) {
        let Self { arrival, status, stale_until, .. } = self;
        let conclusion = arrival.place().declined(status, why, stale_until);
        let (key, cache) = (arrival.key().clone(), Arc::clone(&arrival.place().request.cache));
        arrival.end(conclusion);
        note_declined(&cache, &key, why);
    }
}

/// The result of waiting for a frame.
enum FrameKind {
    Data,
    /// Data that there is no room to keep.
    Excess,
    Trailers,
    End,
    Broken(BodyError),
}

/// Why a body is not kept any longer.
enum PumpEnd {
    Complete,
    Broken(BodyError),
    Refused(DeclineReason),
    /// There is no reader, and the body is of no use to the cache.
    Deserted,
}

/// The task that reads the source.
///
/// The order of the fields is the order in which they are dropped: a client that learns
/// of the end of a body must not find its flight.
pub(super) struct Pump<B> {
    /// None where nothing is to be stored.
    flight: Option<ArrivingBody>,
    feed: Feed,
    source: Pin<Box<B>>,
    /// Takes the comments of another cache out, whether or not the body is stored: each reader gets its
    /// own.
    comments: CommentFilter,
    limits: Limits,
    cache: Arc<HttpCache>,
    turns: Turns,
}

impl<B: SourceBody> Pump<B> {
    pub(super) fn new(
        flight: Option<ArrivingBody>,
        feed: Feed,
        (source, comments): (Pin<Box<B>>, CommentFilter),
        limits: Limits,
        cache: Arc<HttpCache>,
    ) -> Self {
        Self { flight, feed, source, comments, limits, cache, turns: Turns::default() }
    }

    /// Dropped at any point, it leaves no client waiting: its flight is abandoned,
    /// and the readers get an error.
    pub(super) async fn run(mut self) {
        let stop = self.keep().await;
        let flight = self.flight.take();
        match stop {
            PumpEnd::Complete => {
                let whole = self.feed.whole();
                // Before the readers see the end: a client that has the whole body may
                // request it again.
                flight.into_iter().for_each(|flight| flight.complete(whole.clone()));
                self.feed.end();
            }
            PumpEnd::Broken(error) => {
                flight.into_iter().for_each(|flight| flight.decline(DeclineReason::BrokenOff));
                self.feed.fail(error);
            }
            PumpEnd::Refused(why) => {
                flight.into_iter().for_each(|flight| flight.decline(why));
                self.pass().await;
            }
            // Without the cache the body would be dropped with its client.
            PumpEnd::Deserted => drop(flight),
        }
    }

    /// Reads at the source's own speed, and keeps what comes. Without a reader it goes on
    /// only while the cache is on and the response may still answer a request.
    async fn keep(&mut self) -> PumpEnd {
        let mut until = self.goes_on();
        let mut pauses_at = self.limits.pauses_at();
        loop {
            let before = self.feed.length();
            // The earlier of the two, where there is one.
            let kind = match self.next(pauses_at.into_iter().chain(until).min()).await {
                Ok(Some(next)) => self.hand_on(next),
                Ok(None) => return PumpEnd::Deserted,
                Err(_) if until.is_none_or(|until| until > Instant::now()) => {
                    pauses_at = None;
                    self.flight.iter_mut().for_each(|flight| flight.arrival.pause());
                    continue;
                }
                Err(_) => return PumpEnd::Refused(DeclineReason::Slow),
            };
            match kind {
                FrameKind::Data if self.limits.is_over(self.feed.length()) => {
                    return PumpEnd::Refused(DeclineReason::TooLarge);
                }
                FrameKind::Data if self.feed.length() > before => {
                    (until, pauses_at) = (self.goes_on(), self.limits.pauses_at());
                    let stream = self.flight.as_mut().and_then(|flight| flight.stream.as_mut());
                    stream.into_iter().for_each(|stream| stream.note(self.feed.length()));
                }
                // Empty chunks that are always there never let the timer speak.
                FrameKind::Data if until.is_some_and(|until| until <= Instant::now()) => {
                    return PumpEnd::Refused(DeclineReason::Slow);
                }
                FrameKind::Data => (),
                FrameKind::Excess => return PumpEnd::Refused(DeclineReason::NoRoom),
                FrameKind::Trailers => return PumpEnd::Refused(DeclineReason::Trailers),
                FrameKind::End => return PumpEnd::Complete,
                FrameKind::Broken(error) => return PumpEnd::Broken(error),
            }
            self.turns.let_others_run().await;
        }
    }

    /// Hands a chunk on without comments, and before all else what was held back for one.
    fn filter(&mut self, next: Next) -> Next {
        match next {
            Some(Ok(frame)) if frame.is_data() => {
                Some(Ok(frame.map_data(|chunk| self.comments.take(chunk))))
            }
            next => {
                let held_back = self.comments.finish();
                if !held_back.is_empty() {
                    self.feed.push(held_back);
                }
                next
            }
        }
    }

    /// Returns until when more is expected.
    fn goes_on(&self) -> Option<Instant> {
        let (idle, join) = (self.limits.idle, self.limits.join);
        self.flight.iter().for_each(|flight| flight.arrival.goes_on(idle, join));
        self.limits.idle_until()
    }

    /// Returns whether the body is kept also where no client reads it: it may be stored, and
    /// answer a request.
    fn is_of_use(&self) -> bool {
        let is_kept =
            |flight: &ArrivingBody| self.cache.now() < flight.arrival.entry().window().kept_until();
        self.cache.engine.mode() == Mode::On && self.flight.as_ref().is_some_and(is_kept)
    }

    /// Waits for the next frame; not if the body has its declared length. Returns `None` where
    /// the body is read for no client.
    async fn next(&mut self, until: Option<Instant>) -> Result<Option<Next>, Elapsed> {
        let has_all = self.limits.is_declared(self.feed.length());
        let next = poll_fn(|cx| {
            // In this order: a last reader that goes after the look wakes the task.
            self.feed.watch(cx);
            if !self.is_of_use() && self.feed.give_up() {
                return Poll::Ready(None);
            }
            match poll_bytes(self.source.as_mut(), cx) {
                Poll::Pending if has_all => Poll::Ready(Some(None)),
                next => next.map(Some),
            }
        });
        match until {
            Some(until) => timeout_at(until, next).await,
            None => Ok(next.await),
        }
    }

    fn hand_on(&mut self, next: Next) -> FrameKind {
        let frame = match self.filter(next) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return FrameKind::Broken(error),
            None if self.limits.is_broken(self.feed.length(), true) => return broken_off(),
            None => return FrameKind::End,
        };
        match frame.into_data() {
            Ok(data) => {
                let has_room = data.is_empty() || self.feed.push(data);
                let is_broken = self.limits.is_broken(self.feed.length(), false);
                match has_room {
                    _ if is_broken => broken_off(),
                    true => FrameKind::Data,
                    false => FrameKind::Excess,
                }
            }
            Err(frame) => {
                frame.into_trailers().into_iter().for_each(|fields| self.feed.push_tail(fields));
                FrameKind::Trailers
            }
        }
    }

    /// Reads at the speed of the slowest reader, as long as there is one.
    async fn pass(mut self) {
        self.feed.pass();
        let mut stalls = Box::pin(tokio::time::sleep(self.limits.stall));
        loop {
            let Self { feed, source, limits, .. } = &mut self;
            let next = poll_fn(|cx| {
                let poll = |cx: &mut Context<'_>| poll_bytes(source.as_mut(), cx);
                feed.poll_gated(limits.stall, stalls.as_mut(), cx, poll)
            });
            let Some(next) = next.await else { return };
            match self.hand_on(next) {
                FrameKind::Data | FrameKind::Excess | FrameKind::Trailers => {
                    self.turns.let_others_run().await;
                }
                FrameKind::End => return self.feed.end(),
                FrameKind::Broken(error) => return self.feed.fail(error),
            }
        }
    }
}

fn broken_off() -> FrameKind {
    FrameKind::Broken(BodyError::new(BodyErrorKind::BrokenOff))
}
