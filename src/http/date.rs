//! Dates in fields (RFC 9110, 5.6.7). The crate that writes them refuses some
//! that are legal, and a valid `Date` must never be rewritten.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The forms of a date behind its weekday: `#` stands for a digit, `a` for a
/// letter, `_` for a digit or a space.
const IMF: &[u8] = b", ## aaa #### ##:##:## GMT";
const RFC_850: &[u8] = b", ##-aaa-## ##:##:## GMT";
const ASCTIME: &[u8] = b" aaa _# ##:##:## ####";

const MONTHS: &[u8; 36] = b"janfebmaraprmayjunjulaugsepoctnovdec";

/// Reads a date in any of its three forms and in any case. Of the weekday
/// nothing is asked but that it stands there.
pub(crate) fn parse(text: &[u8], now: SystemTime) -> Option<SystemTime> {
    let letters = text.iter().position(|b| !b.is_ascii_alphabetic())?;
    let (weekday, rest) = text.split_at(letters);
    let fits = |form: &[u8]| rest.len() == form.len() && rest.iter().zip(form).all(matches);
    let date = if fits(IMF) {
        Date::of(rest, 2..4, 5..8, number(&rest[9..13]), 14)
    } else if fits(RFC_850) {
        Date::of(rest, 2..4, 5..8, full_year(number(&rest[9..11]), now), 12)
    } else if fits(ASCTIME) {
        Date::of(rest, 5..7, 1..4, number(&rest[17..21]), 8)
    } else {
        return None;
    };
    if weekday.len() < 3 { None } else { date?.to_time() }
}

/// Returns the whole seconds since the epoch.
pub(crate) fn epoch_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn matches((b, form): (&u8, &u8)) -> bool {
    match form {
        b'#' => b.is_ascii_digit(),
        b'a' => b.is_ascii_alphabetic(),
        b'_' => b.is_ascii_digit() || *b == b' ',
        form => b.eq_ignore_ascii_case(form),
    }
}

fn number(digits: &[u8]) -> u64 {
    digits.iter().filter(|b| b.is_ascii_digit()).fold(0, |n, b| n * 10 + u64::from(b - b'0'))
}

/// A two-digit year more than 50 years ahead lies in the past (RFC 9110).
fn full_year(two_digits: u64, now: SystemTime) -> u64 {
    let this_year = 1970 + epoch_seconds(now) / 31_556_952;
    let year = this_year - this_year % 100 + two_digits;
    if year > this_year + 50 { year - 100 } else { year }
}

struct Date {
    year: u64,
    month: u64,
    day: u64,
    seconds: u64,
}

impl Date {
    fn of(
        text: &[u8],
        day: std::ops::Range<usize>,
        month: std::ops::Range<usize>,
        year: u64,
        time: usize,
    ) -> Option<Self> {
        let month =
            MONTHS.chunks(3).position(|name| name.eq_ignore_ascii_case(&text[month.clone()]));
        let month = month? as u64 + 1;
        let part = |at: usize| number(&text[time + at..time + at + 2]);
        let (hour, minute, second) = (part(0), part(3), part(6));
        let day = number(&text[day]);
        let is_valid =
            (1..=days_in(month, year)).contains(&day) && hour < 24 && minute < 60 && second <= 60;
        let seconds = hour * 3600 + minute * 60 + second;
        is_valid.then_some(Self { year, month, day, seconds })
    }

    /// Dates before the epoch are legal and for us as old as the epoch.
    fn to_time(&self) -> Option<SystemTime> {
        let Some(since) = self.year.checked_sub(1970) else { return Some(UNIX_EPOCH) };
        let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
        let years = since * 365 + leap_days(self.year - 1) - leap_days(1969);
        let months: u64 = (1..self.month).map(|month| days_in(month, self.year)).sum();
        let days = years + months + self.day - 1;
        UNIX_EPOCH.checked_add(Duration::from_secs(days * 86_400 + self.seconds))
    }
}

fn days_in(month: u64, year: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2024-01-01
    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_704_067_200)
    }

    fn read(text: &str) -> Option<u64> {
        parse(text.as_bytes(), now()).map(epoch_seconds)
    }

    #[test]
    fn every_form_of_a_date_is_read() {
        // RFC 9110, 5.6.7
        for (text, expected) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("sUN, 06 nOV 1994 08:49:37 gmt", 784_111_777),
            ("Mon, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Sunday, 06-Nov-94 08:49:37 GMT", 784_111_777),
            ("Sun Nov  6 08:49:37 1994", 784_111_777),
            ("Sun Nov 06 08:49:37 1994", 784_111_777),
            ("Thu, 29 Feb 2024 23:59:60 GMT", 1_709_251_200),
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Mon, 01 Jan 0001 00:00:00 GMT", 0),
            ("Friday, 01-Jan-73 00:00:00 GMT", 3_250_454_400),
            ("Tuesday, 01-Jan-75 00:00:00 GMT", 157_766_400),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "0",
            "-1",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 06 Nix 1994 08:49:37 GMT",
            "Sun, 30 Feb 1994 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT, Sun, 06 Nov 1994 08:49:37 GMT",
            ", 06 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_the_usual_crate_writes_is_read(seconds in 0_u64..250_000_000_000) {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            let text = httpdate::fmt_http_date(time);
            prop_assert_eq!(parse(text.as_bytes(), now()), Some(time));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, text in "[A-Za-z]{3,9}(,)? [0-9a-zA-Z :-]{18,25}") {
            let _ = (parse(&bytes, now()), read(&text));
        }
    }
}
