//! Shared streams in a case: a cache of their own beside that of the values, with the same
//! operations on both, and the rules for what readers get, what is stored and what runs.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower_stampede::{
    Chunks, ErrorKind, Mode, Producer, Recording, Stampede, StreamError, StreamErrorKind,
};

use crate::case::{Settings, StreamEnd, StreamPlan};
use crate::world::key_of;

/// The number of the producer, and that of the chunk.
type Chunk = (usize, usize);
type Broken = (&'static str, String);

/// How long a producer may be silent.
const CHUNK_TIMEOUT: Duration = Duration::from_millis(50);

/// How many bytes of a tight stream are kept: one chunk or two.
const TIGHT: u64 = 110;

/// So far is a producer ahead of its slowest reader, once nothing is kept.
const WINDOW: usize = 64;

/// What one producer has done.
#[derive(Debug)]
struct Life {
    plan: StreamPlan,
    reader: usize,
    /// Whether the cache was on then: else no `compute_timeout` ends its silence.
    is_on: bool,
    /// How many cuts were over when its reader asked. One that had to wait for its place may have begun
    /// after a cut, and counts as from before it all the same.
    cuts: usize,
    produced: usize,
    /// Whether all of it was produced.
    is_whole: bool,
    is_gone: bool,
}

impl Life {
    /// Whether it is stored once it has ended.
    fn is_kept(&self) -> bool {
        self.plan.keeps && !(self.plan.is_tight && self.produced > 2)
    }

    /// Whether its readers may get this error.
    fn may_end(&self, kind: StreamErrorKind, has_jumped: bool) -> bool {
        match (kind, self.plan.end) {
            (StreamErrorKind::Inner, StreamEnd::Fails)
            | (StreamErrorKind::CutOff, StreamEnd::Panics)
            | (StreamErrorKind::ChunkTimeout, StreamEnd::Hangs) => true,
            (StreamErrorKind::ChunkTimeout, _) => has_jumped,
            (StreamErrorKind::Stalled, _) => self.plan.is_tight && self.produced > WINDOW,
            _ => false,
        }
    }
}

#[derive(Debug, Default)]
struct History {
    lives: Vec<Life>,
    /// How many invalidations and marks have begun or ended.
    cuts: usize,
    /// The first producer of each key whose chunks may be stored.
    oldest: BTreeMap<usize, usize>,
    /// What has let another producer begin beside one that runs, for good.
    is_free: bool,
    is_off: bool,
    has_jumped: bool,
    broken: Vec<Broken>,
}

type Shared = Arc<Mutex<History>>;

/// Notes that the producer's stream is dropped.
struct Gone(Shared, usize);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.lock().unwrap().lives[self.1].is_gone = true;
    }
}

/// A caller that reads as many chunks as it was let.
struct StreamReader {
    may_read: Arc<Semaphore>,
    task: JoinHandle<()>,
}

pub(crate) struct Streams {
    pub(crate) cache: Stampede<Recording<Chunk>>,
    history: Shared,
    readers: Vec<StreamReader>,
    limit: usize,
}

impl Streams {
    pub(crate) fn new(settings: &Settings) -> Self {
        let ms = Duration::from_millis;
        let mut builder = Stampede::builder("streams")
            .ttl(ms(settings.ttl))
            .jitter(0.0)
            .stale_for(ms(settings.stale_for))
            .compute_timeout(ms(settings.compute_timeout))
            .wait_timeout(ms(settings.wait_timeout))
            .hold(ms(settings.hold))
            .max_hold(ms(settings.max_hold))
            .max_computations(settings.max_computations)
            .max_refreshes(settings.max_refreshes);
        if settings.compute_after_wait {
            builder = builder.compute_after_wait();
        }
        let history = Shared::default();
        // A caller that has waited long enough computes beside the one that runs.
        history.lock().unwrap().is_free = settings.compute_after_wait;
        Self {
            cache: builder.build().expect("the settings fit together"),
            history,
            readers: Vec::new(),
            limit: settings.max_computations,
        }
    }

