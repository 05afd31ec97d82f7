//! What holds of every response and request, whatever else they say.

use std::time::Duration;

use http::header::VARY;
use proptest::prelude::*;

use crate::http::rules::directives::tests::{PALETTE, cache_control, disturb};
use http::header::{HeaderMap, HeaderValue};

use crate::http::cache_for::CacheFor;
use crate::http::config::HttpConfig;
use crate::http::rules::request::Credentials;
use crate::http::rules::storable::*;
use crate::http::tests::storable::{decide, layer, response, with};
use crate::settings::layer::SetCookie;

/// Directives that can stand in a targeted field too.
const TARGETED: [&str; 12] = [
    "no-store",
    "no-store=?0",
    "private",
    "private=\"x-a\"",
    "no-cache",
    "no-cache=\"set-cookie\"",
    "public",
    "must-revalidate",
    "must-understand",
    "max-age=10",
    "s-maxage=10",
    "foo=(1 2)",
];

const FIELDS: [(&str, &str); 12] = [
    ("expires", "Sun, 06 Nov 2094 08:49:37 GMT"),
    ("expires", "0"),
    ("last-modified", "Sat, 05 Nov 1994 08:49:37 GMT"),
    ("etag", "\"a\""),
    ("age", "3"),
    ("content-type", "Text/Event-Stream"),
    ("content-length", "9999999"),
    ("vary", "accept"),
    ("vary", "x, *"),
    ("set-cookie", "a=b"),
    ("set-cookie", "__Host-a=b"),
    ("trailer", "x"),
];

#[derive(Clone, Debug)]
struct Case {
    status: u16,
    targeted: bool,
    said: Vec<&'static str>,
    fields: Vec<(&'static str, &'static str)>,
    carried: Credentials,
    /// Whether the handler says something, and `public` with it.
    handler: Option<bool>,
    config: HttpConfig,
}

fn credentials() -> impl Strategy<Value = Credentials> {
    let kinds = [Credentials::AUTHORIZATION, Credentials::COOKIE, Credentials::OTHER];
    proptest::sample::subsequence(kinds.to_vec(), 0..=3)
        .prop_map(|some| some.into_iter().fold(Credentials::NONE, |all, kind| all | kind))
}

prop_compose! {
    fn cases()(
        status in proptest::sample::select(&[100, 200, 200, 200, 206, 302, 304, 404, 429, 503, 599][..]),
        targeted: bool,
        in_targeted in proptest::sample::subsequence(TARGETED.to_vec(), 1..5),
        in_cache_control in proptest::sample::subsequence(PALETTE.to_vec(), 0..5),
        fields in proptest::sample::subsequence(FIELDS.to_vec(), 0..4),
        carried in credentials(),
        handler: Option<bool>,
        set_cookie in proptest::sample::select(&[SetCookie::Refuse, SetCookie::Strip, SetCookie::Explicit][..]),
        has_ttl: bool,
    ) -> Case {
        let ttl = layer().ttl.filter(|_| has_ttl);
        let config = HttpConfig { ttl, set_cookie, ..layer() };
        let said = if targeted { in_targeted } else { in_cache_control };
        Case { status, targeted, said, fields, carried, handler, config }
    }
}

impl Case {
    fn has(&self, directive: &str) -> bool {
        self.said.contains(&directive)
    }

    fn field(&self, name: &str) -> bool {
        self.fields.iter().any(|(other, _)| *other == name)
    }

    fn judge(&self, cache_control: HeaderMap) -> Decision {
        let mut parts = response(self.status, &self.fields);
        parts.headers.extend(cache_control);
        let cache_for = self.handler.map(|is_public| {
            let cache_for = CacheFor::new(Duration::from_secs(9));
            if is_public { cache_for.public() } else { cache_for }
        });
        decide(&with(self.carried), &parts, cache_for.as_ref(), &self.config)
    }

    fn decide(&self) -> Decision {
        let line = self.said.join(", ");
        if !self.targeted {
            return self.judge(cache_control(&[&line]));
        }
        let mut headers = cache_control(&["public, s-maxage=99"]);
        headers.insert("cdn-cache-control", HeaderValue::from_str(&line).unwrap());
        self.judge(headers)
    }

