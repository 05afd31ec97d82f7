//! The network between the processes and the server: what is under way, what is lost, and when
//! the rest arrives.
//!
//! How long a call takes is drawn from the seed, the process, the operation, the key, and how
//! many such calls there were before. So the order in which a process sends the commands of one
//! moment, which may depend on the random state of a hash table, decides nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use fastrand::Rng;
use parking_lot::Mutex;
use tower_stampede::remote::{DoubleProcess, Notice, RemoteOp};

use crate::case::Fault;
use crate::history::{History, ProcessId};
use crate::wire::Wire;

/// Delivers an answer to the process that waits for it.
pub(crate) type Delivery = Box<dyn FnOnce() + Send>;

/// Executes a command.
pub(crate) type Command = Box<dyn FnOnce() -> Delivery + Send>;

/// What arrives somewhere.
pub(crate) enum Arrival {
    Command {
        from: ProcessId,
        run: Command,
        refuse: Delivery,
        back: u64,
        returns: Return,
    },
    Answer {
        to: ProcessId,
        deliver: Delivery,
    },
    Notice {
        to: ProcessId,
        notice: Notice,
    },
    /// The process begins to listen.
    Attach {
        from: ProcessId,
    },
}

/// What happens to the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Return {
    Delivered,
    Lost,
    Cut,
}

/// How a command fares.
pub(crate) struct Fate {
    pub(crate) is_lost: bool,
    pub(crate) there: u64,
    pub(crate) back: u64,
    pub(crate) returns: Return,
}

/// How one process is connected.
pub(crate) struct Link {
    pub(crate) process: Arc<DoubleProcess>,
    pub(crate) wire: Weak<Wire>,
    is_dead: bool,
    is_attached: bool,
    is_subscribed: bool,
    cut_until: u64,
    is_cut_silently: bool,
    /// Notices arrive in their order.
    last_notice: u64,
}

#[derive(Default)]
struct Weather {
    way: u64,
    slow: (u64, u64),
    lost_commands: (u32, u64),
    lost_replies: (u32, u64),
    cut_replies: (u32, u64),
    lost_messages: (u32, u64),
    away_until: u64,
    is_silent: bool,
    frozen_until: u64,
}

struct State {
    seed: u64,
    now: u64,
    count: u64,
    arrivals: BTreeMap<(u64, u64), Arrival>,
    calls: HashMap<(ProcessId, RemoteOp, u64), u64>,
    links: Vec<Link>,
    weather: Weather,
    messages: Rng,
}

pub(crate) struct Network {
    state: Mutex<State>,
    pub(crate) history: Arc<History>,
}

impl Network {
    pub(crate) fn new(seed: u64, way: u64, history: Arc<History>) -> Arc<Self> {
        let weather = Weather { way, ..Weather::default() };
        let state = State {
            seed,
            now: 0,
            count: 0,
            arrivals: BTreeMap::new(),
            calls: HashMap::new(),
            links: Vec::new(),
            weather,
            messages: Rng::with_seed(seed ^ 0x6d65_7373),
        };
        Arc::new(Self { state: Mutex::new(state), history })
    }

    pub(crate) fn connect(&self, process: Arc<DoubleProcess>, wire: Weak<Wire>) {
        self.state.lock().links.push(Link {
            process,
            wire,
            is_dead: false,
            is_attached: false,
            is_subscribed: false,
            cut_until: 0,
            is_cut_silently: false,
            last_notice: 0,
        });
    }

    /// The process is gone, and with it its connection.
    pub(crate) fn disconnect(&self, id: ProcessId) {
        let process = {
            let mut state = self.state.lock();
            state.links[id].is_dead = true;
            Arc::clone(&state.links[id].process)
        };
        process.unsubscribe();
    }

    pub(crate) fn is_subscribed(&self, id: ProcessId) -> bool {
        self.state.lock().links[id].is_subscribed
    }

