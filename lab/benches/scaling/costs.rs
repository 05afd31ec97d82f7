//! What one command of each kind costs Redis, and one round trip the client:
//! what a simulation of fleets reckons with.
//!
//! The commands are sent one at a time over one connection, as a client sends
//! them: each is a read, a script and a write to the server. Where many arrive
//! at once the server reads several in one go, and each costs a little less.

use std::time::{Duration, Instant};

use crate::client::open;
use crate::meter::Meter;
use crate::redis_support::{Resp, Server};
use crate::report::{Figure, Part, Profile, median};

const ACQUIRE: &str = include_str!("../../../src/remote/redis/scripts/acquire.lua");
const FILL: &str = include_str!("../../../src/remote/redis/scripts/fill.lua");

/// Processes that wait for each fill where the price of one is found.
const INBOXES: usize = 100;

/// A connection that speaks to the scripts as the crate does.
struct Speaker {
    connection: Resp,
    acquire: String,
    fill: String,
}

impl Speaker {
    fn to(server: &Server) -> Self {
        let mut connection = server.connect().expect("the server answers");
        let mut load = |script| {
            let reply = connection.call(&["SCRIPT", "LOAD", script]).expect("the server answers");
            reply.text()
        };
        let (acquire, fill) = (load(ACQUIRE), load(FILL));
        Self { connection, acquire, fill }
    }

    /// Asks for a lease, and returns the version granted or nothing.
    fn acquire(&mut self, key: &str, token: &str, inbox: &str) -> Option<String> {
        let [value, lock, right] = names(key);
        let args = ["EVALSHA", &*self.acquire, "3", &*value, &*lock, &*right];
        let args = args.into_iter().chain([token, "40000", "100000", inbox, ""]);
        let args: Vec<_> = args.collect();
        let reply = self.connection.call(&args).expect("the server answers");
        assert!(!reply.is_error(), "the script runs: {reply:?}");
        let [what, _, rest, ..] = reply.parts() else { panic!("an answer: {reply:?}") };
        (what.text() == "A").then(|| rest.text())
    }

    fn fill(&mut self, key: &str, token: &str, version: &str) {
        let [value, lock, right] = names(key);
        // Where the scripts look for the version.
        let envelope = format!("xxxx{version}{}", "x".repeat(1024));
        let args = ["EVALSHA", &*self.fill, "3", &*value, &*lock, &*right];
        let message = "1F1234567x1234567x1234567x";
        let args = args.into_iter().chain([token, version, "600000", &*envelope, message]);
        let reply = self.connection.call(&args.collect::<Vec<_>>()).expect("the server answers");
        assert_eq!(reply.int(), 1, "it is stored: {reply:?}");
    }

    fn get(&mut self, key: &str) {
        let [value, ..] = names(key);
        let reply = self.connection.call(&["GET", &value]).expect("the server answers");
        assert!(!reply.is_nil(), "it is there");
    }
}

fn names(key: &str) -> [String; 3] {
    ["v", "l", "r"].map(|ending| format!("stampede:2:costs:{{{key}}}:{ending}"))
}

fn token(n: usize) -> String {
    format!("{n:032x}")
}

pub(crate) fn measure(profile: Profile, server: &Server, part: &mut Part) {
    let count = profile.pick(2_000, 20_000);
    let kinds = kinds(server, count);
    let inbox = inbox(server, profile.pick(20, 200));
    let round_trip = round_trip(server, profile.pick(300, 3_000));
    say(part, count, &kinds, inbox, round_trip);
}

/// Server CPU of one command of each kind, in µs.
struct Kinds {
    acquire: f64,
    locked: f64,
    fill: f64,
    get: f64,
}

fn kinds(server: &Server, count: usize) -> Kinds {
    let (mut meter, mut speaker) = (Meter::of(server), Speaker::to(server));
    let mut each = |what: &mut dyn FnMut(usize)| {
        let before = meter.read();
        (0..count).for_each(what);
        meter.since(before).cpu / count as f64
    };
    let key = |n: usize| format!("key-{n}");
    let mut versions = Vec::with_capacity(count);
    let acquire = each(&mut |n| {
        versions.push(speaker.acquire(&key(n), &token(n), "").expect("no process has it"));
    });
    let locked = each(&mut |n| {
        assert!(speaker.acquire(&key(n), &token(n + count), "inbox").is_none(), "it is taken");
    });
    // No inbox may wait where the price of a fill alone is found.
    for n in 0..count {
        let [_, _, right] = names(&key(n));
        server_forgets(&mut speaker, &right);
    }
    let fill = each(&mut |n| speaker.fill(&key(n), &token(n), &versions[n]));
    let get = each(&mut |n| speaker.get(&key(n)));
    Kinds { acquire, locked, fill, get }
}

