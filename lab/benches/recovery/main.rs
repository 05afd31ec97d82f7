//! What happens after everything was flushed under full load.
//!
//! `cargo bench -p tower-stampede-lab --bench recovery [-- --seeds N] [-- --only NAME] [-- --curve]`
//!
//! Time is simulated, the caches are real. Clients come whatever happens (an open loop), ask for one of 5,000
//! keys by Zipf, give up after a second and come back three times. The origin has a capacity, and works
//! less well above it. At 10 s the cache is flushed. `--curve` prints the goodput of each second.
//!
//! `--below` compares the times of clients below the capacity, without a flush.
//! `--out DIR` runs four of them once, and draws the picture of README.md.
//!
//! `cargo bench -p tower-stampede-lab --bench recovery -- --real` runs it in real time with processes of the
//! system on a real Redis: see `real.rs`. `--http` runs HTTP caches in real time: see `http.rs`.

mod contestants;
#[cfg(unix)]
mod http;
mod load;
mod origin;
mod picture;
#[cfg(unix)]
mod real;
#[cfg(unix)]
#[path = "../../../tests/kit/redis/mod.rs"]
mod redis_support;
#[path = "../../../benches/report/mod.rs"]
mod report;
#[cfg(unix)]
#[path = "../../../benches/servers/mod.rs"]
mod servers;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use contestants::{Cache, Calls, Contestant, TTL};
use load::{FLUSH, Run, Second, Zipf, client};
use origin::{MEAN, Origin, capacity};
use parking_lot::Mutex;
use tokio::time::Instant;

const KEYS: usize = 5000;
/// When the last client comes, in seconds.
const END: usize = 80;

fn run(contestant: Contestant, zipf: &Arc<Zipf>, rate: f64, seed: u64, has_flush: bool) -> Run {
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
        let times = Arc::new(Mutex::new(Vec::new()));
        let mut next = 0.0;
        let mut begun_at_flush = None;
        loop {
            next += -(1.0 - fastrand::f64()).ln() / rate;
            if next >= END as f64 {
                break;
            }
            tokio::time::sleep_until(began + Duration::from_secs_f64(next)).await;
            if begun_at_flush.is_none() && next >= FLUSH as f64 {
                if has_flush {
                    cache.flush().await;
                }
                begun_at_flush = Some(calls.begun());
            }
            let at = next as usize;
            seconds.lock()[at].asked += 1;
            let (cache, calls, seconds) = (cache.clone(), calls.clone(), seconds.clone());
            let times = times.clone();
            let key = zipf.draw();
            tokio::spawn(async move {
                let came = Instant::now();
                if let Some(value) = client(|| cache.get(key, &calls)).await {
                    calls.receive(&value);
                    seconds.lock()[at].served += 1;
                    if at >= FLUSH {
                        times.lock().push(came.elapsed());
                    }
                }
            });
        }
        let begun = begun_at_flush.unwrap_or_default()..calls.begun();
        // The last clients, with all that they try.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let (calls_of_all, wasted) = (begun.len(), calls.wasted(begun));
        let seconds = seconds.lock().clone();
        let (most_at_once, times) = (origin.most_at_once(), times.lock().clone());
        Run { seconds, calls: calls_of_all, wasted, most_at_once, times }
    };
    let run = runtime.block_on(clients);
    runtime.shutdown_background();
    run
}

fn main() -> ExitCode {
    #[cfg(unix)]
    if real::work_if_told() {
        return ExitCode::SUCCESS;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Under `cargo test` there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    #[cfg(unix)]
    if args.iter().any(|arg| arg == "--real") {
        real::measure(&args);
        return ExitCode::SUCCESS;
    }
    #[cfg(unix)]
    if args.iter().any(|arg| arg == "--http") {
        return http::measure(&args);
    }
    let after = |flag: &str| args.iter().skip_while(|arg| *arg != flag).nth(1).cloned();
    let seeds: u64 = after("--seeds").map_or(100, |it| it.parse().expect("a number"));
    let only = after("--only").unwrap_or_default();
    let with_curve = args.iter().any(|arg| arg == "--curve");
    let zipf = Arc::new(Zipf::new(KEYS, TTL));
    if args.iter().any(|arg| arg == "--below") {
        below_capacity(&zipf, seeds);
        return ExitCode::SUCCESS;
    }
    for load in [0.95, 1.10] {
        let rate = zipf.rate_for(load * capacity());
        let set = zipf.working_set(rate);
        let bound = 2.0 * MEAN.as_secs_f64() + set / capacity();
        if let Some(out) = report::out_directory(&args) {
            return picture::draw(&out, &zipf, (rate, bound), |it| run(it, &zipf, rate, 1, true));
        }
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
                    (1..=seeds).map(|seed| run(contestant, &zipf, rate, seed, true)).collect();
                print(contestant, &runs, bound, with_curve);
            }
        }
    }
    ExitCode::SUCCESS
}

/// Prints what a bound costs where none is needed: nothing is flushed, and the origin bears the load.
fn below_capacity(zipf: &Arc<Zipf>, seeds: u64) {
    println!("| load | | p99 of clients, ms | p99.9 | served |\n| --- | --- | --- | --- | --- |");
    for load in [0.5, 0.8] {
        let rate = zipf.rate_for(load * capacity());
        for contestant in [Contestant::Default, Contestant::Adaptive(4)] {
            let runs: Vec<Run> =
                (1..=seeds).map(|seed| run(contestant, zipf, rate, seed, false)).collect();
            let mut times: Vec<Duration> =
                runs.iter().flat_map(|it| it.times.iter().copied()).collect();
            times.sort_unstable();
            let millis = |percent| {
                let time = report::percentile(&times, percent).unwrap_or_default();
                format!("{:.1}", time.as_secs_f64() * 1e3)
            };
            let served = runs.iter().map(|it| it.goodput(FLUSH, END)).sum::<f64>() / seeds as f64;
            println!(
                "| {load} | {} | {} | {} | {:.2} % |",
                contestant.name(),
                millis(99.0),
                millis(99.9),
                100.0 * served
            );
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
