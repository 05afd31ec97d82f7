//! Validation (RFC 9111, 4.3): the condition under which a stored response is validated, and
//! the response that a 304 makes of it.

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::http::rules::conditions::{EntityTag, has_tag, only, only_date};
use crate::http::rules::fields::{
    CACHE_STATUS, complete_date, governs_storing, strip_hop_by_hop_but_prohibitions,
};

/// By what a stored response can be told from others, each as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validators {
    etag: Option<HeaderValue>,
    last_modified: Option<HeaderValue>,
}

impl Validators {
    /// Reads them from the fields of a response. One that is repeated identifies
    /// nothing, nor does a tag or a date that is none.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let etag = only(headers, &header::ETAG).filter(|_| has_tag(headers));
        // In which century a year of two digits lies makes no difference here.
        let is_date = only_date(headers, &header::LAST_MODIFIED, UNIX_EPOCH).is_some();
        let last_modified = only(headers, &header::LAST_MODIFIED).filter(|_| is_date);
        let (etag, last_modified) = (etag.cloned(), last_modified.cloned());
        let any = etag.is_some() || last_modified.is_some();
        any.then_some(Self { etag, last_modified })
    }

    /// Returns whether a 304 with these fields is about the response with these
    /// validators (RFC 9111, 4.3.4): by its entity tag, else by its date; one
    /// with neither is about the response that was asked about.
    pub(crate) fn are_confirmed_by(&self, not_modified: &HeaderMap) -> bool {
        let tags = not_modified.get_all(header::ETAG);
        if not_modified.contains_key(header::ETAG) {
            let is_ours = |tag| self.etag.as_ref().is_some_and(|etag| confirms(tag, etag));
            return tags.iter().all(is_ours);
        }
        let mut dates = not_modified.get_all(header::LAST_MODIFIED).iter();
        dates.all(|date| self.last_modified.as_ref() == Some(date))
    }

    /// Returns whether the fields of a response to a HEAD are about the response
    /// with these validators (RFC 9111, 4.3.5). A response without validators
    /// may be about any.
    pub(crate) fn agree_with(&self, head: &HeaderMap) -> bool {
        let same = |name: HeaderName, ours: &Option<HeaderValue>| {
            head.get_all(name).iter().all(|theirs| ours.as_ref() == Some(theirs))
        };
        Self::of(head).is_some()
            && same(header::ETAG, &self.etag)
            && same(header::LAST_MODIFIED, &self.last_modified)
    }
}

/// A strong tag confirms the same strong one, a weak tag both (RFC 9110,
/// 8.8.3.2).
fn confirms(received: &HeaderValue, ours: &HeaderValue) -> bool {
    let [received, ours] = match [received, ours].map(|tag| EntityTag::read(tag.as_bytes())) {
        // Without quotation marks it is compared byte by byte.
        [None, None] => return received == ours,
        tags => tags,
    };
    received.zip(ours).is_some_and(|(received, ours)| {
        received.is_same_strongly(&ours) || received.is_weak && received.is_same_weakly(&ours)
    })
}

/// Fields by which a request asks for an answer only under a condition.
const CONDITIONS: [HeaderName; 5] = [
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
];

/// Returns whether a request asks under a condition.
pub(crate) fn is_conditional(request: &HeaderMap) -> bool {
    CONDITIONS.iter().any(|name| request.contains_key(name))
}

/// Makes a request ask whatever is stored.
pub(crate) fn ask_unconditionally(request: &mut HeaderMap) {
    for name in CONDITIONS {
        request.remove(name);
    }
}

/// Makes a request ask whether the stored response is still good, with nothing
/// but its own validators (RFC 9111, 4.3.1).
pub(crate) fn ask(request: &mut HeaderMap, about: &Validators) {
    ask_unconditionally(request);
    let conditions =
        [(header::IF_NONE_MATCH, &about.etag), (header::IF_MODIFIED_SINCE, &about.last_modified)];
    for (name, value) in conditions {
        if let Some(value) = value {
            // A map that is full to the brim asks without.
            let _ = request.try_insert(name, value.clone());
        }
    }
}

/// Fields of a 304 that say nothing of the stored response: they describe the
/// message that bore them, or are for one client alone (RFC 9111, 3.1, 3.2).
const NOT_TAKEN_OVER: [HeaderName; 7] = [
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::SET_COOKIE,
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-authentication-info"),
    header::PROXY_AUTHORIZATION,
];

/// Returns the fields of a response that say whether and for how long it may be stored, and the
/// cookies, which are for one client.
pub(crate) fn lifetime_fields(headers: &HeaderMap) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| {
        let others = [header::AGE, header::CONNECTION, header::DATE, header::SET_COOKIE];
        governs_storing(name) || others.contains(name)
    });
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the fields of a stored response after a newer one about it: theirs
/// replace the stored ones (RFC 9111, 3.2), and its times start again.
pub(crate) fn merge(stored: &HeaderMap, newer: &HeaderMap, received: SystemTime) -> HeaderMap {
    let mut newer = newer.clone();
    // They are judged with the rest.
    strip_hop_by_hop_but_prohibitions(&mut newer);
    for name in NOT_TAKEN_OVER {
        newer.remove(name);
    }
    let mut merged = stored.clone();
    merged.remove(header::AGE);
    // Without one of its own, the newer response is of when it came.
    merged.remove(header::DATE);
    if merged.get(CACHE_STATUS).is_some_and(HeaderValue::is_empty) {
        // The place for ours, made when the response was stored.
        merged.remove(CACHE_STATUS);
    }
    for name in newer.keys() {
        merged.remove(name);
    }
    for (name, value) in &newer {
        // A map that is full to the brim goes without.
        let _ = merged.try_append(name.clone(), value.clone());
    }
    complete_date(&mut merged, received);
    merged
}

#[cfg(test)]
mod tests;
