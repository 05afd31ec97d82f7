//! Sets of field names that are looked for among all fields of every request.
//!
//! A set has names and patterns (`x-ssl-client-*`). Every hit asks two such sets
//! about every field of its request, so a filter answers first: it knows which
//! lengths go with which third letters, and most fields go no further.

use http::header::HeaderName;

/// A pattern: a name, or the beginning of names before a `*` at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Name(HeaderName),
    Start(Box<str>),
}

impl Pattern {
    /// Returns `None` for text that no field name matches.
    fn parse(text: &str) -> Option<Self> {
        let start = text.strip_suffix('*');
        // A field name may have a `*`; here one in another place is a mistake.
        let is_pattern = !start.unwrap_or(text).contains('*');
        let name = HeaderName::try_from(start.unwrap_or(text)).ok().filter(|_| is_pattern)?;
        Some(match start {
            Some(_) => Self::Start(name.as_str().into()),
            None => Self::Name(name),
        })
    }

    fn is_written(&self, name: &HeaderName) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Start(start) => name.as_str().starts_with(&**start),
        }
    }

    /// Services behind CGI and WSGI read `X_User` as `X-User`: so does a set.
    fn matches(&self, name: &HeaderName) -> bool {
        let name = name.as_str().as_bytes();
        match self {
            Self::Name(own) => is_same(own.as_str().as_bytes(), name),
            Self::Start(start) => {
                name.get(..start.len()).is_some_and(|name| is_same(start.as_bytes(), name))
            }
        }
    }
}

/// Returns whether services behind CGI read two names as one.
pub(super) fn is_read_as(a: &str, b: &str) -> bool {
    is_same(a.as_bytes(), b.as_bytes())
}

fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| hyphenated(*a) == hyphenated(*b))
}

#[inline]
fn hyphenated(letter: u8) -> u8 {
    if letter == b'_' { b'-' } else { letter }
}

/// What the filter asks of a name: its length, and a bit for its third letter.
#[derive(Clone, Copy)]
pub(super) struct Trait {
    length: usize,
    letter: u32,
}

/// Lengths that are told apart; all longer ones count as the last.
const LENGTHS: usize = 64;

impl Trait {
    #[inline]
    pub(super) fn of(name: &str) -> Self {
        let bytes = name.as_bytes();
        let letter = hyphenated(bytes.get(2).copied().unwrap_or_default());
        let letter = 1 << (letter & 31);
        Self { length: bytes.len().min(LENGTHS - 1), letter }
    }
}

/// A set of field names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldNames {
    /// Each puts names into the set or takes names out; of several that match a
    /// name the last one counts.
    rules: Vec<(Pattern, Rule)>,
    /// For each length the third letters of names that may be in the set.
    filter: Box<[u32; LENGTHS]>,
    /// For each length the rules that may match such names, each with the third letters of these: a
    /// client can send many names that pass the filter.
    by_length: Box<[Vec<(usize, u32)>; LENGTHS]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    In,
    /// Here `_` is no `-`: a name is taken out as it is written.
    Out,
}

impl FieldNames {
    /// Makes a set of names and patterns that are known to be ones.
    pub(crate) fn of(texts: &[&str]) -> Self {
        let mut names = Self::none();
        for text in texts {
            assert!(names.add(text), "`{text}` is no field name and no pattern");
        }
        names
    }

    pub(crate) fn none() -> Self {
        let by_length = Box::new([const { Vec::new() }; LENGTHS]);
        Self { rules: Vec::new(), filter: Box::new([0; LENGTHS]), by_length }
    }

    /// Adds a name or a pattern; returns whether `text` is one.
    pub(crate) fn add(&mut self, text: &str) -> bool {
        Pattern::parse(text).map(|pattern| self.push(pattern, Rule::In)).is_some()
    }

    /// Takes a name or a pattern out; returns whether `text` is one.
    pub(crate) fn exempt(&mut self, text: &str) -> bool {
        Pattern::parse(text).map(|pattern| self.push(pattern, Rule::Out)).is_some()
    }

    /// Takes out what was put into `others`.
    pub(crate) fn exempt_all(&mut self, others: &Self) {
        others.rules.iter().for_each(|(pattern, _)| self.push(pattern.clone(), Rule::Out));
    }

