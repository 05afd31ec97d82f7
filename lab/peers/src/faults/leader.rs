//! A process that computes while its lease is held, and is killed or frozen meanwhile.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{KEY, Stage, Work};
use crate::peers;

const BEGUN: &str = "begun";

pub(super) const ITS_VALUE: &str = "its value";

pub(super) struct Leader {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Leader {
    /// Returns once it computes.
    pub(super) fn start(peer: &str, url: &str, work: Duration) -> Self {
        let this = std::env::current_exe().expect("this program has a path");
        let millis = work.as_millis().to_string();
        let mut process = Command::new(this)
            .args(["--lead", peer, &millis, "--redis", url])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let lines = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut leader = Self { process, lines };
        assert_eq!(leader.line(), BEGUN);
        // A lease that is asked for beside the computation is there by then.
        thread::sleep(Duration::from_millis(300));
        leader
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it writes lines");
        line.trim_end().to_owned()
    }

    pub(super) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(super) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it lives");
    }

    /// What its caller got.
    pub(super) fn answer(&mut self) -> String {
        self.line()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // It may have ended already: no matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process itself: it computes once, and says what its caller got.
pub(crate) async fn lead(peer: &str, millis: u64, url: &str) {
    let start = peers::staged(peer).expect("the peer takes part in faults");
    let cache = start(Stage::on(url.to_owned())).await;
    let work = Work::new(1, millis);
    let asked = tokio::spawn(cache.ask(KEY, work.clone()));
    while work.calls() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("{BEGUN}");
    match asked.await.expect("the work does not panic") {
        Ok(1) => println!("{ITS_VALUE}"),
        Ok(_) => println!("the newer value"),
        Err(_) => println!("an error"),
    }
    // What it writes after the answer shall have its time.
    tokio::time::sleep(Duration::from_secs(1)).await;
}
