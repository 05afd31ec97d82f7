//! The context of the caller's task: task-local values and spans that middlewares set around the
//! layer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get as on_get;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, HttpLayer, Mode, Stampede};
use tracing::{Instrument, Level};

use crate::kit::http::*;
use crate::kit::log::TextLog;

tokio::task_local! {
    static USER: String;
    static ORDER: &'static str;
}

/// As axum's documentation hands values to handlers.
async fn auth(request: Request, next: Next) -> Response {
    let user = request.headers().get("user").map_or("none", |user| user.to_str().unwrap());
    USER.scope(user.to_owned(), next.run(request)).await
}

fn user() -> String {
    USER.try_with(Clone::clone).unwrap_or_else(|_| "missing".into())
}

fn carrying(layer: HttpLayer) -> HttpLayer {
    layer.carry_context(|_| {
        let user = USER.get();
        move |work| USER.scope(user, work)
    })
}

/// Each page panics without the value.
fn routes() -> Router {
    let hello = || async { format!("hello {}", USER.get()) };
    let cached = || async { (CacheFor::new(secs(60)), format!("hello {}", USER.get())) };
    Router::new().route("/plain", on_get(hello).post(hello)).route("/cached", on_get(cached))
}

fn as_user(method: &str, uri: &str, user: &str) -> Request {
    request(method, uri, &[("user", user)])
}

