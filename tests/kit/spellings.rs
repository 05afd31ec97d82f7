//! Spellings of paths that origins read in several ways, and rules that they try to get around.

#![allow(dead_code, reason = "each test binary uses a part")]

use fastrand::Rng;

/// Rules in the file of a proxy, for the pages of [`page`].
pub(crate) const RULES: &str = r#"
[cache]
ttl = "1h"
[[rule]]
name = "account"
glob = "/account/**"
bypass = true
[[rule]]
name = "user"
glob = "/user"
bypass = true
[[rule]]
name = "open"
prefix = "/"
hosts = ["*.open.test"]
public = true
ttl = "1h"
[[rule]]
name = "home"
glob = "/"
bypass = true
[[rule]]
name = "styles"
glob = "/**/*.css"
public = true
ttl = "1h"
[[rule]]
name = "static"
prefix = "/static/"
public = true
ttl = "1h"
"#;

/// Returns the page that a site has at a path, once the path is read.
pub(crate) fn page(path: &str) -> &'static str {
    match path {
        "" | "/" => "home",
        "/user" => "user",
        _ if path == "/account" || path.starts_with("/account/") => "account",
        _ if path.ends_with(".css") => "styles",
        _ if path == "/static" || path.starts_with("/static/") => "static",
        _ => "none",
    }
}

/// Returns whether a rule permits to share a page. Below `open.test` all are shared but two.
pub(crate) fn is_public(page: &str, host: &str) -> bool {
    match host.ends_with(".open.test") {
        true => !matches!(page, "account" | "user"),
        false => matches!(page, "styles" | "static"),
    }
}

const PRIVATE: [&str; 7] =
    ["/account", "/account/orders", "/user", "/", "/Account", "/account/", "/none"];

const PUBLIC: [&str; 6] =
    ["/static/x", "/static/a/b.png", "/x.css", "/a/y.css", "/static/z.css", "/static/"];

/// What may stand between two paths, so that an origin reads one of them alone.
const BETWEEN: [&str; 25] = [
    ";", ";a=b", "%3b", "%253B", "?", "%3F", "%23", "%00", "%0a", "%09", "%20", "%2e", ".", ":80",
    "%3A8080", ":", "\\", "%5c", "/.", "/", "/(S(x))", "/..;", "%2f", "%252f", "",
];

/// What an origin takes out of a name: blanks, accents, characters without a width, streams.
const NOTHING: [&str; 16] = [
    "%20",
    "+",
    "%C2%A0",
    "%E3%80%80",
    "%CC%81",
    "%E2%80%8B",
    "%C2%AD",
    "%EF%BB%BF",
    "\u{a0}",
    "\u{e0}",
    "..",
    "::$DATA",
    ":$I30:$INDEX_ALLOCATION",
    "%3A:$DATA",
    "%0b",
    "%7F",
];

/// Letters that an origin takes for others: by their case, their accent or their width.
const LETTERS: [(char, &[&str]); 6] = [
    ('a', &["%C3%A0", "%C4%80", "%EF%BD%81", "a%CC%81"]),
    ('c', &["%C3%A7", "%E2%85%BD"]),
    ('o', &["%C3%B6", "%C2%BA"]),
    ('s', &["%C5%BF", "%CB%A2"]),
    ('e', &["%C3%A9", "%E1%B5%89"]),
    ('u', &["%C3%BC", "%E1%B5%98"]),
];

/// Scripts that get the rest of the path.
const SCRIPTS: [&str; 4] = ["/index.php", "/INDEX.php", "/app.php", "/x/../index.php"];

/// Ways to leave a folder.
const UP: [&str; 14] = [
    "/..",
    "/%2e%2e",
    "/.%2E",
    "/..;",
    "/..;a",
    "\\..",
    "%5c..",
    "%2f..",
    "/%252e%252e",
    "/..%00",
    "/%EF%BC%8E%EF%BC%8E",
    "/. .",
    "/..%20",
    "//..",
];

/// Ways to begin a path with a host.
const SLASHES: [&str; 10] =
    ["//", "///", "/\\", "\\/", "/%2f", "/%2F/", "/%5C", "//h:x/", "//u@h:80/", "/.//"];

