//! What layers further out have received, as it counts for a layer inside of them.
//!
//! One rule: *each request on the way is named, keyed and judged by all rules in force, as it
//! was received there.* The rules in force are those of all layers on the way, but for those
//! that the rules of a route have taken over. So a parameter counts if one of them counts it.
//! A field that a response itself names in `Vary` selects by its value in each of these requests.
//!
//! The tags of each URI on the way are made of the parameters that the inner layer counts. A
//! write names its URI by the lists of all layers of the handle, so it finds the entry, and with
//! it those that differ only in parameters of layers further out. In the remote the way to the
//! entry leads over the anchor of each URI: a write to any of them ends it.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::http::config::HttpConfig;
use crate::http::flow::lookup::{request_key, tags_of, with_name};
use crate::http::flow::nested::Mark;
use crate::http::layer::Rules;
use crate::http::rules::codings::Coding;
use crate::http::rules::key::NESTED;
use crate::http::rules::request::{BypassReason, Credentials, FieldScan, credential_field};
use crate::http::rules::shape::ASKS_FOR_LESS;
use crate::http::rules::vary::{self, Vary, fingerprint};
use crate::key::{Key, KeyBuf, Tag};

/// What stays of that once the request has a key.
#[derive(Clone, Copy, Default)]
pub(crate) struct OutsideFacts {
    /// What the request carried.
    pub(super) credentials: Credentials,
    /// A rule of the application has added to the key there, and may have read any field.
    pub(super) may_key_by_any_field: bool,
}

/// What a layer has to know of the request as layers further out have received it.
#[derive(Clone)]
pub(super) struct Outside {
    /// Stands for all that names and keys the request there.
    key: [u8; 32],
    pub(super) facts: OutsideFacts,
    /// The field with the credential, if there is one.
    pub(super) credential: Option<HeaderName>,
    pub(super) tags: Vec<Tag>,
    /// Where the remote says what stands there of the URIs on the way, if there is a remote.
    pub(super) anchors: Vec<Key>,
    /// Why there is no key.
    pub(super) refused: Option<BypassReason>,
    /// The fields by which stored responses are selected, where those are not the fields of
    /// the request.
    pub(super) selecting: Option<HeaderMap>,
}

impl Outside {
    /// Reads the marks for a request that the inner layer has received.
    pub(super) fn of(marks: &[Mark], inner: &Rules, own: &Parts, has_remote: bool) -> Self {
        let mut outside = Self {
            key: [0; 32],
            facts: OutsideFacts::default(),
            credential: None,
            tags: Vec::new(),
            anchors: Vec::new(),
            refused: None,
            selecting: None,
        };
        let views: Vec<_> = marks.iter().filter_map(Mark::view).collect();
        let around = inner.around.iter().map(|rules| &**rules);
        let mut key = KeyBuf::new();
        for count in [views.len(), inner.around.len()] {
            key.push(&(count as u64).to_be_bytes());
        }
        let mut added = Ok(());
        for view in &views {
            key.push_part(&view.key);
            for rules in around.clone().chain([inner]) {
                added = added.and(outside.add(&mut key, &view.parts, rules));
            }
        }
        // By the rules of the inner layer it has a key of its own.
        for rules in around {
            added = added.and(outside.add(&mut key, own, rules));
        }
        outside.key = *blake3::hash(key.as_bytes()).as_bytes();
        let is_keyed_by_rule = |mark: &Mark| !mark.rules.key_rules.is_empty();
        outside.facts.may_key_by_any_field = marks.iter().any(is_keyed_by_rule);
        let query = inner.config.query.as_deref();
        let tags = |mark: &Mark| mark.view().map(|view| tags_of(&view.parts, &mark.rules, query));
        outside.tags = marks.iter().filter_map(tags).flatten().collect();
        if has_remote {
            let anchor = |mark: &Mark| {
                with_name(&mark.view()?.parts, &mark.rules, query, |name| name.anchor())
            };
            outside.anchors = marks.iter().filter_map(anchor).collect();
        }
        let ignored = &inner.config.ignored_cookies;
        let headers: Vec<_> =
            views.iter().map(|view| ignored.counted(&view.parts.headers)).collect();
        let headers: Vec<_> = headers.iter().map(AsRef::as_ref).collect();
        match added.and_then(|()| selecting(&own.headers, &headers, &inner.config)) {
            Ok(selecting) => outside.selecting = selecting,
            Err(reason) => outside.refused = Some(reason),
        }
        outside
    }

    /// Adds one request on the way, under the rules of one layer.
    fn add(&mut self, key: &mut KeyBuf, parts: &Parts, rules: &Rules) -> Result<(), BypassReason> {
        let config = &rules.config;
        let mut parts = Cow::Borrowed(parts);
        if config.ignored_cookies.concern(&parts.headers) {
            config.ignored_cookies.remove_from(&mut parts.to_mut().headers);
        }
        let parts = &*parts;
        let seen = FieldScan::of(&parts.headers, config);
        let mut own = KeyBuf::new();
        request_key(&mut own, parts, &seen, rules)?;
        key.push_part(own.as_bytes());
        if let Vary::Fields(list) = vary::parse(&HeaderMap::new(), &config.vary) {
            let print = fingerprint(&list, &parts.headers, config, Coding::Other);
            key.push_part(print.as_bytes());
        }
        self.facts.credentials = self.facts.credentials | seen.credentials();
        let credential = || credential_field(&parts.headers, config);
        self.credential = self.credential.take().or_else(credential);
        Ok(())
    }

