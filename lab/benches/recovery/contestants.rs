//! What stands between the clients and the origin.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use amalgam::provider::Clock;
use amalgam::{Cache as Amalgam, ClearMode, EntryOptions, Timestamp, source};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower_stampede::{Computed, Stampede};

use crate::origin::{MEAN, Origin, WORKERS};

pub(crate) const TTL: Duration = Duration::from_secs(20);

#[derive(Clone, Copy)]
pub(crate) enum Contestant {
    NoCache,
    BareCache,
    Moka,
    MokaWithSemaphore,
    Amalgam,
    Default,
    Bounded(usize),
    Adaptive(usize),
}

impl Contestant {
    pub(crate) const ALL: [Self; 10] = [
        Self::NoCache,
        Self::BareCache,
        Self::Moka,
        Self::MokaWithSemaphore,
        Self::Amalgam,
        Self::Default,
        Self::Bounded(WORKERS as usize),
        Self::Bounded(5 * WORKERS as usize),
        Self::Adaptive(4),
        Self::Adaptive(WORKERS as usize),
    ];

    /// Returns whether anything bounds the calls that the origin has at once.
    pub(crate) fn is_bounded(self) -> bool {
        !matches!(self, Self::NoCache | Self::BareCache | Self::Moka | Self::Amalgam)
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::NoCache => "no cache".to_owned(),
            Self::BareCache => "bare TTL cache".to_owned(),
            Self::Moka => "moka `get_with`".to_owned(),
            Self::MokaWithSemaphore => format!("the same, semaphore of {WORKERS}"),
            Self::Amalgam => "amalgam-cache `get_or_set`".to_owned(),
            Self::Default => "tower-stampede, defaults".to_owned(),
            Self::Bounded(most) => format!("`max_computations({most})`"),
            Self::Adaptive(least) => format!("`min_computations({least})`"),
        }
    }
}

/// What the origin makes. One that no client receives is wasted.
#[derive(Clone)]
pub(crate) struct Value {
    ends: Instant,
    call: u64,
}

/// The origin, and for each of its calls whether a client has received the result.
pub(crate) struct Calls {
    pub(crate) origin: Arc<Origin>,
    received: Mutex<Vec<bool>>,
}

impl Calls {
    pub(crate) fn new(origin: Arc<Origin>) -> Arc<Self> {
        Arc::new(Self { origin, received: Mutex::default() })
    }

    async fn load(self: Arc<Self>) -> Value {
        let call = {
            let mut received = self.received.lock();
            received.push(false);
            received.len() as u64
        };
        let demand = MEAN.mul_f64(0.5 + fastrand::f64());
        let _ = self.origin.call(demand).await;
        Value { ends: Instant::now() + TTL.mul_f64(1.0 - 0.1 * fastrand::f64()), call }
    }

    /// Notes that a client has it in time.
    pub(crate) fn receive(&self, value: &Value) {
        if let Some(at) = value.call.checked_sub(1) {
            self.received.lock()[at as usize] = true;
        }
    }

    /// Returns how many calls have begun.
    pub(crate) fn begun(&self) -> usize {
        self.received.lock().len()
    }

    /// Returns how many results of these calls no client has received.
    pub(crate) fn wasted(&self, calls: std::ops::Range<usize>) -> usize {
        self.received.lock()[calls].iter().filter(|it| !**it).count()
    }
}

/// The time of the simulation for amalgam-cache, which takes a clock.
struct SimulatedClock(Instant);

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        // It counts from 1970; in which year the simulation begins changes nothing.
        Timestamp::from_ticks(1 << 50).saturating_add(self.0.elapsed())
    }
}

pub(crate) enum Cache {
    None,
    Bare(Mutex<HashMap<u64, Value>>),
    /// The lifetimes are of the values, in the time of the simulation: moka's own clock is not paused.
    Moka(moka::future::Cache<u64, Value>, Option<Arc<Semaphore>>),
    /// Its factories say how long a value lives, as its documentation recommends.
    Amalgam(Amalgam<Value>),
    Ours(Stampede<Value>),
}

