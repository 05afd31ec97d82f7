//! The life of a refresh: who triggers it, how often, what it carries, and what
//! warnings do to it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use http::request::Parts;
use http::{Method, Request, Response};
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::HttpStampede;

use crate::kit::http::*;
use crate::kit::spawn;

const SWR: &str = "max-age=10, stale-while-revalidate=600";
const SHORT_SWR: &str = "max-age=10, stale-while-revalidate=60";

type Client = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

fn boxed<S, B>(service: S) -> Client
where
    S: tower_service::Service<Request<Body>, Response = Response<B>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    BoxCloneSyncService::new(tower::service_fn(move |request| {
        let service = service.clone();
        async move { Ok(service.oneshot(request).await.unwrap().map(Body::new)) }
    }))
}

/// Another response of the URI names `Cookie` in `Vary`. A refresh that carried
/// the cookie would be refused, and repeated by each stale answer.
#[tokio::test(start_paused = true)]
async fn a_stale_entry_is_refreshed_once_although_another_response_of_its_uri_varies_by_cookie() {
    let origin = Origin::new(|call| {
        let language = call.header("accept-language").unwrap_or("none").to_owned();
        let vary = if language == "de" { "accept-language" } else { "accept-language, cookie" };
        Answer::ok(SWR, language).header("vary", vary)
    });
    let app = app(&origin);
    for language in ["fr", "de"] {
        send(&app, with("/page", &[("accept-language", language)])).await;
    }
    assert_eq!(origin.calls(), 2);
    pass(secs(11)).await;
    for n in 0..20 {
        let client = [("accept-language", "de"), ("cookie", "_ga=1")];
        let reply = send(&app, with("/page", &client)).await;
        assert_eq!(reply.text(), "de");
        assert!(n > 0 || reply.is(Stale), "{reply:?}");
        pass(ms(400)).await;
    }
    assert_eq!(origin.calls(), 3, "one refresh in one stale window");
}

/// Many requests find the same stale entry.
#[tokio::test(start_paused = true)]
async fn the_rules_are_searched_once_per_refresh_and_not_once_per_stale_answer() {
    let evaluated = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&evaluated);
    let origin = Origin::new(|_| Answer::ok(SWR, "page"));
    let layer = origin_only().http_layer().key(move |parts: &Parts| {
        counted.fetch_add(1, SeqCst);
        parts.headers.get("x-region").unwrap().to_str().unwrap().to_owned()
    });
    let app = layered(layer, &origin);
    let ask = |_| {
        let mut request = with("/page", &[("x-region", "eu"), ("host", "a")]);
        for i in 0..20 {
            let name = http::HeaderName::try_from(format!("x-browser-{i}")).unwrap();
            request.headers_mut().insert(name, "1".parse().unwrap());
        }
        request
    };
    send(&app, ask(0)).await;
    pass(secs(11)).await;
    evaluated.store(0, SeqCst);
    let replies = crowd(&app, 100, ask).await;
    assert!(replies.iter().all(|reply| reply.is(Stale)));
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 2);
    let evaluated = evaluated.load(SeqCst);
    // One per request, and the search of the one refresh.
    assert!(evaluated <= 100 + 30, "{evaluated} evaluations for 100 requests and one refresh");
}

/// The rule works for every request that a client sends.
#[tokio::test(start_paused = true)]
async fn a_rule_that_holds_a_lock_survives_a_refresh() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let origin = Origin::new(|_| Answer::ok(SWR, "page"));
    let layer = origin_only().http_layer().key(move |parts: &Parts| {
        let mut seen = seen.lock().unwrap();
        let region = parts.headers["x-region"].to_str().unwrap().to_owned();
        seen.push(region.clone());
        region
    });
    let app = layered(layer, &origin);
    let ask = |_| with("/page", &[("x-region", "eu")]);
    send(&app, ask(0)).await;
    pass(secs(11)).await;
    send(&app, ask(0)).await;
    pass(secs(1)).await;
    let after = crowd_of(&app, 3, ask).await;
    let answered = after.iter().filter(|got| matches!(got, Got::Reply(_))).count();
    assert_eq!((answered, origin.calls()), (3, 2));
}

