//! Paths that origins read in several ways: real origins, in the languages that are installed here.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use fastrand::Rng;
use futures_util::future::join_all;

use crate::kit::proxy::{Proxy, Reply};
use crate::kit::spellings::{RULES, is_public, spelling};

/// So many connections of clients at once, for each origin.
const CLIENTS: usize = 16;

/// A process that says at which URL it listens.
struct RealOrigin {
    name: &'static str,
    process: Child,
    url: String,
}

impl RealOrigin {
    /// Starts one, unless its language is not installed.
    fn start(name: &'static str, arguments: &[&str]) -> Option<Self> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proxy/origins");
        let mut command = Command::new(name);
        command.current_dir(folder).args(arguments).stdin(Stdio::null());
        let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let Ok(mut process) = started else {
            eprintln!("\n  MISSING: `{name}` cannot be started, so no origin of it was tried\n");
            return None;
        };
        // PHP says it on its standard error, and writes a line for each request there.
        let stdout = process.stdout.take().unwrap();
        let stderr = process.stderr.take().unwrap();
        let speaks: Box<dyn Read + Send> =
            if name == "php" { Box::new(stderr) } else { Box::new(stdout) };
        let mut lines = BufReader::new(speaks).lines();
        let said = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let at = line.find("http://127.0.0.1:")?;
            let url = line[at..].trim_end_matches(|c: char| !c.is_ascii_digit());
            Some(url.split(')').next().unwrap_or(url).to_owned())
        });
        let url = said.unwrap_or_else(|| panic!("the origin of `{name}` did not start"));
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Some(Self { name, process, url })
    }

    fn all() -> Vec<Self> {
        let all = [
            Self::start("node", &["--no-deprecation", "origin.mjs"]),
            Self::start("php", &["-S", "127.0.0.1:0", "origin.php"]),
            Self::start("python3", &["origin.py"]),
            Self::start("java", &["-Dsun.net.httpserver.nodelay=true", "Origin.java"]),
        ];
        all.into_iter().flatten().collect()
    }
}

impl Drop for RealOrigin {
    fn drop(&mut self) {
        // It may have ended already: no matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn variable(name: &str, in_suite: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return in_suite };
    text.parse().unwrap_or_else(|_| panic!("`{name}` (`{text}`) must be a whole number"))
}

/// What the answers of one origin were.
#[derive(Default, Debug)]
struct Seen {
    stored: usize,
    /// Paths that a reading of this origin takes for a page that must not be shared.
    forbidden: usize,
    wrong: Vec<String>,
}

impl Seen {
    fn note(&mut self, host: &str, path: &str, reply: &Reply) {
        let said = reply.head.get("cache-status").unwrap_or_default();
        let is_shared = said.contains("stored") || said.contains("; hit");
        self.stored += usize::from(is_shared);
        let readings = reply.body.lines().filter_map(|line| line.split_once(": "));
        // What single applications read (`~`) counts against rules that forbid to share.
        let is_free = |name: &str, page: &str| page == "none" && name.starts_with('~');
        let forbid = readings.filter(|(name, page)| {
            *page != "error" && !is_public(page, host) && !is_free(name, page)
        });
        let forbid: Vec<_> = forbid.map(|(name, page)| format!("{name}: {page}")).collect();
        self.forbidden += usize::from(!forbid.is_empty());
        if is_shared && !forbid.is_empty() {
            self.wrong.push(format!("{host} {path} is stored ({said}); {}", forbid.join(", ")));
        }
    }

    fn add(&mut self, other: Self) {
        self.stored += other.stored;
        self.forbidden += other.forbidden;
        self.wrong.extend(other.wrong);
    }
}

/// Sends requests of a client with a session, one after the other.
async fn ask(proxy: &Proxy, name: &str, paths: &[String]) -> Seen {
    let mut seen = Seen::default();
    let mut peer = proxy.connect().await;
    let hosts = [format!("{name}.test"), format!("{name}.open.test")];
    for (path, host) in paths.iter().zip(hosts.iter().cycle()) {
        let fields = format!("Host: {host}\r\nCookie: session=1\r\n");
        peer.send(format!("GET {path} HTTP/1.1\r\n{fields}\r\n")).await;
        let Some(reply) = peer.reply_or_end().await else {
            peer = proxy.connect().await;
            continue;
        };
        if reply.status() == 200 {
            seen.note(host, path, &reply);
        }
        if reply.head.get("connection") == Some("close") {
            peer = proxy.connect().await;
        }
    }
    seen
}

#[tokio::test]
async fn no_real_origin_has_a_page_stored_that_its_own_rule_forbids_to_share() {
    let origins = RealOrigin::all();
    let mut file = String::new();
    for RealOrigin { name, url, .. } in &origins {
        let hosts = format!("[\"{name}.test\", \"{name}.open.test\"]");
        file += &format!("[[origin]]\nurl = \"{url}\"\nhosts = {hosts}\n");
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("proxy.toml");
    std::fs::write(&config, file + RULES).unwrap();
    let proxy = Proxy::start_with(&["--config", config.to_str().unwrap()]);
    let (cases, seed) = (variable("PATH_READINGS_CASES", 1000), variable("PATH_READINGS_SEED", 1));
    let mut rng = Rng::with_seed(seed);
    let paths: Vec<_> = (0..cases).map(|_| spelling(&mut rng)).collect();
    for origin in &origins {
        let share = paths.len().div_ceil(CLIENTS);
        let clients = paths.chunks(share).map(|paths| ask(&proxy, origin.name, paths));
        let mut seen = Seen::default();
        join_all(clients).await.into_iter().for_each(|one| seen.add(one));
        let Seen { stored, forbidden, wrong } = &seen;
        println!("{}: {stored} stored, {forbidden} forbidden, of {cases}", origin.name);
        assert!(wrong.is_empty(), "{}: {} paths:\n{}", origin.name, wrong.len(), wrong.join("\n"));
        assert!(stored * 20 > paths.len(), "{}: too few prove anything", origin.name);
        assert!(forbidden * 4 > paths.len(), "{}: too few prove anything", origin.name);
    }
}
