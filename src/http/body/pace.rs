//! When the chunks of a stream came, so that it can be given out at the same pace.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// How many moments are kept of one stream.
pub(crate) const MOST_MARKS: usize = 4096;

/// So many bytes were there after so many milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PaceMark {
    pub(crate) end: u32,
    pub(crate) after: u32,
}

/// The pace of a stored stream. A clone counts a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamPace {
    pub(crate) marks: Arc<[PaceMark]>,
    /// In milliseconds; zero: none.
    pub(crate) heartbeat: u32,
}

impl StreamPace {
    pub(crate) fn heartbeat(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.heartbeat.into())).filter(|every| !every.is_zero())
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.marks.len() * size_of::<PaceMark>()
    }

    /// Returns where the bytes from `at` on end that came together, and after how long they came.
    pub(super) fn next(&self, at: usize, length: usize) -> (usize, Duration) {
        let past = self.marks.partition_point(|mark| mark.end as usize <= at);
        let Some(mark) = self.marks.get(past) else { return (length, Duration::ZERO) };
        ((mark.end as usize).min(length), Duration::from_millis(mark.after.into()))
    }

    /// Returns how long it took until the byte before `at` was there.
    pub(super) fn since_begin(&self, at: usize) -> Duration {
        let past = self.marks.partition_point(|mark| (mark.end as usize) < at);
        let mark = self.marks.get(past).filter(|_| at > 0);
        mark.map_or(Duration::ZERO, |mark| Duration::from_millis(mark.after.into()))
    }
}

/// Records the pace of a stream that arrives.
#[derive(Debug)]
pub(crate) struct PaceRecorder {
    began: Instant,
    marks: Vec<PaceMark>,
    /// What comes within so many milliseconds of a mark belongs to it.
    gap: u32,
}

impl PaceRecorder {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), marks: Vec::new(), gap: 1 }
    }

    /// Notes that so many bytes are there.
    pub(crate) fn note(&mut self, length: u64) {
        let after = u32::try_from(self.began.elapsed().as_millis()).unwrap_or(u32::MAX);
        let mark = PaceMark { end: u32::try_from(length).unwrap_or(u32::MAX), after };
        match self.marks.last_mut() {
            Some(last) if after - last.after < self.gap => last.end = mark.end,
            _ => {
                if self.marks.len() == MOST_MARKS {
                    // Each takes over the bytes of its neighbour; the next ones come as far apart.
                    let pairs = self.marks.chunks(2);
                    self.marks = pairs.map(|two| PaceMark { end: two[1].end, ..two[0] }).collect();
                    self.gap = self.gap.max(after / (MOST_MARKS / 2) as u32);
                }
                self.marks.push(mark);
            }
        }
    }

    pub(crate) fn finish(self, heartbeat: Option<Duration>) -> StreamPace {
        let heartbeat = heartbeat.map_or(0, |every| u32::try_from(every.as_millis()).unwrap_or(0));
        StreamPace { marks: self.marks.into(), heartbeat }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_many_chunks_has_4096_marks_and_keeps_its_pace() {
        let mut recorder = PaceRecorder::new();
        for n in 1..=50_000_u64 {
            tokio::time::advance(Duration::from_millis(10)).await;
            recorder.note(n);
        }
        let pace = recorder.finish(None);
        assert!(pace.marks.len() <= MOST_MARKS && pace.marks.len() > MOST_MARKS / 4);
        assert_eq!(pace.marks.last().map(|mark| mark.end), Some(50_000));
        for at in [0_usize, 1, 777, 25_000, 49_999] {
            let (to, after) = pace.next(at, 50_000);
            let exact = Duration::from_millis(10 * (at as u64 + 1));
            assert!(to > at && after <= exact && exact - after < Duration::from_secs(2), "{at}");
        }
    }
}
