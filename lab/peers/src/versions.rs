//! Which versions took part, by the lock file that this was built with.

const LOCK: &str = include_str!("../../../Cargo.lock");

pub(crate) fn of(name: &str) -> String {
    let entry = format!("name = \"{name}\"\nversion = \"");
    let version = LOCK.split_once(&entry).and_then(|(_, rest)| rest.split_once('"'));
    version.map_or_else(|| "unknown".to_owned(), |(version, _)| version.to_owned())
}
