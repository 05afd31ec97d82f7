//! Renders the folder that is given, or the one where it starts, as `book.toml` in it says.

use std::process::ExitCode;

use mdbook_driver::MDBook;

fn main() -> ExitCode {
    let root = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    match MDBook::load(root).and_then(|book| book.build()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("book: {error:?}");
            ExitCode::FAILURE
        }
    }
}
