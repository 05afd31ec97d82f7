//! How origins read a path: all the ways in which real ones do.
//!
//! A rule that shares pages must not be for a path in one reading only: a link to
//! `/account/..%2fstatic/x` would store the account of the client that follows it, by the rule for
//! `/static/`. So a path has a set of readings, and a rule is for the path if it is for all of them.
//!
//! Each step below is what some origins do with a path. An origin may take any of them, in any
//! order, and more than once. The set of readings has the results of all: it is closed under the
//! steps. Most steps shorten a path, so the set is finite, and small for what clients really send.
//! A set that is too large, or whose members depend on more than the path, is no set: nothing is
//! stored for such a path.

use percent_encoding::percent_decode_str;

/// The most readings of a path, and its most bytes. Beyond them nothing is enumerated: that would
/// take longer than to receive the path.
const MOST_READINGS: usize = 32;
const MOST_BYTES: usize = 1 << 10;

/// What origins do with a path; nothing where it stays as it is.
const STEPS: [fn(&str) -> Option<String>; 14] = [
    decode,
    decode_all_but_slashes,
    read_backslashes,
    drop_authority,
    fail_as_url,
    drop_parameters,
    end_at_semicolon,
    end_at_delimiter,
    drop_controls,
    resolve_dots,
    merge_slashes,
    trim_segments,
    drop_cookieless_sessions,
    fold_width,
];

/// Returns whether all origins read this path as it stands. It may be `false` for such a path, too.
pub(crate) fn is_plain(path: &str) -> bool {
    let mut before = 0;
    for (at, &b) in path.as_bytes().iter().enumerate() {
        let is_special = match b {
            b'%' | b';' | b'\\' | b'?' | b'#' => true,
            b'/' => matches!(before, b'/' | b'.'),
            b'.' | b'(' => before == b'/',
            b':' => path.as_bytes().get(at + 1).is_none_or(u8::is_ascii_digit),
            // How full-width characters begin.
            0xEF => true,
            _ => b <= b' ' || b == 0x7F,
        };
        if is_special {
            return false;
        }
        before = b;
    }
    before != b'.'
}

/// Returns all readings of a path, or nothing where they cannot be enumerated.
pub(crate) fn readings(path: &str) -> Option<Vec<String>> {
    if path.len() > MOST_BYTES {
        return None;
    }
    let mut all = vec![as_sent(path)?];
    let mut next = 0;
    while let Some(one) = all.get(next).cloned() {
        if depends_on_the_origin(&one) {
            return None;
        }
        for reading in STEPS.iter().filter_map(|step| step(&one)) {
            if !all.contains(&reading) {
                all.push(reading);
            }
        }
        if all.len() > MOST_READINGS {
            return None;
        }
        next += 1;
    }
    Some(all)
}

/// Returns the path as rules are written: decoded, without empty segments, dots followed.
pub(crate) fn plain_path(path: &str) -> String {
    let path = percent_decode_str(path).decode_utf8_lossy();
    let merged = merge_slashes(&path).unwrap_or(path.into_owned());
    resolve_dots(&merged).unwrap_or(merged)
}

/// Returns the path for an origin that decodes nothing. What cannot stand in a target in any other
/// way is decoded: rules name it so. Nothing where a `%` begins no encoded byte, or where the bytes
/// are no UTF-8: what an origin makes of them depends on its character set.
fn as_sent(path: &str) -> Option<String> {
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&b) = bytes.get(at) {
        if b != b'%' {
            decoded.push(b);
            at += 1;
            continue;
        }
        let encoded = hex(*bytes.get(at + 1)?)? << 4 | hex(*bytes.get(at + 2)?)?;
        match encoded {
            b' ' | b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x80.. => {
                decoded.push(encoded);
            }
            _ => decoded.extend_from_slice(&bytes[at..at + 3]),
        }
        at += 3;
    }
    String::from_utf8(decoded).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Returns whether an origin may read more into a path than the steps do: `%u002e` is a dot to some,
/// and bytes that are no UTF-8 once they are decoded again are read by a character set.
fn depends_on_the_origin(path: &str) -> bool {
    let is_escape = |rest: &str| {
        let digits = rest.get(1..5).unwrap_or_default();
        rest.starts_with(['u', 'U']) && digits.len() == 4 && !digits.contains(|c| !is_hex(c))
    };
    path.contains(char::REPLACEMENT_CHARACTER) || path.split('%').skip(1).any(is_escape)
}

fn is_hex(c: char) -> bool {
    c.is_ascii_hexdigit()
}

fn decode(path: &str) -> Option<String> {
    path.contains('%').then(|| percent_decode_str(path).decode_utf8_lossy().into_owned())
}

