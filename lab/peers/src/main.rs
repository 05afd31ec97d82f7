use std::process::ExitCode;

fn main() -> ExitCode {
    peers::run()
}
