//! What an operator sees through the `metrics` and `tracing` facades.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tower_stampede::{Builder, Computed, Mode, Stampede};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::kit::origin::{Answer, MINUTE, MS, Origin, SECOND, all_have_run, pass, settings};
use crate::kit::spawn;

fn paused_runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().expect("a runtime starts")
}

// ===== metrics =====

/// Runs `work` with a recorder of its own, and returns every counter and gauge
/// as `name{label=value,…}`.
fn recorded<F: Future<Output = ()>>(
    work: impl FnOnce(Stampede<u64>) -> F,
) -> BTreeMap<String, f64> {
    recorded_with(settings(), work)
}

fn recorded_with<F: Future<Output = ()>>(
    settings: Builder<u64>,
    work: impl FnOnce(Stampede<u64>) -> F,
) -> BTreeMap<String, f64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime = paused_runtime();
        let cache = settings.build().expect("the settings are good");
        runtime.block_on(work(cache));
    });
    read(&snapshotter)
}

fn read(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let metrics = snapshotter.snapshot().into_vec();
    let numbers = metrics.into_iter().map(|(key, _, _, value)| {
        let key = key.key();
        let labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(gauge) => gauge.into_inner(),
            DebugValue::Histogram(values) => values.len() as f64,
        };
        (format!("{}{{{}}}", key.name(), labels.join(",")), value)
    });
    numbers.collect()
}

#[test]
fn every_way_to_an_answer_is_counted_under_its_own_labels() {
    let seen = recorded(|cache| async move {
        let origin = Origin::taking(100 * MS);
        let herd: Vec<_> = (0..10)
            .map(|_| {
                let (cache, origin) = (cache.clone(), origin.clone());
                spawn(async move { cache.get_or_compute("k", move || origin.load()).await })
            })
            .collect();
        for caller in herd {
            assert_eq!(caller.await.unwrap().unwrap(), 1);
        }
        let load = origin.clone();
        cache.get_or_compute("k", move || load.load()).await.unwrap();
        cache.invalidate("k").await;
        cache.invalidate_tag("t").await;
        assert_eq!(origin.calls(), 1);
        assert_eq!(cache.stats().flights, 0);
    });
    for (name, expected) in [
        ("stampede_requests_total{cache=test,outcome=computed}", 1.0),
        ("stampede_requests_total{cache=test,outcome=joined}", 9.0),
        ("stampede_requests_total{cache=test,outcome=hit}", 1.0),
        ("stampede_origin_calls_total{cache=test,reason=stored}", 1.0),
        ("stampede_origin_duration_seconds{cache=test}", 1.0),
        ("stampede_wait_duration_seconds{cache=test}", 9.0),
        ("stampede_lock_total{cache=test,scope=local,result=acquired}", 1.0),
        ("stampede_lock_total{cache=test,scope=local,result=joined}", 9.0),
        ("stampede_fill_total{cache=test,result=stored}", 1.0),
        ("stampede_invalidations_total{cache=test,kind=key}", 1.0),
        ("stampede_invalidations_total{cache=test,kind=tag}", 1.0),
        ("stampede_inflight{cache=test}", 0.0),
        ("stampede_waiters{cache=test}", 0.0),
    ] {
        assert_eq!(seen.get(name), Some(&expected), "{name} in {seen:#?}");
    }
}

#[test]
fn no_metric_carries_a_key() {
    let seen = recorded(|cache| async move {
        let origin = Origin::new();
        let secret = "secret-key";
        cache.get_or_compute(secret, move || origin.load()).await.unwrap();
        cache.invalidate(secret).await;
        let _ = cache.stats();
    });
    assert!(!seen.is_empty());
    assert!(seen.keys().all(|name| !name.contains("secret")), "{seen:#?}");
}

