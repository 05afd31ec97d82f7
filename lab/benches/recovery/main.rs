//! What happens after everything was flushed under full load.
//!
//! `cargo bench -p tower-stampede-lab --bench recovery [-- --seeds N] [-- --only NAME] [-- --curve]`
//!
//! Time is simulated, the caches are real. Clients come whatever happens (an open loop), ask for one of 5,000
//! keys by Zipf, give up after a second and come back three times. The origin has a capacity, and works
//! less well above it. At 10 s the cache is flushed. `--curve` prints the goodput of each second.

mod contestants;
mod origin;

use std::sync::Arc;
use std::time::Duration;

use contestants::{Cache, Calls, Contestant, TTL};
use origin::{MEAN, Origin, capacity};
use parking_lot::Mutex;
use tokio::time::Instant;

const KEYS: usize = 5000;
const TIME_OUT: Duration = Duration::from_secs(1);
const RETRIES: u32 = 3;
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
/// When the cache is flushed, and when the last client comes.
const FLUSH: usize = 10;
const END: usize = 80;
/// Seconds that are seen as one: with less, a few clients decide.
const SMOOTH: usize = 3;

/// Which keys are asked for how often.
struct Zipf {
    shares: Vec<f64>,
    sums: Vec<f64>,
}

impl Zipf {
    fn new() -> Self {
        let weights: Vec<f64> = (1..=KEYS).map(|rank| 1.0 / rank as f64).collect();
        let sum: f64 = weights.iter().sum();
        let shares: Vec<f64> = weights.iter().map(|it| it / sum).collect();
        let sums = shares.iter().scan(0.0, |sum, it| {
            *sum += it;
            Some(*sum)
        });
        Self { sums: sums.collect(), shares }
    }

    fn draw(&self) -> u64 {
        let at = fastrand::f64();
        self.sums.partition_point(|sum| *sum < at).min(KEYS - 1) as u64
    }

    /// Returns the calls in a second that a warm cache makes under `rate` requests in a second.
    fn warm_calls(&self, rate: f64) -> f64 {
        let ttl = TTL.as_secs_f64() * 0.95;
        self.shares.iter().map(|it| it * rate / (1.0 + it * rate * ttl)).sum()
    }

    /// Returns the requests in a second under which a warm cache makes `calls` in a second.
    fn rate_for(&self, calls: f64) -> f64 {
        let (mut low, mut high) = (0.0, 1e6);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if self.warm_calls(middle) < calls { low = middle } else { high = middle }
        }
        low
    }

    /// Returns for each key how likely a warm cache has it.
    fn warm_shares(&self, rate: f64) -> Vec<f64> {
        let ttl = TTL.as_secs_f64() * 0.95;
        self.shares.iter().map(|it| it * rate * ttl / (1.0 + it * rate * ttl)).collect()
    }

    /// Returns how many keys a lifetime's requests ask for.
    fn working_set(&self, rate: f64) -> f64 {
        let ttl = TTL.as_secs_f64() * 0.95;
        self.shares.iter().map(|it| 1.0 - (-it * rate * ttl).exp()).sum()
    }
}

#[derive(Clone, Copy, Default)]
struct Second {
    asked: u32,
    served: u32,
}

struct Run {
    seconds: Vec<Second>,
    calls: usize,
    wasted: usize,
    most_at_once: usize,
}

impl Run {
    fn goodput(&self, from: usize, to: usize) -> f64 {
        let seconds = &self.seconds[from..to];
        let asked: u32 = seconds.iter().map(|it| it.asked).sum();
        let served: u32 = seconds.iter().map(|it| it.served).sum();
        f64::from(served) / f64::from(asked.max(1))
    }

    /// Returns after how many seconds the goodput is back for good, if so.
    fn recovered_after(&self) -> Option<usize> {
        let before = self.goodput(2, FLUSH);
        if before < 0.5 {
            return None;
        }
        let enough = 0.99 * before;
        let is_bad = |from: &usize| self.goodput(*from, from + SMOOTH) < enough;
        match (FLUSH..END - SMOOTH).rfind(is_bad) {
            None => Some(0),
            Some(last) if last + 1 >= END - SMOOTH - 5 => None,
            Some(last) => Some(last + SMOOTH - FLUSH),
        }
    }
}

