//! Requests that are keyed by their body: it is read before they are looked up.
//!
//! Reading belongs to the client's own request. It holds no place, no flight and no lock: a
//! client that sends its body slowly delays only itself.

use std::any::Any;

use bytes::Bytes;
use http::{Method, request::Parts};
use http_body::Body;
use http_body_util::{Empty, Full};

use crate::http::body::RequestBody;
use crate::http::layer::rules::Rules;
use crate::http::rules::content::{RequestContent, is_query};
use crate::http::rules::request::BypassReason;

/// Returns whether the body of a request is to be read. Its content, if a layer of another handle
/// has read it, is gone then: something in between may have changed the body.
#[inline]
pub(super) fn is_to_be_read(parts: &mut Parts, rules: &Rules) -> bool {
    !matches!(parts.method, Method::GET | Method::HEAD) && forget_and_judge(parts, rules)
}

#[cold]
fn forget_and_judge(parts: &mut Parts, rules: &Rules) -> bool {
    parts.extensions.remove::<RequestContent>();
    is_query(&parts.method) && rules.config.query_method || is_safe_post(parts, rules)
}

/// Returns whether the application says that a POST changes nothing, as far as its head says.
pub(super) fn is_safe_post(parts: &Parts, rules: &Rules) -> bool {
    parts.method == Method::POST && rules.posts.as_ref().is_some_and(|is_safe| is_safe(parts))
}

/// Returns why the body of a request is not read.
pub(super) fn refuse<Q: Body + 'static>(body: &Q, rules: &Rules) -> Option<BypassReason> {
    if !can_be_made::<Q>(rules) {
        return Some(BypassReason::BodyType);
    }
    let most = rules.config.max_request_body as u64;
    (body.size_hint().lower() > most).then_some(BypassReason::BodyTooLarge)
}

/// Makes the service's own body of one that was read, and judges it: with a content the request
/// is looked up like a GET, and without one the application says that it may change something.
/// Without bytes to judge, returns why there are none.
pub(super) fn judge<Q: Body + 'static>(
    parts: &Parts,
    rules: &Rules,
    (body, reason): (RequestBody<Q>, Option<BypassReason>),
) -> (Q, Result<Option<RequestContent>, BypassReason>) {
    let content = match (reason, body.bytes()) {
        (None, Some(bytes)) => Ok(content_of(parts, bytes, rules)),
        (reason, _) => Err(reason.unwrap_or(BypassReason::BodyUnreadable)),
    };
    let Some(body) = make(rules, body) else {
        unreachable!("only bodies are read that can be made")
    };
    (body, content)
}

fn content_of(parts: &Parts, bytes: Bytes, rules: &Rules) -> Option<RequestContent> {
    let rule = rules.post_key.as_ref().filter(|_| parts.method == Method::POST);
    let own = match rule {
        Some(key) => Some(key(parts, &bytes)?),
        None => None,
    };
    Some(RequestContent::of(parts, bytes, own.as_ref()))
}

/// Returns whether a request that could not be read to its end may change something.
pub(super) fn is_unsafe_unread(parts: &Parts, rules: &Rules) -> bool {
    parts.method == Method::POST && rules.post_key.is_some()
}

type Make<Q> = fn(RequestBody<Q>) -> Q;

fn maker<Q: Body + 'static>(rules: &Rules) -> Option<&Make<Q>> {
    rules.request_body.as_ref().and_then(|make| make.downcast_ref())
}

/// Returns whether a body of this type can be made of one that was read.
fn can_be_made<Q: Body + 'static>(rules: &Rules) -> bool {
    maker::<Q>(rules).is_some() || make::<Q>(rules, RequestBody::complete(Bytes::new())).is_some()
}

