//! All rows of the table: what they say, and what a file makes of them.

use std::time::Duration;

use crate::cache::handle::Stampede;
use crate::http::layer::HttpStampede;
use crate::mode::Mode;
use crate::settings::file::SettingsError;
use crate::settings::layer::{SetCookie, StreamReplay, StreamRule, checks, each_http_setting};
use crate::settings::{Settings, StatusTtl};

/// A default, as the documentation writes it.
trait Written {
    fn written(&self) -> String;
}

impl Written for bool {
    fn written(&self) -> String {
        self.to_string()
    }
}

impl Written for Duration {
    fn written(&self) -> String {
        format!("{} s", self.as_secs())
    }
}

impl Written for usize {
    fn written(&self) -> String {
        match self {
            n if n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
            n if n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
            n => n.to_string(),
        }
    }
}

impl Written for SetCookie {
    fn written(&self) -> String {
        format!("[`SetCookie::{self:?}`]")
    }
}

struct Row {
    name: &'static str,
    reader: &'static str,
    text: String,
    default: Option<String>,
}

macro_rules! rows {
    ($($heading:literal {$(
        $(#[doc = $doc:literal])*
        $name:ident: $type:ty as $reader:tt $(= $default:expr $(, $alike:ident)?)? $(, check $check:path)?;
    )+})+) => {
        fn rows() -> Vec<Row> {
            vec![$($(Row {
                name: stringify!($name),
                reader: $reader,
                text: [$($doc),*].concat(),
                default: None::<String>$(.or(Some(Written::written(&$default))))?,
            },)+)+]
        }

        /// Returns the names of the settings that are not as in `other`.
        fn different(one: &Settings, other: &Settings) -> Vec<&'static str> {
            let mut names = Vec::new();
            $($(if one.http.$name != other.http.$name {
                names.push(stringify!($name));
            })+)+
            names
        }
    };
}

each_http_setting!(rows);

fn read(json: &str) -> Result<Settings, SettingsError> {
    Settings::read("caches.site", &mut serde_json::Deserializer::from_str(json))
}

fn build(json: &str) -> Result<HttpStampede, String> {
    read(json).expect("can be read").builder("site").build().map_err(|error| error.to_string())
}

#[test]
fn each_row_names_its_default() {
    assert!(rows().len() > 40);
    for Row { name, text, default, .. } in rows() {
        let (_, said) = text.split_once("Defaults to").unwrap_or_else(|| panic!("{name}: {text}"));
        // Those of the handle are the handle's.
        if let Some(default) = default.filter(|_| !said.starts_with(" the handle's")) {
            assert!(said.starts_with(&format!(" {default}")), "{name}: {default}, not{said}");
        }
    }
}

/// What a file may say, by the reader of a row.
fn sample(row: &Row) -> &'static str {
    match (row.name, row.reader) {
        ("set_cookie", _) => r#""strip""#,
        ("tags_from", _) => r#"["xkey"]"#,
        ("share_streams", _) => r#"{ "finish_reason": true }"#,
        (_, "duration") => r#""90s""#,
        (_, "size") => r#""2MiB""#,
        (_, "flag") => "true",
        (_, "names") => r#"["x-name"]"#,
        (_, "text") => r#""text""#,
        (_, "statuses") => r#"{ "404": "10s" }"#,
        (name, _) if name.starts_with("max_") => "7",
        _ => "true",
    }
}

