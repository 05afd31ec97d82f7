//! A request as data: it can be printed, made smaller, and sent in many ways.

use std::fmt;

use axum::body::Body;
use axum::extract::OriginalUri;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Uri, Version};

use crate::persona::{Kind, Persona};
use crate::settings::Settings;

/// How a request says where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `GET /path`, with the host in `Host`.
    Origin,
    /// `GET http://host/path`.
    Absolute,
    /// An absolute URI and version 2.
    Http2,
}

/// The user that an authentication layer puts into the extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User(pub(crate) &'static str);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Only what honest clients get is judged.
    pub(crate) is_victim: bool,
    pub(crate) method: String,
    pub(crate) form: Form,
    pub(crate) scheme: &'static str,
    /// The authority of the URI, where the form has one.
    pub(crate) authority: String,
    /// Path and query.
    pub(crate) target: String,
    /// `Host` is one of them.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) user: Option<&'static str>,
    /// The last number of the client's address, in 127.0.0.0/24.
    pub(crate) address: u8,
    /// The client hangs up after so many milliseconds.
    pub(crate) hangs_up: Option<u64>,
}

impl Ask {
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.add(name, value);
    }

    pub(crate) fn add(&mut self, name: &str, value: &str) {
        self.fields.push((name.into(), value.into()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.fields.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    pub(crate) fn uri(&self) -> String {
        match self.form {
            Form::Origin => self.target.clone(),
            Form::Absolute | Form::Http2 => {
                format!("{}://{}{}", self.scheme, self.authority, self.target)
            }
        }
    }

    /// Returns the head of the request as the cache gets it in process; `None`
    /// if a server would not have let it through.
    pub(crate) fn parts(&self, persona: &Persona) -> Option<Parts> {
        let uri: Uri = self.uri().parse().ok()?;
        let mut request = Request::new(());
        *request.method_mut() = self.method.parse().ok()?;
        if self.form == Form::Http2 {
            *request.version_mut() = Version::HTTP_2;
        }
        for (name, value) in &self.fields {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            request.headers_mut().append(name, HeaderValue::from_str(value.trim()).ok()?);
        }
        if let Some(user) = self.user {
            request.extensions_mut().insert(User(user));
        }
        if let Kind::Tenant(rewrite) = &persona.kind {
            let rewritten = rewrite.apply(&uri, request.headers())?;
            request.extensions_mut().insert(OriginalUri(uri));
            *request.uri_mut() = rewritten;
        } else {
            *request.uri_mut() = uri;
        }
        Some(request.into_parts().0)
    }

    pub(crate) fn request(&self, persona: &Persona) -> Option<Request<Body>> {
        let body = if self.body.is_empty() { Body::empty() } else { self.body.clone().into() };
        Some(Request::from_parts(self.parts(persona)?, body))
    }

    /// Returns the head as the origin gets it where no cache is: without what
    /// the settings hide from every handler.
    pub(crate) fn seen_by_origin(&self, persona: &Persona, settings: &Settings) -> Option<Parts> {
        let mut parts = self.parts(persona)?;
        settings.hide(&mut parts);
        Some(parts)
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.is_victim { "victim" } else { "attacker" };
        let version = if self.form == Form::Http2 { "HTTP/2" } else { "HTTP/1.1" };
        write!(f, "{who}: {} {} {version}", self.method, self.uri())?;
        for (name, value) in &self.fields {
            let shown: String = value.chars().take(60).collect();
            write!(f, "\n      {name}: {shown}")?;
            if shown.len() < value.len() {
                write!(f, "... ({} bytes)", value.len())?;
            }
        }
        if !self.body.is_empty() {
            write!(f, "\n      with the body {:?}", self.body)?;
        }
        if let Some(user) = self.user {
            write!(f, "\n      with the extension User({user:?})")?;
        }
        if self.address != 1 {
            write!(f, "\n      from 127.0.0.{}", self.address)?;
        }
        if let Some(after) = self.hangs_up {
            write!(f, "\n      hangs up after {after} ms")?;
        }
        Ok(())
    }
}
