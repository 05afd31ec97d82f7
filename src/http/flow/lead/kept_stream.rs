//! A shared stream that arrives, and is stored if it is complete by the layer's rule.

use std::time::Duration;

use bytes::Bytes;

use crate::http::body::{Content, Feed, Limits, PaceRecorder};
use crate::http::rules::streams::SharedStream;

pub(super) struct KeptStream {
    stream: SharedStream,
    heartbeat: Option<Duration>,
    /// For a stream that is replayed at its pace.
    pace: Option<PaceRecorder>,
}

impl KeptStream {
    /// The pace counts from now on, when the head is there.
    pub(super) fn new(stream: SharedStream, feed: &Feed, limits: &Limits) -> Self {
        let (heartbeat, pace) = (stream.heartbeat(limits.declared), stream.is_paced());
        let mut kept = Self { stream, heartbeat, pace: pace.then(PaceRecorder::new) };
        if feed.length() > 0 {
            kept.note(feed.length());
        }
        kept
    }

    /// Notes that so many bytes are there.
    pub(super) fn note(&mut self, length: u64) {
        self.pace.iter_mut().for_each(|pace| pace.note(length));
    }

    /// Returns what is stored of a stream that has ended, if it is complete.
    pub(super) fn complete(self, bytes: Bytes) -> Option<Content> {
        let Self { stream, heartbeat, pace } = self;
        stream.is_complete(&bytes).then(|| match pace {
            None => Content::Whole(bytes),
            Some(pace) => Content::Paced(bytes, pace.finish(heartbeat)),
        })
    }
}
