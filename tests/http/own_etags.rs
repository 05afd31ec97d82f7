//! Entity tags that the cache makes for responses without a validator.

use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpService, HttpStampede};

use crate::kit::http::*;

fn making(cache: &HttpStampede, origin: &Origin) -> HttpService<Origin> {
    cache.http_layer().make_etags(true).layer(origin.clone())
}

fn plain() -> Origin {
    Origin::new(|_| Answer::ok("max-age=10", "page"))
}

/// The tag that a hit for `uri` carries.
async fn tag(app: &HttpService<Origin>, uri: &str) -> Option<String> {
    send(app, get(uri)).await;
    let reply = send(app, get(uri)).await;
    assert!(reply.is(Hit), "{reply:?}");
    reply.header("etag").map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn a_stored_response_without_a_validator_gets_a_strong_tag_and_clients_get_304() {
    let (cache, origin) = (origin_only(), plain());
    let app = making(&cache, &origin);
    let tag = tag(&app, "http://a/1").await.expect("a tag");
    assert!(tag.starts_with('"') && tag.len() == 34, "{tag}");
    let reply = send(&app, with("http://a/1", &[("if-none-match", &tag)])).await;
    assert_eq!((reply.status, reply.header("etag")), (304, Some(&*tag)));
    let other = send(&app, with("http://a/1", &[("if-none-match", "\"other\"")])).await;
    assert_eq!(other.status, 200);
    // A part fits the whole that a client has.
    let fields = [("range", "bytes=0-1"), ("if-range", &*tag)];
    assert_eq!(send(&app, with("http://a/1", &fields)).await.status, 206);
    let fields = [("range", "bytes=0-1"), ("if-range", "\"other\"")];
    assert_eq!(send(&app, with("http://a/1", &fields)).await.status, 200);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_tag_is_never_sent_to_the_origin_and_is_the_same_for_the_same_body() {
    let (cache, origin) = (origin_only(), plain());
    let app = making(&cache, &origin);
    let before = tag(&app, "http://a/1").await;
    pass(secs(11)).await;
    let conditional = [("if-none-match", before.as_deref().unwrap())];
    let reply = send(&app, with("http://a/1", &conditional)).await;
    assert_eq!(reply.status, 200, "its own request was forwarded, for all");
    for call in origin.seen() {
        assert_eq!(call.header("if-none-match"), None);
        assert_eq!(call.header("if-modified-since"), None);
    }
    assert_eq!(tag(&app, "http://a/1").await, before);
    origin.answers(|_| Answer::ok("max-age=10", "another page"));
    pass(secs(11)).await;
    let after = tag(&app, "http://a/1").await;
    assert!(after.is_some() && after != before);
}

#[tokio::test(start_paused = true)]
async fn codings_of_one_page_have_different_tags_even_of_an_empty_body() {
    let origin = Origin::new(|call| {
        let coding = call.header("accept-encoding").unwrap_or("identity").to_owned();
        let answer = Answer::ok("max-age=10", "").header("vary", "accept-encoding");
        if coding == "identity" { answer } else { answer.header("content-encoding", &coding) }
    });
    let app = making(&origin_only(), &origin);
    let mut tags = Vec::new();
    for coding in ["gzip", "br", "identity"] {
        let ask = || with("http://a/1", &[("accept-encoding", coding)]);
        send(&app, ask()).await;
        tags.push(send(&app, ask()).await.header("etag").expect("a tag").to_owned());
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_response_with_a_validator_a_failure_and_a_layer_without_the_option_get_none() {
    for (name, value) in [
        ("etag", "\"own\""),
        ("etag", "no tag"),
        ("last-modified", "Wed, 01 Jan 2020 00:00:00 GMT"),
        ("last-modified", "no date"),
    ] {
        let origin = Origin::new(move |_| Answer::ok("max-age=10", "x").header(name, value));
        let own = tag(&making(&origin_only(), &origin), "http://a/1").await;
        assert_eq!(own.as_deref(), (name == "etag").then_some(value));
    }
    let missing = Origin::new(|_| Answer::status(404).header("cache-control", "max-age=10"));
    assert_eq!(tag(&making(&origin_only(), &missing), "http://a/1").await, None);
    assert_eq!(tag(&app(&plain()), "http://a/1").await, None);
}

#[tokio::test(start_paused = true)]
async fn no_transform_changes_nothing() {
    let origin = Origin::new(|_| Answer::ok("max-age=10, no-transform", "x"));
    assert!(tag(&making(&origin_only(), &origin), "http://a/1").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_arrives_gets_its_tag_once_it_is_complete() {
    let origin = Origin::new(|_| {
        let parts = futures_util::stream::iter(["one", "two"]).then(|part| async move {
            tokio::time::sleep(secs(1)).await;
            Ok::<_, std::io::Error>(part)
        });
        Answer::ok("max-age=10", axum::body::Body::from_stream(parts))
    });
    use futures_util::StreamExt;
    let app = making(&origin_only(), &origin);
    let first = crowd(&app, 3, |_| get("http://a/1")).await;
    assert!(first.iter().all(|reply| reply.text() == "onetwo" && reply.header("etag").is_none()));
    let hit = send(&app, get("http://a/1")).await;
    assert!(hit.is(Hit));
    let whole = Origin::new(|_| Answer::ok("max-age=10", "onetwo"));
    let same = tag(&making(&origin_only(), &whole), "http://a/1").await;
    assert!(same.is_some() && hit.header("etag") == same.as_deref());
}

#[tokio::test(start_paused = true)]
async fn the_tag_travels_to_other_processes_and_is_not_sent_to_the_origin_there() {
    use tower_stampede::Stampede;
    use tower_stampede::remote::{Double, RemoteSettings};

    let (double, origin) = (Double::new(), plain());
    let process = || {
        let cache = Stampede::builder("web").origin_only();
        let cache = cache.remote(double.process(), RemoteSettings::new()).build().unwrap();
        making(&cache, &origin)
    };
    let (one, two) = (process(), process());
    send(&one, get("http://a/1")).await;
    pass(secs(1)).await;
    let there = send(&two, get("http://a/1")).await;
    let tag = there.header("etag").expect("a tag").to_owned();
    assert_eq!(send(&one, get("http://a/1")).await.header("etag"), Some(&*tag));
    pass(secs(11)).await;
    send(&two, with("http://a/1", &[("if-none-match", &tag)])).await;
    assert_eq!(origin.calls(), 2);
    assert_eq!(origin.last().header("if-none-match"), None);
}
