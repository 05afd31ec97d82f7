//! The names of the handles that live in this process.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

static NAMES: Mutex<Vec<Weak<str>>> = Mutex::new(Vec::new());

/// Keeps the name of a handle registered.
pub(crate) struct RegisteredName(#[expect(dead_code, reason = "it is only kept")] Arc<str>);

/// Registers the name of a handle. Returns whether it is the second one with this name: later ones
/// are no news. Costs a look at each living handle.
pub(super) fn register(name: &str) -> (RegisteredName, bool) {
    let registered: Arc<str> = name.into();
    let mut names = NAMES.lock();
    names.retain(|other| other.strong_count() > 0);
    let is_same = |other: &&Weak<str>| other.upgrade().is_some_and(|other| other == registered);
    let is_second = names.iter().filter(is_same).count() == 1;
    names.push(Arc::downgrade(&registered));
    (RegisteredName(registered), is_second)
}
