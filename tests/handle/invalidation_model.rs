//! Invalidations at random moments, against a model: a database of versions,
//! and for each key the oldest version that a caller may get now.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use tower_stampede::{Computed, Error, ErrorKind, Mode, Stampede};

use crate::kit::cases::cases;
use crate::kit::origin::*;
use crate::kit::spawn;

const KEYS: usize = 4;

/// These keys carry the tag `t`; the others carry none.
const TAGGED: usize = 2;

#[derive(Debug, Default)]
struct World {
    versions: [AtomicU64; KEYS],
    floors: [AtomicU64; KEYS],
    calls: AtomicU64,
}

impl World {
    fn read(&self, key: usize) -> u64 {
        self.versions[key].load(Ordering::SeqCst)
    }

    fn floor(&self, key: usize) -> u64 {
        self.floors[key].load(Ordering::SeqCst)
    }

    /// Writes new versions of `keys`.
    fn write(&self, keys: std::ops::Range<usize>) -> Vec<(usize, u64)> {
        keys.map(|key| (key, self.versions[key].fetch_add(1, Ordering::SeqCst) + 1)).collect()
    }

    /// From now on no caller may get older versions than these.
    fn raise(&self, written: Vec<(usize, u64)>) {
        for (key, version) in written {
            self.floors[key].fetch_max(version, Ordering::SeqCst);
        }
    }

    async fn invalidate(&self, cache: &Stampede<u64>, what: What) {
        let written = self.write(what.keys());
        match what {
            What::Key(key) => cache.invalidate(key).await,
            What::Tag => cache.invalidate_tag("t").await,
            What::All => cache.invalidate_all().await,
        };
        self.raise(written);
    }
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
struct Asking {
    key: usize,
    how: How,
    /// Milliseconds before and after the database is read.
    before: u32,
    after: u32,
    fails: bool,
    /// Milliseconds after which the caller goes away.
    patience: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Detached,
    Scoped,
    Refresh,
    Look,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Ask(Asking),
    Invalidate(What),
    Put(usize),
    MarkStale(usize),
    Switch(Mode),
    Pass(u32),
}

fn asking() -> impl Strategy<Value = Asking> {
    let how = prop_oneof![
        4 => Just(How::Detached),
        4 => Just(How::Scoped),
        1 => Just(How::Refresh),
        2 => Just(How::Look),
    ];
    let patience = prop::option::weighted(0.15, 0..30_u32);
    (0..KEYS, how, 0..20_u32, 0..20_u32, prop::bool::weighted(0.1), patience).prop_map(
        |(key, how, before, after, fails, patience)| Asking {
            key,
            how,
            before,
            after,
            fails,
            patience,
        },
    )
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![3 => (0..KEYS).prop_map(What::Key), 2 => Just(What::Tag), 1 => Just(What::All)]
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![3 => Just(Mode::On), 1 => Just(Mode::Observe), 1 => Just(Mode::Off)];
    prop_oneof![
        12 => asking().prop_map(Op::Ask),
        5 => what().prop_map(Op::Invalidate),
        1 => (0..KEYS).prop_map(Op::Put),
        1 => (0..KEYS).prop_map(Op::MarkStale),
        1 => mode.prop_map(Op::Switch),
        8 => (0..15_u32).prop_map(Op::Pass),
        1 => (0..300_u32).prop_map(Op::Pass),
    ]
}

type Computing = BoxFuture<'static, Result<u64, OriginError>>;

fn compute(world: &Arc<World>, asking: Asking) -> impl FnOnce() -> Computing + Send + use<> {
    let world = Arc::clone(world);
    move || {
        let call = world.calls.fetch_add(1, Ordering::SeqCst);
        async move {
            pass(MS * asking.before).await;
            let version = world.read(asking.key);
            pass(MS * asking.after).await;
            if asking.fails { Err(OriginError(call)) } else { Ok(version) }
        }
        .boxed()
    }
}

async fn answer(
    cache: &Stampede<u64>,
    world: &Arc<World>,
    asking: Asking,
) -> Result<Option<u64>, Error> {
    let (key, compute) = (asking.key, compute(world, asking));
    match asking.how {
        How::Look => return Ok(cache.get(key).await),
        // Only results that say so themselves have tags.
        _ if key < TAGGED => {
            let tagged = move || async move { compute().await.map(|v| Computed::new(v).tag("t")) };
            cache.get_or_compute_with(key, tagged).await
        }
        How::Detached => cache.get_or_compute(key, compute).await,
        How::Scoped => cache.get_or_compute_scoped(key, compute).await,
        How::Refresh => cache.refresh(key, compute).await,
    }
    .map(Some)
}

/// Asks, and fails if the answer is older than it may be.
async fn caller(cache: Stampede<u64>, world: Arc<World>, asking: Asking) {
    let floor = world.floor(asking.key);
    let answering = answer(&cache, &world, asking);
    let answered = match asking.patience {
        None => within(MINUTE, answering).await,
        Some(ms) => match tokio::time::timeout(MS * ms, answering).await {
            Ok(answered) => answered,
            Err(_) => return,
        },
    };
    match answered {
        Ok(None) => {}
        Ok(Some(version)) => assert!(version >= floor, "{asking:?}: {version} is below {floor}"),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Inner | ErrorKind::Held), "{error:?}");
        }
    }
}

