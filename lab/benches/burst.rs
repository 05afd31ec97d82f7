//! Whether the price of an entry should count the callers that waited for it.
//!
//! `cargo bench -p tower-stampede-lab --bench burst -- --traces DIR`: DIR as for the bench `hit_ratio`. An
//! entry is stored when its computation ends. Each figure is the time that all callers wait, to that with
//! the price by the time of the computation alone: with what its waiters have waited added to it, and with
//! that time multiplied by the number of its callers.

#[path = "hit_ratio/cost.rs"]
mod cost;
#[path = "hit_ratio/store/mod.rs"]
mod store;
#[path = "hit_ratio/traces.rs"]
#[allow(dead_code, reason = "of a bench with more")]
mod traces;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasher;
use std::path::Path;

use store::policy::{MOST_USES, NodeId, Policy, Price};

/// How long after a request the next one comes.
const BETWEEN_MICROS: u64 = 500;

type Map<T> = HashMap<u64, T, foldhash::fast::FixedState>;

#[derive(Clone, Copy)]
enum Burst {
    Nothing,
    Waits,
    Callers,
}

struct Flight {
    ready: u64,
    waited: u64,
    callers: u64,
}

fn main() {
    let mut args = std::env::args().skip_while(|arg| arg != "--traces");
    // Under `cargo test` there is nothing to measure.
    let Some(directory) = args.nth(1) else { return };
    println!("| trace | entries | sigma | with waits | times callers |");
    println!("| --- | --- | --- | --- | --- |");
    let mut all = Vec::new();
    for trace in &traces::ALL {
        let Some(keys) = trace.read(Path::new(&directory)) else { continue };
        for (entries, sigma) in trace.sizes.into_iter().flat_map(|it| [(it, 1.0), (it, 2.0)]) {
            let waited = |burst| waiting(&keys, entries, sigma, burst);
            let without = waited(Burst::Nothing);
            let ratios = [Burst::Waits, Burst::Callers].map(|burst| waited(burst) / without);
            let [waits, callers] = ratios;
            println!("| {} | {entries} | {sigma} | {waits:.3} | {callers:.3} |", trace.name);
            all.push(ratios);
        }
    }
    let mean = |at: usize| all.iter().map(|it| it[at]).sum::<f64>() / all.len() as f64;
    println!("| mean | | | {:.3} | {:.3} |", mean(0), mean(1));
}

fn waiting(trace: &[u64], entries: usize, sigma: f64, burst: Burst) -> f64 {
    let mut policy = Policy::new(entries as u64, true);
    let (mut held, mut keys) = (Map::<(NodeId, u8)>::default(), Vec::<u64>::new());
    let (mut flights, mut ends) = (Map::<Flight>::default(), BinaryHeap::new());
    let mut costs = Map::<u64>::default();
    let mut waited = 0;
    for (turn, &key) in trace.iter().enumerate() {
        let now = turn as u64 * BETWEEN_MICROS;
        while let Some(&(Reverse(ready), key)) = ends.peek()
            && ready <= now
        {
            ends.pop();
            let Some(flight) = flights.remove(&key) else { continue };
            let price = match burst {
                Burst::Nothing => costs[&key],
                Burst::Waits => costs[&key] + flight.waited,
                Burst::Callers => costs[&key] * flight.callers,
            };
            let hash = foldhash::fast::FixedState::default().hash_one(key) as u32;
            let node = policy.insert(hash, 1, Price::of_micros(price));
            let at = node.0 as usize;
            keys.resize(keys.len().max(at + 1), 0);
            keys[at] = key;
            held.insert(key, (node, 0));
            let evicted = policy.evict(node, |stand| {
                let held = held.get_mut(&keys[stand.node.0 as usize]);
                held.map_or(0, |(_, uses)| std::mem::take(uses))
            });
            if let Some(evicted) = evicted {
                held.remove(&keys[evicted.node.0 as usize]);
            }
        }
        if let Some((_, uses)) = held.get_mut(&key) {
            *uses = (*uses + 1).min(MOST_USES);
        } else if let Some(flight) = flights.get_mut(&key) {
            let rest = flight.ready - now;
            (flight.waited, flight.callers) = (flight.waited + rest, flight.callers + 1);
            waited += rest;
        } else {
            let cost = *costs.entry(key).or_insert_with(|| cost::cost(key, sigma));
            flights.insert(key, Flight { ready: now + cost, waited: 0, callers: 1 });
            ends.push((Reverse(now + cost), key));
            waited += cost;
        }
    }
    waited as f64
}
