//! The settings of a cache: one row of a table for each.
//!
//! # What enters
//!
//! The values that the setters of [`Builder`](crate::Builder) collect, or those of a file
//! (feature `serde`, [`file`]).
//!
//! # What leaves
//!
//! [`Settings`]: a field for each row, `None` where the application has not set it, and a method
//! of the same name that returns the value or the default. The builder checks the values once.
//! After that the engine and the handle read them from here.
//!
//! # How to add a setting
//!
//! Add a row to [`each_setting`]. The row makes the field, the setter of the builder with its
//! documentation, the name in a file, the default, and the check against 0. Then read the
//! setting where it takes effect. A rule about two settings belongs into
//! `cache/builder/checks.rs`. A bound needs a row in `docs/how-it-works.md`: a test compares that
//! table with this one.

#[cfg(feature = "serde")]
pub(crate) mod file;
#[cfg(feature = "http")]
pub(crate) mod layer;
#[cfg(feature = "serde")]
mod size;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(feature = "serde")]
use file::{duration, plain, size, status_ttl};
#[cfg(feature = "http")]
use layer::HttpSettings;

use crate::mode::Mode;

/// Calls the macro `$then` with the rows of all settings.
///
/// A row is `name: Type as "reader" = default, not_zero "unset";`
///
/// - `reader` is the function in [`file`] that reads the setting from a file.
/// - `default` is a function of the other settings. A row without a default has no method: the
///   setting is an `Option`.
/// - `not_zero` refuses 0. The text says what the cache does if the setting is left unset, and
///   completes "leave it unset for".
macro_rules! each_setting {
    ($then:ident) => {
        $then! {
            /// Sets how long a value is fresh, counted from the end of its
            /// computation, or from the call of `put`.
            ///
            /// A computation reads its data after its start, so a fresh value is at
            /// most `ttl` + `compute_timeout` old; where it reads another cached value, the
            /// bounds of both add up. A result that took longer, because
            /// the mode was not `On` or the leader was not polled, is not stored. There
            /// is no default: a wrong guess would be wrong silently.
            ttl: Duration as "duration";
            /// Sets for how long after its `ttl` a value is served stale, at once,
            /// while one background refresh runs (`stale-while-revalidate`, RFC
            /// 5861 section 3). Defaults to 0.
            stale_for: Duration as "duration" = |_| Duration::ZERO;
            /// Sets for how long after its `ttl` a value is served in place of a
            /// failure (`stale-if-error`, RFC 5861 section 4). Defaults to 0.
            stale_if_error: Duration as "duration" = |_| Duration::ZERO;
            /// Sets how long a caller that could be served a stale value waits for the new one,
            /// in any of the stale windows. A value that comes within this time is served
            /// fresh; else the stale value is served, and the work goes on. Without it, a value
            /// within `stale_for` is served at once, and one within `stale_if_error` after a
            /// failure, or after `wait_timeout`. It does not shorten the look at the remote
            /// that must come before a local copy is served again. It has no effect on
            /// [`get_or_compute_scoped`](crate::Stampede::get_or_compute_scoped), where nothing
            /// can go on. Over HTTP it concerns the time until the head of the response.
            /// Unset by default. For one call:
            /// [`EntrySelector::soft_timeout`](crate::EntrySelector::soft_timeout).
            soft_timeout: Duration as "duration", not_zero "no soft time-out";
            /// Sets the share of the `ttl` by which lifetimes are shortened at
            /// random, from 0 up to but not including 1, so that what was filled
            /// together does not end together. Defaults to 0.1.
            jitter: f64 as "plain" = |_| 0.1;
            /// Refreshes before the end of the `ttl`, by chance (XFetch; Vattani,
            /// Chierichetti, Lowenstein, PVLDB 8, 2015). The number is the paper's beta: 1 is
            /// the optimum, larger is earlier. Off by default.
            early_refresh: f64 as "plain";
            /// Sets the part of the `ttl`, before its end, in which early
            /// refreshes may fall. Defaults to 0.25.
            early_refresh_share: f64 as "plain" = |_| 0.25;
            /// Sets after how long a computation is dropped. For services this
            /// covers readiness and the response's head. The time in the queue of
            /// `max_computations` does not count. While the mode is not `On`, it
            /// ends no computation. Defaults to 30 s.
            compute_timeout: Duration as "duration" = |_| Duration::from_secs(30), not_zero "30 s";
            /// Cancels a computation as soon as no caller waits for it any more, unless it has run
            /// for this share of the time that it is expected to take: then it goes on, and its
            /// result is stored. Above 0, at most 1. Expected is the time that the value in hand has
            /// taken, else what computations of this cache have taken of late; where neither is
            /// known, a computation is cancelled however long it has run. The call of a batch is
            /// cancelled when none of its keys has a caller, a request over HTTP until the head of its
            /// response is there: a body that arrives goes on.
            /// What is lost then must begin anew: with callers that leave sooner than a value can be
            /// computed, and come back, it is never computed. Refreshes in the background go on, and
            /// so does work that a soft time-out has left. With a remote the lease is given up, and a
            /// process that waits for it takes over at once. Unset by default.
            cancel_unwanted: f64 as "plain";
            /// Sets how long a leader may go silent before another process takes
            /// over; renewed at a third. Counts into the default of
            /// `wait_timeout`, and has no other effect within one process. With a
            /// remote it must be shorter than `wait_timeout`, and longer than
            /// three times the remote's `op_timeout`. Defaults to 5 s.
            lease: Duration as "duration" = |_| Duration::from_secs(5), not_zero "5 s";
            /// Sets how long a caller waits for another caller's computation, or in the
            /// queue of `max_computations`. Then it is served a stale value where one
            /// may stand in, else it is refused. Defaults to `lease` +
            /// `compute_timeout`.
            wait_timeout: Duration as "duration" = |it| it.lease().saturating_add(it.compute_timeout()), not_zero "`lease` + `compute_timeout`";
            /// Sets how long no caller computes a key after a failure. Callers
            /// without a stale value get `Held` for this long, however many
            /// failures came in a row. For callers with one it is up to a tenth
            /// shorter, so that keys that failed together are not tried together.
            ///
            /// The hold ends early when the data may have changed: with
            /// `invalidate`, `put` or `mark_stale` of the key, `invalidate_all`, or
            /// a successful computation. With a remote, only `invalidate` and `put` end
            /// the hold of all processes. Two minutes after a hold, its failures are
            /// forgotten. Defaults to 1 s.
            hold: Duration as "duration" = |_| Duration::from_secs(1), not_zero "1 s";
            /// Sets up to where the hold doubles, failure by failure, for callers
            /// that are served a stale value meanwhile. It never lasts longer than
            /// that value may be served. Defaults to 60 s, or to `hold` if that is longer.
            max_hold: Duration as "duration" = |it| it.hold().max(Duration::from_secs(60));
            /// Sets how long a key is remembered as uncacheable: its callers do not
            /// wait for each other. Defaults to 30 s.
            uncacheable_for: Duration as "duration" = |_| Duration::from_secs(30), not_zero "30 s";
            /// Sets the bound on the memory of all entries together, in bytes. An
            /// entry weighs what it takes: its value, with what that holds on the
            /// heap; its key and tags; and 240 bytes for its places in the store, 480
            /// with one of moka's policies. An entry heavier than the bound is handed
            /// to its callers and not stored.
            ///
            /// What a value holds on the heap is known for types without a
            /// destructor (nothing), for `String`, `Vec<u8>`, `Bytes`, `Arc` and
            /// `Box` of `str` and `[u8]`, `Option`s of these, and stored responses.
            /// For other types call [`weigh`](Self::weigh) or
            /// [`weigher`](Self::weigher), or set `max_entries`. Without any of
            /// these, the bound is an estimate: each value is taken to hold 1,024 bytes
            /// on the heap, with a remote the mean of what the last 16 or so encoded
            /// values take. When such a cache is full, it says so in the log, once, at
            /// WARN.
            ///
            /// The bound holds after each write, but for values that callers still read; with one of
            /// moka's policies, see [`eviction`](Self::eviction), up to a thirty-second part of the
            /// bound per thread that writes is held beyond it for a moment. The process grows
            /// by the allocator's fragments, too; with glibc and several threads these
            /// can be large (see the guide, *Bounds*). Not counted: values that callers hold,
            /// bodies of HTTP responses that still arrive (see `max_arriving_bytes`),
            /// flights and waiters, what is remembered of keys without a value (10 MiB
            /// at most), invalidated tags (see `max_logged_tags`), and about 100 KiB for
            /// an empty cache. Defaults to 64 MiB.
            max_bytes: u64 as "size" = |_| 64 << 20, not_zero "64 MiB";
            /// Sets a bound on the number of entries, beside the one on their memory: each
            /// then weighs at least `max_bytes / max_entries`. Which bound is
            /// reached first depends on what the values weigh. Unset by default; see
            /// [`max_bytes`](Self::max_bytes) for types that are not weighed.
            max_entries: u64 as "plain", not_zero "no bound";
            /// Sets which entry makes room at the bound. Defaults to
            /// [`Eviction::ByPrice`].
            eviction: Eviction as "plain" = |_| Eviction::default();
            /// Sets how many callers may wait for one key. Defaults to 100,000, or to
            /// `max_waiters_in_all` if that is less.
            max_waiters: u32 as "plain" = |it| saturated(it.max_waiters_in_all()).min(100_000), not_zero "100,000";
            /// Sets how many callers may wait in all. A leader that queues for one
            /// of the `max_computations` counts, too. Over the bound a caller gets a
            /// stale value where one may stand in, else `Overloaded`. Defaults to
            /// 1,000,000.
            max_waiters_in_all: usize as "plain" = |_| 1_000_000, not_zero "1,000,000";
            /// Sets how many computations may run at once. Each takes a place.
            ///
            /// *What queues:* a leader whose caller has no value in hand. It waits
            /// at most `wait_timeout`, first come, first served, and leaves when its
            /// caller and all its waiters have gone. A background refresh and an
            /// inline caller with a stale value do not queue: without a free place
            /// the stale value is served, and the next reader tries again.
            ///
            /// *What lends:* a computation that asks the same handle for another
            /// key waits for it, so it lends its place to that computation, one at a
            /// time. Nested computations need no place beyond the outer one. Work
            /// that a computation spawns (`tokio::spawn`) is not seen as a part of
            /// it: nothing is lent to it, and it queues like any other caller.
            ///
            /// *What returns:* the place of a computation that has been silent for a
            /// second longer than its time-out goes to the next caller that needs
            /// one.
            ///
            /// Callers that compute for themselves because values of the key are not
            /// shared need no place; neither does any caller while the mode is not
            /// `On`. Defaults to 1024.
            max_computations: usize as "plain" = |_| 1024, not_zero "1024";
            /// Has the cache find by itself how many computations run at once: from this number up
            /// to [`max_computations`](Self::max_computations). The number begins here, grows while
            /// computations queue, and falls when they take a third longer than usual: the
            /// origin has as much to do as it can bear. Set it to what the origin surely bears from
            /// this process, for example its workers divided by the processes; 4 is a good start
            /// where that is not known. Where the number is too low, computations queue; see
            /// [`Stats::computation_limit`](crate::Stats::computation_limit).
            ///
            /// Times count from the place of a computation to its result; computations that fail
            /// do not count, those that time out do. A slow kind of work in a cache of fast ones
            /// looks like an overloaded origin: give it a cache of its own. Unset by default: then
            /// `max_computations` run.
            min_computations: usize as "plain", not_zero "the fixed number of `max_computations`";
            /// Sets how many background refreshes may run at once. Only a refresh that
            /// starts a computation counts. Further ones are left to the next reader.
            /// Defaults to 256, or to `max_computations` if that is less.
            max_refreshes: usize as "plain" = |it| it.max_computations().min(256), not_zero "256";
            /// Sets how many invalidated tags the process remembers. At the bound
            /// the oldest eighth of the records is dropped, after every local entry
            /// was checked against them: no unrelated entry ends because of that. A
            /// computation that began before a dropped record, and whose tags are
            /// known only with its result, counts as invalidated: its callers get
            /// the result, and it is not stored. A record takes about 300 bytes at
            /// most: a tag of more than 128 bytes is kept as a hash.
            ///
            /// A task in the background makes room from three quarters of the bound
            /// on. When it does not keep up, the invalidation that reaches the bound
            /// checks the local entries itself: about a second for a million of
            /// them on a free core. Defaults to 100,000.
            max_logged_tags: usize as "plain" = |_| 100_000, not_zero "100,000";
            /// Sets how many keys one call of a batch loader gets at most; more keys are several
            /// calls, side by side. See [`Stampede::get_many`]. Defaults to 1000.
            max_batch: usize as "plain" = |_| 1000, not_zero "1000";
            /// Sets for how long the first of several callers of
            /// [`Cache::get`](crate::Cache::get) that miss waits for the others, so that one call
            /// of the loader serves them all. It has an effect on caches with a batch loader
            /// ([`Cache::batched`](crate::Cache::batched)) alone, and delays every miss there. A
            /// few milliseconds are a good start. Defaults to 0: a single caller waits for no
            /// other.
            batch_window: Duration as "duration" = |_| Duration::ZERO;
            /// Sets whether the cache takes part from its start; see [`Mode`]. A file says `"on"`,
            /// `"observe"` or `"off"`. [`set_mode`](Stampede::set_mode) changes it later. Defaults to
            /// [`Mode::On`].
            mode: Mode as "plain";
        }
    };
}
pub(crate) use each_setting;

