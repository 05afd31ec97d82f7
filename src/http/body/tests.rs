use std::error::Error as _;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, Empty, Full, StreamBody};

use crate::http::body::*;
use crate::http::rules::decline_reason::DeclineReason;

type Item = Result<Frame<Bytes>, &'static str>;

fn data(text: &'static str) -> Item {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

fn trailers() -> Item {
    Ok(Frame::trailers(HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("x"))])))
}

fn body(frames: Vec<Item>) -> impl Body<Data = Bytes, Error = &'static str> + Send {
    StreamBody::new(stream::iter(frames))
}

fn limits(bytes: usize) -> Limits {
    let (idle, stall) = (Duration::from_secs(5), Duration::from_secs(5));
    Limits { bytes, declared: None, idle, join: idle, stall }
}

fn why<B>(collected: &Collection<B>) -> Option<DeclineReason> {
    match collected.end {
        CollectEnd::Refused(why) => Some(why),
        _ => None,
    }
}

/// The body as its reader sees it: data, `+` for trailers, `!` for an error.
async fn read<B: SourceBody>(collected: Collection<B>) -> String {
    let mut body = Box::pin(collected.into_body());
    let mut seen = String::new();
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => seen.push_str(str::from_utf8(&data).unwrap()),
            Ok(Err(_)) => seen.push('+'),
            Err(error) => {
                let own = error.source().map(ToString::to_string);
                return seen + "!" + &own.unwrap_or_default();
            }
        }
    }
    assert!(body.is_end_stream());
    seen
}

#[tokio::test(start_paused = true)]
async fn a_body_within_its_limit_is_complete() {
    let collected = collect(body(vec![data("ab"), data(""), data("c")]), &limits(3)).await;
    assert!(matches!(collected.end, CollectEnd::Complete));
    assert_eq!(collected.joined(), "abc");
}

#[tokio::test(start_paused = true)]
async fn over_its_limit_a_body_streams_and_nothing_is_lost() {
    let collected =
        collect(body(vec![data("ab"), data("cd"), data("ef"), trailers()]), &limits(3)).await;
    assert_eq!(why(&collected), Some(DeclineReason::TooLarge));
    assert_eq!(read(collected).await, "abcdef+");
}

#[tokio::test(start_paused = true)]
async fn a_body_known_to_be_too_large_is_not_even_begun() {
    let collected = collect(Full::new(Bytes::from_static(b"abcd")), &limits(3)).await;
    assert_eq!(why(&collected), Some(DeclineReason::TooLarge));
    assert!(collected.so_far.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_body_with_trailers_streams_and_they_come_last() {
    let collected = collect(body(vec![data("ab"), trailers()]), &limits(3)).await;
    assert_eq!(why(&collected), Some(DeclineReason::Trailers));
    assert_eq!(read(collected).await, "ab+");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_gives_its_bytes_and_then_its_error() {
    let collected = collect(body(vec![data("ab"), Err("reset"), data("c")]), &limits(9)).await;
    assert!(matches!(collected.end, CollectEnd::Broken(_)));
    assert_eq!(read(collected).await, "ab!reset");
}

#[tokio::test]
async fn a_body_of_another_length_than_declared_is_broken_off() {
    for (declared, expected) in [(1, "ab!"), (2, "ab"), (3, "ab!")] {
        let limits = Limits { declared: Some(declared), ..limits(9) };
        let collected = collect(body(vec![data("ab")]), &limits).await;
        assert_eq!(matches!(collected.end, CollectEnd::Complete), declared == 2);
        assert_eq!(read(collected).await, expected, "{declared}");
    }
}

#[tokio::test]
async fn a_body_that_waits_is_not_waited_for() {
    let later = stream::iter([data("ab")]).chain(stream::pending());
    let collected = collect(StreamBody::new(later), &limits(9)).await;
    assert!(matches!(collected.end, CollectEnd::Waits));
    assert_eq!(collected.so_far.len(), 1);
}

#[tokio::test]
async fn a_body_that_has_its_declared_length_is_complete_although_it_does_not_end() {
    let later = stream::iter([data("ab")]).chain(stream::pending());
    let limits = Limits { declared: Some(2), ..limits(9) };
    assert_eq!(read(collect(StreamBody::new(later), &limits).await).await, "ab");
}

#[tokio::test]
async fn a_body_that_is_always_ready_does_not_keep_its_thread() {
    let endless = StreamBody::new(stream::repeat_with(|| data("")));
    let collected = collect(endless, &limits(9)).await;
    assert!(matches!(collected.end, CollectEnd::Waits));
}

#[tokio::test]
async fn sizes_are_exact_where_they_are_known() {
    let full = ResponseBody::<Empty<Bytes>>::full(Bytes::from_static(b"abc"));
    assert_eq!(full.size_hint().exact(), Some(3));
    assert!(!full.is_end_stream());
    let inner = ResponseBody::inner(Full::new(Bytes::from_static(b"abc")));
    assert_eq!(inner.size_hint().exact(), Some(3));
    let queue = || VecDeque::from([Frame::data(Bytes::from_static(b"ab"))]);
    let rest = Box::pin(Full::new(Bytes::from_static(b"abc")));
    assert_eq!(ResponseBody::streaming(queue(), rest).size_hint().exact(), Some(5));
    let broken = broken_like(&body(vec![]), queue());
    assert_eq!((broken.size_hint().lower(), broken.size_hint().upper()), (2, None));
    assert!(!broken.is_end_stream());
    assert!(ResponseBody::<Empty<Bytes>>::default().is_end_stream());
}

fn broken_like<B: Body<Error = &'static str>>(
    _: &B,
    so_far: VecDeque<Frame<Bytes>>,
) -> ResponseBody<B> {
    ResponseBody::broken(so_far, BodyError::of_service("reset"))
}

#[tokio::test]
async fn any_buffer_becomes_bytes() {
    let body = ResponseBody::inner(Full::new(std::collections::VecDeque::from([b'a', b'b'])));
    assert_eq!(body.collect().await.unwrap().to_bytes(), "ab");
}

#[test]
fn it_is_sent_between_threads_even_if_the_inner_body_cannot_be_shared() {
    fn is_send<T: Send>(_: &T) {}
    let mut calls = std::cell::Cell::new(0);
    let unshared = stream::repeat_with(move || {
        *calls.get_mut() += 1;
        data("a")
    });
    is_send(&ResponseBody::inner(StreamBody::new(unshared)));
}

#[test]
fn a_body_is_given_up_only_without_readers_and_takes_none_after_that() {
    let (body, feed) =
        SharedBody::new(None, crate::budget::ByteBudget::new(100).reserve(0).unwrap());
    let reader = body.claim().expect("it has begun");
    assert!(!feed.give_up(), "it is read");
    drop(reader);
    let another = body.claim().expect("it goes on");
    drop(another);
    assert!(feed.give_up());
    assert!(body.claim().is_none());
}
