//! Servers that answer whatever they like: no request fails, none takes long, nothing panics, and
//! no process asks in a loop.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use tower_stampede::{Redis, ToKey};

use crate::kit::origin::{Origin, SECOND, settings, within};
use crate::kit::redis::{FakeNode, Said};
use crate::kit::redis_caches::*;

/// What a request may take at most, on a machine that does other things as well: half of the time
/// for which callers wait.
const HARD_LIMIT: Duration = Duration::from_secs(60);

/// The longest pause between two tries of a process in the background is six seconds.
const LONGER_THAN_A_PAUSE: Duration = Duration::from_millis(6500);

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Writes down each panic that is not of a test.
fn watch_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            if !place.starts_with("tests/") {
                PANICS.lock().unwrap().push(format!("{place}: {info}"));
            }
            usual(info);
        }));
    });
}

fn lazy(node: &FakeNode) -> Redis {
    Redis::lazy(&node.url()).unwrap().namespace("stampede")
}

/// A process with the default time-out of calls.
fn usual(redis: Redis) -> Cache {
    settings().wait_timeout(2 * HARD_LIMIT).redis(redis).build().unwrap()
}

/// Everything a process does, again and again, for that long.
async fn busy(cache: &Cache, how_long: Duration) {
    let begin = Instant::now();
    busy_until(cache, || begin.elapsed() >= how_long).await;
}

/// The same until `is_over`.
async fn busy_until(cache: &Cache, is_over: impl Fn() -> bool) {
    watch_panics();
    let (origin, mut longest) = (Origin::new(), Duration::ZERO);
    while !is_over() {
        let key = fresh_key();
        let (_, took) = timed(cache, &origin, &*key).await;
        longest = longest.max(took);
        let since = Instant::now();
        cache.invalidate(&*key).await;
        cache.invalidate_tag("t").await;
        let _ = cache.get(&*key).await;
        longest = longest.max(since.elapsed() / 3);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(*PANICS.lock().unwrap(), Vec::<String>::new());
    assert!(longest < HARD_LIMIT, "{longest:?}");
}

/// Waits until nothing more is asked of the node; what has begun may come to its end. Panics if
/// that goes on for ever.
async fn is_left_alone(what: &str, node: &FakeNode) {
    let begin = Instant::now();
    loop {
        let (before, opened) = (node.commands().len(), node.accepted());
        tokio::time::sleep(LONGER_THAN_A_PAUSE).await;
        let (after, reopened) = (node.commands().len(), node.accepted());
        if (after, reopened) == (before, opened) {
            return;
        }
        assert!(begin.elapsed() < HARD_LIMIT, "{what}: a dropped cache asks on");
    }
}

fn bulk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", items.len()).into_bytes(), items.concat()].concat()
}