    pub(crate) fn begin(&mut self, plan: StreamPlan) {
        let (cache, history) = (self.cache.clone(), Arc::clone(&self.history));
        let may_read = Arc::new(Semaphore::new(0));
        let permits = Arc::clone(&may_read);
        let cuts = self.history.lock().unwrap().cuts;
        let produce = produce(&self.history, self.readers.len(), plan, (self.limit, cuts));
        let task = tokio::spawn(async move {
            let key = key_of(plan.key);
            let asked = cache.entry(key.as_str()).tag("t").get_or_stream(produce).await;
            match asked {
                Ok(chunks) => {
                    read(chunks, plan.key, &permits, &history).await;
                    check_stored(&cache, &history, plan.key).await;
                }
                Err(error) if error.kind() == ErrorKind::ShutDown => {
                    let broken = ("a stream is cut off by a shutdown alone", String::new());
                    history.lock().unwrap().broken.push(broken);
                }
                Err(_) => {}
            }
        });
        self.readers.push(StreamReader { may_read, task });
    }

    pub(crate) fn read(&self, reader: usize, chunks: usize) {
        if let Some(reader) = self.readers.get(reader) {
            reader.may_read.add_permits(chunks);
        }
    }

    pub(crate) fn leave(&self, reader: usize) {
        self.readers.iter().skip(reader).take(1).for_each(|reader| reader.task.abort());
    }

    /// A mark, or the beginning of an invalidation: another producer may begin.
    pub(crate) fn cut(&self) {
        self.history.lock().unwrap().cuts += 1;
    }

    /// An invalidation of these keys has ended.
    pub(crate) fn invalidated(&self, keys: impl IntoIterator<Item = usize>) {
        let mut history = self.history.lock().unwrap();
        history.cuts += 1;
        let next = history.lives.len();
        history.oldest.extend(keys.into_iter().map(|key| (key, next)));
    }

    pub(crate) fn switch(&self, mode: Mode) {
        // At the end of each case it is switched on.
        if self.cache.mode() != mode {
            self.set_free();
        }
        self.history.lock().unwrap().is_off = mode != Mode::On;
        self.cache.set_mode(mode);
    }

    fn set_free(&self) {
        self.history.lock().unwrap().is_free = true;
    }

    /// The clock jumped: past each time-out, maybe.
    pub(crate) fn jump(&self) {
        self.set_free();
        self.history.lock().unwrap().has_jumped = true;
    }

    /// Looks at what is stored of a key.
    pub(crate) async fn check_stored(&self, key: usize) {
        check_stored(&self.cache, &self.history, key).await;
    }

    /// Lets each reader read on; only those leave for whom no time-out ends the wait.
    pub(crate) fn let_read(&self) {
        self.readers.iter().for_each(|reader| reader.may_read.add_permits(1_000));
        let history = self.history.lock().unwrap();
        let is_endless = |life: &&Life| {
            let hangs = matches!(life.plan.end, StreamEnd::Hangs);
            !life.is_on && hangs && life.plan.chunks == 0
        };
        let endless = history.lives.iter().filter(is_endless).map(|life| life.reader);
        endless.for_each(|reader| self.readers[reader].task.abort());
    }

    /// Called when all that can end has had the time to.
    pub(crate) fn check_rest(&self) {
        let stuck = self.readers.iter().filter(|reader| !reader.task.is_finished()).count();
        let stats = self.cache.stats();
        let mut history = self.history.lock().unwrap();
        let left = history.lives.iter().filter(|life| !life.is_gone).count();
        if stuck > 0 || left > 0 {
            let detail = format!("{stuck} readers, {left} producers: {history:?}");
            history.broken.push(("no stream and no reader is without an end", detail));
        }
        let left = (stats.flights, stats.waiting, stats.arriving_bytes);
        if left != (0, 0, 0) {
            history.broken.push(("nothing is left over of a stream", format!("{left:?}")));
        }
    }

    pub(crate) fn broken(&self) -> Vec<Broken> {
        std::mem::take(&mut self.history.lock().unwrap().broken)
    }
}

/// Looks at what is stored of a key.
async fn check_stored(cache: &Stampede<Recording<Chunk>>, history: &Shared, key: usize) {
    let Some(stored) = cache.get(key_of(key).as_str()).await else { return };
    // The value of a stream that arrives is there for its readers.
    let Some(chunks) = stored.chunks() else { return };
    let chunks: Vec<Chunk> = chunks.copied().collect();
    let Some((producer, _)) = chunks.first() else { return };
    let mut history = history.lock().unwrap();
    let life = &history.lives[*producer];
    let is_whole = life.is_whole && life.produced == chunks.len() && life.plan.key == key;
    let is_older = history.oldest.get(&key).is_some_and(|oldest| producer < oldest);
    let rule = match is_older {
        true => "an invalidated stream is not stored",
        false if !is_whole || !life.is_kept() => "only a whole stream is stored",
        false => return,
    };
    let detail = format!("{chunks:?} of {life:?}");
    history.broken.push((rule, detail));
}

