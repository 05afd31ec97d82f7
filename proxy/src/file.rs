//! The configuration file: which keys there are, and what they may be.

use std::path::PathBuf;

use tower_stampede::SetCookie;

use crate::access_log::{Destination, Format};
use crate::document::{
    Document, Section, boolean, count, duration, length, number_up_to, of_text, size, some_duration,
};
use crate::own_values::{
    check_status_ttl, cookie_name, exemption, field_name, field_pattern, host, host_header,
    lifetime_field, origin, path, query_name, set_cookie, tag, tag_field,
};
use crate::rules::{Paths, Rule};
use crate::server::{HostPattern, Server};
use crate::settings::Settings;
use crate::streams::share_streams;
use crate::texts::{address, namespace};

/// Reads the file into the settings. Returns all that is wrong with it.
pub(crate) fn read(name: &str, text: &str, to: &mut Settings) -> Vec<String> {
    let document = Document::new(name, text);
    let Some(table) = document.parse() else { return document.into_problems() };
    let root = Section::root(&document, &table);
    set(&root, "listen", of_text(address), &mut to.listen);
    read_tls(&root, to);
    read_origins(&root, to);
    read_redis(&root, to);
    read_cache(&root, to);
    read_steering(&root, to);
    read_waiting(&root, to);
    read_clients(&root, to);
    read_connections(&root, to);
    read_operators(&root, to);
    to.rules = read_rules(&root);
    root.finish();
    document.into_problems()
}

