//! Splits a line of `Cache-Control` into its directives (RFC 9111, 5.2).

use std::borrow::Cow;

/// What follows the name of a directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Argument<'a> {
    None,
    Bare(&'a [u8]),
    Quoted(Cow<'a, [u8]>),
}

impl Argument<'_> {
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::None => None,
            Self::Bare(bytes) => Some(bytes),
            Self::Quoted(bytes) => Some(bytes),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive<'a> {
    pub(super) name: &'a [u8],
    pub(super) argument: Argument<'a>,
}

/// The line is no list of directives. What it meant to forbid is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// The directives of one line; ends after the first unreadable one.
pub(super) struct Members<'a> {
    rest: &'a [u8],
}

impl<'a> Members<'a> {
    pub(super) fn of(line: &'a [u8]) -> Self {
        Self { rest: line }
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<Directive<'a>, Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.iter().position(|b| !matches!(b, b',' | b' ' | b'\t'))?;
        let member = read(&self.rest[start..]);
        self.rest = member.as_ref().map_or(&[], |(_, rest)| *rest);
        Some(member.map(|(directive, _)| directive))
    }
}

fn read(text: &[u8]) -> Result<(Directive<'_>, &[u8]), Unreadable> {
    let (name, rest) = split_run(text, is_token);
    let (argument, rest) = match rest {
        [b'=', b'"', rest @ ..] => quoted(rest).ok_or(Unreadable)?,
        [b'=', rest @ ..] => {
            let (argument, rest) = split_run(rest, is_bare);
            (Argument::Bare(argument), rest)
        }
        rest => (Argument::None, rest),
    };
    let (_, rest) = split_run(rest, |b| matches!(b, b' ' | b'\t'));
    if name.is_empty() || !matches!(rest, [] | [b',', ..]) {
        return Err(Unreadable);
    }
    Ok((Directive { name, argument }, rest))
}

/// Reads up to the closing quotation mark; `None` if there is none.
fn quoted(text: &[u8]) -> Option<(Argument<'_>, &[u8])> {
    let mut escaped = false;
    let end = text.iter().position(|&b| {
        let closes = b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        closes
    })?;
    let (content, rest) = (&text[..end], &text[end + 1..]);
    Some((Argument::Quoted(unescape(content)), rest))
}

fn unescape(content: &[u8]) -> Cow<'_, [u8]> {
    if !content.contains(&b'\\') {
        return Cow::Borrowed(content);
    }
    let mut plain = Vec::with_capacity(content.len());
    let mut bytes = content.iter();
    while let Some(&b) = bytes.next() {
        plain.extend(if b == b'\\' { bytes.next().copied() } else { Some(b) });
    }
    Cow::Owned(plain)
}

fn split_run(text: &[u8], belongs: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|&b| !belongs(b)).unwrap_or(text.len()))
}

/// Reads a number; one that is too large is the largest.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let add = |n: u64, b: &u8| n.saturating_mul(10).saturating_add(u64::from(b - b'0'));
    is_number.then(|| digits.iter().fold(0, add))
}

pub(super) fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// More than a token may have: an extension's sloppy argument does no harm,
/// a `;` in place of a comma does.
fn is_bare(b: u8) -> bool {
    !matches!(b, b',' | b';' | b'"' | b' ' | b'\t') && !b.is_ascii_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(line: &str) -> Vec<String> {
        Members::of(line.as_bytes())
            .map(|member| match member {
                Ok(Directive { name, argument }) => {
                    let argument = argument.bytes().map(|a| a.escape_ascii().to_string());
                    format!("{}:{}", name.escape_ascii(), argument.as_deref().unwrap_or("-"))
                }
                Err(Unreadable) => "?".into(),
            })
            .collect()
    }

    #[test]
    fn a_line_is_split_at_commas_outside_quotation_marks() {
        for (line, expected) in [
            ("", &[][..]),
            (" , ,, ", &[]),
            ("a", &["a:-"]),
            ("a=1,b = 2", &["a:1", "?"]),
            (", a=1 ,\tb ,", &["a:1", "b:-"]),
            (r#"a="1, no-store", b"#, &["a:1, no-store", "b:-"]),
            (r#"a="x\"y", b"#, &[r#"a:x\"y"#, "b:-"]),
            (r#"a="", b="#, &["a:", "b:"]),
            ("a=https://x/?y=z", &["a:https://x/?y=z"]),
        ] {
            assert_eq!(read_all(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_no_list_of_directives_is_unreadable_to_its_end() {
        for line in [
            "max-age=1; no-store",
            "a b",
            r#"a="b, no-store"#,
            r#"a="\"#,
            "=1",
            r#"a="b"c"#,
            "\u{e9}",
        ] {
            assert_eq!(read_all(line), ["?"], "{line}");
        }
    }
}
