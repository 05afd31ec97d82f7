//! Which content codings a request accepts (RFC 9110, 12.5.3), and which one its origin chose.
//!
//! Clients write `Accept-Encoding` in many ways that mean the same to an origin. So the layer
//! reduces the field to a set of known codings, and the origin sees that set. What it chose
//! from it names the variant. A stored body answers each request that accepts its coding:
//!
//! | stored | answers |
//! |---|---|
//! | coded, its coding was accepted | requests that accept this coding |
//! | not coded, `gzip` was accepted ([`Coding::Plain`]) | requests that accept no coding |
//! | not coded, `gzip` was not accepted ([`Coding::Bare`]) | the same, but for those that accept `gzip` |
//! | what the request has not accepted ([`Coding::Other`]) | requests that accept and refuse the same |
//!
//! That holds also for a coded body of an origin that names no `Accept-Encoding` in `Vary`
//! ([`VaryList::with_codings`](crate::http::rules::vary::VaryList::with_codings)).
//!
//! The third row keeps one client without codings from switching compression off for all
//! others: the origin has not been asked whether it compresses this page.

use http::header::{self, HeaderMap, HeaderValue};

use crate::http::config::HttpConfig;

/// The coding of a response, as it selects a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Coding {
    /// Zstandard and Brotli with a dictionary (RFC 9842): such responses vary by more fields.
    Dcz = 0,
    Dcb = 1,
    Br = 2,
    Zstd = 3,
    Gzip = 4,
    Deflate = 5,
    Compress = 6,
    /// None, although the request accepted `gzip`.
    Plain = 7,
    /// None, and the request did not accept `gzip`.
    Bare = 8,
    /// One that is not known, or that the request has not accepted.
    Other = 9,
}

impl Coding {
    /// All of them, the preferred ones first. A response without a coding although `gzip` was accepted is
    /// older than a coded one, unless the set says otherwise.
    const IN_ORDER: [Self; 10] = [
        Self::Dcz,
        Self::Dcb,
        Self::Br,
        Self::Zstd,
        Self::Gzip,
        Self::Deflate,
        Self::Compress,
        Self::Bare,
        Self::Plain,
        Self::Other,
    ];

    /// Those that have a name, in the order in which browsers send them: an origin that
    /// takes the first one takes the one that it would have taken.
    const NAMED: [(Self, &'static str); 7] = [
        (Self::Gzip, "gzip"),
        (Self::Deflate, "deflate"),
        (Self::Br, "br"),
        (Self::Zstd, "zstd"),
        (Self::Compress, "compress"),
        (Self::Dcb, "dcb"),
        (Self::Dcz, "dcz"),
    ];

    fn named(name: &[u8]) -> Option<Self> {
        let name = match name {
            // RFC 9110, 8.4.1: these are to be taken for the others.
            [b'x' | b'X', b'-', rest @ ..]
                if rest.eq_ignore_ascii_case(b"gzip") || rest.eq_ignore_ascii_case(b"compress") =>
            {
                rest
            }
            name => name,
        };
        let known = Self::NAMED.iter().find(|(_, own)| own.as_bytes().eq_ignore_ascii_case(name));
        known.map(|(coding, _)| *coding)
    }

    /// Reads the coding of a response: [`Plain`](Self::Plain) without any. Two at once are no
    /// known one.
    pub(crate) fn of_response(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(header::CONTENT_ENCODING).into_iter();
        let members = lines.flat_map(|line| line.as_bytes().split(|&b| b == b','));
        let mut members = members
            .map(<[u8]>::trim_ascii)
            .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"));
        match (members.next(), members.next()) {
            (None, _) => Self::Plain,
            (Some(name), None) => Self::named(name).unwrap_or(Self::Other),
            (Some(_), Some(_)) => Self::Other,
        }
    }

    /// Returns whether a body is coded.
    pub(crate) fn is_coded(self) -> bool {
        !matches!(self, Self::Plain | Self::Bare)
    }

    const fn bit(self) -> u16 {
        1 << self as u8
    }

    #[cfg(feature = "remote")]
    pub(crate) fn from_wire(byte: u8) -> Option<Self> {
        Self::IN_ORDER.into_iter().find(|coding| coding.as_byte() == byte)
    }

    pub(crate) const fn as_byte(self) -> u8 {
        self as u8
    }
}

/// A set of codings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Codings(u16);

impl Codings {
    pub(crate) const NONE: Self = Self(0);
    /// What `*` stands for: codings that need nothing besides.
    const COMMON: Self =
        Self(Coding::Gzip.bit() | Coding::Deflate.bit() | Coding::Br.bit() | Coding::Zstd.bit());
    /// Says of a set that [`Coding::Plain`] comes first.
    const PLAIN_FIRST: u16 = 1 << 15;
    const ALL: Self = Self((1 << Coding::IN_ORDER.len()) - 1);

