//! What clients without wake-ups do: ask, sleep, ask again.

use std::time::{Duration, Instant};

use crate::redis_support::{Resp, Server};
use crate::report::Profile;

/// The fill is a plain `SET`, at any moment between two looks.
pub(crate) fn polling(server: &Server, profile: Profile, pause: Duration) -> Vec<Duration> {
    let mut writer = server.connect().unwrap();
    let one = |n| one(server, &mut writer, pause, n);
    (0..profile.pick(100, 300)).map(one).collect()
}

fn one(server: &Server, writer: &mut Resp, pause: Duration, n: usize) -> Duration {
    let key = format!("poll-{}-{n}", pause.as_millis());
    let (begin, begun) = std::sync::mpsc::channel();
    let (port, polled) = (server.port(), key.clone());
    let poller = std::thread::spawn(move || {
        let mut reader = Resp::connect(port).unwrap();
        begin.send(()).unwrap();
        while reader.call(&["GET", &polled]).unwrap().is_nil() {
            std::thread::sleep(pause);
        }
        Instant::now()
    });
    begun.recv().unwrap();
    std::thread::sleep(pause.mul_f64(spread(n)));
    let filled = Instant::now();
    writer.call(&["SET", &key, &"x".repeat(1024)]).unwrap();
    poller.join().unwrap().saturating_duration_since(filled)
}

/// Evenly spread, and the same in every run: the golden ratio's multiples.
pub(crate) fn spread(n: usize) -> f64 {
    (n as f64 * 0.618_033_988_749_895).fract()
}
