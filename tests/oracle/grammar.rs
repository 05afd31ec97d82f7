//! Two grammars of requests: a plain one for victims, and a nasty one for
//! attackers.

use fastrand::Rng;

use crate::ask::{Ask, Form};
use crate::kit::spellings;
use crate::persona::{IDENTITIES, Kind, PathReading, Persona, Rewrite, TRUSTED, UNKEYED};
use crate::settings::Settings;

pub(crate) const HOST: &str = "shop.example";

/// Where requests go: in process, or through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    Layer,
    Proxy,
}

pub(crate) fn one_of<'a>(rng: &mut Rng, list: &[&'a str]) -> &'a str {
    list[rng.usize(..list.len())]
}

fn in_100(rng: &mut Rng, percent: u8) -> bool {
    rng.u8(..100) < percent
}

/// Values that the plain grammar gives to a field.
fn plain_values(name: &str) -> &'static [&'static str] {
    match name {
        "accept-language" => &["en", "de", "en, de;q=0.5", "de;q=0.5, en", "en, de", "de, en"],
        "accept-encoding" => &[
            "gzip",
            "GZIP;q=1.0",
            "x-gzip;q=0.001",
            "br, gzip",
            "gzip, deflate, br, zstd",
            "br;q=1.0, gzip;q=0.8, *;q=0.1",
            "*",
            "*, gzip;q=0",
            "gzip, gzip;q=0",
            "gzip, identity;q=0",
            "identity",
            "gzip;q=0.000",
            "br",
            "",
        ],
        "cookie" => &["sid=alice", "sid=bob; theme=dark", "theme=dark", "sid=bob"],
        "authorization" | "proxy-authorization" => &["Bearer alice", "Bearer bob"],
        "user-agent" => &["Browser/1", "Reader/2"],
        "accept" => &["text/html", "application/json"],
        "te" => &["trailers"],
        "connection" => &["keep-alive"],
        "via" => &["1.1 first", "1.0 second"],
        "forwarded" => &["for=192.0.2.1", "for=192.0.2.2"],
        "x-tenant" => &["a", "b"],
        "x-shard" => &["1", "2"],
        "x-forwarded-for" | "x-real-ip" => &["192.0.2.1", "192.0.2.2"],
        _ => &["alice", "bob"],
    }
}

/// Fields that change what this origin answers.
fn fields_of(persona: &Persona) -> Vec<&'static str> {
    match &persona.kind {
        Kind::Links(_) | Kind::Redirector(..) => vec!["host"],
        Kind::Gateway => TRUSTED.to_vec(),
        Kind::Varier(names) => names.clone(),
        Kind::Identity(name) | Kind::Permission(Some(name)) | Kind::Refreshed(name) => vec![name],
        Kind::Tenant(_) => vec!["x-tenant"],
        Kind::CookieReader | Kind::Router(_) => vec!["cookie"],
        Kind::Sharded => vec!["x-shard"],
        Kind::Precompressed => vec!["accept-encoding"],
        Kind::Permission(None) | Kind::Methods | Kind::Versions | Kind::User => Vec::new(),
    }
}

fn targets(persona: &Persona) -> &'static [&'static str] {
    match persona.kind {
        Kind::Tenant(Rewrite::StripPrefix) => &["/t/t/page", "/t/page", "/page"],
        Kind::Versions => &["/page", "/page", "/page?q=1"],
        Kind::Router(_) => &["/static/x", "/static/x", "/x.css", "/account"],
        _ => &["/page", "/page", "/page", "/page?q=1", "/"],
    }
}

/// What the requests of one case have in common.
pub(crate) struct Scene<'a> {
    pub(crate) persona: &'a Persona,
    pub(crate) settings: &'a Settings,
    /// Where most requests go, and in which form: else few would meet.
    target: String,
    form: Form,
}

impl<'a> Scene<'a> {
    pub(crate) fn new(rng: &mut Rng, persona: &'a Persona, settings: &'a Settings) -> Self {
        let target = match persona.kind {
            // What an attacker's link leads to.
            Kind::Router(reading) if rng.u8(..4) > 0 => lure(rng, reading),
            _ => one_of(rng, targets(persona)).to_owned(),
        };
        Self { persona, settings, target, form: plain_form(rng) }
    }
}

/// Draws a path that is public as it is sent, and private as the origin reads it, or the other way
/// round, at the hosts of one kind or the other. Not all readings have many of them.
fn lure(rng: &mut Rng, reading: PathReading) -> String {
    let mut path = spellings::spelling(rng);
    let host = one_of(rng, &["", ".open.test"]);
    let is_shared = |path: &str| spellings::is_public(spellings::page(path), host);
    for _ in 0..30 {
        let sent = path.split('?').next().unwrap_or_default();
        if is_shared(sent) != is_shared(&reading.read(sent)) {
            break;
        }
        path = spellings::spelling(rng);
    }
    path
}

fn plain_form(rng: &mut Rng) -> Form {
    match rng.u8(..20) {
        0..4 => Form::Http2,
        4 => Form::Absolute,
        _ => Form::Origin,
    }
}