    fn contains(self, coding: Coding) -> bool {
        self.0 & coding.bit() != 0
    }

    fn and(self, coding: Coding) -> Self {
        Self(self.0 | coding.bit())
    }

    /// Returns the codings that are known of a URI once `coding` has come.
    pub(crate) fn with(self, coding: Coding) -> Self {
        // The newest answer to requests that accept `gzip` says where the next one is expected.
        let is_plain_first = match coding {
            Coding::Plain => true,
            Coding::Bare | Coding::Other => self.0 & Self::PLAIN_FIRST != 0,
            _ => false,
        };
        let others = self.and(coding).0 & !Self::PLAIN_FIRST;
        Self(if is_plain_first { others | Self::PLAIN_FIRST } else { others })
    }

    /// Returns these and those that another process knows.
    pub(crate) fn merged(self, other: Self) -> Self {
        let is_known = self.0 != 0;
        let theirs = if is_known { other.0 & !Self::PLAIN_FIRST } else { other.0 };
        Self(self.0 | theirs)
    }

    /// Returns whether one of them is that of a coded body.
    pub(crate) fn has_coded(self) -> bool {
        Coding::IN_ORDER.into_iter().any(|coding| coding.is_coded() && self.contains(coding))
    }

    pub(crate) fn has_all_of(self, other: Self) -> bool {
        other.0 & !Self::PLAIN_FIRST & !self.0 == 0
    }

    #[cfg(feature = "remote")]
    pub(crate) fn to_wire(self) -> u16 {
        self.0
    }

    #[cfg(feature = "remote")]
    pub(crate) fn from_wire(bits: u16) -> Option<Self> {
        (bits & !Self::PLAIN_FIRST & !Self::ALL.0 == 0).then_some(Self(bits))
    }

    /// Returns them, the preferred ones first.
    pub(crate) fn iter(self) -> impl Iterator<Item = Coding> {
        let plain_first = self.0 & Self::PLAIN_FIRST != 0 && self.contains(Coding::Plain);
        let plain_first = plain_first.then_some(Coding::Plain);
        let is_next = move |coding: &Coding| self.contains(*coding) && Some(*coding) != plain_first;
        plain_first.into_iter().chain(Coding::IN_ORDER.into_iter().filter(is_next))
    }
}

/// The longest field that is read, in bytes. Clients send less than a hundred.
const MAX_BYTES: usize = 1024;

/// Stands, in a value, for the values of several requests; no client may read as one.
const COMBINED: u8 = 0xff;

/// What a request accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    codings: Codings,
    /// By a weight of zero; [`Coding::Plain`] stands for `identity`, [`Coding::Other`] for all
    /// codings that are not known.
    refused: Codings,
    is_absent: bool,
}

impl Accepted {
    /// Reads the field of a request. `None` where it is not reduced: its text counts then.
    pub(crate) fn of(headers: &HeaderMap, config: &HttpConfig) -> Option<Self> {
        if !config.normalise_accept {
            return None;
        }
        let lines = || headers.get_all(header::ACCEPT_ENCODING).into_iter();
        let is_absent = lines().next().is_none();
        let nothing = Self { codings: Codings::NONE, refused: Codings::NONE, is_absent };
        if lines().map(HeaderValue::len).sum::<usize>() > MAX_BYTES {
            return Some(nothing);
        }
        if lines().any(|line| line.as_bytes().contains(&COMBINED)) {
            return None;
        }
        let (mut read, mut others) = (nothing, None);
        for line in lines() {
            for member in line.as_bytes().split(|&b| b == b',') {
                read.add(member, &mut others);
            }
        }
        match others {
            // RFC 9110, 12.5.3: those that are not named.
            Some(true) => read.codings.0 |= Codings::COMMON.0,
            Some(false) => {
                let unnamed = Codings(Codings::ALL.0 & !read.codings.0).and(Coding::Other);
                read.refused.0 |= unnamed.0;
            }
            None => {}
        }
        read.codings.0 &= !read.refused.0;
        Some(read)
    }

