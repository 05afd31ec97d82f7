//! A response for one client alone reaches no other client, however that is written.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request};
use http_body::Frame;
use http_body_util::StreamBody;
use proptest::prelude::*;
use tower_stampede::CacheOutcome::Refused;
use tower_stampede::Stampede;

/// Why a response is for its own client alone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Why {
    NoStore,
    Private,
    /// In a targeted field, beside a `Cache-Control` that permits everything.
    Targeted,
    /// In `Cache-Control`, beside a targeted field that cannot be read.
    BesideUnreadable,
    VaryStar,
    SetCookie,
    /// The request carried some, and nothing permits to share the response.
    Credentials,
    Partial,
    NotModified,
    Trailers,
    EventStream,
}

use Why::*;

use crate::kit::cases::cases;
use crate::kit::http::*;
use crate::kit::spawn;

const WHYS: [Why; 11] = [
    NoStore,
    Private,
    Targeted,
    BesideUnreadable,
    VaryStar,
    SetCookie,
    Credentials,
    Partial,
    NotModified,
    Trailers,
    EventStream,
];

/// The client that asks.
#[derive(Clone, Debug)]
struct Client {
    method: &'static str,
    credentials: Vec<&'static str>,
    fields: Vec<(&'static str, &'static str)>,
    /// Before this one comes, in milliseconds.
    pause: u64,
}

#[derive(Clone, Debug)]
struct Response {
    /// `None`: it may be shared, as far as it says.
    why: Option<Why>,
    /// Lines of fields, as they are sent.
    fields: Vec<(&'static str, String)>,
    /// Answers a validation with 304.
    validates: bool,
    work: u64,
}

fn client() -> impl Strategy<Value = Client> {
    let credentials = ["authorization", "cookie", "x-api-key", "proxy-authorization"];
    let fields = [
        ("if-none-match", "\"a\", \"b\""),
        ("if-none-match", "*"),
        ("if-modified-since", "Sun, 06 Nov 2094 08:49:37 GMT"),
        ("range", "bytes=0-3"),
        ("cache-control", "max-stale"),
        ("cache-control", "no-cache"),
        ("a", "1"),
        ("accept-encoding", "gzip"),
    ];
    (
        prop::sample::select(vec!["GET", "GET", "GET", "GET", "HEAD"]),
        prop_oneof![2 => Just(vec![]), 1 => prop::sample::subsequence(credentials.to_vec(), 1..=2)],
        prop_oneof![2 => Just(vec![]), 1 => prop::sample::subsequence(fields.to_vec(), 1..=2)],
        prop::sample::select(vec![0, 0, 0, 0, 50, 150, 2_000, 11_000, 31_000]),
    )
        .prop_map(|(method, credentials, fields, pause)| Client {
            method,
            credentials,
            fields,
            pause,
        })
}

/// How one directive is written.
#[derive(Clone, Debug)]
struct Spelling {
    upper: u16,
    quoted: bool,
    again: bool,
    before: &'static str,
    place: prop::sample::Index,
}

fn spelling() -> impl Strategy<Value = Spelling> {
    let before = prop::sample::select(vec![",", ", ", " ,, ", "\t,\t", "\n", "\n"]);
    (any::<u16>(), any::<bool>(), prop::bool::weighted(0.2), before, any::<prop::sample::Index>())
        .prop_map(|(upper, quoted, again, before, place)| Spelling {
            upper,
            quoted,
            again,
            before,
            place,
        })
}

impl Spelling {
    fn of(&self, said: &str) -> String {
        let (name, argument) = said.split_once('=').unwrap_or((said, ""));
        let name = name.chars().enumerate();
        let upper = |i: usize| self.upper >> (i % 16) & 1 == 1;
        let name: String =
            name.map(|(i, c)| if upper(i) { c.to_ascii_uppercase() } else { c }).collect();
        match argument {
            "" => name,
            // In quotes it would name a field.
            other if said.starts_with("private") => format!("{name}={other}"),
            number if self.quoted && !number.starts_with('"') => format!("{name}=\"{number}\""),
            other => format!("{name}={other}"),
        }
    }
}

/// The lines that these directives make, in random order, case and number.
fn written(said: &[&str], spellings: &[Spelling]) -> Vec<String> {
    let mut text: Vec<String> = Vec::new();
    for (said, spelling) in said.iter().zip(spellings.iter().cycle()) {
        for _ in 0..=u8::from(spelling.again) {
            let place = spelling.place.index(text.len() + 1);
            text.insert(place, format!("{}{}", spelling.before, spelling.of(said)));
        }
    }
    text.concat().split('\n').map(|line| line.trim().to_owned()).collect()
}

/// What permits to keep and share a response, all the same.
fn permissive() -> impl Strategy<Value = Vec<&'static str>> {
    let said = [
        "max-age=10",
        "s-maxage=10",
        "public",
        "stale-while-revalidate=60",
        "stale-if-error=60",
        "immutable",
        "private=\"x-secret\"",
        "x-unknown=\"public, a\"",
    ];
    prop_oneof![
        1 => Just(vec!["public", "max-age=10", "stale-while-revalidate=60"]),
        2 => prop::sample::subsequence(said.to_vec(), 0..=5),
    ]
}

