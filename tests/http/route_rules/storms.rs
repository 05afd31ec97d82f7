//! Crowds at routes with rules, in one process and in many.

use std::collections::HashMap;

use axum::middleware::map_request;

use super::{User, authenticate, routes, ruled};
use crate::kit::http::*;

/// Users, queries and languages at random, at two routes with rules and one without.
#[tokio::test(start_paused = true)]
async fn in_a_storm_each_client_gets_its_own_and_each_key_is_computed_once() {
    for seed in 0..8 {
        let mut random = fastrand_of(seed);
        let origin = Origin::new(|call| {
            let said = |name| call.header(name).unwrap_or("-").to_owned();
            let user = call.parts.extensions.get::<User>().map_or("-", |user| &user.0);
            let text = format!("{} {} {user}", call.uri(), said("accept-language"));
            let answer = Answer::status(200).header("vary", "accept-language").body(text);
            answer.after(ms(10 + call.n as u64 % 90))
        });
        let cache = with_ttl(600);
        let app = routes(&origin).layer(map_request(authenticate));
        let app = app.layer(ruled(cache.http_layer(), |it| it.query(["q"])));
        let asks: Vec<_> = (0..400)
            .map(|_| {
                let path = ["/search", "/items/1", "/items/2", "/plain"][random(4)];
                let (q, x) = (random(3), random(3));
                let user = ["", "", "", "alice", "bob"][random(5)];
                (path, q, x, ["de", "en"][random(2)], user)
            })
            .collect();
        let replies = crowd(&app, asks.len(), |i| {
            let (path, q, x, language, user) = asks[i];
            let mut fields = vec![("accept-language", language)];
            fields.extend((!user.is_empty()).then_some(("authorization", user)));
            with(&format!("{path}?q={q}&x={x}"), &fields)
        })
        .await;
        let mut expected = HashMap::new();
        for ((path, q, x, language, user), reply) in asks.iter().zip(&replies) {
            let uri = match *path {
                "/plain" => format!("{path}?q={q}&x={x}"),
                _ => format!("{path}?q={q}"),
            };
            let name = if user.is_empty() { "anonymous" } else { user };
            assert_eq!(reply.text(), format!("{uri} {language} {name}"), "seed {seed}");
            *expected.entry((uri, language, user)).or_insert(0) += 1;
        }
        let shared = expected.keys().filter(|(_, _, user)| user.is_empty()).count();
        let alone: usize =
            expected.iter().filter(|((_, _, user), _)| !user.is_empty()).map(|(_, n)| n).sum();
        // One call per key of clients without credentials, and one per request with them.
        assert_eq!(origin.calls(), shared + alone, "seed {seed}");
    }
}

fn fastrand_of(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |n| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    }
}

mod many_processes {
    use tower_stampede::remote::{Double, RemoteSettings};
    use tower_stampede::{HttpStampede, Stampede};

    use super::super::{echo, site};
    use crate::kit::http::*;

    fn process(double: &Double) -> HttpStampede {
        let cache = Stampede::builder("web").ttl(secs(60)).jitter(0.0);
        cache.remote(double.process(), RemoteSettings::new()).build().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_cold_crowd_at_many_processes_is_one_call_for_each_key_of_the_route() {
        let (double, origin) = (Double::new(), echo());
        let caches: Vec<_> = (0..4).map(|_| process(&double)).collect();
        let sites =
            caches.iter().map(|cache| site(&origin, cache.http_layer(), |it| it.query(["q"])));
        let sites: Vec<_> = sites.collect();
        for round in 1..=2 {
            let crowds = sites.iter().map(|app| {
                let path = ["/search", "/items/1"][round - 1];
                crowd(app, 40, move |i| get(&format!("{path}?q={}&x={}", i % 3, i % 7)))
            });
            let replies = futures_util::future::join_all(crowds).await.concat();
            assert!(slowest(&replies) < WORK * 3, "{:?}", slowest(&replies));
            assert_eq!(origin.calls(), 3 * round);
        }
        // A write at one process reaches what the others have stored.
        send(&sites[0], request("POST", "/search?q=1&x=99", &[])).await;
        pass(ms(100)).await;
        let before = origin.calls();
        send(&sites[3], get("/search?q=1")).await;
        assert_eq!(origin.calls() - before, 1);
    }

    /// With a field in the key an anchor leads to the response: by the name of the route's list.
    #[tokio::test(start_paused = true)]
    async fn a_write_ends_what_the_rules_of_a_route_have_shared_with_other_processes() {
        for keys_more in [false, true] {
            let (double, origin) = (Double::new(), echo());
            let sites = [(), ()].map(|()| {
                site(&origin, process(&double).http_layer(), move |it| {
                    let it = it.query(["q"]);
                    if keys_more { it.keyed_headers(["x-plan"]) } else { it }
                })
            });
            let ask = |x| with(&format!("/search?q=1&x={x}"), &[("host", "x"), ("x-plan", "1")]);
            let first = send(&sites[0], ask(1)).await;
            pass(secs(1)).await;
            assert_eq!(send(&sites[1], ask(2)).await.text(), first.text());
            send(&sites[1], request("POST", "/search?x=3&q=1", &[("host", "x")])).await;
            pass(secs(1)).await;
            for app in &sites {
                assert_ne!(send(app, ask(4)).await.text(), first.text(), "{keys_more}");
            }
            assert_eq!(origin.calls(), 3);
        }
    }
}
