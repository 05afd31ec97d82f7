//! The fast code against the slow reading, on random well-formed responses.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderName, HeaderValue, Response, response::Parts};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use crate::http::config::HttpConfig;
use crate::http::rules::directives::{NAMES, NUMBER_NAMES};
use crate::http::rules::lifetime::{Source, Times};
use crate::http::rules::request::{Credentials, RequestFacts, RequestMethod};
use crate::http::rules::storable::{Decision, Plan, ResponseFacts};
use crate::http::stored::response::{Facts, may_answer};
use crate::http::tests::reference::{Exchange, NotStored, Reading, read};

/// Friday, 15 January 2027, 8 o'clock.
const RECEIVED: u64 = 1_800_000_000;
/// Where numbers end (RFC 9111, 1.2.2).
const MOST: u64 = 1 << 31;

const DATES: [[&str; 3]; 9] = [
    ["Mon, 30 Aug 1999 08:00:00 GMT", "Monday, 30-Aug-99 08:00:00 GMT", "Mon Aug 30 08:00:00 1999"],
    [
        "Wed, 13 Jan 2027 00:26:40 GMT",
        "Wednesday, 13-Jan-27 00:26:40 GMT",
        "Wed Jan 13 00:26:40 2027",
    ],
    ["Fri, 15 Jan 2027 07:43:20 GMT", "Friday, 15-Jan-27 07:43:20 GMT", "Fri Jan 15 07:43:20 2027"],
    ["Fri, 15 Jan 2027 07:59:00 GMT", "Friday, 15-Jan-27 07:59:00 GMT", "Fri Jan 15 07:59:00 2027"],
    ["Fri, 15 Jan 2027 07:59:55 GMT", "Friday, 15-Jan-27 07:59:55 GMT", "Fri Jan 15 07:59:55 2027"],
    ["Fri, 15 Jan 2027 08:00:00 GMT", "Friday, 15-Jan-27 08:00:00 GMT", "Fri Jan 15 08:00:00 2027"],
    [
        "Sat, 05 Feb 2028 08:00:05 GMT",
        "Saturday, 05-Feb-28 08:00:05 GMT",
        "Sat Feb  5 08:00:05 2028",
    ],
    ["Fri, 15 Jan 2027 08:01:00 GMT", "Friday, 15-Jan-27 08:01:00 GMT", "Fri Jan 15 08:01:00 2027"],
    [
        "Tue, 29 Feb 2028 09:00:00 GMT",
        "Tuesday, 29-Feb-28 09:00:00 GMT",
        "Tue Feb 29 09:00:00 2028",
    ],
];

const CREDENTIALS: [(&str, Credentials); 3] = [
    ("authorization", Credentials::AUTHORIZATION),
    ("x-api-key", Credentials::OTHER),
    ("cookie", Credentials::COOKIE),
];

type Fields = Vec<(String, String)>;

/// One directive, and how it is written.
#[derive(Clone, Debug)]
struct Said {
    name: &'static str,
    argument: Option<&'static str>,
    quoted: bool,
    /// Letters that are upper case, by their place.
    upper: u8,
    /// What stands before it: the rest of a list, or a new line.
    before: &'static str,
}

impl Said {
    fn text(&self) -> String {
        let name = self.name.chars().enumerate();
        let mut text: String = name
            .map(|(i, c)| if self.upper >> (i % 8) & 1 == 1 { c.to_ascii_uppercase() } else { c })
            .collect();
        if let Some(argument) = self.argument {
            let quote = if self.quoted || argument.contains(',') { "\"" } else { "" };
            text += &format!("={quote}{argument}{quote}");
        }
        text
    }
}

fn numbers() -> impl Strategy<Value = Option<&'static str>> {
    let numbers = ["0", "1", "10", "60", "060", "3600", "4294967296", "99999999999999999999"];
    prop_oneof![
        12 => prop::sample::select(numbers.map(Some).to_vec()),
        1 => prop::sample::select(vec![None, Some("x"), Some("-1"), Some("1.5"), Some("1s")]),
    ]
}

