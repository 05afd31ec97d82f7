//! `tracing` subscribers of one thread, beside tests that have none.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};

use tracing::subscriber::{DefaultGuard, NoSubscriber, Subscriber};
use tracing::{Dispatch, Level};

/// Installs a subscriber for this thread, until the guard is dropped.
///
/// `tracing` remembers for each place in the code whether any subscriber wants its lines.
/// While it knows of one subscriber only, it asks the subscriber of the current thread. A test
/// on a thread without any would then switch the place off for the thread that has one. So
/// there is always a second one, which wants nothing.
pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync + 'static) -> DefaultGuard {
    static SECOND: OnceLock<Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| Dispatch::new(NoSubscriber::new()));
    tracing::subscriber::set_default(subscriber)
}

const NAME_SHARED: &str = "another living handle of this process has the name";

/// The lines that an application's subscriber writes, as text.
#[derive(Clone, Default)]
pub(crate) struct TextLog(Arc<Mutex<Vec<u8>>>);

impl Write for TextLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TextLog {
    /// Writes the lines of this level and above on this thread, until the guard is dropped.
    pub(crate) fn listen(&self, level: Level) -> DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(level);
        listen(subscriber.with_writer(move || log.clone()).finish())
    }

    /// Returns the lines without those that say that two handles have one name: that is so in most
    /// tests, and depends on the tests that run beside them.
    pub(crate) fn text(&self) -> String {
        let text = self.whole_text();
        text.split_inclusive('\n').filter(|line| !line.contains(NAME_SHARED)).collect()
    }

    pub(crate) fn whole_text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.text().lines().map(str::to_owned).collect()
    }
}

/// Asserts that a line has all of these parts.
pub(crate) fn assert_says(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }
}