/// Sets what is there.
fn set<T>(
    section: &Section<'_, '_>,
    key: &'static str,
    read: impl FnOnce(&toml::de::DeValue<'_>) -> Result<T, String>,
    to: &mut T,
) {
    if let Some(value) = section.read(key, read) {
        *to = value;
    }
}

/// Sets what is there and has no default.
fn set_some<T>(
    section: &Section<'_, '_>,
    key: &'static str,
    read: impl FnOnce(&toml::de::DeValue<'_>) -> Result<T, String>,
    to: &mut Option<T>,
) {
    if let Some(value) = section.read(key, read) {
        *to = Some(value);
    }
}

fn set_list(
    section: &Section<'_, '_>,
    key: &'static str,
    read: impl Fn(&str) -> Result<String, String>,
    to: &mut Vec<String>,
) {
    if let Some(list) = section.list(key, read) {
        *to = list;
    }
}

fn file(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("is empty; name a file".into()) } else { Ok(text.into()) }
}

fn read_tls(root: &Section<'_, '_>, to: &mut Settings) {
    let Some(tls) = root.section("tls") else { return };
    let cert = tls.read("cert", of_text(file));
    let key = tls.read("key", of_text(file));
    for needed in ["cert", "key"] {
        if !tls.has(needed) {
            tls.refuse_all(&format!("`{needed}` is missing; name the PEM file there"));
        }
    }
    if let (Some(cert), Some(key)) = (cert, key) {
        to.set_tls(cert, key);
    }
    tls.finish();
}

fn read_origins(root: &Section<'_, '_>, to: &mut Settings) {
    let mut seen: Vec<HostPattern> = Vec::new();
    for section in root.sections("origin") {
        let server = section.read("url", of_text(origin));
        if !section.has("url") {
            section.refuse_all("`url` is missing; write for example \"http://127.0.0.1:9000\"");
        }
        let host_header = section.read("host_header", of_text(host_header));
        let hosts = section.list("hosts", HostPattern::read);
        if section.is_empty_list("hosts") {
            section.refuse("hosts", "has no host; name one, or leave it out for all other hosts");
        }
        for host in hosts.iter().flatten() {
            if seen.contains(host) {
                section.refuse(
                    "hosts",
                    &format!("names `{host}`, which an origin before has; name it once"),
                );
            }
            seen.push(host.clone());
        }
        if let Some(server) = server {
            let server = Server { host_header, ..server };
            match hosts {
                Some(hosts) => {
                    hosts.into_iter().for_each(|host| to.origins.add(host, server.clone()));
                }
                None if to.origins.default_server().is_some() => section.refuse_all(
                    "is a second origin without `hosts`; name its hosts, for only one can have \
                     all others",
                ),
                None => to.origins.set_default(server),
            }
        }
        section.finish();
    }
}

fn read_redis(root: &Section<'_, '_>, to: &mut Settings) {
    let Some(section) = root.section("redis") else { return };
    // The URL may hold a password: no message shows it.
    section.read("url", |value| {
        let url = value.as_str().ok_or("must be a text in quotation marks")?;
        to.set_redis(url).map_err(|problem| format!("cannot be used: {problem}"))
    });
    if !section.has("url") {
        section.refuse_all("`url` is missing; write for example \"redis://127.0.0.1\"");
    }
    set_some(&section, "namespace", of_text(namespace), &mut to.namespace);
    section.finish();
}

fn read_cache(root: &Section<'_, '_>, to: &mut Settings) {
    let Some(cache) = root.section("cache") else { return };
    set(&cache, "ttl", duration, &mut to.ttl);
    if cache.has("status_ttl") {
        to.status_ttl = status_ttl(&cache);
    }
    set(&cache, "stale", duration, &mut to.stale);
    set(&cache, "stale_if_error", duration, &mut to.stale_if_error);
    set(&cache, "stale_if_disconnected", duration, &mut to.stale_if_disconnected);
    if let Some(names) = ignored_query(&cache) {
        to.ignored_query = names;
    }
    set(&cache, "set_cookie", of_text(set_cookie), &mut to.set_cookie);
    if let Some((all, names)) = ignored_cookies(&cache) {
        (to.ignore_cookies, to.ignored_cookies) = (all, names);
    }
    set(&cache, "make_etags", boolean, &mut to.make_etags);
    to.share_streams = share_streams(&cache);
    set_some(&cache, "max_bytes", size, &mut to.max_bytes);
    set(&cache, "max_body", length, &mut to.max_body);
    set(&cache, "pass_ranges", boolean, &mut to.pass_ranges);
    set_list(&cache, "credential_headers", field_pattern, &mut to.credential_headers);
    set_list(&cache, "not_credentials", exemption, &mut to.not_credentials);
    set(&cache, "store_post", boolean, &mut to.store_post);
    set_list(&cache, "cache_posts", path, &mut to.cache_posts);
    cache.finish();
}

fn read_steering(root: &Section<'_, '_>, to: &mut Settings) {
    let Some(steering) = root.section("steering") else { return };
    set_list(&steering, "tags_from", tag_field, &mut to.tags_from);
    set_list(&steering, "lifetime_from", lifetime_field, &mut to.lifetime_from);
    set(&steering, "cache_groups", boolean, &mut to.cache_groups);
    steering.finish();
}

fn read_waiting(root: &Section<'_, '_>, to: &mut Settings) {
    if let Some(waiting) = root.section("waiting") {
        set_some(&waiting, "wait_timeout", duration, &mut to.wait_timeout);
        set(&waiting, "body_join_timeout", some_duration, &mut to.body_join_timeout);
        set_some(&waiting, "lease", some_duration, &mut to.lease);
        set_some(&waiting, "max_computations", count, &mut to.max_computations);
        set_some(&waiting, "min_computations", count, &mut to.min_computations);
        set_some(&waiting, "max_forwarded", count, &mut to.max_forwarded);
        waiting.finish();
    }
    if let Some(upstream) = root.section("upstream") {
        set_some(&upstream, "ca", of_text(file), &mut to.origin_ca);
        set(&upstream, "host_header", of_text(host_header), &mut to.host_header);
        set(&upstream, "connect_timeout", some_duration, &mut to.connect_timeout);
        set(&upstream, "compute_timeout", some_duration, &mut to.compute_timeout);
        set(&upstream, "idle_timeout", some_duration, &mut to.origin_idle);
        upstream.finish();
    }
}

fn read_clients(root: &Section<'_, '_>, to: &mut Settings) {
    let Some(clients) = root.section("clients") else { return };
    set_list(&clients, "allow_hosts", host, &mut to.allow_host);
    set(&clients, "trust_forwarded", boolean, &mut to.trust_forwarded);
    set(&clients, "underscores_in_headers", boolean, &mut to.underscores_in_headers);
    set(&clients, "ipv4_bits", number_up_to(32), &mut to.client_bits.v4);
    set(&clients, "ipv6_bits", number_up_to(128), &mut to.client_bits.v6);
    clients.finish();
}

fn read_connections(root: &Section<'_, '_>, to: &mut Settings) {
    let Some(section) = root.section("connections") else { return };
    let limits = &mut to.limits;
    set(&section, "max", count, &mut limits.connections);
    set(&section, "max_header_bytes", count, &mut limits.header_bytes);
    set(&section, "header_timeout", some_duration, &mut limits.header);
    set(&section, "idle_timeout", some_duration, &mut limits.idle);
    set(&section, "body_read_timeout", some_duration, &mut limits.body_read);
    set(&section, "body_write_timeout", some_duration, &mut limits.body_write);
    set(&section, "min_rate", size, &mut limits.min_rate);
    if let Some(age) = section.read("max_age", duration) {
        limits.lifetime = Settings::some_age(age);
    }
    set(&section, "websocket_idle", some_duration, &mut to.websocket_idle);
    section.finish();
}

fn read_operators(root: &Section<'_, '_>, to: &mut Settings) {
    if let Some(admin) = root.section("admin") {
        set_some(&admin, "listen", of_text(address), &mut to.admin);
        if !admin.has("listen") {
            admin.refuse_all("`listen` is missing; write for example \"127.0.0.1:9100\"");
        }
        set_some(&admin, "token_file", of_text(file), &mut to.admin_token_file);
        admin.finish();
    }
    if let Some(log) = root.section("access_log") {
        set_some(&log, "format", of_text(Format::read), &mut to.access_log);
        if !log.has("format") {
            log.refuse_all("`format` is missing; write \"combined\" or \"json\"");
        }
        set(&log, "file", of_text(Destination::read), &mut to.access_log_file);
        log.finish();
    }
    if let Some(drain) = root.section("drain") {
        set_some(&drain, "manifest", of_text(file), &mut to.manifest);
        set(&drain, "delay", duration, &mut to.drain_delay);
        set(&drain, "timeout", some_duration, &mut to.drain_timeout);
        drain.finish();
    }
}

fn status_ttl(section: &Section<'_, '_>) -> Vec<(u16, std::time::Duration)> {
    let mut all = Vec::new();
    for (key, value, line) in section.pairs("status_ttl") {
        let read = || {
            let status =
                key.parse().map_err(|_| "is no status; write for example 404 = \"10s\"")?;
            let ttl = duration(value)?;
            check_status_ttl(status, ttl)?;
            // As numbers: 404 and 0404 are two keys of one status.
            if all.iter().any(|(other, _)| *other == status) {
                return Err(format!("is status {status}, which has a time already; say it once"));
            }
            Ok::<_, String>((status, ttl))
        };
        match read() {
            Ok(one) => all.push(one),
            Err(problem) => section.refuse_at(line, &format!("`status_ttl.{key}` {problem}")),
        }
    }
    all
}

/// Reads `true` for all, or a list of names and patterns.
fn ignored_query(section: &Section<'_, '_>) -> Option<Vec<String>> {
    let is_all = section.read("ignore_query", |value| Ok(value.as_bool()))?;
    match is_all {
        Some(true) => Some(vec!["*".into()]),
        Some(false) => Some(Vec::new()),
        None => section.list("ignore_query", query_name),
    }
}

fn ignored_cookies(section: &Section<'_, '_>) -> Option<(bool, Vec<String>)> {
    let is_all = section.read("ignore_cookies", |value| Ok(value.as_bool()))?;
    match is_all {
        Some(all) => Some((all, Vec::new())),
        None => Some((false, section.list("ignore_cookies", cookie_name)?)),
    }
}

fn read_rules(root: &Section<'_, '_>) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for mut section in root.sections("rule") {
        let name = section.read("name", of_text(rule_name));
        match &name {
            Some(name) => section.label = format!("rule `{name}`"),
            None if section.has("name") => {}
            None => section.refuse_all("`name` is missing; messages name the rule by it"),
        }
        if let Some(rule) = read_rule(&section, name.unwrap_or_default()) {
            if let Some(same) = rules.iter().find(|other| other.name == rule.name) {
                let line = same.line;
                section.refuse("name", &format!("is that of the rule in line {line}; change one"));
            }
            if let Some(first) = rules.iter().find(|other| other.hides(&rule)) {
                section.refuse_all(&format!(
                    "never applies: rule `{}` in line {} comes first and matches all its \
                     requests; move this one above it, or remove it",
                    first.name, first.line
                ));
            }
            rules.push(rule);
        }
        section.finish();
    }
    rules
}

