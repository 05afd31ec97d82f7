//! Settings for requests that are keyed by their body: QUERY, and POSTs that change nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http_body::Body;

use crate::http::body::RequestBody;
use crate::http::layer::HttpLayer;
use crate::http::layer::rules::{PostKeyRule, PostRule};
use crate::key::{KeyBuf, ToKey};

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

    /// Sets whether the responses to QUERY (RFC 10008) are stored and shared, by the rules
    /// for GET. Defaults to true.
    ///
    /// The key has the URI, the body byte for byte, and `Content-Type`, `Content-Encoding`,
    /// `Content-Language` and `Content-Location`. So the body is read before the service gets
    /// the request: up to [`max_request_body`](Self::max_request_body), for at most
    /// [`request_body_timeout`](Self::request_body_timeout). A QUERY never answers a GET, nor
    /// the reverse. Whatever invalidates a URI ends the responses to its queries too.
    ///
    /// With a body type that the layer cannot make, a QUERY is forwarded uncached: see
    /// [`request_body`](Self::request_body).
    pub fn query_method(self, is_cached: bool) -> Self {
        self.change(move |rules| rules.config.query_method = is_cached)
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

    /// Sets the longest request body that is read to make a key, in bytes. A request with a
    /// longer one is forwarded uncached; the part that was read goes before the rest. Each request
    /// that is being read or waits takes as many bytes of memory as its body has. Defaults to 64
    /// KiB.
    pub fn max_request_body(self, bytes: usize) -> Self {
        self.change(move |rules| rules.config.max_request_body = bytes)
    }

    /// Sets how long the body of a request may take that is read to make a key. After that the
    /// request is forwarded uncached, and the service reads the rest. Meanwhile it holds no
    /// place and no flight. Defaults to 5 s.
    pub fn request_body_timeout(self, time: Duration) -> Self {
        self.change(move |rules| rules.config.request_body_timeout = time)
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
}
