//! Dictionaries of RFC 9651, as far as directives need them: whole numbers,
//! strings and "true" are told apart from everything else.

/// What a member holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// The digits of a number that is not negative, or the number with its
    /// sign.
    Integer(String),
    True,
    /// A string, as it stands between its quotes.
    Text(String),
    Other,
}

/// What forbids is kept although it is said again: stricter than RFC 9651.
fn is_kept(name: &str) -> bool {
    ["private", "no-cache", "no-store"].contains(&name)
}

/// The members, of which the last of a name counts; `None`: this is no
/// dictionary.
pub(super) fn dictionary(text: &str) -> Option<Vec<(String, Item)>> {
    let mut members: Vec<(String, Item)> = Vec::new();
    let text = text.trim_matches(' ');
    if text.is_empty() {
        return Some(members);
    }
    for member in split(text, ',') {
        let member = member.trim_matches([' ', '\t']);
        let parts = split(member, ';');
        let (bare, parameters) = parts.split_first()?;
        let (name, item) = pair(bare)?;
        for parameter in parameters {
            pair(parameter.trim_start_matches(' '))?;
        }
        members.retain(|(other, _)| *other != name || is_kept(other));
        members.push((name, item));
    }
    Some(members)
}

/// The parts between separators that stand in no string and no inner list.
fn split(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut quoted, mut escaped, mut depth) = (vec![String::new()], false, false, 0);
    for c in text.chars() {
        if c == separator && !quoted && depth == 0 {
            parts.push(String::new());
            continue;
        }
        quoted ^= c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        depth += i32::from(c == '(' && !quoted) - i32::from(c == ')' && !quoted);
        parts.last_mut().expect("there is one from the start").push(c);
    }
    parts
}

fn pair(text: &str) -> Option<(String, Item)> {
    let (name, item) = match text.split_once('=') {
        Some((name, value)) => (name, item(value)?),
        None => (text, Item::True),
    };
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '*');
    let holds = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c);
    (starts && name.chars().all(holds)).then(|| (name.to_owned(), item))
}

fn item(value: &str) -> Option<Item> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let is_integer = (1..=15).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_digit());
    match value.chars().next()? {
        _ if is_integer => Some(Item::Integer(value.to_owned())),
        '-' | '0'..='9' => is_decimal(digits).then_some(Item::Other),
        '"' => string(value).map(Item::Text),
        '?' if value == "?1" => Some(Item::True),
        '?' => (value == "?0").then_some(Item::Other),
        ':' => is_bytes(value).then_some(Item::Other),
        '(' => value.ends_with(')').then_some(Item::Other),
        'A'..='Z' | 'a'..='z' | '*' => is_token(value).then_some(Item::Other),
        _ => None,
    }
}

fn is_decimal(text: &str) -> bool {
    let all = |part: &str, most| {
        (1..=most).contains(&part.len()) && part.chars().all(|c| c.is_ascii_digit())
    };
    text.split_once('.').is_some_and(|(whole, part)| all(whole, 12) && all(part, 3))
}

fn string(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'))?;
    let plain = inner.replace("\\\\", "").replace("\\\"", "");
    (!plain.contains(['"', '\\'])).then(|| inner.to_owned())
}

fn is_bytes(text: &str) -> bool {
    let inner = text.strip_prefix(':').and_then(|rest| rest.strip_suffix(':'));
    inner.is_some_and(|inner| inner.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c)))
}

fn is_token(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(c))
}
