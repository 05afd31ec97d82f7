//! What a bench found, in a form that the report draws and a test compares
//! with the README.
//!
//! Each bench that is given `--out DIR` writes one [`Part`] to
//! `DIR/parts/NAME.json`. `cargo bench -p tower-stampede-benches --bench load` writes its own and puts
//! all parts of the directory together: `DIR/results.json` and
//! `DIR/report.html`.

// Each bench uses a part of this.
#![allow(dead_code)]

mod machine;
pub(crate) mod page;
mod profile;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

#[allow(unused_imports, reason = "each bench uses a part of this")]
pub(crate) use machine::{Machine, redis_version, said};
#[allow(unused_imports, reason = "each bench uses a part of this")]
pub(crate) use profile::Profile;

/// Everything that one command found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Names the file and begins the names of its figures: `hit`.
    pub(crate) name: String,
    pub(crate) title: String,
    /// The command that finds it again.
    pub(crate) command: String,
    /// UTC, RFC 3339.
    pub(crate) date: String,
    pub(crate) machine: Machine,
    /// What else took part: `redis-server` to `7.0.15`.
    pub(crate) versions: Vec<(String, String)>,
    /// How it was measured and what it does not show, a sentence each.
    pub(crate) notes: Vec<String>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) exhibits: Vec<Exhibit>,
}

/// One number that a text may quote.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Unique in the report, beginning with the part: `hit.generic_to_moka`.
    pub(crate) id: String,
    /// `a hit of get_or_compute to moka's get, 1 key`.
    pub(crate) says: String,
    pub(crate) value: f64,
    /// `ms`, `µs`, `ns`, `calls`, `allocations`, `bytes`; empty for a ratio.
    pub(crate) unit: String,
    /// `median of 31 paired slices`.
    pub(crate) statistic: String,
    pub(crate) bound: Option<Bound>,
}

/// What a figure has to be.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Bound {
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
    /// Counts are: a broken one ends the run with a failure. Times are not:
    /// the machine may be busy with something else.
    pub(crate) ends_the_run: bool,
}

/// Something to look at. Its numbers stand in a table beside it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Exhibit {
    /// Unique in the report: `load.cold_herd.latency`.
    pub(crate) id: String,
    pub(crate) title: String,
    /// What to see in it, and under which circumstances; a sentence or two.
    pub(crate) caption: String,
    pub(crate) content: Content,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Content {
    /// One line for each series.
    Lines {
        x: Axis,
        y: Axis,
        series: Vec<Series>,
    },
    /// Horizontal bars, a group for each category, a bar for each series.
    Bars {
        value: Axis,
        categories: Vec<String>,
        series: Vec<BarSeries>,
    },
    Table {
        columns: Vec<String>,
        rows: Vec<Vec<Cell>>,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) unit: String,
    pub(crate) scale: Scale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scale {
    Linear,
    Log,
    /// Of a percentile, 0 to 100: equal steps from 90 to 99 to 99.9.
    Percentile,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Of each point x and y, in the order of x.
    pub(crate) points: Vec<(f64, f64)>,
    /// A count in a slice of time stays as it is until the next.
    pub(crate) steps: bool,
}

/// Decides the colour: ours is the same one in every chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Ours,
    /// The same load without the layer, the bare service, the floor.
    Without,
    Other,
    /// Where a bound lies.
    Bound,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BarSeries {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// One for each category; none where it could not be measured.
    pub(crate) values: Vec<Option<f64>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    Number(f64),
    Text(String),
}

impl Part {
    pub(crate) fn new(name: &str, title: &str, command: &str) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            command: command.into(),
            date: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            machine: Machine::this(),
            versions: Vec::new(),
            notes: Vec::new(),
            figures: Vec::new(),
            exhibits: Vec::new(),
        }
    }

    /// Writes `DIR/parts/NAME.json` and prints the figures. Fails if a figure
    /// broke a bound that ends the run.
    pub(crate) fn finish(&self, out: Option<&Path>) -> ExitCode {
        for figure in &self.figures {
            println!("{figure}");
        }
        if let Some(directory) = out
            && let Err(error) = self.write(directory)
        {
            eprintln!("{}: {error}", directory.display());
            return ExitCode::FAILURE;
        }
        let broken = self.figures.iter().filter(|figure| figure.is_fatal()).count();
        if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let parts = directory.join("parts");
        fs::create_dir_all(&parts)?;
        let text = serde_json::to_string_pretty(self)?;
        // A number that is infinite or none is written as `null`. What cannot be read back ends the
        // bench that measured it, and not the last one, which puts the page together.
        serde_json::from_str::<Self>(&text)?;
        fs::write(parts.join(format!("{}.json", self.name)), text + "\n")
    }
}

