//! What good clients notice of a thousand hostile ones.
//!
//! `cargo bench -p tower-stampede-lab --bench hostile` builds `stampede-proxy`, and
//! runs it, the origin and the clients as processes of their own. 100 good clients ask for pages,
//! at a fixed pace. In every second slice a thousand hostile clients and origins are there too:
//! silent, half open, dripping and stalled (`crowd.rs`). It takes two minutes, five pairs of
//! slices, and fails where a good request fails, where the median ratio of p99 with the crowd to
//! p99 without is above 1.3, or where the proxy takes too much memory. All processes share the
//! machine; let it be calm.

mod crowd;
mod good;
mod origin;
#[path = "../../../benches/servers/mod.rs"]
mod servers;

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use good::Slice;
use servers::{PROXY, Server};

/// Hostile clients, a half of them at hostile paths of the origin.
const HOSTILE: usize = 1000;

const PAIRS: usize = 5;

/// How long a slice is measured. With the crowd it begins when the crowd has come.
const SLICE: Duration = Duration::from_secs(12);
const GATHERING: Duration = Duration::from_secs(3);

/// So short that each hostile client meets its limit several times.
const LIMITS: [&str; 16] = [
    "--header-timeout-ms",
    "5000",
    "--idle-timeout-ms",
    "5000",
    "--body-read-timeout-ms",
    "5000",
    "--body-write-timeout-ms",
    "5000",
    "--origin-idle-ms",
    "5000",
    "--compute-timeout-ms",
    "5000",
    "--max-forwarded",
    "1024",
    "--stale-if-disconnected-ms",
    "0",
];

/// The most that p99 with the crowd may be, to p99 without.
const BOUND: f64 = 1.3;

/// The most memory of the proxy, in bytes: the store, bodies that arrive, and buffers of the
/// kernel's size for each connection.
const MEMORY: u64 = 512 << 20;

fn main() -> ExitCode {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let args: Vec<String> = std::env::args().collect();
    let second = |at: usize| args.get(at).expect("an address").parse().expect("an address");
    match args.get(1).map(String::as_str) {
        Some("--origin") => origin::serve(),
        Some("--crowd") => crowd::run(second(2)),
        // Under `cargo test` there is nothing to see.
        _ if !args.iter().any(|arg| arg == "--bench") => ExitCode::SUCCESS,
        _ => compare(),
    }
}

fn compare() -> ExitCode {
    PROXY.build();
    let origin = Server::ourselves(None, &["--origin"]);
    let url = format!("http://{}", origin.address);
    let flags = [&["--origin", &url], &LIMITS[..]].concat();
    let proxy = Server::program(None, PROXY, &flags);
    // Connections and pages are warm before the first slice.
    good::run(proxy.address, GATHERING);
    println!("        without: p50, p99 ms     with: p50, p99 ms    ratio  errors   MiB");
    let (mut ratios, mut errors, mut memory) = (Vec::new(), 0, 0);
    for pair in 1..=PAIRS {
        let calm = good::run(proxy.address, SLICE);
        let crowd = Crowd::start(&proxy);
        std::thread::sleep(GATHERING);
        let hostile = good::run(proxy.address, SLICE);
        memory = proxy.memory().max(memory);
        drop(crowd);
        std::thread::sleep(GATHERING);
        errors += calm.errors + hostile.errors;
        let ratio = hostile.p99() / calm.p99();
        let (without, with) = (show(&calm), show(&hostile));
        let mib = memory >> 20;
        println!("pair {pair}  {without:>20}  {with:>20}  {ratio:7.2}  {errors:6}  {mib:4}");
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[PAIRS / 2];
    println!("median ratio {median:.2}, at most {} MiB, {errors} errors", memory >> 20);
    let is_good = median <= BOUND && errors == 0 && memory <= MEMORY;
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(slice: &Slice) -> String {
    format!("{:.1}, {:.1}", slice.p50(), slice.p99())
}

/// The process of the hostile clients.
struct Crowd(std::process::Child);

impl Crowd {
    fn start(proxy: &Server) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(["--crowd", &proxy.address.to_string()]).stdout(Stdio::null());
        Self(command.spawn().expect("it starts"))
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // It may have ended already: no matter.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
