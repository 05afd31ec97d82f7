//! What answers requests now, and how a reload replaces it.

use std::iter;
use std::sync::{Arc, PoisonError, RwLock};

use http::request::Parts;
use http::{HeaderValue, Uri, header};
use rustls::ClientConfig;
use tower_layer::Layer;
use tower_stampede::{HttpService, HttpStampede};

use crate::access_log::AccessLog;
use crate::args::Args;
use crate::config::Config;
use crate::front::Proxy;
use crate::host::Host;
use crate::layers;
use crate::operators::AdminToken;
use crate::origin::Origin;
use crate::readings::{Readings, climbs, is_plain, readings};
use crate::rules::{Rule, without_parameters};
use crate::server::{default_port, name_of};
use crate::settings::Settings;
use crate::status::Status;
use crate::via::Via;

/// The settings in force, and the services that they make.
pub(crate) struct Live {
    pub(crate) settings: Arc<Settings>,
    pub(crate) via: Via,
    service: HttpService<Origin>,
    rules: Vec<(Rule, HttpService<Origin>)>,
    /// For requests whose path has a rule in one reading, and another one or none in the next, and
    /// for those whose readings cannot be enumerated.
    apart: Option<HttpService<Origin>>,
}

impl Live {
    pub(crate) fn new(
        cache: &HttpStampede,
        settings: Settings,
        tls: Option<Arc<ClientConfig>>,
        via: Via,
    ) -> Self {
        let settings = Arc::new(settings);
        let origin = Origin::new(Arc::clone(&settings), tls, via.clone());
        let common = layers::common(cache, &settings);
        let rules = settings.rules.iter().map(|rule| {
            let layer = layers::with_rule(common.clone(), &settings, rule);
            (rule.clone(), layer.layer(origin.clone()))
        });
        let rules: Vec<_> = rules.collect();
        let apart = (!rules.is_empty()).then(|| common.clone().private().layer(origin.clone()));
        // Not of a clone: with a second layer of the handle, `store_post` would store nothing.
        let service = layers::without_rule(common, &settings).layer(origin);
        Self { settings, via, service, rules, apart }
    }

    /// Returns the service for a request that was admitted, and removes the query parameters that
    /// are ignored there.
    pub(crate) fn service_for(&self, parts: &mut Parts) -> &HttpService<Origin> {
        let host = parts.headers.get(header::HOST).map(name_of).unwrap_or_default();
        let found = self.rule_of(host, &parts.uri);
        if let (Err(Ambiguous), Some(apart)) = (&found, &self.apart) {
            return apart;
        }
        let (service, ignored) = match found.ok().flatten() {
            None => (&self.service, Some(&self.settings.ignored_query)),
            Some((rule, service)) => (service, self.ignored_query(rule)),
        };
        if let Some(names) = ignored
            && let Some(uri) = without_parameters(&parts.uri, names)
        {
            parts.uri = uri;
        }
        service
    }

    /// Returns the URIs under which the responses to requests for `uri` may be stored. The scheme
    /// and the host are part of `uri`. The last one is that of this configuration. One before it
    /// has all parameters: other configurations, of this process before or of another one now, may
    /// ignore none of them.
    pub(crate) fn stored_uris(&self, uri: &Uri) -> Option<Vec<Uri>> {
        let host = Host::parse(uri.authority()?.as_str(), default_port(uri.scheme()?))?.normal();
        let mut parts = uri.clone().into_parts();
        parts.authority = Some(host.parse().ok()?);
        let uri = Uri::from_parts(parts).ok()?;
        let host = HeaderValue::try_from(host).ok()?;
        let ignored = match self.rule_of(name_of(&host), &uri) {
            Ok(None) => Some(&self.settings.ignored_query),
            Ok(Some((rule, _))) => self.ignored_query(rule),
            Err(Ambiguous) => None,
        };
        let own = ignored.and_then(|names| without_parameters(&uri, names));
        Some(iter::once(uri).chain(own).collect())
    }

    /// Returns which parameters requests of a rule lose. The layer of the rule removes others.
    fn ignored_query<'a>(&'a self, rule: &'a Rule) -> Option<&'a Vec<String>> {
        let has_none = rule.bypass || rule.query.is_some();
        (!has_none).then(|| rule.ignored_query.as_ref().unwrap_or(&self.settings.ignored_query))
    }

