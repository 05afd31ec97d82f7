//! One cache, one origin, and what a second client gets.

use std::alloc::System;

use axum::body::Body;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tower_stampede::{HttpLayer, HttpService};

use crate::kit::http::*;

pub(crate) type Fields<'a> = &'a [(&'a str, &'a str)];

/// The target of a request that names none.
pub(crate) const URI: &str = "http://a.test/report";

/// A cache that stores what the origin's fields allow, and its origin.
pub(crate) struct Lab {
    pub(crate) origin: Origin,
    pub(crate) app: HttpService<Origin>,
}

impl Lab {
    pub(crate) fn new(script: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Self {
        Self::with_layer(origin_only().http_layer(), script)
    }

    pub(crate) fn with_layer(
        layer: HttpLayer,
        script: impl Fn(&Call) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let origin = Origin::new(script);
        Self { app: layered(layer, &origin), origin }
    }

    /// Every response is a 200 with these fields.
    pub(crate) fn saying(fields: Fields<'_>) -> Self {
        Self::status(200, fields)
    }

    pub(crate) fn status(status: u16, fields: Fields<'_>) -> Self {
        let fields = owned(fields);
        Self::new(move |call| said(call, status, &fields))
    }

    pub(crate) async fn get(&self) -> Reply {
        self.with(&[]).await
    }

    /// A GET with these fields.
    pub(crate) async fn with(&self, fields: Fields<'_>) -> Reply {
        self.send("GET", URI, fields).await
    }

    pub(crate) async fn send(&self, method: &str, uri: &str, fields: Fields<'_>) -> Reply {
        send(&self.app, request(method, uri, fields)).await
    }

    /// Status and body of a GET, or that the service failed.
    pub(crate) async fn attempt(&self, fields: Fields<'_>) -> Result<Reply, OriginError> {
        try_send(&self.app, with(URI, fields)).await
    }

    pub(crate) fn calls(&self) -> usize {
        self.origin.calls()
    }
}

type Owned = Vec<(String, String)>;

pub(crate) fn owned(fields: Fields<'_>) -> Owned {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn said(call: &Call, status: u16, fields: &Owned) -> Answer {
    let answer = Answer::status(status).after(ms(0)).body(Body::from(call.n.to_string()));
    fields.iter().fold(answer, |answer, (name, value)| answer.header(name, value))
}

/// A response at once, whose body is the number of the call.
pub(crate) fn say(call: &Call, status: u16, fields: Fields<'_>) -> Answer {
    said(call, status, &owned(fields))
}

/// A 304 with these fields.
pub(crate) fn unchanged(fields: Fields<'_>) -> Answer {
    let answer = Answer::status(304).after(ms(0));
    fields.iter().fold(answer, |answer, (name, value)| answer.header(name, value))
}

/// Whether a second GET is answered from the store.
pub(crate) async fn reused(fields: Fields<'_>) -> bool {
    reused_after(0, fields).await
}

/// The same so many seconds after the first.
pub(crate) async fn reused_after(seconds: u64, fields: Fields<'_>) -> bool {
    reused_from(200, seconds, fields).await
}

pub(crate) async fn reused_from(status: u16, seconds: u64, fields: Fields<'_>) -> bool {
    second(&Lab::status(status, fields), seconds).await
}

/// Whether this laboratory answers a second GET from the store.
pub(crate) async fn second(lab: &Lab, seconds: u64) -> bool {
    assert_eq!(lab.get().await.text(), "0");
    pass(secs(seconds)).await;
    let reply = lab.get().await;
    let shared = reply.text() == "0";
    assert_eq!(lab.calls(), if shared { 1 } else { 2 }, "{reply:?}");
    shared
}

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CONTENT: usize = 512 * 1024;

/// Whether the content of responses is still held once their clients have
/// read and dropped it. The other cases hold next to nothing.
pub(crate) async fn kept_in_memory(said: Fields<'_>, asked: Fields<'_>) -> bool {
    let said = owned(said);
    let lab = Lab::new(move |call| self::said(call, 200, &said).body(vec![b'x'; CONTENT]));
    let before = held();
    for n in 0..32 {
        let reply = lab.send("GET", &format!("{URI}/{n}"), asked).await;
        assert_eq!(reply.body.len(), CONTENT);
    }
    pass(ms(1)).await;
    held() > before + 16 * CONTENT
}

fn held() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}
