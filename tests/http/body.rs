//! Bodies: what is stored, what streams through, and what breaks off.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_stampede::CacheOutcome::*;
use tower_stampede::Stampede;

/// What a body does next.
#[derive(Clone)]
enum Next {
    Data(&'static str),
    Trailers,
    Wait(Duration),
    BreakOff,
}

use Next::{BreakOff, Data, Trailers, Wait};

use crate::kit::http::*;
use crate::kit::spawn;

#[derive(Default)]
struct Scripted {
    next: VecDeque<Next>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Scripted {
    fn body(next: impl IntoIterator<Item = Next>) -> Body {
        Body::new(Self { next: next.into_iter().collect(), pause: None })
    }
}

impl http_body::Body for Scripted {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let frame = match self.next.pop_front() {
                None => return Poll::Ready(None),
                Some(Wait(time)) => {
                    self.pause = Some(Box::pin(tokio::time::sleep(time)));
                    continue;
                }
                Some(Data(text)) => Ok(Frame::data(Bytes::from_static(text.as_bytes()))),
                Some(Trailers) => {
                    let fields = [("x-sum", HeaderValue::from_static("7"))];
                    let fields =
                        fields.map(|(name, value)| (http::HeaderName::from_static(name), value));
                    Ok(Frame::trailers(fields.into_iter().collect::<HeaderMap>()))
                }
                Some(BreakOff) => Err(std::io::Error::other("broken off")),
            };
            return Poll::Ready(Some(frame));
        }
    }
}

fn sends(next: impl IntoIterator<Item = Next>) -> Origin {
    let next: Vec<_> = next.into_iter().collect();
    Origin::new(move |_| Answer::ok("max-age=60", Scripted::body(next.clone())))
}

fn small(origin: &Origin) -> tower_stampede::HttpService<Origin> {
    layered(origin_only().http_layer().max_body(10), origin)
}

#[tokio::test(start_paused = true)]
async fn a_body_that_comes_in_pieces_is_stored_whole() {
    let origin =
        sends([Data("one "), Wait(ms(50)), Data(""), Data("two "), Wait(ms(50)), Data("!")]);
    let app = app(&origin);
    let replies = crowd(&app, 100, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.text() == "one two !"));
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && hit.text() == "one two !");
    assert_eq!(hit.declared, Some(9), "its exact length is known");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_streams_through_and_releases_the_waiters() {
    let origin =
        sends([Data("0123"), Data("4567"), Data("89ab"), Wait(secs(5)), Data("cdef"), Trailers]);
    let app = small(&origin);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    for reply in &replies {
        assert_eq!(reply.text(), "0123456789abcdef");
        assert!(!reply.broken && !reply.is(Joined));
        assert_eq!(reply.trailers.as_ref().unwrap()["x-sum"], "7");
    }
    assert!(slowest(&replies) <= WORK * 2, "no caller waits for the rest of it");
    assert_eq!(origin.calls(), 10);
    assert!(!send(&app, get("/report")).await.is(Hit));
}

#[tokio::test(start_paused = true)]
async fn a_body_of_exactly_the_limit_is_stored() {
    let origin = sends([Data("01234"), Data("56789")]);
    let app = small(&origin);
    send(&app, get("/report")).await;
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_declared_length_over_the_limit_is_not_waited_for() {
    let origin = Origin::new(|_| {
        let body = Scripted::body([Wait(secs(5)), Data("0123456789ab")]);
        Answer::ok("max-age=60", body).header("content-length", "12")
    });
    let app = small(&origin);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.text() == "0123456789ab"));
    assert_eq!(slowest(&replies), WORK * 2);
    assert_eq!(origin.calls(), 10);
    // Such a key is known by now.
    assert_eq!(slowest(&crowd(&app, 10, |_| get("/report")).await), WORK);
    assert_eq!(origin.calls(), 20);
}

