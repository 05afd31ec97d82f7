//! What reads bytes out of the remote, against ten million inputs of which most
//! are wrong: it may neither panic nor allocate more than the input is worth.
//!
//! `cargo bench -p tower-stampede-lab --bench decoder --features __fuzz`, with `-- --inputs N` and
//! `-- --seed N`. Prints how far the inputs came; any other end than exit code 0
//! is a finding, which the printed seed repeats. The folder `fuzz` has the same
//! as targets for libFuzzer.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use bytes::Bytes;
use fastrand::Rng;
use lexopt::{Arg, Parser, ValueExt};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower_stampede::__fuzz as door;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// A field of eight bytes is some hundred in a map that has room to grow.
const ALLOCATED_PER_BYTE: usize = 64;
const ALLOCATED_ANYWAY: usize = 4096;

struct Flags {
    inputs: u64,
    seed: u64,
}

fn main() -> Result<ExitCode, lexopt::Error> {
    let flags = flags()?;
    println!("{} inputs from seed {}", flags.inputs, flags.seed);
    let (started, mut random) = (Instant::now(), Rng::with_seed(flags.seed));
    let (responses, envelopes) = seeds();
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    let mut greedy = 0;
    for _ in 0..flags.inputs {
        let (seeds, read) = if random.u8(..) < 64 { &responses } else { &envelopes };
        let input = input(seeds, &mut random);
        greedy += u64::from(allocates_too_much(&input));
        let end = read(&input);
        *ends.entry(end).or_default() += 1;
    }
    for (end, count) in &ends {
        println!("{count:>10}  {end}");
    }
    println!("{greedy:>10}  allocated too much");
    println!("{} inputs read, {:.1} s", flags.inputs, started.elapsed().as_secs_f64());
    // Inputs that all end at the first check would test nothing.
    let came_far = ["response", "no response"].iter().all(|end| ends.contains_key(end));
    Ok(if greedy == 0 && came_far { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn flags() -> Result<Flags, lexopt::Error> {
    // `cargo test` starts benches too, without this word: a short run then.
    let mut flags = Flags { inputs: 20_000, seed: fastrand::u64(..) };
    let mut chosen = None;
    let mut parser = Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("bench") => flags.inputs = 10_000_000,
            Arg::Long("inputs") => chosen = Some(parser.value()?.parse()?),
            Arg::Long("seed") => flags.seed = parser.value()?.parse()?,
            // Names of benches and tests, which do not concern this bench.
            Arg::Value(_) => {}
            other => return Err(other.unexpected()),
        }
    }
    flags.inputs = chosen.unwrap_or(flags.inputs);
    Ok(flags)
}

/// Inputs that are right, and what reads them.
type Seeds = (Vec<Bytes>, fn(&Bytes) -> &'static str);

fn seeds() -> (Seeds, Seeds) {
    let responses = door::responses();
    let envelopes: Vec<_> = responses.iter().cloned().map(door::wrap).collect();
    assert!(responses.iter().all(|bytes| door::response(bytes) == "response"));
    assert!(envelopes.iter().all(|bytes| door::open(bytes) == "response"));
    ((responses, door::response), (envelopes, door::open))
}

fn input(seeds: &[Bytes], random: &mut Rng) -> Bytes {
    let mut bytes = seeds[random.usize(..seeds.len())].to_vec();
    if random.u8(..) < 32 {
        bytes.resize(random.usize(..400), 0);
        random.fill(&mut bytes);
    }
    for _ in 0..random.u8(..6) {
        change(&mut bytes, random);
    }
    // Half of them come past the checksum.
    if random.bool() {
        door::seal(&mut bytes);
    }
    bytes.into()
}

fn change(bytes: &mut Vec<u8>, random: &mut Rng) {
    if bytes.is_empty() {
        return bytes.push(random.u8(..));
    }
    let at = random.usize(..bytes.len());
    match random.u8(..8) {
        0 | 1 => bytes[at] ^= 1 << random.u8(..8),
        2 => bytes[at] = random.u8(..),
        3 => bytes[at] = *random.choice(&[0, 1, 0x7f, 0x80, 0xff]).expect("there are five"),
        4 => bytes.truncate(at),
        5 => bytes.insert(at, random.u8(..)),
        6 => drop(bytes.remove(at)),
        _ => {
            let chunk = bytes[at..bytes.len().min(at + 40)].to_vec();
            let to = random.usize(..=bytes.len());
            bytes.splice(to..to, chunk);
        }
    }
}

fn allocates_too_much(input: &Bytes) -> bool {
    let region = Region::new(ALLOCATOR);
    door::read(input);
    let change = region.change();
    change.bytes_allocated > ALLOCATED_PER_BYTE * input.len() + ALLOCATED_ANYWAY
}