    /// RFC 9111, 3, read naively.
    fn forbids_storing(&self) -> bool {
        let no_store = self.has("no-store") || self.has("no-store=?0");
        let is_understood = self.has("must-understand") && matches!(self.status, 200 | 302 | 404);
        self.has("private")
            || self.has("a b")
            || no_store && !is_understood
            || self.has("must-understand") && !is_understood
            || matches!(self.status, 100 | 206 | 304)
            || self.fields.contains(&("vary", "x, *"))
            || ["content-type", "content-length", "trailer"].iter().any(|name| self.field(name))
    }

    /// RFC 9111, 3.5, and http.md's rule for the other credentials.
    fn permits(&self) -> Credentials {
        let by_s_maxage = self.has("s-maxage=10") && !self.has("s-maxage=-1");
        if self.has("public") || by_s_maxage || self.handler == Some(true) {
            Credentials::ALL
        } else if self.has("must-revalidate") {
            Credentials::AUTHORIZATION
        } else {
            Credentials::NONE
        }
    }

    /// Returns whether a cookie of a client would be stored.
    fn keeps_cookies(&self, plan: &Plan) -> bool {
        let withheld = self.has("no-cache=\"set-cookie\"");
        self.field("set-cookie") && !withheld && !plan.strip_set_cookie
    }

    fn may_keep_cookies(&self) -> bool {
        let is_personal = self.fields.contains(&("set-cookie", "__Host-a=b"));
        let by_origin =
            self.said.iter().any(|said| said.contains("max-age") || said.contains("s-maxage"))
                || self.fields.contains(&FIELDS[0]) && !self.targeted;
        self.config.set_cookie == SetCookie::Explicit
            && self.carried.is_anonymous()
            && self.handler.is_none()
            && by_origin
            && !is_personal
    }
}

/// The same fields of a list in another order and split, some repeated.
fn disturb_vary(headers: &HeaderMap, seed: u64) -> HeaderMap {
    let mut random = fastrand::Rng::with_seed(seed);
    let lines = headers.get_all(VARY).iter().map(|line| line.to_str().unwrap().to_owned());
    let mut names: Vec<_> =
        lines.flat_map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>()).collect();
    names.extend(names.clone());
    random.shuffle(&mut names);
    let upper = names.iter().map(|name| name.to_ascii_uppercase());
    upper.map(|name| (VARY, HeaderValue::from_str(&name).unwrap())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn nothing_is_stored_that_is_forbidden_or_somebodys(case in cases()) {
        let Ok(plan) = case.decide() else { return Ok(()) };
        prop_assert!(!case.forbids_storing(), "{plan:?}");
        prop_assert!(case.permits().contains(case.carried), "{plan:?}");
        prop_assert!(case.permits().contains(plan.permits), "{plan:?}");
        prop_assert!(!case.keeps_cookies(&plan) || case.may_keep_cookies(), "{plan:?}");
        prop_assert!(!case.has("no-cache") || !plan.is_shareable(), "{plan:?}");
        if matches!(case.status, 429) {
            prop_assert!(plan.explicit, "{plan:?}");
        }
    }

    #[test]
    fn order_case_split_and_repetition_never_change_a_decision(
        case in cases(), said in proptest::sample::subsequence(PALETTE.to_vec(), 0..6), seed: u64,
    ) {
        let case = Case { targeted: false, said, ..case };
        let plain = case.decide();
        let mut disturbed = case.clone();
        let mut headers = disturb(&case.said, seed);
        disturbed.fields.retain(|(name, _)| *name != "vary");
        headers.extend(disturb_vary(&response(200, &case.fields).headers, seed));
        prop_assert_eq!(format!("{:?}", disturbed.judge(headers)), format!("{plain:?}"));
    }

    #[test]
    fn one_more_line_that_forbids_is_obeyed_wherever_it_stands(case in cases(), forbids in "(?i)no-store|private", first: bool) {
        let case = Case { targeted: false, ..case };
        prop_assume!(!case.has("must-understand"));
        let line = case.said.join(", ");
        let mut lines = [line.as_str(), forbids.as_str()];
        if first {
            lines.reverse();
        }
        prop_assert!(case.judge(cache_control(&lines)).is_err());
    }
}

#[test]
fn the_cases_reach_both_decisions() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let drawn = (0..2000).map(|_| cases().new_tree(&mut runner).unwrap().current());
    let stored = drawn.filter(|case| case.decide().is_ok()).count();
    assert!((100..1900).contains(&stored), "{stored} of 2000 are stored");
}
