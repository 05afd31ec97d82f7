//! Which fields of a response govern, targeted ones (RFC 9213) before others.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{HeaderMap, HeaderName};
use sfv::visitor::{
    DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ParameterVisitor,
};
use sfv::{BareItemFromInput, KeyRef, Parser};

use crate::http::config::HttpConfig;
use crate::http::rules::conditions::only;
use crate::http::rules::directives::{
    self, DirectiveReader, DirectiveSet, Directives, FlagRule, Lifetime, NAMES, bounded,
};
use crate::http::rules::lifetime;
use crate::http::rules::members::{Argument, number};

/// Reads the field that governs: the first targeted one that can be read, and
/// then it alone; else `Cache-Control`, and `Expires` where that sets no
/// lifetime.
pub(crate) fn governing(
    headers: &HeaderMap,
    config: &HttpConfig,
    received: SystemTime,
) -> DirectiveSet {
    let mut fields = config.lifetime_fields.iter().chain(&config.targeted);
    let targeted = fields.find_map(|name| match name.as_str() {
        X_ACCEL_EXPIRES => accel_expires(headers, received),
        _ => read(headers, name),
    });
    let mut parsed = targeted.unwrap_or_else(|| {
        let mut parsed = directives::parse(headers);
        if parsed.directives.lifetime == Lifetime::Unsaid {
            parsed.directives.lifetime = lifetime::expires(headers, received);
        }
        parsed
    });
    let said = &mut parsed.directives;
    if said.has_s_maxage && !config.stale_beside_s_maxage {
        (said.stale_while_revalidate, said.stale_if_error) = (None, None);
    }
    parsed
}

/// Returns what a targeted field says; `None` where the next one governs: it
/// is absent, empty, no dictionary, or a directive that we know has a value of
/// the wrong type (RFC 9213, 2.1).
fn read(headers: &HeaderMap, name: &HeaderName) -> Option<DirectiveSet> {
    let text = combined(headers, name)?;
    let mut dictionary = Dictionary::of(headers);
    Parser::new(&text).parse_dictionary_with_visitor(&mut dictionary).ok()?;
    dictionary.finish()
}

const X_ACCEL_EXPIRES: &str = "x-accel-expires";

/// Returns what nginx reads in `X-Accel-Expires`: seconds, `@` and a Unix time, or 0, which
/// forbids to store. Beside it the stale windows of `Cache-Control` count, and the fields that
/// it withholds. `None` where the next field governs.
fn accel_expires(headers: &HeaderMap, received: SystemTime) -> Option<DirectiveSet> {
    let text = only(headers, &HeaderName::from_static(X_ACCEL_EXPIRES))?.to_str().ok()?;
    let seconds = match text.strip_prefix('@') {
        Some(at) => {
            let now = received.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            number(at.as_bytes())?.checked_sub(now).filter(|left| *left > 0)
        }
        None => Some(number(text.as_bytes())?),
    };
    let DirectiveSet { directives: beside, withheld } = directives::parse(headers);
    let directives = Directives {
        no_store: seconds == Some(0),
        lifetime: seconds.map_or(Lifetime::Stale, |n| Lifetime::Seconds(bounded(n))),
        stale_while_revalidate: beside.stale_while_revalidate,
        stale_if_error: beside.stale_if_error,
        ..Directives::default()
    };
    Some(DirectiveSet { directives, withheld })
}

/// The lines of a field as one (RFC 9651, 4.2).
pub(super) fn combined<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, [u8]>> {
    let mut lines = headers.get_all(name).iter();
    let first = Cow::Borrowed(lines.next()?.as_bytes());
    Some(lines.fold(first, |mut all, line| {
        let text = all.to_mut();
        text.extend_from_slice(b", ");
        text.extend_from_slice(line.as_bytes());
        all
    }))
}

/// The members of a targeted field. Of several of one name the last counts
/// (RFC 9651, 4.2.2), but what forbids storing counts wherever it stands.
struct Dictionary<'a> {
    members: DirectiveReader<'a>,
    /// One bit for each of [`NAMES`].
    of_wrong_type: u32,
    has_members: bool,
}

impl<'a> Dictionary<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        Self { members: DirectiveReader::of(headers), of_wrong_type: 0, has_members: false }
    }

    fn take(&mut self, name: &str, value: &BareItemFromInput<'_>) {
        self.has_members = true;
        let DirectiveReader { headers, parsed, numbers } = &mut self.members;
        let DirectiveSet { directives: said, withheld } = parsed;
        let number = numbers.named(name.as_bytes());
        let fits = match (number, said.flag_named(name.as_bytes()), value) {
            (Some(number), _, BareItemFromInput::Integer(n)) => {
                *number = lifetime(i64::from(*n));
                true
            }
            // Whatever their value: even `no-store=?0` more likely means
            // something to forbid than something to permit.
            (_, Some((FlagRule::Forbids, flag)), _) => {
                *flag = true;
                true
            }
            (_, Some((FlagRule::NamesFields, flag)), _) => {
                *flag |= !directives::withhold(&as_argument(value), headers, withheld);
                true
            }
            (_, Some((_, flag)), BareItemFromInput::Boolean(is_set)) => {
                *flag = *is_set;
                true
            }
            _ => false,
        };
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            self.of_wrong_type = self.of_wrong_type & !(1 << at) | u32::from(!fits) << at;
        }
    }

    fn finish(self) -> Option<DirectiveSet> {
        (self.has_members && self.of_wrong_type == 0).then(|| self.members.finish())
    }
}

