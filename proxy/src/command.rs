//! What the program does besides serving: `init`, `completions` and `man`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use crate::args::Args;
use crate::init;
use crate::own_values::origin;
use crate::server::Server;

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Look at an origin (one GET of `/`), and write a commented configuration file for it
    Init {
        /// http://HOST[:PORT] or https://HOST[:PORT]; without it the file names an example
        #[arg(value_name = "ORIGIN", value_parser = origin)]
        origin: Option<Server>,
        /// The new file; one that exists is never overwritten
        #[arg(long, value_name = "FILE", default_value = "proxy.toml")]
        file: PathBuf,
    },
    /// Print the completions of the flags for a shell
    Completions { shell: Shell },
    /// Print the page for `man`
    Man,
}

impl Command {
    /// Does it. The error is a line for the operator.
    pub(crate) fn run(&self) -> Result<(), String> {
        let mut text = Vec::new();
        match self {
            Self::Init { origin, file } => return init::run(origin.as_ref(), file),
            Self::Completions { shell } => {
                clap_complete::generate(*shell, &mut Args::command(), "stampede-proxy", &mut text);
            }
            Self::Man => {
                let page = clap_mangen::Man::new(Args::command());
                page.render(&mut text).map_err(|error| error.to_string())?;
            }
        }
        match io::stdout().write_all(&text) {
            // The reader has had enough: `man` was left, or `head` has its lines.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| error.to_string()),
        }
    }
}
