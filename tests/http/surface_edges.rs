//! Edges of settings, of calls that block, of hidden failures, and of work that is cancelled.

use tower_stampede::CacheOutcome::*;
use tower_stampede::{HttpStampede, Stampede};

use crate::kit::http::*;
use crate::kit::spawn;
use crate::streaming::fed::*;

fn builder() -> tower_stampede::Builder<tower_stampede::StoredResponse> {
    Stampede::builder("web").origin_only().jitter(0.0).cancel_unwanted(0.5)
}

/// With and without the setting.
fn both() -> [(bool, tower_stampede::Builder<tower_stampede::StoredResponse>); 2] {
    [(false, Stampede::builder("web").origin_only().jitter(0.0)), (true, builder())]
}

fn cancelling() -> HttpStampede {
    builder().build().unwrap()
}

/// Breaks `Builder::cancel_unwanted`: it cancels what no caller waits for *any more*, and this body is
/// there to its last byte, read by its client. `Pump::next` in `http/flow/lead/pump.rs` gives the body
/// up before it sees that it has its declared length. It needs one turn between the last frame and
/// that look: each 64th frame has one, and on several threads each frame may.
#[tokio::test(start_paused = true)]
async fn a_body_that_its_client_has_read_to_the_end_is_stored() {
    for (cancels, builder) in both() {
        let cache = builder.build().unwrap();
        let sources = Sources::default();
        let origin = sources.origin(|_, answer| answer.header("content-length", "64"));
        let app = layered(cache.http_layer(), &origin);
        let mut client = open(&app, get("/report")).await;
        let source = sources.take(0);
        let reading = spawn(async move {
            // As a server does that has sent as many bytes as it has promised.
            while client.read < 64 {
                client.read += client.next_frame().await;
            }
        });
        settle().await;
        for _ in 0..64 {
            source.send("x");
        }
        reading.await.unwrap();
        settle().await;
        let next = spawn(async move { open(&app, get("/report")).await.is(Hit) });
        assert!(next.await.unwrap(), "the whole body had come, and was thrown away: {cancels}");
        assert_eq!(origin.calls(), 1);
    }
}

/// Breaks `Builder::cancel_unwanted`: "a body over HTTP when it has no reader", and the comment at
/// `Pump::keep`: "Without a reader it goes on only while [...] the response may still answer a
/// request". A response for the clients that wait alone has no flight, and `Pump::is_of_use` in
/// `http/flow/lead/pump.rs` takes a body without a flight for one of use.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_stored_anyway_is_dropped_with_its_last_reader() {
    let cache = cancelling();
    let sources = Sources::default();
    let origin = sources.origin(|_, answer| answer.header("age", "100"));
    let app = layered(cache.http_layer(), &origin);
    let client = open(&app, get("/report")).await;
    let source = sources.take(0);
    source.send("one ");
    settle().await;
    drop(client);
    settle().await;
    source.send("two ");
    settle().await;
    assert!(source.is_dropped(), "it is read for nobody: {} frames", source.taken());
}

/// Breaks "It saves an origin work for clients that are gone" (docs/how-it-works.md): this client has
/// its answer, and the next one asks for the same. With `cancel_unwanted` a page that browsers
/// validate is never stored, and each of them costs a call: the 304 has no body, so `Pump::next` finds
/// no reader at its first look.
#[tokio::test(start_paused = true)]
async fn clients_that_get_a_304_from_a_cold_cache_fill_it() {
    for (cancels, builder) in both() {
        let sources = Sources::default();
        let origin = sources.origin(|_, answer| answer.header("etag", "\"1\""));
        let app = layered(builder.build().unwrap().http_layer(), &origin);
        for n in 0..3 {
            let client = with("/report", &[("if-none-match", "\"1\"")]);
            assert_eq!(open(&app, client).await.head.status, 304);
            pass(secs(1)).await;
            if n < origin.calls() {
                let source = sources.take(n);
                source.send("all");
                drop(source);
                pass(secs(1)).await;
            }
        }
        assert_eq!(origin.calls(), 1, "of three clients that have not hung up: {cancels}");
    }
}