#[tokio::test(start_paused = true)]
async fn trailers_are_passed_on_and_never_stored() {
    let origin = sends([Data("report"), Trailers]);
    let app = app(&origin);
    for n in 1..=3 {
        let reply = send(&app, get("/report")).await;
        assert_eq!(reply.text(), "report");
        assert_eq!(reply.trailers.unwrap()["x-sum"], "7");
        assert_eq!(origin.calls(), n);
    }
}

#[tokio::test(start_paused = true)]
async fn announced_trailers_are_not_waited_for() {
    let origin = Origin::new(|_| {
        let body = Scripted::body([Wait(secs(5)), Data("report"), Trailers]);
        Answer::ok("max-age=60", body).header("trailer", "x-sum")
    });
    let app = app(&origin);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.trailers.is_some()));
    assert_eq!(slowest(&replies), WORK * 2);
    assert_eq!(origin.calls(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_reaches_those_who_read_it_broken_and_nobody_else() {
    let origin = sends([Data("repo"), Wait(ms(10)), BreakOff]);
    let app = app(&origin);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.broken && reply.text() == "repo"));
    assert_eq!(origin.calls(), 1);
    // It was no word about the key.
    origin.answers(|_| Answer::ok("max-age=60", "report"));
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.text() == "report" && !reply.broken));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_break_off_elects_another() {
    let origin = Origin::new(|call| match call.n {
        0 => Answer::ok("max-age=60", Scripted::body([Data("repo"), BreakOff])),
        _ => Answer::ok("max-age=60", "report"),
    });
    let app = app(&origin);
    let replies = crowd(&app, 100, |_| get("/report")).await;
    assert_eq!(replies.iter().filter(|reply| reply.broken).count(), 1);
    assert_eq!(replies.iter().filter(|reply| reply.text() == "report").count(), 99);
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_body_shorter_or_longer_than_declared_is_not_stored() {
    for length in ["3", "9"] {
        let origin = Origin::new(move |_| {
            let body = Scripted::body([Data("report")]);
            Answer::ok("max-age=60", body).header("content-length", length)
        });
        let app = app(&origin);
        for n in 1..=2 {
            let reply = send(&app, get("/report")).await;
            assert_eq!(reply.text(), "report", "the client gets what came");
            assert_eq!(origin.calls(), n, "{length}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lengths_that_contradict_each_other_are_not_stored() {
    for lengths in [&["6", "7"][..], &["6, 7"], &["x"], &["-6"], &["7"]] {
        let origin = Origin::new(move |_| {
            let answer = Answer::ok("max-age=60", "report");
            lengths.iter().fold(answer, |answer, length| answer.header("content-length", length))
        });
        let app = app(&origin);
        send(&app, get("/report")).await;
        assert!(!send(&app, get("/report")).await.is(Hit), "{lengths:?}");
        assert_eq!(origin.calls(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_holds_nobody_back_and_is_stored_when_it_ends() {
    let cache = Stampede::builder("test").origin_only().compute_timeout(secs(10)).build().unwrap();
    let drip = || (0..60).flat_map(|_| [Wait(secs(1)), Data("drip ")]);
    let origin = Origin::new(move |_| Answer::ok("max-age=600", Scripted::body(drip())));
    let app = layered(cache.http_layer(), &origin);
    let crowd = crowd(&app, 10, |_| get("/report")).await;
    for reply in &crowd {
        assert_eq!(reply.took, WORK);
        assert_eq!(reply.text().len(), 60 * 5, "every byte arrived");
    }
    assert!(send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_pauses_too_long_is_not_stored() {
    let origin = sends([Data("one "), Wait(secs(3)), Data("two")]);
    let app = layered(origin_only().http_layer().body_idle_timeout(secs(2)), &origin);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| (reply.took, reply.text()) == (WORK, "one two")));
    assert_eq!(origin.calls(), 1);
    assert!(!send(&app, get("/report")).await.is(Hit));
    assert_eq!(origin.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_is_never_held_back() {
    for kind in ["text/event-stream", "Text/Event-Stream; charset=utf-8"] {
        let origin = Origin::new(move |_| {
            let body = Scripted::body([Data("data: 1\n\n"), Wait(secs(60)), Data("data: 2\n\n")]);
            Answer::ok("max-age=60", body).header("content-type", kind)
        });
        let app = layered(with_ttl(60).http_layer(), &origin);
        let replies = crowd(&app, 10, |_| get("/events")).await;
        assert_eq!(slowest(&replies), WORK * 2);
        assert!(replies.iter().all(|reply| reply.text().ends_with("data: 2\n\n")));
        assert_eq!(origin.calls(), 10);
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_body_is_an_answer_like_any_other() {
    for status in [200, 204, 404] {
        let origin =
            Origin::new(move |_| Answer::status(status).header("cache-control", "max-age=60"));
        let app = app(&origin);
        crowd(&app, 10, |_| get("/report")).await;
        let hit = send(&app, get("/report")).await;
        assert!(hit.is(Hit) && hit.status == status && hit.declared == Some(0));
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_clients_of_a_stored_body_do_not_wait_for_each_other() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", vec![b'x'; 1 << 20]));
    let app = app(&origin);
    let replies = crowd(&app, 50, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.body.len() == 1 << 20));
    assert_eq!(slowest(&replies), WORK);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn when_the_leaders_client_goes_away_during_the_body_the_others_get_it_all() {
    let origin = sends([Data("one "), Wait(secs(1)), Data("two")]);
    let app = app(&origin);
    let leader = spawn({
        let app = app.clone();
        async move { send(&app, get("/report")).await }
    });
    pass(WORK + ms(500)).await;
    let waiting = spawn({
        let app = app.clone();
        async move { crowd(&app, 10, |_| get("/report")).await }
    });
    pass(ms(100)).await;
    leader.abort();
    let replies = waiting.await.unwrap();
    assert!(replies.iter().all(|reply| reply.text() == "one two"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_the_body_arrives_gets_it_only_if_it_is_fresh() {
    // Fresh until 3 s; the head is there at 2 s, the body at 4 s.
    let body = || Scripted::body([Data("one "), Wait(secs(2)), Data("two")]);
    let origin = Origin::new(move |call| match call.n {
        0 => Answer::ok("max-age=3", body()).after(secs(2)),
        _ => Answer::ok("max-age=60", "new"),
    });
    let app = app(&origin);
    let ask = || {
        let app = app.clone();
        spawn(async move { send(&app, get("/report")).await.text().to_owned() })
    };
    let leader = ask();
    pass(secs(1)).await;
    let before_the_head = ask();
    pass(secs(2)).await;
    let after_the_head = ask();
    assert_eq!(leader.await.unwrap(), "one two");
    assert_eq!(before_the_head.await.unwrap(), "one two");
    assert_eq!(after_the_head.await.unwrap(), "new", "to this one it is a look-up");
    assert_eq!(origin.calls(), 2);
}

/// `Send`, and not `Sync`.
struct NotSync(Cell<Option<Bytes>>);

impl http_body::Body for NotSync {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(Frame::data).map(Ok))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_need_not_be_sync() {
    let service = tower::service_fn(|_: Request<Body>| async {
        let body = NotSync(Cell::new(Some(Bytes::from_static(b"report"))));
        Ok::<_, Infallible>(Response::new(body))
    });
    let app = with_ttl(60).http_layer().layer(service);
    assert_eq!(send(&app, get("/report")).await.text(), "report");
    let hit = send(&app, get("/report")).await;
    assert!(hit.is(Hit) && hit.text() == "report");
}

#[tokio::test(start_paused = true)]
async fn a_response_with_too_many_bytes_of_fields_streams_through() {
    let origin = Origin::new(|_| Answer::ok("max-age=60", "").header("x", &"x".repeat(2000)));
    let app = layered(origin_only().http_layer().max_header_bytes(1000), &origin);
    let replies = crowd(&app, 10, |_| get("/report")).await;
    assert!(replies.iter().all(|reply| reply.header("x").is_some_and(|x| x.len() == 2000)));
    assert_eq!(slowest(&replies), WORK * 2);
    assert_eq!(origin.calls(), 10);
}
