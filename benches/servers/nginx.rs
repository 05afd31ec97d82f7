//! nginx with `proxy_cache`, configured for one measurement.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::on_core;

/// Another process may take a port between our look and nginx's bind.
const TRIES: usize = 10;

const STARTS_WITHIN: Duration = Duration::from_secs(10);

/// What differs between measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings<'a> {
    pub(crate) origin: SocketAddr,
    pub(crate) core: Option<usize>,
    /// Directives of the location, besides `proxy_pass` and the cache itself.
    pub(crate) location: &'a [&'a str],
}

/// One nginx with one worker, in a folder that is removed.
pub(crate) struct Nginx {
    process: Child,
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl Nginx {
    /// None where nginx is not installed.
    pub(crate) fn version() -> Option<String> {
        let output = Command::new(program()?).arg("-v").output().ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Some(text.trim().rsplit('/').next()?.to_owned())
    }

    /// Starts an empty cache in front of an origin.
    pub(crate) fn start(settings: Settings<'_>) -> Self {
        (0..TRIES).find_map(|_| Self::try_start(settings)).expect("a port for nginx")
    }

    fn try_start(settings: Settings<'_>) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let file = folder.path().join("nginx.conf");
        fs::write(&file, configuration(folder.path(), address, settings)).expect("a file");
        let program = program().expect("nginx is installed");
        let mut command = on_core(settings.core, program);
        command.arg("-e").arg(folder.path().join("error.log"));
        command.arg("-p").arg(folder.path()).arg("-c").arg(file);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut nginx = Self { process: process.expect("nginx runs"), address, _folder: folder };
        nginx.listens().then_some(nginx)
    }

    /// False when it ends instead, as it does when the port is taken.
    fn listens(&mut self) -> bool {
        let give_up = Instant::now() + STARTS_WITHIN;
        while Instant::now() < give_up {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return false;
            }
            if TcpStream::connect(self.address).is_ok() {
                return true;
            }
            sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Killed, it would leave its worker behind.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Where packages put it; not every user's path leads there.
fn program() -> Option<&'static str> {
    let runs = |name: &&str| Command::new(name).arg("-v").output().is_ok();
    ["nginx", "/usr/sbin/nginx"].into_iter().find(runs)
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound")
}

fn configuration(folder: &Path, address: SocketAddr, settings: Settings<'_>) -> String {
    let Settings { origin, location, .. } = settings;
    let folder = folder.display();
    // Its worker gives up root's rights, and with them those to our folder.
    let user = if geteuid().is_root() { "user root;" } else { "" };
    let location = location.join("\n      ");
    format!(
        "{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 8192; multi_accept on; }}
http {{
  access_log off;
  sendfile on;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  open_file_cache max=1000 inactive=60s;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  proxy_cache_path {folder}/cache keys_zone=objects:16m use_temp_path=off;
  upstream origin {{ server {origin} max_fails=0; keepalive 64; }}
  server {{
    listen {address} backlog=8192;
    location / {{
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_cache objects;
      {location}
    }}
  }}
}}
"
    )
}
