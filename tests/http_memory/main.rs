//! What floods cost in memory, by an allocator that counts.

#[path = "../kit/cases.rs"]
mod cases;

use std::alloc::System;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use cases::cases;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower::{Service, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_stampede::{BodyErrorKind, CacheOutcome, HttpLayer, HttpStampede, Stampede, StreamRule};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Runs `scenario` on a runtime of its own, with paused time, while no other
/// runs: they all read the same counter.
fn alone(scenario: impl Future<Output = ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(scenario);
    drop(guard);
}

/// Bytes that are allocated now.
fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn cache(max_bytes: usize) -> HttpStampede {
    Stampede::builder("test").origin_only().max_bytes(max_bytes as u64).build().unwrap()
}

fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::empty()).unwrap()
}

/// How many requests a flood has. Each flood says why they would take more than its bound if
/// nothing were freed.
fn many() -> usize {
    4_000 * cases("MEMORY_FLOOD", 1)
}

/// What is held after so many requests, each for another resource.
async fn flooded(
    directives: &'static str,
    (max_bytes, requests): (usize, usize),
    request: impl Fn(usize) -> Request<Body>,
    bound: usize,
) {
    let before = live();
    let cache = cache(max_bytes);
    let origin = service_fn(move |_: Request<Body>| async move {
        let response = Response::builder().header("cache-control", directives);
        Ok::<_, Infallible>(response.body(Body::from("x")).unwrap())
    });
    let app = cache.http_layer().layer(origin);
    let mut most = 0;
    for n in 0..requests {
        let response = app.clone().oneshot(request(n)).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "x");
        if n % 1_000 == 0 {
            assert!(cache.stats().bytes <= max_bytes as u64);
            most = most.max(live().saturating_sub(before));
        }
    }
    assert_eq!((cache.stats().flights, cache.stats().waiting), (0, 0));
    assert!(most <= bound, "{most} bytes at most");
    println!("{directives}: {} KiB at most, {} entries", most / KIB, cache.stats().entries);
}