fn choice(of: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(of)
}

fn response(why: impl Strategy<Value = Option<Why>>) -> impl Strategy<Value = Response> {
    let forbidding = (
        choice(&["no-store", "no-store=\"\"", "no-store=1"]),
        choice(&["private", "private=\"\"", "private=1"]),
        choice(&[
            "no-store",
            "private",
            "no-store;a=1",
            "private=?0",
            "no-store=5",
            "no-store=(a b)",
        ]),
        choice(&[
            "",
            "max-age=x y",
            "Max-Age=60",
            "max-age=\"60\"",
            "public;",
            "=1",
            "max-age=60,",
        ]),
        choice(&["*", "a, *", "*,a", "a\n*", "*\na", "a ,\t*\t, b"]),
    );
    let how = (prop::collection::vec(spelling(), 6), any::<bool>(), any::<bool>());
    let work = prop::sample::select(vec![0, 100, 100, 3_000]);
    (why, permissive(), forbidding, how, work).prop_map(
        |(why, mut said, forbidding, (spellings, tagged, validates), work)| {
            let (no_store, private, targeted, unreadable, star) = forbidding;
            let mut fields = Vec::new();
            let mut lines = |name, text: &str| {
                fields.extend(text.split('\n').map(|line| (name, line.to_owned())));
            };
            match why {
                Some(NoStore) => said.push(no_store),
                Some(Private) => said.push(private),
                Some(Targeted) => lines("cdn-cache-control", &format!("max-age=60, {targeted}")),
                Some(BesideUnreadable) => {
                    lines("cdn-cache-control", unreadable);
                    said.push(no_store);
                }
                Some(VaryStar) => lines("vary", star),
                Some(Credentials) => {
                    said.retain(|said| !["public", "s-maxage=10"].contains(said));
                }
                Some(Partial) => lines("content-range", "bytes 0-3/100"),
                Some(EventStream) => lines("content-type", "Text/Event-Stream; charset=utf-8"),
                _ => {}
            }
            if tagged {
                lines("etag", "\"a\"");
            }
            fields
                .extend(written(&said, &spellings).into_iter().map(|line| ("cache-control", line)));
            Response { why, fields, validates: validates && tagged, work }
        },
    )
}

impl Client {
    fn request(&self, id: usize) -> Request<Body> {
        let id = id.to_string();
        let mut fields = vec![("x-id", &*id)];
        fields.extend(self.credentials.iter().map(|name| (*name, &*id)));
        fields.extend(self.fields.iter());
        request(self.method, "/report", &fields)
    }
}

impl Response {
    fn status(&self, call: &Call) -> u16 {
        let asked = call.header("if-none-match").is_some();
        match self.why {
            Some(Partial) => 206,
            Some(NotModified) => 304,
            _ if asked && self.validates => 304,
            _ => 200,
        }
    }

    /// Every byte that is for one client alone names that client.
    fn answer(&self, call: &Call) -> Answer {
        let id = call.header("x-id").unwrap().to_owned();
        let status = self.status(call);
        let mut answer = Answer::status(status)
            .header("x-call", &call.n.to_string())
            .header("x-for", &id)
            .header("x-secret", &id)
            .after(ms(self.work));
        for (name, line) in &self.fields {
            answer = answer.header(name, line);
        }
        if self.why == Some(SetCookie) {
            answer = answer.header("set-cookie", &format!("sid={id}"));
        }
        if status == 304 || call.parts.method == http::Method::HEAD {
            return answer;
        }
        let body = format!("{:03} {id}", call.n);
        if self.why != Some(Trailers) {
            return answer.body(body);
        }
        let name = HeaderName::from_static("x-trailer");
        let trailers = HeaderMap::from_iter([(name, id.parse().unwrap())]);
        let frames =
            [Ok::<_, OriginError>(Frame::data(Bytes::from(body))), Ok(Frame::trailers(trailers))];
        answer.body(Body::new(StreamBody::new(futures_util::stream::iter(frames))))
    }

    /// Whether it belongs to the client of this call alone.
    fn is_personal(&self, call: &Call) -> bool {
        let says = |name: &str| {
            let lines = self.fields.iter().filter(|(field, _)| *field == "cache-control");
            lines.flat_map(|(_, line)| line.split(',')).any(|said| {
                said.trim().split('=').next().is_some_and(|said| said.eq_ignore_ascii_case(name))
            })
        };
        let permits = says("public") || says("s-maxage");
        let names = ["authorization", "cookie", "x-api-key", "proxy-authorization"];
        let credentials = names.iter().any(|name| call.header(name).is_some());
        // A 304 is the client's unless the cache asked for it: then it tells
        // of the stored response, and its cookies are left out.
        let ours = self.status(call) == 304 && call.header("if-none-match") == Some("\"a\"");
        let tagged = self.fields.iter().any(|(name, _)| *name == "etag");
        let agrees = tagged && call.parts.method == http::Method::HEAD;
        let by_itself = match self.why {
            None | Some(Credentials) => self.status(call) == 304 && !ours,
            Some(NotModified) => !ours,
            // A HEAD that agrees tells of the stored response too (RFC 9111,
            // 4.3.5), likewise without its cookies; it has no trailers.
            Some(SetCookie) => !ours && !agrees,
            Some(Trailers) => !ours && call.parts.method != http::Method::HEAD,
            Some(_) => true,
        };
        by_itself || credentials && !permits
    }
}

