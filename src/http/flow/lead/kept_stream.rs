//! A shared stream that arrives, and is stored if it is complete by the layer's rule.

use std::time::Duration;

use bytes::Bytes;

use crate::http::body::{Content, Feed, Limits, PaceRecorder};
use crate::http::rules::streams::{SharedStream, StreamTail};

pub(super) struct KeptStream {
    stream: SharedStream,
    heartbeat: Option<Duration>,
    /// What has come, where clients get our comments in the place of others.
    tail: Option<StreamTail>,
    /// For a stream that is replayed at its pace.
    pace: Option<PaceRecorder>,
}

impl KeptStream {
    /// The pace counts from now on, when the head is there.
    pub(super) fn new(
        stream: SharedStream,
        feed: &Feed,
        limits: &Limits,
        tail: Option<StreamTail>,
    ) -> Self {
        let (heartbeat, pace) = (stream.heartbeat(limits.declared), stream.is_paced());
        let mut kept = Self { stream, heartbeat, tail, pace: pace.then(PaceRecorder::new) };
        if feed.length() > 0 {
            kept.note(feed.length());
        }
        kept
    }

    /// Notes that so many bytes are there.
    pub(super) fn note(&mut self, length: u64) {
        self.pace.iter_mut().for_each(|pace| pace.note(length));
    }

    /// Returns whether a chunk is a comment of another cache: its stream is silent.
    pub(super) fn is_silent_with(&mut self, chunk: &[u8]) -> bool {
        let Some(tail) = &mut self.tail else { return false };
        let is_silent = tail.is_before_comments(chunk);
        if !is_silent {
            tail.note(chunk);
        }
        is_silent
    }

    /// Returns what is stored of a stream that has ended, if it is complete.
    pub(super) fn complete(self, bytes: Bytes) -> Option<Content> {
        let Self { stream, heartbeat, pace, .. } = self;
        stream.is_complete(&bytes).then(|| match pace {
            None => Content::Whole(bytes),
            Some(pace) => Content::Paced(bytes, pace.finish(heartbeat)),
        })
    }
}