/// Breaks `HttpLayer::fill_from_ranges`: "a range request that finds nothing fresh asks the service for
/// the whole response, once for a crowd. It is stored, and each client gets its part of it." With
/// `cancel_unwanted` a client that has got its part is a reader that has gone: the whole is dropped, and
/// each part of a file costs a call for the whole. `Pump::is_of_use` in `http/flow/lead/pump.rs`.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_got_its_part_has_asked_for_the_whole() {
    for (cancels, builder) in both() {
        let sources = Sources::default();
        let origin = sources.origin(|_, answer| answer.header("content-length", "12"));
        let app = layered(builder.build().unwrap().http_layer(), &origin);
        let part = || with("/file", &[("range", "bytes=0-3")]);
        let asking = app.clone();
        let first = spawn(async move {
            let mut client = open(&asking, part()).await;
            (client.head.status.as_u16(), client.rest().await.text().to_owned())
        });
        pass(secs(1)).await;
        let source = sources.take(0);
        source.send("part");
        assert_eq!(first.await.unwrap(), (206, "part".into()));
        settle().await;
        source.send("the rest");
        drop(source);
        pass(secs(1)).await;
        let last = open(&app, with("/file", &[("range", "bytes=4-11")])).await;
        assert!(last.is(Hit) && origin.calls() == 1, "{cancels}: {} calls", origin.calls());
    }
}

/// Breaks `Builder::cancel_unwanted`: "Refreshes in the background go on, and so does work that a soft
/// time-out has left." `answer_in_time` in `http/flow/miss.rs` notes the key of the flight when the
/// request comes; a request that learns of a `Vary` leads another flight, and that is not kept.
#[tokio::test(start_paused = true)]
async fn work_that_a_soft_time_out_has_left_goes_on_for_another_variant() {
    for (cancels, builder) in both() {
        let cache = builder.soft_timeout(secs(3)).build().unwrap();
        let sources = Sources::default();
        let bodies = sources.clone();
        let origin = Origin::new(move |call| match (call.n, call.header("accept-language")) {
            (0, _) => Answer::ok("max-age=60, stale-if-error=3600", "old").after(secs(10)),
            (_, Some("en")) => {
                let answer = Answer::ok("max-age=60", bodies.body()).after(secs(1));
                answer.header("vary", "accept-language")
            }
            _ => {
                let answer = Answer::ok("max-age=60", "neu").after(secs(4));
                answer.header("vary", "accept-language")
            }
        });
        let app = layered(cache.http_layer(), &origin);
        let (en, de) = ([("accept-language", "en")], [("accept-language", "de")]);
        assert_eq!(send(&app, with("/p", &en)).await.text(), "old");
        pass(secs(120)).await;
        let (first, second) = (app.clone(), app.clone());
        let first = spawn(async move { open(&first, with("/p", &en)).await });
        settle().await;
        let second = spawn(async move { send(&second, with("/p", &de)).await });
        let _first = first.await.unwrap();
        let reply = second.await.unwrap();
        assert!(reply.is(StaleIfError), "{reply:?}");
        pass(secs(5)).await;
        let reply = send(&app, with("/p", &de)).await;
        assert!(reply.is(Hit) && reply.text() == "neu", "{cancels}: {reply:?}");
    }
}

/// Breaks the sentence of `settings/layer.rs` on a file: "what it names as a credential or as a part of
/// the key is one, whatever it takes out". `replace_credential_headers` names credentials too, and
/// its row comes before `not_a_credential`: so one client's response goes to the next.
#[tokio::test(start_paused = true)]
async fn what_a_file_names_as_a_credential_is_one_also_by_the_list_that_it_replaces() {
    let file = r#"{ "ttl": "60s", "http": {
        "replace_credential_headers": ["x-key"], "not_a_credential": ["x-key"] } }"#;
    let mut json = serde_json::Deserializer::from_str(file);
    let settings = tower_stampede::Settings::read("caches.site", &mut json).unwrap();
    let cache: HttpStampede = settings.builder("site").build().unwrap();
    let origin = Origin::new(|call| {
        Answer::status(200).body(call.header("x-key").unwrap_or_default().to_owned())
    });
    let app = layered(cache.http_layer(), &origin);
    assert_eq!(send(&app, with("/p", &[("x-key", "anna")])).await.text(), "anna");
    assert_eq!(send(&app, with("/p", &[("x-key", "bert")])).await.text(), "bert");
}