/// The rule gives another answer each time.
#[tokio::test(start_paused = true)]
async fn a_rule_that_samples_requests_does_not_let_a_refresh_carry_unkeyed_fields() {
    let mut leaks = Vec::new();
    for every in 3..12 {
        let (n, origin) = (AtomicUsize::new(0), Origin::new(|_| Answer::ok(SWR, "page")));
        // One in so many goes past the cache, for comparison.
        let sample = move |_: &Parts| n.fetch_add(1, SeqCst) % every == every - 1;
        let app = layered(origin_only().http_layer().bypass(sample), &origin);
        for _ in 0..60 {
            let before = origin.calls();
            let reply = send(&app, with("/page", &[("x-anything", "evil")])).await;
            pass(secs(11)).await;
            let refreshed = reply.is(Stale) && origin.calls() > before;
            if refreshed && origin.last().header("x-anything").is_some() {
                leaks.push(every);
            }
        }
    }
    assert!(
        leaks.is_empty(),
        "refreshes with x-anything, where one in n is sampled: n = {leaks:?}"
    );
}

/// An internal request that is made of the outer request's parts.
fn composed(
    cache: &HttpStampede,
    origin: &Origin,
    fragment: fn(&Request<Body>) -> Option<Request<Body>>,
) -> Client {
    let whole: Arc<Mutex<Option<Client>>> = Arc::default();
    let (app, origin) = (Arc::clone(&whole), origin.clone());
    let handler = tower::service_fn(move |request: Request<Body>| {
        let app = app.lock().unwrap().clone().unwrap();
        let origin = origin.clone();
        async move {
            if let Some(inner) = fragment(&request) {
                app.oneshot(inner).await?;
            }
            Ok::<_, Infallible>(origin.handle(request).await)
        }
    });
    let client = boxed(cache.http_layer().layer(handler));
    *whole.lock().unwrap() = Some(client.clone());
    client
}

/// Another request with the extensions (state, user, connection) of this one.
fn derived(request: &Request<Body>, method: &str, uri: &str) -> Request<Body> {
    let mut inner = Request::new(Body::empty());
    *inner.method_mut() = method.parse().unwrap();
    *inner.uri_mut() = uri.parse().unwrap();
    *inner.headers_mut() = request.headers().clone();
    *inner.extensions_mut() = request.extensions().clone();
    inner
}

#[tokio::test(start_paused = true)]
async fn an_internal_write_with_the_outer_ones_extensions_invalidates() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let cache = origin_only();
    let app = composed(&cache, &origin, |request| {
        (request.uri().path() == "/checkout").then(|| derived(request, "POST", "/basket"))
    });
    assert_eq!(send(&app, get("/basket")).await.text(), "0");
    send(&app, request("POST", "/checkout", &[])).await;
    // The service has changed /basket in call 1.
    assert!(send(&app, get("/basket")).await.is(Computed), "the old page stays after the write");
}

/// The inner layer has a scope, and entries under it by another way in.
#[tokio::test(start_paused = true)]
async fn a_write_through_both_layers_ends_what_the_inner_one_has_stored() {
    let cache = origin_only();
    let origin = Origin::new(|call| Answer::ok("max-age=60", call.n.to_string()));
    let shop = cache.http_layer().scope("shop").layer(origin.infallible());
    let public = cache.http_layer().layer(shop.clone());
    // The internal listener has the route alone.
    assert_eq!(send(&shop, get("/page")).await.text(), "0");
    send(&public, request("POST", "/page", &[])).await;
    assert!(send(&shop, get("/page")).await.is(Computed), "the old page stays after the write");
}

/// A firewall refuses a refresh, which has none of a browser's fields. The refusal
/// is not stored.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_is_refused_for_want_of_a_field_is_not_repeated_by_every_stale_answer() {
    let mut calls = Vec::new();
    for status in [302, 400, 403, 406] {
        let origin = Origin::new(move |call| match call.header("user-agent") {
            Some(_) => Answer::ok(SWR, "page"),
            None => Answer::status(status),
        });
        let app = app(&origin);
        let ask = || with("/page", &[("user-agent", "Mozilla/5.0")]);
        send(&app, ask()).await;
        pass(secs(11)).await;
        for _ in 0..50 {
            assert!(
                send(&app, ask()).await.is(Stale) || origin.last().header("user-agent").is_some()
            );
            pass(ms(200)).await;
        }
        calls.push((status, origin.calls()));
    }
    // As many as for a 503.
    assert!(calls.iter().all(|(_, calls)| *calls <= 8), "status and calls in 10 s: {calls:?}");
}

