//! Work that no caller of its process waits for, while another process does.

use tower_stampede::remote::Double;

use crate::kit::origin::*;
use crate::kit::remote::*;

#[tokio::test(start_paused = true)]
async fn the_lease_of_cancelled_work_goes_to_a_process_that_waits_for_it_at_once() {
    let (double, origin) = (Double::new(), Origin::taking(3 * SECOND));
    let builder = || settings().cancel_unwanted(0.5);
    let processes = Process::several_with(2, &double, builder).await;
    let leader = processes[0].spawn(&origin);
    all_have_run().await;
    let waiter = processes[1].spawn(&origin);
    pass(SECOND).await;
    assert_eq!(origin.calls(), 1);
    leader.abort();
    pass(5 * MS).await;
    assert_eq!((origin.calls(), origin.running(), origin.dropped()), (2, 1, 1));
    assert_eq!(within(3 * SECOND, waiter).await.unwrap().unwrap(), 2);
    assert_eq!(processes[0].load(&origin).await, 2);
    for process in &processes {
        assert_quiet(process);
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_is_cancelled_leaves_no_lock_behind() {
    let (double, origin) = (Double::new(), Origin::taking(30 * SECOND));
    let processes = Process::several_with(2, &double, || settings().cancel_unwanted(0.5)).await;
    let leader = processes[0].spawn(&origin);
    pass(SECOND).await;
    leader.abort();
    pass(MS).await;
    let quick = Origin::new();
    assert_eq!(within(50 * MS, processes[1].load(&quick)).await, 1);
}
