//! The layer over tower services of every kind.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_stampede::{
    Adapter, Error, ErrorKind, Key, ResponseFuture, Stampede, StampedeLayer, StampedeService,
};
use tower_test::{assert_request_eq, mock};

use crate::kit::origin::*;
use crate::kit::spawn;

fn by_number() -> impl Fn(&u32) -> Option<u32> + Clone + Send + Sync + 'static {
    |n: &u32| (*n != 0).then_some(*n)
}

fn over(
    origin: &Origin,
) -> impl Service<u32, Response = u64, Error = OriginError, Future = Loading>
+ Clone
+ Send
+ 'static
+ use<> {
    let origin = origin.clone();
    service_fn(move |_: u32| origin.load())
}

/// Sends a crowd to ten keys, twice, and expects one call for each key.
async fn a_crowd_is_served<S>(service: S, cache: &Stampede<u64>, origin: &Origin)
where
    S: Service<u32, Response = u64, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
{
    for _ in 0..2 {
        let answers = herd(1000, |i| service.clone().oneshot(i as u32 % 10 + 1));
        assert!(answers.await.iter().all(Result::is_ok));
    }
    assert_eq!(origin.calls(), 10);
    assert_quiet(cache);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_is_served_over_a_concurrency_limit_of_one() {
    for inline in [false, true] {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        let layer = cache.layer(by_number());
        let layer = if inline { layer.inline() } else { layer };
        let service = layer.layer(ConcurrencyLimit::new(over(&origin), 1));
        a_crowd_is_served(service, &cache, &origin).await;
        assert_eq!(origin.most_at_once(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_is_served_over_a_buffer() {
    for bound in [1, 3] {
        let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
        let inner = Buffer::new(ConcurrencyLimit::new(over(&origin), 1), bound);
        a_crowd_is_served(cache.layer(by_number()).layer(inner), &cache, &origin).await;
    }
}

#[tokio::test(start_paused = true)]
async fn over_load_shed_the_refusal_is_the_inner_error_of_its_key_and_of_no_other() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    let inner = LoadShed::new(ConcurrencyLimit::new(over(&origin), 1));
    let service = cache.layer(by_number()).layer(inner);
    let answers = herd(100, |i| service.clone().oneshot(i as u32 % 2 + 1)).await;
    let (taken, shed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((taken.len(), shed.len()), (50, 50));
    for error in shed {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Inner);
        assert!(error.inner::<tower::load_shed::error::Overloaded>().is_some());
    }
    assert_eq!(origin.calls(), 1);
    assert_quiet(&cache);
}

#[tokio::test(start_paused = true)]
async fn a_warm_key_is_answered_while_the_inner_service_is_full() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    let limited = ConcurrencyLimit::new(over(&origin), 1);
    let mut service = cache.layer(by_number()).layer(limited.clone());
    assert_eq!(service.clone().oneshot(1).await.unwrap(), 1);

    origin.next([Answer::Hang]);
    let busy = spawn(limited.oneshot(99));
    all_have_run().await;
    let from = Instant::now();
    let ready = service.ready().await.unwrap();
    let mut hit = pin!(ready.call(1));
    let polled = hit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Ok(1))), "ready at the first poll");
    assert!(from.elapsed().is_zero());

    // A cold key waits for its turn.
    let cold = spawn(service.clone().oneshot(2));
    all_have_run().await;
    assert!(!cold.is_finished());
    busy.abort();
    assert_eq!(cold.await.unwrap().unwrap(), 3);
    assert_eq!(origin.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_key_go_past_the_cache() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    let service = cache.layer(by_number()).layer(over(&origin));
    let answers = herd(10, |_| service.clone().oneshot(0)).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!((origin.calls(), origin.most_at_once()), (10, 10));
    assert_eq!((cache.stats().bypassed, cache.stats().entries), (10, 0));
    origin.next([Answer::Fail]);
    let error = service.oneshot(0).await.unwrap_err();
    assert_eq!(error.inner::<OriginError>(), Some(&OriginError(11)));
}

#[tokio::test(start_paused = true)]
async fn one_request_of_a_crowd_reaches_the_inner_service_and_all_get_its_response() {
    let cache: Stampede<&'static str> = settings().build().unwrap();
    let (inner, mut handle) = mock::pair::<u32, &'static str>();
    let service = cache.layer(by_number()).layer(inner);
    let crowd = spawn_herd(100, |_| service.clone().oneshot(7));
    assert_request_eq!(handle, 7_u32).send_response("seven");
    for answer in gather(crowd).await {
        assert_eq!(answer.unwrap(), "seven");
    }
    assert_eq!(service.clone().oneshot(7).await.unwrap(), "seven");
    let mut next = pin!(handle.next_request());
    assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_is_not_ready_is_waited_for_and_bounded_by_the_compute_timeout() {
    let cache: Stampede<u64> = settings().compute_timeout(SECOND).build().unwrap();
    let (inner, mut handle) = mock::pair::<u32, u64>();
    handle.allow(0);
    let service = cache.layer(by_number()).layer(inner);
    let from = Instant::now();
    let error = service.clone().oneshot(1).await.unwrap_err();
    assert_eq!((error.kind(), from.elapsed()), (ErrorKind::ComputeTimeout, SECOND));

    pass(2 * SECOND).await;
    let waiting = spawn(service.oneshot(1));
    all_have_run().await;
    handle.allow(1);
    assert_request_eq!(handle, 1_u32).send_response(5);
    assert_eq!(waiting.await.unwrap().unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_is_the_inner_error() {
    let cache: Stampede<u64> = settings().build().unwrap();
    let (inner, mut handle) = mock::pair::<u32, u64>();
    handle.send_error("out of order");
    let error = cache.layer(by_number()).layer(inner).oneshot(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Inner);
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "out of order");
}

/// Panics when it is called without having been ready; a clone is not ready.
#[derive(Debug, Default)]
struct Strict {
    is_ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, calls: Arc::clone(&self.calls) }
    }
}

impl Service<u32> for Strict {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u32) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without having been ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        ready(Ok(u64::from(n)))
    }
}