/// A negative lifetime is an invalid one.
fn lifetime(seconds: i64) -> Lifetime {
    u64::try_from(seconds).map_or(Lifetime::Stale, |seconds| Lifetime::Seconds(bounded(seconds)))
}

/// Names of fields stand where they do in `Cache-Control`.
fn as_argument<'a>(value: &'a BareItemFromInput<'_>) -> Argument<'a> {
    match value {
        BareItemFromInput::String(names) => Argument::Quoted(names.as_str().as_bytes().into()),
        BareItemFromInput::Token(name) => Argument::Bare(name.as_str().as_bytes()),
        _ => Argument::None,
    }
}

/// One member while it is read.
struct Member<'a, 'h, 'de> {
    of: &'a mut Dictionary<'h>,
    name: &'de str,
}

impl<'de> DictionaryVisitor<'de> for &mut Dictionary<'_> {
    type Out = ();
    type Error = Infallible;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, Infallible> {
        Ok(Member { of: self, name: key.as_str() })
    }

    fn finish(self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<'de> EntryVisitor<'de> for Member<'_, '_, 'de> {
    type Error = Infallible;

    fn item(self) -> Result<impl ItemVisitor<'de>, Infallible> {
        Ok(self)
    }

    /// No directive has a list; it stands for a value of any wrong type.
    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Infallible> {
        self.of.take(self.name, &BareItemFromInput::ByteSequence(Vec::new()));
        Ok(Ignored)
    }
}