fn int(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

fn name_of(words: &[Vec<u8>]) -> String {
    String::from_utf8_lossy(&words[0]).to_uppercase()
}

/// A push that confirms each channel.
fn subscribed(words: &[Vec<u8>]) -> Vec<u8> {
    let confirm = |channel: &Vec<u8>| {
        [b">3\r\n".to_vec(), bulk(words[0].to_ascii_lowercase()), bulk(channel), int(1)].concat()
    };
    words[1..].iter().flat_map(confirm).collect()
}

/// Greets, and confirms subscriptions.
fn polite(words: &[Vec<u8>]) -> Option<Said> {
    Some(match &*name_of(words) {
        "HELLO" => Said::text("%1\r\n$5\r\nproto\r\n:3\r\n"),
        "PING" => Said::text("+PONG\r\n"),
        "AUTH" | "CLIENT" => Said::text("+OK\r\n"),
        "SUBSCRIBE" | "SSUBSCRIBE" => Said::Bytes(subscribed(words)),
        _ => return None,
    })
}

/// Numbers at the edges.
fn any_int() -> Vec<u8> {
    const EDGE: i64 = 1 << 52;
    int(*[0, 1, 2, -1, i64::MAX, i64::MAX - 1, i64::MIN, EDGE, EDGE - 1, 1_800_000_000_000]
        .get(fastrand::usize(..10))
        .unwrap())
}

fn any_version() -> Vec<u8> {
    let digits = ["4503599627370495", "0000000000000001", "9999999999999999", "x"];
    bulk(digits[fastrand::usize(..digits.len())])
}

fn any_epoch() -> Vec<u8> {
    let digits = ["0000000000000001", "ffffffffffffffff", "0000000000000000", "?"];
    bulk(digits[fastrand::usize(..2 + 2 * usize::from(fastrand::u8(..8) == 0))])
}

fn any_score() -> String {
    let scores = ["1", "0.5", "4503599627370495", "4503599627370495.5", "18446744073709551615"];
    let more = ["18446744073709551615.5", "9223372036854775807.5", "inf", "-1", "nan"];
    [scores, more].concat()[fastrand::usize(..10)].to_owned()
}

fn any_members() -> Vec<u8> {
    let mut items = Vec::new();
    for _ in 0..fastrand::usize(..4) {
        let number = || ["0", "1", "18446744073709551615", "9223372036854775807"];
        let number = || number()[fastrand::usize(..4)];
        let header =
            format!("h:0000000000000001:s:{}:{}:{}:{}", number(), number(), number(), number());
        items.push(bulk([&*header, "tt", "kk", "e", "s", ""][fastrand::usize(..6)]));
        items.push(bulk(any_score()));
    }
    array(&items)
}

/// Something of the form that the caller may expect, or of any other.
fn any_reply() -> Vec<u8> {
    let header = || vec![any_epoch(), any_int(), any_int(), any_int(), any_int()];
    match fastrand::u8(..18) {
        0..3 => array(&[bulk("A"), any_int(), any_version(), int(1)]),
        3..5 => array(&[bulk("L"), any_int(), any_int(), any_int()]),
        5 => array(&[bulk("B"), any_int(), int(i64::MIN)]),
        6 => array(&[bulk("H"), any_int(), bulk(vec![fastrand::u8(..); fastrand::usize(..64)])]),
        7..9 => [header(), vec![any_int(), any_members(), any_members(), bulk("s-s")]]
            .concat()
            .as_slice()
            .pipe(array),
        9 => [header(), vec![array(&[any_int()]), bulk("s-s")]].concat().as_slice().pipe(array),
        10..12 => any_members(),
        12..14 => any_int(),
        14 => array(&[any_int(), any_version()]),
        15 => b"$-1\r\n".to_vec(),
        16 => b"%1\r\n+a\r\n,1.5\r\n".to_vec(),
        _ => b"-ERR no\r\n".to_vec(),
    }
}

trait Pipe {
    fn pipe<T>(&self, to: impl FnOnce(&Self) -> T) -> T {
        to(self)
    }
}

impl Pipe for [Vec<u8>] {}

/// What a server without any entries replies, but for numbers that may be anything.
fn sound_reply(words: &[Vec<u8>]) -> Option<Vec<u8>> {
    let now = || if fastrand::bool() { int(1_800_000_000_000) } else { any_int() };
    let header = || {
        let last = if fastrand::bool() { int(5) } else { any_int() };
        vec![bulk("0000000000000001"), last, int(0), int(0), int(0)]
    };
    let kind = (&*name_of(words), words.get(2).map_or(&b""[..], |count| count), words.len());
    Some(match kind {
        ("EVAL", b"3", 13) => match fastrand::u8(..3) {
            0 => array(&[bulk("L"), now(), any_int(), any_int()]),
            // A hold is a failure that callers are to be told of.
            1 => array(&[bulk("B"), now(), int(-1)]),
            _ => array(&[bulk("A"), now(), any_version(), int(1)]),
        },
        ("EVAL", b"3", 11) => int(i64::from(fastrand::u8(..3))),
        ("EVAL", b"3", 8) => array(&[int(1), int(0)]),
        ("EVAL", b"3", _) => array(&[now(), any_version()]),
        ("EVAL", b"2", 8) => int(1),
        ("EVAL", b"2", _) => {
            array(&[header(), vec![int(4), any_members(), any_members(), bulk("s-s")]].concat())
        }
        ("EVAL", b"1", 4) => now(),
        ("EVAL", _, _) => array(&[header(), vec![array(&[any_int()]), bulk("s-s")]].concat()),
        ("GET", ..) => b"$-1\r\n".to_vec(),
        ("ZREVRANGEBYSCORE" | "ZRANGEBYSCORE", ..) if fastrand::bool() => {
            array(&[bulk("h:0000000000000001:s:0:0:3:0"), bulk("5.5")])
        }
        ("ZREVRANGEBYSCORE" | "ZRANGEBYSCORE", ..) => any_members(),
        _ => return None,
    })
}

/// An announcement that may claim anything.
fn any_push(channel: &[u8]) -> Vec<u8> {
    let position = ["0000000000000000", "9999999999999999", "4503599627370495"];
    let mut message = [b"1L".as_slice(), &[7; 8], b"0000000000000001"].concat();
    message.extend_from_slice(position[fastrand::usize(..3)].as_bytes());
    for item in ["tt", "kk", "e", "s"] {
        message.extend_from_slice(&u32::try_from(item.len()).unwrap().to_be_bytes());
        message.extend_from_slice(item.as_bytes());
    }
    message.truncate(fastrand::usize(..=message.len()));
    [b">3\r\n".to_vec(), bulk("message"), bulk(channel), bulk(message)].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_at_the_edges_of_their_types_panic_nowhere() {
    let channel: Arc<Mutex<Vec<u8>>> = Arc::default();
    let node = FakeNode::start(move |_, words| {
        if let Some(said) = polite(words) {
            if words[0].eq_ignore_ascii_case(b"SUBSCRIBE") {
                channel.lock().unwrap().clone_from(words.last().unwrap());
            }
            let Said::Bytes(mut bytes) = said else { return said };
            if words[0].eq_ignore_ascii_case(b"PING") || words[0].eq_ignore_ascii_case(b"SUBSCRIBE")
            {
                for _ in 0..20 {
                    bytes.extend(any_push(&channel.lock().unwrap()));
                }
            }
            return Said::Bytes(bytes);
        }
        if words[0].eq_ignore_ascii_case(b"EVALSHA") {
            return Said::text("-NOSCRIPT no\r\n");
        }
        // Now and then one that is sound, so that all the others are asked for.
        let sound = sound_reply(words).filter(|_| fastrand::u8(..4) > 0);
        Said::Bytes(sound.unwrap_or_else(any_reply))
    });
    let caches: Vec<_> = (0..4).map(|_| usual(lazy(&node).breaker_failures(1_000_000))).collect();
    let begin = Instant::now();
    let is_over = || {
        let scripts = || node.commands().iter().filter(|name| *name == "EVAL").count();
        begin.elapsed() > 4 * SECOND && scripts() > 400
    };
    let all = caches.iter().map(|cache| busy_until(cache, is_over));
    within(3 * HARD_LIMIT, futures_util::future::join_all(all)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_ends_at_once_is_not_made_in_a_loop() {
    let node = FakeNode::start(|_, words| match &*name_of(words) {
        "SUBSCRIBE" => Said::LastBytes(subscribed(words)),
        _ => polite(words).unwrap_or_else(|| Said::text("-ERR no\r\n")),
    });
    let cache = usual(lazy(&node));
    let begin = Instant::now();
    busy(&cache, SECOND / 10).await;
    tokio::time::sleep(5 * SECOND).await;
    let subscribed = node.commands().iter().filter(|name| *name == "SUBSCRIBE").count();
    let most = 10 + begin.elapsed().as_secs() as usize;
    assert!(subscribed <= most, "{subscribed} subscriptions in {:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_always_about_to_end_is_not_asked_for_in_a_loop() {
    let node = FakeNode::start(|_, words| {
        if let Some(said) = polite(words) {
            return said;
        }
        match (&*name_of(words), words.get(2).map_or(&b""[..], |count| count)) {
            ("EVAL", b"3") => {
                Said::Bytes(array(&[bulk("L"), int(1_800_000_000_000), int(0), int(1)]))
            }
            ("EVAL", b"1") => Said::Bytes(int(1_800_000_000_000)),
            ("EVAL", _) => {
                let header = [bulk("0000000000000001"), int(0), int(0), int(0), int(0)];
                let rest = [int(0), array(&[]), array(&[]), bulk("s-s")];
                Said::Bytes(array(&[&header[..], &rest[..]].concat()))
            }
            ("ZREVRANGEBYSCORE" | "ZRANGEBYSCORE", _) => {
                Said::Bytes(array(&[bulk("h:0000000000000001:s:0:0:0:0"), bulk("0.5")]))
            }
            ("EVALSHA", _) => Said::text("-NOSCRIPT no\r\n"),
            ("GET", _) => Said::text("$-1\r\n"),
            _ => Said::text("*0\r\n"),
        }
    });
    let redis = lazy(&node).op_timeout(SECOND);
    let cache: Cache =
        settings().lease(4 * SECOND).wait_timeout(5 * SECOND).redis(redis).build().unwrap();
    let (origin, begin) = (Origin::new(), Instant::now());
    // The lease of another that never ends is a time-out.
    let _ = cache.get_or_compute(&*fresh_key(), origin.compute()).await;
    let took = begin.elapsed();
    let asked = node.commands().iter().filter(|name| name.starts_with("EVAL")).count();
    assert!(took > SECOND, "it did not wait: {took:?}");
    assert!(asked < 100, "{asked} scripts in {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_without_an_end_is_asked_about_again() {
    let node = FakeNode::start(|_, words| {
        if let Some(said) = polite(words) {
            return said;
        }
        match (&*name_of(words), words.get(2).map_or(&b""[..], |count| count)) {
            ("EVAL", b"3") => {
                Said::Bytes(array(&[bulk("B"), int(1_800_000_000_000), int(1 << 52)]))
            }
            ("EVAL", b"1") => Said::Bytes(int(1_800_000_000_000)),
            ("EVAL", _) => {
                let header = [bulk("0000000000000001"), int(0), int(0), int(0), int(0)];
                let rest = [int(0), array(&[]), array(&[]), bulk("s-s")];
                Said::Bytes(array(&[&header[..], &rest[..]].concat()))
            }
            ("ZREVRANGEBYSCORE" | "ZRANGEBYSCORE", _) => {
                Said::Bytes(array(&[bulk("h:0000000000000001:s:0:0:0:0"), bulk("0.5")]))
            }
            ("EVALSHA", _) => Said::text("-NOSCRIPT no\r\n"),
            _ => Said::text("$-1\r\n"),
        }
    });
    let redis = lazy(&node).op_timeout(30 * SECOND);
    let builder = settings().lease(100 * SECOND).wait_timeout(2 * HARD_LIMIT);
    let cache: Cache = builder.redis(redis).build().unwrap();
    let held = cache.get_or_compute(&*fresh_key(), Origin::new().compute()).await;
    let rest = held.expect_err("the server says so").retry_after().expect("it is held");
    assert!(rest <= 60 * SECOND, "no hold of this process is longer: {rest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_and_huge_replies_end_no_process() {
    let replies: Vec<Vec<u8>> = vec![
        b"*1\r\n".repeat(99),
        b"*1\r\n".repeat(5000),
        b"*9223372036854775807\r\n".to_vec(),
        b"*2147483647\r\n".repeat(90),
        b"$9223372036854775807\r\n".to_vec(),
        b"%9223372036854775807\r\n".to_vec(),
        b"%-1\r\n".to_vec(),
        b"|9223372036854775807\r\n".to_vec(),
        b"|0\r\n+x\r\n".to_vec(),
        b"~9223372036854775807\r\n".to_vec(),
        b">9223372036854775807\r\n".to_vec(),
        b">-1\r\n".to_vec(),
        b"!-1\r\nx\r\n".to_vec(),
        b"=-1\r\nx\r\n".to_vec(),
        b"-\r\n".to_vec(),
        b"- \r\n".to_vec(),
        b"*-2\r\n".to_vec(),
        b"\0\0\0".to_vec(),
        b">2\r\n+message\r\n+x\r\n".to_vec(),
        b">1\r\n$10\r\nssubscribe\r\n".to_vec(),
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n".to_vec(),
        [&b"+"[..], &vec![b'x'; 1 << 20]].concat(),
    ];
    let all = replies.into_iter().map(|reply| async move {
        let shown = String::from_utf8_lossy(&reply[..reply.len().min(40)]).into_owned();
        let next = AtomicUsize::new(0);
        let node = FakeNode::start(move |_, words| {
            // Every fourth time in place of politeness, too.
            let turn = next.fetch_add(1, Ordering::Relaxed);
            let said = polite(words).filter(|_| turn % 4 != 3);
            said.unwrap_or_else(|| Said::Bytes(reply.clone()))
        });
        busy(&usual(lazy(&node)), SECOND).await;
        assert!(node.accepted() < 100 && node.commands().len() < 2000, "{shown:?}");
    });
    futures_util::future::join_all(all).await;
}

mod cluster {
    use super::*;

    /// A map in which the node itself has all slots.
    fn own_map(port: u16) -> Said {
        let node = array(&[bulk("127.0.0.1"), int(i64::from(port)), bulk("id")]);
        Said::Bytes(array(&[array(&[int(0), int(16383), node])]))
    }

    async fn costs(what: &str, answer: impl Fn(u16, &[Vec<u8>]) -> Said + Send + Sync + 'static) {
        let node = FakeNode::start(answer);
        let cache = usual(Redis::cluster([node.url()]).unwrap().namespace("stampede"));
        let begin = Instant::now();
        busy(&cache, 2 * SECOND).await;
        let (connections, most) = (node.accepted(), 100 + 50 * begin.elapsed().as_secs() as usize);
        assert!(connections < most, "{what}: {connections} connections in {:?}", begin.elapsed());
        drop(cache);
        is_left_alone(what, &node).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nodes_that_redirect_for_ever_cost_little() {
        let errors = [
            "MOVED 1 127.0.0.1:{}",
            "ASK 1 127.0.0.1:{}",
            "TRYAGAIN x",
            "MOVED 1 :{}",
            "MOVED 1 [::1]:{}",
            "MOVED 1 no-such-host.invalid:1",
            "MOVED",
            "ASK 1 ::1:1",
            "CLUSTERDOWN x",
            "MOVED 1 127.0.0.1:0",
            "ASK 1 \u{7f}:7",
        ];
        let all = errors.map(|error| {
            costs(error, move |port, words| {
                let text = error.replace("{}", &port.to_string());
                match &*name_of(words) {
                    "CLUSTER" => own_map(port),
                    "ASKING" => Said::text("+OK\r\n"),
                    _ => polite(words).unwrap_or_else(|| Said::text(format!("-{text}\r\n"))),
                }
            })
        });
        futures_util::future::join_all(all).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nodes_that_hang_up_or_say_nothing_cost_little() {
        let nodes = [
            ("hangs up after each command", 0),
            ("silent after the map", 1),
            ("silent", 2),
            ("hangs up", 3),
        ];
        let all = nodes.map(|(what, at)| {
            costs(what, move |port, words| {
                let said = match &*name_of(words) {
                    "CLUSTER" => own_map(port),
                    _ => polite(words).unwrap_or_else(|| Said::text("-ERR no\r\n")),
                };
                match (at, said) {
                    (0, Said::Bytes(bytes)) => Said::LastBytes(bytes),
                    (1, said) if polite(words).is_some() || words[0] == b"CLUSTER" => said,
                    (1 | 2, _) => Said::Nothing,
                    _ => Said::LastBytes(Vec::new()),
                }
            })
        });
        futures_util::future::join_all(all).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_map_is_not_asked_for_once_for_each_caller_that_has_gone() {
        let silent = FakeNode::start(|_, words| polite(words).unwrap_or(Said::Nothing));
        let redis = Redis::cluster([silent.url()]).unwrap().namespace("stampede");
        let remote = redis.remote("test").unwrap();
        for number in 0..100 {
            let key = number.to_string().to_key();
            let get = remote.get(&key);
            assert!(tokio::time::timeout(Duration::from_millis(1), get).await.is_err());
        }
        drop((remote, redis));
        is_left_alone("callers that have gone", &silent).await;
        // One map is asked for at a time: not one for each caller.
        let maps = silent.commands().iter().filter(|name| *name == "CLUSTER").count();
        assert!(maps < 50, "{maps} maps for 100 callers");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn maps_that_make_no_sense_cost_little() {
        let hosts = ["", "?", "::1", "no-such-host.invalid", "\u{7f}\u{0}"];
        let all = hosts.map(|host| {
            costs(host, move |port, words| match &*name_of(words) {
                "CLUSTER" => {
                    let range = |slot: i64| {
                        let port = i64::from(port);
                        let node = array(&[bulk(host), int(port), bulk("id")]);
                        array(&[int(slot), int(slot), node])
                    };
                    Said::Bytes(array(&(0..16384).map(range).collect::<Vec<_>>()))
                }
                _ => polite(words).unwrap_or_else(|| Said::text("-ERR no\r\n")),
            })
        });
        futures_util::future::join_all(all).await;
    }
}
