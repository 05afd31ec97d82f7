//! The names of the handles that live in this process.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// And whether a second handle of the name was told of.
static NAMES: Mutex<Vec<(Weak<str>, bool)>> = Mutex::new(Vec::new());

/// Keeps the name of a handle registered.
pub(crate) struct RegisteredName(#[expect(dead_code, reason = "it is only kept")] Arc<str>);

/// Registers the name of a handle. Returns whether it is the second one with this name: later ones
/// are no news, as long as any of them lives. Costs a look at each living handle.
pub(super) fn register(name: &str) -> (RegisteredName, bool) {
    let registered: Arc<str> = name.into();
    let mut names = NAMES.lock();
    names.retain(|(other, _)| other.strong_count() > 0);
    let (mut is_shared, mut was_told) = (false, false);
    for (other, is_told) in &mut *names {
        if other.upgrade().is_some_and(|other| other == registered) {
            is_shared = true;
            was_told |= std::mem::replace(is_told, true);
        }
    }
    names.push((Arc::downgrade(&registered), is_shared));
    (RegisteredName(registered), is_shared && !was_told)
}
