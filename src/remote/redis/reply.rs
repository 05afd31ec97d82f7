//! A server's answer, or what was wrong with it.

use std::error::Error as StdError;
use std::fmt;

use bytes::Bytes;

use crate::remote::{RemoteError, RemoteErrorKind};

/// What a command is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerReply {
    Nil,
    Int(i64),
    /// Also a status, which is text.
    Bytes(Bytes),
    Array(Vec<ServerReply>),
}

impl ServerReply {
    pub(super) fn int(&self) -> Result<i64, CallFailure> {
        match self {
            Self::Int(number) => Ok(*number),
            _ => Err(CallFailure::nonsense()),
        }
    }

    /// Reads a number that cannot be negative.
    pub(super) fn number(&self) -> Result<u64, CallFailure> {
        u64::try_from(self.int()?).map_err(|_| CallFailure::nonsense())
    }

    pub(super) fn bytes(&self) -> Result<&Bytes, CallFailure> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(CallFailure::nonsense()),
        }
    }

    pub(super) fn text(&self) -> Result<&str, CallFailure> {
        std::str::from_utf8(self.bytes()?).map_err(|_| CallFailure::nonsense())
    }

    pub(super) fn array(&self) -> Result<&[ServerReply], CallFailure> {
        match self {
            Self::Array(items) => Ok(items),
            _ => Err(CallFailure::nonsense()),
        }
    }
}

/// Why a command was not answered as asked.
#[derive(Clone, Debug)]
pub(super) struct CallFailure {
    pub(super) kind: RemoteErrorKind,
    pub(super) cause: Cause,
    said: String,
}

/// What begins the failures of a [provider](crate::remote::redis::CredentialsProvider).
pub(super) const PROVIDER: &str = "the credentials provider";

/// What the operator has to do about failures.
pub(super) const REMEDIES: [&str; 5] = [
    "give the user the rights of `Redis::acl_rules`; `Redis::check` says what is missing",
    "correct user and password: those of the URL, or of the credentials provider",
    "renew the certificate, or give `Redis::root_certificates` the authority that has signed that of \
     the server, and `Redis::client_certificate` one that the server trusts",
    "mend the credentials provider: it has five seconds, and is asked again",
    "raise `maxclients` at the server, or close other connections",
];

/// What is done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The connection is broken; the command may or may not have been executed.
    Broken,
    /// The connection works and leads to where nothing can be done: a replica,
    /// or a user that is no longer known.
    Misled,
    /// The server does not know the script, and has executed nothing.
    NoScript,
    /// The key holds a value of another type.
    WrongType,
    /// Another node of the cluster has the key, which the failure [names](CallFailure::place).
    Moved,
    /// Another node of the cluster may have it already.
    Ask,
    /// The keys are on their way from one node to another.
    TryAgain,
    /// Nothing that this client could mend.
    Plain,
}

impl Cause {
    pub(super) const fn is_useless_connection(self) -> bool {
        matches!(self, Self::Broken | Self::Misled)
    }
}

impl CallFailure {
    pub(super) fn new(kind: RemoteErrorKind, cause: Cause, said: impl Into<String>) -> Self {
        Self { kind, cause, said: said.into() }
    }

    /// A reply that is none of those the command can have.
    pub(super) fn nonsense() -> Self {
        Self::new(RemoteErrorKind::Protocol, Cause::Plain, "an unexpected reply")
    }

    pub(super) fn disconnected(said: impl Into<String>) -> Self {
        Self::new(RemoteErrorKind::Connection, Cause::Broken, said)
    }

    pub(super) fn unavailable(said: impl Into<String>) -> Self {
        Self::new(RemoteErrorKind::Unavailable, Cause::Plain, said)
    }

    pub(super) fn late() -> Self {
        Self::new(RemoteErrorKind::Timeout, Cause::Plain, "no answer in time")
    }

    /// Returns the host and the port that a redirection names, the host empty where it is that of
    /// the node that redirects.
    pub(super) fn place(&self) -> Option<(&str, u16)> {
        let (host, port) = self.said.rsplit(' ').next()?.rsplit_once(':')?;
        Some((host, port.parse().ok()?))
    }

    /// Returns what is wrong, without a secret, and the number of its remedy; nothing where it may
    /// mend itself.
    pub(super) fn cause_and_remedy(&self) -> Option<(&str, usize)> {
        let says = |words: &[&str]| words.iter().any(|word| self.said.contains(word));
        if says(&["NOPERM"]) {
            // Its text may name the user.
            return Some(("NOPERM", 0));
        }
        let remedy = if self.kind == RemoteErrorKind::Denied {
            1
        } else if says(&["certificate", "Certificate", "fatal alert"]) {
            2
        } else if says(&[PROVIDER]) {
            3
        } else if says(&["max number of clients", "maxclients"]) {
            4
        } else {
            return None;
        };
        Some((&self.said, remedy))
    }

    /// Judges an error of the server by its code, or by the code that stands
    /// in its text: servers before 7.0 wrap the errors of a script.
    pub(super) fn of_server(code: &str, text: &str) -> Self {
        let (kind, cause) = judge(code)
            .or_else(|| text.split(|c: char| !c.is_ascii_alphabetic()).find_map(judge))
            .unwrap_or_else(|| (judge_text(text), Cause::Plain));
        Self::new(kind, cause, format!("{code} {}", without_arguments(text)))
    }
}