/// A layer that would keep and serve everything for long.
fn app_of(origin: &Origin, by_ttl: bool) -> tower_stampede::HttpService<Origin> {
    let cache = Stampede::builder("test");
    let cache = if by_ttl { cache.ttl(secs(10)) } else { cache.origin_only() };
    let layer = cache.build().unwrap().http_layer();
    layered(layer.stale_for(secs(60)).stale_if_error(secs(60)), origin)
}

/// Sends all, each after its pause, and checks that what is for one client
/// alone is in no other client's reply.
async fn run(
    clients: &[Client],
    responses: Vec<Response>,
    by_ttl: bool,
) -> Result<Origin, TestCaseError> {
    let script = responses.clone();
    let origin = Origin::new(move |call| script[call.n % script.len()].answer(call));
    let app = app_of(&origin, by_ttl);
    let mut tasks = Vec::new();
    for (id, client) in clients.iter().enumerate() {
        pass(ms(client.pause)).await;
        let (app, request) = (app.clone(), client.request(id));
        tasks.push(spawn(async move { send(&app, request).await }));
    }
    for (id, task) in tasks.into_iter().enumerate() {
        let reply = task.await.expect("nobody panics");
        check(id, &reply, &responses, &origin.seen())?;
    }
    Ok(origin)
}

fn check(
    id: usize,
    reply: &Reply,
    responses: &[Response],
    seen: &[Call],
) -> Result<(), TestCaseError> {
    let own = id.to_string();
    let personal = |n: &str| {
        let n: usize = n.parse().unwrap();
        responses[n % responses.len()].is_personal(&seen[n])
    };
    let names_secret = |n: &str| {
        let n: usize = n.parse().unwrap();
        let mut lines = responses[n % responses.len()].fields.iter();
        lines.any(|(_, line)| line.to_ascii_lowercase().contains("private=\"x-secret\""))
    };
    let Some(n) = reply.header("x-call") else {
        prop_assert!(reply.is(Refused), "{reply:?}");
        return Ok(());
    };
    if reply.header("x-for") != Some(&own) {
        prop_assert!(!personal(n), "{reply:?}");
        // A field that is personal, of a response that is not.
        let leaked = reply.header("x-secret") == reply.header("x-for");
        prop_assert!(!leaked || !names_secret(n), "{reply:?}");
    }
    if let Some((n, whose)) = reply.text().split_once(' ').filter(|_| reply.status == 200) {
        prop_assert!(whose == own || !personal(n), "{reply:?}");
    }
    let cookies = reply.all("set-cookie");
    prop_assert!(cookies.iter().all(|cookie| *cookie == format!("sid={own}")), "{reply:?}");
    let trailers = reply.trailers.iter().flat_map(|all| all.values());
    prop_assert!(trailers.into_iter().all(|whose| *whose == own), "{reply:?}");
    Ok(())
}

fn paused<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(work)
}

/// Clients that all carry something, where that is the reason.
fn crowd_for(why: Why, clients: Vec<Client>) -> Vec<Client> {
    let with_credentials = |mut client: Client| {
        if why == Credentials && client.credentials.is_empty() {
            client.credentials.push("cookie");
        }
        client
    };
    clients.into_iter().map(with_credentials).collect()
}

fn any_why() -> impl Strategy<Value = Why> {
    prop::sample::select(WHYS.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases("PRIVACY_MODEL_CASES", 200)))]

    #[test]
    fn what_may_not_be_shared_is_computed_for_each_and_seen_by_its_own_client_alone(
        (responses, clients) in any_why().prop_flat_map(|why| (
            prop::collection::vec(response(Just(Some(why))), 1..3),
            prop::collection::vec(client(), 2..6).prop_map(move |clients| crowd_for(why, clients)),
        )),
        by_ttl: bool,
    ) {
        let has_trailers = responses.iter().any(|response| response.why == Some(Trailers));
        let origin = paused(run(&clients, responses, by_ttl))?;
        // The response to a HEAD has no trailers, and may be shared.
        let is_shared = |client: &&Client| has_trailers && client.method == "HEAD";
        // A range may ask for the whole first.
        let has_range = |client: &&Client| client.fields.iter().any(|(name, _)| *name == "range");
        let least = clients.len() - clients.iter().filter(is_shared).count();
        let most = clients.len() + clients.iter().filter(has_range).count();
        prop_assert!((least..=most).contains(&origin.calls()), "one call for each");
    }

    #[test]
    fn amid_what_may_be_shared_what_may_not_be_is_seen_by_its_own_client_alone(
        responses in prop::collection::vec(response(prop::option::of(any_why())), 1..5),
        clients in prop::collection::vec(client(), 2..9),
        by_ttl: bool,
    ) {
        paused(run(&clients, responses, by_ttl))?;
    }
}
