//! The same in real time: processes of the system, a real Redis, an origin behind TCP.
//!
//! `... --bench recovery -- --real [--processes N] [--repeats N] [--kind KIND] [--defaults]`
//!
//! At 10 s Redis is flushed, frozen for 5 s, or killed and started again, empty, after 2 s. At the same moment each
//! process begins anew with an empty cache and a new connection, as in a deploy. Else its own copies
//! would bear the load, and nothing would be cold.
//!
//! # Scale
//!
//! The origin is that of the simulation, 200 calls a second, behind a TCP port of the process that measures. There are
//! 2,000 keys in place of 5,000, and values live 8 s in place of 20: two fifths of both, so the share of misses
//! and all times of the origin and of the clients are the same, and there are nine tenths of
//! the requests. The clients of a process are tasks of it: they come by the clock whatever happens. Two columns
//! show whether the machine was the bottleneck: how late a client began at worst, and
//! the share of all cores that was busy, whatever else the machine did included.
//!
//! # The bound
//!
//! Two mean computations, and the working set divided by the origin's capacity. With several processes also the
//! time that Redis is away: until then each of them computes each key for itself.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower_stampede::{Computed, Redis, Stampede};

use crate::load::{FLUSH, Run, Second, Zipf, client, come};
use crate::origin::{MEAN, Origin, capacity};
use crate::redis_support::Server;

/// Makes this program one of the processes; holds its settings.
const SETTINGS: &str = "RECOVERY_PROCESS";
const KEYS: usize = 2000;
pub(crate) const TTL: Duration = Duration::from_secs(8);
/// When the last client comes, in seconds.
pub(crate) const END: usize = 40;
/// What of the origin's capacity the clients need while the cache is warm.
pub(crate) const LOAD: f64 = 0.95;
/// Where each process begins: four of them are below the origin's 20 workers.
const LEAST: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Flushed,
    Frozen,
    Killed,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Flushed, Self::Frozen, Self::Killed];

    fn name(self) -> &'static str {
        match self {
            Self::Flushed => "flushed",
            Self::Frozen => "frozen",
            Self::Killed => "killed",
        }
    }

    /// Returns how long Redis is away.
    fn away(self) -> Duration {
        Duration::from_secs(match self {
            Self::Flushed => 0,
            Self::Frozen => 5,
            Self::Killed => 2,
        })
    }

    fn begin(self, server: &Server) {
        match self {
            Self::Flushed => drop(server.cli(&["FLUSHALL"])),
            Self::Frozen => server.freeze(),
            Self::Killed => server.kill(),
        }
    }

    fn end(self, server: &Server) {
        match self {
            Self::Flushed => {}
            Self::Frozen => server.thaw(),
            Self::Killed => server.restart(),
        }
    }
}

pub(crate) fn measure(args: &[String]) {
    let after = |flag: &str| args.iter().skip_while(|arg| *arg != flag).nth(1).cloned();
    let number = |flag: &str| after(flag).map(|it| it.parse::<usize>().expect("a number"));
    let repeats = number("--repeats").unwrap_or(3);
    let kind = after("--kind");
    let least = if args.iter().any(|arg| arg == "--defaults") { 0 } else { LEAST };
    let zipf = Zipf::new(KEYS, TTL);
    let rate = zipf.rate_for(LOAD * capacity());
    let fill = 2.0 * MEAN.as_secs_f64() + zipf.working_set(rate) / capacity();
    println!(
        "{rate:.0} requests/s, origin {:.0} calls/s, working set {:.0}: at best full after {fill:.1} s\n",
        capacity(),
        zipf.working_set(rate)
    );
    println!(
        "| processes | Redis | before | after | at the end | seconds | bound | holds | calls | \
         wasted | most calls at once | latest client, ms | cores busy |"
    );
    println!("|{}", " --- |".repeat(13));
    let (mut held, mut runs) = (0, 0);
    for processes in number("--processes").map_or(vec![1, 4], |it| vec![it]) {
        let kinds = Kind::ALL.into_iter();
        for kind in kinds.filter(|it| kind.as_ref().is_none_or(|only| only == it.name())) {
            for _ in 0..repeats {
                let seen = Scene { kind, processes, rate, least }.play();
                held += usize::from(seen.print(fill));
                runs += 1;
            }
        }
    }
    println!("\n{held} of {runs} within the bound");
}

struct Scene {
    kind: Kind,
    processes: usize,
    rate: f64,
    least: usize,
}

