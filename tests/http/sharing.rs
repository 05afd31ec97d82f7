//! No request ever receives a response that was made for another, unless the
//! response itself permits it.

use http::Request;
use tower_stampede::CacheOutcome::*;
use tower_stampede::{CacheFor, SetCookie};

use crate::kit::http::*;

/// The credentials a request may carry, and a value for client `who`.
const KINDS: [&[&str]; 8] = [
    &[],
    &["authorization"],
    &["cookie"],
    &["x-api-key"],
    &["proxy-authorization"],
    &["x-auth-token"],
    &["authorization", "cookie"],
    &["cookie", "client-cert"],
];

fn by(who: &str, kind: &[&str]) -> Request<axum::body::Body> {
    let fields: Vec<_> = kind.iter().map(|name| (*name, who)).collect();
    with("/report", &fields)
}

/// What a response says, and what http.md 2 makes of it.
#[derive(Clone, Copy, Debug)]
struct Said {
    directives: &'static str,
    by_handler: bool,
    handler_public: bool,
    /// Permits to share answers to requests with `Authorization`.
    permits_authorization: bool,
    /// The same for the other credentials.
    permits_others: bool,
    /// The origin itself gave a lifetime.
    explicit: bool,
}

const fn said(directives: &'static str, permits: (bool, bool), explicit: bool) -> Said {
    Said {
        directives,
        by_handler: false,
        handler_public: false,
        permits_authorization: permits.0,
        permits_others: permits.1,
        explicit,
    }
}

const SAID: [Said; 12] = [
    said("max-age=60", (false, false), true),
    said("public, max-age=60", (true, true), true),
    said("s-maxage=60", (true, true), true),
    said("max-age=60, must-revalidate", (true, false), true),
    said("max-age=60, proxy-revalidate", (false, false), true),
    said("max-age=60, immutable", (false, false), true),
    // By our ttl: permission needs a lifetime of the origin's own.
    said("", (false, false), false),
    said("public", (false, false), false),
    said("must-revalidate", (false, false), false),
    // A directive with nonsense in it permits nothing.
    said("public=yes, max-age=60", (false, false), true),
    Said { by_handler: true, ..said("", (false, false), false) },
    Said { by_handler: true, handler_public: true, ..said("", (true, true), false) },
];

impl Said {
    fn answer(self, body: String) -> Answer {
        let answer = Answer::ok(self.directives, body);
        let lifetime = CacheFor::new(secs(60));
        match (self.by_handler, self.handler_public) {
            (false, _) => answer,
            (true, false) => answer.extension(lifetime),
            (true, true) => answer.extension(lifetime.public()),
        }
    }

    fn permits(self, name: &str) -> bool {
        if name == "authorization" { self.permits_authorization } else { self.permits_others }
    }

    /// http.md 2: stored or handed on at all.
    fn may_store(self, from: &[&str]) -> bool {
        from.iter().all(|name| self.permits(name))
    }