/// The answer to a refresh says nothing of the answers that clients get.
#[tokio::test(start_paused = true)]
async fn after_a_refresh_whose_answer_is_not_stored_the_next_crowd_is_one_call() {
    // Who says nothing of languages is sent to where they are chosen.
    let origin = Origin::new(|call| match call.header("accept-language") {
        Some(_) => Answer::ok("max-age=10, stale-while-revalidate=10", "page"),
        None => Answer::status(302).header("location", "/choose"),
    });
    let app = app(&origin);
    let ask = |_| with("/", &[("accept-language", "de")]);
    send(&app, ask(0)).await;
    pass(secs(11)).await;
    assert!(send(&app, ask(0)).await.is(Stale));
    // Until the stale window is over.
    pass(secs(10)).await;
    let before = origin.calls();
    crowd(&app, 50, ask).await;
    assert_eq!(origin.calls() - before, 1);
}

/// What selects the entry differs from what the refresh finds.
#[tokio::test(start_paused = true)]
async fn a_stale_entry_that_only_credentialed_requests_select_is_refreshed() {
    let origin = Origin::new(|call| {
        if call.header("accept-language") == Some("de") {
            let it = "public, max-age=10, stale-while-revalidate=600";
            Answer::ok(it, format!("de {}", call.n)).header("vary", "accept-language")
        } else {
            Answer::ok("max-age=600", "html").header("vary", "accept")
        }
    });
    let app = app(&origin);
    send(&app, with("/page", &[("accept-language", "de"), ("accept", "text")])).await;
    pass(ms(10)).await;
    send(&app, with("/page", &[("accept-language", "fr"), ("accept", "html")])).await;
    pass(secs(11)).await;
    let key = [("accept-language", "de"), ("accept", "html"), ("x-api-key", "1")];
    for _ in 0..20 {
        send(&app, with("/page", &key)).await;
        pass(ms(300)).await;
    }
    assert_eq!(origin.calls(), 3, "one refresh");
}

/// Two flights for one stale entry.
#[tokio::test(start_paused = true)]
async fn a_stale_entry_of_a_credentialed_request_is_refreshed_once_by_a_mixed_crowd() {
    let origin =
        Origin::new(|_| Answer::ok("public, max-age=10, stale-while-revalidate=600", "page"));
    let app = app(&origin);
    send(&app, with("/page", &[("x-user-id", "1")])).await;
    pass(secs(11)).await;
    crowd(
        &app,
        50,
        |i| if i % 2 == 0 { get("/page") } else { with("/page", &[("x-user-id", "1")]) },
    )
    .await;
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 2, "one refresh");
}

/// The flight of a refresh is that of the predicted variant.
#[tokio::test(start_paused = true)]
async fn a_stale_variant_is_refreshed_once_though_the_newest_vary_names_another_field() {
    let origin = Origin::new(|call| {
        let language = call.header("accept-language").unwrap_or("none").to_owned();
        let vary = if language == "de" { "accept-language" } else { "accept-language, x-theme" };
        Answer::ok(SWR, language).header("vary", vary)
    });
    let app = app(&origin);
    for language in ["de", "en"] {
        send(&app, with("/page", &[("accept-language", language)])).await;
    }
    pass(secs(11)).await;
    crowd(&app, 50, |i| with("/page", &[("accept-language", "de"), ("x-theme", &i.to_string())]))
        .await;
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 3, "one refresh");
}