    /// Returns whether nothing was ever put in or taken out.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn push(&mut self, pattern: Pattern, rule: Rule) {
        let (start, is_name) = match &pattern {
            Pattern::Name(name) => (name.as_str(), true),
            Pattern::Start(start) => (&**start, false),
        };
        let Trait { length, letter } = Trait::of(start);
        let lengths = length..=if is_name { length } else { LENGTHS - 1 };
        // Names that a short start begins may have any third letter.
        let letters = if is_name || start.len() > 2 { letter } else { u32::MAX };
        if rule == Rule::In {
            self.filter[lengths.clone()].iter_mut().for_each(|place| *place |= letters);
        }
        let at = self.rules.len();
        self.by_length[lengths].iter_mut().for_each(|rules| rules.push((at, letters)));
        self.rules.push((pattern, rule));
    }

    #[inline]
    pub(crate) fn contains(&self, name: &HeaderName) -> bool {
        self.has(name, Trait::of(name.as_str()))
    }

    /// Returns whether the set has `name`, whose trait is `own`.
    #[inline]
    pub(super) fn has(&self, name: &HeaderName, own: Trait) -> bool {
        self.filter[own.length] & own.letter != 0 && self.has_surely(name, own)
    }

    #[cold]
    fn has_surely(&self, name: &HeaderName, own: Trait) -> bool {
        let rules = self.by_length[own.length].iter().rev();
        let mut rules =
            rules.filter(|(_, letters)| letters & own.letter != 0).map(|(at, _)| &self.rules[*at]);
        let last = rules.find(|(pattern, rule)| match rule {
            Rule::In => pattern.matches(name),
            Rule::Out => pattern.is_written(name),
        });
        last.is_some_and(|(_, rule)| *rule == Rule::In)
    }

    /// Returns whether a name or pattern was ever added that matches.
    pub(super) fn names(&self, name: &HeaderName) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|(pattern, rule)| *rule != Rule::Out && pattern.matches(name))
    }

    /// Returns the names that are in the set as they are written.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeaderName> {
        let added = self.rules.iter().filter_map(|(pattern, rule)| match (pattern, rule) {
            (Pattern::Name(name), Rule::In) => Some(name),
            _ => None,
        });
        added.filter(|name| self.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> HeaderName {
        HeaderName::try_from(text).unwrap()
    }

    #[test]
    fn a_set_has_its_names_and_what_its_patterns_begin() {
        let set = FieldNames::of(&["X-Api-Key", "x-ssl-client-*", "te", "ab*", "id-a"]);
        for (text, is_in) in [
            ("x-api-key", true),
            ("X-API-KEY", true),
            ("x-api-keys", false),
            ("x_api_key", true),
            ("x-ssl_client_s_dn", true),
            ("id_a", true),
            ("x-ssl-client-", true),
            ("x-ssl-client-s-dn", true),
            ("x-ssl-client", false),
            ("te", true),
            ("abc", true),
            ("abz-long", true),
            ("ab", true),
            ("a", false),
        ] {
            assert_eq!(set.contains(&name(text)), is_in, "{text}");
        }
    }

    #[test]
    fn what_is_no_name_and_no_pattern_is_refused() {
        let mut set = FieldNames::none();
        for text in ["", "*", "a b", "a*b", "**", "é", "x:y"] {
            assert!(!set.add(text) && !set.exempt(text), "{text}");
        }
        assert!(set.rules.is_empty());
    }

    #[test]
    fn an_exempt_name_is_out_until_it_is_added_again() {
        let mut set = FieldNames::of(&["x-forwarded-client-cert", "x-ssl-*"]);
        set.exempt("x-forwarded-client-cert");
        set.exempt("x-ssl-protocol");
        assert!(!set.contains(&name("x-forwarded-client-cert")));
        assert!(!set.contains(&name("x-ssl-protocol")));
        assert!(set.contains(&name("x-ssl-client")));
        assert!(set.names(&name("x-ssl-protocol")));
        assert!(set.contains(&name("x_forwarded_client_cert")), "CGI reads it as the other");
        set.add("x-forwarded-client-cert");
        assert!(set.contains(&name("x-forwarded-client-cert")));
    }

    #[test]
    fn of_several_rules_that_match_the_last_one_counts() {
        let mut set = FieldNames::of(&["x-acme-user"]);
        set.exempt("x-acme-*");
        assert!(!set.contains(&name("x-acme-user")));
        set.add("x-acme-user");
        assert!(set.contains(&name("x-acme-user")) && !set.contains(&name("x-acme-id")));
    }

    proptest! {
        #[test]
        fn the_filter_lets_through_whatever_the_set_has(
            texts in prop::collection::vec("[a-d-]{1,6}\\*?|[a-d]{60,70}\\*?", 1..6),
            asked in prop::collection::vec("[a-d_-]{1,8}|[a-d]{60,72}", 1..20),
        ) {
            let mut set = FieldNames::none();
            for text in &texts {
                set.add(text);
            }
            for asked in &asked {
                let asked = name(asked);
                prop_assert_eq!(set.contains(&asked), set.names(&asked));
            }
        }
    }
}
