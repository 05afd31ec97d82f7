//! Prometheus text of everything the library records through the `metrics`
//! facade; built with `--features metrics`.

use std::error::Error;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tower_stampede::Stats;

/// Upper bounds of the histograms, in seconds.
const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// How often the recorder tidies samples that no scrape has read.
const UPKEEP: Duration = Duration::from_secs(5);

/// The recorder's reading end.
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder of this process. The library names the cache itself.
    pub(crate) fn install(_: &'static str) -> Result<Self, Box<dyn Error>> {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_duration_seconds".into()), &BUCKETS)?
            .install_recorder()?;
        let tidied = handle.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(UPKEEP);
                tidied.run_upkeep();
            }
        });
        Ok(Self(handle))
    }

    pub(crate) fn render(&self, _: &Stats) -> String {
        self.0.render()
    }
}
