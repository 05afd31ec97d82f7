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
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(said).collect()).collect();
    let rule = (0..columns.len()).map(|column| rule(&rows, column).to_owned()).collect();
    let mut lines = vec![columns.clone(), rule];
    lines.extend(rows);
    let lines = lines.into_iter().map(|cells: Vec<String>| format!("| {} |\n", cells.join(" | ")));
    lines.collect()
}

/// Numbers stand under each other by their last digits.
fn rule(rows: &[Vec<String>], column: usize) -> &'static str {
    let is_number = |row: &Vec<String>| row[column] == "–" || row[column].parse::<f64>().is_ok();
    if rows.iter().all(is_number) { "--:" } else { "---" }
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

#[cfg(test)]
mod tests {
    use super::{renewed, rule};
    use crate::report::{Cell, Content, Exhibit, Part};

    fn part() -> Part {
        let row = |name: &str, value| vec![Cell::Text(name.into()), Cell::Number(value)];
        let content = Content::Table {
            columns: vec!["who".into(), "calls".into()],
            rows: vec![row("one", 1.0), row("many", 1000.0)],
        };
        let mut part = Part::new("peers", "", "");
        let [id, title, caption] = ["peers.calls", "", ""].map(String::from);
        part.exhibits.push(Exhibit { id, title, caption, content });
        part
    }

    #[test]
    fn a_table_is_written_in_place_of_the_old_one_and_nothing_else_changes() {
        let text = "before\n<!-- table peers.calls -->\nold\n<!-- end of table -->\nafter\n";
        let new = "before\n<!-- table peers.calls -->\n\n| who | calls |\n| --- | --: |\n\
                   | one | 1 |\n| many | 1000 |\n\n<!-- end of table -->\nafter\n";
        assert_eq!(renewed(text, &part()), new);
        assert_eq!(renewed(new, &part()), new);
    }

    #[test]
    #[should_panic(expected = "no table peers.unknown")]
    fn a_table_that_nobody_measured_is_no_empty_one() {
        renewed("<!-- table peers.unknown -->\n<!-- end of table -->\n", &part());
    }

    #[test]
    #[should_panic(expected = "has no end")]
    fn a_table_without_an_end_does_not_eat_the_text() {
        renewed("<!-- table peers.calls -->\nafter\n", &part());
    }

    #[test]
    fn a_column_with_words_is_not_aligned_as_numbers() {
        let rows = |cells: [&str; 2]| cells.map(|cell| vec![cell.to_owned()]).to_vec();
        assert_eq!(rule(&rows(["1.05", "–"]), 0), "--:");
        assert_eq!(rule(&rows(["1.05", "not measured"]), 0), "---");
    }
}