#[test]
fn each_row_can_be_read_from_a_file_and_alone() {
    for row in rows() {
        let json = format!(r#"{{ "ttl": "1s", "http": {{ "{}": {} }} }}"#, row.name, sample(&row));
        let settings = read(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(different(&settings, &Settings::default()), [row.name]);
        let cache: HttpStampede = settings.builder("site").build().expect(row.name);
        drop(cache.http_layer());
    }
}

#[test]
fn a_layer_begins_with_what_the_file_says() {
    let cache = build(
        r#"{ "ttl": "60s", "stale_for": "5s", "http": {
            "ttl": "30s", "status_ttl": { "404": "10s" }, "max_body": "8MiB", "public": true,
            "scheme": "HTTPS", "cache_status": "", "query": ["q"], "vary": ["Accept-Language"],
            "ignore_cookies": ["_ga", "*"], "set_cookie": "strip", "tags": ["site"],
            "replace_credential_headers": ["x-key"], "not_a_credential": ["x-key", "cookie"],
            "credential_headers": ["x-user-*"], "replace_keyed_headers": ["x-host"],
            "share_streams": { "last_event": "done", "ttl": "1h", "replay": "paced",
                "heartbeat": "0s" },
            "max_forwarded": 9, "invalidate_other_scheme": false } }"#,
    );
    let layer = cache.expect("fits").http_layer();
    let config = &layer.rules().config;
    assert_eq!(config.ttl, Some(Duration::from_secs(30)));
    assert_eq!(config.stale_for, Duration::from_secs(5), "the handle's");
    assert_eq!(config.status_ttl, StatusTtl::from([(404, Duration::from_secs(10))]));
    assert_eq!((config.max_body, config.max_tags, config.public), (8 << 20, 64, true));
    assert_eq!((&*config.scheme, &config.cache_status), ("https", &None));
    assert_eq!(config.query.as_deref(), Some(&["q".to_owned()][..]));
    assert_eq!(config.vary, ["accept-language"]);
    assert!(config.ignore_cookies && !config.ignored_cookies.is_empty());
    assert_eq!(config.set_cookie, SetCookie::Strip);
    assert_eq!(config.tags, ["site".into()]);
    assert!(!config.cookie_is_credential && !config.invalidate_other_scheme);
    let rule = StreamRule::last_event("done").ttl(Duration::from_secs(3600));
    let rule = rule.replay(StreamReplay::Paced).heartbeat(Duration::ZERO);
    assert_eq!(config.share_streams.as_deref(), Some(&rule));
    let is_credential = |name: &'static str| config.is_credential(&name.parse().expect("a name"));
    assert!(is_credential("x-user-id") && is_credential("authorization"));
    assert!(is_credential("x-key") && !is_credential("x-api-key"));
    assert!(layer.rules().forwarded.is_some());
}

