//! A handler that answers with given bytes, at given times, and then closes or resets the
//! connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use super::recorded_cases::latin1_text;

/// A request as it arrived, its body without chunks.
#[derive(Clone, Debug)]
pub(crate) struct RawRequest {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl RawRequest {
    /// The values of a header, in their order.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let same = self.headers.iter().filter(|(given, _)| given.eq_ignore_ascii_case(name));
        same.map(|(_, value)| value.as_str()).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ending {
    Open,
    Close,
    Reset,
    /// Nothing more, on an open connection.
    Silence,
}

/// The bytes with which the handler responds to one request.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// Each with the wait before it.
    pub(crate) pieces: Vec<(Duration, Vec<u8>)>,
    pub(crate) ending: Ending,
    /// Notified if the connection closes before the last piece.
    pub(crate) on_close: Option<UnboundedSender<()>>,
}

impl Script {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        let pieces = vec![(Duration::ZERO, bytes.into())];
        Self { pieces, ending: Ending::Open, on_close: None }
    }

    pub(crate) fn json(body: &str) -> Self {
        let length = body.len();
        Self::new(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    }
}

type Respond = Arc<dyn Fn(RawRequest) -> Script + Send + Sync>;

/// Serves connections until the tasks are dropped.
pub(crate) async fn serve_raw(
    respond: impl Fn(RawRequest) -> Script + Send + Sync + 'static,
) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let respond: Respond = Arc::new(respond);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_connection(stream, Arc::clone(&respond)));
        }
    });
    (address, tasks)
}

async fn serve_connection(mut stream: TcpStream, respond: Respond) {
    let mut received = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut received).await {
        let script = respond(request);
        let (mut reading, mut writing) = stream.split();
        let is_written = tokio::select! {
            is_written = write_pieces(&mut writing, &script.pieces) => is_written,
            () = wait_for_close(&mut reading) => {
                if let Some(on_close) = &script.on_close {
                    // Few cases wait for it.
                    let _ = on_close.send(());
                }
                false
            }
        };
        match script.ending {
            _ if !is_written => return,
            Ending::Open => {}
            Ending::Close => return,
            Ending::Reset => return stream.set_zero_linger().unwrap(),
            Ending::Silence => std::future::pending().await,
        }
    }
}

/// Returns false if the connection is lost.
async fn write_pieces(writing: &mut WriteHalf<'_>, pieces: &[(Duration, Vec<u8>)]) -> bool {
    for (wait, bytes) in pieces {
        tokio::time::sleep(*wait).await;
        if writing.write_all(bytes).await.is_err() {
            return false;
        }
    }
    true
}

/// Never returns while the connection is open.
async fn wait_for_close(reading: &mut ReadHalf<'_>) {
    match reading.peek(&mut [0]).await {
        Ok(0) | Err(_) => {}
        // The next request.
        Ok(_) => std::future::pending().await,
    }
}

/// Reads the next request; `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream, received: &mut Vec<u8>) -> Option<RawRequest> {
    loop {
        if let Some((request, length)) = parse_request(received) {
            received.drain(..length);
            return Some(request);
        }
        if stream.read_buf(received).await.ok()? == 0 {
            return None;
        }
    }
}

/// Returns the first request and its length, once it is complete.
fn parse_request(bytes: &[u8]) -> Option<(RawRequest, usize)> {
    let head_length = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let head = latin1_text(&bytes[..head_length]);
    let mut lines = head.trim_end().split("\r\n");
    let mut words = lines.next()?.splitn(3, ' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers = lines.filter_map(|line| line.split_once(": ").or(line.split_once(':')));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut request = RawRequest { method, target, headers, body: Vec::new() };
    let rest = &bytes[head_length..];
    let length = if request.header("transfer-encoding") == ["chunked"] {
        let (body, length) = decode_chunks(rest)?;
        request.body = body;
        length
    } else {
        let length =
            request.header("content-length").first().map_or(0, |text| text.parse().unwrap());
        request.body = rest.get(..length)?.to_vec();
        length
    };
    Some((request, head_length + length))
}

/// Returns the body and the length of its chunks, once they are complete.
pub(crate) fn decode_chunks(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, mut position) = (Vec::new(), 0);
    loop {
        let line = bytes[position..].windows(2).position(|end| end == b"\r\n")?;
        let size = latin1_text(&bytes[position..position + line]);
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        position += line + 2;
        body.extend_from_slice(bytes.get(position..position + size)?);
        position += size;
        bytes.get(position..position + 2)?;
        position += 2;
        if size == 0 {
            return Some((body, position));
        }
    }
}