/// An operator that a zero wakes must not be woken by a cache that has no
/// remote, or whose remote has not failed yet.
#[test]
fn a_remote_is_up_until_it_fails_and_where_there_is_none_nothing_is_said() {
    use tower_stampede::remote::{Double, RemoteSettings};

    const UP: &str = "stampede_store_up{cache=test,store=remote}";
    assert_eq!(recorded(|_| async {}).get(UP), None);

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        paused_runtime().block_on(async {
            let double = Double::new();
            let with =
                |settings: Builder<u64>| settings.remote(double.process(), RemoteSettings::new());
            let cache = with(settings()).build().expect("the settings are good");
            assert_eq!(read(&snapshotter).get(UP), Some(&1.0));
            double.freeze();
            let origin = Origin::new();
            for key in 0..10_u64 {
                let origin = origin.clone();
                cache.get_or_compute(key, move || origin.load()).await.expect("it is served");
            }
            assert_eq!(read(&snapshotter).get(UP), Some(&0.0));
        });
    });
}

/// Installs a recorder while a cache is at work, and lets six seconds pass.
fn recorded_late(after: impl AsyncFnOnce(&Stampede<u64>)) -> BTreeMap<String, f64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    paused_runtime().block_on(async {
        let cache = settings().build().expect("the settings are good");
        let origin = Origin::new();
        for key in ["a", "b"] {
            cache.get_or_compute(key, origin.compute()).await.unwrap();
        }
        let _installed = metrics::set_default_local_recorder(&recorder);
        tokio::time::sleep(6 * SECOND).await;
        after(&cache).await;
    });
    read(&snapshotter)
}

#[test]
fn a_recorder_that_is_installed_later_sees_all_that_comes_after_it() {
    let seen = recorded_late(async |cache| {
        let origin = Origin::new();
        for _ in 0..3 {
            cache.get_or_compute("a", origin.compute()).await.unwrap();
        }
        cache.get_or_compute("c", origin.compute()).await.unwrap();
    });
    for (name, expected) in [
        ("stampede_requests_total{cache=test,outcome=hit}", 3.0),
        ("stampede_requests_total{cache=test,outcome=computed}", 1.0),
        ("stampede_fill_total{cache=test,result=stored}", 1.0),
        ("stampede_lock_total{cache=test,scope=local,result=acquired}", 1.0),
        ("stampede_origin_duration_seconds{cache=test}", 1.0),
        ("stampede_origin_calls_total{cache=test,reason=stored}", 1.0),
    ] {
        assert_eq!(seen.get(name), Some(&expected), "{name} in {seen:#?}");
    }
}

#[test]
fn gauges_are_set_every_five_seconds_without_a_call() {
    let seen = recorded_late(async |_| {});
    for (name, expected) in [
        ("stampede_entries{cache=test}", 2.0),
        ("stampede_inflight{cache=test}", 0.0),
        ("stampede_waiters{cache=test}", 0.0),
        ("stampede_computation_limit{cache=test}", 1024.0),
        ("stampede_evictions_total{cache=test}", 0.0),
    ] {
        assert_eq!(seen.get(name), Some(&expected), "{name} in {seen:#?}");
    }
    assert!(seen["stampede_bytes{cache=test}"] > 0.0, "{seen:#?}");
}

#[test]
fn the_oldest_stale_value_is_a_gauge_that_goes_back_to_zero() {
    const GAUGE: &str = "stampede_oldest_stale_seconds{cache=test}";
    let seen = |stays: std::time::Duration| {
        recorded_with(settings().stale_for(60 * MINUTE), async move |cache| {
            let origin = Origin::new();
            origin.usually(Answer::Fail);
            cache.put("k", 1).await;
            tokio::time::sleep(10 * MINUTE).await;
            cache.get_or_compute("k", origin.compute()).await.unwrap();
            tokio::time::sleep(stays).await;
        })
    };
    assert_eq!(seen(10 * SECOND)[GAUGE].round(), 600.0);
    assert_eq!(seen(2 * MINUTE)[GAUGE], 0.0);
}

