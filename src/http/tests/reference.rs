//! What a shared cache may do with a response, read from RFC 9111, 9213 and
//! 5861 as slowly and plainly as the texts are written. A judge of the code
//! that answers requests, and no relative of it: nothing here calls anything
//! outside of this folder.
//!
//! Where the texts leave a choice, the stricter one is taken; each such place
//! says so.

pub(crate) mod codings;
mod dates;
mod dictionary;

use dates::seconds_since_1970;
use dictionary::{Item, dictionary};

/// A response, the credentials of its request, and what is configured. Times
/// are in seconds, the clock's since 1970.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) status: u16,
    /// Names in lower case.
    pub(super) fields: Vec<(String, String)>,
    /// Names of the fields with credentials that the request carried.
    pub(super) credentials: Vec<String>,
    pub(super) received: u64,
    pub(super) delay: u64,
    pub(super) ttl: Option<u64>,
    pub(super) stale_for: u64,
    pub(super) stale_if_error: u64,
}

/// What may be done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) lifetime: u64,
    pub(super) age: u64,
    pub(super) while_revalidate: u64,
    pub(super) if_error: u64,
    /// Each use asks the origin.
    pub(super) only_validated: bool,
    pub(super) explicit: bool,
    /// Requests with `Authorization`, with another credential, with a cookie.
    pub(super) answers: [bool; 3],
    /// Fields that are not stored, in order of the alphabet.
    pub(super) withheld: Vec<String>,
}

/// Why nothing may be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotStored {
    Forbidden,
    /// Nothing in it allows to store it.
    NobodyAllows,
}

/// The statuses that may live by a heuristic (RFC 9110, 15.1, without 206).
const HEURISTIC: [u16; 11] = [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501];
/// Those that the layer's own lifetime is for.
const BY_TTL: [u16; 8] = [200, 203, 204, 300, 301, 308, 404, 410];
/// Those that live by explicit freshness alone.
const ONLY_EXPLICIT: [u16; 3] = [400, 413, 421];
/// Those that RFC 6585 forbids to store.
const NEVER: [u16; 4] = [428, 429, 431, 511];
/// Those whose rules are known, where `must-understand` is said: those that
/// are cacheable of themselves, and redirects. RFC 9110 knows more.
const UNDERSTOOD: [u16; 14] =
    [200, 203, 204, 300, 301, 302, 303, 307, 308, 404, 405, 410, 414, 501];

/// Who chose a lifetime.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Origin,
    /// The origin wanted to, but it is nonsense.
    Nonsense,
    Heuristic,
    Layer,
    Nobody,
}

/// A directive and its argument.
type Directive = (String, Option<String>);

/// The directives that govern, and what kind of field they stand in.
struct Governing {
    directives: Vec<Directive>,
    targeted: bool,
}

impl Governing {
    fn has(&self, name: &str) -> bool {
        self.directives.iter().any(|(other, _)| other == name)
    }

    /// Said without an argument, as those must be that permit something.
    fn permits(&self, name: &str) -> bool {
        self.directives.iter().any(|(other, argument)| other == name && argument.is_none())
    }

    /// The arguments of a directive, one for each time it is said.
    fn all(&self, name: &str) -> Vec<Option<&str>> {
        let said = self.directives.iter().filter(|(other, _)| other == name);
        said.map(|(_, argument)| argument.as_deref()).collect()
    }

    /// Seconds: `None` if nothing is said, `Some(None)` if nonsense is
    /// (RFC 9111, 4.2.1: then the response is stale).
    fn seconds(&self, name: &str) -> Option<Option<u64>> {
        let said: Vec<_> = self.all(name).into_iter().map(whole_number).collect();
        let first = *said.first()?;
        Some(if said.iter().all(|other| *other == first) { first } else { None })
    }

    /// Said of the whole response, not of some fields (5.2.2.4, 5.2.2.7).
    fn unqualified(&self, name: &str) -> bool {
        self.all(name).contains(&None)
    }

    fn named_fields(&self) -> Vec<String> {
        let arguments = [self.all("private"), self.all("no-cache")].concat();
        let names = arguments.into_iter().flatten().flat_map(|names| names.split(','));
        names.map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()).collect()
    }
}

/// 1.2.2: digits; more than 2^31 is 2^31.
fn whole_number(argument: Option<&str>) -> Option<u64> {
    let digits = argument?;
    let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX).min(1 << 31))
}

