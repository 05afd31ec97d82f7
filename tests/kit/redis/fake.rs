//! A node that says whatever the test wants it to say.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use super::{Reply, Resp};

/// What a command is answered with.
pub(crate) enum Said {
    Bytes(Vec<u8>),
    Nothing,
    /// Then the connection is closed.
    LastBytes(Vec<u8>),
}

impl Said {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Bytes(text.into().into_bytes())
    }
}

type Answer = dyn Fn(u16, &[Vec<u8>]) -> Said + Send + Sync;

/// A server on a free port, and what it has been asked.
pub(crate) struct FakeNode {
    port: u16,
    shared: Arc<FakeState>,
    accepting: Option<JoinHandle<()>>,
}

struct FakeState {
    answer: Box<Answer>,
    accepted: AtomicUsize,
    commands: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl FakeNode {
    /// Starts a node; `answer` gets its port, and each command in words.
    pub(crate) fn start(answer: impl Fn(u16, &[Vec<u8>]) -> Said + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(FakeState {
            answer: Box::new(answer),
            accepted: AtomicUsize::new(0),
            commands: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let state = Arc::clone(&shared);
        let accepting = spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if state.is_over.load(Ordering::SeqCst) {
                    return;
                }
                state.accepted.fetch_add(1, Ordering::SeqCst);
                let state = Arc::clone(&state);
                spawn(move || state.serve(stream, port));
            }
        });
        Self { port, shared, accepting: Some(accepting) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How many connections were opened so far.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// The names of the commands so far, in upper case.
    pub(crate) fn commands(&self) -> Vec<String> {
        self.shared.commands.lock().unwrap().clone()
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

impl FakeState {
    fn serve(&self, stream: TcpStream, port: u16) {
        let Ok(mut to) = stream.try_clone() else { return };
        let mut from = Resp::over(stream);
        while let Ok(Reply::Array(words)) = from.read() {
            let words: Vec<_> = words
                .into_iter()
                .map(|word| if let Reply::Bulk(bytes) = word { bytes } else { Vec::new() })
                .collect();
            let name = String::from_utf8_lossy(&words[0]).to_uppercase();
            self.commands.lock().unwrap().push(name);
            let (bytes, is_last) = match (self.answer)(port, &words) {
                Said::Bytes(bytes) => (bytes, false),
                Said::LastBytes(bytes) => (bytes, true),
                Said::Nothing => continue,
            };
            if to.write_all(&bytes).is_err() || is_last {
                let _ = to.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }
}
