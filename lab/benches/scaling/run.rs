//! All curves in turn, and what they say together.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use crate::redis_support::Server;
use crate::report::{Part, Profile, out_directory, redis_version};
use crate::{costs, keys, processes, threads, values, waiters, waiters_leaving};

/// Long after every bound inside has passed: nothing may run for ever.
const LIMIT: Duration = Duration::from_secs(900);

pub(crate) fn run(args: &[String]) -> ExitCode {
    end_after(LIMIT);
    let _ = rlimit::increase_nofile_limit(20_000);
    let profile = Profile::among(args);
    let command = format!(
        "cargo bench -p tower-stampede-lab --bench scaling -- --profile {} --out report",
        profile.name()
    );
    let mut part = Part::new("scaling", "How costs grow", &command);
    part.notes.extend(profile.note());
    part.notes.push(
        "The bench, the processes it starts and Redis share the cores of one machine: where there \
         are more processes than cores, times hold the waiting for a core too."
            .into(),
    );
    timed("waiters", || waiters::measure(profile, &mut part));
    timed("waiters that leave", || waiters_leaving::measure(profile, &mut part));
    timed("keys", || keys::measure(profile, &mut part));
    timed("threads", || threads::measure(profile, &mut part));
    timed("value sizes in memory", || values::in_memory(profile, &mut part));
    match redis_version() {
        Some(version) => {
            part.versions.push(("redis-server".into(), version));
            between_processes(profile, &mut part);
        }
        None => leave_out(&mut part),
    }
    part.finish(out_directory(args).as_deref())
}

fn between_processes(profile: Profile, part: &mut Part) {
    timed("costs in Redis", || costs::measure(profile, &Server::start(), part));
    timed("value sizes through Redis", || values::through_redis(profile, &Server::start(), part));
    timed("processes", || processes::measure(profile, &Server::start(), part));
}

fn leave_out(part: &mut Part) {
    let reason = "redis-server is not installed: nothing between processes was measured.";
    eprintln!("{reason}");
    part.notes.push(reason.into());
}

fn timed(what: &str, measure: impl FnOnce()) {
    let from = Instant::now();
    measure();
    eprintln!("{what}: measured in {:.1?}", from.elapsed());
}

fn end_after(limit: Duration) {
    thread::spawn(move || {
        thread::sleep(limit);
        eprintln!("not done after {limit:?}: something is stuck");
        std::process::exit(1);
    });
}
