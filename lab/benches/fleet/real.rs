//! Small scenes, run for real and in the simulation: the counts must be equal.
//!
//! The processes are caches that share nothing but a real `redis-server`, each
//! with connections of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tower_stampede::{Health, Redis, Stampede};

use crate::bench::{Bench, number, table, text};
use crate::plan::{Arrivals, Fault, LEASE, Plan, Strategy};
use crate::queue::{MILLISECOND, Moment, SECOND, seconds};
use crate::redis::Commands;
use crate::redis_support::{Server, eventually};
use crate::report::Cell;
use crate::world::run;

type Cache = Stampede<Vec<u8>>;

const ORIGIN: Moment = 300 * MILLISECOND;
const LIFETIME: Moment = 2 * SECOND;

/// After this no process has anything left to send.
const QUIET: Duration = Duration::from_millis(300);

struct Scene {
    id: &'static str,
    says: &'static str,
    processes: u32,
    callers: u32,
    /// When all ask.
    waves: Vec<Moment>,
    /// How long a lock stands there that a dead process has left.
    dead_lock: Option<Moment>,
}

/// What both of them count.
#[derive(Debug, Default)]
struct Counted {
    calls: u64,
    commands: Commands,
    /// Until the last answer of the first wave.
    first_wave: f64,
}

fn scenes() -> [Scene; 5] {
    let scene = |id, says, processes, callers| Scene {
        id,
        says,
        processes,
        callers,
        waves: vec![MILLISECOND],
        dead_lock: None,
    };
    [
        scene("alone", "1 process, 50 requests", 1, 50),
        scene("cold", "4 processes, 25 requests each", 4, 25),
        scene("published", "5 processes, 200 requests each", 5, 200),
        Scene {
            // In the life of the first value, after its end, in the life of
            // the second.
            waves: [1, 1000, 2600, 3500].map(|at| at * MILLISECOND).to_vec(),
            ..scene("expiry", "4 processes, 10 requests each, 4 times, over an expiry", 4, 10)
        },
        Scene {
            dead_lock: Some(600 * MILLISECOND),
            ..scene("dead_lock", "4 processes behind the lock of a dead one", 4, 10)
        },
    ]
}

/// Whether the scenes can be run for real.
fn has_server() -> bool {
    let mut command = std::process::Command::new("redis-server");
    command.arg("--version").output().is_ok_and(|output| output.status.success())
}

