//! The setting of a handle that only HTTP has.

use crate::cache::builder::Builder;
use crate::http::stored::response::StoredResponse;

#[cfg_attr(docsrs, doc(cfg(feature = "http")))]
impl Builder<StoredResponse> {
    /// Sets the bound on the bytes of all response bodies together that arrive and are to be
    /// stored or shared, beside `max_bytes`. A body with a declared length takes that when
    /// its head arrives, another one what has come. It gives the bytes back when it is
    /// complete, breaks off, or is not kept any longer. Defaults to `max_bytes`.
    ///
    /// At the bound no request fails: the response is passed on unshared, as one is that is
    /// too large to be stored. Its caller reads the body as it comes, and the waiters forward
    /// their own requests. The key is not remembered as uncacheable. `Cache-Status` says
    /// `detail=no-room`; such responses are counted in
    /// [`Stats::refused_bodies`](crate::Stats::refused_bodies) and reported as
    /// [`Event::BodyRefused`](crate::Event::BodyRefused).
    ///
    /// Not counted: a body that is there at once, and what slow clients still read of a body
    /// that has arrived or is not kept any longer. Of the latter each slow client can hold up to
    /// `HttpLayer::max_body`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_stampede::{HttpStampede, Stampede};
    ///
    /// let cache: HttpStampede = Stampede::builder("site")
    ///     .origin_only()
    ///     .max_bytes(256 << 20)
    ///     .max_arriving_bytes(32 << 20)
    ///     .build()?;
    /// # Ok::<(), tower_stampede::ConfigError>(())
    /// ```
    pub fn max_arriving_bytes(mut self, max_arriving_bytes: u64) -> Self {
        self.max_arriving_bytes = Some(max_arriving_bytes);
        self
    }
}
