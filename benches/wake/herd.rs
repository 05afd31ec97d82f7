//! Real processes: many with many callers each that ask for one cold key, and two that do nothing
//! else, beside bare clients that are told by a plain message and then send `GET`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tower_stampede::{Health, Redis, Stampede};

use crate::redis_support::{Resp, Server, eventually, wait_until};

pub(crate) const PROCESSES: usize = 64;
pub(crate) const CALLERS: usize = 200;
/// Of a herd takes half a second.
const HERDS: usize = 9;
const PAIRS: usize = 300;
/// How long a computation takes: longer than all need to register.
const WORK_OF_A_HERD: Duration = Duration::from_millis(700);
const WORK_OF_A_PAIR: Duration = Duration::from_millis(10);
const VALUE_BYTES: usize = 1024;

/// What the rounds have shown.
pub(crate) struct Herds {
    /// The most computations that one round took.
    pub(crate) computations: u64,
    /// The most commands that a process sent that waited, on the mean of its round.
    pub(crate) commands: f64,
    /// From the end of the computation to the last caller, and to the last bare client.
    pub(crate) last: Vec<Duration>,
    pub(crate) bare_last: Vec<Duration>,
    /// The same with one waiting process.
    pub(crate) pair: Vec<Duration>,
    pub(crate) bare_pair: Vec<Duration>,
}

/// Measures in turn, so that a drift of the machine's speed hits all alike.
pub(crate) fn herds(server: &Server) -> Herds {
    let mut own: Vec<_> = (0..PROCESSES).map(|_| Program::start("--caller", server)).collect();
    let mut bare: Vec<_> = (0..PROCESSES).map(|_| Program::start("--bare", server)).collect();
    own.iter_mut().chain(&mut bare).for_each(|process| assert_eq!(process.line(), "ready"));
    let mut found = Herds {
        computations: 0,
        commands: 0.0,
        last: Vec::new(),
        bare_last: Vec::new(),
        pair: Vec::new(),
        bare_pair: Vec::new(),
    };
    for round in 0..=HERDS {
        let asked = round_of(&mut own, &format!("herd-{round}"), CALLERS, WORK_OF_A_HERD);
        let told = bare_round(server, &mut bare, &format!("bare-{round}"));
        // What is done for the first time takes longer.
        if round == 0 {
            continue;
        }
        found.computations = found.computations.max(asked.computations);
        found.commands = found.commands.max(asked.commands);
        found.last.push(asked.last);
        found.bare_last.push(told);
    }
    for round in 0..=PAIRS {
        let asked = round_of(&mut own[..2], &format!("pair-{round}"), 1, WORK_OF_A_PAIR);
        let told = bare_round(server, &mut bare[..1], &format!("bare-pair-{round}"));
        if round > 0 {
            assert_eq!(asked.computations, 1);
            found.pair.push(asked.last);
            found.bare_pair.push(told);
        }
    }
    found
}

struct Round {
    computations: u64,
    commands: f64,
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
    let commands: u64 = waited.iter().map(|line| line[3]).sum();
    Round {
        computations: lines.iter().map(|line| line[0]).sum(),
        commands: commands as f64 / waited.len() as f64,
        last: Duration::from_micros(last.saturating_sub(ended)),
    }
}

fn bare_round(server: &Server, processes: &mut [Program], key: &str) -> Duration {
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
    // In one step, as a fill is.
    let script = "redis.call('set', KEYS[1], ARGV[1]) redis.call('publish', KEYS[1], '')";
    writer.call(&["EVAL", script, "1", key, &value]).unwrap();
    let last = processes.iter_mut().map(|process| process.numbers()[0]).max();
    Duration::from_micros(last.expect("there is one").saturating_sub(filled))
}

/// Microseconds that all processes of a machine count alike.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_micros().try_into().expect("for a long time yet")
}

/// A process that is told what to do line by line, and ends with its input.
struct Program {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(role: &str, server: &Server) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program)
            .args([role, &server.url(), &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
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
    let redis = Redis::lazy(url).unwrap();
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
        let ended = Arc::new(Mutex::new(0));
        let asked: Vec<_> = (0..callers)
            .map(|_| {
                let (cache, key, ended) = (cache.clone(), key.to_owned(), Arc::clone(&ended));
                tokio::spawn(async move {
                    let compute = move || async move {
                        tokio::time::sleep(Duration::from_millis(work)).await;
                        *ended.lock() = now();
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
        let stats = cache.stats();
        let computed = stats.computations - before.computations;
        let commands = stats.remote_calls - before.remote_calls;
        println!("{computed} {} {last} {commands}", *ended.lock());
    }
    ExitCode::SUCCESS
}

/// A bare client: for each line it subscribes to the channel of this name, and answers when it
/// has read the key of this name.
pub(crate) fn listen_as_told(port: &str) -> ExitCode {
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