/// What may be done with a response.
pub(super) fn read(exchange: &Exchange) -> Result<Reading, NotStored> {
    let governing = exchange.governing();
    if exchange.forbidden(&governing) {
        return Err(NotStored::Forbidden);
    }
    if NEVER.contains(&exchange.status) {
        return Err(NotStored::Forbidden);
    }
    let lifetime = exchange.lifetime(&governing);
    let (lifetime, source) = lifetime.ok_or(NotStored::NobodyAllows)?;
    let explicit = source == Source::Origin;
    if ONLY_EXPLICIT.contains(&exchange.status) && !explicit {
        return Err(NotStored::NobodyAllows);
    }
    let (while_revalidate, if_error) =
        exchange.windows(&governing, exchange.born_stale(lifetime, source));
    let mut withheld = governing.named_fields();
    withheld.sort();
    withheld.dedup();
    let only_validated = governing.unqualified("no-cache");
    Ok(Reading {
        lifetime: if only_validated { 0 } else { lifetime },
        age: exchange.age(source),
        while_revalidate,
        if_error,
        only_validated,
        explicit,
        answers: exchange.answers(&governing, explicit),
        withheld,
    })
}

impl Exchange {
    fn lines(&self, name: &str) -> Vec<&str> {
        let lines = self.fields.iter().filter(|(other, _)| other == name);
        lines.map(|(_, value)| value.trim()).collect()
    }

    /// RFC 9213, 2.2: a targeted field that can be read governs alone.
    fn governing(&self) -> Governing {
        match targeted(&self.lines("cdn-cache-control").join(", ")) {
            Some(directives) => Governing { directives, targeted: true },
            None => Governing { directives: self.cache_control(), targeted: false },
        }
    }

    /// 5.2: members of a list, names in any case, arguments quoted or not.
    fn cache_control(&self) -> Vec<Directive> {
        let members = members(&self.lines("cache-control").join(","));
        let directive = |member: &String| match member.split_once('=') {
            // Stricter than the RFC, which would have recipients read a bare
            // name too: then it is said of the whole response.
            Some((name, argument)) if names_fields(name) && !argument.starts_with('"') => {
                (name.to_lowercase(), None)
            }
            Some((name, argument)) => (name.to_lowercase(), Some(unquoted(argument))),
            None => (member.to_lowercase(), None),
        };
        members.iter().map(directive).collect()
    }

    /// Section 3, and http.md 2.
    fn forbidden(&self, governing: &Governing) -> bool {
        let must_understand = governing.has("must-understand");
        let status = self.status < 200
            || [206, 304].contains(&self.status)
            || must_understand && !UNDERSTOOD.contains(&self.status);
        let vary = self.lines("vary").join(",");
        let validators = !self.lines("etag").is_empty() || self.modified().is_some();
        let only_validated = governing.unqualified("no-cache");
        status
            || governing.has("no-store") && !must_understand
            || governing.unqualified("private")
            || !self.lines("set-cookie").is_empty()
            || vary.split(',').any(|name| name.trim() == "*")
            || only_validated && !(self.status == 200 && validators)
            || self.credentials.iter().any(|name| !self.permits(governing, name))
    }

    /// `None`: neither the origin nor the settings gave one.
    fn lifetime(&self, governing: &Governing) -> Option<(u64, Source)> {
        let said = governing.seconds("s-maxage").or_else(|| governing.seconds("max-age"));
        if let Some(said) = said {
            return Some(Self::by_origin(said));
        }
        let expires = self.lines("expires");
        if !expires.is_empty() && !governing.targeted {
            return Some(Self::by_origin(self.until(&expires)));
        }
        // Nothing is fresh then, but each use can be validated.
        let validated = governing.unqualified("no-cache").then_some((0, Source::Nobody));
        self.chosen(governing.permits("public")).or(validated)
    }

    /// Where the origin says nothing.
    fn chosen(&self, public: bool) -> Option<(u64, Source)> {
        match self.ttl {
            Some(ttl) => BY_TTL.contains(&self.status).then_some((ttl, Source::Layer)),
            None if HEURISTIC.contains(&self.status) || public => {
                self.heuristic().map(|lifetime| (lifetime, Source::Heuristic))
            }
            None => None,
        }
    }

    /// Nonsense is stale (4.2.1, 5.3), and not a lifetime that was given.
    fn by_origin(said: Option<u64>) -> (u64, Source) {
        said.map_or((0, Source::Nonsense), |seconds| (seconds, Source::Origin))
    }

    fn until(&self, expires: &[&str]) -> Option<u64> {
        let [one] = expires else { return None };
        let at = seconds_since_1970(one, self.received)?;
        Some(at.saturating_sub(self.date()))
    }

    /// 4.2.2: a tenth of the time since it was modified, at most a day.
    fn heuristic(&self) -> Option<u64> {
        let unchanged =
            self.date().checked_sub(self.modified()?).filter(|unchanged| *unchanged > 0)?;
        Some((unchanged / 10).min(86_400))
    }

    fn modified(&self) -> Option<u64> {
        let [modified] = self.lines("last-modified")[..] else { return None };
        seconds_since_1970(modified, self.received)
    }

    /// RFC 9110, 6.6.1: without a `Date`, the time of receipt.
    fn date(&self) -> u64 {
        let date =
            self.lines("date").first().and_then(|date| seconds_since_1970(date, self.received));
        date.unwrap_or(self.received)
    }

