//! The access log: a line for each request, written off the request path.
//!
//! A request hands its line to a bounded channel and never waits. Where the channel is full, the
//! line is dropped and counted; `/metrics` shows the count. One thread writes.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError, sync_channel};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Buf, Bytes};
use http::{HeaderValue, Request, Response, Version, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// How many lines may wait.
const WAITING: usize = 8192;

/// The most bytes of a target, and of each field, in a line.
const MOST: usize = 2048;

/// How many lines may be in the buffer before they are counted.
const MOST_UNFLUSHED: u64 = 512;

/// How long the last lines may take.
const LAST: Duration = Duration::from_secs(5);

/// What a line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Combined,
    Json,
}

impl Format {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        match text {
            "combined" => Ok(Self::Combined),
            "json" => Ok(Self::Json),
            _ => Err("is not one of combined, json".into()),
        }
    }
}

/// Where the lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Stdout,
    File(PathBuf),
}

impl Destination {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("is empty; name a file, or `-`".into()),
            "-" => Ok(Self::Stdout),
            path => Ok(Self::File(path.into())),
        }
    }

    fn open(&self) -> io::Result<Box<dyn Write + Send>> {
        Ok(match self {
            Self::Stdout => Box::new(io::stdout()),
            Self::File(path) => Box::new(append(path)?),
        })
    }

    /// Checks that the lines can go there. A file that is not there is made: only so it is known
    /// that it can be.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Stdout => Ok(()),
            Self::File(path) => match append(path) {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("{}: {error}", path.display())),
            },
        }
    }
}

fn append(path: &PathBuf) -> io::Result<File> {
    if is_named_pipe(path) {
        // To open it would wait for a reader, perhaps for ever.
        return Err(io::Error::other("is a named pipe; name a file, or `-` and pipe that"));
    }
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(unix)]
fn is_named_pipe(path: &PathBuf) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_pipe = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    // That of a shell, such as behind /dev/stdout, has no path of its own.
    is_pipe && path.canonicalize().is_ok()
}

#[cfg(not(unix))]
fn is_named_pipe(_: &PathBuf) -> bool {
    false
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) written: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

enum Message {
    Line(Box<Entry>),
    /// Read the [`Orders`].
    Look,
}

/// What the thread is told beside the channel, which may be full.
#[derive(Debug, Default)]
struct Orders {
    /// Open the file anew.
    reopen: AtomicBool,
    /// End once no line waits.
    end: AtomicBool,
}

/// The sending end, for all connections.
#[derive(Clone)]
pub(crate) struct AccessLog {
    lines: SyncSender<Message>,
    counts: Arc<Counts>,
    orders: Arc<Orders>,
}

/// The thread that writes.
pub(crate) struct Writer {
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    log: AccessLog,
}

/// Opens the log and starts its thread.
pub(crate) fn start(
    format: Format,
    to: Destination,
    counts: Arc<Counts>,
) -> io::Result<(AccessLog, Writer)> {
    let out = to.open()?;
    let (lines, received) = sync_channel(WAITING);
    let log = AccessLog { lines, counts, orders: Arc::default() };
    let (counts, orders) = (Arc::clone(&log.counts), Arc::clone(&log.orders));
    let (running, ended) = mpsc::channel();
    std::thread::Builder::new().name("access log".into()).spawn(move || {
        let _running = running;
        write_all(format, &to, out, &received, &counts, &orders);
    })?;
    Ok((log.clone(), Writer { ended, log }))
}

fn write_all(
    format: Format,
    to: &Destination,
    out: Box<dyn Write + Send>,
    received: &Receiver<Message>,
    counts: &Counts,
    orders: &Orders,
) {
    let mut out = Output { out: buffered(out), unflushed: 0, counts };
    let mut line = String::new();
    loop {
        let message = match received.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                out.flush();
                if orders.end.load(Ordering::Relaxed) {
                    return;
                }
                match received.recv() {
                    Ok(message) => message,
                    Err(_) => return,
                }
            }
        };
        if orders.reopen.swap(false, Ordering::Relaxed) {
            match to.open() {
                Ok(new) => {
                    out.flush();
                    out.out = buffered(new);
                }
                Err(error) => {
                    // Without a standard error there is no reader of the report.
                    let _ = writeln!(
                        io::stderr(),
                        "stampede-proxy: the access log stays in its old file: {error}"
                    );
                }
            }
        }
        if let Message::Line(entry) = message {
            line.clear();
            entry.write(format, &mut line);
            out.write(&line);
        }
    }
}

fn buffered(out: Box<dyn Write + Send>) -> BufWriter<Box<dyn Write + Send>> {
    BufWriter::with_capacity(64 << 10, out)
}

/// Where the lines go, and how many went there.
struct Output<'c> {
    out: BufWriter<Box<dyn Write + Send>>,
    /// The lines in the buffer: neither written yet nor dropped.
    unflushed: u64,
    counts: &'c Counts,
}

