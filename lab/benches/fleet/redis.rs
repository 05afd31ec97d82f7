//! Redis in the model: what the scripts of `src/remote/redis/scripts` do to an
//! entry, and shards that execute one command after the other.
//!
//! A command takes effect when it is sent, with the moment at which its shard
//! will have executed it: all commands travel equally long, so a shard gets
//! them in the order in which they are sent.

use tower_stampede::Key;

use crate::costs::Costs;
use crate::plan::LEASE;
use crate::queue::Moment;

/// Which value: the place in the list of all values ever stored.
pub(crate) type Value = u32;

/// How often the server executed what, counted as `INFO commandstats` does:
/// also what scripts call. What other commands they call is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Commands {
    pub(crate) get: u64,
    pub(crate) set: u64,
    pub(crate) script: u64,
    pub(crate) publish: u64,
}

#[derive(Debug, Default)]
struct Shard {
    free_at: Moment,
    busy: Moment,
    commands: Commands,
}

/// V, L and R of one key.
#[derive(Debug, Default)]
struct Records {
    value: Option<(Value, Moment)>,
    lock: Option<(Token, Moment)>,
    right: Option<(Token, Option<Value>)>,
    inboxes: Vec<u32>,
    /// The same as a set, by process.
    is_registered: Vec<bool>,
}

pub(crate) type Token = u64;

#[derive(Debug)]
pub(crate) enum AcquireOutcome {
    Hit(Value),
    Granted(Token),
    Locked(Moment),
}

/// A reply, and when the shard has it.
pub(crate) struct Executed<T> {
    pub(crate) at: Moment,
    pub(crate) reply: T,
}

pub(crate) struct Redis {
    costs: Costs,
    shards: Vec<Shard>,
    records: Vec<Records>,
    /// The shard of each key.
    places: Vec<usize>,
    tokens: Token,
}

impl Redis {
    pub(crate) fn new(costs: &Costs, shards: usize, keys: u32, processes: u32) -> Self {
        let records =
            || Records { is_registered: vec![false; processes as usize], ..Records::default() };
        Self {
            costs: costs.clone(),
            shards: (0..shards).map(|_| Shard::default()).collect(),
            records: (0..keys).map(|_| records()).collect(),
            places: (0..keys).map(|key| place(key, shards)).collect(),
            tokens: 0,
        }
    }

    pub(crate) fn shard_of(&self, key: u32) -> usize {
        self.places[key as usize]
    }

    /// Executes what costs so much on a shard, once it has arrived and those
    /// before it are done.
    fn execute(&mut self, shard: usize, sent: Moment, cost: Moment) -> Moment {
        let shard = &mut self.shards[shard];
        shard.free_at = shard.free_at.max(sent + self.costs.one_way) + cost;
        shard.busy += cost;
        shard.free_at
    }

    fn on(&mut self, key: u32) -> &mut Commands {
        let shard = self.shard_of(key);
        &mut self.shards[shard].commands
    }

    pub(crate) fn freeze(&mut self, shard: usize, until: Moment) {
        let shard = &mut self.shards[shard];
        shard.free_at = shard.free_at.max(until);
    }

    /// Any command that changes nothing here.
    pub(crate) fn probe(&mut self, shard: usize, sent: Moment) -> Moment {
        self.execute(shard, sent, self.costs.get)
    }

    pub(crate) fn get(&mut self, key: u32, sent: Moment) -> Executed<Option<Value>> {
        let at = self.execute(self.shard_of(key), sent, self.costs.get);
        self.on(key).get += 1;
        Executed { at, reply: self.records[key as usize].value_at(at) }
    }

    /// `acquire.lua`.
    pub(crate) fn acquire(
        &mut self,
        key: u32,
        registers: Option<u32>,
        seen: Option<Value>,
        sent: Moment,
    ) -> Executed<AcquireOutcome> {
        let shard = self.shard_of(key);
        let executed = self.execute(shard, sent, 0);
        let records = &mut self.records[key as usize];
        let stored = records.value_at(executed);
        let (reply, cost) = if let Some(value) = stored.filter(|value| Some(*value) != seen) {
            (AcquireOutcome::Hit(value), self.costs.locked)
        } else if let Some(left) = records.lock_left(executed) {
            registers.into_iter().for_each(|process| records.register(process));
            (AcquireOutcome::Locked(left), self.costs.locked)
        } else {
            self.tokens += 1;
            records.lock = Some((self.tokens, executed + LEASE));
            records.right = Some((self.tokens, stored));
            (AcquireOutcome::Granted(self.tokens), self.costs.acquire)
        };
        let commands = self.on(key);
        commands.script += 1;
        match reply {
            AcquireOutcome::Hit(_) => commands.get += 1,
            AcquireOutcome::Granted(_) => commands.set += 1,
            // `SET NX` that is refused, then `GET` for the holder.
            AcquireOutcome::Locked(_) => {
                (commands.set, commands.get) = (commands.set + 1, commands.get + 1);
            }
        }
        Executed { at: self.execute(shard, sent, cost), reply }
    }

