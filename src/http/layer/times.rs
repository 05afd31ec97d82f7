//! The settings of how long a response is used.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::http::layer::rules::DisconnectedRule;
use crate::http::layer::{HttpLayer, setters};
use crate::settings::StatusTtl;
use crate::settings::layer::{checks, times};

times! { setters; "# Times: how long a response is used" }

/// Times by rules of the application.
impl HttpLayer {
    /// Sets which errors of the inner service, of type `E`, say that it could
    /// not be reached: refused, reset or broken off before the header section
    /// ended, or no connection in time.
    ///
    /// Such an error is answered stale within
    /// [`stale_if_disconnected`](Self::stale_if_disconnected). Where what is
    /// stored forbids that (`must-revalidate` and its kin), the client gets a
    /// 504 from the cache instead of the error. Defaults to every error of the
    /// service, and never a 504.
    pub fn disconnected<E: 'static>(self, is: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        let is = move |error: &dyn Any| error.downcast_ref().is_some_and(&is);
        let rule: DisconnectedRule = Arc::new(is);
        self.change(move |rules| rules.disconnected = Some(rule))
    }
}
