//! Settings by which an origin steers the cache, and what the cache adds to its responses.

use crate::cache::handle::Invalidation;
use crate::http::layer::{HttpLayer, HttpStampede, field_names};
use crate::http::rules::cookies::CookieName;
use crate::http::rules::steering::separates_by_comma;
use crate::http::rules::target::path_tag;

impl HttpStampede {
    /// Makes every response of `path` stale now, whatever its query, host and variant, in
    /// layers without a scope: a soft purge; see
    /// [`mark_tag_stale`](crate::Stampede::mark_tag_stale). The path is compared byte for byte
    /// with the one received.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// cache.mark_path_stale("/report").await;
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn mark_path_stale(&self, path: &str) -> Invalidation {
        self.0.mark_tags_stale(&[path_tag(None, path)]).await
    }

    /// Like [`mark_path_stale`](Self::mark_path_stale), in layers of `scope`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once polled, it is done, here and in the remote.
    pub async fn mark_path_stale_in(&self, scope: &str, path: &str) -> Invalidation {
        self.0.mark_tags_stale(&[path_tag(Some(scope), path)]).await
    }
}

impl HttpLayer {
    /// Sets the response fields whose members are tags of the response, in the order in which
    /// they are read: `Surrogate-Key` and `xkey`, with blanks between the tags, `Cache-Tag` and
    /// `Edge-Cache-Tag`, with commas. Defaults to none.
    ///
    /// The tags are those of [`CacheFor::tag`](crate::CacheFor::tag): text, compared byte for
    /// byte, the same in all hosts and scopes. They are ended by
    /// [`invalidate_tag`](crate::Stampede::invalidate_tag) and
    /// [`mark_tag_stale`](crate::Stampede::mark_tag_stale), and by no request of a client. The
    /// field is removed from what clients get, also where the response is not stored. A response
    /// with more than [`max_tags`](Self::max_tags) tags, or with one of more than 1024 bytes, is
    /// not stored.
    ///
    /// # Panics
    ///
    /// If a name is none of these four.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().tags_from(["surrogate-key", "cache-tag"]);
    /// ```
    #[track_caller]
    pub fn tags_from<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = field_names("tags_from", names);
        if let Some(name) = names.iter().find(|name| separates_by_comma(name).is_none()) {
            panic!(
                "`tags_from`: `{name}` is not one of `surrogate-key`, `xkey`, `cache-tag` and \
                 `edge-cache-tag`"
            );
        }
        self.change(move |rules| rules.config.tag_fields = names)
    }

    /// Sets response fields that govern before
    /// [`targeted_fields`](Self::targeted_fields) and before `Cache-Control`, in the order of
    /// their priority, and that are removed from what clients get. Defaults to none.
    ///
    /// The first that is there and can be read governs alone. `X-Accel-Expires` is a number of
    /// seconds, `@` and a Unix time in seconds, or `0`: not stored. Beside it the stale windows
    /// of `Cache-Control` still count, as in nginx. Any other field, `Surrogate-Control` for
    /// one, is read as a targeted field (RFC 9213).
    ///
    /// A 304 of the service that does not repeat such a field leaves the lifetime to the
    /// fields that are passed on.
    ///
    /// # Panics
    ///
    /// If a name is no field name, or `Cache-Control` or `Expires`: those are read in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().lifetime_from(["surrogate-control", "x-accel-expires"]);
    /// ```
    #[track_caller]
    pub fn lifetime_from<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = field_names("lifetime_from", names);
        let plain = ["cache-control", "expires"];
        if let Some(name) = names.iter().find(|name| plain.contains(&name.as_str())) {
            panic!("`lifetime_from`: `{name}` is read in any case, and clients need it");
        }
        self.change(move |rules| rules.config.lifetime_fields = names)
    }

    /// Sets whether `Cache-Groups` and `Cache-Group-Invalidation` count (RFC 9875). Both are
    /// passed on to clients. Defaults to true.
    ///
    /// `Cache-Groups` names groups that a response belongs to: tags within one origin (scheme,
    /// host and port) and one [`scope`](Self::scope). They count as tags for
    /// [`max_tags`](Self::max_tags). `Cache-Group-Invalidation` in the response to a POST or to
    /// another method that is not safe ends these groups, if the response is no error. In the
    /// response to a safe method it is ignored. A field with more than `max_tags` groups ends
    /// all groups of the origin.
    ///
    /// Where parties that do not trust each other answer under one host, say `false`: each of
    /// them could end the responses of the others.
    pub fn cache_groups(self, counts: bool) -> Self {
        self.change(move |rules| rules.config.cache_groups = counts)
    }

    /// Adds names of cookies that do not count: `_ga`, or `_ga_*` for all names that begin so.
    /// Letters count in their case. Defaults to none.
    ///
    /// Such cookies are taken out of GET and HEAD requests before these are keyed, judged and
    /// forwarded. All other cookies stay as they are, select responses with `Vary: Cookie`, and
    /// are credentials. Other methods are forwarded with all cookies. What stands before the
    /// first `=` between two semicolons is a name, without the blanks around it; what has no
    /// `=` has no name.
    ///
    /// # Panics
    ///
    /// If a name is empty, has a `*` elsewhere than at its end or is nothing but that, or has a
    /// character that no name of a cookie has. To ignore all cookies, say
    /// [`ignore_cookies`](Self::ignore_cookies).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().ignore_cookies_named(["_ga", "_gid", "_ga_*"]);
    /// ```
    #[track_caller]
    pub fn ignore_cookies_named<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let read = |name: &str| {
            CookieName::parse(name).unwrap_or_else(|| {
                panic!(
                    "`ignore_cookies_named`: `{name}` is no name of a cookie, nor the beginning \
                     of names before a `*`"
                )
            })
        };
        let mut read_names = Vec::new();
        for name in names {
            read_names.push(read(name));
        }
        self.change(move |rules| rules.config.ignored_cookies.add(&read_names))
    }

    /// Sets whether a 200 that is stored without an `ETag` and without a `Last-Modified` gets a
    /// strong `ETag`: a hash of its body and its `Content-Encoding`. Defaults to false.
    ///
    /// So clients get a 304 in place of a body that they have. The cache makes the tag: the service
    /// never sees it in a request of the cache's own, and the response is not revalidated by
    /// it. A response with a `Last-Modified` gets none: its clients get a 304 already, by the
    /// service's own word, and a tag would take precedence over that. `no-transform` changes
    /// nothing: the body stays as it is.
    ///
    /// The tag is known once the body is complete. The client whose request was forwarded, and
    /// clients that read the body while it arrives, get none.
    ///
    /// # Cost
    ///
    /// One hash per response that is stored, about a millisecond for each MiB; none at a hit.
    pub fn make_etags(self, make_etags: bool) -> Self {
        self.change(move |rules| rules.config.make_etags = make_etags)
    }
}