    /// `fill.lua`: replies with the processes to wake, and when each message
    /// leaves; none if the fill is refused.
    pub(crate) fn fill(
        &mut self,
        key: u32,
        token: Token,
        value: Value,
        kept: Moment,
        sent: Moment,
    ) -> Executed<Option<Vec<(u32, Moment)>>> {
        let shard = self.shard_of(key);
        let at = self.execute(shard, sent, self.costs.fill);
        let publish = self.costs.publish;
        let records = &mut self.records[key as usize];
        let (stored, mine) = (records.value_at(at), records.is_locked_by(token, at));
        let allowed = match records.right {
            Some((holder, seen)) => holder == token && (stored.is_none() || stored == seen),
            None => mine,
        };
        if mine {
            records.lock = None;
        }
        if allowed {
            records.value = Some((value, at + kept));
        }
        let woken = allowed.then(|| records.forget_right());
        let commands = self.on(key);
        commands.script += 1;
        commands.get += 1;
        commands.set += u64::from(allowed);
        let Some(woken) = woken else { return Executed { at, reply: None } };
        commands.publish += woken.len() as u64;
        let messages: Vec<_> = (1..).zip(woken).map(|(n, to)| (to, at + n * publish)).collect();
        let at = self.execute(shard, sent, publish * messages.len() as u64);
        Executed { at, reply: Some(messages) }
    }

    /// `renew.lua`, as far as leases that were not lost are concerned.
    pub(crate) fn renew(&mut self, key: u32, token: Token, sent: Moment) -> Moment {
        let at = self.execute(self.shard_of(key), sent, self.costs.locked);
        self.on(key).script += 1;
        let records = &mut self.records[key as usize];
        let is_right = records.right.is_some_and(|(holder, _)| holder == token);
        if is_right && (records.lock.is_none() || records.is_locked_by(token, at)) {
            records.lock = Some((token, at + LEASE));
        }
        at
    }

    /// `abandon.lua` without a hold: wakes one process.
    pub(crate) fn abandon(
        &mut self,
        key: u32,
        token: Token,
        sent: Moment,
    ) -> Executed<Option<u32>> {
        let at = self.execute(self.shard_of(key), sent, self.costs.locked);
        self.on(key).script += 1;
        let records = &mut self.records[key as usize];
        let right = records.right.is_some_and(|(holder, _)| holder == token);
        let mine = records.is_locked_by(token, at);
        if right {
            records.right = None;
        }
        if mine {
            records.lock = None;
        }
        let woken = if right || mine { records.inboxes.pop() } else { None };
        if let Some(process) = woken {
            records.is_registered[process as usize] = false;
            self.on(key).publish += 1;
        }
        Executed { at, reply: woken }
    }

    /// `SET NX PX`, for strategies that know only the lock.
    pub(crate) fn set_lock(&mut self, key: u32, sent: Moment) -> Executed<Option<Token>> {
        let at = self.execute(self.shard_of(key), sent, self.costs.get);
        self.on(key).set += 1;
        self.tokens += 1;
        let records = &mut self.records[key as usize];
        let is_free = records.lock_left(at).is_none();
        if is_free {
            records.lock = Some((self.tokens, at + LEASE));
        }
        Executed { at, reply: is_free.then_some(self.tokens) }
    }

    /// `SET` of the value, and `DEL` of the lock if that is the token's.
    pub(crate) fn set(
        &mut self,
        key: u32,
        value: Value,
        kept: Moment,
        token: Option<Token>,
        sent: Moment,
    ) -> Moment {
        let at = self.execute(self.shard_of(key), sent, self.costs.get);
        self.on(key).set += 1;
        let records = &mut self.records[key as usize];
        records.value = Some((value, at + kept));
        if token.is_some_and(|token| records.is_locked_by(token, at)) {
            records.lock = None;
        }
        at
    }

    /// Leaves a lock behind that no process gives up.
    pub(crate) fn leave_lock(&mut self, key: u32, until: Moment) {
        self.tokens += 1;
        self.records[key as usize].lock = Some((self.tokens, until));
    }

    pub(crate) fn commands(&self) -> Commands {
        self.shards.iter().fold(Commands::default(), |sum, shard| Commands {
            get: sum.get + shard.commands.get,
            set: sum.set + shard.commands.set,
            script: sum.script + shard.commands.script,
            publish: sum.publish + shard.commands.publish,
        })
    }

    /// Server CPU by shard.
    pub(crate) fn busy(&self) -> Vec<Moment> {
        self.shards.iter().map(|shard| shard.busy).collect()
    }
}

/// Returns the shard of a key. The product's own hash replaces the slots of a
/// cluster.
#[allow(clippy::cast_possible_truncation, reason = "less than the number of shards")]
fn place(key: u32, shards: usize) -> usize {
    (Key::from(format!("key-{key}")).stable_hash() % shards as u64) as usize
}

impl Records {
    fn value_at(&self, at: Moment) -> Option<Value> {
        self.value.filter(|(_, gone_at)| at < *gone_at).map(|(value, _)| value)
    }

    fn lock_left(&self, at: Moment) -> Option<Moment> {
        self.lock.filter(|(_, until)| at < *until).map(|(_, until)| until - at)
    }

    fn is_locked_by(&self, token: Token, at: Moment) -> bool {
        self.lock.is_some_and(|(holder, until)| holder == token && at < until)
    }

    fn register(&mut self, process: u32) {
        if !std::mem::replace(&mut self.is_registered[process as usize], true) {
            self.inboxes.push(process);
        }
    }

    fn forget_right(&mut self) -> Vec<u32> {
        self.right = None;
        let woken = std::mem::take(&mut self.inboxes);
        for process in &woken {
            self.is_registered[*process as usize] = false;
        }
        woken
    }
}