    /// http.md 2: given to a request with these credentials.
    fn may_answer(self, from: &[&str], to: &[&str]) -> bool {
        let by_anonymity = |name: &str| name == "cookie" && from.is_empty() && self.explicit;
        to.iter().all(|name| self.permits(name) || by_anonymity(name))
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_stored_answers_exactly_those_whom_the_response_permits() {
    for said in SAID {
        for from in KINDS {
            for to in KINDS {
                let origin = Origin::new(move |call| said.answer(call.n.to_string()));
                let app = layered(with_ttl(60).http_layer(), &origin);
                send(&app, by("alice", from)).await;
                let reply = send(&app, by("bob", to)).await;
                let shared = reply.text() == "0";
                let expected = said.may_store(from) && said.may_answer(from, to);
                assert_eq!(shared, expected, "{said:?} from {from:?} to {to:?}");
                assert_eq!(reply.is(Hit), shared);
                assert_eq!(origin.calls(), if shared { 1 } else { 2 });
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_handed_to_waiters_goes_to_nobody_whom_the_response_does_not_permit() {
    for said in SAID {
        for from in KINDS {
            for to in KINDS {
                let origin = Origin::new(move |call| said.answer(call.n.to_string()));
                let app = layered(with_ttl(60).http_layer(), &origin);
                // A first answer, so that flights are shared where they may be.
                send(&app, by("carol", from)).await;
                send(&app, by("carol", to)).await;
                pass(secs(61)).await;
                let before = origin.calls();
                let kinds = [from, to];
                let all = crowd(&app, 6, |i| by(["alice", "bob"][i % 2], kinds[i % 2])).await;
                for (i, reply) in all.iter().enumerate() {
                    let call = &origin.seen()[reply.text().parse::<usize>().unwrap()];
                    let asked = KINDS.into_iter().find(|kind| {
                        kind.len() == call.parts.headers.len()
                            && kind.iter().all(|name| call.header(name).is_some())
                    });
                    let asked = asked.expect("one of the kinds");
                    let mine = asked == kinds[i % 2] && !reply.is(Joined) && !reply.is(Hit);
                    let permitted = said.may_store(asked) && said.may_answer(asked, kinds[i % 2]);
                    assert!(mine || permitted, "{said:?} {asked:?} to {:?}", kinds[i % 2]);
                }
                // Anonymous clients are always protected from each other.
                if from.is_empty() && to.is_empty() {
                    assert_eq!(origin.calls(), before + 1);
                }
                // Where sharing was permitted lately, two leaders find out that it is not.
                assert!(slowest(&all) <= WORK * 3);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn credentialed_clients_share_a_flight_once_a_response_has_permitted_it() {
    let origin = Origin::new(|call| Answer::ok("public, max-age=10", call.n.to_string()));
    let app = app(&origin);
    // At first sight each goes straight through.
    let first = crowd(&app, 20, |i| by(&i.to_string(), &["authorization"])).await;
    assert_eq!(slowest(&first), WORK);
    assert_eq!(origin.calls(), 20);
    pass(secs(11)).await;
    let next = crowd(&app, 20, |i| by(&i.to_string(), &["authorization"])).await;
    assert_eq!(next.iter().filter(|reply| reply.is(Joined)).count(), 19);
    assert_eq!(origin.calls(), 21);
}

#[tokio::test(start_paused = true)]
async fn credentialed_clients_do_not_queue_where_the_last_response_did_not_permit_to_share() {
    let origin = Origin::new(|call| Answer::ok("public, max-age=10", call.n.to_string()));
    let app = app(&origin);
    send(&app, by("a", &["cookie"])).await;
    origin.answers(|call| Answer::ok("max-age=10", call.n.to_string()));
    pass(secs(11)).await;
    // For `uncacheable_for` each crowd finds out anew: two of its requests lead in turn.
    for crowds in 1..=2 {
        let first = crowd(&app, 20, |i| by(&i.to_string(), &["cookie"])).await;
        assert!(slowest(&first) <= WORK * 3);
        assert_eq!(origin.calls(), 1 + 20 * crowds);
    }
    pass(secs(20)).await;
    crowd(&app, 20, |i| by(&i.to_string(), &["cookie"])).await;
    pass(secs(10)).await;
    let next = crowd(&app, 20, |i| by(&i.to_string(), &["cookie"])).await;
    assert_eq!(slowest(&next), WORK);
    assert_eq!(origin.calls(), 81);
}

#[tokio::test(start_paused = true)]
async fn an_expired_answer_of_nobodys_is_no_permission_to_share_answers_of_somebody() {
    let origin = Origin::new(|call| Answer::ok("max-age=10", call.n.to_string()));
    let app = app(&origin);
    send(&app, get("/report")).await;
    assert!(send(&app, by("a", &["cookie"])).await.is(Hit));
    pass(secs(11)).await;
    let crowd = crowd(&app, 20, |i| by(&i.to_string(), &["cookie"])).await;
    assert_eq!(slowest(&crowd), WORK, "no caller waits for what cannot be shared");
    assert_eq!(origin.calls(), 21);
}

#[tokio::test(start_paused = true)]
async fn one_credentialed_request_does_not_end_the_protection_of_the_anonymous_crowd() {
    for kind in &KINDS[1..] {
        let origin = Origin::new(|call| Answer::ok("max-age=10", call.n.to_string()));
        let app = app(&origin);
        send(&app, by("alice", kind)).await;
        let crowd = crowd(&app, 100, |i| by("alice", if i == 0 { kind } else { &[] })).await;
        assert_eq!(slowest(&crowd), WORK);
        assert_eq!(origin.calls(), 3, "alice twice, the crowd once");
        assert_eq!(crowd.iter().filter(|reply| reply.is(Joined)).count(), 98);
    }
}

#[tokio::test(start_paused = true)]
async fn log_in_first_is_never_the_answer_to_somebody_who_has() {
    for status in [401, 403, 407] {
        for directives in ["public, max-age=60", "max-age=60", "s-maxage=60"] {
            let origin = Origin::new(move |call| match call.parts.headers.is_empty() {
                true => Answer::status(status).header("cache-control", directives),
                false => Answer::ok("max-age=60", "welcome"),
            });
            let app = app(&origin);
            assert_eq!(send(&app, get("/report")).await.status, status);
            assert!(send(&app, get("/report")).await.is(Hit));
            for kind in &KINDS[1..] {
                assert_eq!(send(&app, by("alice", kind)).await.text(), "welcome");
            }
            assert_eq!(origin.calls(), KINDS.len());
        }
    }
}

// ===== Directives =====

#[tokio::test(start_paused = true)]
async fn what_forbids_sharing_is_obeyed_for_hits_and_waiters() {
    for directives in [
        "no-store",
        "max-age=60, No-Store",
        "private, max-age=60",
        "PRIVATE=1, max-age=60",
        "no-cache, max-age=60",
        "max-age=60, private=\"vary\"",
        "max-age=60, must-understand, no-store, private",
        "max-age=60, \"unreadable",
    ] {
        let origin = Origin::new(move |call| Answer::ok(directives, call.n.to_string()));
        let app = layered(with_ttl(60).http_layer(), &origin);
        let replies = crowd(&app, 10, |_| get("/report")).await;
        let mut bodies: Vec<_> = replies.iter().map(Reply::text).collect();
        bodies.sort_unstable();
        bodies.dedup();
        assert_eq!(bodies.len(), 10, "{directives}");
        assert_eq!(send(&app, get("/report")).await.text(), "10", "{directives}");
        assert_eq!(origin.calls(), 11);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_handler_says_lifts_no_prohibition() {
    type Forbidden = fn(Answer) -> Answer;
    let forbidden: [Forbidden; 5] = [
        |answer| answer.header("cache-control", "no-store"),
        |answer| answer.header("cache-control", "private"),
        |answer| answer.header("set-cookie", "id=1"),
        |answer| answer.header("vary", "*"),
        |answer| answer.header("cdn-cache-control", "no-store"),
    ];
    for (i, forbid) in forbidden.into_iter().enumerate() {
        let origin = Origin::new(move |call| {
            let answer = Answer::status(200).body(call.n.to_string());
            forbid(answer.extension(CacheFor::new(secs(60)).public()))
        });
        let app = app(&origin);
        crowd(&app, 10, |_| get("/report")).await;
        assert_eq!(send(&app, get("/report")).await.text(), "10", "{i}");
        assert_eq!(origin.calls(), 11);
    }
}

#[tokio::test(start_paused = true)]
async fn fields_named_in_private_or_no_cache_reach_only_the_client_they_were_for() {
    let origin = Origin::new(|call| {
        Answer::ok("max-age=60, private=\"X-User, x-b\", no-cache=\"set-cookie\"", "report")
            .header("x-user", &call.n.to_string())
            .header("x-b", "1")
            .header("set-cookie", "id=1")
            .header("x-all", "1")
    });
    let app = app(&origin);
    let mut replies = crowd(&app, 10, |_| get("/report")).await;
    replies.push(send(&app, get("/report")).await);
    let leader = replies.remove(0);
    for name in ["x-user", "x-b", "set-cookie", "x-all"] {
        assert!(leader.header(name).is_some());
    }
    for reply in replies {
        assert_eq!(reply.text(), "report");
        for name in ["x-user", "x-b", "set-cookie"] {
            assert_eq!(reply.header(name), None);
        }
        assert_eq!(reply.header("x-all"), Some("1"));
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_targeted_field_governs_in_place_of_cache_control_and_is_passed_on() {
    for (directives, targeted, calls) in
        [("no-store", "max-age=60", 1), ("max-age=60", "no-store", 2), ("max-age=60", "x=", 1)]
    {
        let origin = Origin::new(move |call| {
            Answer::ok(directives, call.n.to_string()).header("cdn-cache-control", targeted)
        });
        let app = app(&origin);
        send(&app, get("/report")).await;
        let reply = send(&app, get("/report")).await;
        assert_eq!(reply.header("cdn-cache-control"), Some(targeted));
        assert_eq!(origin.calls(), calls, "{directives} {targeted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_lives_until_its_expires() {
    for (expires, calls) in [("Sun, 06 Nov 2094 08:49:37 GMT", 1), ("0", 2)] {
        let origin = Origin::new(move |call| {
            Answer::ok("public", call.n.to_string()).header("expires", expires)
        });
        let app = layered(with_ttl(60).http_layer(), &origin);
        send(&app, get("/report")).await;
        send(&app, get("/report")).await;
        assert_eq!(origin.calls(), calls, "{expires}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_ttl_a_response_lives_by_its_last_modified_unless_that_is_switched_off() {
    let modified = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (layer, calls) in
        [(origin_only().http_layer(), 1), (origin_only().http_layer().heuristics(false), 2)]
    {
        let origin = Origin::new(move |call| {
            Answer::ok("", call.n.to_string()).header("last-modified", modified)
        });
        let app = layered(layer, &origin);
        send(&app, get("/report")).await;
        send(&app, get("/report")).await;
        assert_eq!(origin.calls(), calls);
    }
}

// ===== Cookies =====

fn sets_cookie(directives: &'static str, cookie: &'static str) -> Origin {
    Origin::new(move |call| Answer::ok(directives, call.n.to_string()).header("set-cookie", cookie))
}

#[tokio::test(start_paused = true)]
async fn a_response_with_a_cookie_is_nobody_elses() {
    let origin = sets_cookie("public, max-age=60", "id=1");
    let app = app(&origin);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| !reply.is(Joined) && !reply.is(Hit)));
    assert!(replies.iter().all(|reply| reply.header("set-cookie").is_some()));
    assert_eq!(origin.calls(), 10);
}

#[tokio::test(start_paused = true)]
async fn stripped_cookies_reach_only_the_client_they_were_for() {
    let origin = sets_cookie("max-age=60", "id=1; HttpOnly");
    let layer = origin_only().http_layer().set_cookie(SetCookie::Strip);
    let app = layered(layer, &origin);
    let mut replies = crowd(&app, 10, |_| get("/report")).await;
    replies.push(send(&app, get("/report")).await);
    assert_eq!(replies.remove(0).header("set-cookie"), Some("id=1; HttpOnly"));
    assert!(replies.iter().all(|reply| reply.header("set-cookie").is_none()));
    assert!(replies.iter().all(|reply| reply.text() == "0"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn explicitly_shared_cookies_are_shared_under_every_one_of_the_conditions() {
    for (directives, cookie, kind, shared) in [
        ("max-age=60", "lang=de", &[][..], true),
        ("s-maxage=60", "lang=de; Path=/; Secure", &[], true),
        ("", "lang=de", &[], false),
        ("public", "lang=de", &[], false),
        ("max-age=60", "lang=de; HttpOnly", &[], false),
        ("max-age=60", "lang=de; path=/ ; HTTPONLY ", &[], false),
        ("max-age=60", "__Host-id=1", &[], false),
        ("max-age=60", "__Secure-id=1", &[], false),
        ("max-age=60", "__secure-id=1", &[], false),
        ("public, max-age=60", "lang=de", &["cookie"], false),
        ("public, max-age=60", "lang=de", &["authorization"], false),
    ] {
        let origin = sets_cookie(directives, cookie);
        let layer = with_ttl(60).http_layer().set_cookie(SetCookie::Explicit);
        let app = layered(layer, &origin);
        send(&app, by("alice", kind)).await;
        let reply = send(&app, by("bob", kind)).await;
        assert_eq!(reply.text() == "0", shared, "{directives:?} {cookie:?} {kind:?}");
        assert_eq!(reply.all("set-cookie"), [cookie]);
        assert_eq!(origin.calls(), if shared { 1 } else { 2 });
    }
    // Never under the handler's own lifetime.
    let origin = Origin::new(|call| {
        let answer = Answer::ok("max-age=60", call.n.to_string());
        answer.header("set-cookie", "lang=de").extension(CacheFor::new(secs(60)))
    });
    let layer = with_ttl(60).http_layer().set_cookie(SetCookie::Explicit);
    let app = layered(layer, &origin);
    send(&app, get("/report")).await;
    assert_eq!(send(&app, get("/report")).await.text(), "1");
    assert_eq!(origin.calls(), 2);
}

// ===== Lifetimes of zero =====

/// `max-age=0` and `s-maxage=0` are what frameworks write against caches. The
/// lifetime is the handler's, who has not said `public()`.
#[tokio::test(start_paused = true)]
async fn a_lifetime_of_zero_beside_one_of_the_handlers_permits_nobody_to_share() {
    let mut shared = Vec::new();
    for (directives, name) in [
        ("max-age=0, must-revalidate", "authorization"),
        ("s-maxage=0", "cookie"),
        ("public, max-age=0", "x-api-key"),
    ] {
        let origin = Origin::new(move |call| {
            let body = call.header(name).unwrap_or("anonymous").to_owned();
            Answer::ok(directives, body).extension(CacheFor::new(secs(20)))
        });
        let app = layered(origin_only().http_layer(), &origin);
        send(&app, with("/page", &[(name, "alice")])).await;
        if send(&app, with("/page", &[(name, "bob")])).await.text() != "bob" {
            shared.push((directives, name));
        }
    }
    assert!(shared.is_empty(), "{shared:?}");
}

/// `public, max-age=0` says nothing of stale answers; the layer's window does.
#[tokio::test(start_paused = true)]
async fn a_lifetime_of_zero_permits_nobody_to_share_in_the_layers_own_stale_window() {
    let mut shared = Vec::new();
    for (directives, name) in [
        ("max-age=0, must-revalidate", "authorization"),
        ("s-maxage=0", "cookie"),
        ("public, max-age=0", "x-api-key"),
    ] {
        let origin = Origin::new(move |call| {
            Answer::ok(directives, call.header(name).unwrap_or("anonymous").to_owned())
        });
        let app = layered(origin_only().http_layer().stale_for(secs(60)), &origin);
        send(&app, with("/page", &[(name, "alice")])).await;
        if send(&app, with("/page", &[(name, "bob")])).await.text() != "bob" {
            shared.push((directives, name));
        }
    }
    assert!(shared.is_empty(), "{shared:?}");
}