impl Output<'_> {
    fn write(&mut self, line: &str) {
        self.unflushed += 1;
        if self.out.write_all(line.as_bytes()).is_err() {
            self.drop_lines();
        } else if self.unflushed == MOST_UNFLUSHED {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.out.flush().is_err() {
            return self.drop_lines();
        }
        self.counts.written.fetch_add(std::mem::take(&mut self.unflushed), Ordering::Relaxed);
    }

    /// Drops the lines in the buffer: a disk that is full must not get them twice later.
    fn drop_lines(&mut self) {
        let sink = buffered(Box::new(io::sink()));
        let (out, _) = std::mem::replace(&mut self.out, sink).into_parts();
        self.out = buffered(out);
        self.counts.dropped.fetch_add(std::mem::take(&mut self.unflushed), Ordering::Relaxed);
    }
}

impl AccessLog {
    fn send(&self, entry: Box<Entry>) {
        if self.lines.try_send(Message::Line(entry)).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the file anew: a program that rotates logs has renamed the old one.
    pub(crate) fn reopen(&self) {
        self.orders.reopen.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Lets the thread read its orders. With a full channel it is awake, and reads them soon.
    fn wake(&self) {
        let _ = self.lines.try_send(Message::Look);
    }
}

impl Writer {
    /// Waits until the last lines are written, for at most [`LAST`].
    pub(crate) fn end(self) {
        self.log.orders.end.store(true, Ordering::Relaxed);
        self.log.wake();
        let _ = self.ended.recv_timeout(LAST);
    }
}

/// One request and its response.
struct Entry {
    received: SystemTime,
    from: Instant,
    took: Duration,
    client: HeaderValue,
    method: String,
    target: String,
    version: Version,
    host: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    status: u16,
    cache: Option<HeaderValue>,
    bytes: u64,
    is_complete: bool,
}

/// A request whose response is not there yet.
pub(crate) struct Begun(Box<Entry>, AccessLog);

impl Begun {
    pub(crate) fn new<B>(log: &AccessLog, request: &Request<B>, client: &HeaderValue) -> Self {
        let field = |name| request.headers().get(name).map(|value: &HeaderValue| cut_value(value));
        let authority = request.uri().authority().map(http::uri::Authority::as_str);
        let authority = authority.and_then(|host| HeaderValue::from_str(host).ok());
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let entry = Entry {
            received: SystemTime::now(),
            from: Instant::now(),
            took: Duration::ZERO,
            client: client.clone(),
            method: cut(request.method().as_str()).to_owned(),
            target: cut(target).to_owned(),
            version: request.version(),
            host: authority.or_else(|| field(header::HOST)),
            referer: field(header::REFERER),
            user_agent: field(header::USER_AGENT),
            status: 0,
            cache: None,
            bytes: 0,
            is_complete: false,
        };
        Self(Box::new(entry), log.clone())
    }
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(MOST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Copies the beginning of a value: the value itself would keep the whole head in memory.
fn cut_value(value: &HeaderValue) -> HeaderValue {
    let bytes = value.as_bytes();
    // A part of a value is a value.
    HeaderValue::from_bytes(&bytes[..bytes.len().min(MOST)]).unwrap_or_else(|_| value.clone())
}

/// Counts the body of a response; the line is written when the body ends or is dropped.
pub(crate) fn count<B: Body>(response: Response<B>, begun: Option<Begun>) -> Response<Counted<B>> {
    let begun = begun.map(|mut begun| {
        // Such a body is never read.
        begun.0.is_complete = response.body().is_end_stream() || begun.0.method == "HEAD";
        begun.0.status = response.status().as_u16();
        begun.0.cache = response.headers().get("cache-status").map(cut_value);
        begun
    });
    response.map(|body| Counted { body, line: Line(begun) })
}

/// Sends its entry once.
struct Line(Option<Begun>);

impl Line {
    fn end(&mut self, is_complete: bool) {
        if let Some(Begun(mut entry, log)) = self.0.take() {
            entry.took = entry.from.elapsed();
            entry.is_complete |= is_complete;
            log.send(entry);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.end(false);
    }
}

pin_project! {
    /// A body whose bytes are counted.
    pub(crate) struct Counted<B> {
        #[pin]
        body: B,
        line: Line,
    }
}

impl<B: Body<Data = Bytes>> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = std::task::ready!(this.body.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(begun)) = (frame.data_ref(), &mut this.line.0) {
                    begun.0.bytes += data.remaining() as u64;
                }
                if this.body.is_end_stream() {
                    this.line.end(true);
                }
            }
            Some(Err(_)) => this.line.end(false),
            None => this.line.end(true),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Entry {
    fn write(&self, format: Format, line: &mut String) {
        match format {
            Format::Combined => self.write_combined(line),
            Format::Json => self.write_json(line),
        }
        line.push('\n');
    }

    fn version(&self) -> &'static str {
        match self.version {
            Version::HTTP_10 => "HTTP/1.0",
            Version::HTTP_2 => "HTTP/2.0",
            _ => "HTTP/1.1",
        }
    }

    /// The format of the same name in Apache and nginx.
    fn write_combined(&self, line: &mut String) {
        escape(self.client.as_bytes(), line);
        let date = httpdate::fmt_http_date(self.received);
        // `Sun, 06 Nov 1994 08:49:37 GMT`
        let mut words = date.split(' ').skip(1);
        let mut word = || words.next().unwrap_or_default();
        let (day, month, year, time) = (word(), word(), word(), word());
        // Writing to a string does not fail.
        let _ = write!(line, " - - [{day}/{month}/{year}:{time} +0000] \"");
        escape(self.method.as_bytes(), line);
        line.push(' ');
        escape(self.target.as_bytes(), line);
        let _ = write!(line, " {}\" {} {} \"", self.version(), self.status, self.bytes);
        escape_field(self.referer.as_ref(), line);
        line.push_str("\" \"");
        escape_field(self.user_agent.as_ref(), line);
        line.push('"');
    }

    fn write_json(&self, line: &mut String) {
        let text = |value: Option<&HeaderValue>| {
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let entry = serde_json::json!({
            "time": humantime::format_rfc3339_millis(self.received).to_string(),
            "client": text(Some(&self.client)),
            "method": self.method,
            "host": text(self.host.as_ref()),
            "target": self.target,
            "protocol": self.version(),
            "status": self.status,
            "bytes": self.bytes,
            "complete": self.is_complete,
            "duration_ms": self.took.as_micros() as f64 / 1000.0,
            "referer": text(self.referer.as_ref()),
            "user_agent": text(self.user_agent.as_ref()),
            "cache": text(self.cache.as_ref()),
        });
        let _ = write!(line, "{entry}");
    }
}

fn escape_field(value: Option<&HeaderValue>, line: &mut String) {
    match value {
        Some(value) => escape(value.as_bytes(), line),
        None => line.push('-'),
    }
}

/// Writes bytes of a client so that they can neither end a line nor a quoted text.
fn escape(bytes: &[u8], line: &mut String) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => {
                let _ = write!(line, "\\x{byte:02X}");
            }
            _ => line.push(char::from(byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            received: SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_123),
            from: Instant::now(),
            took: Duration::from_micros(1500),
            client: HeaderValue::from_static("::1"),
            method: "GET".into(),
            target: "/a?b=\"\\".into(),
            version: Version::HTTP_2,
            host: Some(HeaderValue::from_static("a")),
            referer: None,
            user_agent: Some(HeaderValue::from_bytes(b"x\t\"\\\xff y").unwrap()),
            status: 200,
            cache: None,
            bytes: 12,
            is_complete: true,
        }
    }

    #[test]
    fn the_combined_format_escapes_what_could_end_a_text_or_a_line() {
        let mut line = String::new();
        entry().write(Format::Combined, &mut line);
        let expected = "::1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b=\\x22\\x5C HTTP/2.0\" 200 12 \
                        \"-\" \"x\\x09\\x22\\x5C\\xFF y\"\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        assert_eq!(cut("ab"), "ab");
        let text = format!("{}\u{e9}", "x".repeat(MOST - 1));
        assert_eq!(cut(&text), &text[..MOST - 1]);
    }

    #[test]
    fn each_line_of_json_is_one_object() {
        let mut line = String::new();
        entry().write(Format::Json, &mut line);
        assert_eq!(line.matches('\n').count(), 1);
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["time"], "1994-11-06T08:49:37.123Z");
        assert_eq!(read["target"], "/a?b=\"\\");
        assert_eq!(read["user_agent"], "x\t\"\\\u{fffd} y");
        assert_eq!((&read["status"], &read["duration_ms"]), (&200.into(), &1.5.into()));
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted_and_nothing_waits() {
        let counts = Arc::new(Counts::default());
        let (lines, received) = sync_channel(2);
        let log = AccessLog { lines, counts: Arc::clone(&counts), orders: Arc::default() };
        for _ in 0..5 {
            log.send(Box::new(entry()));
        }
        assert_eq!(counts.dropped.load(Ordering::Relaxed), 3);
        assert_eq!(received.try_iter().count(), 2);
    }

    fn log_to(path: &str) -> (AccessLog, Writer, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        let to = Destination::File(path.into());
        let (log, writer) = start(Format::Combined, to, Arc::clone(&counts)).unwrap();
        (log, writer, counts)
    }

    #[test]
    fn all_lines_that_wait_are_written_before_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let (log, writer, counts) = log_to(path.to_str().unwrap());
        for _ in 0..2000 {
            log.send(Box::new(entry()));
        }
        writer.end();
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 2000);
        assert_eq!(counts.written.load(Ordering::Relaxed), 2000);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn lines_that_a_full_disk_refuses_count_as_dropped() {
        let (log, writer, counts) = log_to("/dev/full");
        for _ in 0..2000 {
            log.send(Box::new(entry()));
        }
        writer.end();
        assert_eq!(counts.written.load(Ordering::Relaxed), 0);
        assert_eq!(counts.dropped.load(Ordering::Relaxed), 2000);
    }
}
