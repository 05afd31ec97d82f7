//! HTTP-dates around now, in the three forms. Written for the tests alone.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

struct Civil {
    weekday: &'static str,
    year: u64,
    month: &'static str,
    day: u64,
    time: String,
}

fn days_in(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    365 + u64::from(leap)
}

fn days_of(month: usize, year: u64) -> u64 {
    [31, days_in(year) - 337, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month]
}

fn civil(from_now: i64) -> Civil {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seconds = now.saturating_add_signed(from_now);
    let (mut day, second) = (seconds / 86_400, seconds % 86_400);
    let weekday = DAYS[usize::try_from(day % 7).unwrap()];
    let (mut year, mut month) = (1970, 0);
    while day >= days_in(year) {
        day -= days_in(year);
        year += 1;
    }
    while day >= days_of(month, year) {
        day -= days_of(month, year);
        month += 1;
    }
    let (minute, second) = (second / 60, second % 60);
    let time = format!("{:02}:{:02}:{second:02}", minute / 60, minute % 60);
    Civil { weekday, year, month: MONTHS[month], day: day + 1, time }
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, so many seconds from now.
pub(crate) fn date(from_now: i64) -> String {
    in_zone(from_now, "GMT")
}

/// The same digits with another zone behind them.
pub(crate) fn in_zone(from_now: i64, zone: &str) -> String {
    let Civil { weekday, year, month, day, time } = civil(from_now);
    format!("{}, {day:02} {month} {year} {time} {zone}", &weekday[..3])
}

/// `Sunday, 06-Nov-94 08:49:37 GMT`.
pub(crate) fn rfc850(from_now: i64) -> String {
    let Civil { weekday, year, month, day, time } = civil(from_now);
    format!("{weekday}, {day:02}-{month}-{:02} {time} GMT", year % 100)
}

/// `Sun Nov  6 08:49:37 1994`.
pub(crate) fn asctime(from_now: i64) -> String {
    let Civil { weekday, year, month, day, time } = civil(from_now);
    format!("{} {month} {day:2} {time} {year}", &weekday[..3])
}
