//! `init`: looks at the front page of an origin, and writes a commented configuration file for it.
//!
//! The request takes the way of all requests: through the layer with the default settings, to the
//! origin. So the file says what the proxy itself would do with the response.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName};
use http::uri::Scheme;
use http::{Request, StatusCode};
use tokio::time::timeout;
use tower_service::Service;

use crate::incoming::ClientBody;
use crate::live::Live;
use crate::server::Server;
use crate::settings::Settings;
use crate::tls;
use crate::via::Via;

/// What the file names where no origin was given.
const EXAMPLE: &str = "http://127.0.0.1:9000";

/// Fields of the response that the file shows, in this order.
const SHOWN: [&str; 8] =
    ["server", "cache-control", "expires", "vary", "set-cookie", "etag", "age", "cache-status"];

/// How long the origin may take for the header section of its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A longer value of a field is cut in the comment.
const MAX_SHOWN: usize = 200;

const TAGS: [&str; 4] = ["surrogate-key", "xkey", "cache-tag", "edge-cache-tag"];
const LIFETIMES: [&str; 2] = ["surrogate-control", "x-accel-expires"];

/// Writes the file. The error is a line for the operator; then there is no new file.
pub(crate) fn run(
    origin: Option<&Server>,
    authorities: Option<&Path>,
    file: &Path,
) -> Result<(), String> {
    let name = file.display();
    // Before the look: the origin has no work for nothing. `create_new` has the last word.
    if file.exists() {
        return Err(exists(file));
    }
    let url = origin.map_or_else(|| EXAMPLE.into(), url_of);
    let page = match origin {
        Some(origin) => Some(look(origin, authorities).map_err(|reason| {
            format!(
                "cannot look at {url}: {reason}; start the origin, or leave it out: \
                 `stampede-proxy init` writes the file without a look"
            )
        })?),
        None => None,
    };
    let text = text(&url, authorities, page.as_ref());
    let mut new =
        OpenOptions::new().write(true).create_new(true).open(file).map_err(|error| match error
            .kind()
        {
            io::ErrorKind::AlreadyExists => exists(file),
            _ => format!("{name}: {error}; name a file in a folder that is there, with --file"),
        })?;
    new.write_all(text.as_bytes()).map_err(|error| {
        // A part of a file would be accepted, and mean something else.
        drop(std::fs::remove_file(file));
        format!("{name}: {error}")
    })?;
    println!("wrote {name}; next: stampede-proxy --config {name}");
    Ok(())
}

fn exists(file: &Path) -> String {
    format!("{} exists, and is never overwritten; name another file with --file", file.display())
}

fn url_of(origin: &Server) -> String {
    format!("{}://{}", origin.scheme, origin.authority)
}

/// The front page, without its body.
struct FrontPage {
    status: StatusCode,
    fields: HeaderMap,
}

/// Asks for `/`, as the first client of a proxy without settings.
fn look(origin: &Server, authorities: Option<&Path>) -> Result<FrontPage, String> {
    let tls = match origin.scheme == Scheme::HTTPS {
        true => Some(tls::client_config(authorities)?),
        false => None,
    };
    let mut settings = Settings::default();
    settings.origins.set_default(origin.clone());
    let request = Request::get(format!("{}/", url_of(origin)))
        .header(header::HOST, &origin.host)
        .body(ClientBody::None)
        .map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let answered = runtime.block_on(async {
        let cache = settings.cache()?;
        let (mut parts, body) = request.into_parts();
        let live = Live::new(&cache, settings, tls, Via::new());
        let mut service = live.service_for(&mut parts).clone();
        // Before the cache itself would answer, in the place of an origin that does not.
        let answer = timeout(PATIENCE, service.call(Request::from_parts(parts, body))).await;
        let answer = answer.map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?;
        answer.map_err(|error| {
            let cause = error.source().map(|cause| format!(" ({cause})"));
            format!("{error}{}", cause.unwrap_or_default())
        })
    });
    // A look-up of a name may still run on a thread.
    runtime.shutdown_background();
    let (head, _) = answered?.into_parts();
    Ok(FrontPage { status: head.status, fields: head.headers })
}

/// Makes the file. Lines that begin with `#` and no blank are settings that are not in force.
fn text(url: &str, authorities: Option<&Path>, page: Option<&FrontPage>) -> String {
    let mut text = HEAD.to_owned();
    if let Some(page) = page {
        describe(&mut text, url, page);
    }
    text += "\n# Where clients connect. \"0.0.0.0:8080\" is every address of this machine.\n\
             listen = \"127.0.0.1:8080\"\n\n";
    if page.is_none() {
        text += "# An example: write the URL of your server here.\n";
    }
    let _ = write!(text, "[[origin]]\nurl = \"{url}\"\n\n");
    if let Some(file) = authorities {
        let _ = write!(text, "[upstream]\nca = {:?}\n\n", file.display().to_string());
    }
    text += "[cache]\n";
    let none = HeaderMap::new();
    let fields = page.map_or(&none, |page| &page.fields);
    advise_on_lifetime(&mut text, fields);
    advise_on_cookies(&mut text, fields);
    advise_on_validators(&mut text, fields);
    advise_on_steering(&mut text, fields);
    text + REST
}

