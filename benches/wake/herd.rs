//! Real processes: many with many callers each that ask for one cold key, and two that do nothing
//! else. Beside them bare clients: one stores and publishes in one step, the others hear the
//! message and send `GET`; with the client library that the crate uses, and with blocking sockets.

use std::io::{BufRead as _, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tower_stampede::{Health, Redis, Stampede};

use crate::redis_support::{Resp, Server, eventually, wait_until};
use crate::report::Profile;

pub(crate) const PROCESSES: usize = 64;
pub(crate) const CALLERS: usize = 200;
/// Of a herd takes half a second.
const HERDS: usize = 9;
/// How long a computation takes: longer than all need to register.
const WORK_OF_A_HERD: Duration = Duration::from_millis(350);
const WORK_OF_A_PAIR: Duration = Duration::from_millis(10);
const VALUE_BYTES: usize = 1024;

/// What the rounds have shown.
pub(crate) struct Herds {
    /// The most computations that one round took.
    pub(crate) computations: u64,
    /// The commands that a process sent that waited: of each process those of the round in which
    /// it sent the fewest, for it sends a heartbeat every second as well; of all the most.
    pub(crate) commands: u64,
    pub(crate) herd: Latenesses,
    pub(crate) pair: Latenesses,
}

/// From the end of the computation to the value with the last one, round by round.
#[derive(Default)]
pub(crate) struct Latenesses {
    pub(crate) own: Vec<Duration>,
    pub(crate) library: Vec<Duration>,
    pub(crate) sockets: Vec<Duration>,
}

/// Measures in turn, so that a drift of the machine's speed hits all alike.
pub(crate) fn herds(server: &Server, profile: Profile) -> Herds {
    let start = |role, channel, number| {
        (0..number).map(|_| Program::start(role, channel, server)).collect::<Vec<_>>()
    };
    let mut own = start("--caller", "", PROCESSES);
    let mut sockets = start("--sockets", "", PROCESSES);
    let mut library = start("--library", "herd", PROCESSES);
    let mut two = start("--library", "pair", 2);
    for process in own.iter_mut().chain(&mut sockets).chain(&mut library).chain(&mut two) {
        assert_eq!(process.line(), "ready");
    }
    let (mut herd, mut pair) = (Latenesses::default(), Latenesses::default());
    let (mut computations, mut commands) = (0, [u64::MAX; PROCESSES]);
    for round in 0..=HERDS {
        let asked = round_of(&mut own, &format!("herd-{round}"), CALLERS, WORK_OF_A_HERD);
        let library = library_round(&mut library, &format!("library-{round}"));
        let sockets = socket_round(server, &mut sockets, &format!("sockets-{round}"));
        // What is done for the first time takes longer.
        if round > 0 {
            computations = computations.max(asked.computations);
            for (fewest, sent) in commands.iter_mut().zip(asked.commands) {
                *fewest = sent.unwrap_or(u64::MAX).min(*fewest);
            }
            herd.add(asked.last, library, sockets);
        }
    }
    for round in 0..=profile.pick(100, 300) {
        let asked = round_of(&mut own[..2], &format!("pair-{round}"), 1, WORK_OF_A_PAIR);
        let library = library_round(&mut two, &format!("library-pair-{round}"));
        let sockets = socket_round(server, &mut sockets[..1], &format!("sockets-pair-{round}"));
        if round > 0 {
            computations = computations.max(asked.computations);
            pair.add(asked.last, library, sockets);
        }
    }
    let commands = commands.into_iter().max().expect("there are some");
    Herds { computations, commands, herd, pair }
}

impl Latenesses {
    fn add(&mut self, own: Duration, library: Duration, sockets: Duration) {
        self.own.push(own);
        self.library.push(library);
        self.sockets.push(sockets);
    }
}

struct Round {
    computations: u64,
    /// Of each process that waited.
    commands: Vec<Option<u64>>,
    last: Duration,
}

fn round_of(processes: &mut [Program], key: &str, callers: usize, work: Duration) -> Round {
    for process in &mut *processes {
        process.tell(&format!("{key} {callers} {}", work.as_millis()));
    }
    let lines: Vec<Vec<u64>> = processes.iter_mut().map(Program::numbers).collect();
    let ended = lines.iter().map(|line| line[1]).max().expect("one has computed");
    let waited: Vec<_> = lines.iter().filter(|line| line[0] == 0).collect();
    let last = waited.iter().map(|line| line[2]).max().expect("all others have waited");
    Round {
        computations: lines.iter().map(|line| line[0]).sum(),
        commands: lines.iter().map(|line| (line[0] == 0).then_some(line[3])).collect(),
        last: Duration::from_micros(last.saturating_sub(ended)),
    }
}

/// The first one stores and publishes after a computation of nothing.
fn library_round(processes: &mut [Program], key: &str) -> Duration {
    let (leader, waiting) = processes.split_first_mut().expect("there is one");
    leader.tell(&format!("{key} {}", WORK_OF_A_PAIR.as_millis()));
    let ended = leader.numbers()[0];
    let last = waiting.iter_mut().map(|process| process.numbers()[0]).max();
    // The leader hears it as well.
    leader.line();
    Duration::from_micros(last.expect("there is one").saturating_sub(ended))
}

fn socket_round(server: &Server, processes: &mut [Program], key: &str) -> Duration {
    for process in &mut *processes {
        process.tell(key);
    }
    let listeners = || {
        let reply = server.cli(&["PUBSUB", "NUMSUB", key]);
        reply.parts().get(1).map_or(0, crate::redis_support::Reply::int)
    };
    wait_until("all are subscribed", || listeners() == processes.len() as i64);
    let mut writer = server.connect().unwrap();
    let value = "x".repeat(VALUE_BYTES);
    let filled = now();
    writer.call(&["EVAL", STORE_AND_PUBLISH, "1", key, &value, key]).unwrap();
    let last = processes.iter_mut().map(|process| process.numbers()[0]).max();
    Duration::from_micros(last.expect("there is one").saturating_sub(filled))
}

/// In one step, as a fill is.
const STORE_AND_PUBLISH: &str =
    "redis.call('set', KEYS[1], ARGV[1]) redis.call('publish', ARGV[2], KEYS[1])";

/// Microseconds that all processes of a machine count alike.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_micros().try_into().expect("for a long time yet")
}