#[test]
fn random_query_strings_take_no_more_than_the_bytes_of_the_store() {
    let query = |n: usize| get(&format!("/report?{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    // Beside what counts, an entry has its place in the store. 4,000 entries take 6 MiB.
    alone(flooded("max-age=600", (MIB, many()), query, 2 * MIB));
}

#[test]
fn markers_of_random_query_strings_take_a_bounded_number_of_places() {
    // About 20,000 markers are kept, which take 5.5 MiB. 40,000 would take 11.
    alone(flooded("no-store", (4 * MIB, 10 * many()), |n| get(&format!("/report?{n}")), 8 * MIB));
}

#[test]
fn markers_of_long_urls_take_no_more_than_those_of_short_ones() {
    let long = |n: usize| get(&format!("/account?{n}{}", "x".repeat(7 * KIB)));
    alone(flooded("no-store", (4 * MIB, 10 * many()), long, 8 * MIB));
}

/// What is held, in hundredths of `max_bytes`, where responses name so many fields in `Vary`.
async fn held_of_variants(names: usize) -> usize {
    let before = live();
    let cache = cache(4 * MIB);
    let names = (0..names).map(|n| format!(", x-field-number-{n}"));
    let names = format!("accept{}", names.collect::<String>());
    let origin = service_fn(move |_: Request<Body>| {
        let response = Response::builder().header("cache-control", "max-age=600");
        let response = response.header("vary", &names);
        async move { Ok::<_, Infallible>(response.body(Body::from("x")).unwrap()) }
    });
    let app = cache.http_layer().layer(origin);
    // Without `Vary` they take 6 MiB.
    for n in 0..many() {
        let mut request = get(&format!("/page?{}", n / 60));
        request.headers_mut().insert("accept", n.into());
        let response = app.clone().oneshot(request).await.unwrap();
        response.into_body().collect().await.unwrap();
    }
    live().saturating_sub(before) * 100 / (4 * MIB)
}

#[test]
fn variants_take_no_more_than_the_bytes_of_the_store_whatever_vary_names() {
    alone(async {
        for names in [0, 4, 16, 64, 200] {
            let held = held_of_variants(names).await;
            println!("{names} names: {held} hundredths of `max_bytes` are held");
            assert!(held <= 125, "{names} names: {held} hundredths");
        }
    });
}

#[test]
fn writes_to_random_resources_leave_a_bounded_log() {
    let post = |n: usize| Request::post(format!("http://x/{n}")).body(Body::empty()).unwrap();
    // The log takes 170 KiB from the first thousand writes on. With 48 bytes for each, 12,000 would
    // take 560.
    alone(flooded("max-age=600", (4 * MIB, 3 * many()), post, 256 * KIB));
}

/// What is held after requests for so many long paths at a route with rules.
async fn flooded_with_long_paths() {
    let before = live();
    let cache = cache(4 * MIB);
    let origin = service_fn(move |_: Request<Body>| async move {
        let response = Response::builder().header("cache-control", "max-age=600");
        Ok::<_, Infallible>(response.body(Body::from("x")).unwrap())
    });
    let app = cache.http_layer().route_rules("/{n}/{name}", |it| it.query([])).layer(origin);
    let mut most = 0;
    for n in 0..5000 {
        let request = get(&format!("/{n}/{}", "x".repeat(7 * KIB)));
        let body = app.clone().oneshot(request).await.unwrap().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "x");
        if n % 500 == 499 {
            most = most.max(live().saturating_sub(before));
        }
    }
    assert!(most <= 16 * MIB, "{most} bytes at most");
}

/// A client chooses the paths.
#[test]
fn long_paths_at_a_route_with_rules_take_what_max_bytes_says() {
    alone(flooded_with_long_paths());
}

// ===== Readers that do not read =====

type Feed = UnboundedSender<Bytes>;

/// An app in front of a body that the test feeds.
fn fed(
    cache: &HttpStampede,
    set: impl FnOnce(HttpLayer) -> HttpLayer,
) -> (
    impl Service<
        Request<Body>,
        Response = Response<tower_stampede::ResponseBody<Body>>,
        Error = Infallible,
        Future: Send,
    > + Clone,
    Feed,
) {
    fed_as(cache, "text/plain", set)
}

/// The same with this content type.
fn fed_as(
    cache: &HttpStampede,
    content_type: &'static str,
    set: impl FnOnce(HttpLayer) -> HttpLayer,
) -> (
    impl Service<
        Request<Body>,
        Response = Response<tower_stampede::ResponseBody<Body>>,
        Error = Infallible,
        Future: Send,
    > + Clone,
    Feed,
) {
    let (feed, received) = unbounded_channel::<Bytes>();
    let received = std::sync::Arc::new(Mutex::new(Some(received)));
    let origin = service_fn(move |_: Request<Body>| {
        let received = received.lock().unwrap().take().expect("it is asked once");
        async move {
            let frames = futures_util::stream::unfold(received, |mut received| async move {
                let data = received.recv().await?;
                Some((Ok::<_, Infallible>(Frame::data(data)), received))
            });
            let response = Response::builder().header("cache-control", "max-age=600");
            let response = response.header("content-type", content_type);
            Ok::<_, Infallible>(response.body(Body::new(StreamBody::new(frames))).unwrap())
        }
    });
    (set(cache.http_layer()).layer(origin), feed)
}

/// Far more than any socket would hold back.
const READERS: usize = 3_000;

/// What a reader that does not read may cost: its place, and its response.
const PLACE: usize = 4 * KIB;

async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[test]
fn readers_that_never_read_share_one_body_and_hold_nobody_back() {
    alone(async {
        let before = live();
        let cache = cache(16 * MIB);
        let (app, feed) = fed(&cache, |layer| layer);
        let slow = (0..READERS).map(|_| app.clone().oneshot(get("/report")));
        let slow = futures_util::future::join_all(slow).await;
        let quick = app.clone().oneshot(get("/report")).await.unwrap();
        let quick = tokio::spawn(async { quick.into_body().collect().await.unwrap().to_bytes() });
        for _ in 0..60 {
            feed.send(Bytes::from(vec![b'x'; 16 * KIB])).unwrap();
            settle().await;
        }
        drop(feed);
        assert_eq!(quick.await.unwrap().len(), 960 * KIB, "no caller waits below the limit");
        let held = live() - before;
        assert!(held <= 4 * MIB + READERS * PLACE, "{held} bytes");
        // An hour later they read it all the same: it is stored, and theirs.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        for response in slow {
            let body = response.unwrap().into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), 960 * KIB);
        }
        assert_eq!((cache.stats().flights, cache.stats().waiting), (0, 0));
    });
}