fn server_forgets(speaker: &mut Speaker, right: &str) {
    let reply = speaker.connection.call(&["HDEL", right, "w:inbox"]).expect("the server answers");
    assert_eq!(reply.int(), 1, "it was registered");
}

/// Server CPU that one waiting process adds to a fill, in µs.
fn inbox(server: &Server, fills: usize) -> f64 {
    let alone = fills_with(server, "alone", fills, 0);
    let crowded = fills_with(server, "crowded", fills, INBOXES);
    (crowded - alone) / INBOXES as f64
}

/// Server CPU of one fill while so many subscribed processes wait, in µs.
fn fills_with(server: &Server, prefix: &str, fills: usize, inboxes: usize) -> f64 {
    let mut speaker = Speaker::to(server);
    let mut waiting: Vec<_> = (0..inboxes).map(|inbox| subscribed(server, inbox)).collect();
    let granted: Vec<_> = (0..fills)
        .map(|n| {
            let key = format!("{prefix}-{n}");
            let version = speaker.acquire(&key, &token(n), "").expect("no process has it");
            for inbox in 0..inboxes {
                speaker.acquire(&key, &token(fills + inbox), &channel(inbox));
            }
            (key, version)
        })
        .collect();
    let mut meter = Meter::of(server);
    let before = meter.read();
    for (n, (key, version)) in granted.iter().enumerate() {
        speaker.fill(key, &token(n), version);
    }
    // A message is on its way until it has been read.
    for process in &mut waiting {
        (0..fills).for_each(|_| drop(process.read().expect("a wake-up comes")));
    }
    meter.since(before).cpu / fills as f64
}

fn channel(inbox: usize) -> String {
    format!("stampede:2:costs:in:{inbox:016x}")
}

fn subscribed(server: &Server, inbox: usize) -> Resp {
    let mut connection = server.connect().expect("the server answers");
    connection.call(&["SUBSCRIBE", &channel(inbox)]).expect("the server answers");
    connection
}

/// Microseconds of a look at 1 KiB that another process has computed, with
/// all that the crate does to it.
fn round_trip(server: &Server, samples: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let ttl = Duration::from_secs(600);
        let (filler, reader) =
            (open(&server.url(), "trip", ttl).await, open(&server.url(), "trip", ttl).await);
        let page = crate::client::page(1024);
        let mut times = Vec::with_capacity(samples);
        for n in 0..samples as u64 {
            filler.put(n, page.clone()).await;
            let from = Instant::now();
            let found = reader.get(n).await;
            times.push(from.elapsed().as_secs_f64() * 1e6);
            assert!(found.is_some(), "Redis has it");
        }
        median(&mut times)
    })
}

fn say(part: &mut Part, count: usize, kinds: &Kinds, inbox: f64, round_trip: f64) {
    let mean = format!("mean of {count} commands sent one at a time, by INFO cpu");
    let mut say = |id: &str, says: &str, value| {
        part.figures.push(Figure::new(&format!("scaling.{id}"), says, value, "µs", &mean));
    };
    let all = (kinds.acquire + kinds.fill + kinds.get) / 3.0;
    say("redis_command_us", "server CPU of one command, mean of acquire, fill and get", all);
    say("redis_acquire_us", "server CPU of an acquire that is granted", kinds.acquire);
    let says = "server CPU of an acquire that finds the lease taken and registers an inbox";
    say("redis_locked_us", says, kinds.locked);
    say("redis_fill_us", "server CPU of a fill of 1 KiB that no process waits for", kinds.fill);
    say("redis_get_us", "server CPU of a look at 1 KiB", kinds.get);
    let says = "server CPU that each waiting process adds to a fill";
    let statistic = "fills with 100 waiting processes to fills with none, by INFO cpu";
    let id = "scaling.redis_publish_us_per_inbox";
    part.figures.push(Figure::new(id, says, inbox, "µs", statistic));
    let says = "a look at 1 KiB in Redis, as the client sees it";
    let figure = Figure::new(
        "scaling.remote_round_trip_us",
        says,
        round_trip,
        "µs",
        "median, one at a time",
    );
    part.figures.push(figure);
}
