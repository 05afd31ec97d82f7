//! The endpoints: what stands behind the layer, what beside it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Query, State};
use axum::http::header::InvalidHeaderValue;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{BoxError, Json, Router};
use serde_json::json;
use tower::util::MapRequestLayer;
use tower::{Service, ServiceExt};
use tower_stampede::RouterService;

use crate::child::Child;
use crate::origin::Lane;
use crate::{App, child, demo, page, stage, stats, stream};

/// The longest id, and what it may consist of, see [`id_of`].
const MAX_ID: usize = 128;
/// The longest work a client may ask for.
const MAX_WORK_MS: u64 = 600_000;

type Pairs = Query<Vec<(String, String)>>;
/// A request that asks for something that makes no sense.
type BadRequest = (StatusCode, String);

/// All that the server answers.
#[derive(Clone)]
pub(crate) struct Site {
    app: Arc<App>,
    own_port: Arc<str>,
    protected: RouterService,
    others: Router,
}

impl Site {
    pub(crate) fn new(app: Arc<App>) -> Self {
        let protected = Router::new()
            .route("/report/{id}", get(report))
            .route("/private/{id}", get(private))
            .route("/me", get(me))
            .with_state(Arc::clone(&app));
        // This is the line the example is about. A hit is answered before there is any routing;
        // `protected.route_layer(app.cache.http_layer())` has the cache behind it.
        let protected = app.cache.http_layer().in_front_of(protected);
        let own_port = format!(":{}", app.demo.port()).into();
        Self { own_port, protected, others: others(Arc::clone(&app)), app }
    }

    pub(crate) async fn answer<B>(mut self, mut request: Request<B>) -> Response
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let Ok(response) = if is_protected(request.uri().path()) {
            self.app.origin.calls(Lane::Protected).asked();
            remove_port(&mut request, &self.own_port);
            let answer = self.protected.call(request).await;
            match &self.app.child {
                None => answer,
                Some(_) => answer.map(|mut response| {
                    child::mark(&mut response);
                    response
                }),
            }
        } else {
            self.others.oneshot(request).await
        };
        response
    }
}

/// Returns whether a path is one of those behind the cache.
fn is_protected(path: &str) -> bool {
    let id = path.strip_prefix("/report/").or_else(|| path.strip_prefix("/private/"));
    id.is_some_and(|id| !id.is_empty() && !id.contains('/')) || path == "/me"
}

/// The routes that have no cache.
fn others(app: Arc<App>) -> Router {
    let admin = admin(&app);
    let stages = app.stages.clone().map(stage::routes::router).unwrap_or_default();
    let unprotected = Router::new()
        .route("/unprotected/{id}", get(unprotected))
        .route_layer(counting(&app, Lane::Unprotected));
    Router::new()
        .merge(unprotected)
        .route("/", get(page::show))
        .route("/invalidate/{id}", post(invalidate))
        .route("/fail", post(fail))
        .route("/stats", get(stats::show))
        .route("/metrics", get(stats::metrics))
        .merge(demo::router())
        .merge(stream::site(&app))
        .with_state(app)
        .layer(from_fn(own_pages_only))
        .merge(admin)
        .merge(stages)
}

