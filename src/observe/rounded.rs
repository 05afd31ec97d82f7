//! Durations as a person reads them.

use std::fmt;
use std::time::Duration;

/// Writes a duration in three digits or two units: `123µs`, `12.3ms`, `1.23s`, `5m 30s`, `2h 5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounded(pub(super) Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        let secs = self.0.as_secs_f64();
        // What would be rounded up to the next unit is written in that unit.
        let (value, unit) = match self.0.as_nanos() {
            ..999_500 => (secs * 1e6, "µs"),
            999_500..999_500_000 => (secs * 1e3, "ms"),
            999_500_000..59_950_000_000 => (secs, "s"),
            _ => return two_units(f, self.0),
        };
        let digits = match value {
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        let text = format!("{value:.digits$}");
        let text =
            if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        write!(f, "{text}{unit}")
    }
}

fn two_units(f: &mut fmt::Formatter<'_>, duration: Duration) -> fmt::Result {
    let half_a_second = Duration::from_millis(500);
    let secs = duration.saturating_add(half_a_second).as_secs();
    let (large, small) = match secs {
        ..3_600 => ((secs / 60, "m"), (secs % 60, "s")),
        3_600..86_400 => ((secs / 3_600, "h"), (secs / 60 % 60, "m")),
        _ => ((secs / 86_400, "d"), (secs / 3_600 % 24, "h")),
    };
    write!(f, "{}{}", large.0, large.1)?;
    if small.0 > 0 { write!(f, " {}{}", small.0, small.1) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_in_three_digits_or_two_units() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "0µs"),
            (15_400, "15.4µs"),
            (999_499, "999µs"),
            (999_500, "1ms"),
            (1_234_567, "1.23ms"),
            (250_000_000, "250ms"),
            (999_499_999, "999ms"),
            (999_500_000, "1s"),
            (1_234_567_891, "1.23s"),
            (9_994_000_000, "9.99s"),
            (9_996_000_000, "10s"),
            (30_000_000_000, "30s"),
            (59_949_000_000, "59.9s"),
            (59_950_000_000, "1m"),
            (330_400_000_000, "5m 30s"),
            (3_599_600_000_000, "1h"),
            (7_500_000_000_000, "2h 5m"),
            (90_000_000_000_000, "1d 1h"),
        ] {
            assert_eq!(Rounded(Duration::from_nanos(nanos)).to_string(), text, "{nanos} ns");
        }
        assert!(Rounded(Duration::MAX).to_string().ends_with('h'));
    }
}