fn judge(code: &str) -> Option<(RemoteErrorKind, Cause)> {
    use RemoteErrorKind as Kind;
    Some(match code {
        // Either may be the old primary, which has lost its replicas to another one.
        "READONLY" | "NOREPLICAS" => (Kind::ReadOnly, Cause::Misled),
        "OOM" => (Kind::OutOfMemory, Cause::Plain),
        "NOAUTH" => (Kind::Denied, Cause::Misled),
        "NOPERM" | "WRONGPASS" => (Kind::Denied, Cause::Plain),
        "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "MISCONF" => {
            (Kind::Unavailable, Cause::Plain)
        }
        "TRYAGAIN" => (Kind::TryAgain, Cause::TryAgain),
        "MOVED" => (Kind::TryAgain, Cause::Moved),
        "ASK" => (Kind::TryAgain, Cause::Ask),
        "NOSCRIPT" => (Kind::Protocol, Cause::NoScript),
        "WRONGTYPE" => (Kind::Protocol, Cause::WrongType),
        _ => return None,
    })
}

/// Judges what is said without a code: by servers before 7.0, and by any server about a command
/// that it does not have or that its operator has renamed.
fn judge_text(text: &str) -> RemoteErrorKind {
    let denials =
        ["ACL failure", "can't run this command", "unknown command", "Unknown Redis command"];
    if denials.iter().any(|denial| text.contains(denial)) {
        RemoteErrorKind::Denied
    } else if text.contains("max number of clients") {
        RemoteErrorKind::Unavailable
    } else {
        RemoteErrorKind::Protocol
    }
}

/// An unknown command is quoted with its arguments: keys and values, which
/// must not get into logs.
fn without_arguments(text: &str) -> &str {
    text.split_once("with args beginning").map_or(text, |(before, _)| before)
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl StdError for CallFailure {}

impl From<CallFailure> for RemoteError {
    fn from(failure: CallFailure) -> Self {
        Self::caused(failure.kind, failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &str, text: &str) -> RemoteErrorKind {
        CallFailure::of_server(code, text).kind
    }

    #[test]
    fn a_redirection_names_a_place() {
        let moved = |text| CallFailure::of_server("MOVED", text);
        assert_eq!(moved("3999 10.0.0.1:6381").place(), Some(("10.0.0.1", 6381)));
        assert_eq!(moved("3999 ::1:6381").place(), Some(("::1", 6381)));
        assert_eq!(moved("3999 :6381").place(), Some(("", 6381)));
        for text in ["", "3999", "3999 a:", "3999 a:b", "3999 a:99999", "3999 a"] {
            assert_eq!(moved(text).place(), None, "{text}");
        }
        assert_eq!(CallFailure::of_server("ASK", "1 a:1").cause, Cause::Ask);
        assert!(moved("3999 a:1").kind.says_nothing_of_health());
    }

    #[test]
    fn an_error_is_known_by_its_code() {
        assert_eq!(kind("READONLY", "You can't write"), RemoteErrorKind::ReadOnly);
        assert_eq!(kind("OOM", "command not allowed"), RemoteErrorKind::OutOfMemory);
        assert_eq!(kind("WRONGPASS", "invalid"), RemoteErrorKind::Denied);
        assert_eq!(kind("LOADING", "dataset in memory"), RemoteErrorKind::Unavailable);
        assert_eq!(kind("ERR", "syntax error"), RemoteErrorKind::Protocol);
        assert_eq!(kind("ERR", "unknown command 'EVALSHA', with"), RemoteErrorKind::Denied);
        assert_eq!(kind("ERR", "max number of clients reached"), RemoteErrorKind::Unavailable);
    }

    #[test]
    fn the_error_of_a_script_is_known_by_what_it_wraps() {
        let wrap = |text: &str| {
            format!("Error running script (call to f_a9): @user_script:3: {text} when writing")
        };
        let failure =
            CallFailure::of_server("ERR", &wrap("@user_script: 3: -OOM command not allowed"));
        assert_eq!(failure.kind, RemoteErrorKind::OutOfMemory);
        let failure = CallFailure::of_server("ERR", &wrap("-READONLY You can't write"));
        assert_eq!((failure.kind, failure.cause), (RemoteErrorKind::ReadOnly, Cause::Misled));
        let failure = CallFailure::of_server(
            "ERR",
            "The user executing the script can't run this command or subcommand",
        );
        assert_eq!(failure.kind, RemoteErrorKind::Denied);
    }

    #[test]
    fn what_a_failure_says_quotes_no_arguments() {
        let failure = CallFailure::of_server(
            "ERR",
            "unknown command 'EVALSHA', with args beginning with: 'aa' '3' 'secret'",
        );
        assert!(!failure.to_string().contains("secret"));
        assert!(failure.to_string().contains("EVALSHA"));
    }

    #[test]
    fn a_reply_of_another_form_is_a_failure_and_no_panic() {
        assert!(ServerReply::Nil.int().is_err());
        assert!(ServerReply::Int(-1).number().is_err());
        assert!(ServerReply::Int(1).bytes().is_err());
        assert!(ServerReply::Bytes(Bytes::from_static(b"\xff")).text().is_err());
        assert!(ServerReply::Bytes(Bytes::new()).array().is_err());
    }
}