#[tokio::test(start_paused = true)]
async fn the_inner_service_is_ready_whenever_it_is_called() {
    let strict = Strict::default();
    let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
    for layer in [cache.layer(by_number()), cache.layer(by_number()).inline()] {
        let mut service = layer.layer(strict.clone());
        for request in [0, 1, 0, 2, 1] {
            // One service, called again and again, and clones of it.
            let answer = service.ready().await.unwrap().call(request).await;
            assert_eq!(answer.unwrap(), u64::from(request));
            assert_eq!(service.clone().oneshot(request).await.unwrap(), u64::from(request));
        }
        pass(MINUTE).await;
        assert_eq!(service.oneshot(1).await.unwrap(), 1, "stale, refreshed");
        all_have_run().await;
        cache.invalidate_all().await;
    }
    assert_eq!(strict.calls.load(Ordering::SeqCst), 2 * (4 + 2 + 1));
}

/// A response that cannot be cloned, and is not `Sync`.
#[derive(Debug)]
struct Answered {
    text: String,
    served: Cell<u32>,
}

struct ByText;

impl Adapter<u32, Answered> for ByText {
    type Stored = Arc<str>;

    fn key(&self, n: &u32) -> Option<Key> {
        Some(Key::from(*n))
    }

    fn freeze(&self, answered: &Answered) -> Option<Arc<str>> {
        (!answered.text.contains("private")).then(|| answered.text.as_str().into())
    }

    fn thaw(&self, text: &Arc<str>) -> Answered {
        Answered { text: text.to_string(), served: Cell::new(0) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_cannot_be_cloned_is_frozen_and_thawed() {
    let (cache, origin) = (settings().build().unwrap(), Origin::taking(100 * MS));
    let calls = origin.clone();
    let service = cache.layer(ByText).layer(service_fn(move |n: u32| {
        let load = calls.load();
        async move {
            let (number, word) = (load.await?, if n == 0 { "private" } else { "public" });
            Ok::<_, OriginError>(Answered {
                text: format!("{word} {number}"),
                served: Cell::new(1),
            })
        }
    }));
    let answers = herd(100, |_| service.clone().oneshot(1)).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().all(|answer| answer.text == "public 1"));
    assert_eq!(answers.iter().map(|answer| answer.served.get()).sum::<u32>(), 1, "one original");
    assert_eq!(origin.calls(), 1);

    // A response that is not frozen is not shared: every caller gets an original.
    let answers = herd(100, |_| service.clone().oneshot(0)).await;
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().served.get() == 1));
    assert_eq!(origin.calls(), 101);
    assert_eq!(cache.stats().entries, 1);
}

