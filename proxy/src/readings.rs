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
//!
//! Some steps are those of single applications: one takes `é` for `e`, as its database does. Many
//! paths have such readings and are read so by no origin of the site. So these count only against
//! rules that forbid to share.

use percent_encoding::percent_decode_str;
use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

/// The most readings of a path, and its most bytes. Beyond them nothing is enumerated: that would
/// take longer than to receive the path.
const MOST_READINGS: usize = 32;
const MOST_BYTES: usize = 1 << 10;

/// What an origin does with a path; nothing where it stays as it is.
type Step = fn(&str) -> Option<String>;

/// What servers and frameworks do.
const STEPS: [Step; 17] = [
    decode,
    decode_all_but_slashes,
    read_backslashes,
    drop_authority,
    fail_as_url,
    drop_parameters,
    end_at_semicolon,
    end_at_delimiter,
    resolve_dots,
    merge_slashes,
    trim_segments,
    trim_blanks,
    drop_streams,
    drop_cookieless_sessions,
    fold_width,
    |path| without(path, ".."),
    |path| without(path, "../"),
];

/// What single applications do besides.
const STEPS_OF_APPLICATIONS: [Step; 6] =
    [read_plus_as_blank, drop_unusual, fold_letters, end_at_script, begin_after_script, drop_index];

/// How origins read a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Readings {
    /// One rule must be for all of these.
    pub(crate) of_servers: Vec<String>,
    /// No rule may forbid to share one of these.
    pub(crate) of_applications: Vec<String>,
}

/// Returns whether all origins read this path as it stands. It may be `false` for such a path, too.
pub(crate) fn is_plain(path: &str) -> bool {
    // In the segment so far there is a dot.
    let (mut before, mut has_dot) = (0, false);
    for (at, &b) in path.as_bytes().iter().enumerate() {
        let is_special = match b {
            b'%' | b';' | b'\\' | b'?' | b'#' | b'+' => true,
            b'/' => matches!(before, b'/' | b'.') || has_dot && is_script(&path[..at]),
            b'.' => matches!(before, b'/' | b'.'),
            b'(' => before == b'/',
            b':' => path.as_bytes().get(at + 1).is_none_or(|b| b.is_ascii_digit() || *b == b'$'),
            _ => b <= b' ' || b >= 0x7F,
        };
        if is_special {
            return false;
        }
        has_dot = b == b'.' || has_dot && b != b'/';
        before = b;
    }
    before != b'.' && !(has_dot && is_index(last_segment(path)))
}

/// Returns whether a query leads out of a path, for an origin that follows dots before it looks
/// for the query: `path.join(root, request.url)` of Node.
pub(crate) fn climbs(query: &str) -> bool {
    ["..", "%2e", "%2E"].iter().any(|dots| query.contains(dots))
}

/// Returns all readings of a path, or nothing where they cannot be enumerated. The `query` is one
/// that [`climbs`].
pub(crate) fn readings(path: &str, query: Option<&str>) -> Option<Readings> {
    // Bytes above ASCII are no part of a target (RFC 9112, 3.2): some origins take them for
    // characters of another set, some for blanks at which the target ends.
    if path.len() + query.map_or(0, str::len) > MOST_BYTES || !path.is_ascii() {
        return None;
    }
    let mut of_servers = vec![as_sent(path)?];
    close(&mut of_servers, || STEPS.iter())?;
    if let Some(query) = query {
        let mut climbed = vec![as_sent(&format!("{path}?{query}"))?];
        close(&mut climbed, || STEPS.iter())?;
        // What is left of the query is none of the path for this origin, either.
        let is_new = |one: &String| !one.contains('?') && !of_servers.contains(one);
        climbed.retain(is_new);
        of_servers.append(&mut climbed);
    }
    let mut all = of_servers.clone();
    close(&mut all, || STEPS.iter().chain(&STEPS_OF_APPLICATIONS))?;
    let of_applications = all.split_off(of_servers.len());
    Some(Readings { of_servers, of_applications })
}

