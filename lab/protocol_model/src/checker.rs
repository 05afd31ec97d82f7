//! A breadth-first search of all states that a model can reach.
//!
//! States are kept as 64-bit fingerprints with the number of their parent and the number of
//! the step that led from it. So the first counter-example is one of the shortest, and ten
//! million states need some 300 MB. Two states with the same fingerprint would be taken for one:
//! at ten million states the chance that this happens at all is about 1 in 400,000.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

/// What is searched.
pub trait Model {
    type State: Clone + Hash;
    type Step: Debug;
    fn initial(&self) -> Self::State;
    /// All states that one step leads to, always in the same order.
    fn next(&self, state: &Self::State, found: &mut Vec<(Self::Step, Self::State)>);
    /// The invariant that this state breaks.
    fn violation(&self, state: &Self::State) -> Option<&'static str>;
}

/// The end of a search.
pub struct Outcome {
    pub states: usize,
    pub time: Duration,
    /// All states were seen, or a counter-example ended the search.
    pub is_complete: bool,
    pub counter_example: Option<CounterExample>,
}

pub struct CounterExample {
    pub invariant: &'static str,
    pub steps: Vec<String>,
}

/// Searches at most `max_states` states.
pub fn search<M: Model>(model: &M, max_states: usize) -> Outcome {
    let start = Instant::now();
    let mut seen: HashSet<u64, BuildHasherDefault<Identity>> = HashSet::default();
    let mut parents: Vec<(u32, u16)> = Vec::new();
    let mut layer = vec![(0_u32, model.initial())];
    seen.insert(fingerprint(&layer[0].1));
    parents.push((0, 0));
    let mut found = Vec::new();
    let mut is_complete = true;
    let outcome = |states, is_complete, counter_example| Outcome {
        states,
        time: start.elapsed(),
        is_complete,
        counter_example,
    };
    if let Some(invariant) = model.violation(&layer[0].1) {
        let example = CounterExample { invariant, steps: Vec::new() };
        return outcome(1, true, Some(example));
    }
    while !layer.is_empty() {
        let mut following = Vec::new();
        for (number, state) in layer {
            model.next(&state, &mut found);
            for (step, (_, child)) in found.drain(..).enumerate() {
                if !seen.insert(fingerprint(&child)) {
                    continue;
                }
                let child_number = u32::try_from(parents.len()).expect("fewer than 2^32 states");
                parents.push((number, u16::try_from(step).expect("fewer than 2^16 steps")));
                if let Some(invariant) = model.violation(&child) {
                    let steps = trace(model, &parents, child_number);
                    let example = CounterExample { invariant, steps };
                    return outcome(parents.len(), true, Some(example));
                }
                if parents.len() < max_states {
                    following.push((child_number, child));
                } else {
                    is_complete = false;
                }
            }
        }
        layer = following;
    }
    outcome(parents.len(), is_complete, None)
}

/// Runs the steps again that led to a state, to name them.
fn trace<M: Model>(model: &M, parents: &[(u32, u16)], last: u32) -> Vec<String> {
    let mut way = Vec::new();
    let mut at = last;
    while at != 0 {
        let (parent, step) = parents[at as usize];
        way.push(usize::from(step));
        at = parent;
    }
    let mut state = model.initial();
    let mut steps = Vec::new();
    for step in way.into_iter().rev() {
        let mut found = Vec::new();
        model.next(&state, &mut found);
        let (name, next) = found.swap_remove(step);
        steps.push(format!("{name:?}"));
        state = next;
    }
    steps
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut mix = Mix(0x9e37_79b9_7f4a_7c15);
    state.hash(&mut mix);
    mix.finish()
}

/// A hash that is quick for states of many small numbers.
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u8(byte);
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number ^ 0xa076_1d64_78bd_642f)
            * u128::from(self.0.rotate_left(29) ^ 0xe703_7ed1_a0b4_28db);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }
}

/// The hash of a fingerprint is the fingerprint.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
