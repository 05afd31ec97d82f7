//! The programs between the clients and the origin.

use std::any::Any;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::report::Role;
use crate::servers::nginx::{Nginx, Settings};
use crate::servers::{PROXY, Server};

const STARTS_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Contestant {
    pub(super) name: &'static str,
    /// If it is shown on the page.
    pub(super) role: Option<Role>,
    program: Program,
}

enum Program {
    None,
    /// With these lines in its location.
    Nginx(&'static [&'static str]),
    /// With the VCL that it comes with.
    Varnish,
    /// With these flags.
    Ours(&'static [&'static str]),
}

const fn contestant(name: &'static str, role: Option<Role>, program: Program) -> Contestant {
    Contestant { name, role, program }
}

const LOCK: &[&str] = &["proxy_cache_lock on;"];
const ADAPTIVE: &[&str] = &["--min-computations", "4"];

pub(super) const ALL: &[Contestant] = &[
    contestant("no cache", Some(Role::Without), Program::None),
    contestant("nginx, proxy_cache", None, Program::Nginx(&[])),
    contestant("nginx, proxy_cache_lock", Some(Role::Other), Program::Nginx(LOCK)),
    contestant("Varnish", Some(Role::Other), Program::Varnish),
    contestant("stampede-proxy, defaults", None, Program::Ours(&[])),
    contestant("stampede-proxy, min_computations", Some(Role::Ours), Program::Ours(ADAPTIVE)),
];

impl Contestant {
    pub(super) fn is_installed(&self) -> bool {
        match self.program {
            Program::Nginx(_) => Nginx::version().is_some(),
            Program::Varnish => Varnish::version().is_some(),
            Program::None | Program::Ours(_) => true,
        }
    }
}

/// Of the programs that are installed.
pub(super) fn versions() -> Vec<(String, String)> {
    let nginx = Nginx::version().map(|version| ("nginx".to_owned(), version));
    let varnish = Varnish::version().map(|version| ("varnishd".to_owned(), version));
    nginx.into_iter().chain(varnish).collect()
}

/// A cache that is empty; its process ends with this value.
pub(super) struct Instance {
    pub(super) address: SocketAddr,
    _process: Box<dyn Any>,
}

impl Instance {
    pub(super) fn start(contestant: &Contestant, origin: SocketAddr) -> Self {
        match contestant.program {
            Program::None => Self { address: origin, _process: Box::new(()) },
            Program::Nginx(location) => {
                let nginx = Nginx::start(Settings { origin, core: None, location });
                Self { address: nginx.address, _process: Box::new(nginx) }
            }
            Program::Varnish => {
                let varnish = Varnish::start(origin);
                Self { address: varnish.address, _process: Box::new(varnish) }
            }
            Program::Ours(flags) => {
                let url = format!("http://{origin}");
                let flags = [&["--origin", &url], flags].concat();
                let ours = Server::program(None, PROXY, &flags);
                Self { address: ours.address, _process: Box::new(ours) }
            }
        }
    }
}

/// Varnish in a folder that is removed.
struct Varnish {
    process: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Varnish {
    /// None where it is not installed.
    fn version() -> Option<String> {
        let output = Command::new(program()?).arg("-V").output().ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let version = text.split("varnish-").nth(1)?;
        Some(version.split_whitespace().next()?.to_owned())
    }

    fn start(origin: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("it is bound");
        drop(free);
        let mut command = Command::new(program().expect("varnishd is installed"));
        // A worker of root could not read our folder as another user.
        command.args(["-j", "none", "-F", "-a", &address.to_string()]);
        command.args(["-b", &origin.to_string(), "-s", "malloc,256m", "-n"]).arg(folder.path());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let varnish = Self { process: process.expect("varnishd runs"), address, _folder: folder };
        let give_up = Instant::now() + STARTS_WITHIN;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < give_up, "varnishd does not listen");
            sleep(Duration::from_millis(10));
        }
        varnish
    }
}

impl Drop for Varnish {
    fn drop(&mut self) {
        // Killed, it would leave its worker behind.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Where packages put it; not every user's path leads there.
fn program() -> Option<&'static str> {
    let runs = |name: &&str| Command::new(name).arg("-V").output().is_ok();
    ["varnishd", "/usr/sbin/varnishd"].into_iter().find(runs)
}
