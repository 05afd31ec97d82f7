//! A shared stream that arrives, and is stored if it is complete by the layer's rule.

use std::time::Duration;

use bytes::Bytes;

use crate::http::body::{Content, Feed, Limits, PaceRecorder};
use crate::http::rules::streams::{CommentFilter, SharedStream};

pub(super) struct KeptStream {
    stream: SharedStream,
    heartbeat: Option<Duration>,
    /// Clients get our comments in the place of others.
    comments: CommentFilter,
    /// For a stream that is replayed at its pace.
    pace: Option<PaceRecorder>,
}

impl KeptStream {
    /// The pace counts from now on, when the head is there.
    pub(super) fn new(
        stream: SharedStream,
        feed: &Feed,
        limits: &Limits,
        comments: CommentFilter,
    ) -> Self {
        let (heartbeat, pace) = (stream.heartbeat(limits.declared), stream.is_paced());
        let mut kept = Self { stream, heartbeat, comments, pace: pace.then(PaceRecorder::new) };
        if feed.length() > 0 {
            kept.note(feed.length());
        }
        kept
    }

    /// Notes that so many bytes are there.
    pub(super) fn note(&mut self, length: u64) {
        self.pace.iter_mut().for_each(|pace| pace.note(length));
    }

    /// Returns a chunk without comments of another cache. A chunk of nothing else is silence.
    pub(super) fn without_comments(&mut self, chunk: Bytes) -> Bytes {
        self.comments.take(chunk)
    }

    /// Returns what was held back for a comment that did not come.
    pub(super) fn finish(&mut self) -> Bytes {
        self.comments.finish()
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
