//! Random clients and responses against the rules, written down naively.

use http::Request;
use proptest::prelude::*;
use tower_stampede::CacheOutcome::Refused;

use crate::kit::cases::cases;
use crate::kit::http::*;
use crate::kit::spawn;

#[derive(Clone, Debug)]
struct Client {
    host: Option<&'static str>,
    query: &'static str,
    credentials: Vec<&'static str>,
    a: Option<&'static str>,
    b: Option<&'static str>,
    keyed: Option<&'static str>,
    /// Before this one comes.
    pause: u64,
}

#[derive(Clone, Debug)]
struct Response {
    status: u16,
    directives: Vec<&'static str>,
    vary: Vec<&'static str>,
    set_cookie: bool,
    work: u64,
}

fn client() -> impl Strategy<Value = Client> {
    let names = ["authorization", "cookie", "x-api-key", "proxy-authorization"];
    let credentials = prop_oneof![
        3 => Just(vec![]),
        3 => prop::sample::subsequence(names.to_vec(), 1..=2),
    ];
    let value = || prop::option::of(prop::sample::select(vec!["1", "2"]));
    (
        prop::option::weighted(0.8, prop::sample::select(vec!["x", "X:80", "x", "y"])),
        prop::sample::select(vec!["", "", "?q=1", "?q=1&utm=2"]),
        credentials,
        value(),
        value(),
        prop::option::weighted(0.1, Just("evil")),
        prop::sample::select(vec![0, 0, 0, 50, 150, 2_000, 11_000]),
    )
        .prop_map(|(host, query, credentials, a, b, keyed, pause)| Client {
            host,
            query,
            credentials,
            a,
            b,
            keyed,
            pause,
        })
}

fn response() -> impl Strategy<Value = Response> {
    let directives = vec![
        "public",
        "private",
        "no-store",
        "max-age=10",
        "max-age=0",
        "s-maxage=10",
        "must-revalidate",
        "stale-while-revalidate=60",
        "stale-if-error=60",
        "private=\"x-other\"",
    ];
    (
        prop::sample::select(vec![200, 200, 200, 200, 404, 403, 500]),
        prop_oneof![
            2 => prop::sample::subsequence(directives.clone(), 0..=3),
            2 => Just(vec!["max-age=10"]),
            2 => Just(vec!["public", "max-age=10", "stale-while-revalidate=60"]),
        ],
        prop_oneof![
            3 => Just(vec![]),
            3 => prop::sample::subsequence(vec!["a", "b"], 1..=2),
            1 => Just(vec!["a", "*"]),
        ],
        prop::bool::weighted(0.1),
        prop::sample::select(vec![0, 100, 100, 3_000]),
    )
        .prop_map(|(status, directives, vary, set_cookie, work)| Response {
            status,
            directives,
            vary,
            set_cookie,
            work,
        })
}

impl Response {
    /// Whether it says in any form for how long it is fresh. Then it is stored whatever
    /// the status is.
    fn speaks_of_lifetime(&self) -> bool {
        ["s-maxage=10", "max-age=10", "max-age=0"].iter().any(|said| self.directives.contains(said))
    }

    /// Whether it names one lifetime. A response with two that contradict each other is
    /// stale, and permits nothing to clients with credentials.
    fn has_lifetime(&self) -> bool {
        let has = |directive: &str| self.directives.contains(&directive);
        has("s-maxage=10") || has("max-age=10") != has("max-age=0")
    }
}

impl Client {
    fn request(&self, id: usize) -> Request<axum::body::Body> {
        let id = id.to_string();
        let mut fields = vec![("x-id", &*id)];
        fields.extend(self.credentials.iter().map(|name| (*name, &*id)));
        fields.extend(self.host.map(|host| ("host", host)));
        fields.extend(self.a.map(|value| ("a", value)));
        fields.extend(self.b.map(|value| ("b", value)));
        fields.extend(self.keyed.map(|value| ("x-forwarded-host", value)));
        with(&format!("/report{}", self.query), &fields)
    }

    /// The URI after normalisation by hand: parameters other than `q` are
    /// not allowed, `X:80` is `x`.
    fn target(&self) -> (Option<&str>, bool, Option<&str>) {
        let host = self.host.map(|host| if host == "y" { "y" } else { "x" });
        (host, self.query.contains('q'), self.keyed)
    }

    fn value(&self, name: &str) -> Option<&str> {
        if name == "a" { self.a } else { self.b }
    }
}