struct Seen {
    kind: Kind,
    processes: usize,
    run: Run,
    latest: Duration,
    busy: f64,
}

impl Seen {
    fn print(&self, fill: f64) -> bool {
        let away = if self.processes > 1 { self.kind.away() } else { Duration::ZERO };
        let bound = fill + away.as_secs_f64();
        let begin = [self.processes.to_string(), self.kind.name().to_owned()];
        print_row(&begin, &self.run, bound, (self.latest, self.busy))
    }
}

/// Prints what was seen, for people and as a curve. Returns whether it recovered within the bound.
pub(crate) fn print_row(
    begin: &[String],
    run: &Run,
    bound: f64,
    (latest, busy): (Duration, f64),
) -> bool {
    let recovered = run.recovered_after();
    let holds = recovered.is_some_and(|it| it as f64 <= bound.ceil());
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    println!(
        "| {} | {} | {} | {} | {} | {bound:.1} | {} | {} | {} | {} | {} | {:.0} % |",
        begin.join(" | "),
        percent(run.goodput(2, FLUSH)),
        percent(run.goodput(FLUSH, FLUSH + bound as usize)),
        percent(run.goodput(END - 10, END)),
        recovered.map_or("never".to_owned(), |it| it.to_string()),
        if holds { "yes" } else { "no" },
        run.calls,
        percent(run.wasted as f64 / run.calls.max(1) as f64),
        run.most_at_once,
        latest.as_millis(),
        100.0 * busy,
    );
    let curve = (0..END).map(|at| format!("{:.0}", 100.0 * run.goodput(at, at + 1)));
    eprintln!("goodput by second: {}", curve.collect::<Vec<_>>().join(" "));
    holds
}

impl Scene {
    fn play(&self) -> Seen {
        let runtime = runtime();
        let (origin, address) = runtime.block_on(serve_origin());
        let server = Server::start();
        let mut processes: Vec<Process> =
            (0..self.processes).map(|at| Process::start(self, &server, address, at)).collect();
        processes.iter_mut().for_each(|it| assert_eq!(it.line(), "ready"));
        processes.iter_mut().for_each(|it| it.tell("begin"));
        let (began, cores) = (Instant::now(), Cores::read());
        sleep(Duration::from_secs(FLUSH as u64));
        self.kind.begin(&server);
        processes.iter_mut().for_each(|it| it.tell("renew"));
        let begun = origin.begun();
        sleep(self.kind.away());
        self.kind.end(&server);
        sleep(Duration::from_secs(END as u64).saturating_sub(began.elapsed()));
        let busy = cores.busy_since();
        let mut seconds = vec![Second::default(); END];
        let mut is_received = vec![false; origin.begun() + 10_000];
        let mut latest = Duration::ZERO;
        for process in &mut processes {
            for second in &mut seconds {
                let line = process.line();
                let (asked, served) = line.split_once(' ').expect("two numbers");
                second.asked += asked.parse::<u32>().expect("a number");
                second.served += served.parse::<u32>().expect("a number");
            }
            for call in process.line().split_whitespace() {
                is_received[call.parse::<usize>().expect("a number")] = true;
            }
            latest = latest.max(Duration::from_millis(process.line().parse().expect("a number")));
        }
        // Calls are numbered from one.
        let ended = origin.begun();
        let wasted = (begun + 1..=ended).filter(|call| !is_received[*call]).count();
        let run = Run {
            seconds,
            calls: ended - begun,
            wasted,
            most_at_once: origin.most_at_once(),
            times: vec![],
        };
        runtime.shutdown_background();
        Seen { kind: self.kind, processes: self.processes, run, latest, busy }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime starts")
}

/// A connection is a call. Its answer is the number of the call.
async fn serve_origin() -> (Arc<Origin>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let origin = Origin::start();
    let serving = Arc::clone(&origin);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let demand = MEAN.mul_f64(0.5 + fastrand::f64());
            let (number, done) = serving.numbered_call(demand);
            tokio::spawn(async move {
                let _ = done.await;
                // The caller may be gone.
                let _ = stream.write_u64(number).await;
            });
        }
    });
    (origin, address)
}

async fn call_origin(address: SocketAddr) -> std::io::Result<u64> {
    TcpStream::connect(address).await?.read_u64().await
}

