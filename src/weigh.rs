//! How much memory a value holds beside its own size.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::mem::needs_drop;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use crate::stream::Recording;

/// A value that knows how much memory it holds.
///
/// [`Builder::weigh`](crate::Builder::weigh) makes a cache count with it against
/// [`max_bytes`](crate::Builder::max_bytes). For a type of your own, add up its fields:
///
/// ```
/// use std::time::Duration;
/// use tower_stampede::{Stampede, Weigh};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
///     name: String,
///     roles: Vec<String>,
/// }
///
/// impl Weigh for User {
///     fn heap_bytes(&self) -> usize {
///         self.name.heap_bytes() + self.roles.heap_bytes()
///     }
/// }
///
/// let users: Stampede<User> =
///     Stampede::builder("users").ttl(Duration::from_secs(60)).weigh().build()?;
/// # Ok::<(), tower_stampede::ConfigError>(())
/// ```
///
/// Called once for each value that is stored, on the task that computed it. A collection of
/// items that own memory is walked; one of numbers is not.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how much memory it holds",
    label = "without `Weigh`",
    note = "implement `Weigh` by adding up its fields, or use `Builder::weigher` for a type of another crate"
)]
pub trait Weigh {
    /// Returns how many bytes the value holds beside its own size: what it has allocated,
    /// and what that has allocated. Capacity counts, not length.
    ///
    /// The implementations here add what an allocator takes for each allocation. What several
    /// values share behind an [`Arc`] counts in each of them.
    fn heap_bytes(&self) -> usize;
}

/// Returns what an allocation of this size occupies: allocators hold a length beside each, and
/// round up.
pub(crate) const fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..24 => 32,
        _ => bytes.saturating_add(8).saturating_add(15) & !15,
    }
}

/// Returns the heap bytes of all items. Looks at none of them if their type owns nothing.
fn all<'a, T: Weigh + 'a>(items: impl IntoIterator<Item = &'a T>) -> usize {
    if !needs_drop::<T>() {
        return 0;
    }
    items.into_iter().map(Weigh::heap_bytes).fold(0, usize::saturating_add)
}

/// Returns what a table of this capacity occupies: a hash map has a byte for each place
/// beside its items, and leaves an eighth of the places free.
fn table<T>(capacity: usize) -> usize {
    let places = capacity.saturating_mul(8) / 7;
    allocated(
        places.next_power_of_two().saturating_mul(size_of::<T>() + 1) * usize::from(capacity > 0),
    )
}

/// Returns what a tree of so many items occupies: its nodes are at least half full.
fn tree<T>(items: usize) -> usize {
    const NODE: usize = 11;
    let nodes = items.div_ceil(NODE / 2 + 1);
    nodes.saturating_mul(allocated(NODE * size_of::<T>() + 2 * size_of::<usize>()))
}

/// Two counts of references stand before what is shared.
const COUNTS: usize = 2 * size_of::<usize>();

macro_rules! without_heap {
    ($($t:ty)+) => {$(
        impl Weigh for $t {
            #[inline]
            fn heap_bytes(&self) -> usize {
                0
            }
        }
    )+};
}

without_heap! {
    () bool char f32 f64 i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize &'static str str
    std::net::IpAddr std::net::Ipv4Addr std::net::Ipv6Addr std::net::SocketAddr
    std::num::NonZeroU32 std::num::NonZeroU64 std::num::NonZeroUsize
    std::time::Duration std::time::Instant std::time::SystemTime
}

macro_rules! tuples {
    ($(($($name:ident)+))+) => {$(
        impl<$($name: Weigh),+> Weigh for ($($name,)+) {
            fn heap_bytes(&self) -> usize {
                #[allow(non_snake_case, reason = "the names of the types")]
                let ($($name,)+) = self;
                [$($name.heap_bytes()),+].into_iter().fold(0, usize::saturating_add)
            }
        }
    )+};
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

impl Weigh for String {
    fn heap_bytes(&self) -> usize {
        allocated(self.capacity())
    }
}

impl Weigh for Bytes {
    /// The bytes that it shows. A part of a larger piece keeps all of that.
    fn heap_bytes(&self) -> usize {
        allocated(self.len())
    }
}

impl<T: Weigh> Weigh for [T] {
    fn heap_bytes(&self) -> usize {
        all(self)
    }
}

impl<T: Weigh, const N: usize> Weigh for [T; N] {
    fn heap_bytes(&self) -> usize {
        all(self)
    }
}

impl<T: Weigh> Weigh for Vec<T> {
    fn heap_bytes(&self) -> usize {
        allocated(self.capacity().saturating_mul(size_of::<T>())).saturating_add(all(self))
    }
}

impl<T: Weigh> Weigh for VecDeque<T> {
    fn heap_bytes(&self) -> usize {
        allocated(self.capacity().saturating_mul(size_of::<T>())).saturating_add(all(self))
    }
}

impl<T: Weigh> Weigh for BinaryHeap<T> {
    fn heap_bytes(&self) -> usize {
        allocated(self.capacity().saturating_mul(size_of::<T>())).saturating_add(all(self))
    }
}

impl<T: Weigh + ?Sized> Weigh for Box<T> {
    fn heap_bytes(&self) -> usize {
        allocated(size_of_val::<T>(self)).saturating_add(T::heap_bytes(self))
    }
}

impl<T: Weigh + ?Sized> Weigh for Arc<T> {
    fn heap_bytes(&self) -> usize {
        allocated(size_of_val::<T>(self) + COUNTS).saturating_add(T::heap_bytes(self))
    }
}

impl<T: Weigh + ?Sized> Weigh for Rc<T> {
    fn heap_bytes(&self) -> usize {
        allocated(size_of_val::<T>(self) + COUNTS).saturating_add(T::heap_bytes(self))
    }
}

impl<T: Weigh> Weigh for Option<T> {
    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or(0, Weigh::heap_bytes)
    }
}