fn directive() -> impl Strategy<Value = (&'static str, Option<&'static str>)> {
    // Twice what matters most: else a lifetime is rare.
    let in_seconds: Vec<_> = NUMBER_NAMES.iter().chain(&["max-age"]).copied().collect();
    let is_bare = |name: &&str| !NUMBER_NAMES.contains(name);
    let bare: Vec<_> =
        NAMES.iter().copied().filter(is_bare).chain(["public", "x-unknown"]).collect();
    let with_names = ["private", "no-cache", "x-unknown"];
    let names = [Some("x-a"), Some("X-B, x-a"), Some("x-b , no-store")];
    prop_oneof![
        10 => (prop::sample::select(in_seconds), numbers()),
        5 => (prop::sample::select(bare), Just(None)),
        1 => (prop::sample::select(with_names.to_vec()), prop::sample::select(names.to_vec())),
    ]
}

fn said() -> impl Strategy<Value = Said> {
    let before = prop::sample::select(vec![", ", ",", "\n", " ,\t, ", ",,"]);
    let upper = prop_oneof![2 => Just(0), 1 => any::<u8>()];
    let how = (prop::bool::weighted(0.3), upper, before);
    (directive(), how).prop_map(|((name, argument), (quoted, upper, before))| Said {
        name,
        argument,
        quoted,
        upper,
        before,
    })
}

/// Lines of one field.
fn lines(name: &'static str, text: &str) -> Fields {
    text.split('\n').map(|line| (name.to_owned(), line.trim().to_owned())).collect()
}

fn cache_control() -> impl Strategy<Value = Fields> {
    prop::collection::vec(said(), 0..5).prop_map(|all| {
        let mut text = String::new();
        for (i, said) in all.iter().enumerate() {
            text += if i == 0 { "" } else { said.before };
            text += &said.text();
        }
        if all.is_empty() { Vec::new() } else { lines("cache-control", &text) }
    })
}

/// Mostly a dictionary, sometimes none.
fn targeted() -> impl Strategy<Value = Fields> {
    let odd = [
        "",
        "max-age=\"60\"",
        "max-age=60;x=1;y",
        "max-age=60;x=\"a, b\"",
        "max-age=1.5",
        "max-age=60.",
        "max-age",
        "max-age=x",
        "x=\"a, no-store\"",
        "x=(a b;y),max-age=60",
        "x=:aGk=:",
        "public=1",
        "private=\"x-a\"",
        "no-store=?0",
        "no-cache=5",
        "x=?1",
        "x=?0",
        "x=1.25",
        "x=-1",
        "max-age=60 ,public",
        "max-age=60,",
        "max-age =60",
        "Public",
        "x y",
        "*a=1",
        "must-revalidate=?1",
    ];
    let plain = said().prop_filter_map("a dictionary is in lower case", |said| {
        let fits = !said.argument.is_some_and(|argument| argument.contains('x'));
        let plain = Said { upper: said.upper & u8::from(said.upper > 250), ..said };
        fits.then(|| Said { quoted: plain.quoted && plain.upper > 0, ..plain }.text())
    });
    let member =
        prop_oneof![5 => plain, 1 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned)];
    let separator = prop::sample::select(vec![",", ", ", " , ", "\t,\t", "\n"]);
    let all = (prop::collection::vec(member, 1..4), separator)
        .prop_map(|(members, separator)| lines("cdn-cache-control", &members.join(separator)));
    prop_oneof![2 => Just(Vec::new()), 1 => all]
}

fn date() -> impl Strategy<Value = String> {
    let form = (prop::sample::select(DATES.to_vec()), 0..3usize, 0..3u8);
    form.prop_map(|(forms, form, case)| match case {
        0 => forms[form].to_owned(),
        1 => forms[form].to_lowercase(),
        _ => forms[form].to_uppercase(),
    })
}

