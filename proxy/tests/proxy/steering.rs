//! The origin steers the proxy by fields of its responses, and operators by `--admin`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::kit::proxy::scripted::Scripted;
use crate::kit::proxy::{Head, Proxy, Reply, soon};

const TOKEN: &str = "an-operators-secret-token";

/// Longer than a request takes that is passed on by mistake.
const A_WHILE: Duration = Duration::from_millis(100);

fn asked(method: &str, path: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: shop\r\n{fields}Content-Length: 0\r\n\r\n")
}

async fn page(proxy: &Proxy, path: &str) -> Reply {
    proxy.ask(asked("GET", path, "")).await
}

/// A shop as a PHP application writes it: it knows of caches nothing but the fields that it
/// sends. Each page says how often its script ran.
fn shop() -> impl Fn(&Head) -> (String, String) + Send + Sync + 'static {
    let runs = Arc::new(AtomicUsize::new(0));
    move |head| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        let mut words = head.start.split(' ');
        let fields = match (words.next().unwrap(), words.next().unwrap()) {
            ("GET", "/") => {
                "Cache-Control: max-age=600\r\nCache-Groups: \"articles\", \"front\"\r\n"
            }
            ("GET", "/article/7") => {
                "Cache-Control: max-age=600, stale-while-revalidate=60\r\n\
                 Cache-Groups: \"articles\"\r\nSurrogate-Key: article:7 author:3\r\n"
            }
            ("GET", "/about") => "X-Accel-Expires: 600\r\nSurrogate-Key: static\r\n",
            ("POST", "/article/7/edit") => "Cache-Group-Invalidation: \"articles\"\r\n",
            ("POST", "/fails") => "Status: 500\r\nCache-Group-Invalidation: \"articles\"\r\n",
            _ => "",
        };
        (fields.to_owned(), format!("run {run}"))
    }
}

const FLAGS: &[&str] = &["--tags-from", "surrogate-key", "--lifetime-from", "x-accel-expires"];

async fn start() -> (Scripted, Proxy) {
    Scripted::start_behind(|origin| Proxy::start_with_token(origin, FLAGS, TOKEN), shop()).await
}

/// What an operator is told, with these fields.
async fn operator(proxy: &Proxy, method: &str, path: &str, fields: &str, body: &str) -> Reply {
    let mut peer = proxy.connect_as_operator().await;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: shop\r\n{fields}");
    peer.send(format!("{head}Content-Length: {length}\r\n\r\n{body}")).await;
    peer.reply().await
}

