//! Many processes at random moments, against a model: a database of versions,
//! and for each process and key the oldest version that a caller there may get
//! now.
//!
//! A read that begins in a process after an `invalidate` or `put` has returned
//! there sees what was written before it, whatever happens to the remote. While
//! nothing happens to it, this holds in every process, and each key is computed
//! once for each time it was invalidated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tokio::task::JoinSet;
use tower_stampede::remote::{Double, DoubleProcess, RemoteErrorKind, RemoteOp, RemoteSettings};
use tower_stampede::{Computed, Key, Stampede};

use crate::kit::origin::*;
use crate::kit::spawn;

const KEYS: usize = 3;
const PROCESSES: usize = 3;

/// The longest way of a command to the remote, or back, that a healthy remote has. To read
/// its tags a process asks it three times, in the 100 ms that one operation may take; with a
/// longer way, a caller would compute by itself meanwhile.
const LONGEST_WAY: u32 = 15;

/// These keys carry the tag `t`.
const TAGGED: usize = 2;

struct World {
    double: Double,
    processes: Vec<(Arc<DoubleProcess>, Stampede<u64>)>,
    versions: [AtomicU64; KEYS],
    floors: [[AtomicU64; KEYS]; PROCESSES],
    calls: [AtomicUsize; KEYS],
    /// Whether a write is known in every process when it returns.
    healthy: bool,
}

impl World {
    fn new(healthy: bool) -> Arc<Self> {
        let double = Double::new();
        let processes = (0..PROCESSES).map(|_| {
            let process = double.process();
            let remote = Arc::clone(&process);
            let cache = settings().remote(remote, RemoteSettings::new()).build().unwrap();
            (process, cache)
        });
        let processes = processes.collect();
        Arc::new(Self {
            double,
            processes,
            versions: Default::default(),
            floors: Default::default(),
            calls: Default::default(),
            healthy,
        })
    }

    fn cache(&self, process: usize) -> &Stampede<u64> {
        &self.processes[process].1
    }

    async fn ask(self: Arc<Self>, process: usize, key: usize, work: Work) {
        let floor = self.floors[process][key].load(Ordering::SeqCst);
        let world = Arc::clone(&self);
        let compute = move || async move {
            world.calls[key].fetch_add(1, Ordering::SeqCst);
            pass(work.before * MS).await;
            let version = world.versions[key].load(Ordering::SeqCst);
            pass(work.after * MS).await;
            let computed = Computed::new(version);
            let tagged = if key < TAGGED { computed.tag("t") } else { computed };
            Ok::<_, OriginError>(tagged)
        };
        let answer = self.cache(process).get_or_compute_with(key as u64, compute);
        let answer = tokio::time::timeout(MINUTE, answer).await.expect("no caller hangs").unwrap();
        Self::check(process, key, floor, answer);
    }

    async fn look(self: Arc<Self>, process: usize, key: usize) {
        let floor = self.floors[process][key].load(Ordering::SeqCst);
        if let Some(answer) = self.cache(process).get(key as u64).await {
            Self::check(process, key, floor, answer);
        }
    }

    fn check(process: usize, key: usize, floor: u64, answer: u64) {
        assert!(answer >= floor, "process {process} got {answer} of key {key}, not {floor}");
    }

    async fn write(self: Arc<Self>, process: usize, what: What) {
        let cache = self.cache(process);
        let keys = what.keys();
        let written: Vec<_> =
            keys.map(|key| (key, self.versions[key].fetch_add(1, Ordering::SeqCst) + 1)).collect();
        match what {
            What::Key(key) => drop(cache.invalidate(key as u64).await),
            What::Tag => drop(cache.invalidate_tag("t").await),
            What::All => drop(cache.invalidate_all().await),
        }
        let aware = if self.healthy { 0..PROCESSES } else { process..process + 1 };
        for process in aware {
            for (key, version) in &written {
                self.floors[process][*key].fetch_max(*version, Ordering::SeqCst);
            }
        }
    }