/// No page of another site has a browser fail the origin, or start a herd. A name of a stranger that
/// leads to this machine would pass: the stage, which starts processes, has a check of its own.
async fn own_pages_only(request: Request<Body>, next: Next) -> Response {
    let is_look = matches!(*request.method(), Method::GET | Method::HEAD);
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let checked = match is_look {
        true => Ok(()),
        false => stage::access::check_site(request.headers(), authority),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// The router for operators, behind a token. Without one there is none.
fn admin(app: &App) -> Router {
    let Some(token) = &app.flags.admin_token else { return Router::new() };
    let token: Arc<str> = token.as_str().into();
    let only_operators = from_fn(move |request: Request<Body>, next: Next| {
        let is_one = shown_token(&request) == Some(token.as_bytes());
        async move { if is_one { Ok(next.run(request).await) } else { Err(StatusCode::UNAUTHORIZED) } }
    });
    Router::new()
        .nest("/admin", tower_stampede::admin::router(app.cache.clone()).layer(only_operators))
}

/// The token that a request shows. The scheme may be in upper or lower case (RFC 9110, 11.1).
fn shown_token(request: &Request<Body>) -> Option<&[u8]> {
    let shown = request.headers().get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = shown.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii_start())
}

/// Takes our own port out of `Host`. The host is part of what a response is
/// stored under, and behind one name all instances would be asked for the same;
/// here clients ask each by its port, and the responses are to be shared.
fn remove_port<B>(request: &mut Request<B>, own_port: &str) {
    // Where the URI names a host as well, the two have to agree.
    if request.uri().authority().is_none()
        && request.headers().get_all(header::HOST).iter().nth(1).is_none()
        && let Some(host) = request.headers_mut().get_mut(header::HOST)
        && let Some(name) = host.as_bytes().strip_suffix(own_port.as_bytes())
        && let Ok(name) = host_of(name)
    {
        *host = name;
    }
}

/// The names that a demonstration is asked by cost no memory.
fn host_of(name: &[u8]) -> Result<HeaderValue, InvalidHeaderValue> {
    static ADDRESS: HeaderValue = HeaderValue::from_static("127.0.0.1");
    static NAME: HeaderValue = HeaderValue::from_static("localhost");
    match name {
        b"127.0.0.1" => Ok(ADDRESS.clone()),
        b"localhost" => Ok(NAME.clone()),
        name => HeaderValue::from_bytes(name),
    }
}

/// Counts the requests of a lane, outside the cache.
fn counting<R>(app: &Arc<App>, lane: Lane) -> MapRequestLayer<impl Fn(R) -> R + Clone + use<R>> {
    let app = Arc::clone(app);
    MapRequestLayer::new(move |request| {
        app.origin.calls(lane).asked();
        request
    })
}

/// The expensive handler. It knows nothing of the cache.
async fn report(State(app): State<Arc<App>>, uri: Uri, query: Pairs) -> Response {
    compute(&app, Lane::Protected, &uri, &query).await.into_response()
}

/// The same without the layer.
async fn unprotected(State(app): State<Arc<App>>, uri: Uri, query: Pairs) -> Response {
    compute(&app, Lane::Unprotected, &uri, &query).await.into_response()
}

/// The same for one reader only: never stored, never handed to another client.
async fn private(State(app): State<Arc<App>>, uri: Uri, query: Pairs) -> Response {
    let answer = compute(&app, Lane::Protected, &uri, &query).await;
    ([(header::CACHE_CONTROL, "private")], answer).into_response()
}

async fn compute(
    app: &App,
    lane: Lane,
    uri: &Uri,
    query: &[(String, String)],
) -> Result<Response, BadRequest> {
    let id = id_of(uri)?;
    let work = work_of(query)?;
    let is_reported = lane == Lane::Protected && id == demo::ID;
    let reported = app.child.as_ref().filter(|_| is_reported).map(Child::compute);
    let report = app.origin.compute(lane, id, work).await;
    if let (Some(reported), true) = (reported, report.is_ok()) {
        reported.succeed();
    }
    let Ok(report) = report else {
        let failed = json!({"id": id, "error": "the origin was told to fail"});
        return Ok((StatusCode::INTERNAL_SERVER_ERROR, Json(failed)).into_response());
    };
    if lane == Lane::Protected {
        app.demo.computed(id, report.began);
    }
    let report = json!({
        "id": id,
        "version": report.version,
        "computed_at": report.computed_at,
        "pid": std::process::id(),
    });
    Ok(Json(report).into_response())
}

/// Greets the client by its credentials. It says nothing about caching: the layer sees to it that
/// no client gets the greeting of another one.
async fn me(headers: HeaderMap) -> String {
    let shown = headers.get(header::AUTHORIZATION).or_else(|| headers.get(header::COOKIE));
    match shown {
        Some(value) => format!("Hello, {}.\n", String::from_utf8_lossy(value.as_bytes())),
        None => "Hello, stranger.\n".into(),
    }
}

/// Ends the use of a report, whatever its query.
async fn invalidate(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, BadRequest> {
    let id = id_of(&uri)?;
    let path = format!("/report/{id}");
    app.cache.invalidate_path(&path).await;
    app.demo.invalidated(id);
    Ok(Json(json!({"invalidated": path})).into_response())
}

/// Makes the origin fail, or stop failing.
async fn fail(State(app): State<Arc<App>>, Query(query): Pairs) -> Result<Response, BadRequest> {
    let on = match last(&query, "on") {
        Some("true") => true,
        Some("false") => false,
        _ => return Err(bad("say `on=true` or `on=false`")),
    };
    app.origin.set_failing(on);
    Ok(Json(json!({"failing": on})).into_response())
}

/// Returns the last segment of the path as it was sent: an escape in it would
/// be the same id under another key, which `invalidate` would not find.
fn id_of(uri: &Uri) -> Result<&str, BadRequest> {
    let id = uri.path().rsplit('/').next().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(is_plain) {
        return Err(bad("an id is 1 to 128 of A-Z a-z 0-9 - . _ ~ :"));
    }
    Ok(id)
}

fn work_of(query: &[(String, String)]) -> Result<Option<Duration>, BadRequest> {
    let Some(text) = last(query, "work_ms") else { return Ok(None) };
    match text.parse() {
        Ok(millis @ 0..=MAX_WORK_MS) => Ok(Some(Duration::from_millis(millis))),
        _ => Err(bad("work_ms is a whole number from 0 to 600000")),
    }
}

/// Returns the value of a parameter; of several, the last counts.
pub(crate) fn last<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

pub(crate) fn bad(reason: &str) -> BadRequest {
    (StatusCode::BAD_REQUEST, format!("{reason}\n"))
}