impl<T: Weigh, E: Weigh> Weigh for Result<T, E> {
    fn heap_bytes(&self) -> usize {
        self.as_ref().map_or_else(Weigh::heap_bytes, Weigh::heap_bytes)
    }
}

impl Weigh for Cow<'_, str> {
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Borrowed(_) => 0,
            Self::Owned(text) => text.heap_bytes(),
        }
    }
}

impl<K: Weigh, V: Weigh, S> Weigh for HashMap<K, V, S> {
    fn heap_bytes(&self) -> usize {
        let items = all(self.keys()).saturating_add(all(self.values()));
        table::<(K, V)>(self.capacity()).saturating_add(items)
    }
}

impl<T: Weigh, S> Weigh for HashSet<T, S> {
    fn heap_bytes(&self) -> usize {
        table::<T>(self.capacity()).saturating_add(all(self))
    }
}

impl<K: Weigh, V: Weigh> Weigh for BTreeMap<K, V> {
    fn heap_bytes(&self) -> usize {
        let items = all(self.keys()).saturating_add(all(self.values()));
        tree::<(K, V)>(self.len()).saturating_add(items)
    }
}

impl<T: Weigh> Weigh for BTreeSet<T> {
    fn heap_bytes(&self) -> usize {
        tree::<T>(self.len()).saturating_add(all(self))
    }
}

/// Returns how many bytes a value holds beside its own size.
pub(crate) type Weigher<V> = Arc<dyn Fn(&V) -> usize + Send + Sync>;

/// Returns how a type is weighed that the application need not describe.
pub(crate) fn recognised<V: 'static>() -> Option<Weigher<V>> {
    fn if_it_is<T: Weigh + 'static, V: 'static>() -> Option<Weigher<V>> {
        let weigh = |value: &V| (value as &dyn Any).downcast_ref().map_or(0, T::heap_bytes);
        (TypeId::of::<T>() == TypeId::of::<V>()).then(|| Arc::new(weigh) as Weigher<V>)
    }
    fn with_option<T: Weigh + 'static, V: 'static>() -> Option<Weigher<V>> {
        if_it_is::<T, V>().or_else(if_it_is::<Option<T>, V>)
    }
    #[cfg(feature = "http")]
    if let Some(weigher) = if_it_is::<crate::http::StoredResponse, V>() {
        return Some(weigher);
    }
    if_it_is::<Recording<Bytes>, V>()
        .or_else(if_it_is::<Recording<String>, V>)
        .or_else(if_it_is::<Recording<Vec<u8>>, V>)
        .or_else(if_it_is::<Recording<Arc<str>>, V>)
        .or_else(with_option::<String, V>)
        .or_else(with_option::<Vec<u8>, V>)
        .or_else(with_option::<Bytes, V>)
        .or_else(with_option::<Arc<str>, V>)
        .or_else(with_option::<Arc<[u8]>, V>)
        .or_else(with_option::<Arc<String>, V>)
        .or_else(with_option::<Box<str>, V>)
        .or_else(with_option::<Box<[u8]>, V>)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_counts_and_not_length() {
        let mut text = String::with_capacity(1000);
        text.push('x');
        assert_eq!(text.heap_bytes(), allocated(1000));
        assert_eq!(Vec::<u64>::with_capacity(100).heap_bytes(), allocated(800));
        assert_eq!(String::new().heap_bytes(), 0);
    }

    #[test]
    fn what_is_behind_a_pointer_counts_with_what_it_holds() {
        let text = "x".repeat(100);
        let one = text.heap_bytes();
        assert_eq!(one, 112);
        assert_eq!(Some(text.clone()).heap_bytes(), one);
        assert_eq!((1_u8, text.clone(), None::<String>).heap_bytes(), one);
        assert_eq!(Box::new(text.clone()).heap_bytes(), allocated(24) + one);
        assert_eq!(Arc::new(text.clone()).heap_bytes(), allocated(40) + one);
        assert_eq!(vec![text.clone(), text.clone()].heap_bytes(), allocated(48) + 2 * one);
        assert_eq!(Arc::<str>::from(text.as_str()).heap_bytes(), allocated(116));
        assert_eq!(Arc::<[u8]>::from(text.as_bytes()).heap_bytes(), allocated(116));
        assert_eq!(Box::<str>::from(text.as_str()).heap_bytes(), allocated(100));
        assert_eq!(Err::<(), _>(text).heap_bytes(), one);
    }

    #[test]
    fn maps_count_their_places_and_what_their_items_hold() {
        let map: HashMap<u64, String> = (0..100).map(|n| (n, "x".repeat(100))).collect();
        assert!(map.heap_bytes() >= 100 * (8 + 24 + 1 + 112), "{}", map.heap_bytes());
        let tree: BTreeMap<u64, String> = (0..100).map(|n| (n, "x".repeat(100))).collect();
        assert!(tree.heap_bytes() >= 100 * (8 + 24 + 112), "{}", tree.heap_bytes());
        assert_eq!(HashSet::<u64>::new().heap_bytes(), 0);
    }

    #[test]
    fn no_capacity_overflows() {
        assert_eq!(allocated(usize::MAX) & 15, 0);
        let endless = vec![(); usize::MAX];
        assert_eq!(endless.heap_bytes(), 0);
    }
}
