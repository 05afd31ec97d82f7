//! Fields of a response by which an origin steers the cache: tags and groups (RFC 9875).
//!
//! Only fields of responses count here. What a request says under these names is like any
//! other of its fields.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

use http::header::{HeaderMap, HeaderName};
use http::{Uri, request::Parts};
use sfv::visitor::ParameterVisitor;
use sfv::visitor::{EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor};
use sfv::{BareItemFromInput, Parser};

use crate::http::config::HttpConfig;
use crate::http::rules::decline_reason::DeclineReason;
use crate::http::rules::target::{absolute_uri, hashed};
use crate::http::rules::targeted::combined;
use crate::key::{KeyBuf, KeyKind, Tag};
use crate::lease::grant::Token;

const CACHE_GROUPS: HeaderName = HeaderName::from_static("cache-groups");
const CACHE_GROUP_INVALIDATION: HeaderName = HeaderName::from_static("cache-group-invalidation");

/// The longest tag in a field, in bytes: what the services that have made these fields allow.
const LONGEST_TAG: usize = 1024;

/// The scheme, the host and the port of a request, and the scope of the layer: groups of one
/// name belong together within it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupOrigin(Box<[u8]>);

impl GroupOrigin {
    /// Reads it from a request that was received for `uri`.
    pub(crate) fn of(parts: &Parts, uri: &Uri, scheme: &str, scope: Option<&str>) -> Self {
        let Ok(absolute) = absolute_uri(parts, uri, scheme) else {
            // It belongs to no origin: no response is in a group of it.
            let none = Token::random().to_bytes();
            return Self(none.into());
        };
        let authority = absolute.authority();
        let mut origin = KeyBuf::default();
        origin.push_part(scope.unwrap_or_default().as_bytes());
        origin.push_part(scheme.as_bytes());
        origin.push_part(authority.map_or("", |authority| authority.as_str()).as_bytes());
        Self(origin.as_bytes().into())
    }

    /// Reads it from an absolute URL.
    #[cfg(feature = "admin")]
    pub(crate) fn of_url(url: &Uri, scope: Option<&str>) -> Self {
        let (parts, ()) = http::Request::new(()).into_parts();
        Self::of(&parts, url, url.scheme_str().unwrap_or_default(), scope)
    }

    /// Returns the tag of a group.
    pub(crate) fn group(&self, name: &str) -> Tag {
        let mut group = KeyBuf::default();
        group.push(&self.0);
        group.push_part(name.as_bytes());
        hashed(KeyKind::GroupTag, &group)
    }

    /// Returns the tag of all responses that are in any group.
    fn all_groups(&self) -> Tag {
        let mut all = KeyBuf::default();
        all.push(&self.0);
        hashed(KeyKind::GroupTag, &all)
    }
}

/// Returns the tags that a response itself gives its entry, after those in `said`.
pub(crate) fn tags(
    headers: &HeaderMap,
    said: &[Tag],
    origin: &GroupOrigin,
    config: &HttpConfig,
) -> Result<Vec<Tag>, DeclineReason> {
    let mut tags = said.to_vec();
    for name in &config.tag_fields {
        let is_separator: fn(&u8) -> bool = match name.as_str() {
            "cache-tag" | "edge-cache-tag" => |b| *b == b',',
            // `Surrogate-Key` and `xkey`.
            _ => u8::is_ascii_whitespace,
        };
        for line in headers.get_all(name) {
            for tag in line.as_bytes().split(is_separator).map(<[u8]>::trim_ascii) {
                if tag.len() > LONGEST_TAG || tags.len() > config.max_tags {
                    return Err(DeclineReason::TooManyTags);
                }
                // All entries have the tag of everything already.
                if !tag.is_empty() && tag != b"*" {
                    add(&mut tags, Tag::from(tag));
                }
            }
        }
    }
    let groups = match config.cache_groups {
        true => groups(headers, &CACHE_GROUPS, config.max_tags),
        false => Groups::Unsaid,
    };
    let names = match groups {
        Groups::Unsaid => Vec::new(),
        Groups::Named(names) => names,
        Groups::TooMany => return Err(DeclineReason::TooManyTags),
    };
    names.iter().for_each(|name| add(&mut tags, origin.group(name)));
    if tags.len() > config.max_tags {
        return Err(DeclineReason::TooManyTags);
    }
    if !names.is_empty() {
        tags.push(origin.all_groups());
    }
    Ok(tags)
}

