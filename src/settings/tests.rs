//! The table of settings against the pages.

use crate::settings::{NOT_ZERO, Settings};

#[test]
fn each_bound_is_in_the_table_of_bounds_with_its_default() {
    let page = include_str!("../../docs/how-it-works.md");
    let (_, table) = page.split_once("\n## Bounds\n").expect("the page has the heading");
    let (table, _) = table.split_once("\n### ").expect("another heading follows");
    for (name, default) in NOT_ZERO.iter().filter(|(name, _)| name.starts_with("max_")) {
        let has_name = |line: &&str| line.split('|').any(|cell| cell.trim() == format!("`{name}`"));
        let row = table.lines().find(has_name);
        let row = row.unwrap_or_else(|| panic!("the table of bounds has no row for `{name}`"));
        assert!(row.contains(default), "`{name}` defaults to {default}: {row}");
    }
}

#[test]
fn a_default_follows_the_setting_that_it_depends_on() {
    let defaults = Settings::default();
    assert_eq!((defaults.max_refreshes(), defaults.max_waiters()), (256, 100_000));
    let narrow = Settings {
        max_computations: Some(8),
        max_waiters_in_all: Some(usize::MAX),
        ..Settings::default()
    };
    assert_eq!((narrow.max_refreshes(), narrow.max_waiters()), (8, 100_000));
    assert_eq!(Settings { max_refreshes: Some(9), ..narrow }.max_refreshes(), 9);
}