#[test]
fn a_cache_that_observes_counts_the_requests_that_it_would_have_answered() {
    let seen = recorded(async |cache| {
        let origin = Origin::new();
        cache.set_mode(Mode::Observe);
        for _ in 0..5 {
            cache.get_or_compute("k", origin.compute()).await.unwrap();
        }
    });
    let counted = seen.get("stampede_would_have_answered_total{cache=test}");
    assert_eq!(counted, Some(&4.0), "{seen:#?}");
}

// ===== tracing =====

/// Notes every span and event of our crate as a line, with its fields.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("a string takes everything");
    }
}

impl Lines {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn push(&self, line: Line) {
        self.0.lock().unwrap().push(line.0);
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tower_stampede"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(format!("span {}", span.metadata().name()));
        span.record(&mut line);
        self.push(line);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line("record".into());
        values.record(&mut line);
        self.push(line);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{}", event.metadata().level()));
        event.record(&mut line);
        self.push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs a herd of two on a key named `secret-key`, and then a hit.
fn traced() -> (Vec<String>, Vec<String>) {
    let lines = Lines::default();
    let runtime = paused_runtime();
    let _guard = crate::kit::log::listen(lines.clone());
    let cache: Stampede<u64> = settings().build().expect("the settings are good");
    let origin = Origin::taking(SECOND);
    let ask = || {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { cache.get_or_compute("secret-key", move || origin.load()).await.unwrap() }
    };
    let herd = runtime.block_on(async { tokio::join!(ask(), ask()) });
    assert_eq!(herd, (1, 1));
    let before = lines.all();
    runtime.block_on(ask());
    assert_eq!(origin.calls(), 1);
    (before.clone(), lines.all().split_off(before.len()))
}

#[test]
fn leader_and_waiter_have_a_span_each_with_cache_role_and_the_hash_of_the_key() {
    let (herd, _) = traced();
    for role in ["leader", "waiter"] {
        let role = format!("role=\"{role}\"");
        let spans = herd.iter().filter(|line| line.starts_with("span stampede"));
        let of_role: Vec<_> = spans.filter(|line| line.contains(&role)).collect();
        assert_eq!(of_role.len(), 1, "{role}: {herd:#?}");
        assert!(of_role[0].contains("cache=\"test\"") && of_role[0].contains("key_hash="));
    }
    assert!(herd.iter().any(|line| line.starts_with("record waited=1s")), "{herd:#?}");
    assert!(herd.iter().any(|line| line.contains("computed") && line.contains("end=\"stored\"")));
}

#[test]
fn no_line_carries_a_key_and_none_is_louder_than_debug() {
    let (herd, _) = traced();
    assert!(!herd.is_empty());
    assert!(herd.iter().all(|line| !line.contains("secret")), "{herd:#?}");
    let loud = |line: &&String| ["INFO", "WARN", "ERROR"].iter().any(|l| line.starts_with(l));
    assert_eq!(herd.iter().find(loud), None);
}

#[test]
fn a_hit_makes_no_span_and_no_line() {
    let (_, hit) = traced();
    assert_eq!(hit, Vec::<String>::new());
}

// ===== observers that panic =====

/// Gives out handles that panic whenever they are used, except for hits.
struct PanickingRecorder;

struct PanickingHandle;

impl metrics::CounterFn for PanickingHandle {
    fn increment(&self, _: u64) {
        panic!("the recorder panics");
    }

    fn absolute(&self, _: u64) {
        panic!("the recorder panics");
    }
}

impl metrics::GaugeFn for PanickingHandle {
    fn increment(&self, _: f64) {
        panic!("the recorder panics");
    }

    fn decrement(&self, _: f64) {
        panic!("the recorder panics");
    }