#[test]
fn what_cannot_be_read_in_the_table_is_named_by_its_path() {
    for (json, path, word) in [
        (r#"{"http": {"max_body": "8 elephants"}}"#, "caches.site.http.max_body", "is no size"),
        (r#"{"http": {"stall_timeout": 5}}"#, "caches.site.http.stall_timeout", "with a unit"),
        (r#"{"http": {"vary": "accept"}}"#, "caches.site.http.vary", "invalid type"),
        (r#"{"http": {"set_cookie": "keep"}}"#, "caches.site.http.set_cookie", "unknown variant"),
        (
            r#"{"http": {"share_streams": {"end_mark": "x", "ttl": 5}}}"#,
            "caches.site.http.share_streams.ttl",
            "with a unit",
        ),
        (
            r#"{"http": {"share_streams": {"end_mark": "x", "replay": "slowly"}}}"#,
            "caches.site.http.share_streams.replay",
            "unknown variant",
        ),
        (r#"{"http": {"max_bodies": 1}}"#, "caches.site.http.max_bodies", "unknown field"),
        (r#"{"http": {"identity": "x"}}"#, "caches.site.http.identity", "unknown field"),
        (r#"{"mode": "asleep"}"#, "caches.site.mode", "unknown variant"),
    ] {
        let error = read(json).expect_err(json);
        assert_eq!(error.path(), path, "{json}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn what_does_not_work_in_the_table_is_refused_when_the_cache_is_built() {
    for (http, text) in [
        (r#""ttl": "0s""#, "`caches.site.http.ttl`: is zero; say `origin_only`"),
        (r#""max_forwarded": 0"#, "`caches.site.http.max_forwarded`: is 0; leave it out"),
        (r#""vary": ["a b"]"#, "`caches.site.http.vary`: `a b` is no field name"),
        (r#""vary": ["x-*"]"#, "`caches.site.http.vary`: `x-*` is a pattern"),
        (r#""vary": [""]"#, "`caches.site.http.vary`: `` is no field name"),
        (r#""credential_headers": ["*"]"#, "`caches.site.http.credential_headers`: `*` is no"),
        (r#""not_a_credential": ["Authorization"]"#, "`caches.site.http.not_a_credential`: `Auth"),
        (r#""tags_from": ["x-tags"]"#, "`caches.site.http.tags_from`: `x-tags` is not one of"),
        (r#""lifetime_from": ["Expires"]"#, "`caches.site.http.lifetime_from`: `Expires` is read"),
        (r#""ignore_cookies": ["a=b"]"#, "`caches.site.http.ignore_cookies`: `a=b` is no name"),
        (r#""status_ttl": {"200": "1s"}"#, "`caches.site.http.status_ttl`: 200 is no error"),
        (
            r#""share_streams": { "last_event": "" }"#,
            "`caches.site.http.share_streams`: `end_mark` and `last_event` must be one line",
        ),
        (r#""share_streams": {}"#, "`caches.site.http.share_streams`: a stream has one end: set"),
        (
            r#""share_streams": { "end_mark": "x", "finish_reason": true }"#,
            "`caches.site.http.share_streams`: a stream has one end: set one of `end_mark`, ",
        ),
        (
            r#""share_streams": { "end_mark": "x", "content_types": ["text/ event"] }"#,
            "`caches.site.http.share_streams`: `content_types` must be content types; write",
        ),
        (
            r#""share_streams": { "last_event": "x", "content_types": ["a/b"] }"#,
            "`caches.site.http.share_streams`: `last_event` is for `text/event-stream` alone",
        ),
        (
            r#""share_streams": { "finish_reason": true, "ttl": "0s" }"#,
            "`caches.site.http.share_streams`: `ttl` is zero",
        ),
        (
            r#""share_streams": { "finish_reason": true, "heartbeat": "5ms" }"#,
            "`caches.site.http.share_streams`: `heartbeat` must be 1 s or longer",
        ),
        (
            r#""ttl": "1s", "origin_only": true"#,
            "`caches.site.http.ttl` and `caches.site.http.origin_only`: a lifetime for all",
        ),
    ] {
        let error = build(&format!(r#"{{ "ttl": "1s", "http": {{ {http} }} }}"#)).expect_err(http);
        assert!(error.starts_with(text), "{error}");
    }
}

#[test]
fn a_cache_begins_in_the_mode_of_its_file() {
    for (word, mode) in [("on", Mode::On), ("observe", Mode::Observe), ("off", Mode::Off)] {
        let cache = build(&format!(r#"{{ "ttl": "1s", "mode": "{word}" }}"#)).expect("fits");
        assert_eq!(cache.mode(), mode);
    }
    let cache: Stampede<u32> =
        Stampede::builder("a").ttl(Duration::from_secs(1)).mode(Mode::Off).build().expect("fits");
    assert_eq!(cache.mode(), Mode::Off);
    assert_eq!(build(r#"{ "ttl": "1s" }"#).expect("fits").mode(), Mode::On);
}

/// The checks know field names without the crate that keeps them.
#[test]
fn a_name_that_passes_its_check_is_one() {
    let long = "x".repeat(1024);
    let mut texts: Vec<String> = (0..=255_u8).map(|b| format!("a{}", char::from(b))).collect();
    texts.extend([String::new(), long.clone(), "a*".into(), format!("{long}x")]);
    for text in texts {
        let names = [text.clone()];
        if checks::fields(&names).is_none() {
            let layer = build(r#"{ "ttl": "1s" }"#).expect("fits").http_layer();
            let vary = &layer.vary([&*text]).rules().config.vary.clone();
            assert!(vary[0].as_str().eq_ignore_ascii_case(&text), "{text}");
        }
        if checks::patterns(&names).is_none() {
            let layer = build(r#"{ "ttl": "1s" }"#).expect("fits").http_layer();
            drop(layer.credential_headers([&*text]).not_a_credential([&*text]));
        }
    }
    for name in ["_ga", "_ga_*", "*", "a.b-c|d"] {
        assert_eq!(checks::cookies(&[name.into()]), None, "{name}");
    }
    for name in ["", "a*b", "**", "a b", "a=b", "a;b", "a,b", "\"a\"", "\u{e9}", "a\n"] {
        assert!(checks::cookies(&[name.into()]).is_some(), "{name}");
    }
}
