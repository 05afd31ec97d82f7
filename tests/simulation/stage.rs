//! Runs a case: lets the processes, the network and the server go on in turns.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tower_stampede::Key;
use tower_stampede::remote::{Double, Record};

use crate::case::{Case, Fault, KEYS, Op, PROCESSES, What};
use crate::history::{History, VERIFIED_WITHIN, Violation};
use crate::network::{Arrival, Network};
use crate::node::{self, Node};

/// How far the clocks of the processes may be apart, besides those of frozen ones.
const STEP: u64 = 20;
/// The same where no caller waits.
const IDLE_STEP: u64 = 200;

/// Within this time after the last fault all processes must be `Up`.
const UP_WITHIN: u64 = 15_000;

/// Within this time after a log has begun anew it has been told what was invalidated of late: a
/// second, and a heartbeat.
const TOLD_WITHIN: u64 = 2_500;

/// How long callers may go on after the last operation.
const LAST_ANSWERS: u64 = 12_000;

#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) violations: Vec<Violation>,
    pub(crate) history: Vec<String>,
    pub(crate) computations: usize,
}

struct Stage<'a> {
    case: &'a Case,
    history: Arc<History>,
    network: Arc<Network>,
    double: Double,
    /// On it the server has its clock.
    server: Runtime,
    server_now: u64,
    full_until: u64,
    /// Until then something may have to be mended.
    mend_until: u64,
    nodes: Vec<Node>,
    /// Which node has which number.
    of_id: Vec<usize>,
    now: u64,
}

/// Runs a case. The same case is the same history.
pub(crate) fn run(case: &Case, is_written: bool) -> Outcome {
    fastrand::seed(case.seed);
    let history = Arc::new(History::new(is_written));
    let network = Network::new(case.seed, case.way, Arc::clone(&history));
    let server = node::runtime();
    let double = {
        let _entered = server.enter();
        let double = Double::new();
        double.bound_log(case.log_bound, case.log_bound);
        double
    };
    let mut stage = Stage {
        case,
        history: Arc::clone(&history),
        network,
        double,
        server,
        server_now: 0,
        full_until: 0,
        mend_until: 0,
        nodes: Vec::new(),
        of_id: Vec::new(),
        now: 0,
    };
    for slot in 0..PROCESSES {
        let node = stage.start(slot);
        stage.nodes.push(node);
    }
    stage.run();
    drop(stage);
    let (violations, history, computations) = history.take();
    Outcome { violations, history, computations }
}

