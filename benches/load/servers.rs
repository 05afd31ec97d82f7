//! The processes under load, each on a core that it need not share with the
//! clients where there is more than one.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::proxy_support::Proxy;

/// Builds `stampede-proxy`: an old one would be measured otherwise.
pub(crate) fn build_proxy() -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--profile", "bench", "--package", "stampede-proxy"]);
    // What cargo says of this package to us makes build scripts run anew.
    for name in std::env::vars_os().map(|(name, _)| name).filter(is_of_package) {
        cargo.env_remove(name);
    }
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("stampede-proxy does not compile".into()),
        Err(error) => Err(format!("cargo does not run: {error}")),
    }
}

fn is_of_package(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// What clients ask: a proxy with the layer, or the origin itself.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    proxy: Option<Proxy>,
}

impl Front {
    /// Starts the `n`th proxy of a scenario.
    pub(crate) fn proxy(n: usize, origin: &str, flags: &[&str]) -> Self {
        let proxy = on_core(n, || Proxy::start_at(origin, flags));
        Self { address: proxy.address, proxy: Some(proxy) }
    }

    /// No layer at all.
    pub(crate) fn bare(origin: SocketAddr) -> Self {
        Self { address: origin, proxy: None }
    }

    /// Ends its process at once, with `SIGKILL`.
    pub(crate) fn kill(&self) {
        self.proxy.iter().for_each(|proxy| proxy.signal(Signal::KILL));
    }

    /// The most memory it has had at a time, in bytes; none if nothing tells.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        self.proxy.as_ref().map(Proxy::peak_memory)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        None
    }
}

/// A process of this program that answers without any work.
pub(crate) struct Floor {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Floor {
    pub(crate) fn start() -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let start = || Command::new(program).arg("--floor").stdout(Stdio::piped()).spawn();
        let mut process = on_core(0, start).expect("this program runs");
        let mut line = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("it says where it listens");
        Self { process, address: line.trim().parse().expect("an address") }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // It may have ended already: no matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a child on the `n`th core that is not the first; a child inherits
/// from the thread that starts it where it may run, from its first moment on.
#[cfg(target_os = "linux")]
fn on_core<T: Send>(n: usize, start: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let here = || {
        let allowed = sched_getaffinity(None).expect("a thread knows its cores");
        let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
        if let [_, others @ ..] = &cores[..]
            && !others.is_empty()
        {
            let mut only = CpuSet::new();
            only.set(others[n % others.len()]);
            sched_setaffinity(None, &only).expect("the core is among those allowed");
        }
        start()
    };
    std::thread::scope(|scope| scope.spawn(here).join()).expect("a child starts")
}

#[cfg(not(target_os = "linux"))]
fn on_core<T: Send>(_: usize, start: impl FnOnce() -> T + Send) -> T {
    start()
}
