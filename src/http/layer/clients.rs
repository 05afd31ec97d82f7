//! Settings that keep one client from taking what all clients share.

use std::hash::Hash;
use std::sync::Arc;

use http::request::Parts;

use crate::flight::client_key::ClientKey;
use crate::flight::door::ForwardBound;
use crate::http::layer::HttpLayer;

impl HttpLayer {
    /// Names the client of a request: its address or the prefix of it, a user, a tenant.
    ///
    /// One client has at most seven eighths of the places for computations
    /// ([`max_computations`](crate::Builder::max_computations)), and at least one. Computations
    /// that wait for a place are served round-robin: each client in its turn, and within a client
    /// in the order in which they came. So a client that asks for many slow URLs delays its own
    /// requests, and those of other clients by one computation at most. A computation counts for
    /// the client that leads it, whichever clients wait for its result, and what a handler asks of
    /// the same handle counts for the client of its request.
    ///
    /// Requests for which `name` returns `None` count together, and have no bound. Defaults to
    /// `None` for each request. Where several layers of a handle name clients, let them return
    /// values of one type: clients are compared by the hash of the value, under a secret of the
    /// process. `name` is called for requests that find nothing fresh, and under
    /// [`max_forwarded`](Self::max_forwarded) for those that are forwarded uncached. A client
    /// takes memory only while it has a computation.
    ///
    /// axum puts the address into the extension `ConnectInfo<SocketAddr>`, and only for a router that
    /// is served by `into_make_service_with_connect_info::<SocketAddr>()`.
    ///
    /// A name must be hard to change for the client: an address, not a field that the client
    /// writes. All users behind one proxy have its address; take the client's own from a field
    /// that the proxy writes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::{IpAddr, SocketAddr};
    /// use std::time::Duration;
    /// use tower_stampede::{HttpStampede, Stampede};
    ///
    /// /// The address as a server has put it into the request, for IPv6 the prefix of a network.
    /// fn network(parts: &http::request::Parts) -> Option<IpAddr> {
    ///     match parts.extensions.get::<SocketAddr>()?.ip().to_canonical() {
    ///         IpAddr::V6(v6) => Some(IpAddr::V6((v6.to_bits() >> 64 << 64).into())),
    ///         v4 => Some(v4),
    ///     }
    /// }
    ///
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().client(network);
    /// ```
    pub fn client<K: Hash>(
        self,
        name: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let name = Arc::new(name);
        self.change(|rules| {
            rules.client = Some(Arc::new(move |parts| name(parts).map(ClientKey::of)));
        })
    }

    /// Sets how many requests may be forwarded at once without a computation that others share:
    /// those with credentials or an unsafe method, those whose responses are not shared, and
    /// those that [`bypass`](Self::bypass) the cache. Each counts until the head of its response
    /// is there. Defaults to no bound: these requests would reach the service without the cache,
    /// too.
    ///
    /// A request over the bound waits, round-robin by [`client`](Self::client); one client has at
    /// most seven eighths of the bound, and at least one. After the handle's
    /// [`wait_timeout`](crate::Builder::wait_timeout), or where
    /// [`max_waiters_in_all`](crate::Builder::max_waiters_in_all) is reached, the client gets
    /// something stale, or a 503 with `Retry-After` and `Cache-Status: …; detail=overloaded`. The
    /// service does not see such a request, and nothing is invalidated. A handle that only
    /// observes or is off bounds nothing.
    ///
    /// All layers that are made of this one share the bound, and so do its routes. A route for
    /// which [`route_rules`](Self::route_rules) sets a bound has places of its own.
    ///
    /// # Panics
    ///
    /// If `max` is zero.
    ///
    /// # Cancel safety
    ///
    /// A request whose client goes away while it waits leaves the queue, and is not forwarded.
    #[track_caller]
    pub fn max_forwarded(self, max: usize) -> Self {
        assert!(max > 0, "`max_forwarded`: is 0; leave it out to set no bound");
        let bound = ForwardBound::new(max);
        self.change(move |rules| rules.forwarded = Some(bound))
    }
}