macro_rules! settings {
    ($(
        $(#[$doc:meta])*
        $name:ident: $type:ty as $reader:literal $(= $default:expr)? $(, not_zero $unset:literal)?;
    )+) => {
        /// The settings of a cache as a configuration file has them; see
        /// [`Builder`](crate::Builder) for what each means. All are optional, also `ttl`, which
        /// [`Builder::build`](crate::Builder::build) asks for. An unknown name is refused.
        ///
        /// A duration is a text with units: `"60s"`, `"1h 30m"`, `"250ms"`. A size is a number of
        /// bytes or a text: `"64MiB"`, `"1GiB"`, `"500kB"`. The table `http` has the settings of
        /// HTTP layers: [`http_layer`](crate::Stampede::http_layer) begins with them.
        ///
        /// # Examples
        ///
        /// ```
        /// use tower_stampede::{Settings, Stampede};
        ///
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let file = r#"{ "ttl": "60s", "stale_for": "5m", "max_bytes": "256MiB" }"#;
        /// let mut json = serde_json::Deserializer::from_str(file);
        /// let settings = Settings::read("caches.users", &mut json)?;
        /// let users: Stampede<String> = settings.builder("users").build()?;
        ///
        /// let mut json = serde_json::Deserializer::from_str(r#"{ "ttl": "60 parsecs" }"#);
        /// let error = Settings::read("caches.users", &mut json).unwrap_err();
        /// assert!(error.to_string().starts_with("`caches.users.ttl`: "));
        ///
        /// let mut json = serde_json::Deserializer::from_str(r#"{ "ttl": "0s" }"#);
        /// let settings = Settings::read("caches.users", &mut json)?;
        /// let error = settings.builder::<String>("users").build().unwrap_err();
        /// assert!(error.to_string().starts_with("`caches.users.ttl`: "));
        /// # Ok(()) }
        /// ```
        #[derive(Clone, Debug, Default, PartialEq)]
        #[cfg_attr(
            feature = "serde",
            derive(serde::Deserialize),
            serde(default, deny_unknown_fields)
        )]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each is a setting of the builder with the same name")]
        pub struct Settings {
            /// Where the settings stand in a file; errors name it.
            #[cfg_attr(feature = "serde", serde(skip))]
            pub(crate) path: String,
            pub(crate) origin_only: Option<bool>,
            pub(crate) compute_after_wait: Option<bool>,
            #[cfg_attr(feature = "serde", serde(deserialize_with = "status_ttl"))]
            pub(crate) status_ttl: StatusTtl,
            /// What the HTTP layers of the cache begin with.
            #[cfg(feature = "http")]
            #[cfg_attr(docsrs, doc(cfg(feature = "http")))]
            pub(crate) http: HttpSettings,
            $(
                #[cfg_attr(feature = "serde", serde(deserialize_with = $reader))]
                pub(crate) $name: Option<$type>,
            )+
        }

        impl Settings {
            $($(
                pub(crate) fn $name(&self) -> $type {
                    let default: fn(&Self) -> $type = $default;
                    self.$name.unwrap_or_else(|| default(self))
                }
            )?)+

            /// Returns the first setting that is 0 and must not be: its name, what is wrong, and
            /// what the cache does if it is left unset.
            pub(crate) fn zero(&self) -> Option<(SettingNames, &'static str, &'static str)> {
                $($(
                    if self.$name == Some(<$type as Zero>::ZERO) {
                        return Some((&[stringify!($name)], <$type as Zero>::RULE, $unset));
                    }
                )?)+
                None
            }
        }

        /// The settings that must not be 0, and what the cache does if they are left unset.
        #[cfg(test)]
        const NOT_ZERO: &[(&str, &str)] = &[$($((stringify!($name), $unset),)?)+];
    };
}