#[test]
fn a_client_that_resumes_a_stream_that_arrives_copies_none_of_it() {
    alone(async {
        let cache = cache(64 * MIB);
        let rule = StreamRule::end_mark("data: [DONE]");
        let (app, feed) = fed_as(&cache, "text/event-stream", |layer| layer.share_streams(rule));
        let reader = app.clone().oneshot(get("/events")).await.unwrap();
        for id in 0..48 {
            let event = format!("id: {id}\ndata: {}\n\n", "x".repeat(16 * KIB));
            feed.send(event.into()).unwrap();
            settle().await;
        }
        let mut resumes = get("/events");
        resumes.headers_mut().insert("last-event-id", "46".parse().unwrap());
        let before = ALLOCATOR.stats().bytes_allocated;
        let mut resumed = app.oneshot(resumes).await.unwrap();
        let next = resumed.frame().await.unwrap().unwrap().into_data().unwrap();
        let allocated = ALLOCATOR.stats().bytes_allocated - before;
        assert!(next.starts_with(b"id: 47\n"));
        assert!(allocated < 128 * KIB, "{allocated} bytes to find the place in 768 KiB");
        drop(reader);
    });
}

/// A list of the fields of all events took fifty times the bytes of the stream.
#[test]
fn to_find_the_end_of_a_stream_takes_a_few_times_its_bytes() {
    alone(async {
        let cache = cache(64 * MIB);
        let rule = StreamRule::end_mark("data: [DONE]");
        let set = |layer: HttpLayer| layer.share_streams(rule).max_body(8 * MIB);
        let (app, feed) = fed_as(&cache, "text/event-stream", set);
        let reader = app.clone().oneshot(get("/events")).await.unwrap();
        feed.send("a\n\n".repeat(2 * MIB).into()).unwrap();
        settle().await;
        let before = ALLOCATOR.stats().bytes_allocated;
        feed.send("data: [DONE]\n\n".into()).unwrap();
        drop(feed);
        assert!(reader.into_body().collect().await.unwrap().to_bytes().ends_with(b"[DONE]\n\n"));
        let allocated = ALLOCATOR.stats().bytes_allocated - before;
        assert!(allocated < 32 * MIB, "{allocated} bytes for a stream of 6 MiB");
        let again = app.oneshot(get("/events")).await.unwrap();
        assert_eq!(CacheOutcome::of(&again), Some(CacheOutcome::Hit), "it is complete");
    });
}

#[test]
fn over_the_limit_who_never_reads_is_cut_off_while_another_waits_for_it() {
    alone(async {
        let before = live();
        let cache = cache(16 * MIB);
        let (app, feed) = fed(&cache, |layer| layer.max_body(256 * KIB));
        let slow = (0..READERS).map(|_| app.clone().oneshot(get("/report")));
        let mut slow = futures_util::future::join_all(slow).await;
        let quick = app.clone().oneshot(get("/report")).await.unwrap();
        let began = tokio::time::Instant::now();
        let quick = tokio::spawn(async { quick.into_body().collect().await.unwrap().to_bytes() });
        let chunk = Bytes::from(vec![b'x'; 16 * KIB]);
        // The channel holds handles of one chunk: it is the test's own.
        (0..1_000).for_each(|_| feed.send(chunk.clone()).unwrap());
        drop((feed, chunk));
        settle().await;
        let held = live() - before;
        assert!(held <= 2 * MIB + READERS * PLACE, "{held} bytes");
        assert_eq!(quick.await.unwrap().len(), 16_000 * KIB);
        let took = began.elapsed();
        let stall = Duration::from_secs(5);
        assert!(took >= stall && took < 2 * stall, "{took:?}");
        for response in &mut slow {
            let frame = response.as_mut().unwrap().body_mut().frame().now_or_never().unwrap();
            assert_eq!(frame.unwrap().unwrap_err().kind(), BodyErrorKind::Stalled);
        }
        let stats = cache.stats();
        assert_eq!((stats.flights, stats.waiting, stats.entries), (0, 0, 0));
    });
}