fn one_of<'a>(rng: &mut Rng, list: &[&'a str]) -> &'a str {
    list[rng.usize(..list.len())]
}

/// Draws a path. Some of them are plain; most lead to a page in one reading, and to another page in
/// another one.
pub(crate) fn spelling(rng: &mut Rng) -> String {
    let (private, public) = (one_of(rng, &PRIVATE), one_of(rng, &PUBLIC));
    let mut path = match rng.u8(..11) {
        0 => public.to_owned(),
        1 => {
            let host = one_of(rng, &["static", "static:80", "x.css", "h"]);
            format!("{}{host}{}", one_of(rng, &SLASHES), one_of(rng, &[private, public]))
        }
        2 | 3 => format!("{private}{}{public}", one_of(rng, &BETWEEN)),
        4 => format!("{public}{}{private}", one_of(rng, &BETWEEN)),
        5 => {
            let depth = public.matches('/').count();
            let up: String = (0..depth).map(|_| one_of(rng, &UP)).collect();
            format!("{public}{up}{private}")
        }
        6 => {
            let depth = private.matches('/').count();
            let up: String = (0..depth).map(|_| one_of(rng, &UP)).collect();
            format!("{private}{}{up}{public}", one_of(rng, &BETWEEN))
        }
        7 => format!("/(A(x)){}", one_of(rng, &[private, public])),
        8 if rng.bool() => {
            let depth = public.matches('/').count();
            let up = one_of(rng, &UP).repeat(depth + 1);
            format!("{public}?x{up}{private}")
        }
        8 => format!("{}{private}", one_of(rng, &SCRIPTS)),
        9 => {
            let mut path = private.to_owned();
            for _ in 0..rng.usize(1..3) {
                disguise(rng, &mut path);
            }
            path
        }
        _ => format!("{private}{}", one_of(rng, &BETWEEN)),
    };
    for _ in 0..rng.usize(..3) {
        respell(rng, &mut path);
    }
    if !path.starts_with('/') {
        path.insert(0, '/');
    }
    path
}

/// Changes one letter of a path or adds to it, so that some applications take it for the same.
fn disguise(rng: &mut Rng, path: &mut String) {
    let mut at = rng.usize(1..=path.len());
    if rng.bool() {
        at = path[1..].find('/').map_or(path.len(), |end| end + 1);
    }
    if !path.is_char_boundary(at) {
        return;
    }
    let likenesses = LETTERS.iter().find(|(letter, _)| path[at..].starts_with(*letter));
    match likenesses {
        Some((_, all)) if rng.bool() => {
            let likeness = one_of(rng, all);
            path.replace_range(at..=at, likeness);
        }
        _ => path.insert_str(at, one_of(rng, &NOTHING)),
    }
}

/// Changes one place of a path, so that some origins read the same as before.
fn respell(rng: &mut Rng, path: &mut String) {
    let places: Vec<_> = path.char_indices().filter(|(_, c)| c.is_ascii()).collect();
    let (at, c) = places[rng.usize(..places.len())];
    let slash = path[at..].find('/').map_or(0, |next| at + next);
    match rng.u8(..9) {
        0 => path.replace_range(at..=at, &format!("%{:02x}", u32::from(c))),
        1 => path.replace_range(at..=at, &format!("%25{:02X}", u32::from(c))),
        2 if c.is_ascii_lowercase() => {
            let upper = c.to_ascii_uppercase().to_string();
            path.replace_range(at..=at, &upper);
        }
        3 => path.insert(slash, '/'),
        4 => path.insert_str(slash, "/."),
        5 => path.insert_str(slash, ";v=1"),
        6 => path.insert_str(slash, one_of(rng, &[".", "%20", "%00", "%0d"])),
        7 => path.push_str(one_of(rng, &["/", ".", "%2f", "/.", ";", "%20", "?a=b"])),
        _ => path.insert_str(at, one_of(rng, &["%", "%u002f", "%c0%af", "%ff", "%09", "%0A"])),
    }
}
