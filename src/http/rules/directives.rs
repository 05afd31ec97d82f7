//! What a response's `Cache-Control` says, read once, when it arrives. Where
//! another field governs, [`crate::http::rules::targeted`] reads it into the same form.

use http::header::{self, HeaderMap, HeaderName};

use crate::http::rules::members::{Argument, Directive, Members, number};

/// Numbers of seconds beyond this one mean this one (RFC 9111, 1.2.2).
pub(crate) const MAX_SECONDS: u32 = 1 << 31;

/// How long the response says it stays fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Lifetime {
    /// It does not say.
    #[default]
    Unsaid,
    /// It says so invalidly or contradicts itself (RFC 9111, 4.2.1).
    Stale,
    Seconds(u32),
}

impl Lifetime {
    fn read(argument: &Argument<'_>) -> Self {
        argument.bytes().and_then(seconds).map_or(Self::Stale, Self::Seconds)
    }

    /// Equal repetitions count once, others contradict each other.
    fn and(self, other: Self) -> Self {
        if self == Self::Unsaid || self == other { other } else { Self::Stale }
    }

    /// As the length of a window: nonsense permits nothing.
    fn window(self) -> Option<u32> {
        match self {
            Self::Unsaid => None,
            Self::Stale => Some(0),
            Self::Seconds(seconds) => Some(seconds),
        }
    }
}

/// How a directive without a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagRule {
    /// It counts with any argument: `no-store=0` more likely forbids than permits.
    Forbids,
    /// It concerns the fields that its argument names, else the whole response.
    NamesFields,
    /// It counts with any argument. In a targeted field it has the type Boolean.
    Restricts,
    /// It counts without an argument only. In a targeted field it has the type Boolean.
    Permits,
}

