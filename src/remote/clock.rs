//! The remote's time in readings of this process's clock, and back.
//!
//! A reply carries the remote's time; it was read somewhere between the request
//! and the reply, so the two clocks are known to differ by an amount that is
//! uncertain by the round trip. Both translations take the end of that range at
//! which a value is *older*: a slow reply can make a value look too old by the
//! round trip of the best sample, never too young. The same holds for the
//! remote's milliseconds, which are cut off, and for the drift of the clocks.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::lease::grant::ServerTime;

/// A better sample is not kept for ever: clocks drift.
const KEEPS_FOR: Duration = Duration::from_secs(60);
/// Clocks drift apart by at most 1 in so many; NTP corrects by no more either.
const DRIFT: i128 = 2000;
const NANOS_PER_MILLI: i128 = 1_000_000;
/// More than any drift between two samples.
const JUMP: i128 = 1_000 * NANOS_PER_MILLI;

/// Translates between the remote's time and the process's.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<ClockState>);

#[derive(Debug, Default)]
struct ClockState {
    best: Option<Sample>,
    /// The next sample counts, however slow it is.
    replace: bool,
    /// How often the remote's clock was seen to have been set.
    jumps: u64,
}

impl ServerClock {
    /// Takes the remote's time `now` out of a reply to what was `sent`.
    pub(crate) fn sample(&self, sent: Tick, received: Tick, now: ServerTime) {
        let sample = Sample { sent: sent.min(received), received, now };
        let mut state = self.0.lock();
        if state.replace || state.best.is_none_or(|best| best.yields_to(&sample)) {
            let has_jumped =
                !state.replace && state.best.is_some_and(|best| best.gap(&sample) > JUMP);
            let jumps = state.jumps + u64::from(has_jumped);
            *state = ClockState { best: Some(sample), replace: false, jumps };
        }
    }

    /// Returns how often the remote's clock was seen to have been set. What was dated before is
    /// to be dated again.
    pub(crate) fn jumps(&self) -> u64 {
        self.0.lock().jumps
    }

    /// Returns whether the remote's time is known, and not in question.
    pub(crate) fn is_set(&self) -> bool {
        let state = self.0.lock();
        state.best.is_some() && !state.replace
    }

    /// Returns when it was `at`, or a little earlier. `None` before the first
    /// sample. Of a time to come it is a reading to come: the caller decides
    /// what that means.
    pub(crate) fn tick_of(&self, at: ServerTime) -> Option<Tick> {
        self.0.lock().best.map(|best| best.tick_of(at))
    }

    /// Returns the remote's time at `at`, or a little earlier. `None` before the
    /// first sample.
    pub(crate) fn server_time(&self, at: Tick) -> Option<ServerTime> {
        self.0.lock().best.map(|best| best.server_time(at))
    }

    /// Begins again after a reconnect, which may lead to another server: the next
    /// sample replaces the present one, which serves until then.
    pub(crate) fn reset(&self) {
        self.0.lock().replace = true;
    }
}

/// The remote's clock showed `now` between two readings of our own clock.
#[derive(Clone, Copy, Debug)]
struct Sample {
    sent: Tick,
    received: Tick,
    now: ServerTime,
}

impl Sample {
    fn round_trip(&self) -> Duration {
        self.received.since(self.sent)
    }

    fn yields_to(&self, new: &Self) -> bool {
        new.round_trip() <= self.round_trip()
            || new.received.since(self.received) > KEEPS_FOR
            || self.gap(new) > 0
    }

    /// Returns by how much the clocks differ more, or less, at the one than at the other, in
    /// nanoseconds. Above 0 no difference of the clocks explains both: one has jumped. The
    /// remote's clock was set where it is far.
    fn gap(&self, other: &Self) -> i128 {
        let (least, most) = self.offset();
        let (other_least, other_most) = other.offset();
        (other_least - most).max(least - other_most)
    }

    /// By how much the remote's clock is ahead of this process's clock, in nanoseconds.
    fn offset(&self) -> (i128, i128) {
        let now = nanos(self.now);
        let sent = i128::from(self.sent.as_nanos());
        let received = i128::from(self.received.as_nanos());
        (now - received, now + NANOS_PER_MILLI - sent)
    }

    fn tick_of(&self, at: ServerTime) -> Tick {
        let (_, most) = self.offset();
        let drift = (nanos(at) - nanos(self.now)).abs() / DRIFT;
        Tick::from_nanos(clamped(nanos(at) - most - drift))
    }

    fn server_time(&self, at: Tick) -> ServerTime {
        let (least, _) = self.offset();
        let at = i128::from(at.as_nanos());
        let drift = (at - i128::from(self.received.as_nanos())).abs() / DRIFT;
        ServerTime::from_millis(clamped((at + least - drift).div_euclid(NANOS_PER_MILLI)))
    }
}

fn nanos(time: ServerTime) -> i128 {
    i128::from(time.as_millis()) * NANOS_PER_MILLI
}

