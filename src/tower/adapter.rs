//! How requests and responses of any service become keys and values.

use crate::key::{Key, ToKey};

/// Turns requests into keys, and responses into stored values and back.
///
/// A closure from a request to an optional key is one, for every response
/// that can be cloned; `None` means that this request is not cached.
///
/// # Examples
///
/// A response that cannot be cloned is frozen into something that can:
///
/// ```
/// use tower_stampede::{Adapter, Key};
///
/// struct Answer { text: String, connection: std::cell::Cell<u32> }
///
/// #[derive(Clone)]
/// struct ByText;
///
/// impl Adapter<u32, Answer> for ByText {
///     type Stored = String;
///
///     fn key(&self, id: &u32) -> Option<Key> {
///         Some(Key::from(*id))
///     }
///
///     fn freeze(&self, answer: &Answer) -> Option<String> {
///         Some(answer.text.clone())
///     }
///
///     fn thaw(&self, text: &String) -> Answer {
///         Answer { text: text.clone(), connection: Default::default() }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how requests become keys and responses become values",
    note = "pass a closure `|request: &Request| Some(key)`; the response must be `Clone`",
    note = "or implement `Adapter<{Req}, {Res}>`"
)]
pub trait Adapter<Req, Res> {
    /// The type that is stored in place of a response.
    type Stored;

    /// Returns the key of a request; `None` goes to the service uncached.
    fn key(&self, request: &Req) -> Option<Key>;

    /// Returns what to store; `None` if this response may not be shared. A value that is stored
    /// already stays then: the response may be a failure.
    fn freeze(&self, response: &Res) -> Option<Self::Stored>;

    /// Makes a response from a stored value.
    fn thaw(&self, stored: &Self::Stored) -> Res;
}

impl<F, K, Req, Res> Adapter<Req, Res> for F
where
    F: Fn(&Req) -> Option<K>,
    K: ToKey,
    Res: Clone,
{
    type Stored = Res;

    fn key(&self, request: &Req) -> Option<Key> {
        self(request).map(|key| key.to_key())
    }

    fn freeze(&self, response: &Res) -> Option<Res> {
        Some(response.clone())
    }

    fn thaw(&self, stored: &Res) -> Res {
        stored.clone()
    }
}
