//! The processes of a scene.

use std::process::{Child, Command, Stdio};

use rustix::process::Pid;
use tempfile::TempDir;

use super::record::Record;
use super::worker::Settings;

/// What starts a process that calls [`work_if_told`](super::worker::work_if_told) first.
pub(crate) type Program<'a> = &'a (dyn Fn() -> Command + Sync);

/// The workers, the oldest one first.
pub(crate) struct Fleet<'a> {
    program: Program<'a>,
    settings: Settings,
    folder: TempDir,
    begun: u32,
    running: Vec<(Child, Settings)>,
    /// Of those that have ended.
    pub(crate) records: Vec<Record>,
}

impl<'a> Fleet<'a> {
    /// A fleet of no process. Each gets the settings, with a number and a record of its own.
    pub(crate) fn new(program: Program<'a>, settings: Settings) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the records");
        Self { program, settings, folder, begun: 0, running: vec![], records: vec![] }
    }

    pub(crate) fn begin(&mut self) {
        let number = self.begun;
        self.begun += 1;
        let record = self.folder.path().join(number.to_string());
        let settings = Settings { number, record, ..self.settings.clone() };
        let mut command = (self.program)();
        settings.hand_to(&mut command);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        self.running.push((process.expect("a process starts"), settings));
    }

    /// Tells one to end, and keeps what it has written down.
    pub(crate) fn end(&mut self, index: usize) {
        let (mut process, settings) = self.running.remove(index);
        drop(process.stdin.take());
        let status = process.wait().expect("it ends");
        assert!(status.success(), "process {} ended with {status}", settings.number);
        let record = std::fs::read_to_string(&settings.record).expect("its record is there");
        self.records.push(Record::of_text(&record));
    }

    /// Ends the oldest process that invalidates.
    pub(crate) fn end_announcer(&mut self) {
        let oldest = self.running.iter().position(|(_, settings)| settings.invalidates());
        self.end(oldest.expect("every second process invalidates"));
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// Returns the numbers of those that run.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.running.iter().map(|(_, settings)| settings.number).collect()
    }

    pub(crate) fn pid(&self, index: usize) -> Pid {
        Pid::from_child(&self.running[index].0)
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        for (process, _) in &mut self.running {
            // It may be dead already: no matter.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
