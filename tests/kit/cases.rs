//! How many cases a random test plays.

use std::str::FromStr;

/// Returns the number that the variable says, and `in_suite` where it is not set.
/// `scripts/searches` sets it, to play more than the suite does.
pub(crate) fn cases<N: FromStr>(variable: &str, in_suite: N) -> N {
    let Ok(text) = std::env::var(variable) else { return in_suite };
    text.parse().unwrap_or_else(|_| panic!("`{variable}` (`{text}`) must be a whole number"))
}
