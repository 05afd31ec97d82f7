//! Tests of the observer from inside.

use std::panic::panic_any;

use crate::error::contain_panic;
use crate::observe::labels::ComputationEnd;

#[test]
fn a_panic_is_contained_even_if_the_drop_of_its_payload_panics() {
    struct PanicsInDrop;
    impl Drop for PanicsInDrop {
        fn drop(&mut self) {
            panic!("a payload panics when it is dropped");
        }
    }
    assert_eq!(contain_panic(|| 1), Some(1));
    assert_eq!(contain_panic(|| -> u8 { panic_any(PanicsInDrop) }), None);
}

#[test]
fn up_to_declined_every_end_has_a_result() {
    let results = [ComputationEnd::Stored, ComputationEnd::Shared, ComputationEnd::Declined];
    assert_eq!(ComputationEnd::ALL.iter().filter(|end| end.has_result()).count(), results.len());
    assert!(results.iter().all(|end| end.has_result()));
}

/// Everything that can happen, at least once, and each way in which a line or a metric
/// follows from it.
#[cfg(feature = "metrics")]
mod table {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex, OnceLock};
    use std::time::Duration;

    use ::metrics::{Counter, Gauge, Histogram, KeyName, Recorder, SharedString, Unit};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::NoSubscriber;
    use tracing::{Dispatch, Metadata, Subscriber};

    use crate::error::{Error, ErrorKind};
    use crate::key::{Key, Tag};
    use crate::observe::lines::LogMessage;
    use crate::observe::table::{Metric, MetricKind, OCCURRENCES, samples};
    use crate::observe::{CacheLabel, Observe, Observer, Occurrence, Stats};
    use crate::outcome::CacheOutcome;

    const SECOND: Duration = Duration::from_secs(1);

    type Fields = BTreeSet<&'static str>;

    /// The lines by their text: level, and all fields they had.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<BTreeMap<String, (String, Fields)>>>);

    #[derive(Default)]
    struct Seen {
        text: String,
        fields: Fields,
    }

    impl Visit for Seen {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            match field.name() {
                "message" => self.text = format!("{value:?}"),
                name => {
                    self.fields.insert(name);
                }
            }
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "tower_stampede"
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            let mut seen = Seen::default();
            event.record(&mut seen);
            let level = event.metadata().level().to_string();
            let mut lines = self.0.lock().unwrap();
            let entry = lines.entry(seen.text).or_insert((level, Fields::new()));
            entry.1.extend(seen.fields);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// The sets of labels that a metric had.
    type Labels = BTreeSet<Vec<String>>;

    /// The metrics by their names.
    #[derive(Default)]
    struct Metrics(Mutex<BTreeMap<String, (MetricKind, Labels)>>);

    impl Metrics {
        fn note(&self, kind: MetricKind, key: &::metrics::Key) {
            let labels = key.labels().map(|label| label.key().to_owned()).collect();
            let mut metrics = self.0.lock().unwrap();
            let entry = metrics.entry(key.name().to_owned());
            let (noted, sets) = entry.or_insert_with(|| (kind, BTreeSet::new()));
            assert_eq!(*noted, kind, "{key} has two kinds");
            sets.insert(labels);
        }
    }

    impl Recorder for Metrics {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &::metrics::Key, _: &::metrics::Metadata<'_>) -> Counter {
            self.note(MetricKind::Counter, key);
            Counter::noop()
        }

        fn register_gauge(&self, key: &::metrics::Key, _: &::metrics::Metadata<'_>) -> Gauge {
            self.note(MetricKind::Gauge, key);
            Gauge::noop()
        }

        fn register_histogram(
            &self,
            key: &::metrics::Key,
            _: &::metrics::Metadata<'_>,
        ) -> Histogram {
            self.note(MetricKind::Histogram, key);
            Histogram::noop()
        }
    }

    /// Lets everything happen, with a recorder and a subscriber that note it.
    async fn drive(recorder: &Metrics, lines: &Lines) {
        // As `kit::log` of the tests does: with one subscriber only, `tracing` may forget it.
        static SECOND_ONE: OnceLock<Dispatch> = OnceLock::new();
        SECOND_ONE.get_or_init(|| Dispatch::new(NoSubscriber::new()));
        let _lines = tracing::subscriber::set_default(lines.clone());
        let _metrics = ::metrics::set_default_local_recorder(recorder);
        let tag = Tag::from("t");
        let key = Key::from("k");
        let label = CacheLabel { name: "test".to_owned(), log_keys: true };
        let error = Error::new(ErrorKind::WaitTimeout);
        for n in 0..samples(&key, &tag, &error).len() {
            // One that has warned of nothing yet.
            let observer = Observer::new(&label);
            observer.happened(samples(&key, &tag, &error)[n]);
            // Some lines are left out, and the next line says so.
            observer.note_success();
            observer.happened(samples(&key, &tag, &error)[n]);
            observer.note_success();
            observer.happened(samples(&key, &tag, &error)[n]);
            for other in 0..12_u32 {
                observer.note_success();
                observer.happened(samples(&Key::from(other), &tag, &error)[n]);
                observer.happened(Occurrence::Deposed { key: &Key::from(other) });
            }
            // The end of the last row is told of later.
            observer.note_success();
            observer.happened(samples(&key, &tag, &error)[n]);
            observer.note_success();
            tokio::time::advance(61 * SECOND).await;
            for _ in 0..2 {
                observer.note_success();
                observer.happened(samples(&key, &tag, &error)[n]);
            }
        }
        let observer = Observer::new(&label);
        CacheOutcome::ALL.into_iter().for_each(|outcome| observer.answered(outcome));
        observer.gauge(&Stats::default(), Some(true));
        #[cfg(all(feature = "axum", debug_assertions))]
        crate::observe::warn_of_unread();
        #[cfg(feature = "redis")]
        {
            crate::observe::warn_of_policy("r", "volatile-ttl");
            crate::observe::warn_of_connection("r", "an expired certificate", "renew it");
            crate::observe::warn_of_silence("r", "denied");
        }
    }

    #[test]
    fn the_samples_cover_every_occurrence() {
        let (key, tag) = (Key::from("k"), Tag::from("t"));
        let error = Error::new(ErrorKind::WaitTimeout);
        let name = |what: &Occurrence<'_>| {
            let text = format!("{what:?}");
            text.split(' ').next().expect("a split has a first part").to_owned()
        };
        let sampled: BTreeSet<_> = samples(&key, &tag, &error).iter().map(name).collect();
        for name in OCCURRENCES {
            assert!(sampled.contains(*name), "`samples` in table.rs has no {name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_line_has_the_level_the_text_and_the_fields_of_its_table() {
        let (recorder, lines) = (Metrics::default(), Lines::default());
        drive(&recorder, &lines).await;
        let mut seen = lines.0.lock().unwrap().clone();
        let of_server = [LogMessage::LocksAreEvicted, LogMessage::Unreachable, LogMessage::Unheard];
        for message in LogMessage::ALL {
            let is_unread = *message == LogMessage::CacheForUnread;
            if cfg!(not(feature = "redis")) && of_server.contains(message)
                || cfg!(not(all(feature = "axum", debug_assertions))) && is_unread
            {
                continue;
            }
            let (level, fields) = seen.remove(message.text()).unwrap_or_else(|| {
                panic!("no line says {:?}", message.text());
            });
            assert_eq!(level, message.level().to_string(), "{message:?}");
            let mut declared: Fields = message.fields().iter().copied().collect();
            if !of_server.contains(message) && !is_unread {
                declared.insert("cache");
            }
            assert_eq!(fields, declared, "{message:?}");
        }
        assert!(seen.is_empty(), "not in the table: {seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn each_metric_has_the_kind_the_name_and_the_labels_of_its_table() {
        let (recorder, lines) = (Metrics::default(), Lines::default());
        drive(&recorder, &lines).await;
        let mut seen = recorder.0.into_inner().unwrap();
        for metric in Metric::ALL {
            let (kind, labels) = seen.remove(metric.name()).unwrap_or_else(|| {
                panic!("{} is not reported", metric.name());
            });
            assert_eq!(kind, metric.kind(), "{metric:?}");
            let declared = ["cache"].iter().chain(metric.labels()).map(|label| label.to_string());
            assert_eq!(labels, BTreeSet::from([declared.collect::<Vec<_>>()]), "{metric:?}");
        }
        assert!(seen.is_empty(), "not in the table: {seen:?}");
    }
}

/// There is no way around the tables: one file each calls the facades.
#[test]
fn only_this_room_writes_lines_and_reports_metrics() {
    fn look(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                look(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let macros = ["event!(", "warn!(", "info!(", "debug!(", "counter!(", "histogram!("];
            let calls = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let calls = calls.filter(|line| macros.iter().any(|call| line.contains(call)));
            found.extend(calls.map(|_| name.clone()));
        }
    }
    let mut found = Vec::new();
    look(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found.retain(|name| !["log.rs", "metrics.rs", "tests.rs"].contains(&name.as_str()));
    assert_eq!(found, Vec::<String>::new());
}
