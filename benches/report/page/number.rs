//! Numbers as a reader wants them.

/// Whole numbers in full, others to three digits that mean something, with a
/// comma after thousands.
pub(crate) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let plain = format!("{value}");
    if value.abs() >= 1e15 || (value != 0.0 && value.abs() < 1e-4) {
        return format!("{value:.2e}");
    }
    if value.fract() == 0.0 || significant(&plain) <= 3 {
        return with_thousands(&plain);
    }
    // 9.996 has three digits as 10.0, not as 10.00: round first.
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let decimals = (2 - rounded.abs().log10().floor() as i32).max(0) as usize;
    with_thousands(&format!("{value:.decimals$}"))
}

/// As [`short`], shorter still where it is large: beside an axis.
pub(crate) fn tick(value: f64) -> String {
    let large = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match large.into_iter().find(|(size, _)| value.abs() >= *size) {
        Some((size, letter)) if value.abs() >= 1e4 => format!("{}{letter}", short(value / size)),
        _ => short(value),
    }
}

/// With its unit; a number without one is a ratio.
pub(crate) fn with_unit(value: f64, unit: &str) -> String {
    format!("{} {}", short(value), of_so_many(value, if unit.is_empty() { "×" } else { unit }))
}

/// `call` of one, `calls` of all other numbers. What is measured in something
/// as short as `ms` is not counted.
pub(crate) fn of_so_many(value: f64, unit: &str) -> &str {
    let counted = unit.len() > 3 && !unit.contains('/');
    match unit.strip_suffix('s') {
        Some(one) if value == 1.0 && counted => {
            one.strip_suffix("sse").map_or(one, |_| &one[..one.len() - 1])
        }
        _ => unit,
    }
}

/// How many digits from the first that is not 0.
fn significant(plain: &str) -> usize {
    plain.chars().filter(char::is_ascii_digit).skip_while(|digit| *digit == '0').count()
}

fn with_thousands(plain: &str) -> String {
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain), |digits| ("−", digits));
    let (whole, fraction) = digits.find('.').map_or((digits, ""), |point| digits.split_at(point));
    let mut text = String::from(sign);
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text + fraction
}
