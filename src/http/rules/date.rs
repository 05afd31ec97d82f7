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
    let text = text.trim_ascii();
    let letters = text.iter().position(|b| !b.is_ascii_alphabetic())?;
    let (weekday, rest) = text.split_at(letters);
    if weekday.len() < 3 {
        return None;
    }
    let fits = |form: &[u8]| rest.len() == form.len() && rest.iter().zip(form).all(matches);
    if fits(IMF) {
        Date::of(rest, 2..4, 5..8, number(&rest[9..13]), 14)?.to_time()
    } else if fits(RFC_850) {
        let in_year = |year| Date::of(rest, 2..4, 5..8, year, 12).and_then(|date| date.to_time());
        of_two_digits(number(&rest[9..11]), now, in_year)
    } else if fits(ASCTIME) {
        Date::of(rest, 5..7, 1..4, number(&rest[17..21]), 8)?.to_time()
    } else {
        None
    }
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

/// A date with a two-digit year is the one within the next 50 years, or else
/// the last one (RFC 9110, 5.6.7). It need not exist in every century.
fn of_two_digits(
    two_digits: u64,
    now: SystemTime,
    in_year: impl Fn(u64) -> Option<SystemTime>,
) -> Option<SystemTime> {
    const YEAR: u64 = 31_556_952;
    let this_year = 1970 + epoch_seconds(now) / YEAR;
    let latest = now.checked_add(Duration::from_secs(50 * YEAR))?;
    let century = this_year - this_year % 100;
    let years = [century + 100, century, century - 100].map(|century| century + two_digits);
    let is_near = |year: &u64| *year <= this_year + 51;
    years
        .into_iter()
        .filter(is_near)
        .map(in_year)
        .find(|date| date.is_none_or(|it| it <= latest))?
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
            ("Thu, 18-Aug-50 02:01:18 GMT", 2_544_400_878),
            // There is none in 2100.
            ("Tuesday, 29-Feb-00 00:00:00 GMT", 951_782_400),
            ("Thu Aug  8 02:01:18 2050", 2_543_536_878),
            ("Thu Aug 18 02:01:18 2050", 2_544_400_878),
            ("Sun, 21 Nov 2286 04:46:39 GMT", 10_000_039_599),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
            // Around a field's value there may be space (RFC 9110, 5.5).
            (" \tSun, 06 Nov 1994 08:49:37 GMT ", 784_111_777),
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
            "Sun, 06  Nov  1994 08:49:37 GMT",
            "Sun,  06 Nov 1994 08:49:37 GMT",
            "Sun 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 06-Nov-1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08.49.37 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "Sun, 06 Nov 1000000 08:49:37 GMT",
            "Sun, 06 Nov -994 08:49:37 GMT",
            "Sun Nov 6 08:49:37 1994",
            "Sun Nov  0 08:49:37 1994",
            "Sun Nov  6 08:49:37 1994 GMT",
            "Sunday, 29-Feb-99 08:49:37 GMT",
            "2024-01-01T00:00:00Z",
            "784111777",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_year_of_two_digits_is_at_most_fifty_years_ahead() {
        // RFC 9110, 5.6.7
        for (now, text, expected) in [
            ("Wed, 01 Jul 2026 00:00:00 GMT", "Mon, 01-Jun-76 00:00:00 GMT", 2076),
            ("Wed, 01 Jul 2026 00:00:00 GMT", "Mon, 01-Aug-76 00:00:00 GMT", 1976),
            ("Wed, 01 Jul 2026 00:00:00 GMT", "Mon, 01-Jun-27 00:00:00 GMT", 2027),
            ("Wed, 01 Jul 2026 00:00:00 GMT", "Mon, 01-Jun-00 00:00:00 GMT", 2000),
            ("Thu, 31 Dec 1998 00:00:00 GMT", "Mon, 01-Jan-05 00:00:00 GMT", 2005),
            ("Thu, 31 Dec 2080 00:00:00 GMT", "Mon, 01-Jan-10 00:00:00 GMT", 2110),
        ] {
            let at = parse(now.as_bytes(), self::now()).unwrap();
            let date = parse(text.as_bytes(), at).unwrap();
            let shown = httpdate::fmt_http_date(date);
            assert!(shown.contains(&format!(" {expected} ")), "{text} at {now}: {shown}");
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