async fn with_token(proxy: &Proxy, method: &str, path: &str, fields: &str, body: &str) -> Reply {
    let fields = format!("Authorization: Bearer {TOKEN}\r\n{fields}");
    operator(proxy, method, path, &fields, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_tags_its_pages_and_ends_them_when_an_article_is_edited() {
    let (origin, proxy) = start().await;
    for path in ["/", "/article/7", "/about"] {
        let first = page(&proxy, path).await;
        let hit = page(&proxy, path).await;
        assert_eq!(first.body, hit.body, "{path}");
        for reply in [first, hit] {
            let removed = [reply.head.get("surrogate-key"), reply.head.get("x-accel-expires")];
            assert_eq!(removed, [None, None], "{path}");
        }
    }
    assert_eq!(origin.hits(), 3);
    let about = page(&proxy, "/about").await.body;
    // What clients say is no word of the origin's.
    let claims = "Cache-Group-Invalidation: \"articles\"\r\nSurrogate-Key: static\r\n";
    proxy.ask(asked("POST", "/search", claims)).await;
    proxy.ask(asked("PURGE", "/elsewhere", claims)).await;
    assert_eq!(page(&proxy, "/").await.body, "run 0");
    let edited = proxy.ask(asked("POST", "/article/7/edit", "")).await;
    assert_eq!(edited.head.get("cache-group-invalidation"), Some("\"articles\""));
    assert_ne!(page(&proxy, "/").await.body, "run 0");
    assert_ne!(page(&proxy, "/article/7").await.body, "run 1");
    assert_eq!(page(&proxy, "/about").await.body, about, "of no such group");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_purge_hard_and_soft_by_uri_tag_and_everything() {
    let (origin, proxy) = start().await;
    let article = "/article/7";
    let mut last = page(&proxy, article).await.body;
    for (method, path, fields, body) in [
        ("PURGE", article, "", ""),
        ("PURGE", "http://shop/article/7", "", ""),
        ("PURGE", "/", "Surrogate-Key: none author:3\r\n", ""),
        ("PURGE", "/", "Cache-Tag: none, author:3\r\n", ""),
        ("PURGE", "*", "", ""),
        ("POST", "/purge", "", r#"{"tag": "article:7"}"#),
        ("POST", "/purge", "", r#"{"group": "articles", "origin": "http://shop"}"#),
    ] {
        let reply = with_token(&proxy, method, path, fields, body).await;
        assert_eq!(reply.status(), 200, "{path} {}", reply.body);
        let now = page(&proxy, article).await.body;
        assert_ne!(now, last, "{method} {path} {fields}{body}");
        last = now;
    }
    for (method, path, fields, body) in [
        ("PURGE", article, "Soft-Purge: 1\r\n", ""),
        ("PURGE", "/", "Surrogate-Key: author:3\r\nSoft-Purge: 1\r\n", ""),
        ("PURGE", "*", "Soft-Purge: 1\r\n", ""),
        ("POST", "/purge", "", r#"{"path": "/article/7", "soft": true}"#),
    ] {
        let hits = origin.hits();
        let reply = with_token(&proxy, method, path, fields, body).await;
        assert_eq!(reply.status(), 200, "{path} {}", reply.body);
        assert_eq!(page(&proxy, article).await.body, last, "served stale");
        soon("the refresh", async { while page(&proxy, article).await.body == last {} }).await;
        assert_eq!(origin.hits(), hits + 1, "one request refreshes");
        last = page(&proxy, article).await.body;
    }
    let hits = origin.hits();
    for (path, fields) in [("/", "Surrogate-Key: *\r\n"), ("/", "Soft-Purge: yes\r\n")] {
        assert_eq!(with_token(&proxy, "PURGE", path, fields, "").await.status(), 400);
    }
    assert_eq!(page(&proxy, article).await.body, last);
    assert_eq!(origin.hits(), hits);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_ends_what_is_stored_without_the_parameters_that_are_ignored() {
    let purge = |fields: &'static str| ("PURGE", "/page?a=1&utm_x=1", fields, "");
    let by_json = r#"{"url": "http://SHOP/page?utm_x=1&a=1"}"#;
    for flags in [&["--ignore-query", "utm_*"][..], &["--ignore-query"]] {
        let flags = [&["--ttl-ms", "600000"], flags].concat();
        let (origin, proxy) = Scripted::start_behind(
            |origin| Proxy::start_with_token(origin, &flags, TOKEN),
            |_| (String::new(), "page".to_owned()),
        )
        .await;
        for (method, path, fields, body) in
            [purge(""), purge("Soft-Purge: 1\r\n"), ("POST", "/purge", "", by_json)]
        {
            page(&proxy, "/page?a=1&utm_y=2").await;
            let hits = origin.hits();
            page(&proxy, "/page?utm_z=2&a=1").await;
            assert_eq!(origin.hits(), hits, "it is stored");
            let reply = with_token(&proxy, method, path, fields, body).await;
            assert_eq!(reply.status(), 200, "{}", reply.body);
            page(&proxy, "/page?a=1&utm_y=2").await;
            assert_eq!(origin.hits(), hits + 1, "{flags:?} {method} {fields}: {}", reply.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_names_a_host_in_any_form_in_which_clients_name_it() {
    let flags = ["--ttl-ms", "600000"];
    let (origin, proxy) = Scripted::start_behind(
        |origin| Proxy::start_with_token(origin, &flags, TOKEN),
        |_| (String::new(), "page".to_owned()),
    )
    .await;
    let at = async |host: &str| {
        proxy.ask(format!("GET /page HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        origin.hits()
    };
    for host in ["[::1]", "[0:0:0::0001]", "[::FFFF:7F00:1]:8080", "SHOP.example:0080"] {
        let by_json = format!(r#"{{"url": "http://{host}/page"}}"#);
        let target = format!("http://{host}/page");
        for (method, path, body) in [("PURGE", &*target, ""), ("POST", "/purge", &*by_json)] {
            let hits = at(host).await;
            assert_eq!(at(host).await, hits, "it is stored");
            let reply = with_token(&proxy, method, path, "", body).await;
            assert_eq!(reply.status(), 200, "{}", reply.body);
            assert_eq!(at(host).await, hits + 1, "{method} {host}: {}", reply.body);
        }
    }
}

/// As docs/reverse-proxy.md says in *Purges*.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_ends_what_is_stored_under_the_port_that_it_names_and_a_path_under_all() {
    let flags = ["--ttl-ms", "600000"];
    let (origin, proxy) = Scripted::start_behind(
        |origin| Proxy::start_with_token(origin, &flags, TOKEN),
        |_| (String::new(), "page".to_owned()),
    )
    .await;
    let calls_for = async |host: &str| {
        let before = origin.hits();
        proxy.ask(format!("GET /page?a HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        origin.hits() - before
    };
    let (plain, with_port) = ("shop", "shop:8080");
    let is_stored = async || (calls_for(plain).await, calls_for(with_port).await);
    is_stored().await;
    assert_eq!(is_stored().await, (0, 0));
    for (method, path, body, ends) in [
        ("PURGE", "http://shop/page?a", "", (1, 0)),
        ("PURGE", "http://shop:80/page?a", "", (1, 0)),
        ("PURGE", "http://shop:8080/page?a", "", (0, 1)),
        ("POST", "/purge", r#"{"url": "http://shop/page?a"}"#, (1, 0)),
        ("POST", "/purge", r#"{"path": "/page"}"#, (1, 1)),
    ] {
        let reply = with_token(&proxy, method, path, "", body).await;
        assert_eq!(reply.status(), 200, "{}", reply.body);
        assert_eq!(is_stored().await, ends, "{method} {path} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_operators_get_401_and_nothing_changes() {
    let (origin, proxy) = start().await;
    let before = page(&proxy, "/").await.body;
    let shown = [
        String::new(),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
        format!("Authorization: {TOKEN}\r\n"),
        format!("Authorization: Basic {TOKEN}\r\n"),
        format!("Authorization: Bearer {TOKEN}x\r\n"),
        format!("Authorization: Bearer {}\r\n", &TOKEN[1..]),
        format!("Authorization: Bearer {}\r\n", TOKEN.to_uppercase()),
        format!("Authorization: Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}\r\n"),
        format!("X-Token: {TOKEN}\r\n"),
    ];
    for fields in shown {
        for (method, path, body) in [
            ("PURGE", "*", ""),
            ("PURGE", "/", ""),
            ("POST", "/purge", r#"{"tag": "*"}"#),
            ("PUT", "/mode", r#"{"mode": "off"}"#),
            ("GET", "/keys", ""),
            ("GET", "/stats", ""),
            ("GET", "/nowhere", ""),
        ] {
            let reply = operator(&proxy, method, path, &fields, body).await;
            assert_eq!(reply.status(), 401, "{method} {path} {fields}");
            assert_eq!(reply.head.get("www-authenticate"), Some("Bearer"));
            assert!(!reply.body.contains("shop"), "{}", reply.body);
        }
    }
    assert_eq!(page(&proxy, "/").await.body, before);
    assert_eq!(with_token(&proxy, "GET", "/mode", "", "").await.body, r#"{"mode":"on"}"#);
    assert_eq!(origin.hits(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheme_of_the_token_is_in_any_case_and_an_unknown_path_is_told_the_others() {
    let (_origin, proxy) = start().await;
    for scheme in ["bearer", "BEARER", "Bearer", "bEARER "] {
        let fields = format!("Authorization: {scheme} {TOKEN}\r\n");
        assert_eq!(operator(&proxy, "GET", "/stats", &fields, "").await.status(), 200, "{scheme}");
        let unknown = operator(&proxy, "GET", "/nowhere", &fields, "").await;
        assert_eq!(unknown.status(), 404);
        for path in ["/healthz", "/metrics", "/stats", "/health", "/log", "/mode", "/keys"] {
            assert!(unknown.body.contains(path), "{}", unknown.body);
            assert_eq!(operator(&proxy, "GET", path, &fields, "").await.status(), 200, "{path}");
        }
        assert!(unknown.body.contains("POST /purge, and PURGE"), "{}", unknown.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_at_the_public_listener_is_an_unknown_method_like_any_other() {
    let (origin, proxy) = start().await;
    page(&proxy, "/").await;
    let fields = format!("Authorization: Bearer {TOKEN}\r\n");
    let reply = proxy.ask(asked("PURGE", "/about", &fields)).await;
    assert_eq!(reply.status(), 200);
    assert!(origin.heads().last().unwrap().start.starts_with("PURGE /about "));
    assert_eq!(page(&proxy, "/").await.body, "run 0", "another page is as it was");
    // Nor does it have what operators have.
    proxy.ask(asked("GET", "/stats", &fields)).await;
    assert!(origin.heads().last().unwrap().start.starts_with("GET /stats "));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_body_and_connection_are_bounded() {
    let (_origin, proxy) = start().await;
    let large = format!(r#"{{"tag": "{}"}}"#, "x".repeat(70_000));
    assert_eq!(with_token(&proxy, "POST", "/purge", "", &large).await.status(), 413);
    let mut slow = proxy.connect_as_operator().await;
    slow.send("GET /stats HTTP/1.1\r\nHost: shop\r\n").await;
    assert!(slow.is_quiet_for(A_WHILE).await);
    // A head that does not come ends the connection.
    slow.until_end().await;
}

#[test]
fn without_a_good_token_there_is_no_listener() {
    let flags = ["--origin", "http://127.0.0.1:1", "--admin", "127.0.0.1:0"];
    let refused = |more: &[&str]| {
        let output = Proxy::refuse(&[&flags[..], more].concat());
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&[]).contains("--admin needs a token"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for token in [
        "",
        "short",
        "sixteen and more with blanks",
        "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
    ] {
        std::fs::write(path, token).unwrap();
        let said = refused(&["--admin-token-file", path]);
        assert!(said.contains("at least 16 visible ASCII characters"), "{said}");
        assert!(token.is_empty() || !said.contains(token), "the token is not shown");
    }
    let said = refused(&["--admin-token-file", "/nowhere/token"]);
    assert!(said.contains("--admin-token-file: /nowhere/token"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_a_file_counts_without_its_line_end() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{TOKEN}\n")).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let flags = ["--admin-token-file", &path];
    let (_origin, proxy) = Scripted::start_behind(
        |origin| Proxy::start_with_token(origin, &flags, "another-token-in-the-environment"),
        shop(),
    )
    .await;
    assert_eq!(with_token(&proxy, "GET", "/mode", "", "").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn named_cookies_do_not_switch_the_cache_off_and_made_tags_answer_304() {
    let flags = ["--ignore-cookie", "_ga", "--ignore-cookie", "_ga_*", "--make-etags"];
    let script = |_: &Head| ("Cache-Control: max-age=600\r\n".to_owned(), "page".to_owned());
    let (origin, proxy) = Scripted::start(&flags, script).await;
    proxy.ask(asked("GET", "/", "Cookie: _ga=1; _ga_X=2\r\n")).await;
    let hit = proxy.ask(asked("GET", "/", "Cookie: _ga=3\r\n")).await;
    assert_eq!((origin.hits(), origin.heads()[0].get("cookie")), (1, None));
    let tag = hit.head.get("etag").expect("a tag");
    let condition = format!("If-None-Match: {tag}\r\n");
    let head = proxy.send(asked("GET", "/", &condition)).await.head().await;
    assert_eq!(head.status(), 304);
    assert_eq!(origin.hits(), 1);
    proxy.ask(asked("GET", "/other", "Cookie: _ga=3; sid=1\r\n")).await;
    assert_eq!((origin.hits(), origin.heads()[1].get("cookie")), (2, Some("sid=1")));
}
