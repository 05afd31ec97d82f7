//! The settings of what ends responses: tags, and requests that change something.

use std::any::Any;
use std::sync::Arc;

use http::{request, response};

use crate::http::layer::rules::{DisconnectedRule, WriteRule};
use crate::http::layer::{HttpLayer, setters};
use crate::settings::layer::{checks, writes};

writes! { setters; "# Writes: what ends responses" }

/// Writes by rules of the application.
impl HttpLayer {
    /// Sets which writes invalidate. Defaults to all.
    ///
    /// A request with an unsafe method, or an unknown one, ends what is stored and computed of its
    /// URI once its response says that it was no error (a status of 2xx or 3xx). `rule` gets the
    /// request as the layer has received it and the head of that response, and returns `false`
    /// where nothing has changed: a search by POST, a log-in, a GraphQL query.
    ///
    /// The response is `None` where a write ends in an unknown way: the client hung up, or the
    /// service failed, panicked or was dropped, after the whole request was sent. `false` is then
    /// right only if the request can change nothing.
    ///
    /// A layer inside of another one of the handle asks its own rule, and the outer one its own;
    /// a write invalidates if one of them says so.
    ///
    /// # Panics
    ///
    /// The rule is called on the way of a response, and when the future of a request is dropped.
    /// It must neither block nor call the cache. Where it panics, the write invalidates.
    ///
    /// # Cost
    ///
    /// A copy of the head of each such request.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_stampede::Stampede;
    ///
    /// let cache = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().invalidate_if(|request, _| request.uri.path() != "/search");
    /// # drop(layer);
    /// ```
    pub fn invalidate_if(
        self,
        rule: impl Fn(&request::Parts, Option<&response::Parts>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let rule: WriteRule = Arc::new(rule);
        self.change(move |rules| rules.invalidates = Some(rule))
    }

    /// Sets which errors of the service, of type `E`, say that it has received nothing of the
    /// request: for example a refused connection. A write that ends so invalidates nothing.
    ///
    /// It must be `false` for a connection that broke after it was made: the service may
    /// have carried the request out. Defaults to no error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use std::io;
    /// use tower_stampede::Stampede;
    ///
    /// let cache = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache
    ///     .http_layer()
    ///     .unsent(|error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused);
    /// # drop(layer);
    /// ```
    pub fn unsent<E: 'static>(self, is: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        let is = move |error: &dyn Any| error.downcast_ref().is_some_and(&is);
        let rule: DisconnectedRule = Arc::new(is);
        self.change(move |rules| rules.unsent = Some(rule))
    }
}
