//! Fresh reads beside writers, on several threads in real time: a register that is read through
//! the cache is linearizable.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use tower_stampede::{Cache, Stampede};

use crate::kit::origin::*;

/// A register behind a service. Writes are numbered, so a read is out of date if it returns a
/// lower number than the newest write that had completed before the read began.
#[derive(Clone, Default)]
struct Register(Arc<AtomicU64>);

impl Register {
    /// What a computation does: it reads, and is at work for a while after that.
    async fn read(self) -> Result<u64, Infallible> {
        let value = self.0.load(SeqCst);
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        Ok(value)
    }

    /// Returns how many of `reads` reads were out of date, and how often the service was asked.
    /// Meanwhile other threads write.
    fn check<F>(&self, reads: u64, read: impl Fn() -> F + Clone + Send + 'static) -> u64
    where
        F: Future<Output = u64> + Send,
    {
        const READERS: u64 = 500;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(3).enable_time().build().unwrap();
        let end = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let (register, end) = (self.clone(), Arc::clone(&end));
                thread::spawn(move || {
                    while end.load(SeqCst) == 0 {
                        register.0.fetch_add(1, SeqCst);
                        thread::sleep(Duration::from_micros(20));
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (register, read) = (self.clone(), read.clone());
                runtime.spawn(async move {
                    let mut violations = 0;
                    for _ in 0..reads / READERS {
                        let before = register.0.load(SeqCst);
                        violations += u64::from(read().await < before);
                    }
                    violations
                })
            })
            .collect();
        let readers = runtime.block_on(futures_util::future::join_all(readers));
        end.store(1, SeqCst);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        readers.into_iter().map(Result::unwrap).sum()
    }
}

#[test]
fn no_fresh_read_of_a_million_is_older_than_a_write_that_had_completed() {
    let (register, cache) = (Register::default(), settings().build().unwrap());
    let read = {
        let (register, cache) = (register.clone(), cache.clone());
        move || {
            let (register, cache) = (register.clone(), cache.clone());
            async move { cache.refresh("k", || register.read()).await.unwrap() }
        }
    };
    assert_eq!(register.check(1_000_000, read), 0);
    let computations = cache.stats().computations;
    assert!(computations < 500_000, "{computations} computations for 1,000,000 reads");
}

#[test]
fn the_same_holds_for_a_cache_with_a_loader() {
    let register = Register::default();
    let handle: Stampede<u64> = settings().build().unwrap();
    let loaded = register.clone();
    let cache = Cache::new(handle, move |_: u32| loaded.clone().read());
    let read = move || {
        let cache = cache.clone();
        async move { cache.refresh(7).await.unwrap() }
    };
    assert_eq!(register.check(100_000, read), 0);
}

#[test]
fn the_check_finds_what_plain_reads_miss() {
    // Each value is out of date at once: the violations that are left are computations that began
    // too early.
    for ttl in [Duration::from_nanos(1), Duration::from_secs(60)] {
        let register = Register::default();
        let cache: Stampede<u64> = Stampede::builder("plain").ttl(ttl).jitter(0.0).build().unwrap();
        let read = {
            let register = register.clone();
            move || {
                let (register, cache) = (register.clone(), cache.clone());
                async move { cache.get_or_compute("k", || register.read()).await.unwrap() }
            }
        };
        let violations = register.check(20_000, read);
        assert!(violations > 0, "with a ttl of {ttl:?}");
    }
}
