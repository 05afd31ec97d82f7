//! A span of time in four bytes.

use std::time::Duration;

/// The bits of the number; those above say by which power of ten it is multiplied.
const NUMBER_BITS: u32 = 28;
const MOST_NUMBER: u64 = (1 << NUMBER_BITS) - 1;

/// A span with eight decimal digits: nanoseconds, times a power of ten. `60 s`, `250 ms` and every
/// other span that a person writes down are exact; of others the rest is cut off, less than four
/// parts in a hundred million. A longer span has a higher code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShortSpan(u32);

impl ShortSpan {
    pub(crate) const ZERO: Self = Self(0);
    /// Longer than any reading of a clock.
    pub(crate) const MAX: Self = Self(u32::MAX);

    /// Cuts off what has no room.
    pub(crate) fn new(span: Duration) -> Self {
        let mut number = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let mut power = 0;
        while number > MOST_NUMBER {
            number /= 10;
            power += 1;
        }
        Self(power << NUMBER_BITS | number as u32)
    }

    pub(crate) const fn from_code(code: u32) -> Self {
        Self(code)
    }

    pub(crate) const fn code(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn get(self) -> Duration {
        let number = u64::from(self.0) & MOST_NUMBER;
        let factor = 10_u64.pow(self.0 >> NUMBER_BITS);
        Duration::from_nanos(number.saturating_mul(factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_span_that_a_person_writes_down_is_exact() {
        let spans = [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_millis(250),
            Duration::from_secs(60),
            Duration::from_secs(86_400 * 365),
            Duration::from_millis(12_345_678),
        ];
        for span in spans {
            assert_eq!(ShortSpan::new(span).get(), span);
        }
        assert_eq!(
            ShortSpan::new(Duration::MAX).get(),
            Duration::from_nanos(18_446_744_000_000_000_000)
        );
        assert_eq!(ShortSpan::MAX.get(), Duration::from_nanos(u64::MAX));
    }

    proptest! {
        #[test]
        fn what_is_cut_off_is_little_and_longer_spans_stay_longer(a: u64, b: u64, shift in 0..64_u32) {
            let (a, b) = (a >> shift, b >> shift);
            let spans = [a, b].map(Duration::from_nanos);
            let [short, other] = spans.map(ShortSpan::new);
            prop_assert!(short.get() <= spans[0]);
            prop_assert!((spans[0] - short.get()).as_nanos() as f64 <= a as f64 * 4e-8);
            prop_assert!(a > b || short <= other);
        }
    }
}