/// Reads as much as it may, and checks what it gets.
async fn read(mut chunks: Chunks<Chunk>, key: usize, permits: &Semaphore, history: &Shared) {
    let mut read: Vec<Chunk> = Vec::new();
    loop {
        permits.acquire().await.expect("it is never closed").forget();
        let next = chunks.next().await;
        let mut history = history.lock().unwrap();
        match next {
            Some(Ok(chunk)) => {
                let first = read.first().map_or(chunk.0, |first| first.0);
                let is_next = chunk == (first, read.len());
                read.push(chunk);
                if !is_next || history.lives[first].plan.key != key {
                    let rule = "a reader gets the chunks of one producer, from the first";
                    history.broken.push((rule, format!("{read:?}")));
                }
            }
            Some(Err(error)) => return history.check_error(&read, &error),
            None => return history.check_end(&read, key),
        }
    }
}

impl History {
    fn check_error(&mut self, read: &[Chunk], error: &StreamError) {
        let life = read.first().map(|(producer, _)| &self.lives[*producer]);
        let is_due = life.is_some_and(|life| life.may_end(error.kind(), self.has_jumped));
        if !is_due {
            let detail = format!("{error:?} after {read:?} of {life:?}");
            self.broken.push(("a reader gets an error of its producer only", detail));
        }
    }

    fn check_end(&mut self, read: &[Chunk], key: usize) {
        let is_whole = |life: &Life| life.is_whole && life.produced == read.len();
        let is_due = match read.first() {
            Some((producer, _)) => is_whole(&self.lives[*producer]),
            None => self.lives.iter().any(|life| life.plan.key == key && is_whole(life)),
        };
        if !is_due {
            let detail = format!("{read:?} of key {key}: {:?}", self.lives);
            self.broken.push(("a stream ends with its whole", detail));
        }
    }
}

fn produce(
    history: &Shared,
    reader: usize,
    plan: StreamPlan,
    (limit, cuts): (usize, usize),
) -> impl FnOnce() -> Producer<Chunk> + Send + use<> {
    let history = Arc::clone(history);
    move || {
        let number = history.lock().unwrap().begin(reader, plan, (limit, cuts));
        let gone = Gone(Arc::clone(&history), number);
        let chunks = stream::unfold((0, gone), move |(next, gone)| async move {
            tokio::time::sleep(Duration::from_millis(plan.pause)).await;
            if next < plan.chunks {
                gone.0.lock().unwrap().lives[number].produced = next + 1;
                return Some((Ok((number, next)), (next + 1, gone)));
            }
            match plan.end {
                StreamEnd::Ends => {
                    gone.0.lock().unwrap().lives[number].is_whole = true;
                    None
                }
                StreamEnd::Fails => {
                    Some((Err(io::Error::other("the producer fails")), (next + 1, gone)))
                }
                StreamEnd::Panics => {
                    std::panic::resume_unwind(Box::new(crate::world::ScriptedPanic))
                }
                StreamEnd::Hangs => std::future::pending().await,
            }
        });
        let producer = Producer::new(Box::pin(chunks)).chunk_timeout(CHUNK_TIMEOUT);
        let max_bytes = if plan.is_tight { TIGHT } else { u64::MAX };
        producer.max_bytes(max_bytes).store_if(move |_| plan.keeps)
    }
}

impl History {
    /// Notes a producer, and checks that it may begin.
    fn begin(&mut self, reader: usize, plan: StreamPlan, (limit, cuts): (usize, usize)) -> usize {
        // One that was too large to be kept goes on for its readers alone.
        let running = self.lives.iter().filter(|life| !life.is_gone && !life.plan.is_tight);
        let is_same = |life: &&Life| life.plan.key == plan.key && life.cuts == self.cuts;
        let (beside, running) = (running.clone().filter(is_same).count(), running.count());
        if !self.is_free && (beside > 0 || running >= limit) {
            let rule = match beside > 0 {
                true => "one producer of a key runs at a time",
                false => "producers take places of `max_computations`",
            };
            let detail = format!("{plan:?}, {beside} of its key, {running} in all: {self:?}");
            self.broken.push((rule, detail));
        }
        let is_on = !self.is_off;
        let (produced, is_whole, is_gone) = (0, false, false);
        self.lives.push(Life { plan, reader, is_on, cuts, produced, is_whole, is_gone });
        self.lives.len() - 1
    }
}