/// Adds the results of all steps, and of all steps from there.
fn close<'a, I: Iterator<Item = &'a Step>>(
    all: &mut Vec<String>,
    steps: impl Fn() -> I,
) -> Option<()> {
    let mut next = 0;
    while let Some(one) = all.get(next).cloned() {
        if depends_on_the_origin(&one) {
            return None;
        }
        for reading in steps().filter_map(|step| step(&one)) {
            if !all.contains(&reading) {
                all.push(reading);
            }
        }
        if all.len() > MOST_READINGS {
            return None;
        }
        next += 1;
    }
    Some(())
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
/// and bytes that are no UTF-8 once they are decoded again are read by a character set. Control
/// characters and line ends are removed, end the path, or begin a line that `^` of Ruby matches.
fn depends_on_the_origin(path: &str) -> bool {
    let is_escape = |rest: &str| {
        let digits = rest.get(1..5).unwrap_or_default();
        rest.starts_with(['u', 'U']) && digits.len() == 4 && !digits.contains(|c| !is_hex(c))
    };
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{FFFD}');
    path.contains(is_odd) || path.split('%').skip(1).any(is_escape)
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

/// Origins that decode a target before they look for its query.
fn end_at_delimiter(path: &str) -> Option<String> {
    path.find(['?', '#']).map(|end| path[..end].to_owned())
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

/// `trim` and `strip`, and Spring before 4.3 for each segment.
fn trim_blanks(path: &str) -> Option<String> {
    map_segments(path, |one| one.trim_matches(|c: char| c.is_whitespace() || is_hidden(c)))
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

/// `urldecode` of PHP, `URLDecoder` of Java, `unquote_plus` of Python, routes of Sinatra.
fn read_plus_as_blank(path: &str) -> Option<String> {
    path.contains('+').then(|| path.replace('+', " "))
}

/// Filters such as `FILTER_SANITIZE_URL` of PHP. No filter leaves nothing of a name that has letters.
fn drop_unusual(path: &str) -> Option<String> {
    let is_usual = |c: char| c.is_ascii_graphic();
    if path.chars().all(is_usual) {
        return None;
    }
    let vanishes =
        |segment: &str| !segment.contains(is_usual) && segment.contains(char::is_alphanumeric);
    (!path.split('/').any(vanishes)).then(|| path.replace(|c| !is_usual(c), ""))
}

/// Collations of databases, file systems of macOS, strings of Swift.
fn fold_letters(path: &str) -> Option<String> {
    (!path.is_ascii()).then(|| folded(path)).filter(|folded| folded != path)
}

/// Returns a text with one form of all letters that count as the same somewhere: those of both
/// cases, with and without accents, in all widths, and beside characters that are not seen.
pub(crate) fn folded(text: &str) -> String {
    let is_seen = |c: &char| !is_hidden(*c) && !is_combining_mark(*c);
    // Windows has these for separators where a name is converted to another character set.
    let separator = |c: char| match c {
        '\u{2044}' | '\u{2215}' => '/',
        '\u{A5}' | '\u{20A9}' | '\u{2216}' => '\\',
        c => c,
    };
    // The dotless i has one case with i.
    let letters = text.nfkd().filter(is_seen).map(separator).flat_map(char::to_uppercase);
    letters.flat_map(char::to_lowercase).collect()
}

/// Characters without a width.
fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{AD}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
            | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}'
    )
}

/// Programs that get the rest of the path from their server: PHP, CGI, ASP.NET.
fn end_at_script(path: &str) -> Option<String> {
    script_end(path).map(|end| path[..end].to_owned())
}

/// Front controllers, as those of Symfony and Laravel: `/index.php/account` is `/account`.
fn begin_after_script(path: &str) -> Option<String> {
    script_end(path).map(|end| path[end..].to_owned())
}

fn script_end(path: &str) -> Option<usize> {
    path.match_indices('/').map(|(at, _)| at).find(|at| is_script(&path[..*at]))
}

fn is_script(path: &str) -> bool {
    const EXTENSIONS: [&str; 6] = [".php", ".cgi", ".pl", ".py", ".asp", ".aspx"];
    let ends_with = |end: &&str| {
        let at = path.len().checked_sub(end.len());
        at.and_then(|at| path.get(at..)).is_some_and(|last| last.eq_ignore_ascii_case(end))
    };
    EXTENSIONS.iter().any(ends_with)
}

/// Servers answer for a folder with its index.
fn drop_index(path: &str) -> Option<String> {
    let name = last_segment(path);
    is_index(name).then(|| path[..path.len() - name.len()].to_owned())
}

fn is_index(name: &str) -> bool {
    let stem = name.split_once('.').map(|(stem, _)| stem);
    stem.is_some_and(|stem| ["index", "default"].iter().any(|one| stem.eq_ignore_ascii_case(one)))
}

fn last_segment(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// NTFS: `/account::$DATA` is the file, and `/account:$I30:$INDEX_ALLOCATION` the folder.
fn drop_streams(path: &str) -> Option<String> {
    map_segments(path, |one| if one.contains(":$") { before(one, ':') } else { one })
}

/// Applications that remove dots where they should refuse them.
fn without(path: &str, dots: &str) -> Option<String> {
    path.contains(dots).then(|| path.replace(dots, ""))
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
            ["/", "/a/b.css", "/a/b-c_d~e/", "/index", "/a.b/c.d", "/a:b", "/f(x)", "/x.php", "*"]
        {
            assert!(is_plain(path), "{path}");
        }
        for path in ["/", "/a/b.css", "/a/.hidden", "/a%20b", "/caf%C3%A9", "/f(x)/(y)", "/a:b/1"] {
            assert_eq!(readings(path, None).map(|all| all.of_servers.len()), Some(1), "{path}");
        }
        let readings = readings("/a%20b/caf%c3%a9%22", None).unwrap();
        assert_eq!(readings.of_servers, ["/a b/caf\u{e9}\""]);
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
            ("/a%20/x", "/a/x"),
            ("/a./x", "/a/x"),
            ("/(S(abc))/a", "/a"),
            ("/(A(b)S(c))", "/"),
            ("/s/%EF%BC%8E%EF%BC%8E/a", "/a"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
            ("/%EF%BB%BFa", "/a"),
            ("/%20a", "/a"),
            ("/%20/a", "/a"),
            ("/a%C2%A0/x", "/a/x"),
            ("/a::$DATA", "/a"),
            ("/a:$I30:$INDEX_ALLOCATION/x.css", "/a/x.css"),
            ("/a/..", "/a/"),
            ("/a..b", "/ab"),
            ("/a../b", "/ab"),
            ("/a/...", "/a/"),
        ] {
            let all = readings(path, None).unwrap().of_servers;
            assert!(all.iter().any(|one| one == reading), "{path}: {all:?}, not {reading}");
            assert!(!is_plain(path), "{path}");
            assert!(all.iter().all(|one| one.starts_with('/')), "{path}: {all:?}");
        }
    }

    #[test]
    fn dots_in_a_query_lead_out_of_the_path() {
        for query in ["/../../a", "x=/..%2f..%2Fa", "x/%2E%2E/../a#"] {
            assert!(climbs(query));
            let all = readings("/s/x", Some(query)).unwrap().of_servers;
            assert!(all.contains(&"/s/x".to_owned()), "{query}: {all:?}");
            assert!(all.contains(&"/a".to_owned()), "{query}: {all:?}");
        }
        for query in ["a=..b", "a=1..2&b=../c", "a=%2e"] {
            assert!(climbs(query));
            let all = readings("/s/x", Some(query)).unwrap();
            assert_eq!(all.of_servers, ["/s/x"], "{query}");
        }
        assert!(!climbs("a=b.c&d=%252e"));
    }

    #[test]
    fn a_path_has_the_reading_of_each_application() {
        for (path, reading) in [
            ("/a+b", "/a b"),
            ("/a+", "/a"),
            ("/a%E2%80%8Bb", "/ab"),
            ("/a%20b", "/ab"),
            ("/cafe%CC%81", "/cafe"),
            ("/caf%C3%A9", "/cafe"),
            ("/%C3%9Cber", "/uber"),
            ("/%D0%94", "/\u{434}"),
            ("/u%C5%BFer", "/user"),
            ("/d%C4%B1ng", "/ding"),
            ("/s%E2%88%95..%E2%88%95a", "/a"),
            ("/s/%E2%80%A5/a", "/a"),
            ("/index.php/a", "/a"),
            ("/x/APP.PHP/a/b", "/a/b"),
            ("/a.php/x.css", "/a.php"),
            ("/index.php", "/"),
            ("/a/Default.aspx", "/a/"),
        ] {
            let all = readings(path, None).unwrap().of_applications;
            assert!(all.iter().any(|one| one == reading), "{path}: {all:?}, not {reading}");
            assert!(!is_plain(path), "{path}");
            assert!(all.iter().all(|one| one.starts_with('/')), "{path}: {all:?}");
        }
        let all = readings("/%E6%97%A5", None).unwrap();
        assert_eq!(all.of_applications, Vec::<String>::new(), "a name with letters stays a name");
    }

    #[test]
    fn what_cannot_be_enumerated_has_no_readings() {
        let many = format!("/%{}", "25".repeat(MOST_READINGS));
        let long = format!("/{}%20", "x".repeat(MOST_BYTES));
        for path in
            ["/%", "/a%2", "/%zz", "/%u002e", "/%25u002e/x", "/%ff", "/%c0%ae/x", "/%25c0%25af"]
                .into_iter()
                .chain([
                    "/a%00.css",
                    "/a%0a/b",
                    "/a%250a.css",
                    "/a%7f",
                    "/a%C2%85",
                    "/a%E2%80%A8/b",
                ])
                .chain(["/caf\u{e9}", "/a\u{a0}", &*many, &*long])
        {
            assert!(!is_plain(path) && readings(path, None).is_none(), "{path}");
        }
    }

    #[test]
    fn a_path_that_is_not_plain_is_found_by_its_bytes() {
        let pieces = [
            "/", "a", ".", "%2F", "%61", ";", "\\", "(", ")", ":", "8", "$", "+", "\u{e9}",
            "index.", "x.php",
        ];
        let mut rng = fastrand::Rng::with_seed(1);
        let mut plain = 0;
        for _ in 0..100_000 {
            let rest: String =
                (0..rng.usize(..6)).map(|_| pieces[rng.usize(..pieces.len())]).collect();
            let path = format!("/{rest}");
            if is_plain(&path) {
                plain += 1;
                let all = Readings { of_servers: vec![path.clone()], ..Readings::default() };
                assert_eq!(readings(&path, None), Some(all));
            }
        }
        assert!(plain > 1000, "{plain}");
    }
}