/// A process that is told what to do line by line, and ends with its input.
struct Program {
    child: Child,
    input: ChildStdin,
    output: Lines<std::io::BufReader<ChildStdout>>,
}

impl Program {
    fn start(role: &str, channel: &str, server: &Server) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program)
            .args([role, &server.url(), &server.port().to_string(), channel])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, output }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn line(&mut self) -> String {
        self.output.next().expect("the process lives").unwrap()
    }

    fn numbers(&mut self) -> Vec<u64> {
        self.line().split(' ').map(|number| number.parse().unwrap()).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process of the herd: answers each line `key callers milliseconds` with how often it has
/// computed, when that ended, when its last caller had the value, and how many commands it sent.
pub(crate) async fn call_as_told(url: &str) -> ExitCode {
    let redis = Redis::lazy(url).unwrap().namespace("stampede");
    let builder = Stampede::<Vec<u8>>::builder("wake").ttl(Duration::from_secs(600));
    let cache = builder.max_entries(10_000).redis(redis).build().unwrap();
    assert!(cache.get("nothing is here").await.is_none());
    eventually("it listens", || cache.health() == Health::Up).await;
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let [key, callers, work] = line.split(' ').collect::<Vec<_>>()[..] else { break };
        let (callers, work): (usize, u64) = (callers.parse().unwrap(), work.parse().unwrap());
        let before = cache.stats();
        // How often it was computed, and when that ended.
        let computed = Arc::new(Mutex::new((0_u64, 0)));
        let asked: Vec<_> = (0..callers)
            .map(|_| {
                let (cache, key, computed) = (cache.clone(), key.to_owned(), Arc::clone(&computed));
                tokio::spawn(async move {
                    let compute = move || async move {
                        tokio::time::sleep(Duration::from_millis(work)).await;
                        let mut computed = computed.lock();
                        *computed = (computed.0 + 1, now());
                        Ok::<_, std::io::Error>(vec![7; VALUE_BYTES])
                    };
                    let value = cache.get_or_compute(&*key, compute).await.unwrap();
                    assert_eq!(value.len(), VALUE_BYTES);
                    now()
                })
            })
            .collect();
        let mut last = 0;
        for caller in asked {
            last = caller.await.unwrap().max(last);
        }
        let commands = cache.stats().remote_calls - before.remote_calls;
        let (computed, ended) = *computed.lock();
        println!("{computed} {ended} {last} {commands}");
    }
    ExitCode::SUCCESS
}