fn dated(name: &'static str, invalid: &'static [&'static str]) -> impl Strategy<Value = Fields> {
    let one = |value: String| vec![(name.to_owned(), value)];
    let invalid = prop::sample::select(invalid).prop_map(str::to_owned);
    prop_oneof![
        4 => Just(Vec::new()),
        4 => date().prop_map(one),
        1 => invalid.prop_map(one),
    ]
}

fn of(name: &'static str, values: &'static [&'static str]) -> impl Strategy<Value = Fields> {
    let values = prop::sample::subsequence(values, 1..=values.len().min(2));
    let fields = values.prop_map(move |values| {
        values.into_iter().map(|value| (name.to_owned(), value.to_owned())).collect()
    });
    prop_oneof![5 => Just(Vec::new()), 1 => fields]
}

fn fields() -> impl Strategy<Value = Fields> {
    let expires = (dated("expires", &["0", "-1", "", "never"]), prop::bool::weighted(0.1))
        .prop_map(|(one, twice)| if twice { [&one[..], &one[..]].concat() } else { one });
    (
        cache_control(),
        targeted(),
        expires,
        dated("date", &["0", "", "yesterday"]),
        dated("last-modified", &["0", "never"]),
        of("age", &["0", "5", "100, 5", "x", "-1", "18446744073709551616", " 7 "]),
        of("etag", &["\"a\""]),
        of("vary", &["a", "a, b", "A,*", "* ", ""]),
        of("set-cookie", &["a=b"]),
    )
        .prop_map(|(a, b, c, d, e, f, g, h, i)| [a, b, c, d, e, f, g, h, i].concat())
        .prop_shuffle_lines()
}

/// Lines of different fields in any order, those of one field in theirs.
trait ShuffleLines: Strategy<Value = Fields> + Sized {
    fn prop_shuffle_lines(self) -> impl Strategy<Value = Fields> {
        (self, any::<u8>()).prop_map(|(mut fields, by)| {
            fields
                .sort_by_key(|(name, _)| name.bytes().fold(by, |sum, b| sum.wrapping_mul(31) ^ b));
            fields
        })
    }
}

impl<T: Strategy<Value = Fields>> ShuffleLines for T {}

fn exchange() -> impl Strategy<Value = Exchange> {
    let statuses = [
        201, 203, 204, 206, 299, 300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 407,
        410, 413, 414, 421, 429, 431, 499, 500, 501, 502, 503, 599,
    ];
    let status = prop_oneof![1 => Just(200), 1 => prop::sample::select(statuses.to_vec())];
    let names = CREDENTIALS.map(|(name, _)| name.to_owned()).to_vec();
    let credentials =
        prop_oneof![1 => Just(Vec::new()), 1 => prop::sample::subsequence(names, 1..=2)];
    let ttl = prop::option::of(prop::sample::select(vec![1, 60]));
    let window = || prop::sample::select(vec![0, 30]);
    (status, fields(), credentials, 0..4u64, ttl, window(), window()).prop_map(
        |(status, fields, credentials, delay, ttl, stale_for, stale_if_error)| Exchange {
            status,
            fields,
            credentials,
            received: RECEIVED,
            delay,
            ttl,
            stale_for,
            stale_if_error,
        },
    )
}

impl Exchange {
    fn parts(&self) -> Parts {
        let mut parts = Response::builder().status(self.status).body(()).unwrap().into_parts().0;
        for (name, value) in &self.fields {
            let name: HeaderName = name.parse().unwrap();
            parts.headers.append(name, HeaderValue::try_from(value).unwrap());
        }
        parts
    }

    fn asked(&self) -> RequestFacts {
        let carried =
            CREDENTIALS.iter().filter(|(name, _)| self.credentials.iter().any(|n| n == name));
        let credentials = carried.fold(Credentials::NONE, |all, (_, one)| all | *one);
        RequestFacts { method: RequestMethod::Get, credentials }
    }

    fn config(&self) -> HttpConfig {
        HttpConfig {
            ttl: self.ttl.map(Duration::from_secs),
            stale_for: Duration::from_secs(self.stale_for),
            stale_if_error: Duration::from_secs(self.stale_if_error),
            ..HttpConfig::default()
        }
    }

    fn judged(&self) -> Decision {
        let times = Times {
            response: UNIX_EPOCH + Duration::from_secs(self.received),
            response_delay: Duration::from_secs(self.delay),
        };
        let (asked, parts, config) = (&self.asked(), &self.parts(), &self.config());
        ResponseFacts { asked, parts, length: None, cache_for: None, config, times }.judge()
    }
}

/// What the fast code says, in the words of the slow one.
fn in_its_words(exchange: &Exchange, plan: &Plan) -> Reading {
    let facts = Facts {
        directives: plan.directives,
        permits: plan.permits,
        from: exchange.asked().credentials,
        explicit: plan.explicit,
        source: plan.terms.source,
        status: exchange.status.try_into().unwrap(),
        vary: None,
        coding: crate::http::rules::codings::Coding::Other,
        fingerprint: None,
    };
    let answers = CREDENTIALS.map(|(_, credentials)| {
        may_answer(&facts, &RequestFacts { method: RequestMethod::Get, credentials })
    });
    let mut withheld: Vec<_> = plan.withheld.iter().map(ToString::to_string).collect();
    withheld.sort();
    withheld.dedup();
    Reading {
        lifetime: plan.terms.lifetime.as_secs(),
        age: plan.terms.initial_age.as_secs(),
        while_revalidate: plan.terms.stale_while_revalidate.as_secs(),
        if_error: plan.terms.stale_if_error.as_secs(),
        only_validated: plan.only_validated,
        explicit: plan.explicit && plan.terms.source == Source::Origin,
        answers,
        withheld,
    }
}

fn bounded(reading: Reading) -> Reading {
    let most = |n: u64| n.min(MOST - 1);
    Reading {
        lifetime: most(reading.lifetime),
        age: most(reading.age),
        while_revalidate: most(reading.while_revalidate),
        if_error: most(reading.if_error),
        ..reading
    }
}

/// Whether there is ever a moment at which it answers a client.
fn is_of_use(reading: &Reading) -> bool {
    reading.lifetime + reading.while_revalidate + reading.if_error > 0
}

fn agree(exchange: &Exchange) -> Result<(), TestCaseError> {
    match (read(exchange), exchange.judged()) {
        (Ok(expected), Ok(plan)) => {
            prop_assert_eq!(bounded(in_its_words(exchange, &plan)), bounded(expected));
        }
        // Storing a response that answers no later request is not required.
        (Ok(useless), Err(_)) => {
            prop_assert!(!is_of_use(&useless) && !useless.only_validated, "{useless:?}");
        }
        (Err(_), Err(_)) => {}
        (Err(NotStored::Forbidden | NotStored::NobodyAllows), Ok(plan)) => {
            prop_assert!(false, "stored: {plan:?}");
        }
    }
    Ok(())
}

/// How many responses the suite draws. `DIFFERENTIAL_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("DIFFERENTIAL_CASES").map_or(2_000, |n| n.parse().expect("a whole number"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn the_fast_code_says_what_the_slow_reading_says(exchange in exchange()) {
        agree(&exchange)?;
    }
}

/// Or the agreement would mean little.
#[test]
fn the_random_responses_are_of_all_kinds() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut random = || exchange().new_tree(&mut runner).unwrap().current();
    let readings: Vec<_> = (0..4000).map(|_| read(&random())).collect();
    let stored: Vec<_> = readings.iter().filter_map(|reading| reading.as_ref().ok()).collect();
    let among = |what: fn(&Reading) -> bool| stored.iter().filter(|reading| what(reading)).count();
    let kinds = [
        stored.len(),
        readings.len() - stored.len(),
        among(|reading| reading.only_validated),
        among(|reading| reading.lifetime > reading.age),
        among(|reading| reading.while_revalidate > 0),
        among(|reading| reading.if_error > 0),
        among(|reading| reading.answers[0] && !reading.answers[1]),
        among(|reading| reading.answers == [false, false, true]),
        among(|reading| !reading.withheld.is_empty()),
    ];
    assert!(kinds.iter().all(|n| *n > 15), "{kinds:?}");
}
