//! `allocations PEER` prints how many a hit takes.

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

fn main() {
    let peer = std::env::args().nth(1).expect("the name of a peer");
    println!("{}", peers::allocations(&peer, || ALLOCATOR.stats().allocations));
}
