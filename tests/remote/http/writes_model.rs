//! Writes, reads and keys at random moments in several processes, against a model: a version
//! for each URI.
//!
//! A read that begins in a process after a write has returned there gets what was written, or
//! what was written later. While every message arrives, the same holds in every process, once
//! the messages have had time to arrive.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::request::Parts;
use http::{Request, Response};
use proptest::prelude::*;
use tokio::task::JoinSet;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_stampede::remote::{Double, DoubleProcess, RemoteSettings};
use tower_stampede::{HttpStampede, Stampede};

use crate::kit::cases::cases;
use crate::kit::http::{ms, pass, secs};

const URIS: usize = 2;
const PROCESSES: usize = 3;

/// How long a message to all processes may take.
const MESSAGE: u64 = 20;

struct World {
    double: Double,
    processes: Vec<(Arc<DoubleProcess>, HttpStampede)>,
    versions: [AtomicU64; URIS],
    /// The oldest version that a read which begins in a process may get.
    floors: [[AtomicU64; URIS]; PROCESSES],
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A read by a process; which of several keys, which variant, how long the origin works
    /// before and after it reads its data.
    Read(usize, usize, u8, u8, u64, u64),
    /// A write by a process.
    Write(usize, usize),
    /// A process hears nothing for a while.
    Deaf(usize, u64),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (process, uri, time) = (0..PROCESSES, 0..URIS, prop_oneof![Just(0), 1..60_u64]);
    let read = (process.clone(), uri.clone(), 0..3_u8, 0..3_u8, time.clone(), time.clone());
    let step = prop_oneof![
        6 => read.prop_map(|(a, b, c, d, e, f)| Step::Read(a, b, c, d, e, f)),
        2 => (process.clone(), uri).prop_map(|(a, b)| Step::Write(a, b)),
        1 => (process, 1..200_u64).prop_map(|(a, b)| Step::Deaf(a, b)),
        4 => time.prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..60)
}

fn number(parts: &Parts, name: &str) -> u64 {
    let value = parts.headers.get(name).and_then(|value| value.to_str().ok()?.parse().ok());
    value.unwrap_or_default()
}

impl World {
    fn new() -> Arc<Self> {
        let double = Double::new();
        let processes = (0..PROCESSES).map(|_| {
            let process = double.process();
            let remote = Arc::clone(&process);
            let cache = Stampede::builder("web").origin_only();
            (process, cache.remote(remote, RemoteSettings::new()).build().unwrap())
        });
        let (processes, versions, floors) =
            (processes.collect(), Default::default(), Default::default());
        Arc::new(Self { double, processes, versions, floors })
    }

    /// Sends a request to a process, and returns the version in the response.
    async fn send(self: &Arc<Self>, process: usize, uri: usize, request: Request<Body>) -> u64 {
        let world = Arc::clone(self);
        let origin = service_fn(move |request: Request<Body>| {
            let world = Arc::clone(&world);
            async move {
                let (parts, _) = request.into_parts();
                let version = &world.versions[uri];
                if parts.method == http::Method::POST {
                    let response = Response::new(Body::empty());
                    version.fetch_add(1, Ordering::SeqCst);
                    return Ok::<_, Infallible>(response);
                }
                pass(ms(number(&parts, "x-before"))).await;
                let text = version.load(Ordering::SeqCst).to_string();
                pass(ms(number(&parts, "x-after"))).await;
                let response = Response::builder().header("cache-control", "max-age=3600");
                // Some of the keys vary.
                let vary = if number(&parts, "x-key") == 2 { "x-none" } else { "x-variant" };
                Ok(response.header("vary", vary).body(Body::from(text)).unwrap())
            }
        });
        let by_key = |parts: &Parts| match number(parts, "x-key") {
            0 => None,
            key => Some(key),
        };
        let cache = &self.processes[process].1;
        // Without a key it is a layer of its own, where the primary key says the URI alone.
        let layer = match number(&request_parts(&request), "x-key") {
            0 => cache.http_layer(),
            _ => cache.http_layer().key(by_key),
        };
        let response = layer.layer(origin).oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(Body::new(response.into_body()), 99).await.unwrap();
        std::str::from_utf8(&body).unwrap().parse().unwrap_or_default()
    }

    async fn read(self: Arc<Self>, step: Step) {
        let Step::Read(process, uri, key, variant, before, after) = step else { return };
        let floor = self.floors[process][uri].load(Ordering::SeqCst);
        let fields = [
            ("x-key", u64::from(key)),
            ("x-variant", variant.into()),
            ("x-before", before),
            ("x-after", after),
        ];
        let request = fields
            .into_iter()
            .fold(Request::get(format!("http://x/{uri}")), |request, (name, value)| {
                request.header(name, value)
            });
        let request = request.body(Body::empty()).unwrap();
        let found = self.send(process, uri, request).await;
        assert!(found >= floor, "{step:?}: {found} is older than {floor}");
    }

    async fn write(self: Arc<Self>, process: usize, uri: usize) {
        let request = Request::post(format!("http://x/{uri}")).body(Body::empty()).unwrap();
        let version = self.versions[uri].load(Ordering::SeqCst);
        self.send(process, uri, request).await;
        self.floors[process][uri].fetch_max(version + 1, Ordering::SeqCst);
        pass(ms(MESSAGE)).await;
        for (other, (remote, _)) in self.processes.iter().enumerate() {
            // One that hears nothing drops its copies when it hears again.
            if remote_is_listening(remote) {
                self.floors[other][uri].fetch_max(version + 1, Ordering::SeqCst);
            }
        }
    }
}

fn request_parts(request: &Request<Body>) -> Parts {
    let mut copy = Request::new(());
    copy.headers_mut().clone_from(request.headers());
    copy.into_parts().0
}

fn remote_is_listening(remote: &Arc<DoubleProcess>) -> bool {
    tower_stampede::remote::RemotePush::is_subscribed(&**remote)
}

async fn run(steps: Vec<Step>) {
    let world = World::new();
    world.double.delay_commands(ms(1));
    let mut tasks = JoinSet::new();
    for step in steps {
        let world = Arc::clone(&world);
        match step {
            Step::Read(..) => drop(tasks.spawn(world.read(step))),
            Step::Write(process, uri) => drop(tasks.spawn(world.write(process, uri))),
            Step::Deaf(process, time) => {
                let remote = Arc::clone(&world.processes[process].0);
                tasks.spawn(async move {
                    remote.unsubscribe();
                    pass(ms(time)).await;
                    remote.subscribe();
                });
            }
            Step::Pass(time) => pass(ms(time)).await,
        }
        while let Some(done) = tasks.try_join_next() {
            done.unwrap();
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // In the end everything that any process serves is the last version.
    pass(secs(2)).await;
    for process in 0..PROCESSES {
        for uri in 0..URIS {
            for key in 0..3 {
                for variant in 0..3 {
                    let floor = world.versions[uri].load(Ordering::SeqCst);
                    world.floors[process][uri].fetch_max(floor, Ordering::SeqCst);
                    let read = Step::Read(process, uri, key, variant, 0, 0);
                    Arc::clone(&world).read(read).await;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases("WRITES_MODEL_CASES", 60)))]

    #[test]
    fn no_read_after_a_write_gets_what_was_there_before_it(steps in steps()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run(steps));
    }
}
