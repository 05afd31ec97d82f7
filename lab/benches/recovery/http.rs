//! The same over HTTP, in real time: a cache in a process of its own between clients and an origin.
//!
//! `... --bench recovery -- --http [--repeats N] [--only NAME] [--out DIR]`
//!
//! The caches are `stampede-proxy` by its defaults and with `--min-computations`, nginx with `proxy_cache_lock` and
//! without, and Varnish; what is not installed is left out. Each has the settings of its manual, and none
//! serves what was flushed: at 10 s all clients go to a second, empty instance, which was started before,
//! as in a deploy.
//!
//! Lifetimes, load and bound are those of `real.rs`. With its 2,000 keys 2,500 clients come in a second, and where all
//! of them wait, with all that they try, two cores and 20,000 open files are too few. With 4,000 there are 950.
//! The origin answers `max-age=8`. `real.rs` counts on lifetimes that are a tenth shorter at random, so
//! all caches have a little less to bear here, and nginx, which counts whole seconds up to 9, the least.
//! While the first instance is warmed, the origin answers without work, and values end after 1 to 8 s.
//!
//! The clients and the origin are threads of this process, with a runtime each. A client that gives up closes
//! its connection.

mod caches;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use self::caches::{Contestant, Instance};
use crate::load::{FLUSH, Run, Second, Zipf, client, come};
use crate::origin::{MEAN, Origin, capacity};
use crate::real::{Cores, END, LOAD, TTL, print_row};
use crate::report::{self, Axis, Content, Exhibit, Figure, Part, Role, Scale, Series};

const KEYS: usize = 4000;

pub(crate) fn measure(args: &[String]) -> ExitCode {
    let after = |flag: &str| args.iter().skip_while(|arg| *arg != flag).nth(1).cloned();
    let repeats: usize = after("--repeats").map_or(1, |it| it.parse().expect("a number"));
    let only = after("--only").unwrap_or_default();
    let out = report::out_directory(args);
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    crate::servers::PROXY.build();
    let zipf = Arc::new(Zipf::new(KEYS, TTL));
    let rate = zipf.rate_for(LOAD * capacity());
    let set = zipf.working_set(rate);
    let bound = 2.0 * MEAN.as_secs_f64() + set / capacity();
    println!(
        "{rate:.0} requests/s, origin {:.0} calls/s, working set {set:.0}, bound {bound:.1} s\n",
        capacity()
    );
    println!(
        "| | before | after | at the end | seconds | bound | holds | calls | wasted | \
         most calls at once | latest client, ms | cores busy |"
    );
    println!("|{}", " --- |".repeat(12));
    let (mut shown, mut absent) = (Vec::new(), Vec::new());
    let is_wanted =
        |it: &&Contestant| it.name.contains(&only) && (out.is_none() || it.role.is_some());
    for contestant in caches::ALL.iter().filter(is_wanted) {
        if !contestant.is_installed() {
            absent.push(format!("Without {}, which is not installed.", contestant.name));
            continue;
        }
        for _ in 0..repeats {
            let seen = play(contestant, &zipf, rate);
            print_row(&[contestant.name.to_owned()], &seen.run, bound, (seen.latest, seen.busy));
            shown.push(seen);
        }
    }
    absent.iter().for_each(|note| println!("{note}"));
    match out {
        Some(out) => part(&shown, absent, rate, bound).finish(Some(&out)),
        None => ExitCode::SUCCESS,
    }
}

struct Seen {
    contestant: &'static Contestant,
    run: Run,
    latest: Duration,
    busy: f64,
}

fn play(contestant: &'static Contestant, zipf: &Arc<Zipf>, rate: f64) -> Seen {
    let (origin_thread, clients_thread) = (runtime(), runtime());
    let warming = Arc::new(AtomicBool::new(true));
    let (origin, address) = origin_thread.block_on(serve_origin(Arc::clone(&warming)));
    let instances = [(); 2].map(|()| Instance::start(contestant, address));
    let [first, second] = instances.each_ref().map(|it| it.address);
    let crowd = Arc::new(Crowd {
        http: Client::builder(TokioExecutor::new()).build_http(),
        target: Mutex::new(first),
        seconds: Mutex::new(vec![Second::default(); END]),
        received: Mutex::default(),
    });
    let cores = clients_thread.block_on(async {
        crowd.warm(zipf, rate).await;
        warming.store(false, Ordering::Relaxed);
        Cores::read()
    });
    let mut begun = None;
    let latest = clients_thread.block_on(come(rate, END, |at| {
        if at >= FLUSH && begun.is_none() {
            *crowd.target.lock() = second;
            begun = Some(origin.begun());
        }
        crowd.seconds.lock()[at].asked += 1;
        tokio::spawn(Arc::clone(&crowd).serve(at, zipf.draw()));
    }));
    let begun = begun.expect("clients come after the flush, too");
    let (busy, ended) = (cores.busy_since(), origin.begun());
    // The last clients, with all that they try.
    std::thread::sleep(Duration::from_secs(6));
    let mut is_received = vec![false; ended + 1];
    for call in crowd.received.lock().iter().filter(|call| **call <= ended) {
        is_received[*call] = true;
    }
    // Calls are numbered from one.
    let wasted = is_received[begun + 1..].iter().filter(|it| !**it).count();
    let run = Run {
        seconds: crowd.seconds.lock().clone(),
        calls: ended - begun,
        wasted,
        most_at_once: origin.most_at_once(),
        times: vec![],
    };
    clients_thread.shutdown_background();
    origin_thread.shutdown_background();
    Seen { contestant, run, latest, busy }
}

