//! Traces of real systems, from a folder that the caller names.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A trace, and the numbers of entries that a cache may hold of it: chosen before anything was
/// measured, a factor of four below and above the size that the trace's own publishers show.
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    file: &'static str,
    form: Form,
    pub(crate) sizes: [usize; 3],
}

enum Form {
    /// Keys of so many bytes, the highest byte first.
    Keys(usize),
    /// Lines `start count ...`: the keys from start on.
    Ranges,
}

const fn around(size: usize) -> [usize; 3] {
    [size / 4, size, size * 4]
}

const fn trace(
    name: &'static str,
    source: &'static str,
    file: &'static str,
    form: Form,
    size: usize,
) -> Trace {
    Trace { name, source, file, form, sizes: around(size) }
}

const CACHE2K: &str = "caffeine's simulator, from cache2k";

pub(crate) const ALL: [Trace; 8] = [
    trace("OLTP", "moka-rs/cache-trace, from the ARC paper", "OLTP.zst", Form::Ranges, 1_000),
    trace("P3", "moka-rs/cache-trace, from the ARC paper", "P3.zst", Form::Ranges, 40_000),
    trace("web07", CACHE2K, "web07.trace.xz", Form::Keys(4), 1_200),
    trace("web12", CACHE2K, "web12.trace.xz", Form::Keys(4), 1_200),
    trace("orm-busy", CACHE2K, "orm-busy.trace.xz", Form::Keys(4), 500),
    trace("orm-night", CACHE2K, "orm-night.trace.xz", Form::Keys(4), 500),
    trace(
        "w106",
        "caffeine's simulator, from CloudPhysics",
        "w106.trace.xz",
        Form::Keys(4),
        16_000,
    ),
    trace(
        "scarab",
        "caffeine's simulator, from Scarab",
        "scarab-recs.trace.xz",
        Form::Keys(8),
        80_000,
    ),
];

impl Trace {
    /// Returns the keys in the order in which they are asked for; none where the file is missing.
    pub(crate) fn read(&self, directory: &Path) -> Option<Vec<u64>> {
        let path = directory.join(self.file);
        if !path.exists() {
            eprintln!("{}: not there, left out", path.display());
            return None;
        }
        let bytes = unpacked(&path);
        Some(match self.form {
            Form::Keys(width) => bytes.chunks_exact(width).map(number).collect(),
            Form::Ranges => ranges(&String::from_utf8_lossy(&bytes)),
        })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn ranges(text: &str) -> Vec<u64> {
    let line = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
        let (start, count) = (numbers.next()?, numbers.next()?);
        Some(start..start + count)
    };
    text.lines().filter_map(line).flatten().collect()
}

fn unpacked(path: &PathBuf) -> Vec<u8> {
    let program = if path.extension().is_some_and(|end| end == "xz") { "xz" } else { "zstd" };
    let output = Command::new(program).arg("-dc").arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    assert!(output.status.success(), "{program} cannot unpack {}", path.display());
    output.stdout
}