pub(crate) fn show(bench: &mut Bench) {
    if !has_server() {
        let note = "redis-server is not installed: the small cases were NOT checked against real \
                    runs.";
        return bench.part.notes.push(note.into());
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let mut rows = Vec::new();
    for scene in scenes() {
        let (version, real) = runtime.block_on(play(&scene));
        bench.part.versions = vec![("redis-server".into(), version)];
        rows.extend(compare(bench, &scene, &real, &simulate(bench, &scene)));
    }
    let columns = ["scene", "what", "real", "simulated"];
    let caption = "The same scene for real, with caches of the product on a redis-server, and in \
                   the simulation. Commands are counted by INFO commandstats, those that scripts \
                   call included.";
    bench.exhibit("check", "Small cases beside real runs", caption, table(&columns, rows));
}

fn compare(
    bench: &mut Bench,
    scene: &Scene,
    real: &Counted,
    simulated: &Counted,
) -> Vec<Vec<Cell>> {
    let counts = |counted: &Counted| {
        let Commands { get, set, script, publish } = counted.commands;
        [
            ("origin calls", counted.calls),
            ("GET", get),
            ("SET", set),
            ("scripts", script),
            ("PUBLISH", publish),
        ]
    };
    let mut rows = Vec::new();
    for ((what, real), (_, simulated)) in counts(real).into_iter().zip(counts(simulated)) {
        let id = format!("check.{}.{}", scene.id, what.replace(' ', "_").to_lowercase());
        let says = format!("{what}, simulated less real (real: {real}): {}", scene.says);
        bench.must(&id, &says, simulated as f64 - real as f64, "", 0.0, 0.0);
        rows.push(vec![
            text(scene.says),
            text(what),
            number(real as f64),
            number(simulated as f64),
        ]);
    }
    let ratio = real.first_wave / simulated.first_wave;
    let says = format!("time until all have the first value, real to simulated: {}", scene.says);
    bench.goal(&format!("check.{}.time", scene.id), &says, ratio, "", 1.2);
    let times = [real.first_wave, simulated.first_wave].map(|seconds| number(seconds * 1e3));
    let [real, simulated] = times;
    rows.push(vec![text(scene.says), text("first wave, ms"), real, simulated]);
    rows
}

fn simulate(bench: &Bench, scene: &Scene) -> Counted {
    let mut plan = Plan::new(Strategy::Ours, &bench.costs, bench.seed);
    plan.processes = scene.processes;
    plan.arrivals = Arrivals::Waves(scene.waves.clone(), scene.callers);
    plan.ttl = Duration::from_nanos(LIFETIME);
    plan.jitter = 0.0;
    plan.origin = ORIGIN;
    plan.op_timeout = SECOND;
    let lock = scene.dead_lock.map(|lasts| Fault::DeadLock { key: 0, lasts });
    plan.faults.extend(lock);
    let all = run(&plan);
    plan.until = scene.waves.get(1).copied().unwrap_or(plan.until);
    let first_wave = seconds(run(&plan).longest_wait);
    Counted { calls: all.calls() as u64, commands: all.commands, first_wave }
}

/// Runs a scene for real.
async fn play(scene: &Scene) -> (String, Counted) {
    let server = Server::start();
    let mut caches = Vec::new();
    for _ in 0..scene.processes {
        caches.push(process(&server).await);
    }
    eventually("all listen", || caches.iter().all(|cache| cache.health() == Health::Up)).await;
    tokio::time::sleep(QUIET).await;
    let begin = Instant::now();
    if let Some(lasts) = scene.dead_lock {
        leave_lock(&server, lasts);
    }
    server.cli(&["CONFIG", "RESETSTAT"]);
    let calls = Arc::new(AtomicU64::new(0));
    let mut first_wave = None;
    for at in &scene.waves {
        tokio::time::sleep_until((begin + Duration::from_nanos(*at)).into()).await;
        let from = Instant::now();
        wave(&caches, scene.callers, &calls).await;
        first_wave.get_or_insert(from.elapsed().as_secs_f64());
    }
    tokio::time::sleep(QUIET).await;
    let version = server.cli(&["INFO", "server"]).field("redis_version").unwrap_or_default();
    let commands = executed(&server);
    let calls = calls.load(Ordering::Relaxed);
    (version, Counted { calls, commands, first_wave: first_wave.unwrap_or_default() })
}

async fn process(server: &Server) -> Cache {
    let redis = Redis::lazy(&server.url()).expect("a good address").namespace("stampede");
    let builder = Stampede::builder("fleet").ttl(Duration::from_nanos(LIFETIME)).jitter(0.0);
    let builder = builder.lease(Duration::from_nanos(LEASE));
    let cache = builder.redis(redis.op_timeout(Duration::from_secs(1))).build();
    let cache: Cache = cache.expect("good settings");
    // The first look connects, loads the scripts and begins to listen.
    assert!(cache.get("nothing is here").await.is_none(), "the server is empty");
    cache
}

fn leave_lock(server: &Server, lasts: Moment) {
    let lasts = (lasts / MILLISECOND).to_string();
    let set = server.cli(&["SET", "stampede:2:fleet:{key}:l", "dead", "NX", "PX", &lasts]);
    assert!(!set.is_error(), "the lock is free");
}

/// All clients of all processes ask at once.
async fn wave(caches: &[Cache], callers: u32, calls: &Arc<AtomicU64>) {
    let mut asking = tokio::task::JoinSet::new();
    for cache in caches {
        for _ in 0..callers {
            let (cache, calls) = (cache.clone(), Arc::clone(calls));
            asking.spawn(async move {
                let compute = move || async move {
                    calls.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_nanos(ORIGIN)).await;
                    Ok::<_, std::io::Error>(vec![7; 1024])
                };
                cache.get_or_compute("key", compute).await.expect("nothing fails").len()
            });
        }
    }
    assert!(asking.join_all().await.iter().all(|length| *length == 1024), "all have the value");
}

fn executed(server: &Server) -> Commands {
    let stats = server.cli(&["INFO", "commandstats"]);
    let count = |name: &str| {
        let line = stats.field(&format!("cmdstat_{name}"));
        let calls =
            line.and_then(|line| line.strip_prefix("calls=")?.split(',').next()?.parse().ok());
        calls.unwrap_or_default()
    };
    Commands {
        get: count("get"),
        set: count("set"),
        // A process sends a script in full until the server knows it.
        script: count("eval") + count("evalsha"),
        publish: count("publish"),
    }
}