#[tokio::test(start_paused = true)]
async fn a_handler_reads_a_task_local_of_a_middleware_that_is_taken_along() {
    let cache = origin_only();
    let layer = carrying(cache.http_layer()).identity(|_| USER.try_with(Clone::clone).ok());
    let app = routes().layer(layer).layer(from_fn(auth));
    for (method, uri) in [("GET", "/plain"), ("POST", "/plain"), ("GET", "/cached")] {
        for name in ["ada", "bob", "ada"] {
            let replies = crowd(&app, 3, |_| as_user(method, uri, name)).await;
            let expected = format!("hello {name}");
            assert!(replies.iter().all(|reply| reply.text() == expected), "{method} {uri}");
        }
    }
    assert!(send(&app, as_user("GET", "/cached", "bob")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_forwarded_for_its_client_alone_is_handled_on_the_task_of_its_caller() {
    let cache = origin_only();
    let hello = || async { format!("hello {}", user()) };
    let layer = cache.http_layer().bypass(|parts| parts.uri.path() == "/bypassed");
    let app = Router::new()
        .route("/plain", on_get(hello).post(hello))
        .route("/private", on_get(hello))
        .route("/bypassed", on_get(hello))
        .layer(layer.route_rules("/private", HttpLayer::private))
        .layer(from_fn(auth));
    for (method, uri) in [("POST", "/plain"), ("GET", "/private"), ("GET", "/bypassed")] {
        assert_eq!(send(&app, as_user(method, uri, "ada")).await.text(), "hello ada", "{uri}");
    }
    // The first response says that the next ones are not shared.
    for _ in 0..2 {
        let replies = crowd(&app, 10, |_| as_user("GET", "/plain", "ada")).await;
        let alone = replies.iter().filter(|reply| reply.is(Alone));
        let texts: Vec<_> = alone.map(Reply::text).collect();
        assert_eq!(texts, ["hello ada"; 9]);
    }
    cache.set_mode(Mode::Off);
    assert_eq!(send(&app, as_user("GET", "/new", "ada")).await.status, 404);
    assert_eq!(send(&app, as_user("GET", "/plain?new", "ada")).await.text(), "hello ada");
}

#[tokio::test(start_paused = true)]
async fn a_background_refresh_has_the_context_of_the_client_that_triggered_it() {
    let cache = Stampede::builder("test").ttl(secs(10)).stale_for(secs(60)).jitter(0.0);
    let layer = carrying(cache.build().unwrap().http_layer());
    let app =
        Router::new().route("/", on_get(|| async { USER.get() })).layer(layer).layer(from_fn(auth));
    assert_eq!(send(&app, as_user("GET", "/", "ada")).await.text(), "ada");
    pass(secs(11)).await;
    let stale = send(&app, as_user("GET", "/", "bob")).await;
    assert!(stale.is(Stale) && stale.text() == "ada");
    pass(secs(1)).await;
    let refreshed = send(&app, as_user("GET", "/", "eve")).await;
    assert!(refreshed.is(Hit) && refreshed.text() == "bob", "{refreshed:?}");
}

#[tokio::test(start_paused = true)]
async fn the_context_is_taken_once_for_a_crowd_and_never_for_a_hit() {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let layer = with_ttl(60).http_layer().carry_context(move |parts| {
        assert_eq!(parts.uri.path(), "/report");
        count.fetch_add(1, SeqCst);
        |work| work
    });
    let origin = Origin::new(|_| Answer::status(200).body("page"));
    let app = layered(layer, &origin);
    for _ in 0..2 {
        crowd(&app, 100, |_| get("/report")).await;
        assert_eq!((taken.load(SeqCst), origin.calls()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_set_later_is_around_what_was_set_before() {
    let layer = with_ttl(60)
        .http_layer()
        .carry_context(|_| {
            |work| async { ORDER.scope(if user() == "set" { "inner" } else { "?" }, work).await }
        })
        .carry_context(|_| |work| USER.scope("set".into(), work));
    let page = on_get(|| async { format!("{} {}", user(), ORDER.get()) });
    let app = Router::new().route("/", page).layer(layer);
    assert_eq!(send(&app, get("/")).await.text(), "set inner");
}

#[tokio::test(start_paused = true)]
async fn a_route_takes_along_what_its_layer_takes_and_so_does_a_layer_with_one_inside() {
    for has_one_inside in [true, false] {
        let cache = origin_only();
        let cached = || async { (CacheFor::new(secs(60)), USER.get()) };
        let (route, layer) = match has_one_inside {
            true => (on_get(cached).layer(cache.http_layer()), cache.http_layer()),
            false => {
                let layer = cache.http_layer().route_rules("/", |it| it.max_variants(2));
                (on_get(cached), layer)
            }
        };
        let app = Router::new().route("/", route).layer(carrying(layer)).layer(from_fn(auth));
        for _ in 0..2 {
            let replies = crowd(&app, 3, |_| as_user("GET", "/", "ada")).await;
            assert!(replies.iter().all(|reply| reply.text() == "ada"), "{has_one_inside}");
        }
        pass(secs(61)).await;
        assert_eq!(send(&app, as_user("GET", "/", "bob")).await.text(), "bob");
    }
}

#[tokio::test(start_paused = true)]
async fn a_context_that_drops_the_work_fails_its_client_alone() {
    let calls = AtomicUsize::new(0);
    let layer = with_ttl(60).http_layer().carry_context(move |_| {
        let is_first = calls.fetch_add(1, SeqCst) == 0;
        move |work| async move {
            if !is_first {
                work.await;
            }
        }
    });
    let origin = Origin::new(|_| Answer::status(200).body("page"));
    let mut replies = crowd(&layered(layer, &origin), 10, |_| get("/report")).await;
    assert_eq!(replies.remove(0).status, 503);
    assert!(replies.iter().all(|reply| reply.text() == "page"), "{replies:?}");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_context_that_panics_fails_its_client_alone() {
    for panics_when_taken in [true, false] {
        let calls = AtomicUsize::new(0);
        let layer = with_ttl(60).http_layer().carry_context(move |_| {
            let is_first = calls.fetch_add(1, SeqCst) == 0;
            assert!(!(is_first && panics_when_taken), "a defect of the application");
            move |work| {
                assert!(!is_first, "a defect of the application");
                work
            }
        });
        let origin = Origin::new(|_| Answer::status(200).body("page"));
        let mut got = crowd_of(&layered(layer, &origin), 10, |_| get("/report")).await;
        assert!(matches!(got.remove(0), Got::Panicked));
        assert!(got.into_iter().all(|got| got.reply().text() == "page"));
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_local_that_is_missing_in_a_handler_is_one_line_that_names_the_remedy() {
    type Page = fn() -> String;
    let pages: [Page; 4] = [
        || USER.get(),
        || USER.with(Clone::clone),
        || USER.try_with(Clone::clone).unwrap(),
        || USER.try_with(Clone::clone).map_err(|error| panic!("{error}")).unwrap(),
    ];
    for page in pages {
        let log = TextLog::default();
        let _listening = log.listen(Level::WARN);
        let app = Router::new()
            .route("/{n}", on_get(move || async move { page() }))
            .layer(origin_only().http_layer())
            .layer(from_fn(auth));
        for n in 0..2 {
            let got = crowd_of(&app, 1, |_| get(&format!("/{n}"))).await;
            assert!(matches!(got[..], [Got::Panicked]), "{got:?}");
        }
        let lines = log.lines();
        let lines: Vec<_> = lines.iter().filter(|line| line.contains("task-local")).collect();
        assert!(
            matches!(lines[..], [line] if line.contains("HttpLayer::carry_context")),
            "{lines:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn another_panic_is_no_missing_task_local() {
    let log = TextLog::default();
    let _listening = log.listen(Level::WARN);
    let got = crowd_of(&app(&Origin::new(|_| Answer::panic())), 1, |_| get("/report")).await;
    assert!(matches!(got[..], [Got::Panicked]), "{got:?}");
    assert!(!log.text().contains("task-local"), "{}", log.text());
}

/// As tower-http's `TraceLayer` puts each request into a span.
async fn trace(request: Request, next: Next) -> Response {
    let user = request.headers().get("user").map_or("none", |user| user.to_str().unwrap());
    let span = tracing::info_span!("request", user);
    next.run(request).instrument(span).await
}

#[tokio::test(start_paused = true)]
async fn a_handler_runs_in_the_span_of_its_request_whatever_level_the_log_has() {
    for level in [Level::INFO, Level::DEBUG] {
        let log = TextLog::default();
        let _listening = log.listen(level);
        let cache = Stampede::builder("test").ttl(secs(10)).stale_for(secs(60)).jitter(0.0);
        let page = || async { tracing::info!("in the handler") };
        let app = Router::new()
            .route("/", on_get(page))
            .layer(cache.build().unwrap().http_layer())
            .layer(from_fn(trace));
        crowd(&app, 3, |n| as_user("GET", "/", ["ada", "bob", "eve"][n])).await;
        // One more in the background.
        pass(secs(11)).await;
        send(&app, as_user("GET", "/", "eve")).await;
        pass(secs(1)).await;
        let lines = log.lines();
        let of_handler: Vec<_> =
            lines.iter().filter(|line| line.contains("in the handler")).collect();
        let is_in = |line: &str, user| line.contains(&format!("request{{user=\"{user}\"}}"));
        assert!(
            matches!(of_handler[..], [first, second] if is_in(first, "ada") && is_in(second, "eve")),
            "{level}: {of_handler:?}"
        );
    }
}