async fn run(ops: Vec<Op>) {
    let world = Arc::new(World::default());
    let cache: Stampede<u64> = Stampede::builder("random")
        .ttl(50 * MS)
        .stale_for(50 * MS)
        .stale_if_error(150 * MS)
        .hold(10 * MS)
        .early_refresh(1.0)
        .build()
        .unwrap();
    let mut callers = Vec::new();
    for op in ops {
        match op {
            Op::Ask(asking) => {
                callers.push(spawn(caller(cache.clone(), Arc::clone(&world), asking)));
            }
            Op::Invalidate(what) => world.invalidate(&cache, what).await,
            Op::Put(key) => {
                let written = world.write(key..key + 1);
                let value = Computed::new(written[0].1);
                cache.put_with(key, if key < TAGGED { value.tag("t") } else { value }).await;
                world.raise(written);
            }
            Op::MarkStale(key) => {
                cache.mark_stale(key).await;
            }
            Op::Switch(mode) => cache.set_mode(mode),
            Op::Pass(ms) => pass(MS * ms).await,
        }
    }
    gather(callers).await;
    pass(SECOND).await;
    assert_quiet(&cache);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases("INVALIDATION_MODEL_CASES", 300),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nobody_gets_a_version_older_than_the_last_invalidation_before_it_asked(
        ops in prop::collection::vec(op(), 1..80),
    ) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(run(ops));
    }
}

/// One writer and several readers on real threads, as fast as they can.
#[test]
fn on_several_threads_nobody_gets_a_version_older_than_the_last_invalidation_either() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build();
    runtime.unwrap().block_on(async {
        let world = Arc::new(World::default());
        let cache: Stampede<u64> = settings().stale_for(MINUTE).build().unwrap();
        let writers_left = Arc::new(AtomicUsize::new(2));
        let readers: Vec<_> = (0..8)
            .map(|n| {
                let (cache, world) = (cache.clone(), Arc::clone(&world));
                let writers_left = Arc::clone(&writers_left);
                spawn(async move {
                    while writers_left.load(Ordering::SeqCst) > 0 {
                        read_racing(&cache, &world, n % KEYS).await;
                        // A hit awaits nothing: the writers want their turn.
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for seed in 0..2 {
            let (cache, world) = (cache.clone(), Arc::clone(&world));
            let writers_left = Arc::clone(&writers_left);
            spawn(async move {
                let mut rng = fastrand::Rng::with_seed(seed);
                for _ in 0..5000 {
                    let what = match rng.u8(..6) {
                        0..3 => What::Key(rng.usize(..KEYS)),
                        3..5 => What::Tag,
                        _ => What::All,
                    };
                    world.invalidate(&cache, what).await;
                    tokio::task::yield_now().await;
                }
                writers_left.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for reader in readers {
            reader.await.unwrap();
        }
        assert!(world.calls.load(Ordering::SeqCst) > 0);
        assert_eq!(cache.stats().flights, 0);
    });
}

async fn read_racing(cache: &Stampede<u64>, world: &Arc<World>, key: usize) {
    let floor = world.floor(key);
    let reading = Arc::clone(world);
    let compute = move || async move {
        reading.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let version = reading.read(key);
        tokio::task::yield_now().await;
        let computed = Computed::new(version);
        Ok::<_, OriginError>(if key < TAGGED { computed.tag("t") } else { computed })
    };
    let version = cache.get_or_compute_with(key, compute).await.unwrap();
    assert!(version >= floor, "key {key}: {version} is below {floor}");
}
