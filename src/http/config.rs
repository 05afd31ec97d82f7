//! The configuration of one HTTP layer, as its settings make it.

use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderName};

use crate::http::rules::cookies::IgnoredCookies;
use crate::http::rules::field_names::FieldNames;
use crate::key::Tag;
use crate::settings::StatusTtl;
use crate::settings::layer::{SetCookie, StreamRule, each_http_setting};

/// Returns whether two configurations agree in a field, or need not.
macro_rules! agree {
    ($one:ident $other:ident $name:ident) => {
        $one.$name == $other.$name
    };
    ($one:ident $other:ident $name:ident alike) => {
        true
    };
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr $(, $alike:ident)?;)+) => {
        /// The configuration of one HTTP layer.
        #[derive(Clone, Debug)]
        pub(crate) struct HttpConfig {
            $($(#[$doc])* pub(crate) $name: $type,)+
        }

        impl Default for HttpConfig {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl HttpConfig {
            /// Returns whether two layers share the same responses among the same clients: whether
            /// they agree in all that is not `alike`.
            pub(crate) fn shares_like(&self, other: &Self) -> bool {
                let one = self;
                one.ttl.is_some() == other.ttl.is_some() $(&& agree!(one other $name $($alike)?))+
            }
        }
    };
}

/// Makes a field of each setting of the table that has a default, and those that the others come to.
macro_rules! config {
    ($($heading:literal {$(
        $(#[$doc:meta])*
        $name:ident: $type:ty as $reader:tt $(= $default:expr $(, $alike:ident)?)? $(, check $check:path)?;
    )+})+) => {
        fields! {
            $($($($name: $type = $default $(, $alike)?;)?)+)+
            /// Lifetime of responses that say nothing; `None`: they are not stored. Layers with
            /// different ones share.
            ttl: Option<Duration> = None, alike;
            /// Lifetimes of errors that say nothing, by status.
            status_ttl: StatusTtl = StatusTtl::new();
            /// Whether cookies are removed: they select nothing, and are no credentials.
            ignore_cookies: bool = false;
            /// Cookies that the service does not see.
            ignored_cookies: IgnoredCookies = IgnoredCookies::default();
            /// Fields with credentials besides `Authorization` and `Cookie`.
            credential_headers: FieldNames = FieldNames::of(CREDENTIAL_HEADERS);
            /// Whether `Authorization` and `Cookie` are credentials: each is one unless
            /// the application keys it.
            authorization_is_credential: bool = true;
            cookie_is_credential: bool = true;
            /// Fields that are no credentials beside an identity.
            covered: FieldNames = FieldNames::none();
            /// Fields that are part of the key when present: they can change where a
            /// request leads without changing its URI.
            keyed_headers: FieldNames = FieldNames::of(KEYED_HEADERS);
            /// Fields that govern instead of `Cache-Control` (RFC 9213), the first
            /// before the others.
            targeted: Vec<HeaderName> = vec![HeaderName::from_static("cdn-cache-control")];
            /// Fields that govern before these, and are removed from what clients get.
            lifetime_fields: Vec<HeaderName> = Vec::new();
            /// Fields with tags; they are removed from what clients get.
            tag_fields: Vec<HeaderName> = Vec::new();
            /// Parameters that the handler sees; `None`: all.
            query: Option<Vec<String>> = None;
            /// Fields treated as if every response named them in `Vary`.
            vary: Vec<HeaderName> = Vec::new();
            /// Fields that a background refresh sends besides those that were keyed;
            /// `None`: the application has not said.
            refresh_headers: Option<Vec<HeaderName>> = None, alike;
            /// Fields that were taken out of the key. A background refresh sends them.
            unkeyed_headers: Vec<HeaderName> = Vec::new(), alike;
            /// Which streams are shared and stored.
            share_streams: Option<Arc<StreamRule>> = None;
            /// Tags of every response.
            tags: Vec<Tag> = Vec::new();
            scope: Option<String> = None;
            /// The scheme of requests that do not say it themselves, in lower case.
            scheme: String = "http".into();
            /// Our name in `Cache-Status`; `None`: the field is not sent.
            cache_status: Option<String> = Some("tower-stampede".into()), alike;
        }
    };
}

each_http_setting!(config);

impl HttpConfig {
    /// Takes fields out of the credentials.
    pub(crate) fn exempt(&mut self, names: &FieldNames) {
        self.authorization_is_credential &= !names.contains(&header::AUTHORIZATION);
        self.cookie_is_credential &= !names.contains(&header::COOKIE);
        self.credential_headers.exempt_all(names);
    }

    /// Takes the fields out of the credentials that the application keys:
    /// clients that differ in them never share in any case. What is keyed by
    /// default was not the application's word, and is no credential.
    pub(crate) fn exempt_keyed(&mut self) {
        let keyed = self.vary.iter().chain(self.keyed_headers.iter());
        let names: Vec<_> = keyed.map(HeaderName::as_str).collect();
        self.exempt(&FieldNames::of(&names));
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