fn clamped(number: i128) -> u64 {
    u64::try_from(number.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Milliseconds as a reading of this process's clock, far from its ends.
    fn tick(millis: u64) -> Tick {
        Tick::from_nanos((1_000_000_000 + millis) * MS)
    }

    fn server(millis: u64) -> ServerTime {
        ServerTime::from_millis(1_700_000_000_000 + millis)
    }

    /// Whether the clock goes by the sample that was sent at `sent`.
    fn keeps(clock: &ServerClock, sent: u64, now: u64) -> bool {
        clock.tick_of(server(now)) == Some(tick(sent - 1))
    }

    fn known(sent: u64, received: u64, now: u64) -> ServerClock {
        let clock = ServerClock::default();
        clock.sample(tick(sent), tick(received), server(now));
        clock
    }

    #[test]
    fn nothing_is_known_before_the_first_sample() {
        let clock = ServerClock::default();
        assert_eq!(clock.tick_of(server(0)), None);
        assert_eq!(clock.server_time(tick(0)), None);
    }

    #[test]
    fn a_value_looks_too_old_by_the_round_trip_and_never_too_young() {
        // Somewhere between 1000 and 1400 the remote's clock showed 0.
        let clock = known(1000, 1400, 0);
        assert_eq!(clock.tick_of(server(0)), Some(tick(999)));
        assert_eq!(clock.server_time(tick(1400)), Some(server(0)));
        assert!(clock.server_time(tick(1200)).unwrap() < server(0));
    }

    #[test]
    fn the_quickest_reply_is_kept() {
        let clock = known(1000, 1400, 200);
        clock.sample(tick(2000), tick(2010), server(1005));
        assert!(keeps(&clock, 2000, 1005));
        clock.sample(tick(3000), tick(3400), server(2200));
        assert!(keeps(&clock, 2000, 1005), "a slower one says nothing better");
        clock.sample(tick(4000), tick(4010), server(3001));
        assert!(keeps(&clock, 4000, 3001), "one as quick is newer");
    }

    #[test]
    fn after_a_minute_a_slower_reply_counts() {
        let clock = known(1000, 1010, 5);
        clock.sample(tick(60_910), tick(61_010), server(59_955));
        assert!(keeps(&clock, 1000, 5), "60 s and no more");
        clock.sample(tick(60_911), tick(61_011), server(59_956));
        assert!(keeps(&clock, 60_911, 59_956));
    }

    #[test]
    fn a_clock_that_jumps_either_way_replaces_what_was_known() {
        for jumped in [500_000, 1_500_000] {
            let clock = known(0, 1, 1_000_000);
            // As slow as it may be: the two cannot both be right.
            clock.sample(tick(10), tick(210), server(jumped));
            let now = clock.tick_of(server(jumped)).unwrap();
            assert_eq!(now, tick(9), "{jumped}");
        }
    }

    #[test]
    fn a_difference_that_the_round_trips_explain_is_no_jump() {
        let clock = known(0, 10, 1000);
        let before = clock.tick_of(server(1000));
        for (sent, received, now) in [(20, 220, 1020), (20, 220, 1210), (20, 220, 1115)] {
            clock.sample(tick(sent), tick(received), server(now));
            assert_eq!(clock.tick_of(server(1000)), before, "{now}");
        }
    }

    #[test]
    fn after_a_reset_the_next_sample_counts_and_the_old_one_serves_until_then() {
        let clock = known(0, 1, 0);
        clock.reset();
        assert!(clock.tick_of(server(0)).is_some());
        clock.sample(tick(10), tick(510), server(300));
        assert_eq!(clock.tick_of(server(300)), Some(tick(9)));
        clock.sample(tick(1010), tick(1511), server(1300));
        assert_eq!(clock.tick_of(server(300)), Some(tick(9)), "once");
    }

    #[test]
    fn far_from_the_sample_drift_counts_as_age() {
        let clock = known(0, 0, 0);
        let day = 24 * 3600 * 1000;
        let back = clock.tick_of(server(0)).unwrap();
        let ahead = clock.tick_of(server(day)).unwrap();
        assert_eq!(ahead.since(back), Duration::from_millis(day - day / 2000));
    }

    proptest! {
        #[test]
        fn nothing_overflows(sent: u64, received: u64, now: u64, at: u64, tick: u64, second: u64) {
            let clock = ServerClock::default();
            clock.sample(Tick::from_nanos(sent), Tick::from_nanos(received), ServerTime::from_millis(now));
            clock.sample(Tick::from_nanos(received), Tick::from_nanos(sent), ServerTime::from_millis(second));
            prop_assert!(clock.tick_of(ServerTime::from_millis(at)).is_some());
            prop_assert!(clock.server_time(Tick::from_nanos(tick)).is_some());
        }

        /// A remote whose clock is right, up to drift; replies of any delay.
        #[test]
        fn no_reply_however_slow_makes_a_value_look_young(
            ahead in 0..10_000_000_u64,
            replies in proptest::collection::vec((0..100_000_u64, 0..3000_u64, 0..3000_u64), 1..20),
            computed in 0..3_000_000_u64,
        ) {
            let clock = ServerClock::default();
            let mut now = 0;
            // In units of 10 us, which the remote's clock cuts to whole ms.
            let ours = |at: u64| Tick::from_nanos(at * 10_000);
            let theirs = |at: u64| ServerTime::from_millis((at + ahead) / 100);
            for (pause, there, back) in replies {
                let sent = now + pause;
                let received = sent + there + back;
                clock.sample(ours(sent), ours(received), theirs(sent + there));
                now = received;
            }
            prop_assert!(clock.tick_of(theirs(computed)).unwrap() <= ours(computed));
            prop_assert!(clock.server_time(ours(computed)).unwrap() <= theirs(computed));
        }
    }
}
