//! Puts tables into a text, each between two comments of its own line:
//! `<!-- table peers.hits -->` and `<!-- end of table -->`.

use std::fs;
use std::io;
use std::path::Path;

use crate::report::{Cell, Content, Part};

const BEGIN: &str = "<!-- table ";
const END: &str = "<!-- end of table -->";

pub(crate) fn renew(path: &Path, part: &Part) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    fs::write(path, renewed(&text, part))
}

fn renewed(text: &str, part: &Part) -> String {
    let mut new = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        new += &format!("{line}\n");
        let name = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->"));
        if let Some(name) = name {
            new += &format!("\n{}\n{END}\n", table(name, part));
            assert!(lines.any(|line| line == END), "the table {name} has no end");
        }
    }
    new
}

fn table(name: &str, part: &Part) -> String {
    if name == "peers.run" {
        return run(part);
    }
    let exhibit = part.exhibits.iter().find(|exhibit| exhibit.id == name);
    let content = exhibit.map(|exhibit| &exhibit.content);
    let Some(Content::Table { columns, rows }) = content else {
        panic!("the part has no table {name}");
    };
    let rule = columns.iter().map(|_| "---".to_owned()).collect();
    let mut lines = vec![columns.clone(), rule];
    lines.extend(rows.iter().map(|row| row.iter().map(said).collect()));
    let lines = lines.into_iter().map(|cells: Vec<String>| format!("| {} |\n", cells.join(" | ")));
    lines.collect()
}

fn said(cell: &Cell) -> String {
    match cell {
        Cell::Number(number) => number.to_string(),
        Cell::Text(text) => text.clone(),
    }
}

/// When, where and with what.
fn run(part: &Part) -> String {
    let machine = &part.machine;
    let day = part.date.get(..10).unwrap_or(&part.date);
    format!(
        "{day}, {}, {} cores, {}, {}. Measured by\n`{}`.\n",
        machine.processor, machine.cores, machine.system, machine.rustc, part.command
    )
}
