//! How the settings take effect that are no field of the configuration: a method for each.

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;

use crate::flight::door::ForwardBound;
use crate::http::layer::put;
use crate::http::layer::rules::Rules;
use crate::http::rules::field_names::FieldNames;
use crate::settings::StatusTtl;
use crate::settings::layer::{HttpSettings, StreamRule, each_http_setting};

macro_rules! begin_with {
    ($($heading:literal {$(
        $(#[$doc:meta])*
        $name:ident: $type:ty as $reader:tt $(= $default:expr $(, $alike:ident)?)? $(, check $check:path)?;
    )+})+) => {
        impl Rules {
            /// Applies what a file has set.
            pub(super) fn begin_with(&mut self, settings: &HttpSettings) {
                let rules = self;
                $($(
                    if let Some(value) = settings.$name.clone() {
                        put!(rules, value, $name [$($default)?]);
                    }
                )+)+
                // What the file names as a credential is one, whatever else it takes out.
                let replaced = settings.replace_credential_headers.clone();
                rules.credential_headers(replaced.unwrap_or_default());
            }
        }
    };
}

each_http_setting!(begin_with);

/// Reads field names that were checked.
fn fields(names: Vec<String>) -> Vec<HeaderName> {
    let read = |name| HeaderName::try_from(name).expect("the names were checked");
    names.into_iter().map(read).collect()
}

fn add(set: &mut FieldNames, names: Vec<String>) {
    for name in names {
        set.add(&name);
    }
}

/// Each has the name of its setting, and a value that was checked.
#[allow(clippy::needless_pass_by_value, reason = "a row hands its value over")]
impl Rules {
    pub(super) fn scope(&mut self, scope: String) {
        self.config.scope = Some(scope);
    }

    pub(super) fn scheme(&mut self, mut scheme: String) {
        scheme.make_ascii_lowercase();
        self.config.scheme = scheme;
    }

    pub(super) fn query(&mut self, names: Vec<String>) {
        self.config.query = Some(names);
    }

    pub(super) fn vary(&mut self, names: Vec<String>) {
        self.config.vary.extend(fields(names));
    }

    pub(super) fn replace_keyed_headers(&mut self, names: Vec<String>) {
        self.config.keyed_headers = FieldNames::none();
        self.keyed_headers(names);
    }

    pub(super) fn not_keyed(&mut self, names: Vec<String>) {
        for name in fields(names) {
            self.config.keyed_headers.exempt(name.as_str());
            self.config.unkeyed_headers.push(name);
        }
    }

    pub(super) fn keyed_headers(&mut self, names: Vec<String>) {
        add(&mut self.config.keyed_headers, names);
    }

    pub(super) fn ignore_cookies(&mut self, names: Vec<String>) {
        self.config.ignore_cookies |= names.iter().any(|name| name == "*");
        self.config.ignored_cookies.add(names.into_iter().filter(|name| name != "*"));
    }

    pub(super) fn identity_covers(&mut self, names: Vec<String>) {
        add(&mut self.config.covered, names);
    }

    pub(super) fn replace_credential_headers(&mut self, names: Vec<String>) {
        self.config.credential_headers = FieldNames::none();
        self.config.cookie_is_credential = true;
        self.credential_headers(names);
    }

    pub(super) fn not_a_credential(&mut self, names: Vec<String>) {
        for name in names {
            if name.eq_ignore_ascii_case("cookie") {
                self.config.cookie_is_credential = false;
            }
            self.config.credential_headers.exempt(&name);
        }
    }

    pub(super) fn credential_headers(&mut self, names: Vec<String>) {
        self.config.cookie_is_credential |=
            names.iter().any(|name| name.eq_ignore_ascii_case("cookie"));
        add(&mut self.config.credential_headers, names);
    }

    pub(super) fn refresh_headers(&mut self, names: Vec<String>) {
        self.config.refresh_headers.get_or_insert_default().extend(fields(names));
    }

    pub(super) fn max_forwarded(&mut self, max: usize) {
        self.forwarded = Some(ForwardBound::new(max));
    }

    pub(super) fn ttl(&mut self, ttl: Duration) {
        self.config.ttl = Some(ttl);
    }

    pub(super) fn origin_only(&mut self, is_so: bool) {
        if is_so {
            self.config.ttl = None;
        }
    }

    pub(super) fn status_ttl(&mut self, lifetimes: StatusTtl) {
        self.config.status_ttl.extend(lifetimes);
    }

    pub(super) fn targeted_fields(&mut self, names: Vec<String>) {
        self.config.targeted = fields(names);
    }

    pub(super) fn lifetime_from(&mut self, names: Vec<String>) {
        self.config.lifetime_fields = fields(names);
    }

    pub(super) fn share_streams(&mut self, rule: StreamRule) {
        self.config.share_streams = Some(Arc::new(rule));
    }

    pub(super) fn tags(&mut self, tags: Vec<String>) {
        self.config.tags.extend(tags.into_iter().map(Into::into));
    }

    pub(super) fn tags_from(&mut self, names: Vec<String>) {
        self.config.tag_fields = fields(names);
    }

    pub(super) fn cache_status(&mut self, name: String) {
        self.config.cache_status = Some(name).filter(|name| !name.is_empty());
    }
}