    fn rule_of(
        &self,
        host: &str,
        uri: &Uri,
    ) -> Result<Option<&(Rule, HttpService<Origin>)>, Ambiguous> {
        if self.rules.is_empty() {
            return Ok(None);
        }
        let (path, query) = (uri.path(), uri.query().filter(|query| climbs(query)));
        let find = |path: &str| self.rules.iter().position(|(rule, _)| rule.matches(host, path));
        let found = match is_plain(path) && query.is_none() {
            true => find(path),
            false => {
                let Readings { of_servers, of_applications } =
                    readings(path, query).ok_or(Ambiguous)?;
                let mut found = of_servers.iter().map(|reading| find(reading));
                let first = found.next().flatten();
                let is_bypass = |at: usize| self.rules.get(at).is_some_and(|(rule, _)| rule.bypass);
                let mut forbidden = of_applications.iter().filter_map(|reading| find(reading));
                if !found.all(|other| other == first) || forbidden.any(is_bypass) {
                    return Err(Ambiguous);
                }
                first
            }
        };
        Ok(found.and_then(|at| self.rules.get(at)))
    }
}

/// Which rule is for a path depends on how the origin reads it.
#[derive(Debug)]
struct Ambiguous;

/// What a reload needs.
pub(crate) struct Reload {
    pub(crate) args: Args,
    pub(crate) cache: HttpStampede,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) token: Option<Arc<RwLock<AdminToken>>>,
    pub(crate) log: Option<AccessLog>,
    pub(crate) status: Arc<Status>,
}

impl Reload {
    /// Reads everything anew. Where anything is wrong, all stays as it was.
    pub(crate) fn run(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
        match Config::load(&self.args) {
            Ok(config) => {
                self.apply(config);
                count(&self.status.reloads);
            }
            Err(wrong) => {
                count(&self.status.failed_reloads);
                wrong.iter().for_each(|line| report(line));
                report("the configuration was not reloaded: the old one stays in force");
            }
        }
    }

    fn apply(&self, config: Config) {
        let old = self.proxy.live();
        let later = takes_a_restart(&old.settings, &config.settings);
        if let (Some(tls), Some(config)) = (&self.proxy.tls, config.listener_tls) {
            tls.replace(config);
        }
        if let (Some(token), Some(new)) = (&self.token, config.token) {
            *token.write().unwrap_or_else(PoisonError::into_inner) = new;
        }
        let settings = with_what_stays(config.settings, &old.settings);
        // With several layers of a handle, a POST is not stored: the first one stays.
        if !old.settings.store_post {
            let live = Live::new(&self.cache, settings, config.origin_tls, old.via.clone());
            self.proxy.replace(live);
        }
        match later.is_empty() {
            true => report("the configuration was reloaded"),
            false => report(&format!(
                "the configuration was reloaded; these settings need a restart: {}",
                later.join(", ")
            )),
        }
    }
}

fn count(what: &std::sync::atomic::AtomicU64) {
    what.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

pub(crate) fn report(line: &str) {
    use std::io::Write;
    // Without a standard error there is no reader of the report.
    let _ = writeln!(std::io::stderr(), "stampede-proxy: {line}");
}

/// Returns which settings differ that only a restart changes.
fn takes_a_restart(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let limits = |settings: &Settings| format!("{:?}", settings.limits);
    let waiting = |settings: &Settings| {
        let computations = (settings.min_computations, settings.max_computations);
        (settings.wait_timeout, settings.compute_timeout, settings.lease, computations)
    };
    let drain = |settings: &Settings| {
        (settings.drain_delay, settings.drain_timeout, settings.manifest.clone())
    };
    let differs = [
        ("listen", old.listen != new.listen),
        ("tls on or off", old.tls.is_some() != new.tls.is_some()),
        ("redis", (old.redis_url, &old.namespace) != (new.redis_url, &new.namespace)),
        (
            "wait_timeout, compute_timeout, lease, min_computations or max_computations",
            waiting(old) != waiting(new),
        ),
        ("max_bytes", old.max_bytes != new.max_bytes),
        ("underscores_in_headers", old.underscores_in_headers != new.underscores_in_headers),
        ("connections", limits(old) != limits(new)),
        ("the address of admin", old.admin != new.admin),
        (
            "access_log",
            (old.access_log, &old.access_log_file) != (new.access_log, &new.access_log_file),
        ),
        ("drain", drain(old) != drain(new)),
        ("all but certificates and tokens, because of store_post", old.store_post),
        ("store_post", !old.store_post && new.store_post),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// Keeps what the process is built on.
fn with_what_stays(mut new: Settings, old: &Settings) -> Settings {
    new.limits = old.limits.clone();
    new.compute_timeout = old.compute_timeout;
    new.store_post = old.store_post;
    match (&old.tls, &new.tls) {
        (None, Some(_)) | (Some(_), None) => new.tls.clone_from(&old.tls),
        _ => {}
    }
    new.normalise_hosts();
    new
}