    /// Makes the key of an entry of the inner layer.
    pub(super) fn nest(&self, primary: &KeyBuf) -> KeyBuf {
        let mut key = KeyBuf::new();
        key.push(&NESTED);
        key.push_part(primary.as_bytes());
        key.push(&self.key);
        key
    }
}

/// How a value begins that stands for the values of a field in several requests.
const COMBINED: u8 = 0xff;

/// Returns the fields by which stored responses are selected, where a request is not what
/// layers further out have received: each field that differs has one value, which stands for
/// all of its values on the way.
fn selecting(
    own: &HeaderMap,
    views: &[&HeaderMap],
    config: &HttpConfig,
) -> Result<Option<HeaderMap>, BypassReason> {
    // The service does not see them, nor does a refresh send them.
    let are_hidden = config.removes_cookies && !config.ignore_cookies;
    let is_other = |name: &HeaderName| {
        let differs = |view: &&HeaderMap| !view.get_all(name).iter().eq(own.get_all(name));
        // No client may name a value that stands for those of another client.
        own.get_all(name).iter().any(may_be_combined)
            || views.iter().any(differs)
            || are_hidden && *name == header::COOKIE
    };
    // The host is in the key. What asks for less than the whole, our own layers take out.
    let counts = |name: &&HeaderName| **name != header::HOST && !ASKS_FOR_LESS.contains(name);
    let names = own.keys().chain(views.iter().flat_map(|view| view.keys()));
    let names: Vec<_> = names.filter(counts).filter(|name| is_other(name)).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let mut selecting = own.clone();
    for name in names {
        let mut values = KeyBuf::new();
        for headers in views.iter().chain([&own]) {
            let own = headers.get_all(name);
            values.push(&(own.iter().count() as u64).to_be_bytes());
            own.iter().for_each(|value| values.push_part(value.as_bytes()));
        }
        let hash = blake3::hash(values.as_bytes()).to_hex();
        let value = HeaderValue::from_bytes(&[&[COMBINED], hash.as_bytes()].concat());
        let value = value.map_err(|_| BypassReason::HeadersTooLarge)?;
        selecting.try_insert(name.clone(), value).map_err(|_| BypassReason::HeadersTooLarge)?;
    }
    Ok(Some(selecting))
}

/// Returns whether a value may stand for the values of a field in several requests.
pub(super) fn may_be_combined(value: &HeaderValue) -> bool {
    value.as_bytes().contains(&COMBINED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, values: &[&[u8]]) -> HeaderMap {
        let name = HeaderName::from_static(name);
        let values = values.iter().map(|value| HeaderValue::from_bytes(value).unwrap());
        values.map(|value| (name.clone(), value)).collect()
    }

    fn value(own: &HeaderMap, views: &[&HeaderMap]) -> HeaderValue {
        selecting(own, views, &HttpConfig::default()).unwrap().unwrap()["accept-language"].clone()
    }

    #[test]
    fn a_request_that_all_layers_have_received_alike_is_selected_by_its_own_fields() {
        let own = of("accept-language", &[b"de", b"en"]);
        let config = HttpConfig::default();
        assert_eq!(selecting(&own, &[&own, &own], &config).unwrap(), None);
        // Our own layers take these out, and normalise the host.
        for name in ["if-none-match", "if-modified-since", "range", "if-range", "host"] {
            let view = of(name, &[b"x"]);
            let selected = selecting(&HeaderMap::new(), &[&view], &config).unwrap();
            assert_eq!(selected, None, "{name}");
        }
    }

    #[test]
    fn each_set_of_values_on_the_way_selects_for_itself() {
        let name = "accept-language";
        let maps: Vec<_> =
            [&[][..], &[&b""[..]], &[b"de"], &[b"en"], &[b"de", b"en"], &[b"en", b"de"]]
                .into_iter()
                .map(|values| of(name, values))
                .collect();
        let mut values = Vec::new();
        for own in &maps {
            for one in &maps {
                for other in &maps {
                    if own != one || own != other {
                        values.push(value(own, &[one, other]));
                    }
                }
            }
        }
        let all = values.len();
        values.sort();
        values.dedup();
        assert_eq!(values.len(), all);
    }

    #[test]
    fn no_client_can_name_the_value_of_another() {
        let none = HeaderMap::new();
        let of_alice = value(&none, &[&of("accept-language", &[b"de"])]);
        for text in [of_alice.as_bytes().to_vec(), [b" ", of_alice.as_bytes()].concat()] {
            let of_bob = of("accept-language", &[&text]);
            assert_ne!(value(&of_bob, &[&of_bob]), of_alice);
            assert_ne!(value(&none, &[&of_bob]), of_alice);
            assert_ne!(value(&of_bob, &[&none]), of_alice);
        }
    }
}