each_setting!(settings);

/// Names of settings, for an error.
pub(crate) type SettingNames = &'static [&'static str];

/// Lifetimes by status.
pub(crate) type StatusTtl = BTreeMap<u16, Duration>;

/// A number or a time that may be 0.
trait Zero {
    const ZERO: Self;
    /// What an error says of 0.
    const RULE: &'static str;
}

impl Zero for Duration {
    const ZERO: Self = Self::ZERO;
    const RULE: &'static str = "is 0 s and must be longer";
}

macro_rules! numbers {
    ($($type:ty)+) => {$(
        impl Zero for $type {
            const ZERO: Self = 0;
            const RULE: &'static str = "is 0 and must be at least 1";
        }
    )+};
}

numbers!(u32 u64 usize);

/// Returns the rule that one of the lifetimes breaks.
pub(crate) fn refused_status(lifetimes: &StatusTtl) -> Option<String> {
    lifetimes.iter().find_map(|(status, ttl)| refused_lifetime(*status, *ttl))
}

/// Returns the rule that a lifetime of `status` breaks, if it breaks one.
fn refused_lifetime(status: u16, ttl: Duration) -> Option<String> {
    match status {
        400..600 if ttl.is_zero() => Some(format!(
            "the lifetime of {status} is 0 s; leave it out: an error without a lifetime goes to \
             the clients that wait for it, and is not stored"
        )),
        428 | 429 | 431 | 511 => Some(format!(
            "{status} is never stored (RFC 6585); leave it out: clients that wait for the same \
             response get it"
        )),
        400..600 => None,
        _ => Some(format!(
            "{status} is no error; name a status from 400 to 599, and set `ttl` for the others"
        )),
    }
}