impl<'de> ItemVisitor<'de> for Member<'_, '_, 'de> {
    type Out = ();
    type Error = Infallible;

    /// Parameters are ignored (RFC 9213, 2.1).
    fn bare_item(
        self,
        value: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = ()>, Infallible> {
        self.of.take(self.name, &value);
        Ok(Ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::rules::directives::MAX_SECONDS;
    use http::HeaderValue;
    use http::header::{CACHE_CONTROL, EXPIRES};
    use proptest::prelude::*;

    const CDN: HeaderName = HeaderName::from_static("cdn-cache-control");
    const OURS: HeaderName = HeaderName::from_static("ours-cache-control");

    fn fields(fields: &[(HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
        fields.iter().map(|(name, text)| (name.clone(), value(text))).collect()
    }

    fn config() -> HttpConfig {
        HttpConfig { targeted: vec![OURS, CDN], ..HttpConfig::default() }
    }

    fn said(headers: &HeaderMap) -> DirectiveSet {
        governing(headers, &config(), SystemTime::UNIX_EPOCH)
    }

    /// What the field says beside a `Cache-Control` that would say 9 seconds.
    fn beside(line: &str) -> Directives {
        said(&fields(&[(CACHE_CONTROL, "max-age=9"), (CDN, line)])).directives
    }

    #[test]
    fn a_field_that_can_be_read_governs_alone() {
        use Lifetime::{Seconds, Stale, Unsaid};
        for (line, expected) in [
            // RFC 9213, 2.2
            ("max-age=5", Seconds(5)),
            ("s-maxage=7, max-age=5", Seconds(7)),
            ("foo, bar=(1 2), max-age=5;a=b", Seconds(5)),
            ("foo", Unsaid),
            ("no-transform", Unsaid),
            ("public=?0", Unsaid),
            // RFC 9111, 1.2.2
            ("max-age=2147483649", Seconds(MAX_SECONDS)),
            ("max-age=999999999999999", Seconds(MAX_SECONDS)),
            // RFC 9111, 4.2.1
            ("max-age=-1", Stale),
            // RFC 9651, 4.2.2: the last one counts.
            ("max-age=5, max-age=6", Seconds(6)),
            ("max-age=\"x\", max-age=6", Seconds(6)),
            // RFC 9213, 2.1: what cannot be read is as if it were not there.
            ("", Seconds(9)),
            ("max-age=5,", Seconds(9)),
            ("max-age=5, &&&&&", Seconds(9)),
            ("MaX-aGe=5", Seconds(9)),
            ("max-age =5", Seconds(9)),
            ("max-age= 5", Seconds(9)),
            ("max-age=1000000000000000", Seconds(9)),
            ("caf\u{e9}", Seconds(9)),
            // The same with a value of the wrong type.
            ("max-age=\"5\"", Seconds(9)),
            ("max-age=5.0", Seconds(9)),
            ("max-age", Seconds(9)),
            ("max-age=(5)", Seconds(9)),
            ("max-age=6, max-age=x", Seconds(9)),
            ("max-age=5, public=1", Seconds(9)),
            ("max-age=5, stale-if-error=x", Seconds(9)),
        ] {
            assert_eq!(beside(line).lifetime, expected, "{line}");
        }
    }

    #[test]
    fn what_forbids_counts_whatever_its_value_and_what_permits_only_when_true() {
        for value in ["", "=?0", "=1", "=x", "=\"a b\"", "=()"] {
            let all = beside(&format!("no-store{value}, private{value}, no-cache{value}"));
            assert!(all.no_store && all.private && all.no_cache, "{value}");
        }
        let all = beside("public, must-revalidate, proxy-revalidate, must-understand, immutable");
        assert!(all.public && all.must_revalidate && all.proxy_revalidate);
        assert!(all.must_understand && all.immutable);
        assert!(!beside("public, public=?0").public);
        assert!(beside("no-store, no-store=?0").no_store);
    }

    #[test]
    fn named_fields_are_withheld() {
        let parsed = said(&fields(&[(CDN, "private=\"X-A, x-b\", no-cache=\"x-c\", max-age=5")]));
        assert!(!parsed.directives.private && !parsed.directives.no_cache);
        assert_eq!(parsed.withheld, ["x-a", "x-b", "x-c"].map(HeaderName::from_static));
        assert!(beside("private=\"x-a\", private").private);
        let x_a = HeaderName::from_static("x-a");
        let there = said(&fields(&[(CDN, "private=x-a, max-age=5"), (x_a.clone(), "1")]));
        assert!(!there.directives.private);
        assert_eq!(there.withheld, [x_a]);
        assert!(beside("private=x-a, max-age=5").private, "no such field");
    }

    #[test]
    fn cache_control_and_expires_are_not_read_beside_it() {
        let headers = fields(&[
            (CACHE_CONTROL, "no-store, private=\"x\", s-maxage=1, must-revalidate"),
            (EXPIRES, "0"),
            (CDN, "stale-while-revalidate=5"),
        ]);
        let expected = Directives { stale_while_revalidate: Some(5), ..Directives::default() };
        assert_eq!(said(&headers), DirectiveSet { directives: expected, withheld: Vec::new() });
    }

    #[test]
    fn fields_govern_in_the_order_of_their_priority() {
        let both = |ours| said(&fields(&[(CDN, "max-age=2"), (OURS, ours)])).directives.lifetime;
        assert_eq!(both("max-age=1"), Lifetime::Seconds(1));
        assert_eq!(both(""), Lifetime::Seconds(2));
        assert_eq!(both("max-age"), Lifetime::Seconds(2));
    }

    #[test]
    fn the_lines_of_a_field_are_one_dictionary() {
        // RFC 9651, 4.2
        let lines = |lines: [&str; 2]| said(&fields(&lines.map(|line| (CDN, line)))).directives;
        assert_eq!(lines(["max-age=5", "public"]), beside("max-age=5, public"));
        assert_eq!(lines(["max-age=5", "&"]).lifetime, Lifetime::Unsaid);
    }

    #[test]
    fn a_stale_window_beside_s_maxage_can_be_switched_off() {
        let strict = HttpConfig { stale_beside_s_maxage: false, ..config() };
        for name in [CACHE_CONTROL, CDN] {
            let headers = fields(&[(name, "s-maxage=1, stale-while-revalidate=9")]);
            assert!(said(&headers).directives.allows_stale());
            let said = governing(&headers, &strict, SystemTime::UNIX_EPOCH).directives;
            assert!(!said.allows_stale());
            assert_eq!(said.stale_while_revalidate, None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(lines: Vec<Vec<u8>>, text in "[a-z=\"?:@%();, 0-9.*\\\\-]{0,40}") {
            let lines = lines.iter().map(Vec::as_slice).chain([text.as_bytes()]);
            let lines = lines.filter_map(|line| HeaderValue::from_bytes(line).ok());
            let _ = said(&lines.map(|line| (CDN, line)).collect());
        }

        #[test]
        fn the_order_of_different_directives_changes_nothing(
            members in Just(vec!["no-store", "private=\"x\"", "max-age=5", "s-maxage=4", "public", "foo=1", "stale-if-error=3"]).prop_shuffle(),
            split in 0..7_usize,
        ) {
            let (a, b) = members.split_at(split);
            let lines = [a, b].map(|part| part.join(", "));
            let lines = lines.iter().filter(|line| !line.is_empty());
            let lines: Vec<_> = lines.map(|line| (CDN, line.as_str())).collect();
            let expected = beside("no-store, private=\"x\", max-age=5, s-maxage=4, public, foo=1, stale-if-error=3");
            prop_assert_eq!(said(&fields(&lines)).directives, expected);
        }
    }
}
