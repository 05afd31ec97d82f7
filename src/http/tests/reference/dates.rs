//! RFC 9110, 5.6.7, day by day.

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// The seconds of a date in one of the three forms, in any case; `None`: it is
/// none, or before 1970.
pub(super) fn seconds_since_1970(text: &str, now: u64) -> Option<u64> {
    let text = text.to_lowercase();
    let words: Vec<_> = text.split_whitespace().collect();
    let (day, month, year, time) = match words[..] {
        // Sun, 06 Nov 1994 08:49:37 GMT
        [_, day, month, year, time, "gmt"] => (day, month, number(year)?, time),
        // Sunday, 06-Nov-94 08:49:37 GMT
        [_, date, time, "gmt"] => {
            let [day, month, year] = date.split('-').collect::<Vec<_>>()[..] else { return None };
            (day, month, full_year(number(year)?, now), time)
        }
        // Sun Nov  6 08:49:37 1994
        [_, month, day, time, year] => (day, month, number(year)?, time),
        _ => return None,
    };
    let [hour, minute, second] = time.split(':').collect::<Vec<_>>()[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)?;
    let days = days_before(year, month)? + number(day)? - 1;
    Some(((days * 24 + number(hour)?) * 60 + number(minute)?) * 60 + number(second)?)
}

fn number(digits: &str) -> Option<u64> {
    digits.parse().ok()
}

/// Two digits are the last such year that is not more than fifty ahead.
fn full_year(digits: u64, now: u64) -> u64 {
    let this_year = (1970..).find(|year| days_before(*year + 1, 0) > Some(now / 86_400));
    let latest = this_year.unwrap_or(1970) + 50;
    (0..=latest).rev().find(|year| year % 100 == digits).unwrap_or(digits)
}

fn days_before(year: u64, month: usize) -> Option<u64> {
    if !(1970..=9999).contains(&year) {
        return None;
    }
    let years: u64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    let february = if is_leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    Some(years + months[..month].iter().sum::<u64>())
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}