    /// Decides what happens to a command that is sent at `at`.
    pub(crate) fn fate(&self, from: ProcessId, op: RemoteOp, key: u64, at: u64) -> Fate {
        let mut state = self.state.lock();
        let count = state.calls.entry((from, op, key)).or_default();
        *count += 1;
        let parts = [from as u64, op as u64, key, *count];
        let mix = |seed: u64, part: &u64| {
            (seed ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        let mut rng = Rng::with_seed(parts.iter().fold(state.seed, mix));
        let weather = &state.weather;
        let way = if at < weather.slow.1 { weather.slow.0 } else { weather.way };
        let mut meets = |(share, until): (u32, u64)| rng.u32(..100) < share && at < until;
        let is_lost = meets(weather.lost_commands);
        let returns = match (meets(weather.lost_replies), meets(weather.cut_replies)) {
            (true, _) => Return::Lost,
            (_, true) => Return::Cut,
            _ => Return::Delivered,
        };
        Fate { is_lost, there: 1 + rng.u64(..way), back: 1 + rng.u64(..way), returns }
    }

    pub(crate) fn send(&self, at: u64, arrival: Arrival) {
        let mut state = self.state.lock();
        if let Arrival::Notice { to, .. } = arrival {
            let link = &mut state.links[to];
            link.last_notice = link.last_notice.max(at);
        }
        state.count += 1;
        let at = (at.max(state.now), state.count);
        state.arrivals.insert(at, arrival);
    }

    /// The server has a notice for a process.
    pub(crate) fn notify(&self, to: ProcessId, notice: Notice) {
        let mut state = self.state.lock();
        let now = state.now;
        let state = &mut *state;
        let (link, weather) = (&mut state.links[to], &state.weather);
        if link.is_dead {
            return;
        }
        let is_of_link = matches!(notice, Notice::Subscribed | Notice::Unsubscribed);
        let (share, until) = weather.lost_messages;
        let is_lost = state.messages.u32(..100) < share && now < until;
        if !is_of_link && (is_lost || now < link.cut_until) {
            return;
        }
        if notice == Notice::Unsubscribed && link.is_cut_silently && now < link.cut_until {
            return;
        }
        let at = (now + 1 + state.messages.u64(..weather.way)).max(link.last_notice);
        link.last_notice = at;
        self.history.say(|| format!("to p{to}, arriving at {at}: {}", show(&notice)));
        state.count += 1;
        state.arrivals.insert((at, state.count), Arrival::Notice { to, notice });
    }

    /// Returns when the next thing arrives.
    pub(crate) fn next(&self) -> Option<u64> {
        self.state.lock().arrivals.first_key_value().map(|((at, _), _)| *at)
    }

    /// It is `now`.
    pub(crate) fn set_time(&self, now: u64) {
        let mut state = self.state.lock();
        state.now = state.now.max(now);
    }

    /// Returns when the last of what is under way arrives: also what a frozen server has still to
    /// do.
    pub(crate) fn next_quiet(&self) -> u64 {
        self.state.lock().arrivals.last_key_value().map_or(0, |((at, _), _)| *at)
    }

    /// Takes what arrives first, if that is not after `until`.
    pub(crate) fn take(&self, until: u64) -> Option<Arrival> {
        let mut state = self.state.lock();
        let first = state.arrivals.first_entry()?;
        (first.key().0 <= until).then(|| first.remove())
    }

    /// Lets a command arrive at the server, or a message at its process.
    pub(crate) fn arrive(&self, arrival: Arrival, lose_messages: impl Fn(bool)) {
        match arrival {
            Arrival::Command { from, run, refuse, back, returns } => {
                let mut state = self.state.lock();
                let (now, weather) = (state.now, &state.weather);
                if now < weather.frozen_until {
                    let at = weather.frozen_until;
                    drop(state);
                    let command = Arrival::Command { from, run, refuse, back, returns };
                    return self.send(at, command);
                }
                let is_cut = now < state.links[from].cut_until;
                let is_away = now < weather.away_until;
                if is_cut || is_away {
                    let is_silent =
                        if is_away { weather.is_silent } else { state.links[from].is_cut_silently };
                    drop(state);
                    if !is_silent {
                        self.send(now + back, Arrival::Answer { to: from, deliver: refuse });
                    }
                    return;
                }
                let (share, until) = weather.lost_messages;
                let loses = state.messages.u32(..100) < share && now < until;
                drop(state);
                lose_messages(loses);
                let deliver = run();
                match returns {
                    Return::Delivered => {
                        self.send(now + back, Arrival::Answer { to: from, deliver });
                    }
                    Return::Lost => self.history.say(|| format!("the answer to p{from} is lost")),
                    Return::Cut => {
                        self.history.say(|| format!("the answer to p{from} is cut"));
                        self.send(now + back, Arrival::Answer { to: from, deliver: refuse });
                    }
                }
            }
            Arrival::Answer { to, deliver } => {
                let state = self.state.lock();
                let is_cut = state.now < state.links[to].cut_until || state.links[to].is_dead;
                drop(state);
                if !is_cut {
                    deliver();
                }
            }
            Arrival::Notice { to, notice } => {
                let mut state = self.state.lock();
                let link = &mut state.links[to];
                match notice {
                    Notice::Subscribed => link.is_subscribed = true,
                    Notice::Unsubscribed => link.is_subscribed = false,
                    _ => {}
                }
                let wire = Weak::clone(&link.wire);
                let is_dead = link.is_dead;
                drop(state);
                if let Some(wire) = wire.upgrade().filter(|_| !is_dead) {
                    wire.hand_on(notice);
                }
            }
            Arrival::Attach { from } => self.attach(from),
        }
    }

    fn attach(&self, from: ProcessId) {
        let mut state = self.state.lock();
        let link = &mut state.links[from];
        if link.is_dead {
            return;
        }
        link.is_attached = true;
        let (process, wire) = (Arc::clone(&link.process), link.wire.upgrade());
        drop(state);
        if let Some(wire) = wire {
            wire.listen_to(&process);
        }
    }
}

/// Without the epoch, which is random.
fn show(notice: &Notice) -> String {
    match notice {
        Notice::Announced(update) => {
            let mut items: Vec<_> = update.items.iter().map(|item| format!("{item:?}")).collect();
            items.sort_unstable();
            format!("{} after {}", items.join(", "), update.previous)
        }
        other => format!("{other:?}"),
    }
}

/// Faults.
impl Network {
    pub(crate) fn befall(&self, fault: Fault) {
        let mut state = self.state.lock();
        let now = state.now;
        let weather = &mut state.weather;
        match fault {
            Fault::Slow { way, lasts } => weather.slow = (way, now + lasts),
            Fault::LoseCommands { share, lasts } => weather.lost_commands = (share, now + lasts),
            Fault::LoseReplies { share, lasts } => weather.lost_replies = (share, now + lasts),
            Fault::CutReplies { share, lasts } => weather.cut_replies = (share, now + lasts),
            Fault::LoseMessages { share, lasts } => weather.lost_messages = (share, now + lasts),
            Fault::Away { is_silent, lasts } => {
                (weather.away_until, weather.is_silent) = (now + lasts, is_silent);
            }
            Fault::FreezeServer { lasts } => weather.frozen_until = now + lasts,
            _ => {}
        }
    }

    /// Cuts a process off from the server, until [`mend`](Self::mend).
    pub(crate) fn cut(&self, id: ProcessId, is_silent: bool, lasts: u64) {
        let mut state = self.state.lock();
        let until = state.now + lasts;
        let link = &mut state.links[id];
        (link.cut_until, link.is_cut_silently) = (until, is_silent);
        let process = Arc::clone(&link.process);
        drop(state);
        process.unsubscribe();
    }

    /// Subscribes again the processes that are not cut off any more.
    pub(crate) fn mend(&self) {
        let state = self.state.lock();
        let now = state.now;
        let is_mended = |link: &&Link| link.is_attached && !link.is_dead && link.cut_until <= now;
        let mended: Vec<_> =
            state.links.iter().filter(is_mended).map(|link| Arc::clone(&link.process)).collect();
        drop(state);
        for process in mended {
            process.subscribe();
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        let mut state = self.state.lock();
        let way = state.weather.way;
        state.weather = Weather { way, ..Weather::default() };
        for link in &mut state.links {
            link.cut_until = 0;
        }
    }
}
