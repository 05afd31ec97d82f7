//! Settings by the names of request fields: what selects a response, what is a
//! credential, and what a background refresh carries.

use http::Extensions;
use http::header::{self, HeaderName};

use crate::http::config;
use crate::http::layer::{HttpLayer, field_names};
use crate::http::rules::field_names::FieldNames;

impl HttpLayer {
    /// Adds request fields that select a variant as if every response named
    /// them in `Vary`. Defaults to none.
    ///
    /// A field that is named here no longer counts as a credential: requests
    /// that differ in it never share. That holds for `Authorization` too, which
    /// goes beyond RFC 9111, 3.5: a token that was revoked is answered from the
    /// cache until the response expires.
    ///
    /// # Panics
    ///
    /// If a name is no field name.
    #[track_caller]
    pub fn vary<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = field_names("vary", names);
        self.change(move |rules| rules.config.vary.extend_from_slice(&names))
    }

    /// The request fields that are part of the key unless
    /// [`replace_keyed_headers`](Self::replace_keyed_headers) says otherwise:
    /// they can change where a request leads without changing its URI.
    /// [What is cached](crate::guide::what_is_cached) lists them.
    pub const KEYED_HEADERS: &'static [&'static str] = config::KEYED_HEADERS;

    /// Adds request fields that are part of the key when a request has them,
    /// besides [`KEYED_HEADERS`](Self::KEYED_HEADERS).
    ///
    /// A field that is named here no longer counts as a credential: requests
    /// that differ in it never share. See [`vary`](Self::vary) for
    /// `Authorization`.
    ///
    /// # Panics
    ///
    /// If a name is no field name.
    #[track_caller]
    pub fn keyed_headers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = field_names("keyed_headers", names);
        self.change(move |rules| {
            for name in &names {
                rules.config.keyed_headers.add(name.as_str());
            }
        })
    }

    /// Replaces the request fields that are part of the key, those of
    /// [`KEYED_HEADERS`](Self::KEYED_HEADERS) included. Leave one of them out
    /// only where a proxy that you trust removes or writes it: else one client
    /// can choose the responses of all others.
    ///
    /// A background refresh does not carry a field that is left out. Where the
    /// service needs it, such as `X-Forwarded-Proto`, call
    /// [`not_keyed`](Self::not_keyed) instead, or name it in
    /// [`refresh_headers`](Self::refresh_headers).
    ///
    /// # Panics
    ///
    /// If a name is no field name.
    #[track_caller]
    pub fn replace_keyed_headers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let layer = self.change(|rules| rules.config.keyed_headers = FieldNames::none());
        layer.keyed_headers(names)
    }

    /// Takes one field out of the key. A background refresh still carries it.
    ///
    /// For a field that a proxy you trust writes, and by which the answer does
    /// not change: `Forwarded` often has the client's address, so that each
    /// client has keys of its own.
    ///
    /// # Panics
    ///
    /// If `name` is no field name.
    #[track_caller]
    pub fn not_keyed(self, name: &str) -> Self {
        let names = field_names("not_keyed", [name]);
        self.change(move |rules| {
            for name in &names {
                rules.config.keyed_headers.exempt(name.as_str());
                rules.config.unkeyed_headers.push(name.clone());
            }
        })
    }

    /// The request fields that count as credentials besides `Authorization` and
    /// `Cookie`: names, and patterns that end in `*`. They identify the
    /// client, its user or its account, as clients, gateways and authenticating
    /// proxies write it.
    ///
    /// The response to a request with one of them is stored and shared only
    /// where it has an explicit lifetime of the origin's own and says `public`
    /// or `s-maxage`, or where [`CacheFor::public`](crate::CacheFor::public)
    /// permits it. Otherwise each such request is answered by the service, and
    /// `Cache-Status` names the field: `detail=credentials:x-forwarded-user`.
    /// [What is cached](crate::guide::what_is_cached) lists them.
    pub const CREDENTIAL_HEADERS: &'static [&'static str] = config::CREDENTIAL_HEADERS;

    /// Adds request fields that count as credentials, besides
    /// [`CREDENTIAL_HEADERS`](Self::CREDENTIAL_HEADERS): names, or patterns like
    /// `x-acme-user-*`.
    ///
    /// # Panics
    ///
    /// If one is neither a field name nor a pattern.
    #[track_caller]
    pub fn credential_headers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        for text in &names {
            let is_one = FieldNames::none().add(text);
            assert!(is_one, "`credential_headers`: `{text}` is no field name and no pattern");
        }
        self.change(move |rules| {
            for text in &names {
                rules.config.credential_headers.add(text);
                rules.config.cookie_is_credential |= text.eq_ignore_ascii_case("cookie");
            }
        })
    }

    /// Replaces the request fields that count as credentials, those of
    /// [`CREDENTIAL_HEADERS`](Self::CREDENTIAL_HEADERS) included. `Authorization`
    /// and `Cookie` stay credentials. To take a single field out, call
    /// [`not_a_credential`](Self::not_a_credential).
    ///
    /// # Panics
    ///
    /// If one is neither a field name nor a pattern.
    #[track_caller]
    pub fn replace_credential_headers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let layer = self.change(|rules| {
            rules.config.credential_headers = FieldNames::none();
            rules.config.cookie_is_credential = true;
        });
        layer.credential_headers(names)
    }

    /// Takes a request field, or all that a pattern like `x-ssl-*` matches, out
    /// of the credentials: requests with different values share one response.
    ///
    /// For a field that every request carries and that does not say which user
    /// asks. Service meshes send `X-Forwarded-Client-Cert` with the certificate
    /// of the calling workload, for example. A background refresh does not carry
    /// the field: if the service insists on it, name it in
    /// [`refresh_headers`](Self::refresh_headers), too.
    ///
    /// # Panics
    ///
    /// If `name` is neither a field name nor a pattern, or is `Authorization`,
    /// which always counts (RFC 9111, 3.5): name it in [`vary`](Self::vary) to
    /// keep its users apart.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().not_a_credential("x-forwarded-client-cert");
    /// ```
    #[track_caller]
    pub fn not_a_credential(self, name: &str) -> Self {
        match HeaderName::try_from(name) {
            Ok(header::AUTHORIZATION) => panic!(
                "`not_a_credential`: `Authorization` always counts (RFC 9111, 3.5); name it in \
                 `vary` to keep its users apart"
            ),
            Ok(header::COOKIE) => self.change(|rules| rules.config.exempt(&header::COOKIE)),
            _ if FieldNames::none().exempt(name) => self.change(|rules| {
                rules.config.credential_headers.exempt(name);
            }),
            _ => panic!("`not_a_credential`: `{name}` is no field name and no pattern"),
        }
    }

    /// Adds request fields that a background refresh carries.
    ///
    /// A refresh is sent for all clients, so it carries of the request that
    /// happened to trigger it only what selects the response: `Host`, the fields
    /// in `Vary`, in [`vary`](Self::vary) and in
    /// [`keyed_headers`](Self::keyed_headers), and credentials where the stored
    /// response was computed for a request with credentials, by permission. A
    /// layer with rules ([`key`](Self::key), [`identity`](Self::identity)) cannot
    /// see which fields they read: its refreshes carry all fields but
    /// credentials, until this setting names those that matter, or none
    /// (`refresh_headers([])`).
    ///
    /// Name here what the service needs besides, `traceparent` for example: a
    /// service that reads `Accept` or `User-Agent` without naming it in `Vary`
    /// answers the refresh as if the field were missing, and that response
    /// replaces the stored one. Name no field that identifies a user. Defaults
    /// to none.
    ///
    /// # Panics
    ///
    /// If a name is no field name.
    #[track_caller]
    pub fn refresh_headers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names = field_names("refresh_headers", names);
        self.change(move |rules| {
            rules.config.refresh_headers.get_or_insert_default().extend_from_slice(&names);
        })
    }

    /// Removes extensions of type `T` from requests that are sent as background
    /// refreshes: a user that a layer further out has found, for example.
    ///
    /// All other extensions stay, for axum keeps path parameters and state
    /// there. Name none that a rule of [`key`](Self::key) or
    /// [`identity`](Self::identity) reads: the service would answer the refresh
    /// without it, and that response would stand under the user's key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_stampede::{HttpStampede, Stampede};
    /// #[derive(Clone)]
    /// struct RequestId(u64);
    ///
    /// let cache: HttpStampede = Stampede::in_memory(Duration::from_secs(60));
    /// let layer = cache.http_layer().refresh_without_extension::<RequestId>();
    /// ```
    pub fn refresh_without_extension<T: Clone + Send + Sync + 'static>(self) -> Self {
        self.change(|rules| rules.forgets.push(forget::<T>))
    }
}

fn forget<T: Send + Sync + 'static>(extensions: &mut Extensions) {
    extensions.remove::<T>();
}