    fn befall(&self, fault: Fault) {
        let double = &self.double;
        match fault {
            Fault::Freeze => double.freeze(),
            Fault::Thaw => double.thaw(),
            Fault::Refuse(op) => double.fail(&[op], RemoteErrorKind::Connection),
            Fault::RefuseAll => double.fail(RemoteOp::ALL, RemoteErrorKind::Connection),
            Fault::Mute(op) => double.lose_replies(&[op]),
            Fault::Garble(op) => double.break_replies(&[op], RemoteErrorKind::Protocol),
            Fault::Heal => self.heal(),
            Fault::Flush => double.flush(),
            Fault::Damage(key) => double.set_raw(&Key::from(key as u64), &b"garbage"[..]),
            Fault::LoseMessages(lose) => double.lose_messages(lose),
            Fault::Full(full) => double.out_of_memory(full),
            Fault::Unsubscribe(process) => self.processes[process].0.unsubscribe(),
            Fault::Subscribe(process) => self.processes[process].0.subscribe(),
        }
    }

    fn heal(&self) {
        self.double.thaw();
        self.double.heal(RemoteOp::ALL);
        self.double.lose_messages(false);
        self.double.out_of_memory(false);
        for (process, _) in &self.processes {
            process.subscribe();
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Work {
    /// Milliseconds before and after the database is read.
    before: u32,
    after: u32,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Key(usize),
    Tag,
    All,
}

impl What {
    fn keys(self) -> std::ops::Range<usize> {
        match self {
            Self::Key(key) => key..key + 1,
            Self::Tag => 0..TAGGED,
            Self::All => 0..KEYS,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Freeze,
    Thaw,
    Refuse(RemoteOp),
    RefuseAll,
    Mute(RemoteOp),
    Garble(RemoteOp),
    Heal,
    Flush,
    Damage(usize),
    LoseMessages(bool),
    Full(bool),
    Unsubscribe(usize),
    Subscribe(usize),
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Ask(usize, usize, Work),
    Look(usize, usize),
    Write(usize, What),
    /// The oldest caller still waiting goes away.
    HangUp,
    Delay(u32),
    DelayCommands(u32),
    Pass(u32),
    Befall(Fault),
}

impl Op {
    fn on_a_healthy_way(self) -> Self {
        match self {
            Self::Delay(delay) => Self::Delay(delay.min(LONGEST_WAY)),
            Self::DelayCommands(delay) => Self::DelayCommands(delay.min(LONGEST_WAY)),
            other => other,
        }
    }
}

fn work() -> impl Strategy<Value = Work> {
    (0..30_u32, 0..30_u32).prop_map(|(before, after)| Work { before, after })
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![4 => (0..KEYS).prop_map(What::Key), 2 => Just(What::Tag), 1 => Just(What::All)]
}

fn remote_op() -> impl Strategy<Value = RemoteOp> {
    prop::sample::select(RemoteOp::ALL)
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        1 => Just(Fault::Freeze),
        2 => Just(Fault::Thaw),
        2 => remote_op().prop_map(Fault::Refuse),
        1 => Just(Fault::RefuseAll),
        2 => remote_op().prop_map(Fault::Mute),
        2 => remote_op().prop_map(Fault::Garble),
        4 => Just(Fault::Heal),
        1 => Just(Fault::Flush),
        1 => (0..KEYS).prop_map(Fault::Damage),
        1 => prop::bool::ANY.prop_map(Fault::LoseMessages),
        1 => prop::bool::ANY.prop_map(Fault::Full),
        1 => (0..PROCESSES).prop_map(Fault::Unsubscribe),
        1 => (0..PROCESSES).prop_map(Fault::Subscribe),
    ]
}

fn healthy_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..PROCESSES, 0..KEYS, work()).prop_map(|(p, k, work)| Op::Ask(p, k, work)),
        2 => (0..PROCESSES, 0..KEYS).prop_map(|(p, k)| Op::Look(p, k)),
        2 => (0..PROCESSES, what()).prop_map(|(p, what)| Op::Write(p, what)),
        1 => Just(Op::HangUp),
        1 => (0..20_u32).prop_map(Op::Delay),
        1 => (0..20_u32).prop_map(Op::DelayCommands),
        6 => (0..40_u32).prop_map(Op::Pass),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => healthy_op(),
        2 => fault().prop_map(Op::Befall),
        1 => (0..3000_u32).prop_map(Op::Pass),
    ]
}

async fn run(world: &Arc<World>, ops: Vec<Op>) {
    let mut callers = JoinSet::new();
    let mut asking = std::collections::VecDeque::new();
    for op in ops {
        let world = Arc::clone(world);
        match op {
            Op::Ask(process, key, work) => {
                asking.push_back(callers.spawn(world.ask(process, key, work)));
            }
            Op::Look(process, key) => drop(callers.spawn(world.look(process, key))),
            Op::Write(process, what) => drop(callers.spawn(world.write(process, what))),
            Op::HangUp => {
                if let Some(caller) = asking.pop_front() {
                    caller.abort();
                }
            }
            Op::Delay(delay) => world.double.delay(delay * MS),
            Op::DelayCommands(delay) => world.double.delay_commands(delay * MS),
            Op::Pass(time) => tokio::time::sleep(time * MS).await,
            Op::Befall(fault) => world.befall(fault),
        }
        tokio::task::yield_now().await;
    }
    while let Some(ended) = callers.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

fn in_paused_time(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(test);
}

/// Waits until every process asks the remote again.
async fn healed(world: &World) {
    world.heal();
    world.double.delay(Duration::ZERO);
    world.double.delay_commands(Duration::ZERO);
    tokio::time::sleep(30 * SECOND).await;
}

proptest! {
    #[test]
    fn whatever_befalls_the_remote_no_process_serves_what_it_has_invalidated(
        ops in prop::collection::vec(any_op(), 1..60),
    ) {
        in_paused_time(async move {
            let world = World::new(false);
            run(&world, ops).await;
            healed(&world).await;
            for key in 0..KEYS {
                let before = world.calls[key].load(Ordering::SeqCst);
                world.double.flush();
                for process in 0..PROCESSES {
                    world.cache(process).invalidate(key as u64).await;
                }
                let work = Work { before: 1, after: 10 };
                let asked = (0..PROCESSES).map(|process| {
                    spawn(Arc::clone(&world).ask(process, key, work))
                });
                for asked in asked.collect::<Vec<_>>() {
                    asked.await.unwrap();
                }
                let calls = world.calls[key].load(Ordering::SeqCst) - before;
                assert_eq!(calls, 1, "healed, all processes compute once");
            }
        });
    }

    #[test]
    fn with_a_healthy_remote_each_key_is_computed_once_for_each_invalidation(
        ops in prop::collection::vec(healthy_op(), 1..60),
    ) {
        in_paused_time(async move {
            let world = World::new(true);
            let ops: Vec<_> = ops.into_iter().map(Op::on_a_healthy_way).collect();
            let writes = |key: usize| {
                let concerns = |op: &Op| match op {
                    Op::Write(_, what) => what.keys().contains(&key),
                    _ => false,
                };
                ops.iter().filter(|op| concerns(op)).count()
            };
            // Twice: a computation that starts in the millisecond of its tag's
            // invalidation, or while a key's is under way, is made once more.
            let bounds: Vec<_> = (0..KEYS).map(|key| 1 + 2 * writes(key)).collect();
            run(&world, ops).await;
            for (key, bound) in bounds.into_iter().enumerate() {
                let calls = world.calls[key].load(Ordering::SeqCst);
                assert!(calls <= bound, "key {key}: {calls} computations, not {bound}");
            }
        });
    }
}

#[test]
fn a_value_is_taken_from_the_remote_though_a_message_overtakes_a_read_of_the_log() {
    in_paused_time(async move {
        let world = World::new(true);
        let at_once = Work { before: 0, after: 0 };
        let ops = vec![
            Op::DelayCommands(8),
            Op::Ask(1, 2, at_once),
            Op::Pass(16),
            Op::Delay(8),
            Op::Write(0, What::Key(0)),
            Op::Pass(16),
            Op::Write(1, What::Tag),
            Op::Ask(0, 2, at_once),
            Op::Pass(16),
            Op::Write(1, What::Tag),
            Op::Write(1, What::Key(0)),
            Op::HangUp,
            Op::Ask(0, 0, at_once),
        ];
        run(&world, ops).await;
        assert_eq!(world.calls[2].load(Ordering::SeqCst), 1, "nothing has ended it");
    });
}

#[test]
fn what_a_process_computes_right_after_its_first_announcement_is_of_use_to_the_others() {
    in_paused_time(async move {
        let world = World::new(true);
        let at_once = Work { before: 0, after: 0 };
        let ops = vec![
            Op::Ask(0, 1, at_once),
            Op::Delay(7),
            Op::Ask(1, 1, at_once),
            Op::Pass(7),
            Op::Write(1, What::All),
            Op::HangUp,
            Op::HangUp,
            Op::Pass(0),
            Op::Ask(1, 1, at_once),
            Op::Ask(2, 1, at_once),
        ];
        run(&world, ops).await;
        // One before the announcement, one while it was under way, and one for all.
        assert_eq!(world.calls[1].load(Ordering::SeqCst), 3);
    });
}