fn saturated(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Settings {
    /// Returns the mode that the settings name, and [`Mode::On`] where they name none. Of the
    /// settings in a file, it is the one that a living cache can take: pass it to
    /// [`set_mode`](crate::Stampede::set_mode) when the file has changed. The others need a new
    /// handle.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_stampede::{Mode, Settings, Stampede};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let read = |file| {
    ///     Settings::read("caches.users", &mut serde_json::Deserializer::from_str(file))
    /// };
    /// let users: Stampede<String> = read(r#"{ "ttl": "60s" }"#)?.builder("users").build()?;
    ///
    /// // The file was changed, and is read again.
    /// users.set_mode(read(r#"{ "ttl": "60s", "mode": "off" }"#)?.mode());
    /// assert_eq!(users.mode(), Mode::Off);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or_default()
    }

    /// Bounds the time-outs to a hundred years: clocks cannot count much further.
    pub(crate) fn with_bounded_times(mut self) -> Self {
        const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        self.wait_timeout = Some(self.wait_timeout().min(LONGEST));
        self.compute_timeout = Some(self.compute_timeout().min(LONGEST));
        self
    }
}

/// Which entry makes room at the bound on memory.
///
/// A new entry is always taken, whatever the policy, but for [`TinyLfu`](Self::TinyLfu).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Eviction {
    /// As [`S3Fifo`](Self::S3Fifo), and an entry that was used again stays the longer the longer
    /// its computation took. This saves computing time, not misses. Entries that were used only
    /// in their first moments take at most a sixth of the store for this. A client that comes
    /// back to slow keys of its own can take more, so [`S3Fifo`](Self::S3Fifo) is the safer choice
    /// where strangers choose what is computed.
    #[default]
    ByPrice,
    /// S3-FIFO (Yang and others, SOSP 2023): a key that is asked for once leaves soon, and
    /// a scan takes a tenth of the bound from the others, or 64 entries, up to half of the bound,
    /// where that is more.
    S3Fifo,
    /// The least recently used one, by moka.
    #[cfg(feature = "moka")]
    Lru,
    /// The least frequently used one, by moka, and a new entry is refused while it is less
    /// popular than those held: good against scans, but every key that is refused is
    /// computed again at the next request.
    #[cfg(feature = "moka")]
    TinyLfu,
}
