//! The body of a stored response.

use std::sync::Arc;

use bytes::Bytes;
use http_body::Body;

use crate::http::body::ResponseBody;
use crate::http::body::shared::SharedBody;
use crate::http::rules::range::Length;

/// The body of a response. Only whole ones are stored, in this process or the remote; a
/// caller that joins a flight may get one that arrives.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Whole(Bytes),
    Arriving(Arc<SharedBody>),
    /// There is none: it is the response to a HEAD, for other HEADs.
    HeadOnly,
}

impl Content {
    /// Returns the bytes, unless they are still arriving.
    pub(crate) fn whole(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Arriving(_) | Self::HeadOnly => None,
        }
    }

    /// Returns how many bytes there are or will be, if that is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Arriving(body) => body.declared,
            Self::HeadOnly => None,
        }
    }

    /// Returns what is known of its length for cutting a part out of it.
    pub(crate) fn length_so_far(&self) -> Length {
        match (self, self.length()) {
            (_, Some(length)) => Length::Known(length),
            (Self::Arriving(body), None) => Length::AtLeast(body.come()),
            (Self::Whole(_) | Self::HeadOnly, None) => Length::AtLeast(0),
        }
    }

    /// Returns it as a body that is read from the beginning.
    #[inline]
    pub(crate) fn to_body<B: Body>(&self) -> ResponseBody<B> {
        match self {
            Self::Whole(bytes) => ResponseBody::full(bytes.clone()),
            Self::Arriving(body) => ResponseBody::reading(body.reader()),
            Self::HeadOnly => ResponseBody::full(Bytes::new()),
        }
    }
}
