//! The configuration of one HTTP layer, as its settings make it.

use std::time::Duration;

use http::header::{self, HeaderName};

use crate::http::rules::cookies::IgnoredCookies;
use crate::http::rules::field_names::FieldNames;
use crate::key::Tag;
use crate::settings::layer::{
    SetCookie, answers, bodies, each_http_setting, sharing, times, writes,
};
use crate::settings::StatusTtl;

/// Returns whether two configurations agree in a setting, or need not. Those that are no field of the
/// same name are compared by hand.
macro_rules! agree {
    ($one:ident $other:ident $name:ident [] [$default:expr]) => {
        $one.$name == $other.$name
    };
    ($one:ident $other:ident $name:ident [$($alike:ident)?] [$($default:expr)?]) => {
        true
    };
}

macro_rules! config {
    (; $(
        $(#[$doc:meta])*
        $name:ident: $type:ty as $reader:tt $([$alike:ident])? $(= $default:expr)? $(, check $check:path)?;
    )+) => {
        /// The configuration of one HTTP layer: a field for each setting that has a default in the
        /// table, and what the others come to.
        #[derive(Clone, Debug)]
        pub(crate) struct HttpConfig {
            $($(
                #[doc = concat!("By default ", stringify!($default), ".")]
                pub(crate) $name: $type,
            )?)+
            /// Lifetime of responses that say nothing; `None`: they are not stored.
            pub(crate) ttl: Option<Duration>,
            /// Lifetimes of errors that say nothing, by status.
            pub(crate) status_ttl: StatusTtl,
            /// Whether cookies are removed: they select nothing, and are no credentials.
            pub(crate) ignore_cookies: bool,
            /// Cookies that the service does not see.
            pub(crate) ignored_cookies: IgnoredCookies,
            /// Fields with credentials besides `Authorization` and `Cookie`.
            pub(crate) credential_headers: FieldNames,
            /// Whether `Authorization` and `Cookie` are credentials: each is one unless
            /// the application keys it.
            pub(crate) authorization_is_credential: bool,
            pub(crate) cookie_is_credential: bool,
            /// Fields that are no credentials beside an identity.
            pub(crate) covered: FieldNames,
            /// Fields that are part of the key when present: they can change where a
            /// request leads without changing its URI.
            pub(crate) keyed_headers: FieldNames,
            /// Fields that govern instead of `Cache-Control` (RFC 9213), the first
            /// before the others.
            pub(crate) targeted: Vec<HeaderName>,
            /// Fields that govern before these, and are removed from what clients get.
            pub(crate) lifetime_fields: Vec<HeaderName>,
            /// Fields with tags; they are removed from what clients get.
            pub(crate) tag_fields: Vec<HeaderName>,
            /// Parameters that the handler sees; `None`: all.
            pub(crate) query: Option<Vec<String>>,
            /// Fields treated as if every response named them in `Vary`.
            pub(crate) vary: Vec<HeaderName>,
            /// Fields that a background refresh sends besides those that were keyed;
            /// `None`: the application has not said.
            pub(crate) refresh_headers: Option<Vec<HeaderName>>,
            /// Fields that were taken out of the key. A background refresh sends them.
            pub(crate) unkeyed_headers: Vec<HeaderName>,
            /// Tags of every response.
            pub(crate) tags: Vec<Tag>,
            pub(crate) scope: Option<String>,
            /// The scheme of requests that do not say it themselves, in lower case.
            pub(crate) scheme: String,
            /// Our name in `Cache-Status`; `None`: the field is not sent.
            pub(crate) cache_status: Option<String>,
        }

        impl Default for HttpConfig {
            fn default() -> Self {
                Self {
                    $($($name: $default,)?)+
                    ttl: None,
                    status_ttl: StatusTtl::new(),
                    ignore_cookies: false,
                    ignored_cookies: IgnoredCookies::default(),
                    credential_headers: FieldNames::of(CREDENTIAL_HEADERS),
                    authorization_is_credential: true,
                    cookie_is_credential: true,
                    covered: FieldNames::none(),
                    keyed_headers: FieldNames::of(KEYED_HEADERS),
                    targeted: vec![HeaderName::from_static("cdn-cache-control")],
                    lifetime_fields: Vec::new(),
                    tag_fields: Vec::new(),
                    query: None,
                    vary: Vec::new(),
                    refresh_headers: None,
                    unkeyed_headers: Vec::new(),
                    tags: Vec::new(),
                    scope: None,
                    scheme: "http".into(),
                    cache_status: Some("tower-stampede".into()),
                }
            }
        }

        impl HttpConfig {
            /// Returns whether two layers agree in all settings of the table that have a default, and
            /// say which clients get which responses, and what ends them.
            fn agrees_with(&self, other: &Self) -> bool {
                let one = self;
                true $(&& agree!(one other $name [$($alike)?] [$($default)?]))+
            }
        }
    };
}

each_http_setting!(config);

impl HttpConfig {
    /// Takes a field out of the credentials.
    pub(crate) fn exempt(&mut self, name: &HeaderName) {
        match *name {
            header::AUTHORIZATION => self.authorization_is_credential = false,
            header::COOKIE => self.cookie_is_credential = false,
            _ => {
                self.credential_headers.exempt(name.as_str());
            }
        }
    }

    /// Takes the fields out of the credentials that the application keys:
    /// clients that differ in them never share in any case. What is keyed by
    /// default was not the application's word, and is no credential.
    pub(crate) fn exempt_keyed(&mut self) {
        let keyed: Vec<_> = self.vary.iter().chain(self.keyed_headers.iter()).cloned().collect();
        keyed.iter().for_each(|name| self.exempt(name));
    }

    /// Takes the fields out of the credentials that the identity covers.
    pub(crate) fn exempt_covered(&mut self) {
        self.authorization_is_credential &= !self.covered.contains(&header::AUTHORIZATION);
        self.cookie_is_credential &= !self.covered.contains(&header::COOKIE);
        self.credential_headers.exempt_all(&self.covered);
    }

    /// Returns whether two layers share the same responses among the same clients. What a refresh
    /// carries and what clients are told may differ.
    pub(crate) fn shares_like(&self, other: &Self) -> bool {
        self.agrees_with(other)
            && self.ttl.is_some() == other.ttl.is_some()
            && self.status_ttl == other.status_ttl
            && self.ignore_cookies == other.ignore_cookies
            && self.ignored_cookies == other.ignored_cookies
            && self.credential_headers == other.credential_headers
            && self.authorization_is_credential == other.authorization_is_credential
            && self.cookie_is_credential == other.cookie_is_credential
            && self.keyed_headers == other.keyed_headers
            && self.targeted == other.targeted
            && self.lifetime_fields == other.lifetime_fields
            && self.tag_fields == other.tag_fields
            && self.query == other.query
            && self.vary == other.vary
            && self.tags == other.tags
            && self.scope == other.scope
            && self.scheme == other.scheme
    }

    /// Returns whether the settings make a field part of the key.
    pub(crate) fn keys(&self, name: &HeaderName) -> bool {
        self.keyed_headers.contains(name) || self.vary.contains(name)
    }

    /// Returns whether a field carries credentials.
    pub(crate) fn is_credential(&self, name: &HeaderName) -> bool {
        match *name {
            header::AUTHORIZATION => self.authorization_is_credential,
            header::COOKIE => self.cookie_is_credential && !self.ignore_cookies,
            _ => self.credential_headers.contains(name),
        }
    }
}

/// What [`HttpLayer::CREDENTIAL_HEADERS`](crate::HttpLayer::CREDENTIAL_HEADERS)
/// publishes.
pub(super) const CREDENTIAL_HEADERS: &[&str] = &[
    // Keys and tokens that clients send.
    "api-key",
    "apikey",
    "authentication",
    "dpop",
    "job-token",
    "ocp-apim-subscription-key",
    "private-token",
    "proxy-authorization",
    "token",
    "x-access-token",
    "x-amz-security-token",
    "x-api-key",
    "x-api-token",
    "x-apikey",
    "x-auth",
    "x-auth-*",
    "x-auth0-*",
    "x-authorization",
    "x-functions-key",
    "x-gitlab-token",
    "x-goog-api-key",
    "x-goog-iam-authorization-token",
    "x-id-token",
    "x-jwt",
    "x-jwt-*",
    "x-original-authorization",
    "x-parse-session-token",
    "x-rapidapi-key",
    "x-serverless-authorization",
    "x-session",
    "x-session-id",
    "x-session-token",
    "x-shopify-access-token",
    "x-token",
    "x-vault-token",
    // Users, as an authenticating proxy names them.
    "cf-access-*",
    "impersonate-*",
    "oidc-*",
    "remote-email",
    "remote-groups",
    "remote-name",
    "remote-user",
    "tailscale-user-*",
    "x-amzn-lattice-identity",
    "x-amzn-oidc-*",
    "x-apigateway-api-userinfo",
    "x-appengine-user-email",
    "x-appengine-user-id",
    "x-appengine-user-nickname",
    "x-authenticated-*",
    "x-authentik-*",
    "x-consumer-*",
    "x-credential-*",
    "x-endpoint-api-userinfo",
    "x-forwarded-access-token",
    "x-forwarded-authorization",
    "x-forwarded-email",
    "x-forwarded-groups",
    "x-forwarded-preferred-username",
    "x-forwarded-user",
    "x-goog-authenticated-user-*",
    "x-goog-iap-*",
    "x-hasura-*",
    "x-ms-client-principal*",
    "x-ms-token-*",
    "x-pomerium-*",
    "x-remote-extra-*",
    "x-remote-group",
    "x-remote-user",
    "x-shib-*",
    "x-userinfo",
    "x-vouch-*",
    "x-webauth-*",
    // Users, accounts and tenants, as applications name them.
    "x-account-id",
    "x-customer-id",
    "x-org-id",
    "x-organization-id",
    "x-principal",
    "x-scope-orgid",
    "x-tenant",
    "x-tenant-id",
    "x-user",
    "x-user-email",
    "x-user-id",
    "x-user-name",
    "x-user-roles",
    "x-username",
    "x-workspace-id",
    // Certificates of clients.
    "cf-cert-*",
    "client-cert",
    "client-cert-chain",
    "ssl-client-*",
    "x-amzn-mtls-*",
    "x-arr-clientcert",
    "x-client-cert*",
    "x-forwarded-client-cert",
    "x-forwarded-tls-client-cert*",
    "x-ssl-cert*",
    "x-ssl-client-*",
    "x-tls-client-*",
];

/// What [`HttpLayer::KEYED_HEADERS`](crate::HttpLayer::KEYED_HEADERS) publishes.
pub(super) const KEYED_HEADERS: &[&str] = &[
    "cf-visitor",
    "cloudfront-forwarded-proto",
    "fastly-ssl",
    "forwarded",
    "front-end-https",
    "https",
    "surrogate-capability",
    "wl-proxy-ssl",
    "x-accel-mapping",
    "x-appengine-https",
    "x-arr-ssl",
    "x-envoy-original-path",
    "x-forwarded-host",
    "x-forwarded-https",
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-protocol",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-forwarded-uri",
    "x-host",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
    "x-scheme",
    "x-script-name",
    "x-sendfile-type",
    "x-url-scheme",
];