/// A bare client of the library: hears of keys on `channel`, and answers each with when the last
/// of its callers has it: they wait on a channel of tokio and clone the value, as callers of the
/// cache do. For each line `key milliseconds` it stores that key after so long, and answers when
/// that began.
pub(crate) async fn use_the_library(url: &str, channel: &str) -> ExitCode {
    let callers = if channel == "pair" { 1 } else { CALLERS };
    let client = redis::Client::open(url).unwrap();
    let mut reads = client.get_multiplexed_async_connection().await.unwrap();
    let (mut sink, mut messages) = client.get_async_pubsub().await.unwrap().split();
    sink.subscribe(channel).await.unwrap();
    let mut writes = reads.clone();
    let (read, value) = tokio::sync::watch::channel(Vec::<u8>::new());
    let have_it = Arc::new(AtomicUsize::new(0));
    for _ in 0..callers {
        let (mut value, have_it) = (value.clone(), Arc::clone(&have_it));
        tokio::spawn(async move {
            while value.changed().await.is_ok() {
                let own = value.borrow_and_update().clone();
                let when = now();
                assert_eq!(own.len(), VALUE_BYTES);
                if have_it.fetch_add(1, Ordering::Relaxed) % callers == callers - 1 {
                    println!("{when}");
                }
            }
        });
    }
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            let mut get = redis::cmd("GET");
            let get = get.arg(message.get_payload_bytes());
            read.send_replace(get.query_async(&mut reads).await.unwrap());
        }
    });
    println!("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let (key, work) = line.split_once(' ').unwrap();
        tokio::time::sleep(Duration::from_millis(work.parse().unwrap())).await;
        let ended = now();
        // First: the reader writes to the same output.
        println!("{ended}");
        let mut store = redis::cmd("EVAL");
        store.arg(STORE_AND_PUBLISH).arg(1).arg(key).arg(vec![7_u8; VALUE_BYTES]).arg(channel);
        store.query_async::<()>(&mut writes).await.unwrap();
    }
    ExitCode::SUCCESS
}

/// A bare client with blocking sockets: for each line it subscribes to the channel of this name,
/// and answers when it has read the key of this name.
pub(crate) fn use_sockets(port: &str) -> ExitCode {
    let port = port.parse().unwrap();
    let (mut hears, mut reads) = (Resp::connect(port).unwrap(), Resp::connect(port).unwrap());
    println!("ready");
    for line in std::io::stdin().lines() {
        let key = line.unwrap();
        hears.call(&["SUBSCRIBE", &key]).unwrap();
        hears.read().unwrap();
        let value = reads.call(&["GET", &key]).unwrap();
        let read = now();
        assert_eq!(value.text().len(), VALUE_BYTES);
        hears.call(&["UNSUBSCRIBE", &key]).unwrap();
        println!("{read}");
    }
    ExitCode::SUCCESS
}
