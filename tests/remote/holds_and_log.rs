//! What a hostile reader of the distributed half suspected, and what is true.

use std::time::Duration;

use tower_stampede::remote::{Double, RemoteErrorKind, RemoteOp};
use tower_stampede::{Computed, Health};

use crate::kit::origin::*;
use crate::kit::remote::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn load_tagged(process: &Process, origin: &Origin, ttl: Duration) -> u64 {
    let origin = origin.clone();
    let compute = move || async move {
        let value = origin.load().await?;
        Ok::<_, OriginError>(Computed::new(value).ttl(ttl).tag("t"))
    };
    process.get_or_compute_with("k", compute).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_refresh_asked_for_by_name_is_not_held_back_by_the_hold_of_a_failure() {
    let (double, origin) = (Double::new(), Origin::new());
    let processes = Process::several(2, &double).await;
    origin.next([Answer::Fail]);
    assert!(processes[0].get_or_compute("k", origin.compute()).await.is_err());
    all_have_run().await;
    for process in &processes {
        let calls = origin.calls();
        let refreshed = process.refresh_with("k", origin.compute()).await;
        assert_eq!(refreshed.ok(), Some(calls as u64 + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalidated_entry_with_a_long_life_stays_dead_whoever_trims_the_log() {
    let (double, origin) = (Double::new(), Origin::new());
    let long = Process::on(&double);
    assert_eq!(load_tagged(&long, &origin, 30 * DAY).await, 1);
    all_have_run().await;
    long.invalidate_tag("t").await;
    drop(long);
    pass(3 * DAY).await;
    // Knows nothing of entries that live so long.
    let other = Process::on(&double);
    other.prepare(&double).await;
    pass(2 * 60 * MINUTE).await;
    drop(other);
    let new = Process::on(&double);
    assert_eq!(load_tagged(&new, &origin, 30 * DAY).await, 2, "what was invalidated is back");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_invalidates_all_the_time_comes_back_to_the_remote() {
    let double = Double::new();
    double.delay(2 * MS);
    let one = Process::on(&double);
    one.prepare(&double).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Unavailable);
    let busy = one.clone();
    let invalidating = tokio::spawn(async move {
        for n in 0_u64.. {
            busy.invalidate(n).await;
            pass(4 * MS).await;
        }
    });
    pass(SECOND).await;
    assert_eq!(one.health(), Health::Degraded);
    double.heal(RemoteOp::ALL);
    let back = async {
        while one.health() != Health::Up {
            all_have_run().await;
        }
    };
    within(10 * SECOND, back).await;
    invalidating.abort();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_only_puts_makes_up_for_an_outage_as_well() {
    let (double, origin) = (Double::new(), Origin::new());
    let writer = Process::on(&double);
    writer.put("k", 7).await;
    double.fail(RemoteOp::ALL, RemoteErrorKind::Unavailable);
    writer.put("k", 8).await;
    double.heal(RemoteOp::ALL);
    pass(10 * SECOND).await;
    let reader = Process::on(&double);
    assert_ne!(reader.get_or_compute("k", origin.compute()).await.unwrap(), 7);
    assert_eq!(writer.health(), Health::Up);
}
