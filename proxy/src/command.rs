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
        /// The authorities of an https origin, as PEM [default: those of the system]
        #[arg(long, value_name = "FILE", requires = "origin")]
        origin_ca: Option<PathBuf>,
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
            Self::Init { origin, file, origin_ca } => {
                return init::run(origin.as_ref(), origin_ca.as_deref(), file);
            }
            Self::Completions { shell } => {
                clap_complete::generate(*shell, &mut Args::command(), "stampede-proxy", &mut text);
                if *shell == Shell::Bash {
                    // Two parts of the script write the name of a program with a hyphen in two ways.
                    let script = String::from_utf8_lossy(&text);
                    text = script.replace("stampede__subcmd__proxy", "stampede__proxy").into();
                }
            }
            Self::Man => man(&mut text).map_err(|error| error.to_string())?,
        }
        match io::stdout().write_all(&text) {
            // The reader has had enough: `man` was left, or `head` has its lines.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| error.to_string()),
        }
    }
}

/// One page: the commands have none of their own.
fn man(page: &mut Vec<u8>) -> io::Result<()> {
    let mut command = Args::command();
    command.build();
    let names: Vec<_> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    let main = names.iter().fold(command.clone(), |main, name| {
        main.mut_subcommand(name, |command| command.hide(true))
    });
    clap_mangen::Man::new(main).render(page)?;
    writeln!(page, ".SH COMMANDS")?;
    for command in command.get_subcommands_mut() {
        let usage = command.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(page, ".TP\n\\fB{usage}\\fR\n{about}")?;
        for argument in command.get_arguments().filter(|one| one.get_id() != "help") {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let argument = argument.to_string().replace('-', "\\-");
            writeln!(page, ".br\n\\fI{argument}\\fR: {help}")?;
        }
    }
    Ok(())
}
