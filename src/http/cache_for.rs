//! What a handler says about its own response.

use std::time::Duration;

use http::Extensions;

use crate::Tag;
#[cfg(all(feature = "axum", debug_assertions))]
use crate::http::read_watch::ReadWatch;

/// Lets a handler decide how long its response is kept, and how to find it
/// again for invalidation.
///
/// With axum (feature `axum`), return it as a part of the response:
/// `(CacheFor::new(..), Json(value))`, in an error's response too. Elsewhere put it into
/// the extensions of the response. The layer takes it out before the response goes to the
/// client. Of several the last one counts.
///
/// It sets lifetimes and tags, and they take the place of the lifetimes in
/// `Cache-Control` and of the layer's own. It overrides no prohibition: a
/// response with `no-store`, `private`, `Set-Cookie` or `Vary: *` stays
/// unshared, and `must-revalidate` still forbids stale answers. Only
/// [`public`](Self::public) permits to share a response to a request with
/// credentials.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::Response;
/// use tower_stampede::CacheFor;
///
/// let mut response = Response::new("the profile of user 7");
/// response.extensions_mut().insert(
///     CacheFor::new(Duration::from_secs(30))
///         .stale_for(Duration::from_secs(300))
///         .tag("user:7"),
/// );
/// assert!(response.extensions().get::<CacheFor>().is_some());
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CacheFor {
    pub(crate) ttl: Duration,
    pub(crate) stale_for: Option<Duration>,
    pub(crate) stale_if_error: Option<Duration>,
    pub(crate) tags: Vec<Tag>,
    pub(crate) public: bool,
}

impl CacheFor {
    /// Keeps the response for `ttl`, counted from the arrival of its head.
    ///
    /// The data was read after the request went out, so it is at most `ttl` +
    /// `compute_timeout` old. `Age` still counts from the request.
    ///
    /// Zero means: it is never fresh. It is shared only as stale, where a
    /// stale window covers it.
    pub const fn new(ttl: Duration) -> Self {
        Self { ttl, stale_for: None, stale_if_error: None, tags: Vec::new(), public: false }
    }

    /// Sets how long after the end of its ttl the response may be served stale
    /// while it is refreshed.
    ///
    /// Defaults to the layer's `stale_for`.
    pub const fn stale_for(mut self, window: Duration) -> Self {
        self.stale_for = Some(window);
        self
    }

    /// Sets how long after the end of its ttl the response may be served stale
    /// when its refresh fails.
    ///
    /// Defaults to the layer's `stale_if_error`.
    pub const fn stale_if_error(mut self, window: Duration) -> Self {
        self.stale_if_error = Some(window);
        self
    }

    /// Adds a tag by which the response can be invalidated.
    ///
    /// Defaults to no tags.
    pub fn tag(mut self, tag: impl Into<Tag>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Declares that the response holds no data of one client, so that it may be
    /// shared although the request carried credentials.
    ///
    /// Defaults to not shared, unless `Cache-Control` permits it.
    pub const fn public(mut self) -> Self {
        self.public = true;
        self
    }

    /// Takes what a handler has said out of its response.
    pub(crate) fn take_from(extensions: &mut Extensions) -> Option<Self> {
        #[cfg(all(feature = "axum", debug_assertions))]
        ReadWatch::end(extensions);
        extensions.remove::<Self>()
    }
}

/// A part of an axum response; it cannot fail. In debug builds, a line of
/// the log (WARN) says once for each thread that such a response has passed no layer.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use axum::http::StatusCode;
/// use axum::response::IntoResponse;
/// use tower_stampede::CacheFor;
///
/// async fn report() -> Result<(CacheFor, &'static str), (StatusCode, CacheFor, &'static str)> {
///     Ok((CacheFor::new(Duration::from_secs(60)).public(), "expensive"))
/// }
///
/// let gone = (StatusCode::GONE, CacheFor::new(Duration::from_secs(5)), "gone").into_response();
/// assert!(gone.extensions().get::<CacheFor>().is_some());
/// # drop(report());
/// ```
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl axum::response::IntoResponseParts for CacheFor {
    type Error = std::convert::Infallible;

    fn into_response_parts(
        self,
        mut response: axum::response::ResponseParts,
    ) -> Result<axum::response::ResponseParts, Self::Error> {
        response.extensions_mut().insert(self);
        #[cfg(debug_assertions)]
        ReadWatch::begin(response.extensions_mut());
        Ok(response)
    }
}

/// An empty response, for tuples that end in it.
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl axum::response::IntoResponse for CacheFor {
    fn into_response(self) -> axum::response::Response {
        (self, ()).into_response()
    }
}
