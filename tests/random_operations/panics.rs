//! Notes panics that no computation is told to have.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, Once};

static NOTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ONCE: Once = Once::new();

/// Notes panics of threads with this name from now on.
pub(crate) fn note_those_of(thread: &'static str) {
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if std::thread::current().name() == Some(thread) {
                NOTED.lock().unwrap().push(info.to_string());
            } else {
                before(info);
            }
        }));
    });
}

/// Returns what was noted, and forgets it.
pub(crate) fn forget() -> Vec<String> {
    std::mem::take(&mut *NOTED.lock().unwrap())
}

/// Returns whether there was none.
pub(crate) fn is_none_noted() -> bool {
    NOTED.lock().unwrap().is_empty()
}
