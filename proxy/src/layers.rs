//! The layers in front of the origins: one with the settings, and one for each rule.

use tower_stampede::{HttpLayer, HttpStampede};

use crate::checks::NotShared;
use crate::failure::OriginError;
use crate::fields;
use crate::incoming::ClientBody;
use crate::provenance;
use crate::rules::Rule;
use crate::settings::Settings;

/// Room for the fields that the proxy writes into a request.
const WRITTEN_BYTES: usize = 1 << 10;

/// Every query parameter.
const ALL: &str = "*";

fn texts(all: &[String]) -> impl Iterator<Item = &str> {
    all.iter().map(String::as_str)
}

/// Makes what all layers have in common. Of query and cookies it ignores nothing: which of them a
/// layer ignores cannot be taken back.
pub(crate) fn common(cache: &HttpStampede, settings: &Settings) -> HttpLayer {
    let layer = cache
        .http_layer()
        .scheme(settings.scheme().as_str())
        // The handle keeps those of its start: a reload may have changed them.
        .stale_for(settings.stale)
        .stale_if_error(settings.stale_if_error)
        .stale_if_disconnected(settings.stale_if_disconnected)
        .disconnected(OriginError::is_disconnected)
        .unsent(OriginError::is_unsent)
        .set_cookie(settings.set_cookie)
        .max_body(settings.max_body)
        .body_join_timeout(settings.body_join_timeout)
        .fill_from_ranges(!settings.pass_ranges)
        // A request that was admitted must not be too long for the cache.
        .max_header_bytes(settings.limits.header_bytes.saturating_add(WRITTEN_BYTES))
        .bypass(|parts| parts.extensions.get::<NotShared>().is_some())
        .request_body(ClientBody::of_read);
    let lifetimes = settings.status_ttl.iter();
    let layer = lifetimes.fold(layer, |layer, (status, ttl)| layer.status_ttl(*status, *ttl));
    let layer = match settings.ttl {
        ttl if ttl.is_zero() => layer.origin_only(),
        ttl => layer.ttl(ttl),
    };
    // What is named a credential is one, beside a wider exemption too.
    let layer = layer
        .not_a_credential(texts(&settings.not_credentials))
        .credential_headers(texts(&settings.credential_headers))
        .store_post_responses(settings.store_post);
    let layer = steer(settings, name_clients(settings, key_claims(settings, layer)));
    let layer = match &settings.share_streams {
        Some(streams) => layer.share_streams(streams.clone()),
        None => layer,
    };
    let paths = settings.cache_posts.clone();
    layer.cache_posts(move |parts| paths.iter().any(|path| parts.uri.path() == path))
}

/// Makes the layer of all requests that no rule is for.
pub(crate) fn without_rule(layer: HttpLayer, settings: &Settings) -> HttpLayer {
    ignore_query(ignore_cookies(layer, settings), &settings.ignored_query)
}

fn ignore_cookies(layer: HttpLayer, settings: &Settings) -> HttpLayer {
    let layer = layer.ignore_cookies(texts(&settings.ignored_cookies));
    if settings.ignore_cookies { layer.ignore_cookies(["*"]) } else { layer }
}

/// Ignores the whole query, if the names say so. `Live` removes single parameters.
fn ignore_query(layer: HttpLayer, names: &[String]) -> HttpLayer {
    if names.iter().any(|name| name == ALL) { layer.query([]) } else { layer }
}

/// Makes the layer of a rule.
pub(crate) fn with_rule(mut layer: HttpLayer, settings: &Settings, rule: &Rule) -> HttpLayer {
    if rule.bypass {
        return layer.private();
    }
    layer = ignore_cookies(layer, settings);
    layer = match rule.ttl {
        None => layer,
        Some(ttl) if ttl.is_zero() => layer.origin_only(),
        Some(ttl) => layer.ttl(ttl),
    };
    for (status, ttl) in &rule.status_ttl {
        layer = layer.status_ttl(*status, *ttl);
    }
    if let Some(stale) = rule.stale {
        layer = layer.stale_for(stale);
    }
    if let Some(stale) = rule.stale_if_error {
        layer = layer.stale_if_error(stale);
    }
    if let Some(stale) = rule.stale_if_disconnected {
        layer = layer.stale_if_disconnected(stale);
    }
    if let Some(mode) = rule.set_cookie {
        layer = layer.set_cookie(mode);
    }
    if let Some(max) = rule.max_body {
        layer = layer.max_body(max);
    }
    layer = match &rule.query {
        Some(names) => layer.query(texts(names)),
        None => ignore_query(layer, rule.ignored_query.as_ref().unwrap_or(&settings.ignored_query)),
    };
    if rule.ignore_cookies {
        layer = layer.ignore_cookies(["*"]);
    }
    if rule.public {
        layer = layer.public();
    }
    if let Some(make_etags) = rule.make_etags {
        layer = layer.make_etags(make_etags);
    }
    if let Some(streams) = &rule.share_streams {
        layer = layer.share_streams(streams.clone());
    }
    if rule.cache_posts {
        layer = layer.cache_posts(|_| true);
    }
    layer
        .ignore_cookies(texts(&rule.ignored_cookies))
        .vary(texts(&rule.vary))
        .tags(texts(&rule.tags))
}

/// Sets which requests are of one client, and what one client may take.
fn name_clients(settings: &Settings, layer: HttpLayer) -> HttpLayer {
    let (bits, is_trusted) = (settings.client_bits, settings.trust_forwarded);
    let layer = layer.client(move |parts| {
        let address = provenance::client(&parts.headers, is_trusted)?;
        Some(bits.network_of(address))
    });
    match settings.max_forwarded {
        Some(max) => layer.max_forwarded(max),
        None => layer,
    }
}

/// Sets by which fields the origin steers.
fn steer(settings: &Settings, layer: HttpLayer) -> HttpLayer {
    layer
        .tags_from(texts(&settings.tags_from))
        .lifetime_from(texts(&settings.lifetime_from))
        .cache_groups(settings.cache_groups)
        .make_etags(settings.make_etags)
}

/// Sets which claims are part of the key: none of clients, since the proxy
/// removes their claims and writes what follows from the key itself.
fn key_claims(settings: &Settings, layer: HttpLayer) -> HttpLayer {
    if !settings.trust_forwarded {
        return layer.replace_keyed_headers([]);
    }
    layer
        .replace_keyed_headers(fields::keyed_claims())
        .key(|parts| provenance::forwarded_key(&parts.extensions))
        // The rule reads an extension, which a refresh carries in any case.
        .refresh_headers([])
}
