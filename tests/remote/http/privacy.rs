//! What is one client's own reaches no other client, in whichever process, and
//! does not even leave the process.

use tower_layer::Layer;
use tower_stampede::CacheOutcome;
use tower_stampede::remote::{Double, RemoteOp, RemoteSettings};

use super::spy::Written;
use super::{App, everywhere, process, processes, settings};
use crate::kit::http::{
    Answer, Call, Origin, WORK, crowd, get, ms, pass, secs, send, slowest, with,
};
use crate::kit::spawn;

fn watched(double: &Double, written: &Written, origin: &Origin) -> App {
    let remote = written.process(double);
    let cache = settings().remote(remote, RemoteSettings::new()).build().unwrap();
    cache.http_layer().layer(origin.clone())
}

/// The client that asks, by whichever credential.
fn who(call: &Call) -> &str {
    let names = ["authorization", "cookie", "x-api-key"];
    names.iter().find_map(|name| call.header(name)).unwrap_or("anonymous")
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_stored_never_leaves_the_process() {
    let secret = |fields: &'static [(&str, &str)]| {
        move |call: &Call| {
            let answer = Answer::status(200).body(format!("secret of {}", who(call)));
            fields.iter().fold(answer, |answer, (name, value)| answer.header(name, value))
        }
    };
    let answers: [&'static [(&str, &str)]; 9] = [
        &[("cache-control", "private, max-age=60")],
        &[("cache-control", "no-store")],
        &[("cache-control", "max-age=60"), ("set-cookie", "session=secret")],
        &[("cache-control", "public, max-age=60"), ("set-cookie", "session=secret")],
        &[("cache-control", "max-age=60"), ("vary", "*")],
        &[("cache-control", "no-cache")],
        &[("cache-control", "private"), ("expires", "Fri, 31 Dec 2100 23:59:59 GMT")],
        &[("cache-control", "max-age=60"), ("cdn-cache-control", "private")],
        &[],
    ];
    for fields in answers {
        let (double, written) = (Double::new(), Written::default());
        let origin = Origin::new(secret(fields));
        let apps: Vec<_> = (0..3).map(|_| watched(&double, &written, &origin)).collect();
        let asks = [
            get("http://a/x"),
            with("http://a/x", &[("authorization", "alice")]),
            with("http://a/x", &[("cookie", "bob")]),
        ];
        for _ in 0..2 {
            for (i, _) in asks.iter().enumerate() {
                everywhere(&apps, 3, |_| match i {
                    0 => get("http://a/x"),
                    1 => with("http://a/x", &[("authorization", "alice")]),
                    _ => with("http://a/x", &[("cookie", "bob")]),
                })
                .await;
            }
        }
        pass(secs(1)).await;
        assert!(!written.contains("secret"), "{fields:?}");
        // Every one of them was answered by the origin.
        assert_eq!(origin.calls(), 54, "{fields:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_credentials_stays_with_them_unless_it_permits_more() {
    let cases = [
        ("authorization", "max-age=60", false),
        ("authorization", "must-revalidate, max-age=60", true),
        ("authorization", "s-maxage=60", true),
        ("authorization", "public, max-age=60", true),
        ("cookie", "max-age=60", false),
        ("cookie", "must-revalidate, max-age=60", false),
        ("cookie", "public, max-age=60", true),
        ("x-api-key", "max-age=60", false),
        ("x-api-key", "s-maxage=60", true),
    ];
    for (name, cache_control, is_shared) in cases {
        let (double, written) = (Double::new(), Written::default());
        let origin =
            Origin::new(move |call| Answer::ok(cache_control, format!("of {}", who(call))));
        let apps: Vec<_> = (0..2).map(|_| watched(&double, &written, &origin)).collect();
        let field = [(name, "alice")];
        send(&apps[0], with("http://a/x", &field)).await;
        pass(secs(1)).await;
        assert_eq!(written.contains("of alice"), is_shared, "{name}: {cache_control}");
        let other = send(&apps[1], with("http://a/x", &[(name, "bob")])).await;
        let expected = if is_shared { "of alice" } else { "of bob" };
        assert_eq!(other.text(), expected, "{name}: {cache_control}");
        let nobody = send(&apps[1], get("http://a/x")).await;
        let expected = if is_shared { "of alice" } else { "of anonymous" };
        assert_eq!(nobody.text(), expected, "{name}: {cache_control}");
    }
}

#[tokio::test(start_paused = true)]
async fn fields_and_cookies_that_are_left_out_do_not_leave_the_process() {
    let (double, written) = (Double::new(), Written::default());
    let origin = Origin::new(|_| {
        Answer::ok("max-age=60, private=\"x-user\"", "for all").header("x-user", "secret")
    });
    let apps: Vec<_> = (0..2).map(|_| watched(&double, &written, &origin)).collect();
    let own = send(&apps[0], get("http://a/x")).await;
    assert_eq!(own.header("x-user"), Some("secret"));
    let other = send(&apps[1], get("http://a/x")).await;
    assert_eq!((other.text(), other.header("x-user")), ("for all", None));
    assert!(written.contains("for all") && !written.contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn what_clients_send_does_not_leave_the_process() {
    let (double, written) = (Double::new(), Written::default());
    let origin = Origin::new(|_| Answer::ok("public, max-age=60", "x").header("vary", "cookie"));
    let app = watched(&double, &written, &origin);
    let fields = [("cookie", "the-session"), ("authorization", "the-password")];
    send(&app, with("http://a/x", &fields)).await;
    pass(secs(1)).await;
    assert!(written.contains("cookie"));
    assert!(!written.contains("the-session") && !written.contains("the-password"));
}

/// Paths by what the origin says of them, clients by what they show, in three
/// processes, at random moments: no client ever sees another one's own answer.
#[tokio::test(start_paused = true)]
async fn whatever_the_interleaving_nobody_gets_another_one_s_own_answer() {
    const SAID: [&str; 7] = [
        "private, max-age=1",
        "no-store",
        "max-age=1",
        "must-revalidate, max-age=1",
        "public, max-age=1, stale-while-revalidate=1",
        "s-maxage=1",
        "max-age=0, stale-if-error=5",
    ];
    const SHOWN: [(&str, &str); 5] = [
        ("x-nothing", "anonymous"),
        ("authorization", "alice"),
        ("authorization", "bob"),
        ("cookie", "carol"),
        ("x-api-key", "dave"),
    ];
    for seed in 0..20 {
        let mut random = Random(seed);
        let origin = Origin::new(|call| {
            let n: usize = call.parts.uri.path()[1..].parse().unwrap();
            let answer = Answer::ok(SAID[n % 7], format!("{} {}", SAID[n % 7], who(call)));
            let status = if call.n % 5 == 4 { Answer::status(500) } else { answer };
            status.after(ms(20 * (call.n as u64 % 7)))
        });
        let double = Double::new();
        double.delay(ms(1));
        let apps = processes(&double, &origin, 3);
        let mut clients = Vec::new();
        for _ in 0..200 {
            let app = apps[random.below(3)].clone();
            let (name, value) = SHOWN[random.below(5)];
            let uri = format!("http://a/{}", random.below(14));
            clients.push((
                value,
                spawn(async move { send(&app, with(&uri, &[(name, value)])).await }),
            ));
            pass(ms(random.below(40) as u64)).await;
        }
        for (shown, client) in clients {
            let reply = client.await.unwrap();
            if reply.status != 200 {
                continue;
            }
            let (said, of) = reply.text().rsplit_once(' ').unwrap();
            // `must-revalidate` speaks of `Authorization` alone, and a response
            // that names no client belongs to no client.
            let is_shared = said.contains("public")
                || said.contains("s-maxage")
                || said.contains("must-revalidate") && ["alice", "bob"].contains(&of)
                || of == "anonymous" && said != "private, max-age=1" && said != "no-store";
            assert!(of == shown || is_shared, "{shown} got {:?}, seed {seed}", reply.text());
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_elsewhere_does_not_queue_for_what_is_not_shared() {
    let origin = Origin::new(|_| Answer::ok("no-store", "mine"));
    let double = Double::new();
    let apps = processes(&double, &origin, 3);
    send(&apps[0], get("http://a/x")).await;
    pass(ms(1)).await;
    for app in &apps[1..] {
        let replies = crowd(app, 50, |_| get("http://a/x")).await;
        assert!(slowest(&replies) < WORK + ms(10), "{:?}", slowest(&replies));
        assert!(replies.iter().all(|reply| reply.text() == "mine"));
    }
    assert_eq!(origin.calls(), 101);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_at_many_processes_pays_two_origin_times_when_nothing_is_shared() {
    let origin = Origin::new(|_| Answer::ok("no-store", "mine"));
    let double = Double::new();
    let apps = processes(&double, &origin, 8);
    let replies = everywhere(&apps, 20, |_| get("http://a/x")).await;
    assert!(slowest(&replies) < 2 * WORK + ms(10), "{:?}", slowest(&replies));
    assert_eq!(origin.calls(), 160);
}

#[tokio::test(start_paused = true)]
async fn one_request_that_is_not_shared_releases_no_crowd_of_another_process() {
    for is_cold in [true, false] {
        let origin = Origin::new(|call| match call.header("x-odd") {
            Some(_) => Answer::ok("no-store", "odd"),
            None => Answer::ok("max-age=1", "for all"),
        });
        let double = Double::new();
        let apps = processes(&double, &origin, 3);
        if !is_cold {
            everywhere(&apps, 1, |_| get("http://a/x")).await;
            pass(secs(3)).await;
        }
        send(&apps[0], with("http://a/x", &[("x-odd", "1")])).await;
        pass(ms(1)).await;
        let before = origin.calls();
        let replies = everywhere(&apps, 40, |_| get("http://a/x")).await;
        assert!(replies.iter().all(|reply| reply.text() == "for all"));
        assert_eq!(origin.calls() - before, 1, "cold: {is_cold}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_requests_that_are_not_shared_cost_each_process_one_call_while_the_page_is_known() {
    let origin = Origin::new(|call| match call.header("x-odd") {
        Some(_) => Answer::ok("no-store", "odd"),
        None => Answer::ok("max-age=1", "for all"),
    });
    let double = Double::new();
    let apps = processes(&double, &origin, 3);
    for round in 0..10 {
        everywhere(&apps, 1, |_| get("http://a/x")).await;
        pass(secs(3)).await;
        for odd in ["1", "2"] {
            send(&apps[round % 3], with("http://a/x", &[("x-odd", odd)])).await;
            pass(ms(1)).await;
        }
        let before = origin.calls();
        let replies = everywhere(&apps, 40, |_| get("http://a/x")).await;
        assert!(replies.iter().all(|reply| reply.text() == "for all"));
        assert!(origin.calls() - before <= 3, "{} calls", origin.calls() - before);
        pass(secs(3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_attack_at_several_processes_costs_a_crowd_no_more_than_two_calls_for_each_lifetime() {
    const LIFETIMES: usize = 50;
    for attacked in 1..=3 {
        let origin = Origin::new(|call| match call.header("x-odd") {
            Some(_) => Answer::ok("no-store", "odd").after(ms(300)),
            None => Answer::ok("max-age=1", "for all").after(ms(300)),
        });
        let double = Double::new();
        let apps = processes(&double, &origin, 3);
        everywhere(&apps, 1, |_| get("http://a/x")).await;
        let targets = apps[..attacked].to_vec();
        let attacker = spawn(async move {
            for n in 0_usize.. {
                let (app, odd) = (targets[n % targets.len()].clone(), n.to_string());
                spawn(async move { send(&app, with("http://a/x", &[("x-odd", &odd)])).await });
                pass(ms(250)).await;
            }
        });
        for n in 0..LIFETIMES as u64 {
            // Each time at another moment of the attack.
            pass(ms(1500 + 37 * n % 250)).await;
            let replies = crowd(&apps[0], 20, |_| get("http://a/x")).await;
            assert!(replies.iter().all(|reply| reply.text() == "for all"));
        }
        attacker.abort();
        let own = origin.seen().iter().filter(|call| call.header("x-odd").is_none()).count();
        assert!(own <= LIFETIMES * 3, "{attacked} processes: {own} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_knows_no_page_releases_no_crowd_of_one_that_does() {
    let origin = Origin::new(|call| match call.header("x-odd") {
        Some(_) => Answer::ok("no-store", "odd"),
        None => Answer::ok("max-age=1", "for all"),
    });
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    send(&apps[0], get("http://a/x")).await;
    pass(secs(3)).await;
    let odd = |n: usize| with("http://a/x", &[("x-odd", &n.to_string())]);
    for n in 0..2 {
        send(&apps[1], odd(n)).await;
        pass(ms(1)).await;
    }
    let before = origin.calls();
    crowd(&apps[0], 40, |i| if i == 0 { odd(2) } else { get("http://a/x") }).await;
    assert_eq!(origin.calls() - before, 2);
}

#[tokio::test(start_paused = true)]
async fn a_storable_answer_ends_the_word_that_nothing_is_shared() {
    let origin = Origin::new(|_| Answer::ok("no-store", "mine"));
    let double = Double::new();
    let apps = processes(&double, &origin, 3);
    everywhere(&apps, 3, |_| get("http://a/x")).await;
    pass(secs(1)).await;
    origin.answers(|_| Answer::ok("max-age=10", "for all"));
    let before = origin.calls();
    for app in &apps {
        send(app, get("http://a/x")).await;
        pass(ms(1)).await;
    }
    assert_eq!(origin.calls() - before, 1);
    // They wait for each other again, too.
    pass(secs(12)).await;
    let replies = everywhere(&apps, 20, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "for all"));
    assert_eq!(origin.calls() - before, 2);
}

#[tokio::test(start_paused = true)]
async fn the_word_that_nothing_is_shared_is_renewed_while_it_is_true() {
    let origin = Origin::new(|_| Answer::ok("no-store", "mine"));
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    for _ in 0..4 {
        send(&apps[0], get("http://a/x")).await;
        pass(secs(20)).await;
    }
    let replies = crowd(&apps[1], 20, |_| get("http://a/x")).await;
    assert!(slowest(&replies) < WORK + ms(10), "{:?}", slowest(&replies));
}

#[tokio::test(start_paused = true)]
async fn one_client_s_own_answer_switches_protection_off_for_nobody() {
    let origin = Origin::new(|call| match who(call) {
        "anonymous" => Answer::ok("max-age=60", "for all"),
        who => Answer::ok("private", format!("of {who}")),
    });
    let double = Double::new();
    let apps = processes(&double, &origin, 3);
    for name in ["authorization", "cookie"] {
        send(&apps[0], with("http://a/x", &[(name, "alice")])).await;
    }
    pass(ms(1)).await;
    let before = origin.calls();
    let replies = everywhere(&apps[1..], 50, |_| get("http://a/x")).await;
    assert!(replies.iter().all(|reply| reply.text() == "for all"));
    assert_eq!(origin.calls() - before, 1);
    assert!(slowest(&replies) < WORK + ms(10));
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_clients_with_answers_of_their_own_keeps_nobody_waiting_elsewhere() {
    let origin = Origin::new(|call| match who(call) {
        "anonymous" => Answer::ok("max-age=60", "for all"),
        who => Answer::ok("private", format!("of {who}")),
    });
    let double = Double::new();
    double.delay(ms(5));
    let apps = processes(&double, &origin, 5);
    let busy = apps[1..].to_vec();
    let stream = spawn(async move {
        for n in 0.. {
            let app = busy[n % busy.len()].clone();
            spawn(async move { send(&app, with("http://a/x", &[("cookie", "alice")])).await });
            pass(ms(3)).await;
        }
    });
    pass(WORK * 6).await;
    let replies = crowd(&apps[0], 20, |_| get("http://a/x")).await;
    stream.abort();
    assert!(replies.iter().all(|reply| reply.text() == "for all"));
    assert!(slowest(&replies) < 2 * WORK, "{:?}", slowest(&replies));
}

#[tokio::test(start_paused = true)]
async fn one_client_s_failure_holds_back_nobody_elsewhere() {
    let origin = Origin::new(|_| Answer::ok("public, max-age=10, stale-if-error=600", "good"));
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    everywhere(&apps, 1, |_| with("http://a/x", &[("cookie", "alice")])).await;
    everywhere(&apps, 1, |_| get("http://a/x")).await;
    pass(secs(20)).await;
    origin.answers(|call| match who(call) {
        "anonymous" => Answer::ok("public, max-age=10, stale-if-error=600", "better"),
        _ => Answer::status(500),
    });
    let alice = send(&apps[0], with("http://a/x", &[("cookie", "alice")])).await;
    assert!(alice.is(CacheOutcome::StaleIfError), "{alice:?}");
    pass(ms(1)).await;
    let reply = send(&apps[1], get("http://a/x")).await;
    assert_eq!(reply.text(), "better");
}

#[tokio::test(start_paused = true)]
async fn a_cookie_gets_what_an_anonymous_request_elsewhere_got_if_the_origin_set_its_time() {
    let origin = Origin::new(|call| Answer::ok("max-age=60", format!("of {}", who(call))));
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    send(&apps[0], get("http://a/x")).await;
    let reply = send(&apps[1], with("http://a/x", &[("cookie", "alice")])).await;
    assert_eq!(reply.text(), "of anonymous");
    // By the layer's own lifetime it might be alice's page without her.
    let ttl = || {
        let cache = tower_stampede::Stampede::builder("web").ttl(secs(60));
        let cache = cache.remote(double.process(), RemoteSettings::new()).build().unwrap();
        cache.http_layer().layer(origin.clone())
    };
    origin.answers(|call| Answer::status(200).body(format!("of {}", who(call))));
    let (one, other) = (ttl(), ttl());
    send(&one, get("http://a/y")).await;
    let reply = send(&other, with("http://a/y", &[("cookie", "alice")])).await;
    assert_eq!(reply.text(), "of alice");
}

#[tokio::test(start_paused = true)]
async fn log_in_first_is_no_answer_to_whoever_has_elsewhere() {
    let origin = Origin::new(|call| match who(call) {
        "anonymous" => Answer::status(401).header("cache-control", "public, max-age=60"),
        who => Answer::ok("private", format!("of {who}")),
    });
    let double = Double::new();
    let apps = processes(&double, &origin, 2);
    assert_eq!(send(&apps[0], get("http://a/x")).await.status, 401);
    let reply = send(&apps[1], with("http://a/x", &[("authorization", "alice")])).await;
    assert_eq!(reply.text(), "of alice");
    assert_eq!(double.calls(RemoteOp::Fill), 1);
    assert_eq!(send(&process(&double, &origin), get("http://a/x")).await.status, 401);
}
