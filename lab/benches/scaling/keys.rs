//! One key, and a million.

use bytes::Bytes;
use stats_alloc::Region;

use crate::ALLOCATOR;
use crate::draw::{Chart, line, points};
use crate::report::{Figure, Part, Profile, Role};
use crate::subjects::{self, Pair, paired, slice};

const KEYS: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];

struct Row {
    keys: f64,
    hit: Pair,
    our_bytes: f64,
    moka_bytes: f64,
}

pub(crate) fn measure(profile: Profile, part: &mut Part) {
    let rows: Vec<_> = KEYS.iter().map(|keys| row(profile, *keys)).collect();
    say(part, &rows);
    draw(part, &rows);
}

fn row(profile: Profile, keys: u64) -> Row {
    // The same bytes for all, so that only what an entry adds is counted.
    let value = Bytes::from_static(&[b'x'; 1024]);
    let (our_bytes, ours) = weighed(keys, || subjects::ours(keys, &value));
    let (moka_bytes, moka) = weighed(keys, || subjects::moka(keys, &value));
    let (slices, times) = (profile.pick(9, 31), profile.pick(20_000, 100_000));
    let ours = |turn| slice(&ours, keys, times, turn);
    let moka = |turn| slice(&moka, keys, times, turn);
    Row { keys: keys as f64, hit: paired(slices, times, ours, moka), our_bytes, moka_bytes }
}

/// Makes something of so many entries, and tells the bytes of each.
fn weighed<T>(keys: u64, make: impl FnOnce() -> T) -> (f64, T) {
    let region = Region::new(ALLOCATOR);
    let made = make();
    let change = region.change();
    let bytes = change.bytes_allocated as f64 - change.bytes_deallocated as f64;
    (bytes / keys as f64, made)
}

fn say(part: &mut Part, rows: &[Row]) {
    let (one, most) = (&rows[0], &rows[rows.len() - 1]);
    let slices = "median of paired slices";
    let figure = |id: &str, says: &str, value, unit| {
        Figure::new(&format!("scaling.{id}"), says, value, unit, slices)
    };
    let ratio = "our hit to moka's get";
    part.figures.extend([
        figure("hit_1_key_to_moka", &format!("{ratio}, 1 key"), one.hit.ratio, "").at_most(0.5),
        figure("hit_million_keys_to_moka", &format!("{ratio}, 1,000,000 keys"), most.hit.ratio, "")
            .at_most(0.6),
        figure("hit_million_keys_ns", "a hit among 1,000,000 keys", most.hit.ours, "ns"),
        figure("moka_million_keys_ns", "moka's get among 1,000,000 keys", most.hit.moka, "ns"),
    ]);
    let says = "memory of an entry among 1,000,000, its value not counted";
    let bytes = Figure::new("scaling.entry_bytes", says, most.our_bytes, "bytes", "of one run");
    part.figures.push(bytes);
    let says = "the same of moka alone";
    let bytes =
        Figure::new("scaling.moka_entry_bytes", says, most.moka_bytes, "bytes", "of one run");
    part.figures.push(bytes);
}

fn draw(part: &mut Part, rows: &[Row]) {
    let of = |value: fn(&Row) -> f64| points(rows, |row| (row.keys, value(row)));
    let chart = Chart {
        id: "scaling.keys",
        title: "A hit in memory, from one key to a million",
        caption: "One thread reads all keys in turn. What rises is the distance to memory: a \
                  million entries do not fit the processor's caches, moka's as little as ours.",
        x: ("keys held", ""),
        y: ("per hit", "ns"),
    };
    part.exhibits.push(chart.of(vec![
        line("get_or_compute", Role::Ours, of(|row| row.hit.ours)),
        line("moka get", Role::Without, of(|row| row.hit.moka)),
    ]));
    let chart = Chart {
        id: "scaling.keys_memory",
        title: "Memory of one entry",
        caption: "Bytes on the heap for each entry, the value itself not counted: all share one. \
                  With few keys it is the empty cache that is divided among them.",
        x: ("keys held", ""),
        y: ("bytes per entry", "bytes"),
    };
    part.exhibits.push(chart.of(vec![
        line("ours", Role::Ours, of(|row| row.our_bytes)),
        line("moka", Role::Without, of(|row| row.moka_bytes)),
    ]));
}