#[tokio::test(start_paused = true)]
async fn layers_of_one_handle_share_values_and_computations() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
    let a = cache.layer(by_number()).layer(over(&origin));
    let b = ServiceBuilder::new().layer(cache.layer(by_number())).service(over(&origin));
    let one = spawn(a.oneshot(1));
    assert_eq!(b.oneshot(1).await.unwrap(), 1);
    assert_eq!(one.await.unwrap().unwrap(), 1);
    assert_eq!(cache.get_or_compute(1_u32, origin.compute()).await.unwrap(), 1);
    assert_eq!(origin.calls(), 1);
}

// A layer looks into the store when it is called, and its future goes on from
// there whenever it is polled: what happens between the two is a race that
// needs no threads.

#[tokio::test(start_paused = true)]
async fn who_missed_and_finds_the_key_filled_on_its_way_to_the_lead_does_not_compute() {
    for inline in [false, true] {
        let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::taking(100 * MS));
        let layer = cache.layer(by_number());
        let layer = if inline { layer.inline() } else { layer };
        let mut service = layer.layer(over(&origin));
        let missed = service.ready().await.unwrap().call(1);
        assert_eq!(service.clone().oneshot(1).await.unwrap(), 1);
        assert_eq!(missed.await.unwrap(), 1);
        assert_eq!(origin.calls(), 1);
        assert_quiet(&cache);
    }
}

#[tokio::test(start_paused = true)]
async fn who_saw_a_stale_value_that_is_refreshed_meanwhile_does_not_refresh_it_again() {
    for inline in [false, true] {
        let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
        let origin = Origin::taking(100 * MS);
        let layer = cache.layer(by_number());
        let layer = if inline { layer.inline() } else { layer };
        let mut service = layer.layer(over(&origin));
        cache.put(1_u32, 100).await;
        pass(MINUTE).await;
        let saw_stale = service.ready().await.unwrap().call(1);
        service.oneshot(1).await.unwrap();
        pass(SECOND).await;
        assert_eq!(cache.get(1_u32).await, Some(1));
        assert_eq!(saw_stale.await.unwrap(), 100);
        pass(SECOND).await;
        assert_eq!(origin.calls(), 1);
        assert_quiet(&cache);
    }
}

fn is_handle<T: Clone + Send + Sync + Unpin + std::fmt::Debug + 'static>(_: &T) {}
fn is_future<T: Future + Send + std::fmt::Debug>(_: &T) {}
fn is_sendable<T: Future + Send>(_: T) {}

type Number = fn(&u32) -> Option<u32>;

#[tokio::test(start_paused = true)]
async fn handle_layer_and_service_are_send_sync_and_clone_and_futures_are_send() {
    let (cache, origin) = (settings::<u64>().build().unwrap(), Origin::new());
    let number: Number = |n| Some(*n);
    let layer: StampedeLayer<u64, Number> = cache.layer(number);
    let mut service: StampedeService<Strict, u64, Number> = layer.layer(Strict::default());
    is_handle(&cache);
    is_handle(&layer);
    is_handle(&service);
    let future: ResponseFuture<Strict, u32> = service.call(1);
    is_future(&future);
    is_sendable(cache.get_or_compute("k", origin.compute()));
    is_sendable(cache.get_or_compute_scoped("k", || origin.load()));
    is_sendable(cache.refresh("k", origin.compute()));
    is_sendable(cache.get("k"));
    is_sendable(cache.put("k", 1));
    is_sendable(cache.invalidate("k"));
    is_sendable(cache.invalidate_tag("t"));
    is_sendable(cache.shutdown(SECOND));
    assert_eq!(origin.calls(), 0, "nothing runs before it is polled");
}

/// Shares the responses with an odd number.
#[derive(Clone)]
struct Odd;

impl Adapter<u32, u64> for Odd {
    type Stored = u64;

    fn key(&self, _: &u32) -> Option<Key> {
        Some(Key::from("k"))
    }

    fn freeze(&self, response: &u64) -> Option<u64> {
        (response % 2 == 1).then_some(*response)
    }

    fn thaw(&self, stored: &u64) -> u64 {
        *stored
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_the_adapter_does_not_share_ends_no_stored_value() {
    let (cache, origin) = (settings().stale_for(60 * MINUTE).build().unwrap(), Origin::new());
    let service = cache.layer(Odd).layer(over(&origin));
    let ask = async || service.clone().oneshot(1).await.unwrap();
    assert_eq!(ask().await, 1);
    pass(MINUTE).await;
    assert_eq!(ask().await, 1, "refreshed in the background");
    all_have_run().await;
    assert_eq!(origin.calls(), 2);
    assert_eq!(cache.get("k").await, Some(1), "it may have been a failure");
}