/// Says in comments what the origin answered, and what the proxy makes of it.
fn describe(text: &mut String, url: &str, page: &FrontPage) {
    let FrontPage { status, fields } = page;
    let _ = write!(text, "#\n# GET / of {url} was answered with {status}:\n");
    for name in SHOWN.iter().chain(&TAGS).chain(&LIFETIMES) {
        for value in fields.get_all(*name) {
            let _ = writeln!(text, "#     {name}: {}", shown(name, value.as_bytes()));
        }
    }
    // The last member is the proxy's own: there may be caches behind it.
    let own = values(fields, &HeaderName::from_static("cache-status")).last();
    let own = own.and_then(|members| members.rsplit(',').next()).unwrap_or_default();
    let is_stored = own.split(';').any(|word| word.trim() == "stored");
    text.push_str(match is_stored {
        true => {
            "# So the proxy stores this page for clients without credentials, once its body has come\n\
             # whole, and is no longer than `max_body` (1 MiB). A cookie is a credential: clients that send\n\
             # one share the page where the response says `public`, or where their cookies are ignored.\n"
        }
        false => {
            "# So the proxy does not store this page. docs/http.md explains the words of\n\
             # Cache-Status.\n"
        }
    });
    if status.is_redirection() && *status != StatusCode::NOT_MODIFIED {
        text.push_str("# It is a redirection: look at its target, too, with `curl -sI`.\n");
    } else if status.is_client_error() || status.is_server_error() {
        text.push_str("# It is an error: check the URL of the origin before you use this file.\n");
    }
}

/// Returns the value as a comment may have it, without secrets.
fn shown(name: &str, value: &[u8]) -> String {
    let value = String::from_utf8_lossy(value);
    let value = match (name, value.split_once('=')) {
        ("set-cookie", Some((cookie, _))) => format!("{cookie}=..."),
        ("set-cookie", None) => "...".to_owned(),
        _ => value.into_owned(),
    };
    let plain = value.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' });
    plain.take(MAX_SHOWN).collect()
}

/// Returns the values of a field that are text.
fn values<'a>(fields: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    fields.get_all(name).into_iter().filter_map(|value| value.to_str().ok())
}

fn advise_on_lifetime(text: &mut String, fields: &HeaderMap) {
    let says =
        [header::CACHE_CONTROL, header::EXPIRES].iter().any(|name| fields.contains_key(name));
    text.push_str(match says {
        true => "# Your origin states lifetimes. This one is for responses that state none.\n",
        false => {
            "# Without a lifetime a response is not stored. The origin states it best, for example\n\
             # `Cache-Control: public, s-maxage=60`. This one is for responses that state none.\n"
        }
    });
    text.push_str(
        "#ttl = \"10s\"\n\
         # After its lifetime: how long a response is still served while one request refreshes it,\n\
         # and how long in place of an error.\n\
         #stale = \"60s\"\n\
         #stale_if_error = \"10m\"\n",
    );
}

fn advise_on_cookies(text: &mut String, fields: &HeaderMap) {
    if fields.contains_key(header::SET_COOKIE) {
        text.push_str(
            "# The front page sets a cookie, and a response with Set-Cookie is not stored. If no client\n\
             # needs that cookie, remove it from the responses:\n\
             #set_cookie = \"strip\"\n",
        );
    }
    let varies = |by: &str| {
        let names = values(fields, &header::VARY).flat_map(|value| value.split(','));
        names.map(str::trim).any(|name| name.eq_ignore_ascii_case(by))
    };
    if varies("*") {
        text.push_str(
            "# `Vary: *` forbids that a response is used twice: change it at the origin.\n",
        );
    }
    if varies("cookie") {
        text.push_str("# `Vary: Cookie` makes a response for each set of cookies.\n");
    }
    if varies("user-agent") {
        text.push_str(
            "# `Vary: User-Agent` makes a response for each browser: there are thousands.\n",
        );
    }
    text.push_str(
        "# Cookies that change nothing in your pages, such as those of analytics, can be ignored:\n\
         #ignore_cookies = [\"_ga\", \"_ga_*\", \"_gid\"]\n\
         # Parameters of the query that change nothing, too:\n\
         #ignore_query = [\"utm_*\", \"fbclid\", \"gclid\"]\n",
    );
}

fn advise_on_validators(text: &mut String, fields: &HeaderMap) {
    if !fields.contains_key(header::ETAG) && !fields.contains_key(header::LAST_MODIFIED) {
        text.push_str(
            "# The origin sends no validator. With entity tags of the proxy, browsers get 304:\n\
             #make_etags = true\n",
        );
    }
}

fn advise_on_steering(text: &mut String, fields: &HeaderMap) {
    let sent = |names: &[&str]| {
        let sent = names.iter().filter(|name| fields.contains_key(**name));
        sent.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
    };
    let (tags, lifetimes) = (sent(&TAGS), sent(&LIFETIMES));
    if !tags.is_empty() || !lifetimes.is_empty() {
        text.push_str("\n# Your origin sends fields that are meant for caches:\n#[steering]\n");
    }
    if !tags.is_empty() {
        let _ = writeln!(text, "#tags_from = [{tags}]");
    }
    if !lifetimes.is_empty() {
        let _ = writeln!(text, "#lifetime_from = [{lifetimes}]");
    }
}

const HEAD: &str = "\
# The settings of stampede-proxy, written by `stampede-proxy init`. Check this file with
# `stampede-proxy --config FILE --check-config`. docs/reverse-proxy.md has all keys.
#
# A line with `#` directly before a key or a `[` is a setting that is not in force: remove the `#`.
";

const REST: &str = "
# Several proxies share responses and locks through one server:
#[redis]
#url = \"redis://127.0.0.1:6379\"

# Purges, health and metrics. The token is in a file of its own, or in STAMPEDE_ADMIN_TOKEN.
#[admin]
#listen = \"127.0.0.1:9100\"
#token_file = \"/etc/stampede/token\"

#[access_log]
#format = \"combined\"

# The first rule that matches a path decides. Pages of one client:
#[[rule]]
#name = \"account\"
#prefix = \"/account\"
#bypass = true

# Files that change with a new version only:
#[[rule]]
#name = \"assets\"
#prefix = \"/static/\"
#ttl = \"1h\"
";