    /// Reads one member of the list. A member that cannot be read is none. Where a coding is
    /// accepted and refused, it is refused.
    fn add(&mut self, member: &[u8], others: &mut Option<bool>) {
        let mut parts = member.split(|&b| b == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let weight = parts.filter_map(weight).next_back();
        let is_accepted = match weight {
            None => true,
            Some(text) if is_zero(text) => false,
            Some([b'0' | b'1', ..]) => true,
            Some(_) => return,
        };
        let coding = match name {
            b"" => return,
            b"*" => {
                *others = Some(is_accepted && others.unwrap_or(true));
                return;
            }
            name if name.eq_ignore_ascii_case(b"identity") => Coding::Plain,
            name => Coding::named(name).unwrap_or(Coding::Other),
        };
        let set = if is_accepted { &mut self.codings } else { &mut self.refused };
        *set = set.and(coding);
    }

    fn accepts(self, coding: Coding) -> bool {
        self.codings.contains(coding)
    }

    fn accepts_none(self) -> bool {
        !self.refused.contains(Coding::Plain)
    }

    /// Returns whether the request refuses what a response is coded by. What it does not name,
    /// it does not refuse.
    pub(crate) fn refuses(self, response: Coding) -> bool {
        self.refused.contains(response)
    }

    /// Returns by which codings stored responses may be selected.
    pub(crate) fn selects(self) -> Codings {
        let named = Codings(self.codings.0 & !Coding::Plain.bit()).and(Coding::Other);
        match (self.accepts_none(), self.accepts(Coding::Gzip)) {
            (false, _) => named,
            (true, true) => named.and(Coding::Plain),
            (true, false) => named.and(Coding::Plain).and(Coding::Bare),
        }
    }

    /// Returns whether a stored response that is selected as `stored` may answer.
    pub(crate) fn is_answered_by(self, stored: Coding) -> bool {
        self.selects().contains(stored)
    }

    /// Returns as what a response is selected that is the answer to this request.
    pub(crate) fn chosen(self, response: Coding) -> Coding {
        // To a client that refuses `identity`, an origin may answer with an error.
        match response {
            _ if !self.accepts_none() => Coding::Other,
            Coding::Plain if self.accepts(Coding::Gzip) => Coding::Plain,
            Coding::Plain => Coding::Bare,
            coding if self.accepts(coding) => coding,
            _ => Coding::Other,
        }
    }

    /// Returns where the answer is looked for, of the codings that are `known` of the URI.
    pub(crate) fn among(self, known: Codings) -> Codings {
        let both = Codings(self.selects().0 & known.0);
        if both == Codings::NONE {
            return Codings::NONE.and(self.likely());
        }
        Codings(both.0 | known.0 & Codings::PLAIN_FIRST)
    }

    /// Returns what an origin of which nothing is known will choose.
    fn likely(self) -> Coding {
        match self.accepts(Coding::Gzip) {
            true => Coding::Gzip,
            false if self.accepts_none() => Coding::Bare,
            false => Coding::Other,
        }
    }

    /// Returns all that counts of it, where no known coding names the variant.
    pub(crate) fn as_bytes(self) -> [u8; 5] {
        let [a, b] = self.codings.0.to_be_bytes();
        let [c, d] = self.refused.0.to_be_bytes();
        [a, b, c, d, u8::from(self.is_absent)]
    }

    /// Returns the field as the origin gets it.
    fn field(self) -> HeaderValue {
        let named = Coding::NAMED.iter().filter(|(coding, _)| self.accepts(*coding));
        let mut names: Vec<_> = named.map(|(_, name)| *name).collect();
        if !self.accepts_none() {
            names.push("identity;q=0");
        } else if names.is_empty() {
            names.push("identity");
        }
        HeaderValue::try_from(names.join(", ")).unwrap_or(HeaderValue::from_static("identity"))
    }
}

/// Returns whether a request names a coding that it accepts, however long its field is. Layers
/// around the cache may read codings that are not known here.
pub(crate) fn accepts_a_coding(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    let mut members = lines.flat_map(|line| line.as_bytes().split(|&b| b == b','));
    members.any(|member| {
        let mut parts = member.split(|&b| b == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let is_refused = parts.filter_map(weight).next_back().is_some_and(is_zero);
        !name.is_empty() && !name.eq_ignore_ascii_case(b"identity") && !is_refused
    })
}

/// Returns the value of the parameter `q`.
fn weight(parameter: &[u8]) -> Option<&[u8]> {
    let equals = parameter.iter().position(|&b| b == b'=')?;
    let (name, value) = (parameter[..equals].trim_ascii(), parameter[equals + 1..].trim_ascii());
    name.eq_ignore_ascii_case(b"q").then_some(value)
}

/// Returns whether a weight is zero, with more digits than RFC 9110 allows too.
fn is_zero(weight: &[u8]) -> bool {
    match weight {
        [b'0'] => true,
        [b'0', b'.', digits @ ..] => digits.iter().all(|&b| b == b'0'),
        _ => false,
    }
}

/// Brings the field of a request into the form in which the origin gets it. A request without
/// the field stays without it.
pub(crate) fn reduce(headers: &mut HeaderMap, config: &HttpConfig) {
    let Some(accepted) = Accepted::of(headers, config).filter(|it| !it.is_absent) else { return };
    // It is there already: no map is too full for it.
    let _ = headers.try_insert(header::ACCEPT_ENCODING, accepted.field());
}

#[cfg(test)]
mod tests;
