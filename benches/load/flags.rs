//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt};

use super::report::Profile;

pub(crate) const HELP: &str = "\
Servers, clients and faults; what the origin has to bear with the layer and
without.

Usage: cargo bench -p tower-stampede-benches --bench load -- [--flag VALUE]...

  --profile quick|full     a minute, or less than six                   [full]
  --out DIR                write DIR/parts/load.json, and with all parts that
                           lie there DIR/results.json and DIR/report.html
                                                      [print the figures only]
  --only SCENARIO          run this one; may be repeated                 [all]
  --bare                   leave the layer out where it should be: the bounds
                           must break, and the run must end with a failure
  --help                   this text
";

#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) profile: Profile,
    pub(crate) out: Option<PathBuf>,
    /// Empty: all.
    pub(crate) only: Vec<String>,
    pub(crate) bare: bool,
    pub(crate) help: bool,
}

/// Reads the command line; the error is a sentence that names the flag.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Flags, String> {
    let mut flags =
        Flags { profile: Profile::Full, out: None, only: Vec::new(), bare: false, help: false };
    let mut parser = Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        match arg {
            // Cargo says so to every bench.
            Arg::Long("bench") => {}
            Arg::Long("help") | Arg::Short('h') => flags.help = true,
            Arg::Long("bare") => flags.bare = true,
            Arg::Long("profile") => flags.profile = Profile::named(&text(&mut parser)?)?,
            Arg::Long("only") => flags.only.push(text(&mut parser)?),
            Arg::Long("out") => {
                flags.out = Some(parser.value().map_err(|error| error.to_string())?.into());
            }
            Arg::Long(name) => return Err(format!("unknown flag --{name}")),
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(flags)
}

fn text(parser: &mut Parser) -> Result<String, String> {
    parser.value().and_then(ValueExt::string).map_err(|error| error.to_string())
}