impl Cache {
    pub(crate) fn new(contestant: Contestant) -> Self {
        let moka = || moka::future::Cache::new(1 << 20);
        let ours = Stampede::builder("recovery").ttl(TTL).max_entries(1 << 20);
        match contestant {
            Contestant::NoCache => Self::None,
            Contestant::BareCache => Self::Bare(Mutex::default()),
            Contestant::Moka => Self::Moka(moka(), None),
            Contestant::MokaWithSemaphore => {
                Self::Moka(moka(), Some(Arc::new(Semaphore::new(WORKERS as usize))))
            }
            Contestant::Amalgam => {
                let amalgam = Amalgam::builder().name("recovery").max_capacity(1 << 20);
                let amalgam = amalgam.clock(Arc::new(SimulatedClock(Instant::now())));
                let amalgam = amalgam.default_options(EntryOptions::new(TTL));
                Self::Amalgam(amalgam.try_build().expect("a cache"))
            }
            Contestant::Default => Self::Ours(ours.build().expect("a cache")),
            Contestant::Bounded(most) => {
                let most = ours.max_computations(most).max_refreshes(most);
                Self::Ours(most.build().expect("a cache"))
            }
            Contestant::Adaptive(least) => {
                Self::Ours(ours.min_computations(least).build().expect("a cache"))
            }
        }
    }

    /// Puts a value that lives for a part of a lifetime, as if it had been there for the rest.
    pub(crate) async fn warm(&self, key: u64) {
        let left = TTL.mul_f64(fastrand::f64());
        let value = Value { ends: Instant::now() + left, call: 0 };
        match self {
            Self::None => {}
            Self::Bare(values) => drop(values.lock().insert(key, value)),
            Self::Moka(cache, _) => cache.insert(key, value).await,
            Self::Amalgam(cache) => {
                let set = cache.set(key.to_string(), value);
                set.options(|options| options.with_duration(left)).await.expect("it is stored");
            }
            Self::Ours(cache) => cache.put_with(key, Computed::new(value).ttl(left)).await,
        }
    }

    pub(crate) async fn flush(&self) {
        match self {
            Self::None => {}
            Self::Bare(values) => values.lock().clear(),
            Self::Moka(cache, _) => {
                for (key, _) in cache {
                    cache.invalidate(&*key).await;
                }
            }
            Self::Amalgam(cache) => cache.clear(ClearMode::Remove).await.expect("it is empty"),
            Self::Ours(cache) => {
                cache.invalidate_all().await;
            }
        }
    }

    pub(crate) async fn get(&self, key: u64, calls: &Arc<Calls>) -> Option<Value> {
        let load = Arc::clone(calls).load();
        match self {
            Self::None => Some(load.await),
            Self::Bare(values) => {
                let found = values.lock().get(&key).cloned();
                if let Some(value) = found.filter(|it| it.ends > Instant::now()) {
                    return Some(value);
                }
                let value = load.await;
                values.lock().insert(key, value.clone());
                Some(value)
            }
            Self::Moka(cache, semaphore) => {
                let load = async {
                    match semaphore {
                        None => load.await,
                        // Held until the origin is done, also where the caller goes away.
                        Some(semaphore) => {
                            let permit = Arc::clone(semaphore).acquire_owned().await;
                            let task = async move {
                                let value = load.await;
                                drop(permit);
                                value
                            };
                            tokio::spawn(task).await.expect("a value")
                        }
                    }
                };
                let is_over = |value: &Value| value.ends <= Instant::now();
                let entry = cache.entry(key).or_insert_with_if(load, is_over).await;
                Some(entry.into_value())
            }
            Self::Amalgam(cache) => {
                let load = source::factory(move |mut context| async move {
                    let value = load.await;
                    let left = value.ends - Instant::now();
                    context.adapt(|options| options.with_duration(left));
                    Ok::<_, Infallible>(value)
                });
                cache.get_or_set(key.to_string(), load).await.ok()
            }
            Self::Ours(cache) => {
                let load = || async { Ok::<_, Infallible>(load.await) };
                cache.get_or_compute(key, load).await.ok()
            }
        }
    }
}
