//! A server that sends exact bytes and records its requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Bytes {
        bytes: Vec<u8>,
        stays_open: bool,
    },
    /// Reads the request and closes.
    Cut,
    /// Reads the request and sends nothing.
    Hang,
}

/// Of replies after which the server closes: without it, an attempt at the same moment would use the
/// connection.
const CLOSES: &str = "connection: close\r\n";

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        let head = format!("HTTP/1.1 {status} \r\n{CLOSES}content-length: 0\r\n\r\n");
        Self::bytes(head.into_bytes())
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::status(200).with_body("text/plain", text)
    }

    pub(crate) fn json(text: &str) -> Self {
        Self::status(200).with_body("application/json", text)
    }

    pub(crate) fn bytes(bytes: Vec<u8>) -> Self {
        Self::Bytes { bytes, stays_open: false }
    }

    pub(crate) fn with(self, name: &str, value: &str) -> Self {
        let (head, body) = self.parts();
        Self::bytes(
            [head.as_bytes(), format!("{name}: {value}\r\n\r\n").as_bytes(), &body].concat(),
        )
    }

    pub(crate) fn with_body(self, mime_type: &str, text: &str) -> Self {
        self.with_bytes(mime_type, text.as_bytes())
    }

    pub(crate) fn with_bytes(self, mime_type: &str, body: &[u8]) -> Self {
        let (head, _) = self.parts();
        let head = head.replace("content-length: 0\r\n", "");
        let fields = format!("content-type: {mime_type}\r\ncontent-length: {}\r\n\r\n", body.len());
        let fields = if mime_type.is_empty() {
            format!("content-length: {}\r\n\r\n", body.len())
        } else {
            fields
        };
        Self::bytes([head.as_bytes(), fields.as_bytes(), body].concat())
    }

    /// Removes the last byte.
    pub(crate) fn truncated(self) -> Self {
        let Self::Bytes { mut bytes, .. } = self else { return self };
        bytes.pop();
        Self::bytes(bytes)
    }

    /// Leaves the connection open and reads no further request.
    pub(crate) fn keep_open(self) -> Self {
        let (head, body) = self.parts();
        let head = head.replace(CLOSES, "");
        Self::Bytes { bytes: [head.as_bytes(), b"\r\n", &body].concat(), stays_open: true }
    }

    /// Announces a longer body than it sends, and leaves the connection open.
    pub(crate) fn unfinished(self) -> Self {
        let (head, body) = self.parts();
        let head = head.replace(CLOSES, "").replace("content-length: ", "content-length: 99");
        Self::Bytes { bytes: [head.as_bytes(), b"\r\n", &body].concat(), stays_open: true }
    }

    /// Announces a longer body than it sends, and closes.
    pub(crate) fn cut_short(self) -> Self {
        let (head, body) = self.parts();
        let head = head.replace("content-length: ", "content-length: 99");
        Self::bytes([head.as_bytes(), b"\r\n", &body].concat())
    }

    /// Sends the body as one chunk, and closes without the last chunk.
    pub(crate) fn without_last_chunk(self) -> Self {
        let (head, body) = self.parts();
        let fields = head.lines().filter(|line| !line.starts_with("content-length: "));
        let head: String = fields.flat_map(|line| [line, "\r\n"]).collect();
        let chunk = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len());
        Self::bytes([head.as_bytes(), chunk.as_bytes(), &body, b"\r\n"].concat())
    }

    fn parts(self) -> (String, Vec<u8>) {
        let Self::Bytes { bytes, .. } = self else { return (String::new(), Vec::new()) };
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 2;
        (String::from_utf8(bytes[..end].to_vec()).unwrap(), bytes[end + 2..].to_vec())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) line: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Sends the replies in turn and repeats the last one; each reply closes its connection.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Server {
    pub(crate) fn start(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&requests);
        let replies = replies.to_vec();
        std::thread::spawn(move || {
            let mut open_streams = Vec::new();
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let Some(request) = read_request(&stream) else { continue };
                let number = {
                    let mut received = received.lock().unwrap();
                    received.push(request);
                    received.len() - 1
                };
                match replies.get(number).or(replies.last()) {
                    Some(Reply::Bytes { bytes, stays_open: then_hang }) => {
                        let _ = stream.write_all(bytes);
                        if *then_hang {
                            open_streams.push(stream);
                        }
                    }
                    Some(Reply::Hang) => open_streams.push(stream),
                    Some(Reply::Cut) | None => {}
                }
            }
        });
        Self { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn only_request(&self) -> ReceivedRequest {
        let requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests[0].clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<ReceivedRequest> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok().filter(|length| *length > 0)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .and_then(|(_, value)| value.parse::<usize>().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(ReceivedRequest {
        line: line.trim_end().to_owned(),
        headers,
        body: String::from_utf8(body).ok()?,
    })
}