/// What an honest client sends.
pub(crate) fn victim(rng: &mut Rng, scene: &Scene<'_>) -> Ask {
    let Scene { persona, settings, .. } = scene;
    let target = if in_100(rng, 80) { &scene.target } else { one_of(rng, targets(persona)) };
    let mut ask = Ask {
        is_victim: true,
        method: if in_100(rng, 8) { "HEAD".into() } else { "GET".into() },
        form: match persona.kind {
            // The forms write several cookies in different ways.
            Kind::CookieReader if rng.bool() => Form::Http2,
            Kind::CookieReader => Form::Origin,
            _ if in_100(rng, 80) => scene.form,
            _ => plain_form(rng),
        },
        scheme: "http",
        authority: HOST.into(),
        target: target.into(),
        fields: Vec::new(),
        body: String::new(),
        user: None,
        address: 1,
        hangs_up: None,
    };
    if ask.form != Form::Http2 {
        ask.add("Host", HOST);
    }
    if in_100(rng, 20) {
        ask.add("User-Agent", one_of(rng, plain_values("user-agent")));
    }
    for name in fields_of(persona) {
        let is_plain = !matches!(persona.kind, Kind::Gateway) && name != "host";
        if is_plain && in_100(rng, 55) {
            ask.add(name, one_of(rng, plain_values(name)));
        }
    }
    if in_100(rng, 8) && ask.get("cookie").is_none() {
        ask.add("Cookie", one_of(rng, plain_values("cookie")));
    }
    split_cookies(&mut ask);
    if settings.identity && in_100(rng, 90) {
        ask.user = Some(one_of(rng, &["alice", "bob"]));
    }
    ask.address = rng.u8(1..=2);
    // Whose call a refreshed answer came from shows in the replies alone: a client that wants a part
    // may get it by a call of its own.
    if in_100(rng, 5) && !matches!(persona.kind, Kind::Refreshed(_)) {
        ask.add("Range", one_of(rng, &["bytes=0-3", "bytes=0-3", "bytes=0-1,4-5"]));
    }
    if settings.compressor && in_100(rng, 60) {
        ask.set("Accept-Encoding", one_of(rng, plain_values("accept-encoding")));
    }
    if settings.compressor && in_100(rng, 30) {
        ask.set("Range", "bytes=0-3,400-403");
    }
    if in_100(rng, 3) {
        ask.add("If-None-Match", "\"another\"");
    }
    if matches!(persona.kind, Kind::Versions) && in_100(rng, 30) {
        write(rng, &mut ask);
    }
    if matches!(persona.kind, Kind::Methods) && in_100(rng, 50) {
        query(rng, &mut ask, settings.safe_posts);
    }
    ask
}

/// Clients of HTTP/2 split cookies at their semicolons (RFC 9113, 8.2.3).
fn split_cookies(ask: &mut Ask) {
    if ask.form != Form::Http2 {
        return;
    }
    let Some(cookies) = ask.get("cookie").map(ToOwned::to_owned) else { return };
    ask.remove("cookie");
    for crumb in cookies.split("; ") {
        ask.add("cookie", crumb);
    }
}

/// Asks by a body.
fn query(rng: &mut Rng, ask: &mut Ask, may_post: bool) {
    ask.method = if may_post && rng.bool() { "POST".into() } else { "QUERY".into() };
    ask.body = one_of(rng, &["", "a", "b"]).into();
    if rng.bool() {
        ask.set("Content-Type", one_of(rng, &["application/json", "text/plain"]));
    }
}

fn write(rng: &mut Rng, ask: &mut Ask) {
    ask.method = one_of(rng, &["POST", "PUT", "DELETE", "PATCH", "FOO"]).into();
    if in_100(rng, 25) {
        ask.target = "/form".into();
    }
    ask.remove("range");
    ask.remove("if-none-match");
}

/// What an attacker sends to change the responses of others.
pub(crate) fn attacker(rng: &mut Rng, scene: &Scene<'_>) -> Ask {
    let persona = scene.persona;
    let mut ask = victim(rng, scene);
    ask.is_victim = false;
    for _ in 0..rng.u8(1..=3) {
        let fields = fields_of(persona);
        let of_persona = if fields.is_empty() {
            one_of(rng, &[TRUSTED.as_slice(), &IDENTITIES, &UNKEYED].concat())
        } else {
            fields[rng.usize(..fields.len())]
        };
        match rng.u8(..10) {
            0..4 => spoil_field(rng, &mut ask, of_persona),
            4..6 => spoil_host(rng, &mut ask),
            6 => spoil_target(rng, &mut ask),
            7 => wish(rng, &mut ask, of_persona),
            8 => spoil_method(rng, &mut ask),
            _ => {
                let any = one_of(rng, &[TRUSTED.as_slice(), &IDENTITIES, &UNKEYED].concat());
                spoil_field(rng, &mut ask, any);
            }
        }
    }
    // Whose call a refreshed answer came from shows in the replies alone: not in a 416.
    if matches!(persona.kind, Kind::Refreshed(_)) {
        ask.remove("range");
    } else if in_100(rng, 4) {
        ask.hangs_up = Some(rng.u64(0..200));
    }
    ask
}