fn rule_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.chars().all(|c| !c.is_control() && c != '`');
    is_name
        .then(|| text.to_owned())
        .ok_or_else(|| "is no name; write for example \"assets\"".into())
}

/// Returns nothing where it is not known which paths the rule is for.
fn read_rule(section: &Section<'_, '_>, name: String) -> Option<Rule> {
    let prefix = section.read("prefix", of_text(Paths::prefix));
    let glob = section.read("glob", of_text(Paths::glob));
    match (section.has("prefix"), section.has("glob")) {
        (true, true) => section.refuse("glob", "stands beside `prefix`; remove one of them"),
        (false, false) => {
            section
                .refuse_all("names no path; write `prefix = \"/static/\"` or `glob = \"/*.png\"`");
        }
        _ => {}
    }
    let (all_cookies, ignored_cookies) = ignored_cookies(section).unwrap_or_default();
    let hosts = section.list("hosts", HostPattern::read);
    if section.is_empty_list("hosts") {
        section.refuse("hosts", "has no host; name one, or leave it out for all hosts");
    }
    // The checks below find more errors where the path has one.
    let paths = prefix.or(glob);
    let has_paths = paths.is_some();
    let bypass = section.read("bypass", boolean).unwrap_or_default();
    let paths = paths.unwrap_or_else(Paths::all);
    let rule = Rule {
        name,
        line: section.line("name"),
        paths: if bypass { paths.lenient() } else { paths },
        hosts: hosts.unwrap_or_default(),
        bypass,
        ttl: section.read("ttl", duration),
        status_ttl: status_ttl(section),
        stale: section.read("stale", duration),
        stale_if_error: section.read("stale_if_error", duration),
        stale_if_disconnected: section.read("stale_if_disconnected", duration),
        query: section.list("query", query_parameter),
        ignored_query: ignored_query(section),
        set_cookie: section.read::<SetCookie>("set_cookie", of_text(set_cookie)),
        ignore_cookies: all_cookies,
        ignored_cookies,
        public: section.read("public", boolean).unwrap_or_default(),
        vary: section.list("vary", field_name).unwrap_or_default(),
        tags: section.list("tags", tag).unwrap_or_default(),
        max_body: section.read("max_body", length),
        make_etags: section.read("make_etags", boolean),
        share_streams: share_streams(section),
        cache_posts: section.read("cache_posts", boolean).unwrap_or_default(),
    };
    check_rule(section, &rule);
    has_paths.then_some(rule)
}

fn query_parameter(text: &str) -> Result<String, String> {
    match query_name(text)? {
        name if name.ends_with('*') => {
            Err("is a pattern; `query` takes whole names, `ignore_query` takes patterns".into())
        }
        name => Ok(name),
    }
}

/// What a rule that stores nothing has no use for.
const OF_STORING: [&str; 16] = [
    "ttl",
    "status_ttl",
    "stale",
    "stale_if_error",
    "stale_if_disconnected",
    "query",
    "set_cookie",
    "ignore_cookies",
    "public",
    "vary",
    "tags",
    "max_body",
    "make_etags",
    "share_streams",
    "cache_posts",
    "ignore_query",
];

fn check_rule(section: &Section<'_, '_>, rule: &Rule) {
    if rule.bypass {
        for key in OF_STORING.into_iter().filter(|key| section.has(key)) {
            section.refuse(key, "has no effect beside `bypass = true`; remove one of them");
        }
    } else if !OF_STORING.into_iter().any(|key| section.has(key)) {
        section.refuse_all("changes nothing; say what, for example `ttl = \"60s\"`, or remove it");
    }
    if rule.query.is_some() && rule.ignored_query.is_some() {
        section.refuse("ignore_query", "stands beside `query`; remove one of them");
    }
}
