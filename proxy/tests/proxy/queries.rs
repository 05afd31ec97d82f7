//! Requests that are keyed by their body: QUERY, and POSTs by flag.

use crate::kit::proxy::scripted::{Scripted, fresh};
use crate::kit::proxy::{Proxy, Reply};

async fn counting(flags: &[&str]) -> (Scripted, Proxy) {
    Scripted::start(flags, |head| {
        let length = head.get("content-length").unwrap_or("no");
        (fresh(), format!("{} with {length} bytes", head.start))
    })
    .await
}

async fn ask(proxy: &Proxy, method: &str, path: &str, fields: &str, body: &str) -> Reply {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}");
    proxy.ask(format!("{head}Content-Length: {length}\r\n\r\n{body}")).await
}

#[tokio::test]
async fn a_query_is_stored_by_its_body() {
    let (origin, proxy) = counting(&[]).await;
    for (body, hits) in [("a", 1), ("a", 1), ("b", 2), ("", 3), ("b", 3)] {
        let reply = ask(&proxy, "QUERY", "/x", "Content-Type: text/plain\r\n", body).await;
        assert_eq!(reply.body, format!("QUERY /x HTTP/1.1 with {} bytes", body.len()));
        assert_eq!(origin.hits(), hits, "{body:?}");
    }
    let head = "QUERY /x HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n";
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n");
    assert_eq!(proxy.ask(chunked).await.status(), 200);
    assert_eq!(origin.hits(), 3, "in chunks it is the same body");
    let long = "x".repeat((64 << 10) + 1);
    for hits in [4, 5] {
        let reply = ask(&proxy, "QUERY", "/x", "", &long).await;
        assert_eq!(reply.body, format!("QUERY /x HTTP/1.1 with {} bytes", long.len()));
        assert_eq!(origin.hits(), hits);
    }
}

#[tokio::test]
async fn posts_to_a_path_are_stored_by_flag() {
    let (origin, proxy) = counting(&["--cache-post", "/graphql"]).await;
    for (path, hits) in [("/graphql", 1), ("/graphql", 1), ("/graphql/x", 2), ("/graphql/x", 3)] {
        ask(&proxy, "POST", path, "", "{ a }").await;
        assert_eq!(origin.hits(), hits, "{path}");
    }
    ask(&proxy, "POST", "/graphql", "", "{ b }").await;
    assert_eq!(origin.hits(), 4);
}

#[tokio::test]
async fn the_origin_sees_one_form_of_what_a_client_accepts() {
    let (origin, proxy) = counting(&[]).await;
    ask(&proxy, "QUERY", "/x", "Accept-Encoding: br;q=0.1, GZIP\r\n", "").await;
    assert_eq!(origin.heads()[0].get("accept-encoding"), Some("gzip, br"));
}