fn add(tags: &mut Vec<Tag>, tag: Tag) {
    if !tags.contains(&tag) {
        tags.push(tag);
    }
}

/// Returns the tags that the response to an unsafe request ends (RFC 9875, 3).
///
/// A field with more groups than a response may have ends all groups of the origin: the work
/// stays bounded, and no response stays that the origin wants to end.
pub(crate) fn invalidated(
    headers: &HeaderMap,
    origin: &GroupOrigin,
    config: &HttpConfig,
) -> Vec<Tag> {
    if !config.cache_groups {
        return Vec::new();
    }
    match groups(headers, &CACHE_GROUP_INVALIDATION, config.max_tags) {
        Groups::Unsaid => Vec::new(),
        Groups::Named(names) => names.iter().map(|name| origin.group(name)).collect(),
        Groups::TooMany => vec![origin.all_groups()],
    }
}

/// Removes the fields that are addressed to this cache, as the settings say.
pub(crate) fn remove_ours(headers: &mut HeaderMap, config: &HttpConfig) {
    for name in ours(config) {
        headers.remove(name);
    }
}

/// Returns the fields that are addressed to this cache.
pub(crate) fn ours(config: &HttpConfig) -> impl Iterator<Item = &HeaderName> {
    config.tag_fields.iter().chain(&config.lifetime_fields)
}

/// What a field says of groups.
#[derive(Debug, PartialEq, Eq)]
enum Groups {
    /// It is absent, or no list of strings: then it is ignored as a whole (RFC 9651, 4.2).
    Unsaid,
    Named(Vec<String>),
    TooMany,
}

/// Reads a list of strings, whose parameters are ignored (RFC 9875, 2 and 3).
fn groups(headers: &HeaderMap, name: &HeaderName, most: usize) -> Groups {
    let Some(text) = combined(headers, name) else { return Groups::Unsaid };
    let mut list = GroupList { names: Vec::new(), most, count: 0 };
    match Parser::new(&text).parse_list_with_visitor(&mut list) {
        Err(_) => Groups::Unsaid,
        Ok(()) if list.count > most => Groups::TooMany,
        Ok(()) => Groups::Named(list.names),
    }
}

/// The members that were read so far.
struct GroupList {
    names: Vec<String>,
    most: usize,
    count: usize,
}

/// A member is no string.
#[derive(Debug)]
struct NoString;

impl fmt::Display for NoString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a group is a string")
    }
}

impl Error for NoString {}

impl<'de> ListVisitor<'de> for &mut GroupList {
    type Out = ();
    type Error = Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Infallible> {
        Ok(Group(self))
    }

    fn finish(self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// One member while it is read.
struct Group<'a>(&'a mut GroupList);

impl<'de> EntryVisitor<'de> for Group<'_> {
    type Error = NoString;

    fn item(self) -> Result<impl ItemVisitor<'de>, NoString> {
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, NoString> {
        Err::<Ignored, _>(NoString)
    }
}

impl<'de> ItemVisitor<'de> for Group<'_> {
    type Out = ();
    type Error = NoString;

    fn bare_item(
        self,
        value: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = ()>, NoString> {
        let BareItemFromInput::String(name) = value else { return Err(NoString) };
        let list = self.0;
        list.count += 1;
        // The rest is read for its syntax alone.
        if list.count <= list.most {
            list.names.push(name.as_str().to_owned());
        }
        Ok(Ignored)
    }
}

#[cfg(test)]
mod tests;
