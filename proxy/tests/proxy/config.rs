//! The configuration file of the proxy: its check, rules, origins by host, reloads.

use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::kit::proxy::scripted::Scripted;
use crate::kit::proxy::{Head, Proxy, soon};

const TOKEN: &str = "a-token-for-operators";

/// Writes a file and returns its path.
fn file(folder: &TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Checks a file; returns the exit code and what is said.
fn checked(path: &str) -> (Option<i32>, String) {
    let output = Proxy::refuse(&["--config", path, "--check-config"]);
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn get(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// A page that says nothing of its lifetime, with its target as the body.
fn silent(head: &Head) -> (String, String) {
    (String::new(), head.start.split(' ').nth(1).unwrap().to_owned())
}

/// An origin, and a proxy with this file before it; `ORIGIN` stands for the URL.
async fn start(folder: &TempDir, text: &str) -> (Scripted, Proxy) {
    Scripted::start_behind(
        |origin| {
            let path = file(folder, "proxy.toml", &text.replace("ORIGIN", origin));
            Proxy::start_with(&["--config", &path])
        },
        silent,
    )
    .await
}

#[test]
fn all_errors_of_a_file_are_printed_at_once_with_line_rule_and_remedy() {
    let folder = folder();
    let path = file(
        &folder,
        "bad.toml",
        r#"lsten = "127.0.0.1:0"
[[origin]]
url = "ftp://a"
[cache]
ttl = 60
status_ttl = { 200 = "1s" }
[[rule]]
name = "all"
prefix = "/"
ttl = "5s"
[[rule]]
name = "assets"
prefix = "/static/"
ttl = "60 parsecs"
[[rule]]
name = "admin"
glob = "/admin/["
bypass = true
stale = "1s"
"#,
    );
    let (code, said) = checked(&path);
    assert_eq!(code, Some(2), "{said}");
    for (line, expected) in [
        (1, "`lsten` is no key here; the keys are `access_log`,"),
        (3, "origin 1: `url` \"ftp://a\" is not an origin like http://127.0.0.1:9000"),
        (5, "`cache`: `ttl` must be a duration with a unit, such as \"60s\""),
        (6, "`cache`: `status_ttl.200` names no error; name a status from 400 to 599"),
        (11, "rule `assets`: never applies: rule `all` in line 8 comes first"),
        (14, "rule `assets`: `ttl` \"60 parsecs\" is no duration"),
        (17, "rule `admin`: `glob` \"/admin/[\" is no pattern"),
        (19, "rule `admin`: `stale` has no effect beside `bypass = true`; remove one of them"),
    ] {
        let expected = format!("\n{path}:{line}: {expected}");
        assert!(said.contains(&expected), "{expected} is missing in {said}");
    }
    assert_eq!(said.matches("bad.toml:").count(), 8, "{said}");
}

#[test]
fn a_file_that_is_no_toml_is_refused_with_its_lines() {
    let folder = folder();
    let path = file(&folder, "bad.toml", "listen = \n[cache]\nttl = \n");
    let (code, said) = checked(&path);
    assert_eq!(code, Some(2));
    assert!(said.contains(&format!("{path}:1: ")) && said.contains("correct the TOML"), "{said}");
    assert!(said.contains(&format!("{path}:3: ")), "{said}");
}

#[test]
fn origins_and_rules_must_not_contradict_each_other() {
    let origin = "[[origin]]\nurl = \"http://127.0.0.1:1\"\n";
    let rule = |text: &str| format!("{origin}[[rule]]\nname = \"x\"\n{text}");
    for (text, expected) in [
        (String::new(), "--origin http://HOST:PORT is missing"),
        (origin.repeat(2), ":3: origin 2: is a second origin without `hosts`"),
        (
            format!("{origin}hosts = [\"a\"]\n{origin}hosts = [\"b\", \"a\"]\n"),
            ":6: origin 2: `hosts` names `a`, which an origin before has; name it once",
        ),
        (rule("ttl = \"1s\"\n"), ":3: rule `x`: names no path"),
        (rule("prefix = \"/\"\n"), ":3: rule `x`: changes nothing; say what"),
        (rule("prefix = \"/a/../b\"\nttl = \"1s\"\n"), "is no plain path; write \"/b\""),
        (
            rule("prefix = \"/\"\nquery = [\"a\"]\nignore_query = true\n"),
            ":7: rule `x`: `ignore_query` stands beside `query`; remove one of them",
        ),
        (
            format!("{origin}[cache]\nshare_streams = {{ ttl = \"1h\" }}\n"),
            ":4: `share_streams`: a stream has one end: set one of `end_mark`, `last_event` and",
        ),
        (
            rule("prefix = \"/\"\n[rule.share_streams]\nend_mark = \"x\"\nreplay = \"slow\"\n"),
            ":8: `share_streams`: `replay` \"slow\" is not `at_once` or `paced`",
        ),
        (
            rule("prefix = \"/\"\nshare_streams = { last_event = \"x\", heartbeat = \"1ms\" }\n"),
            "`share_streams`: `heartbeat` must be 1 s or longer, or zero: none",
        ),
        (
            format!("store_post = 1\n{}", rule("prefix = \"/\"\nttl = \"1s\"\n")),
            ":1: `store_post` is no key here",
        ),
        (
            format!("{}[cache]\nstore_post = true\n", rule("prefix = \"/\"\nttl = \"1s\"\n")),
            "stores nothing beside rules; remove it, or the rules",
        ),
        (
            format!("{origin}[redis]\nurl = \"http://secret\"\n"),
            ":4: `redis`: `url` cannot be used",
        ),
        (format!("{origin}[tls]\ncert = \"/x\"\n"), ":3: `tls`: `key` is missing"),
        (
            format!("{origin}[waiting]\nlease = \"0s\"\n"),
            ":4: `waiting`: `lease` is no time at all; write for example \"30s\"",
        ),
        (
            format!("{origin}[cache]\nstatus_ttl = {{ 404 = \"1s\", 0404 = \"2s\" }}\n"),
            ":4: `cache`: `status_ttl.404` is status 404, which has a time already; say it once",
        ),
        (
            format!(
                "{}[[rule]]\nname = \"y\"\nprefix = \"/a\"\nttl = \"1s\"\n",
                rule("glob = \"/**\"\nttl = \"1s\"\n")
            ),
            ":7: rule `y`: never applies: rule `x` in line 4 comes first",
        ),
        (
            format!("{origin}[connections]\nheader_timeout = \"500000000000y\"\n"),
            ":4: `connections`: `header_timeout` \"500000000000y\" is longer than 100 years",
        ),
        (
            format!("{origin}[clients]\nallow_hosts = [\"*.a.example\"]\n"),
            ":4: `clients`: `allow_hosts`: \"*.a.example\" is a pattern; name each host",
        ),
        (
            format!("{origin}hosts = [\"a.example,b.example\"]\n"),
            ":3: origin 1: `hosts`: \"a.example,b.example\" is not a host",
        ),
        (format!("{origin}hosts = [\"*.[::1]\"]\n"), "\"*.[::1]\" is not a host"),
        (rule("prefix = \"/\"\nhosts = []\nttl = \"1s\"\n"), ":6: rule `x`: `hosts` has no host"),
        (rule("prefix = \"/a?b\"\nttl = \"1s\"\n"), ":5: rule `x`: `prefix` \"/a?b\" has more"),
        (rule("prefix = \"/a/*\"\nttl = \"1s\"\n"), "write it as `glob`"),
        (rule("glob = \"*.png\"\nttl = \"1s\"\n"), "does not begin with `/` or `**/`"),
        (rule("glob = \"/a%20b/*\"\nttl = \"1s\"\n"), "matches no plain path"),
        (
            format!("listen = \"0.0.0.0:81\"\n{origin}[admin]\nlisten = \"127.0.0.1:81\"\n"),
            "--admin 127.0.0.1:81 (`admin.listen`) is where clients are served",
        ),
    ] {
        let folder = folder();
        let (code, said) = checked(&file(&folder, "proxy.toml", &text));
        assert_eq!(code, Some(2), "{text}: {said}");
        assert!(said.contains(expected) && !said.contains("secret"), "{text}: {said}");
    }
}

#[tokio::test]
async fn flags_override_the_file() {
    let folder = folder();
    let text = "listen = \"192.0.2.1:1\"\n[cache]\nttl = \"60s\"\n";
    let path = file(&folder, "proxy.toml", text);
    let (origin, proxy) = Scripted::start_behind(
        |origin| Proxy::start_with(&["--config", &path, "--origin", origin, "--ttl-ms", "0"]),
        silent,
    )
    .await;
    proxy.ask(get("a", "/")).await;
    proxy.ask(get("a", "/")).await;
    assert_eq!(origin.hits(), 2, "nothing is stored with a ttl of 0");
}

#[tokio::test]
async fn the_first_rule_that_matches_decides() {
    let folder = folder();
    let text = r#"
[[origin]]
url = "ORIGIN"
[[rule]]
name = "private"
prefix = "/static/private"
bypass = true
[[rule]]
name = "assets"
prefix = "/static/"
ttl = "60s"
[[rule]]
name = "images of one host"
glob = "/**/*.png"
hosts = ["*.example"]
ttl = "60s"
"#;
    let (origin, proxy) = start(&folder, text).await;
    for (host, target, hits) in [
        ("a", "/static/x", 1),
        ("a", "/static/private/x", 2),
        ("a", "/static/%70rivate/x", 2),
        ("a", "/other", 2),
        ("a", "/img/x.png", 2),
        ("a.example", "/img/x.png", 1),
    ] {
        let before = origin.hits();
        proxy.ask(get(host, target)).await;
        proxy.ask(get(host, target)).await;
        assert_eq!(origin.hits() - before, hits, "{host} {target}");
    }
}

#[tokio::test]
async fn ignored_query_parameters_never_reach_the_origin() {
    let folder = folder();
    let text = r#"
[[origin]]
url = "ORIGIN"
[cache]
ttl = "60s"
ignore_query = ["utm_*"]
[[rule]]
name = "no query"
prefix = "/none/"
ignore_query = true
[[rule]]
name = "one parameter"
prefix = "/one/"
query = ["q"]
"#;
    let (origin, proxy) = start(&folder, text).await;
    for (target, seen) in [
        ("/a?utm_source=x&b=1", "/a?b=1"),
        ("/a?b=1&utm_medium=y", "/a?b=1"),
        ("/none/a?b=1", "/none/a"),
        ("/none/a?c", "/none/a"),
        ("/one/a?q=1&r=2", "/one/a?q=1"),
        ("/one/a?r=3&q=1", "/one/a?q=1"),
    ] {
        assert_eq!(proxy.ask(get("a", target)).await.body, seen, "{target}");
    }
    assert_eq!(origin.hits(), 3);
}

#[tokio::test]
async fn a_rule_takes_back_what_the_cache_ignores() {
    let folder = folder();
    let text = r#"
[[origin]]
url = "ORIGIN"
[cache]
ttl = "60s"
ignore_query = true
ignore_cookies = true
[[rule]]
name = "search"
prefix = "/search"
ignore_query = ["utm_*"]
[[rule]]
name = "all"
prefix = "/all"
ignore_query = false
[[rule]]
name = "account"
prefix = "/account"
bypass = true
"#;
    let answer = |head: &Head| {
        let target = head.start.split(' ').nth(1).unwrap();
        (String::new(), format!("{target} {}", head.get("cookie").unwrap_or("-")))
    };
    let (_origin, proxy) = Scripted::start_behind(
        |origin| {
            let path = file(&folder, "proxy.toml", &text.replace("ORIGIN", origin));
            Proxy::start_with(&["--config", &path])
        },
        answer,
    )
    .await;
    for (target, seen) in [
        ("/other?q=1", "/other -"),
        ("/search?q=1&utm_x=1", "/search?q=1 -"),
        ("/search?q=2", "/search?q=2 -"),
        ("/all?utm_x=1", "/all?utm_x=1 -"),
        ("/all?utm_x=2", "/all?utm_x=2 -"),
        ("/account?q=1", "/account?q=1 c=1"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nCookie: c=1\r\n\r\n");
        assert_eq!(proxy.ask(request).await.body, seen, "{target}");
    }
}

#[tokio::test]
async fn no_client_gets_a_page_that_another_path_of_the_same_form_would_share() {
    let folder = folder();
    let text = r#"
[[origin]]
url = "ORIGIN"
[[rule]]
name = "static"
prefix = "/static/"
public = true
ttl = "60s"
[[rule]]
name = "styles"
glob = "/**/*.css"
public = true
ttl = "60s"
"#;
    let (origin, proxy) = start(&folder, text).await;
    let stored = async |target: &str| {
        let before = origin.hits();
        for _ in 0..2 {
            let cookie = "Cookie: session=1\r\n";
            proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{cookie}\r\n")).await;
        }
        origin.hits() - before == 1
    };
    for target in [
        "/account/..%2fstatic/x",
        "/account;%2f%2e%2e%2fstatic/x",
        "/account/../static/x",
        "/static/..;/account",
        "/static/..%5caccount",
        "/static/%252e%252e/account",
        "/account;x.css",
        "/account%3fx.css",
        "/account%00/x.css",
        "//static/account",
        "///static/account",
        "/\\static/account",
        "//static/x;v=1",
        "/account;/x.css",
        "/user;a=b/../x.css",
        "/account%3B/x.css",
        "/static/%c0%ae%c0%ae/account",
        "/static/%u002e%u002e/account",
    ] {
        assert!(!stored(target).await, "{target}");
    }
    for target in ["/static/a%20b", "/static//x;v=1", "/a/x%2Dy.css", "/a/.b/x.css"] {
        assert!(stored(target).await, "{target}");
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_evades_a_rule_that_forbids_to_store() {
    let folder = folder();
    let text = r#"
[[origin]]
url = "ORIGIN"
[[rule]]
name = "account"
glob = "/account/**"
bypass = true
[[rule]]
name = "all"
prefix = "/"
public = true
ttl = "60s"
"#;
    let (origin, proxy) = start(&folder, text).await;
    let stored = async |target: &str| {
        let before = origin.hits();
        proxy.ask(get("a", target)).await;
        proxy.ask(get("a", target)).await;
        origin.hits() - before == 1
    };
    for target in [
        "/account",
        "/account/",
        "/Account/x",
        "//account",
        "//x/account",
        "/x/..//h/account",
        "/%61ccount",
        "/account;v=1",
        "/(S(1))/account/x",
        "/account%20",
        "/account?x",
        "/account+",
        "/%20account",
        "/account%C2%A0",
        "/account\u{a0}",
        "/x%0a/account",
        "/%C3%A0ccount",
        "/ac%C2%ADcount",
        "/index.php/account",
        "/account::$DATA",
        "/x?/../account",
    ] {
        assert!(!stored(target).await, "{target}");
    }
    let others =
        ["/", "/accounts", "/x/account", "/a%20b", "/a+b", "/caf%C3%A9", "/%E6%97%A5", "/x?a=..b"];
    for target in others {
        assert!(stored(target).await, "{target}");
    }
}

#[tokio::test]
async fn no_spelling_of_a_host_evades_its_rules() {
    let folder = folder();
    let text = r#"
[[origin]]
url = "ORIGIN"
[[rule]]
name = "one host"
prefix = "/"
hosts = ["app.example", "[::1]"]
bypass = true
[[rule]]
name = "all"
prefix = "/"
public = true
ttl = "60s"
"#;
    let (origin, proxy) = start(&folder, text).await;
    for host in ["app.example", "APP.example:80", "app.example.:81", "[::1]", "[0:0::1]:81"] {
        let before = origin.hits();
        proxy.ask(get(host, "/x")).await;
        proxy.ask(get(host, "/x")).await;
        assert_eq!(origin.hits() - before, 2, "{host}");
    }
    for host in ["app%2Eexample", "app.example..", "[::1"] {
        assert_eq!(proxy.ask(get(host, "/x")).await.status(), 400, "{host}");
    }
}

#[tokio::test]
async fn the_flag_to_ignore_the_query_takes_a_name_or_none() {
    for (flags, hits) in [(&["--ignore-query"][..], 1), (&["--ignore-query", "utm_*"], 2)] {
        let flags = [&["--ttl-ms", "60000"], flags].concat();
        let (origin, proxy) = Scripted::start(&flags, silent).await;
        for target in ["/a?b=1", "/a?b=2", "/a?b=2&utm_x=1"] {
            proxy.ask(get("a", target)).await;
        }
        assert_eq!(origin.hits(), hits, "{flags:?}");
    }
}

#[tokio::test]
async fn each_host_has_its_origin_and_an_unknown_host_gets_421() {
    let folder = folder();
    let text =
        |origin: &str, hosts: &str| format!("[[origin]]\nurl = \"{origin}\"\nhosts = {hosts}\n");
    // The first origin is a proxy of its own.
    let (one, elsewhere) = Scripted::start(&[], |_| (String::new(), "one".to_owned())).await;
    let (two, proxy) = Scripted::start_behind(
        |origin| {
            let both = text(&format!("http://{}", elsewhere.address), "[\"one.example\"]")
                + &text(origin, "[\"*.two.example\"]");
            Proxy::start_with(&["--config", &file(&folder, "proxy.toml", &both)])
        },
        |_| (String::new(), "two".to_owned()),
    )
    .await;
    assert_eq!(proxy.ask(get("ONE.example:81", "/")).await.body, "one");
    assert_eq!(proxy.ask(get("www.two.example", "/")).await.body, "two");
    assert_eq!(one.heads()[0].get("host"), Some("one.example:81"));
    assert_eq!(two.heads()[0].get("host"), Some("www.two.example"));
    assert_eq!(proxy.ask(get("two.example", "/")).await.status(), 421);
    assert_eq!(proxy.ask("GET / HTTP/1.0\r\n\r\n").await.status(), 400, "there is no default");
}

/// Waits until an operator sees this line in `/metrics`.
async fn shows(proxy: &Proxy, line: &str) {
    let shown = async {
        loop {
            let mut operator = proxy.connect_as_operator().await;
            let bearer = format!("Authorization: Bearer {TOKEN}\r\nConnection: close\r\n");
            operator.send(format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{bearer}\r\n")).await;
            if operator.reply().await.body.lines().any(|shown| shown == line) {
                return;
            }
        }
    };
    soon(line, shown).await;
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_rules_and_a_bad_file_changes_nothing() {
    let folder = folder();
    let token = file(&folder, "token", TOKEN);
    let text = format!(
        "[[origin]]\nurl = \"ORIGIN\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         token_file = \"{token}\"\n[[rule]]\nname = \"a\"\nprefix = \"/a\"\nttl = \"60s\"\n"
    );
    let (origin, proxy) = start(&folder, &text).await;
    let path = folder.path().join("proxy.toml");
    proxy.ask(get("a", "/a")).await;
    proxy.ask(get("a", "/a")).await;
    assert_eq!(origin.hits(), 1);
    replace(&path, "ttl = \"60s\"", "bypass = true");
    proxy.signal(Signal::HUP);
    shows(&proxy, "reverse_proxy_reloads_total 1").await;
    proxy.ask(get("a", "/a")).await;
    assert_eq!(origin.hits(), 2, "the rule is another one now");
    replace(&path, "bypass = true", "ttl = \"60 parsecs\"");
    proxy.signal(Signal::HUP);
    shows(&proxy, "reverse_proxy_failed_reloads_total 1").await;
    proxy.ask(get("a", "/a")).await;
    assert_eq!(origin.hits(), 3, "the old rule stays");
    let said = proxy.end_and_read_stderr().await;
    assert!(said.contains("\"60 parsecs\" is no duration"), "{said}");
    assert!(said.contains("the old one stays in force"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_ends_what_was_stored_before_a_reload_that_ignores_more_parameters() {
    let folder = folder();
    let token = file(&folder, "token", TOKEN);
    let text = format!(
        "[[origin]]\nurl = \"ORIGIN\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         token_file = \"{token}\"\n[cache]\nttl = \"600s\"\nignore_query = []\n"
    );
    let (origin, proxy) = start(&folder, &text).await;
    let path = folder.path().join("proxy.toml");
    proxy.ask(get("a", "/a?utm_x=1")).await;
    replace(&path, "ignore_query = []", "ignore_query = [\"utm_*\"]");
    proxy.signal(Signal::HUP);
    shows(&proxy, "reverse_proxy_reloads_total 1").await;
    let purge = "PURGE http://a/a?utm_x=1 HTTP/1.1\r\nHost: a\r\n";
    let mut operator = proxy.connect_as_operator().await;
    operator.send(format!("{purge}Authorization: Bearer {TOKEN}\r\n\r\n")).await;
    let reply = operator.reply().await;
    assert_eq!(reply.status(), 200, "{}", reply.body);
    replace(&path, "ignore_query = [\"utm_*\"]", "ignore_query = []");
    proxy.signal(Signal::HUP);
    shows(&proxy, "reverse_proxy_reloads_total 2").await;
    proxy.ask(get("a", "/a?utm_x=1")).await;
    assert_eq!(origin.hits(), 2, "the page from before the purge is gone");
}

#[tokio::test]
async fn the_access_log_has_a_line_for_each_request_and_no_client_can_forge_one() {
    let folder = folder();
    let log = folder.path().join("access.log");
    let flags = ["--access-log", "combined", "--access-log-file", log.to_str().unwrap()];
    let (_origin, mut proxy) = Scripted::start(&flags, silent).await;
    let forged = "x\" 200 1\t\u{e9}\\n127.0.0.2";
    proxy.ask(format!("GET /a?b HTTP/1.1\r\nHost: a\r\nUser-Agent: {forged}\r\n\r\n")).await;
    proxy.ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").await;
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.ended().await, Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("127.0.0.1 - - ["), "{text}");
    let end = r#""GET /a?b HTTP/1.1" 200 4 "-" "x\x22 200 1\x09\xC3\xA9\x5Cn127.0.0.2""#;
    assert!(lines[0].ends_with(end), "{text}");
    assert!(lines[1].contains("\"GET / HTTP/1.1\" 400 "), "{text}");
}

/// Found by a reader: the account behind such a rule was shared.
#[tokio::test]
async fn a_bypass_behind_a_pattern_that_matches_all_its_paths_is_an_error() {
    let check = async |first: &str, then: &str| {
        let text = format!(
            "[[origin]]\nurl = \"http://127.0.0.1:9\"\n[[rule]]\nname = \"pages\"\n{first}\nttl = \"1h\"\n\
             [[rule]]\nname = \"account\"\n{then}\nbypass = true\n"
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let ran = move || Proxy::refuse(&["--config", &path, "--check-config"]);
        let output = tokio::task::spawn_blocking(ran).await.unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    for (first, then) in [
        ("glob = \"/{account,shop}/**\"", "glob = \"/account/**\""),
        ("glob = \"/*ccount/**\"", "glob = \"/account/**\""),
        ("glob = \"/account*\"", "glob = \"/account\""),
        ("glob = \"/a*/**\"", "prefix = \"/account/\""),
    ] {
        let (is_good, said) = check(first, then).await;
        assert!(!is_good && said.contains("`account`: never applies"), "{first} {then}: {said}");
    }
    for (first, then) in [
        ("glob = \"/account/public/**\"", "glob = \"/account/**\""),
        ("glob = \"/account/*\"", "glob = \"/account/**\""),
        ("glob = \"**/*.css\"", "prefix = \"/account/\""),
        ("glob = \"/account*\"", "prefix = \"/account\""),
    ] {
        let (is_good, said) = check(first, then).await;
        assert!(is_good, "{first} {then}: {said}");
    }
}