#[test]
fn over_the_limit_nobody_is_cut_off_while_nobody_waits_and_the_source_is_held_back() {
    alone(async {
        let before = live();
        let cache = cache(16 * MIB);
        let (app, feed) = fed(&cache, |layer| layer.max_body(256 * KIB));
        let slow = (0..READERS).map(|_| app.clone().oneshot(get("/report")));
        let slow = futures_util::future::join_all(slow).await;
        for _ in 0..1_000 {
            feed.send(Bytes::from(vec![b'x'; KIB])).unwrap();
        }
        // A day of it: no other holds anything in the meantime.
        tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
        let held = live() - before;
        assert!(held <= 4 * MIB + READERS * PLACE, "{held} bytes");
        assert_eq!((cache.stats().flights, cache.stats().waiting), (0, 0));
        drop(feed);
        let all = slow.into_iter().map(|response| async {
            response.unwrap().into_body().collect().await.unwrap().to_bytes().len()
        });
        let read = futures_util::future::join_all(all).await;
        assert!(read.iter().all(|read| *read == 1_000 * KIB));
    });
}

#[test]
fn a_stale_hit_beside_a_refresh_allocates_five_times_beyond_a_fresh_one() {
    alone(async {
        let (release, calls) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (held, counted) = (Arc::clone(&release), Arc::clone(&calls));
        let origin = service_fn(move |_: Request<Body>| {
            let (held, call) = (Arc::clone(&held), counted.fetch_add(1, Ordering::SeqCst));
            async move {
                if call > 0 {
                    held.notified().await;
                }
                let lifetime = "max-age=10, stale-while-revalidate=60";
                let response = Response::builder().header("cache-control", lifetime);
                Ok::<_, Infallible>(response.body(Body::from("x")).unwrap())
            }
        });
        let mut app = cache(4 * MIB).http_layer().layer(origin);
        let mut allocations = async || {
            let request = get("/report");
            let before = ALLOCATOR.stats().allocations;
            let response = app.call(request).await.unwrap();
            let made = ALLOCATOR.stats().allocations - before;
            drop(response);
            made
        };
        allocations().await;
        let mut fresh = usize::MAX;
        for _ in 0..100 {
            fresh = fresh.min(allocations().await);
        }
        tokio::time::advance(Duration::from_secs(11)).await;
        allocations().await;
        tokio::task::yield_now().await;
        assert_eq!(calls.load(Ordering::SeqCst), 2, "the refresh runs");
        // The extension that says so, and the field with a time that is not kept ready.
        let mut stale = usize::MAX;
        for _ in 0..100 {
            stale = stale.min(allocations().await);
        }
        assert!(stale <= fresh + 5, "{stale}, a fresh one {fresh}");
        assert_eq!(calls.load(Ordering::SeqCst), 2, "one refresh for all");
        release.notify_waiters();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let response = app.call(get("/report")).await.unwrap();
        assert_eq!(CacheOutcome::of(&response), Some(CacheOutcome::Hit), "fresh again");
    });
}

#[test]
fn a_hit_allocates_twice() {
    alone(async {
        let origin = service_fn(move |_: Request<Body>| async move {
            let response = Response::builder().header("cache-control", "max-age=60");
            Ok::<_, Infallible>(response.body(Body::from("x")).unwrap())
        });
        let mut app = cache(4 * MIB).http_layer().layer(origin);
        app.call(get("/report")).await.unwrap();
        // The least of many: the runner of tests allocates at times.
        let mut least = usize::MAX;
        for _ in 0..100 {
            let request = get("/report");
            let before = ALLOCATOR.stats().allocations;
            let response = app.call(request).await.unwrap();
            least = least.min(ALLOCATOR.stats().allocations - before);
            drop(response);
        }
        assert_eq!(least, 2);
    });
}