impl Stage<'_> {
    fn start(&mut self, slot: usize) -> Node {
        let process = self.on_server(|double| double.process());
        let node = Node::start(self.case, &self.network, process, self.now);
        self.of_id.push(slot);
        node
    }

    /// Does something at the server, by its clock.
    fn on_server<T>(&mut self, work: impl FnOnce(&Double) -> T) -> T {
        if self.now > self.server_now {
            let by = Duration::from_millis(self.now - self.server_now);
            self.server.block_on(tokio::time::advance(by));
            self.server_now = self.now;
        }
        let _entered = self.server.enter();
        work(&self.double)
    }

    fn run(&mut self) {
        for Op { pause, what } in &self.case.ops {
            self.pass(*pause);
            self.perform(*what);
        }
        let frozen_until = self.nodes.iter().map(|node| node.frozen_until).max().unwrap_or(0);
        self.pass(frozen_until.saturating_sub(self.now));
        self.network.heal();
        self.history.say(|| "all faults end".to_owned());
        self.full_until = self.now;
        self.mend_until = self.now + 1_000;
        self.recover();
        if !self.case.has_faults {
            self.check_computations();
        }
        self.end_alike();
    }

    fn recover(&mut self) {
        let deadline = self.now + UP_WITHIN;
        while self.now < deadline && !self.nodes.iter().all(Node::is_up) {
            self.pass(IDLE_STEP);
        }
        for node in self.nodes.iter().filter(|node| !node.is_up()) {
            let text = format!("p{} is not", node.id);
            self.history.violate("15 s after the last fault every process is up", text);
        }
        let deadline = self.now + LAST_ANSWERS;
        while self.now < deadline && !self.nodes.iter().all(Node::is_idle) {
            self.pass(STEP);
        }
        let waiting = self.history.reads_under_way();
        if !waiting.is_empty() {
            self.history.violate("no caller waits without a bound", waiting.join(", "));
        }
    }

    /// Each key is computed once by all processes together, and all have the same value.
    fn end_alike(&mut self) {
        // An invalidation that a frozen server has not executed yet is one more when it does.
        self.pass(self.network.next_quiet().saturating_sub(self.now));
        // A heartbeat, for what messages have missed. Where another server has taken over, its log
        // begins anew within this time, and is told again what was invalidated of late.
        let is_fail_over = |op: &Op| matches!(op.what, What::Befall(Fault::FailOver { .. }));
        let is_moved = self.case.ops.iter().any(is_fail_over);
        self.pass(if is_moved { VERIFIED_WITHIN + TOLD_WITHIN } else { 1_500 });
        self.nodes[0].begin(What::InvalidateAll { process: 0 });
        self.pass(4 * self.case.way + 2 * STEP + 100);
        let before: Vec<_> = (0..KEYS).map(|key| self.history.computed(key).0).collect();
        for key in 0..KEYS {
            for process in 0..PROCESSES {
                let ask = What::Ask { process, key, takes: 10, is_scoped: false };
                self.nodes[process].begin(ask);
            }
        }
        let deadline = self.now + 3_000;
        while self.now < deadline && !self.nodes.iter().all(Node::is_idle) {
            self.pass(STEP);
        }
        // A process that has not heard from the server since its clock was set dates by the old
        // one, until the server answers its next request for a lease.
        let is_set = |op: &Op| {
            use Fault::{ClockBack, ClockForward};
            matches!(op.what, What::Befall(ClockForward { .. } | ClockBack { .. }))
        };
        let is_set = self.case.ops.iter().any(is_set);
        let most = if is_set { PROCESSES } else { 1 };
        for (key, before) in before.into_iter().enumerate() {
            let computed = self.history.computed(key).0 - before;
            // A lock whose right is gone is taken for a stranger's: no process shortens it where the
            // clock was set back.
            let is_evicted = |op: &Op| {
                let What::Befall(Fault::Evict { key: of, record: Record::Right }) = op.what else {
                    return false;
                };
                of == key
            };
            let least = usize::from(!(is_set && self.case.ops.iter().any(is_evicted)));
            if !(least..=most).contains(&computed) {
                let text = format!("k{key}: {computed} computations");
                let rule = "after all faults all processes together compute a key once";
                self.history.violate(rule, text);
            }
        }
    }

    fn check_computations(&self) {
        for key in 0..KEYS {
            let mut bound = 1;
            for op in &self.case.ops {
                bound += match op.what {
                    What::Invalidate { key: cut, .. } | What::Put { key: cut, .. }
                        if cut == key =>
                    {
                        2
                    }
                    What::InvalidateTag { tag, .. } | What::MarkTagStale { tag, .. }
                        if crate::case::TAGS[key].contains(&tag) =>
                    {
                        2
                    }
                    What::InvalidateAll { .. } => 2,
                    What::MarkStale { key: marked, .. } if marked == key => 2,
                    _ => 0,
                };
            }
            let (computed, abandoned) = self.history.computed(key);
            let puts = |op: &&Op| matches!(op.what, What::Put { key: put, .. } if put == key);
            // A put whose caller hung up before it began is none.
            let puts = self.case.ops.iter().filter(puts).count();
            let computed = computed.saturating_sub(puts);
            if computed > bound + abandoned {
                let text = format!("k{key}: {computed} computations, not {bound}");
                self.history.violate("without faults a key is computed once per window", text);
            }
        }
    }

    /// Lets time pass, and everything in it happen.
    fn pass(&mut self, time: u64) {
        let end = self.now + time;
        loop {
            let idle = self.nodes.iter().all(Node::is_idle);
            let step = if idle { IDLE_STEP } else { STEP };
            let mut target = end.min(self.now + step);
            target = self.network.next().map_or(target, |next| target.min(next.max(self.now)));
            for node in &mut self.nodes {
                if self.now < node.frozen_until {
                    continue;
                }
                if node.frozen_until > node.now {
                    node.stand_still(node.frozen_until);
                    node.frozen_until = 0;
                }
                node.run_until(target.max(node.now));
            }
            let running = self.nodes.iter().filter(|node| node.frozen_until <= self.now);
            let reached = running.map(|node| node.now).min().unwrap_or(target).min(target);
            self.now = self.now.max(reached);
            self.history.set_time(self.now);
            self.network.set_time(self.now);
            let has_delivered = self.deliver();
            if self.now >= end && !has_delivered {
                return;
            }
        }
    }

    fn deliver(&mut self) -> bool {
        let network = Arc::clone(&self.network);
        let mut has_delivered = false;
        if self.case.has_faults && self.now <= self.mend_until {
            let is_full = self.now < self.full_until;
            self.on_server(|double| {
                double.out_of_memory(is_full);
                network.mend();
            });
        }
        while let Some(arrival) = network.take(self.now) {
            has_delivered = true;
            match &arrival {
                Arrival::Answer { to, .. } | Arrival::Notice { to, .. } => {
                    let node = &self.nodes[self.of_id[*to]];
                    if node.frozen_until > self.now {
                        // In its socket. Its callers may go on before it is read.
                        network.send(node.frozen_until, arrival);
                        continue;
                    }
                    node.receive(|| network.arrive(arrival, |_| {}));
                }
                Arrival::Command { .. } | Arrival::Attach { .. } => {
                    let network = Arc::clone(&network);
                    self.on_server(move |double| {
                        network.arrive(arrival, |lose| double.lose_messages(lose));
                        double.lose_messages(false);
                    });
                }
            }
        }
        has_delivered
    }

    fn perform(&mut self, what: What) {
        match what {
            What::Ask { process, .. }
            | What::Get { process, .. }
            | What::Invalidate { process, .. }
            | What::InvalidateTag { process, .. }
            | What::InvalidateAll { process }
            | What::Put { process, .. }
            | What::MarkStale { process, .. }
            | What::MarkTagStale { process, .. } => self.nodes[process].begin(what),
            What::HangUp { nth } => {
                let _ = self.nodes.iter().any(|node| node.hang_up(nth));
            }
            What::Befall(fault) => self.befall(fault),
        }
    }

    fn befall(&mut self, fault: Fault) {
        self.history.say(|| format!("FAULT: {fault:?}"));
        match fault {
            Fault::Partition { process, is_silent, lasts } => {
                let (id, network) = (self.nodes[process].id, Arc::clone(&self.network));
                self.mend_until = self.mend_until.max(self.now + lasts + 1_000);
                self.on_server(|_| network.cut(id, is_silent, lasts));
            }
            Fault::FreezeProcess { process, lasts } => {
                self.nodes[process].frozen_until = self.now + lasts;
            }
            Fault::Kill { process } => {
                let network = Arc::clone(&self.network);
                self.nodes[process].kill();
                let id = self.nodes[process].id;
                self.on_server(|_| network.disconnect(id));
                self.nodes[process] = self.start(process);
            }
            Fault::Evict { key, record } => {
                self.on_server(|double| double.lose(&Key::from(key), record));
            }
            Fault::EvictLog => self.on_server(Double::lose_log),
            Fault::EvictKeysOfLog => self.on_server(Double::lose_key_log),
            Fault::FlushAll => self.on_server(Double::flush),
            Fault::FlushKeys => self.on_server(Double::flush_keys),
            Fault::FailOver { lost } => {
                if lost > 0 {
                    self.history.lose_items();
                }
                self.on_server(|double| double.fail_over_log(lost));
            }
            Fault::ClockForward { by } => {
                self.on_server(|double| double.set_clock_forward(Duration::from_millis(by)));
            }
            Fault::ClockBack { by } => {
                self.on_server(|double| double.set_clock_back(Duration::from_millis(by)));
            }
            Fault::OutOfMemory { lasts } => {
                self.full_until = self.now + lasts;
                self.mend_until = self.mend_until.max(self.full_until + 1_000);
                self.on_server(|double| double.out_of_memory(true));
            }
            _ => self.network.befall(fault),
        }
    }
}