    fn set(&self, _: f64) {
        panic!("the recorder panics");
    }
}

impl metrics::HistogramFn for PanickingHandle {
    fn record(&self, _: f64) {
        panic!("the recorder panics");
    }
}

type Described = metrics::KeyName;
type Text = metrics::SharedString;

impl metrics::Recorder for PanickingRecorder {
    fn describe_counter(&self, _: Described, _: Option<metrics::Unit>, _: Text) {}

    fn describe_gauge(&self, _: Described, _: Option<metrics::Unit>, _: Text) {}

    fn describe_histogram(&self, _: Described, _: Option<metrics::Unit>, _: Text) {}

    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        if key.labels().any(|label| label.value() == "hit") {
            return metrics::Counter::noop();
        }
        metrics::Counter::from_arc(Arc::new(PanickingHandle))
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::from_arc(Arc::new(PanickingHandle))
    }

    fn register_histogram(
        &self,
        _: &metrics::Key,
        _: &metrics::Metadata<'_>,
    ) -> metrics::Histogram {
        metrics::Histogram::from_arc(Arc::new(PanickingHandle))
    }
}

/// Panics in every callback that follows a span or a line, after it was asked
/// whether it wants them.
struct PanickingSubscriber;

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tower_stampede"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(String::new());
        span.record(&mut line);
        // The waiter's span is made: entering it panics instead.
        assert!(line.0.contains("waiter"), "the subscriber panics");
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        panic!("the subscriber panics");
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        panic!("the subscriber panics");
    }

    fn enter(&self, _: &Id) {
        panic!("the subscriber panics");
    }

    fn exit(&self, _: &Id) {
        panic!("the subscriber panics");
    }

    fn try_close(&self, _: Id) -> bool {
        panic!("the subscriber panics");
    }
}

/// Runs a herd whose computation succeeds, one that fails, one whose
/// computation panics, and a hit; and returns the events of the cache.
async fn herds_under_a_panicking_observer(cache: Stampede<u64>) {
    let mut events = cache.events();
    let origin = Origin::taking(100 * MS);
    let ask = |key: &'static str| {
        let (cache, origin) = (cache.clone(), origin.clone());
        async move { cache.get_or_compute(key, move || origin.load()).await }
    };
    let herd = tokio::join!(ask("k"), ask("k"));
    assert_eq!((herd.0.unwrap(), herd.1.unwrap()), (1, 1));
    origin.next([Answer::Fail]);
    let herd = tokio::join!(ask("fails"), ask("fails"));
    assert!(herd.0.is_err() && herd.1.is_err());
    // The leader's caller receives the panic; the waiter computes once more.
    origin.next([Answer::Panic]);
    let (leader, waiter) = (spawn(ask("panics")), spawn(ask("panics")));
    assert!(leader.await.unwrap_err().is_panic());
    assert_eq!(waiter.await.unwrap().unwrap(), 4);
    assert_eq!(ask("k").await.unwrap(), 1);
    cache.invalidate("k").await;
    assert_eq!(ask("k").await.unwrap(), origin.calls() as u64);

    let stats = cache.stats();
    assert_eq!((stats.flights, stats.waiting), (0, 0));
    assert_eq!((stats.hits, stats.computations, stats.failures), (1, 5, 2), "{stats:#?}");
    let names: Vec<_> = std::iter::from_fn(|| events.try_recv().ok())
        .map(|event| format!("{event:?}").split(' ').next().map(str::to_owned).unwrap())
        .collect();
    assert_eq!(names, ["Computed", "Failed", "Failed", "Computed", "Invalidated", "Computed"]);
}

#[test]
fn a_metrics_recorder_that_panics_ends_no_computation() {
    metrics::with_local_recorder(&PanickingRecorder, || {
        let runtime = paused_runtime();
        let cache = settings().build().expect("the settings are good");
        runtime.block_on(herds_under_a_panicking_observer(cache));
    });
}

