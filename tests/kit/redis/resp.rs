//! A client of its own, so that no test trusts the client it tests.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may take for anything a test asks of it.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Status(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
}

impl Reply {
    /// The text of a status, an error, a string or a number; else empty.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Status(text) | Self::Error(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Int(number) => number.to_string(),
            Self::Nil | Self::Array(_) => String::new(),
        }
    }

    /// A number, or zero.
    pub(crate) fn int(&self) -> i64 {
        self.text().parse().unwrap_or_default()
    }

    /// The parts of an array, or none.
    pub(crate) fn parts(&self) -> &[Self] {
        if let Self::Array(parts) = self { parts } else { &[] }
    }

    pub(crate) fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The value of a line `name:value` of `INFO` and `CLUSTER INFO`.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let text = self.text();
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value.trim().to_owned())
    }
}

/// One blocking connection.
pub(crate) struct Resp(BufReader<TcpStream>);

impl Resp {
    pub(crate) fn connect(port: u16) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, DEADLINE)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// Sends a command and reads its reply.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.send(args)?;
        self.read()
    }

    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        let mut command = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            command.extend(format!("${}\r\n", arg.len()).into_bytes());
            command.extend(arg);
            command.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&command)
    }

    pub(crate) fn read(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or(ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(|_| ErrorKind::InvalidData);
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(len) => Reply::Bulk(self.bytes(len)?),
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(len) => Reply::Array((0..len).map(|_| self.read()).collect::<io::Result<_>>()?),
                Err(_) => Reply::Nil,
            },
            _ => return Err(ErrorKind::InvalidData.into()),
        })
    }

    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end_matches(['\r', '\n']).len());
        Ok(line)
    }

    /// Another handle of the connection, to close it with.
    pub(crate) fn stream(&self) -> io::Result<TcpStream> {
        self.0.get_ref().try_clone()
    }

    /// Lets reads take as long as they take.
    pub(crate) fn wait_for_ever(&self) -> io::Result<()> {
        self.0.get_ref().set_read_timeout(None)
    }

    fn bytes(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }
}
