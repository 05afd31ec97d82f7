//! Prints the public interface, one item a line, from the JSON that rustdoc has written.

use std::error::Error;
use std::io::{BufWriter, Write, stdout};

const INTERNAL: [&str; 3] = [
    " core::marker::Freeze for ",
    " core::marker::UnsafeUnpin for ",
    " core::marker::StructuralPartialEq for ",
];

fn main() -> Result<(), Box<dyn Error>> {
    let json = std::env::args_os().nth(1).ok_or("usage: public_api FILE.json")?;
    // Blanket implementations are the same for every type. `Send` and the other automatic traits
    // stay: to lose one breaks users. No user can name the traits of `INTERNAL`.
    let api = public_api::Builder::from_rustdoc_json(json)
        .sorted(true)
        .omit_blanket_impls(true)
        .build()?;
    let mut out = BufWriter::new(stdout().lock());
    let items = api.items().map(ToString::to_string);
    for item in items.filter(|item| !INTERNAL.iter().any(|name| item.contains(name))) {
        writeln!(out, "{item}")?;
    }
    Ok(out.flush()?)
}