#[test]
fn a_tracing_subscriber_that_panics_ends_no_computation() {
    let runtime = paused_runtime();
    let _guard = crate::kit::log::listen(PanickingSubscriber);
    let cache = settings().build().expect("the settings are good");
    runtime.block_on(herds_under_a_panicking_observer(cache));
}

// ===== computations outside flights =====

#[test]
fn computations_outside_flights_are_told_apart_by_their_reason() {
    let seen = recorded(|cache| async move {
        let ask = |key: &'static str| {
            let cache = cache.clone();
            async move {
                let work = || async {
                    tokio::time::sleep(SECOND).await;
                    Ok::<_, std::io::Error>(Computed::new(1).do_not_store())
                };
                cache.get_or_compute_with(key, work).await.unwrap()
            }
        };
        // The leader's result may not be shared: the waiter computes its own.
        tokio::join!(ask("declined"), ask("declined"));
        cache.set_mode(Mode::Off);
        ask("off").await;
    });
    for (reason, expected) in [("declined", 1.0), ("alone_declined", 1.0), ("alone_off", 1.0)] {
        let name = format!("stampede_origin_calls_total{{cache=test,reason={reason}}}");
        assert_eq!(seen.get(&name), Some(&expected), "{name} in {seen:#?}");
    }
    assert_eq!(seen.get("stampede_origin_duration_seconds{cache=test}"), Some(&3.0));
}

// ===== refreshes that are put off =====

/// Returns what was reported of refreshes that did not begin: the bounds that the events name, and
/// the counters by bound. Three callers find a stale value each, while a computation runs.
fn put_off(settings: Builder<u64>, is_inline: bool) -> (Vec<&'static str>, Vec<(String, f64)>) {
    let mut bounds = Vec::new();
    let seen = recorded_with(settings.stale_for(MINUTE), |cache| {
        let bounds = &mut bounds;
        async move {
            for key in 0..3_u64 {
                cache.put(key, 100).await;
            }
            pass(MINUTE).await;
            let origin = Origin::taking(100 * MS);
            let (busy, compute) = (cache.clone(), origin.compute());
            let busy = spawn(async move { busy.get_or_compute(9, compute).await });
            all_have_run().await;
            let mut events = cache.events();
            for key in 0..3_u64 {
                let answer = match is_inline {
                    true => cache.get_or_compute_scoped(key, || origin.load()).await,
                    false => cache.get_or_compute(key, origin.compute()).await,
                };
                assert_eq!(answer.unwrap(), 100, "the stale value is served");
                all_have_run().await;
            }
            busy.await.unwrap().unwrap();
            while let Ok(event) = events.try_recv() {
                if let tower_stampede::Event::RefreshPutOff { bound, .. } = event {
                    bounds.push(bound);
                }
            }
        }
    });
    let counted = seen.into_iter().filter(|(name, _)| name.contains("refreshes_put_off"));
    (bounds, counted.collect())
}

#[test]
fn a_refresh_that_is_put_off_names_the_bound_that_was_reached() {
    let counted = |bound: &str, count| {
        let labels = format!("cache=test,bound={bound}");
        (format!("stampede_refreshes_put_off_total{{{labels}}}"), count)
    };
    let (refreshes, computations) = ("max_refreshes", "max_computations");

    // The first of the three refreshes takes the one share.
    let (bounds, counts) = put_off(settings().max_refreshes(1), false);
    assert_eq!((bounds, counts), (vec![refreshes; 2], vec![counted(refreshes, 2.0)]));
    // The one place is taken already.
    for is_inline in [false, true] {
        let narrow = settings().max_refreshes(1).max_computations(1);
        let (bounds, counts) = put_off(narrow, is_inline);
        assert_eq!((bounds, counts), (vec![computations; 3], vec![counted(computations, 3.0)]));
    }
    let (bounds, counts) = put_off(settings(), false);
    assert_eq!((bounds, counts), (vec![], vec![]), "there is room");
}