macro_rules! directives {
    (
        numbers { $($(#[$number_doc:meta])* $number:ident = $number_name:literal,)+ }
        flags { $($(#[$flag_doc:meta])* $flag:ident = $flag_name:literal $rule:ident,)+ }
        derived { $($(#[$derived_doc:meta])* $derived:ident,)+ }
        more_flags { $($(#[$more_doc:meta])* $more:ident = $more_name:literal $more_rule:ident,)* }
    ) => {
        /// The directives of a response that a shared cache has to know.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub(crate) struct Directives {
            $($(#[$flag_doc])* pub(crate) $flag: bool,)+
            $($(#[$derived_doc])* pub(crate) $derived: bool,)+
            $($(#[$more_doc])* pub(crate) $more: bool,)*
            /// By these directives, or by `Expires` where they set none.
            pub(crate) lifetime: Lifetime,
            pub(crate) stale_while_revalidate: Option<u32>,
            pub(crate) stale_if_error: Option<u32>,
        }

        #[cfg_attr(
            not(feature = "remote"),
            allow(dead_code, reason = "only a response that leaves the process is written as bits")
        )]
        impl Directives {
            /// How many flags there are.
            pub(crate) const FLAGS: usize =
                [$(stringify!($flag),)+ $(stringify!($derived),)+ $(stringify!($more),)*].len();

            /// Returns the flags as bits, in the order of the table: responses are stored so.
            pub(crate) fn flag_bits(&self) -> u16 {
                let flags = [$(self.$flag,)+ $(self.$derived,)+ $(self.$more,)*];
                flags.iter().rev().fold(0, |bits, flag| bits << 1 | u16::from(*flag))
            }

            /// Returns directives with these flags, and nothing else; `None` for unknown bits.
            pub(crate) fn of_flag_bits(bits: u16) -> Option<Self> {
                if u32::from(bits) >> Self::FLAGS != 0 {
                    return None;
                }
                let mut at = 0;
                let mut next = || {
                    at += 1;
                    bits >> (at - 1) & 1 == 1
                };
                Some(Self {
                    $($flag: next(),)+
                    $($derived: next(),)+
                    $($more: next(),)*
                    ..Self::default()
                })
            }

            /// Returns the flag with this name, and how it counts.
            pub(super) fn flag_named(&mut self, name: &[u8]) -> Option<(FlagRule, &mut bool)> {
                Some(match name {
                    $(_ if name.eq_ignore_ascii_case($flag_name.as_bytes()) => {
                        (FlagRule::$rule, &mut self.$flag)
                    })+
                    $(_ if name.eq_ignore_ascii_case($more_name.as_bytes()) => {
                        (FlagRule::$more_rule, &mut self.$more)
                    })*
                    _ => return None,
                })
            }
        }

        /// The numbers of a field, before they are weighed against each other.
        #[derive(Default)]
        pub(super) struct Numbers {
            $($(#[$number_doc])* $number: Lifetime,)+
        }

        impl Numbers {
            pub(super) fn named(&mut self, name: &[u8]) -> Option<&mut Lifetime> {
                Some(match name {
                    $(_ if name.eq_ignore_ascii_case($number_name.as_bytes()) => &mut self.$number,)+
                    _ => return None,
                })
            }
        }

        /// All names of directives that we know.
        pub(crate) const NAMES: &[&str] =
            &[$($number_name,)+ $($flag_name,)+ $($more_name,)*];

        /// The names of the directives with a number.
        #[cfg(test)]
        pub(in crate::http) const NUMBER_NAMES: &[&str] = &[$($number_name,)+];
    };
}

// A new flag belongs into `more_flags`, at its end: the bits of stored responses keep their
// places. A process of an older version does not read a response with the new flag.
directives! {
    numbers {
        max_age = "max-age",
        s_maxage = "s-maxage",
        stale_while_revalidate = "stale-while-revalidate",
        stale_if_error = "stale-if-error",
    }
    flags {
        no_store = "no-store" Forbids,
        /// Without field names.
        private = "private" NamesFields,
        /// Without field names.
        no_cache = "no-cache" NamesFields,
        public = "public" Permits,
        must_revalidate = "must-revalidate" Restricts,
        proxy_revalidate = "proxy-revalidate" Restricts,
        must_understand = "must-understand" Restricts,
        immutable = "immutable" Restricts,
    }
    derived {
        /// `s-maxage` is present, valid or not.
        has_s_maxage,
        /// Part of the field could not be read: it may forbid anything.
        unreadable,
    }
    more_flags {}
}

impl Directives {
    /// Returns whether the response may ever be served stale.
    ///
    /// `s-maxage` forbids it (RFC 9111, 5.2.2.10), except in the windows that
    /// stand in the same field.
    pub(crate) fn allows_stale(&self) -> bool {
        let windows = self.stale_while_revalidate.is_some() || self.stale_if_error.is_some();
        !self.forbids_stale() && (!self.has_s_maxage || windows)
    }

    /// Returns whether a stale window of our own choice may be added.
    pub(crate) fn allows_our_window(&self) -> bool {
        !self.forbids_stale() && !self.has_s_maxage
    }

    fn forbids_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate || self.no_cache || self.unreadable
    }

    /// Returns whether the origin itself said how long the response is fresh.
    pub(crate) fn is_explicit(&self) -> bool {
        matches!(self.lifetime, Lifetime::Seconds(_))
    }
}

/// The outcome of [`parse`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct DirectiveSet {
    pub(crate) directives: Directives,
    /// Fields named in `private="…"` or `no-cache="…"`, to be left out of
    /// what is stored.
    pub(crate) withheld: Vec<HeaderName>,
}

/// Reads `Cache-Control` as a shared cache.
pub(crate) fn parse(headers: &HeaderMap) -> DirectiveSet {
    let mut reading = DirectiveReader::of(headers);
    for line in headers.get_all(header::CACHE_CONTROL) {
        for member in Members::of(line.as_bytes()) {
            match member {
                Ok(directive) => reading.take(&directive),
                Err(_) => reading.parsed.directives.unreadable = true,
            }
        }
    }
    reading.finish()
}

impl Numbers {
    /// RFC 9111, 5.2.2.10: `s-maxage` overrides, valid or not.
    fn weigh(self, said: &mut Directives) {
        said.has_s_maxage = self.s_maxage != Lifetime::Unsaid;
        said.lifetime = if said.has_s_maxage { self.s_maxage } else { self.max_age };
        said.stale_while_revalidate = self.stale_while_revalidate.window();
        said.stale_if_error = self.stale_if_error.window();
    }
}

/// The members of a field that were read so far.
pub(super) struct DirectiveReader<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) parsed: DirectiveSet,
    pub(super) numbers: Numbers,
}

impl<'a> DirectiveReader<'a> {
    pub(super) fn of(headers: &'a HeaderMap) -> Self {
        Self { headers, parsed: DirectiveSet::default(), numbers: Numbers::default() }
    }

    fn take(&mut self, Directive { name, argument }: &Directive<'_>) {
        let DirectiveSet { directives: said, withheld } = &mut self.parsed;
        if let Some(number) = self.numbers.named(name) {
            *number = number.and(Lifetime::read(argument));
        } else if let Some((rule, flag)) = said.flag_named(name) {
            *flag |= match rule {
                FlagRule::Forbids | FlagRule::Restricts => true,
                FlagRule::NamesFields => !withhold(argument, self.headers, withheld),
                FlagRule::Permits => *argument == Argument::None,
            };
        }
    }

    pub(super) fn finish(mut self) -> DirectiveSet {
        self.numbers.weigh(&mut self.parsed.directives);
        // Each once. Not before all are there: a field may name very many, a few at a time.
        let withheld = &mut self.parsed.withheld;
        withheld.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        withheld.dedup();
        self.parsed
    }
}

/// Notes the fields named in an argument. Anything else, such as a name that
/// is none, returns `false`: the directive then holds for the whole response,
/// which is always allowed (RFC 9111, 5.2.2.4).
///
/// Without quotation marks, `private=x-user` names a field if there is such a
/// field; `private=1` means the response.
pub(super) fn withhold(
    argument: &Argument<'_>,
    headers: &HeaderMap,
    withheld: &mut Vec<HeaderName>,
) -> bool {
    let is_there = |name| HeaderName::from_bytes(name).is_ok_and(|it| headers.contains_key(it));
    let names = match argument {
        Argument::Quoted(names) => names,
        Argument::Bare(name) if is_there(name) => *name,
        _ => return false,
    };
    let names = names.split(|&b| b == b',').map(|name| name.trim_ascii());
    let names: Result<Vec<_>, _> =
        names.filter(|name| !name.is_empty()).map(HeaderName::from_bytes).collect();
    match names {
        Ok(names) if !names.is_empty() && !names.iter().any(is_indispensable) => {
            withheld.extend(names);
            true
        }
        _ => false,
    }
}

/// Without these fields the rest of the response would be misread.
fn is_indispensable(name: &HeaderName) -> bool {
    [header::CONTENT_ENCODING, header::CONTENT_TYPE, header::VARY, header::CACHE_CONTROL]
        .contains(name)
}

/// Reads `delta-seconds` (RFC 9111, 1.2.2).
pub(crate) fn seconds(text: &[u8]) -> Option<u32> {
    number(text).map(bounded)
}

pub(super) fn bounded(seconds: u64) -> u32 {
    u32::try_from(seconds).map_or(MAX_SECONDS, |seconds| seconds.min(MAX_SECONDS))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    pub(in crate::http) fn cache_control(lines: &[&str]) -> HeaderMap {
        let line = |line: &&str| (header::CACHE_CONTROL, HeaderValue::from_str(line).unwrap());
        lines.iter().map(line).collect()
    }

    pub(in crate::http) fn directives(line: &str) -> Directives {
        parse(&cache_control(&[line])).directives
    }

    #[test]
    fn the_lifetime_is_the_shared_one_and_nonsense_is_stale() {
        use Lifetime::{Seconds, Stale, Unsaid};
        for (line, expected) in [
            ("", Unsaid),
            ("public", Unsaid),
            ("max-age=10", Seconds(10)),
            ("MAX-AGE=10", Seconds(10)),
            ("max-age=\"10\"", Seconds(10)),
            ("max-age=0010", Seconds(10)),
            // RFC 9111, 5.2.2.10: s-maxage overrides.
            ("s-maxage=5, max-age=10", Seconds(5)),
            ("s-maxage=5, max-age=x", Seconds(5)),
            ("max-age=10, s-maxage=x", Stale),
            // 4.2.1: invalid or contradictory is stale; equal counts once.
            ("max-age=10, max-age=10", Seconds(10)),
            ("max-age=10, max-age=20", Stale),
            ("max-age=10, max-age", Stale),
            ("max-age", Stale),
            ("max-age=", Stale),
            ("max-age=-1", Stale),
            ("max-age=+1", Stale),
            ("max-age=1.5", Stale),
            ("max-age='10'", Stale),
            ("max-age=1e3", Stale),
            // 1.2.2: too large is 2^31.
            ("max-age=2147483649", Seconds(MAX_SECONDS)),
            ("max-age=5000000000", Seconds(MAX_SECONDS)),
            ("max-age=99999999999999999999999999", Seconds(MAX_SECONDS)),
            // 5.2.3: unknown directives are ignored, and what they quote.
            ("ext=\"max-age=3, no-store\", max-age=7", Seconds(7)),
            ("xmax-age=3", Unsaid),
        ] {
            assert_eq!(directives(line).lifetime, expected, "{line}");
            assert!(!directives(line).no_store, "{line}");
        }
    }

    #[test]
    fn directives_are_known_in_any_case_and_with_any_argument_that_restricts() {
        let all = directives(
            "No-Store, PRIVATE, no-cache=1, Public, must-REVALIDATE=x, proxy-revalidate, must-understand, immutable",
        );
        assert!(all.no_store && all.private && all.no_cache && all.public);
        assert!(all.must_revalidate && all.proxy_revalidate && all.must_understand);
        assert!(!directives("public=\"x\"").public, "a permission must be plain");
    }

    #[test]
    fn the_bits_of_stored_responses_keep_their_places() {
        let lines = [
            "no-store",
            "private",
            "no-cache",
            "public",
            "must-revalidate",
            "proxy-revalidate",
            "must-understand",
            "immutable",
            "s-maxage=1",
            "x=\"",
        ];
        for (bit, line) in lines.iter().enumerate() {
            assert_eq!(directives(line).flag_bits(), 1 << bit, "{line}");
        }
    }

    #[test]
    fn fields_named_by_private_and_no_cache_are_withheld() {
        let parsed =
            parse(&cache_control(&["private=\"X-A, set-cookie\"", "no-cache=\"x-b,x-a,\""]));
        assert!(!parsed.directives.private && !parsed.directives.no_cache);
        assert_eq!(parsed.withheld, ["set-cookie", "x-a", "x-b"].map(HeaderName::from_static));
    }

    #[test]
    fn a_field_is_named_without_quotation_marks_where_it_is_there() {
        // RFC 9111, 5.2
        let said = |line| {
            let mut headers = cache_control(&[line]);
            headers.insert("x-user", HeaderValue::from_static("alice"));
            parse(&headers)
        };
        let named = said("Private=X-User, no-cache=x-user");
        assert!(!named.directives.private && !named.directives.no_cache);
        assert_eq!(named.withheld, [HeaderName::from_static("x-user")]);
        assert!(said("private=x-mail").directives.private);
        assert!(said("no-cache=1").directives.no_cache);
    }

    #[test]
    fn private_that_names_nothing_readable_holds_for_the_whole_response() {
        for line in [
            "private=x",
            "private=\"\"",
            "private=\", ,\"",
            "private=\"a b\"",
            "private=\"x\", private",
            "private=\"Content-Encoding\"",
        ] {
            assert!(directives(line).private, "{line}");
        }
    }

    #[test]
    fn a_field_that_is_no_list_is_unreadable() {
        for line in [
            "max-age=10; no-store",
            "max-age=10;no-store",
            "ext=a;private",
            "private=\"x, max-age=1",
            "max-age = 1",
            "\u{e9}",
        ] {
            assert!(directives(line).unreadable, "{line}");
        }
        assert!(parse(&cache_control(&["ext=\"a", "b\", no-store"])).directives.unreadable);
    }

    #[test]
    fn stale_is_allowed_only_where_nothing_forbids_it() {
        for (line, at_all, ours) in [
            ("max-age=1", true, true),
            ("max-age=1, must-revalidate, stale-while-revalidate=9", false, false),
            ("max-age=1, proxy-revalidate", false, false),
            ("max-age=1, no-cache, stale-if-error=9", false, false),
            // RFC 9111, 5.2.2.10, and our liberal reading of RFC 5861.
            ("s-maxage=1", false, false),
            ("s-maxage=1, stale-while-revalidate=9", true, false),
            ("s-maxage=1, stale-if-error=9", true, false),
            ("s-maxage=x", false, false),
        ] {
            assert_eq!(directives(line).allows_stale(), at_all, "{line}");
            assert_eq!(directives(line).allows_our_window(), ours, "{line}");
        }
    }

    #[test]
    fn an_invalid_stale_window_is_an_empty_one() {
        for (line, expected) in [
            ("stale-while-revalidate=5", Some(5)),
            ("stale-while-revalidate", Some(0)),
            ("stale-while-revalidate=5, stale-while-revalidate=6", Some(0)),
            ("max-age=1", None),
        ] {
            assert_eq!(directives(line).stale_while_revalidate, expected, "{line}");
        }
    }

    pub(in crate::http) const PALETTE: [&str; 20] = [
        "no-store",
        "private",
        "private=\"x-a, x-b\"",
        "no-cache",
        "no-cache=\"set-cookie\"",
        "public",
        "must-revalidate",
        "proxy-revalidate",
        "must-understand",
        "max-age=10",
        "max-age=20",
        "max-age=\"10\"",
        "max-age=x",
        "s-maxage=10",
        "s-maxage=-1",
        "stale-while-revalidate=5",
        "stale-while-revalidate=7",
        "stale-if-error=5",
        "ext=\"a, no-store\"",
        "a b",
    ];

    fn some_directives() -> impl Strategy<Value = Vec<&'static str>> {
        proptest::sample::subsequence(PALETTE.to_vec(), 0..8)
    }

    /// The same directives in another order, case and split, some repeated.
    pub(in crate::http) fn disturb(said: &[&str], seed: u64) -> HeaderMap {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut said: Vec<String> = said.iter().map(ToString::to_string).collect();
        let repeated: Vec<_> = said.iter().filter(|_| random.bool()).cloned().collect();
        said.extend(repeated);
        random.shuffle(&mut said);
        let mut lines = vec![String::new()];
        for mut directive in said {
            let name = directive.find('=').unwrap_or(directive.len());
            if random.bool() {
                directive[..name].make_ascii_uppercase();
            }
            if random.bool() {
                lines.push(String::new());
            }
            let line = lines.last_mut().unwrap();
            line.push_str([",", " , ", ",,\t"][random.usize(..3)]);
            line.push_str(&directive);
        }
        cache_control(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn order_case_split_and_repetition_change_nothing(said in some_directives(), seed: u64) {
            let plain = parse(&cache_control(&[&said.join(", ")]));
            let disturbed = parse(&disturb(&said, seed));
            if plain.directives.unreadable {
                // What stands behind the unreadable part is not read.
                prop_assert!(disturbed.directives.unreadable);
            } else {
                prop_assert_eq!(plain, disturbed);
            }
        }

        #[test]
        fn no_store_and_private_are_seen_anywhere_in_a_readable_field(said in some_directives(), seed: u64) {
            let parsed = parse(&disturb(&said, seed)).directives;
            prop_assert!(parsed.unreadable || parsed.no_store == said.contains(&"no-store"));
            prop_assert!(parsed.unreadable || parsed.private == said.contains(&"private"));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(lines: Vec<Vec<u8>>) {
            let lines = lines.iter().filter_map(|line| HeaderValue::from_bytes(line).ok());
            let headers = lines.map(|line| (header::CACHE_CONTROL, line)).collect();
            let _ = parse(&headers);
        }
    }
}
