//! `docs/threats.md` names a test in each row: each of them is there.

use std::collections::HashSet;
use std::path::Path;

const PAGE: &str = include_str!("../../docs/threats.md");

/// Adds the names of all functions below a folder.
fn collect_functions(folder: &Path, names: &mut HashSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let after_fn = text.split("fn ").skip(1);
            names.extend(after_fn.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
        }
    }
}

fn functions() -> HashSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut names = HashSet::new();
    for folder in ["proxy", "src", "tests"] {
        collect_functions(&root.join(folder), &mut names);
    }
    names
}

/// The words in backticks of a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn each_row_of_the_page_names_tests_that_exist() {
    let functions = functions();
    let rows: Vec<Vec<&str>> = PAGE
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .filter(|row: &Vec<_>| row[0] != "an attacker" && !row[0].starts_with("---"))
        .collect();
    assert!(rows.len() > 20, "{} rows", rows.len());
    for row in rows {
        assert_eq!(row.len(), 4, "{row:?}");
        let tests: Vec<_> = quoted(row[3]).collect();
        assert!(!tests.is_empty(), "no test: {row:?}");
        for test in tests {
            assert!(functions.contains(test), "there is no test `{test}`: {row:?}");
        }
    }
}