/// A process, as the one that measures sees it.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(scene: &Scene, server: &Server, origin: SocketAddr, number: usize) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let Scene { processes, rate, least, .. } = scene;
        let rate = rate / *processes as f64;
        let settings = format!("{} {origin} {number} {processes} {rate} {least}", server.url());
        let mut command = Command::new(program);
        command.env(SETTINGS, settings).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").expect("the process listens");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the process speaks");
        line.trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the cores of the machine have done until now, in ticks: all, and idle. Zero where the system does not say.
pub(crate) struct Cores(f64, f64);

impl Cores {
    pub(crate) fn read() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        let ticks: Vec<f64> =
            first.split_whitespace().skip(1).take(8).filter_map(|it| it.parse().ok()).collect();
        Self(ticks.iter().sum(), ticks.get(3..5).map_or(0.0, |it| it.iter().sum()))
    }

    pub(crate) fn busy_since(&self) -> f64 {
        let now = Self::read();
        1.0 - (now.1 - self.1) / (now.0 - self.0).max(1.0)
    }
}

/// Serves clients until the last has come, if this process was started for that. Returns whether it was.
pub(crate) fn work_if_told() -> bool {
    let Ok(settings) = std::env::var(SETTINGS) else { return false };
    let mut parts = settings.split(' ');
    let mut next = || parts.next().expect("a setting");
    let worker = Worker {
        redis: next().to_owned(),
        origin: next().parse().expect("an address"),
        number: next().parse().expect("a number"),
        processes: next().parse().expect("a number"),
        rate: next().parse().expect("a number"),
        least: next().parse().expect("a number"),
    };
    runtime().block_on(worker.work());
    true
}

/// Waits until this process is told what comes next.
fn wait_for_line() {
    let read = std::io::stdin().read_line(&mut String::new());
    assert!(read.is_ok_and(|it| it > 0), "the process that measures has ended");
}

struct Worker {
    redis: String,
    origin: SocketAddr,
    number: usize,
    processes: usize,
    rate: f64,
    /// Zero: the defaults.
    least: usize,
}

impl Worker {
    fn cache(&self) -> Stampede<u64> {
        let redis = Redis::lazy(&self.redis).expect("a URL").namespace("recovery");
        let builder = Stampede::builder("recovery").ttl(TTL).redis(redis);
        let builder = if self.least > 0 { builder.min_computations(self.least) } else { builder };
        builder.build().expect("good settings")
    }

    /// Puts this process' part of what a cache that is warm holds, as if it had been there for a while.
    async fn warm(&self, zipf: &Zipf, cache: &Stampede<u64>) {
        for (key, share) in zipf.warm_shares(self.rate * self.processes as f64).iter().enumerate() {
            if key % self.processes == self.number && fastrand::f64() < *share {
                let value = Computed::new(0).ttl(TTL.mul_f64(fastrand::f64()));
                cache.put_with(key as u64, value).await;
            }
        }
    }

    async fn work(self) {
        let zipf = Zipf::new(KEYS, TTL);
        let cache = Arc::new(Mutex::new(self.cache()));
        let first = cache.lock().clone();
        self.warm(&zipf, &first).await;
        drop(first);
        let worker = Arc::new(self);
        println!("ready");
        wait_for_line();
        let (renewing, renewed) = (Arc::clone(&worker), Arc::clone(&cache));
        std::thread::spawn({
            let runtime = tokio::runtime::Handle::current();
            move || {
                wait_for_line();
                let _guard = runtime.enter();
                *renewed.lock() = renewing.cache();
            }
        });
        let seconds = Arc::new(Mutex::new(vec![Second::default(); END]));
        let received = Arc::new(Mutex::new(Vec::new()));
        let latest = come(worker.rate, END, |at| {
            let (key, origin) = (zipf.draw(), worker.origin);
            seconds.lock()[at].asked += 1;
            let (cache, seconds, received) = (cache.clone(), seconds.clone(), received.clone());
            tokio::spawn(async move {
                let ask = || {
                    let cache = cache.lock().clone();
                    async move { cache.get_or_compute(key, move || call_origin(origin)).await.ok() }
                };
                if let Some(call) = client(ask).await {
                    seconds.lock()[at].served += 1;
                    received.lock().push(call);
                }
            });
        })
        .await;
        // The last clients, with all that they try.
        tokio::time::sleep(Duration::from_secs(6)).await;
        for Second { asked, served } in seconds.lock().iter() {
            println!("{asked} {served}");
        }
        let mut calls: Vec<u64> = received.lock().clone();
        calls.sort_unstable();
        calls.dedup();
        println!("{}", calls.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
        println!("{}", latest.as_millis());
    }
}