/// One thread for the clients and one for the origin: neither waits for the other's tasks.
fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("a runtime starts")
}

/// Answers each request with the number of its call, and while it warms a cache, with zero at once.
async fn serve_origin(warming: Arc<AtomicBool>) -> (Arc<Origin>, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let listener = socket.listen(8192).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let origin = Origin::start();
    let serving = Arc::clone(&origin);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("enough open files");
            stream.set_nodelay(true).expect("a connection of TCP");
            let (origin, warming) = (Arc::clone(&serving), Arc::clone(&warming));
            tokio::spawn(async move {
                let service = service_fn(|_: Request<Incoming>| async {
                    Ok::<_, Infallible>(answer(&origin, &warming).await)
                });
                // The caller may be gone. The origin works on, as most databases do.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (origin, address)
}

async fn answer(origin: &Origin, warming: &AtomicBool) -> Response<Full<Bytes>> {
    let (number, lifetime) = if warming.load(Ordering::Relaxed) {
        (0, fastrand::u64(1..=TTL.as_secs()))
    } else {
        let (number, done) = origin.numbered_call(MEAN.mul_f64(0.5 + fastrand::f64()));
        let _ = done.await;
        (number, TTL.as_secs())
    };
    Response::builder()
        .header(header::CACHE_CONTROL, format!("max-age={lifetime}"))
        .body(Full::from(number.to_string()))
        .expect("a response")
}

/// All clients, and what they have seen.
struct Crowd {
    http: Client<HttpConnector, Empty<Bytes>>,
    /// Where they ask now.
    target: Mutex<SocketAddr>,
    seconds: Mutex<Vec<Second>>,
    /// Numbers of calls.
    received: Mutex<Vec<usize>>,
}

impl Crowd {
    /// Returns the number of the call, if the answer is good.
    async fn ask(&self, key: u64) -> Option<usize> {
        let target = *self.target.lock();
        let uri = format!("http://{target}/key/{key}");
        let request = Request::get(uri).body(Empty::new()).expect("a request");
        let response = self.http.request(request).await.ok()?;
        if response.status() != 200 {
            return None;
        }
        let body = response.into_body().collect().await.ok()?.to_bytes();
        std::str::from_utf8(&body).ok()?.parse().ok()
    }

    /// Has the first instance hold what a cache that is warm holds.
    async fn warm(&self, zipf: &Zipf, rate: f64) {
        let shares = (0..).zip(zipf.warm_shares(rate));
        let keys = shares.filter(|(_, share)| fastrand::f64() < *share);
        let asked = stream::iter(keys.map(|(key, _)| self.ask(key))).buffer_unordered(16);
        let is_warm = asked.all(|call| async move { call == Some(0) }).await;
        assert!(is_warm, "the cache answers while no client asks");
    }

    /// One client, who came in this second.
    async fn serve(self: Arc<Self>, at: usize, key: u64) {
        if let Some(call) = client(|| self.ask(key)).await {
            self.seconds.lock()[at].served += 1;
            self.received.lock().push(call);
        }
    }
}

fn part(shown: &[Seen], absent: Vec<String>, rate: f64, bound: f64) -> Part {
    let command = "cargo bench -p tower-stampede-lab --bench recovery -- --http --out report";
    let title = "Empty HTTP caches under full load";
    let mut part = Part::new("recovery_http", title, command);
    part.versions = caches::versions();
    part.notes
        .push("Real time, processes on one machine; the load is 95 % of the capacity.".into());
    part.notes.extend(absent);
    let series = shown.iter().filter_map(|Seen { contestant, run, .. }| {
        let share = |at: usize| (at as f64 + 0.5, 100.0 * run.goodput(at, at + 1));
        let points = (0..END).map(share).collect();
        Some(Series { name: contestant.name.into(), role: contestant.role?, points, steps: false })
    });
    part.exhibits.push(Exhibit {
        id: "recovery_http.goodput".to_owned(),
        title: format!("At {FLUSH} s all clients go to an empty instance, under full load"),
        caption: format!(
            "{rate:.0} requests in a second by Zipf. A client gives up after 1 s and comes back \
             three times; it is served when one of its tries is. At best the cache is full again \
             after {bound:.0} s."
        ),
        content: Content::Lines {
            x: Axis::new("time", "s", Scale::Linear),
            y: Axis::new("clients that are served", "%", Scale::Linear),
            series: series.collect(),
        },
    });
    let is_ours = |seen: &&Seen| seen.contestant.role == Some(Role::Ours);
    if let Some(ours) = shown.iter().find(is_ours) {
        let seconds = ours.run.recovered_after().map_or(f64::MAX, |it| it as f64);
        let says = "from the flush until 99 % of the goodput before, for good";
        let figure = Figure::new("recovery_http.seconds", says, seconds, "s", "one run");
        part.figures.push(figure.at_most(bound.ceil()));
    }
    part
}
