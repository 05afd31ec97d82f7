//! The settings of bodies: of responses, and of requests that are keyed by theirs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http_body::Body;

use crate::http::body::RequestBody;
use crate::http::layer::rules::{PostKeyRule, PostRule};
use crate::http::layer::{HttpLayer, setters};
use crate::key::{KeyBuf, ToKey};
use crate::settings::layer::bodies;

bodies! { setters; "# Bodies: how they arrive and are kept" }

/// Bodies by rules of the application.
impl HttpLayer {
    /// Sets how an empty request body is made.
    ///
    /// Where the service confirms another response than the stored one, it is asked once
    /// more, and the first body is gone. With a body type of which the layer cannot make an
    /// empty one, stored responses are not validated: they are fetched again. The layer
    /// knows axum's `Body`, `Empty<Bytes>`, `Full<Bytes>` and `String` without this; wrap
    /// hyper's `Incoming` into `Either<Incoming, Empty<Bytes>>`.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{Either, Empty, Full};
    /// # use tower_stampede::{HttpLayer, Stampede};
    ///
    /// type RequestBody = Either<Full<Bytes>, Empty<Bytes>>;
    ///
    /// fn empty() -> RequestBody {
    ///     Either::Right(Empty::new())
    /// }
    ///
    /// # let cache: tower_stampede::HttpStampede =
    /// #     Stampede::in_memory(std::time::Duration::from_secs(60));
    /// let layer: HttpLayer = cache.http_layer().empty_request_body(empty);
    /// ```
    pub fn empty_request_body<Q: 'static>(self, make: fn() -> Q) -> Self {
        self.change(move |rules| rules.empty_body = Some(Arc::new(make)))
    }

    /// Sets how the service's request body is made of one that the layer has read.
    ///
    /// Without it, a request with a body type that the layer does not know is never read: a
    /// QUERY is forwarded uncached, and so is a POST of [`cache_posts`](Self::cache_posts).
    /// The layer knows axum's `Body`, `Empty<Bytes>`, `Full<Bytes>` and `String`. It replaces
    /// [`empty_request_body`](Self::empty_request_body) too.
    ///
    /// # Examples
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
    /// use tower_stampede::{HttpLayer, RequestBody, Stampede};
    ///
    /// type Boxed = UnsyncBoxBody<Bytes, std::io::Error>;
    ///
    /// fn make(body: RequestBody<Boxed>) -> Boxed {
    ///     body.boxed_unsync()
    /// }
    ///
    /// # let cache: tower_stampede::HttpStampede =
    /// #     Stampede::in_memory(std::time::Duration::from_secs(60));
    /// let layer: HttpLayer = cache.http_layer().request_body(make);
    /// ```
    pub fn request_body<Q: Body + 'static>(self, make: fn(RequestBody<Q>) -> Q) -> Self {
        self.change(move |rules| rules.request_body = Some(Arc::new(make)))
    }

    /// Sets which POSTs change nothing, by their heads: they are handled as QUERY is. Such a
    /// POST invalidates nothing. Its response is stored by the rules for GET, the layer's
    /// `ttl` included, under a key with its body, and answers only POSTs with the same body.
    /// Defaults to none.
    ///
    /// Where the body says whether a POST changes something, as with GraphQL, add
    /// [`post_key`](Self::post_key). A POST that carries a condition (`If-None-Match`) is
    /// forwarded uncached; its `Range` is ignored (RFC 9110, 13.1.2 and 14.2).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().cache_posts(|parts| parts.uri.path() == "/search");
    /// ```
    pub fn cache_posts(self, are: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        let rule: PostRule = Arc::new(are);
        self.change(move |rules| rules.posts = Some(rule))
    }

    /// Sets the key of the body of a POST that [`cache_posts`](Self::cache_posts) has chosen.
    /// `None`: the POST may change something, and is handled as any other POST.
    ///
    /// POSTs with equal keys get one response. The service sees the body of one of them: make
    /// the key of all that changes the answer. URI, `Content-Type` and the other fields that
    /// say what the body means are in the key besides. The bytes are as the client has sent
    /// them; where `Content-Encoding` is set, they are coded. Defaults to a hash of the bytes.
    ///
    /// A body that could not be read to its end counts as one that may change something.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// # use bytes::Bytes;
    /// # use http::request::Parts;
    /// /// Makes one key of all spellings of a GraphQL query; `None` for a mutation.
    /// fn query(_: &Parts, body: &Bytes) -> Option<String> {
    ///     let text = std::str::from_utf8(body).ok()?;
    ///     let is_read = text.starts_with("{\"query\":\"query ");
    ///     is_read.then(|| text.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
    /// }
    ///
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache
    ///     .http_layer()
    ///     .cache_posts(|parts| parts.uri.path() == "/graphql")
    ///     .post_key(query);
    /// ```
    pub fn post_key<K: ToKey>(
        self,
        key: impl Fn(&Parts, &Bytes) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let rule: PostKeyRule =
            Arc::new(move |parts, body| key(parts, body).map(|key| KeyBuf::of(&key)));
        self.change(move |rules| rules.post_key = Some(rule))
    }
}