/// http.md 2 and 3: may the answer that the origin gave to `from` (with
/// those of its credentials that the origin saw) go to `to`?
fn permitted(said: &Response, from: &Client, carried: &[&str], to: &Client) -> bool {
    let has = |directive: &str| said.directives.contains(&directive);
    let public = has("public") || has("s-maxage=10");
    let explicit = said.has_lifetime();
    let permits =
        |name: &str| explicit && (public || name == "authorization" && has("must-revalidate"));
    let asks_to_log_in = said.status == 403 && !to.credentials.is_empty();
    let to_ok = to
        .credentials
        .iter()
        .all(|name| permits(name) || *name == "cookie" && carried.is_empty() && explicit);
    !has("no-store")
        && !has("private")
        && !said.set_cookie
        && !said.vary.contains(&"*")
        && said.vary.iter().all(|name| from.value(name) == to.value(name))
        && from.target() == to.target()
        && carried.iter().all(|name| permits(name))
        && to_ok
        && !asks_to_log_in
        && (said.speaks_of_lifetime() || matches!(said.status, 200 | 404 | 500))
}

async fn run(clients: Vec<Client>, responses: Vec<Response>) -> Result<(), TestCaseError> {
    let script = responses.clone();
    let origin = Origin::new(move |call| {
        let said = &script[call.n % script.len()];
        let mut answer = Answer::status(said.status)
            .header("cache-control", &said.directives.join(", "))
            .header("x-call", &call.n.to_string())
            .body(format!("for {}", call.header("x-id").unwrap()));
        for vary in &said.vary {
            answer = answer.header("vary", vary);
        }
        if said.set_cookie {
            answer = answer.header("set-cookie", "a=b");
        }
        answer.after(ms(said.work))
    });
    let app = layered(with_ttl(10).http_layer().query(["q"]), &origin);
    let mut tasks = Vec::new();
    for (id, client) in clients.iter().enumerate() {
        pass(ms(client.pause)).await;
        let (app, request) = (app.clone(), client.request(id));
        tasks.push(spawn(async move { send(&app, request).await }));
    }
    for (id, task) in tasks.into_iter().enumerate() {
        let reply = task.await.expect("nobody panics");
        let Some(n) = reply.header("x-call") else {
            // Our own refusal: it is for no client in particular.
            prop_assert!(reply.is(Refused) && !reply.text().starts_with("for "));
            continue;
        };
        let call = &origin.seen()[n.parse::<usize>().unwrap()];
        let from: usize = call.header("x-id").unwrap().parse().unwrap();
        prop_assert_eq!(reply.text(), format!("for {from}"));
        let carried = clients[from].credentials.iter().copied();
        let carried: Vec<_> = carried.filter(|name| call.header(name).is_some()).collect();
        let said = &responses[call.n % responses.len()];
        prop_assert!(
            from == id || permitted(said, &clients[from], &carried, &clients[id]),
            "{said:?}\nof {:?}\nwent to {:?}",
            clients[from],
            clients[id],
        );
    }
    Ok(())
}

/// For two in a row: shared exactly if permitted.
async fn pair(first: Client, second: Client, said: Response) -> Result<(), TestCaseError> {
    let has = |directive: &str| said.directives.contains(&directive);
    let script = said.clone();
    let origin = Origin::new(move |call| {
        let mut answer = Answer::status(script.status)
            .header("cache-control", &script.directives.join(", "))
            .body(call.n.to_string());
        for vary in &script.vary {
            answer = answer.header("vary", vary);
        }
        if script.set_cookie {
            answer = answer.header("set-cookie", "a=b");
        }
        answer.after(ms(0))
    });
    let app = layered(with_ttl(10).http_layer().query(["q"]), &origin);
    send(&app, first.request(0)).await;
    let reply = send(&app, second.request(1)).await;
    let lives = has("s-maxage=10") || !has("max-age=0");
    let stale = has("stale-while-revalidate=60") && !has("must-revalidate");
    let contradicts = has("max-age=0") && has("max-age=10") && !has("s-maxage=10");
    let usable = lives && !contradicts || stale;
    // Without a lifetime a failure goes to the clients that wait, and is not stored.
    let is_stored = said.status != 500 || said.has_lifetime();
    let is_permitted = permitted(&said, &first, &first.credentials, &second);
    let expected = is_permitted && is_stored && usable;
    prop_assert_eq!(reply.text() == "0", expected, "{:?} {:?} {:?}", said, first, second);
    Ok(())
}

fn paused<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases("SHARING_MODEL_CASES", 500)))]

    #[test]
    fn no_answer_goes_where_the_response_does_not_permit_it(
        clients in prop::collection::vec(client(), 2..8),
        responses in prop::collection::vec(response(), 1..4),
    ) {
        paused(run(clients, responses))?;
    }

    #[test]
    fn of_two_in_a_row_the_second_is_answered_exactly_if_the_response_permits_it(
        first in client(), second in client(), said in response(),
    ) {
        paused(pair(first, second, said))?;
    }
}