fn nasty_value(rng: &mut Rng, name: &str) -> String {
    match rng.u8(..12) {
        0 => String::new(),
        1 => "evil.example".into(),
        2 => "1@evil.example".into(),
        3 => "alice, evil".into(),
        4 => "alice ,  evil".into(),
        5 => "\"alice, evil\"".into(),
        6 => "x".repeat(if rng.bool() { 300 } else { 9000 }),
        7 => "/admin".into(),
        8 => "EN;q=1.0,  de;q=0.50".into(),
        9 => "sid=mallory;sid=alice".into(),
        _ => one_of(rng, plain_values(name)).into(),
    }
}

fn mixed_case(rng: &mut Rng, text: &str) -> String {
    let change = |c: char| if rng.bool() { c.to_ascii_uppercase() } else { c };
    text.chars().map(change).collect()
}

fn spoil_field(rng: &mut Rng, ask: &mut Ask, name: &str) {
    if name == "host" {
        return spoil_host(rng, ask);
    }
    let value = nasty_value(rng, name);
    match rng.u8(..8) {
        0 => ask.add(&name.replace('-', "_"), &value),
        1 => ask.add(&name.replacen('-', "_", 1), &value),
        2 => ask.add(name, &value),
        3 => ask.add(&mixed_case(rng, name), &value),
        4 => ask.remove(name),
        _ => ask.set(name, &value),
    }
}

fn spoil_host(rng: &mut Rng, ask: &mut Ask) {
    let other = match rng.u8(..13) {
        0 => "SHOP.example".into(),
        1 => mixed_case(rng, HOST),
        2 => format!("{HOST}:80"),
        3 => format!("{HOST}:00000080"),
        4 => format!("{HOST}:"),
        5 => format!("{HOST}:8080"),
        6 => format!("{HOST}:443"),
        7 => "evil.example".into(),
        8 => format!("{HOST}@evil.example"),
        9 => format!("{HOST}, evil.example"),
        10 => format!("{HOST}."),
        11 => "shop%2eexample".into(),
        _ => HOST.into(),
    };
    match rng.u8(..9) {
        0..4 => ask.set("Host", &other),
        4 => ask.remove("host"),
        5 => ask.add("Host", &other),
        6 => {
            ask.form = Form::Absolute;
            ask.authority = other;
        }
        7 => {
            ask.form = Form::Http2;
            ask.authority = other;
            ask.remove("host");
        }
        _ => {
            ask.form = Form::Absolute;
            ask.authority.clone_from(&other);
            ask.set("Host", &other);
            if rng.u8(..4) == 0 {
                ask.scheme = one_of(rng, &["https", "HTTP", "ftp"]);
            }
        }
    }
}

fn spoil_target(rng: &mut Rng, ask: &mut Ask) {
    let (path, query) = match ask.target.split_once('?') {
        Some((path, query)) => (path.to_owned(), format!("?{query}")),
        None => (ask.target.clone(), String::new()),
    };
    ask.target = match rng.u8(..12) {
        0 => format!("{path}?"),
        1 => format!("{path}?utm=evil"),
        2 => format!("{path}?q=1&utm=evil"),
        3 => format!("{path}?utm=evil&q=1"),
        4 => format!("{path}/.{query}"),
        5 => format!("{path}/../page{query}"),
        6 => format!("{}{query}", path.replace("page", "%70age")),
        7 => format!("{path};v=1{query}"),
        8 => format!("{path}/{query}"),
        9 => format!("{path}%20{query}"),
        10 => format!("{path}?q=2&q=1"),
        _ => format!("{path}?Q=1&&"),
    };
}

fn wish(rng: &mut Rng, ask: &mut Ask, of_persona: &str) {
    let control =
        ["no-store", "no-cache", "only-if-cached", "max-age=0", "max-stale", "min-fresh=9"];
    match rng.u8(..10) {
        0..3 => ask.set("Cache-Control", one_of(rng, &control)),
        3 => ask.set("Pragma", "no-cache"),
        4 => ask.set("Range", one_of(rng, &["bytes=0-0", "bytes=1-", "bytes=0-1,3-4", "lines=1"])),
        5 => ask.set("If-None-Match", one_of(rng, &["*", "\"x\"", "W/\"x\""])),
        6 => ask.set("If-Match", "*"),
        7 => ask.set("Connection", of_persona),
        8 => {
            ask.set("Connection", "upgrade");
            ask.set("Upgrade", "websocket");
        }
        _ => ask.set("If-Modified-Since", "Thu, 01 Jan 2099 00:00:00 GMT"),
    }
}

fn spoil_method(rng: &mut Rng, ask: &mut Ask) {
    let methods =
        ["HEAD", "POST", "POST", "QUERY", "TRACE", "PUT", "FOO", "get", "PROPFIND", "GET"];
    ask.method = one_of(rng, &methods).into();
    if rng.bool() && ask.method != "TRACE" {
        ask.body = "evil".into();
    }
}