/// Makes the service's own body of one that was read.
fn make<Q: Body + 'static>(rules: &Rules, body: RequestBody<Q>) -> Option<Q> {
    if let Some(make) = maker(rules) {
        return Some(make(body));
    }
    let (mut body, mut made) = (Some(body), None::<Q>);
    #[cfg(feature = "axum")]
    convert(&mut body, &mut made, |body| Some(axum::body::Body::new(body)));
    // The whole of these is there at once.
    convert(&mut body, &mut made, |body| {
        body.bytes().filter(Bytes::is_empty).map(|_| Empty::<Bytes>::new())
    });
    convert(&mut body, &mut made, |body| body.bytes().map(Full::<Bytes>::new));
    convert(&mut body, &mut made, |body: RequestBody<String>| {
        String::from_utf8(body.bytes()?.into()).ok()
    });
    made
}

fn convert<Q: Body + 'static, T: Body + 'static>(
    body: &mut Option<RequestBody<Q>>,
    made: &mut Option<Q>,
    make: impl FnOnce(RequestBody<T>) -> Option<T>,
) {
    let (body, made) = (body as &mut dyn Any, made as &mut dyn Any);
    let body = body.downcast_mut::<Option<RequestBody<T>>>().and_then(Option::take);
    if let (Some(body), Some(made)) = (body, made.downcast_mut::<Option<T>>()) {
        *made = make(body);
    }
}

/// Makes the body of a request that is sent once more. `content` is what the first one
/// consisted of. `None` where the body type is not known: then no request is sent under our
/// own condition.
pub(super) fn spare<Q: Body + 'static>(rules: &Rules, content: Option<&Bytes>) -> Option<Q> {
    let empty = rules.empty_body.as_ref().and_then(|make| make.downcast_ref::<fn() -> Q>());
    match (content, empty) {
        (None, Some(make)) => Some(make()),
        (content, _) => make(rules, RequestBody::complete(content.cloned().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HttpStampede;
    use crate::http::layer::HttpLayer;
    use std::time::Duration;

    fn rules(change: impl FnOnce(HttpLayer) -> HttpLayer) -> Rules {
        let cache: HttpStampede = crate::Stampede::in_memory(Duration::from_secs(1));
        change(cache.http_layer()).rules().clone()
    }

    fn body<Q: Body + 'static>(rules: &Rules, text: &'static str) -> Option<Q> {
        let made = spare(rules, Some(&Bytes::from_static(text.as_bytes())));
        assert_eq!(can_be_made::<Q>(rules), made.is_some() || !text.is_empty());
        made
    }

    #[test]
    fn a_body_can_be_made_anew_of_the_types_that_services_commonly_take() {
        let rules = rules(|layer| layer);
        for text in ["", "text"] {
            let length = text.len() as u64;
            let is_it = |hint: http_body::SizeHint| hint.exact() == Some(length);
            assert!(body::<Full<Bytes>>(&rules, text).is_some_and(|it| is_it(it.size_hint())));
            assert!(body::<String>(&rules, text).is_some_and(|it| it == text));
            #[cfg(feature = "axum")]
            {
                let made = body::<axum::body::Body>(&rules, text);
                assert!(made.is_some_and(|it| is_it(it.size_hint())));
            }
        }
        assert!(body::<Empty<Bytes>>(&rules, "").is_some());
        assert!(spare::<hyper::body::Incoming>(&rules, None).is_none());
    }

    #[test]
    fn the_application_says_how_other_bodies_are_made() {
        struct Own(RequestBody<Self>);
        impl Body for Own {
            type Data = Bytes;
            type Error = std::convert::Infallible;
            fn poll_frame(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
                std::pin::Pin::new(&mut self.0).poll_frame(cx)
            }
            fn size_hint(&self) -> http_body::SizeHint {
                self.0.size_hint()
            }
        }
        assert!(spare::<Own>(&rules(|layer| layer), None).is_none());
        let rules = rules(|layer| layer.request_body(Own));
        for content in [None, Some(Bytes::from_static(b"text"))] {
            let length = content.as_ref().map_or(0, Bytes::len) as u64;
            let made = spare::<Own>(&rules, content.as_ref()).unwrap();
            assert_eq!(made.size_hint().exact(), Some(length));
        }
    }
}