/// Apache with `AllowEncodedSlashes NoDecode`, and routers that decode each segment.
fn decode_all_but_slashes(path: &str) -> Option<String> {
    let kept = path.replace("%2f", "%2F").replace("%2F", "%252F");
    (kept.len() > path.len()).then(|| percent_decode_str(&kept).decode_utf8_lossy().into_owned())
}

/// `new URL` and `url.parse` of Node, IIS.
fn read_backslashes(path: &str) -> Option<String> {
    path.contains('\\').then(|| path.replace('\\', "/"))
}

/// RFC 3986, 4.2: after two slashes there is a host. `new URL(req.url, base)` of Node, `parse_url`
/// of PHP, `urlsplit` of Python, `java.net.URI`.
fn drop_authority(path: &str) -> Option<String> {
    // Node skips further slashes; the empty host of others is what `merge_slashes` leaves.
    let authority = path.strip_prefix("//")?.trim_start_matches('/');
    Some(authority.find('/').map_or("/", |at| &authority[at..]).to_owned())
}

/// What such a parser takes for a wrong host or port makes it fail. PHP's does so at `/static/x:80`
/// as well. Applications then show their front page.
fn fail_as_url(path: &str) -> Option<String> {
    let is_port = |(at, _): (usize, &str)| {
        let rest = &path[at + 1..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest.is_empty() || digits > 0 && (digits == rest.len() || rest[digits..].starts_with('/'))
    };
    let fails = path.starts_with("//") || path.match_indices(':').any(is_port);
    fails.then(|| "/".to_owned())
}

fn map_segments(path: &str, change: impl Fn(&str) -> &str) -> Option<String> {
    let changed = path.split('/').map(change).collect::<Vec<_>>().join("/");
    (changed != path).then_some(changed)
}

/// RFC 2396, 3.3: parameters of segments, such as `;jsessionid=1`. Tomcat, Spring, Jetty.
fn drop_parameters(path: &str) -> Option<String> {
    path.contains(';').then(|| map_segments(path, |one| before(one, ';')))?
}

/// Fastify, and `urlparse` of Python in the last segment.
fn end_at_semicolon(path: &str) -> Option<String> {
    path.contains(';').then(|| before(path, ';').to_owned())
}

/// Origins that decode a target before they look for its query, and those whose strings end at a
/// zero byte or whose lines end at a line end.
fn end_at_delimiter(path: &str) -> Option<String> {
    let end = path.find(|c: char| c.is_ascii_control() || matches!(c, '?' | '#'))?;
    Some(path[..end].to_owned())
}

/// The URL standard of browsers removes tabs and line ends.
fn drop_controls(path: &str) -> Option<String> {
    let has_controls = path.contains(|c: char| c.is_ascii_control());
    has_controls.then(|| path.replace(|c: char| c.is_ascii_control(), ""))
}

/// RFC 3986, 5.2.4, with the dots of browsers: `%2e` is one.
fn resolve_dots(path: &str) -> Option<String> {
    let mut segments: Vec<&str> = Vec::new();
    let (mut found, mut ends_in_folder) = (false, false);
    for segment in path.split('/').skip(1) {
        let dots = dots_in(segment);
        ends_in_folder = dots > 0;
        found |= ends_in_folder;
        match dots {
            0 => segments.push(segment),
            1 => {}
            _ => drop(segments.pop()),
        }
    }
    if ends_in_folder {
        segments.push("");
    }
    found.then(|| format!("/{}", segments.join("/")))
}

/// Returns 1 for a segment that stays in its folder, 2 for one that leads out, 0 for any other.
fn dots_in(segment: &str) -> usize {
    let is_dot = |text: &str| text == "." || text.eq_ignore_ascii_case("%2e");
    let is_two = |at: usize| {
        let halves = segment.split_at_checked(at);
        halves.is_some_and(|(first, second)| is_dot(first) && is_dot(second))
    };
    if is_dot(segment) { 1 } else { usize::from(is_two(1) || is_two(3)) * 2 }
}

/// nginx with `merge_slashes`, Apache with `MergeSlashes`, `ServeMux` of Go, Rails, Werkzeug.
fn merge_slashes(path: &str) -> Option<String> {
    if !path.contains("//") {
        return None;
    }
    let mut merged: Vec<_> = path.chars().collect();
    merged.dedup_by(|one, before| *one == '/' && *before == '/');
    Some(merged.into_iter().collect())
}

/// Windows has no names that end in a dot or in a blank.
fn trim_segments(path: &str) -> Option<String> {
    map_segments(path, |one| match one.trim_end_matches(['.', ' ']) {
        "" => one,
        trimmed => trimmed,
    })
}

/// ASP.NET keeps sessions without cookies in a segment: `/(S(token))/account`.
fn drop_cookieless_sessions(path: &str) -> Option<String> {
    let is_session = |segment: &&str| segment.starts_with('(') && segment.ends_with("))");
    let kept: Vec<_> = path.split('/').filter(|one| !is_session(one)).collect();
    let kept = match kept.as_slice() {
        [""] => "/".to_owned(),
        kept => kept.join("/"),
    };
    (kept != path).then_some(kept)
}

/// Full-width characters are ASCII ones where a name is converted to another character set.
fn fold_width(path: &str) -> Option<String> {
    let fold = |c: char| match c {
        '\u{FF01}'..='\u{FF5E}' => char::from_u32(u32::from(c) - 0xFEE0).unwrap_or(c),
        c => c,
    };
    let folded: String = path.chars().map(fold).collect();
    (folded != path).then_some(folded)
}

fn before(text: &str, end: char) -> &str {
    text.split(end).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_really_send_has_one_reading() {
        for path in
            ["/", "/a/b.css", "/a/b-c_d~e/", "/caf\u{e9}", "/a.b/c..d", "/a:b", "/f(x)", "*"]
        {
            assert!(is_plain(path), "{path}");
        }
        for path in ["/", "/a/b.css", "/a/.hidden", "/a%20b", "/caf%C3%A9", "/f(x)/(y)", "/a:b/1"] {
            assert_eq!(readings(path).map(|all| all.len()), Some(1), "{path}");
        }
        assert_eq!(readings("/a%20b/caf%c3%a9%22").unwrap(), ["/a b/caf\u{e9}\""]);
    }

    /// Each row is what one origin reads, and no other row makes up for it.
    #[test]
    fn a_path_has_the_reading_of_each_origin() {
        for (path, reading) in [
            ("/a/..%2fs/x", "/a/..%2fs/x"),
            ("/a/..%2fs/x", "/s/x"),
            ("/a%2Fb%41", "/a%2FbA"),
            ("/%61", "/a"),
            ("/%61", "/%61"),
            ("/%2561", "/a"),
            ("//static/account", "/account"),
            ("//static/account", "/static/account"),
            ("//static/account", "//static/account"),
            ("///static/account", "/account"),
            ("/\\static/account", "/account"),
            ("/%5Cstatic/account", "/account"),
            ("/x/..//static/account", "/account"),
            ("//static", "/"),
            ("/static/x:80", "/"),
            ("/static/x:80/y", "/"),
            ("/static/x%3a", "/"),
            ("/account;/x.css", "/account"),
            ("/account%3B/x.css", "/account"),
            ("/account%253b/x.css", "/account"),
            ("/user;a=b/../x.css", "/user"),
            ("/user;a=b/../x.css", "/x.css"),
            ("/user;a=b/c;d/e", "/user/c/e"),
            ("/s/..;/a", "/a"),
            ("/s/..%5ca", "/a"),
            ("/s/%252e%252e/a", "/a"),
            ("/s/%2E./a", "/a"),
            ("/s/x//../a", "/s/x/a"),
            ("/s/x//../a", "/s/a"),
            ("/a%3fx.css", "/a"),
            ("/a%23x.css", "/a"),
            ("/a%00.css", "/a"),
            ("/a%0a.css", "/a.css"),
            ("/a%20/x", "/a/x"),
            ("/a./x", "/a/x"),
            ("/(S(abc))/a", "/a"),
            ("/(A(b)S(c))", "/"),
            ("/s/%EF%BC%8E%EF%BC%8E/a", "/a"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
        ] {
            let all = readings(path).unwrap();
            assert!(all.iter().any(|one| one == reading), "{path}: {all:?}, not {reading}");
            assert!(!is_plain(path), "{path}");
            assert!(all.iter().all(|one| one.starts_with('/')), "{path}: {all:?}");
        }
    }

    #[test]
    fn what_cannot_be_enumerated_has_no_readings() {
        let many = format!("/%{}", "25".repeat(MOST_READINGS));
        let long = format!("/{}%20", "x".repeat(MOST_BYTES));
        for path in
            ["/%", "/a%2", "/%zz", "/%u002e", "/%25u002e/x", "/%ff", "/%c0%ae/x", "/%25c0%25af"]
                .into_iter()
                .chain([&*many, &*long])
        {
            assert!(!is_plain(path) && readings(path).is_none(), "{path}");
        }
    }

    #[test]
    fn a_path_that_is_not_plain_is_found_by_its_bytes() {
        let pieces =
            ["/", "a", ".", "%2F", "%61", ";", "\\", "(", ")", ":", "8", "\u{FF0F}", " ", "\u{e9}"];
        let mut rng = fastrand::Rng::with_seed(1);
        let mut plain = 0;
        for _ in 0..100_000 {
            let rest: String =
                (0..rng.usize(..6)).map(|_| pieces[rng.usize(..pieces.len())]).collect();
            let path = format!("/{rest}");
            if is_plain(&path) {
                plain += 1;
                assert_eq!(readings(&path), Some(vec![path]));
            }
        }
        assert!(plain > 1000, "{plain}");
    }
}
