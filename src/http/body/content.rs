//! The body of a stored response.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;

use crate::http::body::ResponseBody;
use crate::http::body::pace::StreamPace;
use crate::http::body::shared::SharedBody;
use crate::http::rules::range::Length;
use crate::http::rules::streams::resume_at;

/// The body of a response. Only whole ones are stored, in this process or the remote; a
/// caller that joins a flight may get one that arrives.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Whole(Bytes),
    /// A whole stream, which clients get at the pace at which it came.
    Paced(Bytes, StreamPace),
    /// With how long a reader of an event stream waits for a comment.
    Arriving(Arc<SharedBody>, Option<Duration>),
    /// There is none: it is the response to a HEAD, for other HEADs.
    HeadOnly,
}

impl Content {
    /// Returns the bytes, unless they are still arriving.
    pub(crate) fn whole(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) | Self::Paced(bytes, _) => Some(bytes),
            Self::Arriving(..) | Self::HeadOnly => None,
        }
    }

    /// Returns how many bytes there are or will be, if that is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) | Self::Paced(bytes, _) => Some(bytes.len() as u64),
            Self::Arriving(body, _) => body.declared,
            Self::HeadOnly => None,
        }
    }

    /// Returns what is known of its length for cutting a part out of it.
    pub(crate) fn length_so_far(&self) -> Length {
        match (self, self.length()) {
            (_, Some(length)) => Length::Known(length),
            (Self::Arriving(body, _), None) => Length::AtLeast(body.come()),
            (_, None) => Length::AtLeast(0),
        }
    }

    /// Returns where the bytes begin that follow the event which a request names, and whether there
    /// are none and will be none.
    #[cold]
    pub(crate) fn resume_at(&self, request: &HeaderMap) -> Option<(u64, bool)> {
        let bytes = match self {
            Self::Arriving(body, _) => Bytes::from(body.so_far().concat()),
            _ => self.whole()?.clone(),
        };
        let at = resume_at(request, &bytes)?;
        Some((at as u64, self.whole().is_some() && at == bytes.len()))
    }

    /// Returns what follows the first `skip` bytes, which are there.
    #[cold]
    pub(crate) fn after<B: Body>(&self, skip: u64) -> ResponseBody<B> {
        match self {
            Self::Whole(bytes) => ResponseBody::full(bytes.slice(skip as usize..)),
            Self::Paced(bytes, pace) => {
                ResponseBody::paced(bytes.clone(), pace.clone(), skip as usize)
            }
            Self::Arriving(body, heartbeat) => ResponseBody::live(body.reader(), *heartbeat, skip),
            Self::HeadOnly => ResponseBody::full(Bytes::new()),
        }
    }

    /// Returns it as a body that is read from the beginning.
    #[inline]
    pub(crate) fn to_body<B: Body>(&self) -> ResponseBody<B> {
        match self {
            Self::Whole(bytes) => ResponseBody::full(bytes.clone()),
            _ => self.after(0),
        }
    }
}