async fn client(cache: Arc<Cache>, calls: Arc<Calls>, key: u64) -> bool {
    for attempt in 0..=RETRIES {
        if attempt > 0 {
            let longest = FIRST_BACKOFF * 2_u32.pow(attempt - 1);
            tokio::time::sleep(longest.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        }
        let asked = Instant::now();
        if let Ok(Some(value)) = tokio::time::timeout(TIME_OUT, cache.get(key, &calls)).await {
            calls.receive(&value);
            return true;
        }
        // A client that is refused at once waits, too.
        tokio::time::sleep_until(asked + Duration::from_millis(100)).await;
    }
    false
}

fn run(contestant: Contestant, zipf: &Arc<Zipf>, rate: f64, seed: u64) -> Run {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let zipf = Arc::clone(zipf);
    let clients = async move {
        let origin = Origin::start();
        let calls = Calls::new(Arc::clone(&origin));
        let cache = Arc::new(Cache::new(contestant));
        for (key, share) in (0..).zip(zipf.warm_shares(rate)) {
            if fastrand::f64() < share {
                cache.warm(key).await;
            }
        }
        let began = Instant::now();
        let seconds = Arc::new(Mutex::new(vec![Second::default(); END]));
        let mut next = 0.0;
        let mut begun_at_flush = None;
        loop {
            next += -(1.0 - fastrand::f64()).ln() / rate;
            if next >= END as f64 {
                break;
            }
            tokio::time::sleep_until(began + Duration::from_secs_f64(next)).await;
            if begun_at_flush.is_none() && next >= FLUSH as f64 {
                cache.flush().await;
                begun_at_flush = Some(calls.begun());
            }
            let at = next as usize;
            seconds.lock()[at].asked += 1;
            let (cache, calls, seconds) = (cache.clone(), calls.clone(), seconds.clone());
            let key = zipf.draw();
            tokio::spawn(async move {
                if client(cache, calls, key).await {
                    seconds.lock()[at].served += 1;
                }
            });
        }
        let begun = begun_at_flush.unwrap_or_default()..calls.begun();
        // The last clients, with all that they try.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let (calls_of_all, wasted) = (begun.len(), calls.wasted(begun));
        let seconds = seconds.lock().clone();
        Run { seconds, calls: calls_of_all, wasted, most_at_once: origin.most_at_once() }
    };
    let run = runtime.block_on(clients);
    runtime.shutdown_background();
    run
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Under `cargo test` there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let after = |flag: &str| args.iter().skip_while(|arg| *arg != flag).nth(1).cloned();
    let seeds: u64 = after("--seeds").map_or(100, |it| it.parse().expect("a number"));
    let only = after("--only").unwrap_or_default();
    let with_curve = args.iter().any(|arg| arg == "--curve");
    let zipf = Arc::new(Zipf::new());
    for load in [0.95, 1.10] {
        let rate = zipf.rate_for(load * capacity());
        let set = zipf.working_set(rate);
        let bound = 2.0 * MEAN.as_secs_f64() + set / capacity();
        println!(
            "\nload {load}: {rate:.0} requests/s, origin {:.0} calls/s, working set {set:.0}, \
             bound {bound:.1} s\n",
            capacity()
        );
        println!(
            "| | before | after | at the end | recovered | within the bound | seconds: median, \
             worst | wasted calls | most calls at once |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        for contestant in Contestant::ALL {
            if contestant.name().contains(&only) {
                // The origin has millions of calls then, and each run takes half a minute.
                let seeds = if contestant.is_bounded() { seeds } else { seeds.div_ceil(20) };
                let runs: Vec<Run> =
                    (1..=seeds).map(|seed| run(contestant, &zipf, rate, seed)).collect();
                print(contestant, &runs, bound, with_curve);
            }
        }
    }
}

fn print(contestant: Contestant, runs: &[Run], bound: f64, with_curve: bool) {
    let mean = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let percent = |of: &dyn Fn(&Run) -> f64| format!("{:.1} %", 100.0 * mean(of));
    let mut times: Vec<usize> = runs.iter().filter_map(Run::recovered_after).collect();
    times.sort_unstable();
    let shown = match (times.get(times.len() / 2), times.last()) {
        (Some(median), Some(worst)) => format!("{median}, {worst}"),
        _ => "-".to_owned(),
    };
    let in_time = times.iter().filter(|it| **it as f64 <= bound.ceil()).count();
    println!(
        "| {} | {} | {} | {} | {} of {} | {in_time} | {shown} | {} | {} |",
        contestant.name(),
        percent(&|run| run.goodput(2, FLUSH)),
        percent(&|run| run.goodput(FLUSH, FLUSH + bound as usize)),
        percent(&|run| run.goodput(END - 10, END)),
        times.len(),
        runs.len(),
        percent(&|run| run.wasted as f64 / run.calls.max(1) as f64),
        runs.iter().map(|run| run.most_at_once).max().unwrap_or_default(),
    );
    if with_curve {
        let curve =
            (0..END).map(|at| format!("{:.0}", 100.0 * mean(&|run| run.goodput(at, at + 1))));
        println!("{}", curve.collect::<Vec<_>>().join(" "));
    }
}