impl Figure {
    pub(crate) fn new(id: &str, says: &str, value: f64, unit: &str, statistic: &str) -> Self {
        Self {
            id: id.into(),
            says: says.into(),
            value,
            unit: unit.into(),
            statistic: statistic.into(),
            bound: None,
        }
    }

    /// A goal: a missed one is shown, and does not end the run.
    pub(crate) fn at_most(mut self, limit: f64) -> Self {
        self.bound_mut().at_most = Some(limit);
        self
    }

    /// As [`at_most`](Self::at_most), from below.
    pub(crate) fn at_least(mut self, limit: f64) -> Self {
        self.bound_mut().at_least = Some(limit);
        self
    }

    /// A bound that is broken ends the run with a failure.
    pub(crate) fn or_fail(mut self) -> Self {
        self.bound_mut().ends_the_run = true;
        self
    }

    fn bound_mut(&mut self) -> &mut Bound {
        self.bound.get_or_insert(Bound { at_least: None, at_most: None, ends_the_run: false })
    }

    pub(crate) fn is_met(&self) -> bool {
        self.bound.is_none_or(|bound| {
            bound.at_least.is_none_or(|limit| self.value >= limit)
                && bound.at_most.is_none_or(|limit| self.value <= limit)
        })
    }

    fn is_fatal(&self) -> bool {
        !self.is_met() && self.bound.is_some_and(|bound| bound.ends_the_run)
    }
}

/// Why a figure is not what it has to be.
impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.ends_the_run { "BROKEN:" } else { "MISSED:" })?;
        if let Some(limit) = self.at_least {
            write!(f, " at least {limit}")?;
        }
        if let Some(limit) = self.at_most {
            write!(f, " at most {limit}")?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, value, unit, says, statistic, .. } = self;
        write!(f, "{id}: {value:.3} {unit} ({says}; {statistic})")?;
        match self.bound {
            Some(bound) if !self.is_met() => write!(f, " {bound}"),
            _ => Ok(()),
        }
    }
}

impl Axis {
    pub(crate) fn new(label: &str, unit: &str, scale: Scale) -> Self {
        Self { label: label.into(), unit: unit.into(), scale }
    }
}

/// The value of `--out DIR` among the arguments.
pub(crate) fn out_directory(args: &[String]) -> Option<PathBuf> {
    path_of(args, "--out")
}

/// The path that follows a flag among the arguments. A relative path starts at the root of the
/// repository, where the command is typed: cargo starts a bench in the folder of its package.
pub(crate) fn path_of(args: &[String], flag: &str) -> Option<PathBuf> {
    let at = args.iter().position(|arg| arg == flag)?;
    let path = args.get(at + 1).unwrap_or_else(|| panic!("{flag} is followed by a path"));
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The lock file is in the root.
    let root = package.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    Some(root.unwrap_or(package).join(path))
}

/// The middle one, of at least one; of an even number, the mean of the two in
/// the middle.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    f64::midpoint(values[last / 2], values[last.div_ceil(2)])
}

/// The smallest that so many percent of all do not exceed; none of none.
pub(crate) fn percentile<T: Copy>(sorted: &[T], percent: f64) -> Option<T> {
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}