    /// 4.2.3. A lifetime of the layer's own begins when the response is there.
    fn age(&self, source: Source) -> u64 {
        let first = self.lines("age").first().map(|line| line.split(',').next().unwrap_or(""));
        let age = whole_number(first.map(str::trim)).unwrap_or(0);
        let delay = if source == Source::Layer { 0 } else { self.delay };
        let apparent = self.received.saturating_sub(self.date());
        apparent.max(age + delay)
    }

    /// By what it says itself, and not by how long it took to come.
    fn born_stale(&self, lifetime: u64, source: Source) -> bool {
        let by_origin = matches!(source, Source::Origin | Source::Nonsense);
        let first = self.lines("age").first().map(|line| line.split(',').next().unwrap_or(""));
        let age = whole_number(first.map(str::trim)).unwrap_or(0);
        by_origin && lifetime <= age.max(self.received.saturating_sub(self.date()))
    }

    /// RFC 5861 and http.md 5. Nonsense is a window of nothing.
    fn windows(&self, governing: &Governing, born_stale: bool) -> (u64, u64) {
        let never = governing.has("must-revalidate")
            || governing.has("proxy-revalidate")
            || governing.unqualified("no-cache");
        let window = |name, ours| match governing.seconds(name) {
            _ if never => 0,
            Some(said) => said.unwrap_or(0),
            None if governing.has("s-maxage") => 0,
            None => ours,
        };
        // Stricter than http.md: our windows do not count where nothing of the
        // origin's lifetime was left.
        let ours = if born_stale { 0 } else { self.stale_for };
        let while_revalidate = window("stale-while-revalidate", ours);
        (while_revalidate, window("stale-if-error", self.stale_if_error))
    }

    /// Section 3.5 and http.md 2.
    fn answers(&self, governing: &Governing, explicit: bool) -> [bool; 3] {
        let anonymous = self.credentials.is_empty();
        // Stricter than http.md, which says so of the anonymous ones.
        let asks_to_log_in = [401, 403, 407].contains(&self.status);
        let permits = |credential| self.permits(governing, credential);
        let cookie = permits("cookie") || anonymous && explicit;
        let answers = [permits("authorization"), permits("x-api-key"), cookie];
        answers.map(|permitted| permitted && !asks_to_log_in)
    }

    /// Whether responses to requests with this credential may be shared. Stricter
    /// than section 3.5: only with a lifetime of the origin's own.
    fn permits(&self, governing: &Governing, credential: &str) -> bool {
        let shared_age = matches!(governing.seconds("s-maxage"), Some(Some(_)));
        let permits = governing.permits("public")
            || shared_age
            || credential == "authorization" && governing.permits("must-revalidate");
        permits && matches!(self.lifetime(governing), Some((_, Source::Origin)))
    }
}

/// RFC 9213, 2.1: a dictionary; `None`: the next field governs.
fn targeted(text: &str) -> Option<Vec<Directive>> {
    let members = dictionary(text)?;
    let directives: Option<Vec<_>> = members.into_iter().map(directive_of).collect();
    directives.filter(|directives| !directives.is_empty())
}

/// `None`: a directive that we know, of a type that it is not.
fn directive_of((name, item): (String, Item)) -> Option<Directive> {
    let counts_anyway = ["no-store", "private", "no-cache"];
    let in_seconds = ["max-age", "s-maxage", "stale-while-revalidate", "stale-if-error"];
    let bare = ["public", "must-revalidate", "proxy-revalidate", "must-understand"];
    let argument = match item {
        Item::Text(names) if names_fields(&name) => Some(names),
        _ if counts_anyway.contains(&&*name) => None,
        Item::Integer(digits) if in_seconds.contains(&&*name) => Some(digits),
        Item::True if bare.contains(&&*name) => None,
        _ if in_seconds.contains(&&*name) || bare.contains(&&*name) => return None,
        _ => None,
    };
    Some((name, argument))
}

fn names_fields(directive: &str) -> bool {
    ["private", "no-cache"].contains(&&*directive.to_lowercase())
}

/// The members of a list: what stands between commas that are not quoted.
fn members(text: &str) -> Vec<String> {
    let (mut members, mut quoted, mut escaped) = (vec![String::new()], false, false);
    for c in text.chars() {
        if c == ',' && !quoted {
            members.push(String::new());
            continue;
        }
        quoted ^= c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        members.last_mut().expect("there is one from the start").push(c);
    }
    let trimmed = members.iter().map(|member| member.trim().to_owned());
    trimmed.filter(|member| !member.is_empty()).collect()
}

/// RFC 9110, 5.6.4: a quoted string without its quotes and escapes.
fn unquoted(argument: &str) -> String {
    let inner = argument.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let Some(inner) = inner else { return argument.to_owned() };
    let (mut plain, mut escaped) = (String::new(), false);
    for c in inner.chars() {
        escaped = c == '\\' && !escaped;
        if !escaped {
            plain.push(c);
        }
    }
    plain
}