/// The application has named the fields that its rule reads.
#[tokio::test(start_paused = true)]
async fn a_rule_that_joins_fields_in_their_order_does_not_let_a_refresh_carry_others() {
    let origin = Origin::new(|_| Answer::ok(SWR, "page"));
    let layer = origin_only().http_layer().key(|parts: &Parts| {
        let own = parts.headers.iter().filter(|(name, _)| name.as_str().starts_with("x-feature-"));
        own.map(|(_, value)| value.to_str().unwrap()).collect::<String>()
    });
    let layer = layer.refresh_headers(["x-feature-a", "x-feature-b"]);
    let app = layered(layer, &origin);
    let client = [("x-feature-a", "1"), ("x-evil", "1"), ("x-feature-b", "2"), ("x-other", "1")];
    send(&app, with("/page", &client)).await;
    pass(secs(11)).await;
    assert!(send(&app, with("/page", &client)).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(origin.calls(), 2);
    assert_eq!((origin.last().header("x-evil"), origin.last().header("x-other")), (None, None));
}

/// The lease belongs to the variant that is refreshed, not to a predicted one.
#[tokio::test(start_paused = true)]
async fn two_processes_refresh_one_stale_variant_once_though_one_knows_more_vary_lists() {
    use tower_stampede::Stampede;
    use tower_stampede::remote::{Double, RemoteSettings};
    let double = Double::new();
    let origin = Origin::new(|call| {
        let language = call.header("accept-language").unwrap_or("none").to_owned();
        let vary = if language == "de" { "accept-language" } else { "accept-language, x-theme" };
        Answer::ok(SWR, language).header("vary", vary)
    });
    let process = || -> HttpStampede {
        let settings = Stampede::builder("web").origin_only();
        settings.remote(double.process(), RemoteSettings::new()).build().unwrap()
    };
    let apps = [(); 2].map(|()| layered(process().http_layer(), &origin));
    let ask = |language| with("http://a/page", &[("accept-language", language), ("x-theme", "t")]);
    send(&apps[0], ask("de")).await;
    send(&apps[1], ask("de")).await;
    send(&apps[0], ask("fr")).await;
    assert_eq!(origin.calls(), 2);
    pass(secs(11)).await;
    for app in &apps {
        assert!(send(app, ask("de")).await.is(Stale));
    }
    pass(secs(2)).await;
    assert_eq!(origin.calls(), 3, "one refresh");
}

mod once {
    use super::*;
    use std::io::Write;
    use std::sync::Condvar;

    struct Fails(Arc<AtomicUsize>);

    impl Write for Fails {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Like `println!` into a pipe that is closed.
            assert!(self.0.fetch_add(1, SeqCst) > 0, "failed printing");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_logger_that_panics_once_does_not_make_later_requests_panic() {
        let written = Arc::new(AtomicUsize::new(0));
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_writer(move || Fails(Arc::clone(&written)))
            .finish();
        let _listening = crate::kit::log::listen(subscriber);
        let origin = Origin::new(|_| Answer::ok("max-age=60", "page"));
        let app = app(&origin);
        let replies = crowd_of(&app, 10, |_| with("/page", &[("x-user-id", "1")])).await;
        let panicked = replies.iter().filter(|got| matches!(got, Got::Panicked)).count();
        assert!(panicked <= 1, "{panicked} of 10");
        for _ in 0..3 {
            let again = crowd_of(&app, 1, |_| with("/page", &[("x-user-id", "1")])).await;
            assert!(matches!(again[0], Got::Reply(_)), "{again:?}");
        }
    }

    /// Counts the threads that have their answer.
    #[derive(Clone, Default)]
    struct Answered(Arc<(Mutex<usize>, Condvar)>);

    impl Answered {
        fn one_more(&self) {
            *self.0.0.lock().unwrap() += 1;
            self.0.1.notify_all();
        }

        /// Returns whether that many came in time.
        fn wait_for(&self, threads: usize) -> bool {
            let answered = self.0.0.lock().unwrap();
            let missing = |answered: &mut usize| *answered < threads;
            !self.0.1.wait_timeout_while(answered, secs(20), missing).unwrap().1.timed_out()
        }
    }

    /// Writes its line when all others have their answer.
    struct Blocked {
        others: Answered,
        in_vain: Arc<AtomicUsize>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if !self.others.wait_for(5) {
                self.in_vain.fetch_add(1, SeqCst);
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn while_one_thread_writes_the_one_warning_the_others_go_on() {
        let origin = Origin::new(|_| Answer::ok("max-age=60", "page").after(ms(1)));
        let cache = origin_only();
        let app = cache.http_layer().layer(cache.http_layer().layer(origin));
        let (others, in_vain) = (Answered::default(), Arc::new(AtomicUsize::new(0)));
        let threads: Vec<_> = (0..6)
            .map(|i| {
                let (app, others, in_vain) = (app.clone(), others.clone(), Arc::clone(&in_vain));
                std::thread::spawn(move || {
                    let own = others.clone();
                    let writer =
                        move || Blocked { others: own.clone(), in_vain: Arc::clone(&in_vain) };
                    let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
                    let _listening = crate::kit::log::listen(subscriber);
                    let mut runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = runtime.enable_all().build().unwrap();
                    runtime.block_on(send(&app, get(&format!("/page{i}"))));
                    others.one_more();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(in_vain.load(SeqCst), 0, "the others waited for the line");
    }
}

// ===== What a refresh carries =====

fn region(parts: &http::request::Parts) -> String {
    parts.headers.get("x-region").map_or("none", |value| value.to_str().unwrap()).to_owned()
}

/// A HEAD may meet a stale copy. Its refresh would be a GET, for which the rule of
/// `bypass` gives another answer.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_a_head_triggers_carries_what_was_keyed() {
    let origin = Origin::new(|call| {
        let preview = call.header("x-preview").unwrap_or("-");
        Answer::ok(SHORT_SWR, format!("{} {preview}", region(&call.parts)))
    });
    let layer = origin_only()
        .http_layer()
        .key(region)
        .bypass(|parts| parts.method == Method::GET && parts.headers.contains_key("x-preview"));
    let app = layered(layer, &origin);
    let victim = || with("/page", &[("x-region", "eu")]);
    assert_eq!(send(&app, victim()).await.text(), "eu -");
    pass(secs(11)).await;
    let fields = [("x-region", "eu"), ("x-preview", "evil")];
    assert!(send(&app, request("HEAD", "/page", &fields)).await.is(Stale));
    pass(secs(1)).await;
    let reply = send(&app, victim()).await;
    assert_eq!(reply.text(), "eu -", "{}", reply.cache_status());
}

/// The same where a rule reads what the layer hides from the service.
#[tokio::test(start_paused = true)]
async fn a_refresh_carries_what_a_rule_reads_though_another_reads_a_hidden_cookie() {
    let origin = Origin::new(|call| Answer::ok(SHORT_SWR, region(&call.parts)));
    let layer = origin_only()
        .http_layer()
        .ignore_cookies(["*"])
        // Responses to clients that have not consented are not cached.
        .identity(|parts| parts.headers.get("cookie").map(|_| "consented"))
        .key(region);
    let app = layered(layer, &origin);
    let eu = || with("/page", &[("x-region", "eu"), ("cookie", "consent=1")]);
    assert_eq!(send(&app, eu()).await.text(), "eu");
    pass(secs(11)).await;
    assert!(send(&app, eu()).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(send(&app, eu()).await.text(), "eu");
}

/// A layer further out guarantees the field; the rule may count on it.
#[tokio::test(start_paused = true)]
async fn a_rule_is_not_run_on_requests_that_nobody_sent() {
    let origin = Origin::new(|call| Answer::ok(SHORT_SWR, region(&call.parts)));
    let known: Mutex<HashMap<String, u64>> = Mutex::default();
    let layer = origin_only().http_layer().key(move |parts| {
        let mut known = known.lock().unwrap();
        let next = known.len() as u64;
        let region = parts.headers["x-region"].to_str().unwrap().to_owned();
        *known.entry(region).or_insert(next)
    });
    let app = layered(layer, &origin);
    let eu = || with("/page", &[("x-region", "eu")]);
    send(&app, eu()).await;
    pass(secs(11)).await;
    assert!(send(&app, eu()).await.is(Stale));
    pass(secs(1)).await;
    // In a task: the rule's mutex is poisoned.
    let app_of_victim = app.clone();
    let victim = spawn(async move { send(&app_of_victim, eu()).await.status }).await;
    assert!(victim.is_ok(), "every request panics from now on");
}

/// The refresh of a response that was stored by permission, with another client's credential.
#[tokio::test(start_paused = true)]
async fn a_refresh_carries_no_credential_of_a_kind_that_the_first_request_had_not() {
    let origin = Origin::new(|call| {
        let of = |name| call.header(name).unwrap_or("-").to_owned();
        Answer::ok("public, max-age=10, stale-while-revalidate=60", of("cookie") + &of("x-api-key"))
    });
    let app = app(&origin);
    send(&app, with("/page", &[("x-api-key", "k")])).await;
    pass(secs(11)).await;
    let fields = [("x-api-key", "l"), ("cookie", "sid=alice")];
    assert!(send(&app, with("/page", &fields)).await.is(Stale));
    pass(secs(1)).await;
    assert_eq!(send(&app, get("/page")).await.text(), "-l");
}
