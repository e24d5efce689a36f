//! Events of a conversation until nothing runs in it, across lost connections.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::{Response, StatusCode};
use tokio::time::Instant;
use turnwheel_json::exact::ExactJson;

use crate::client::{ApiRequest, Client, first_delay, next_delay};
use crate::error::TerminalError;
use crate::members::text;
use crate::sse::{FrameParser, SseFrame};

/// The server sends `ping` after 15 s without another event: a silent stream is dead.
const SILENCE_MAX: Duration = Duration::from_secs(35);
/// Wait after a regular end of a stream, as the server requests it.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// An item of the stream.
#[derive(Debug, PartialEq)]
pub(crate) enum StreamUpdate {
    Event(ExactJson),
    /// The connection is lost, once for each loss.
    Lost,
    /// The connection is back after this time.
    Resumed(Duration),
    /// Nothing runs, and nothing is queued.
    Settled,
}

/// State of the connection.
#[derive(Debug)]
enum Connection {
    /// Connect at this time.
    Waiting(Instant),
    Open(Box<Response>, FrameParser, Instant),
}

/// Dropping a future of [`EventFollower::next`] loses no event.
#[derive(Debug)]
pub(crate) struct EventFollower {
    request: String,
    /// The newest stored event that was read.
    last_id: u64,
    connection: Connection,
    frames: VecDeque<SseFrame>,
    lost_since: Option<Instant>,
    delay: Duration,
    /// `agent_settled` was the last stored event.
    is_settled: bool,
}

impl EventFollower {
    /// Follows the conversation at `path` after stored event `after`.
    pub(crate) fn new(path: &str, after: u64) -> Self {
        Self {
            request: format!("{path}/events?until=settled"),
            last_id: after,
            connection: Connection::Waiting(Instant::now()),
            frames: VecDeque::new(),
            lost_since: None,
            delay: first_delay(),
            is_settled: false,
        }
    }

    pub(crate) fn last_id(&self) -> u64 {
        self.last_id
    }

    /// # Errors
    /// The service refuses the stream, such as for a deleted conversation.
    pub(crate) async fn next(&mut self, client: &Client) -> Result<StreamUpdate, TerminalError> {
        loop {
            if let Some(event) = self.next_event() {
                return Ok(StreamUpdate::Event(event));
            }
            let item = match &mut self.connection {
                Connection::Waiting(until) => {
                    tokio::time::sleep_until(*until).await;
                    self.connect(client).await?
                }
                Connection::Open(response, parser, deadline) => {
                    let chunk = tokio::time::timeout_at(*deadline, response.chunk()).await;
                    match chunk {
                        Ok(Ok(Some(bytes))) => {
                            self.frames.extend(parser.push(&bytes));
                            *deadline = Instant::now() + SILENCE_MAX;
                            None
                        }
                        Ok(Ok(None)) => self.end(),
                        Ok(Err(_)) | Err(_) => self.lose(),
                    }
                }
            };
            if let Some(item) = item {
                return Ok(item);
            }
        }
    }

    fn next_event(&mut self) -> Option<ExactJson> {
        while let Some(frame) = self.frames.pop_front() {
            if let Some(id) = frame.id {
                self.last_id = id;
                self.is_settled = frame
                    .event
                    .as_ref()
                    .is_some_and(|event| text(event, "type") == "agent_settled");
            }
            let event = frame.event.filter(|event| text(event, "type") != "ping");
            if event.is_some() {
                return event;
            }
        }
        None
    }

    async fn connect(&mut self, client: &Client) -> Result<Option<StreamUpdate>, TerminalError> {
        let request = ApiRequest::get(format!("{}&after={}", self.request, self.last_id));
        match client.open(&request).await {
            Ok(response) => {
                let is_settled = response.status() == StatusCode::NO_CONTENT;
                let resumed = self.lost_since.take().map(|since| since.elapsed());
                self.delay = first_delay();
                if is_settled && resumed.is_none() {
                    return Ok(Some(StreamUpdate::Settled));
                }
                // The next request reports the end.
                self.connection = if is_settled {
                    Connection::Waiting(Instant::now())
                } else {
                    let deadline = Instant::now() + SILENCE_MAX;
                    Connection::Open(Box::new(response), FrameParser::default(), deadline)
                };
                Ok(resumed.map(StreamUpdate::Resumed))
            }
            Err(error) if error.is_temporary() => Ok(self.lose()),
            Err(error) => Err(error),
        }
    }

    /// Ends a stream that the server has ended.
    fn end(&mut self) -> Option<StreamUpdate> {
        self.connection = Connection::Waiting(Instant::now() + RECONNECT_DELAY);
        self.is_settled.then_some(StreamUpdate::Settled)
    }

    fn lose(&mut self) -> Option<StreamUpdate> {
        self.connection = Connection::Waiting(Instant::now() + self.delay);
        self.delay = next_delay(self.delay);
        let is_first = self.lost_since.is_none();
        self.lost_since.get_or_insert_with(Instant::now);
        is_first.then_some(StreamUpdate::Lost)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::arguments::ServiceArguments;
    use crate::client::ClientCredentials;

    const HEAD: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

    fn chunk(text: &str) -> String {
        format!("{:x}\r\n{text}\r\n", text.len())
    }

    /// Accepts a connection, and returns it with the first line of its request.
    async fn accept(listener: &TcpListener) -> (TcpStream, String) {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(connection.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap();
        (connection, request.lines().next().unwrap().to_owned())
    }

    /// Cuts the first stream in a frame, refuses the second one, and completes the third one.
    async fn serve(listener: &TcpListener) -> Vec<String> {
        let (mut first, request) = accept(listener).await;
        let mut requests = vec![request];
        let stored = chunk("data: {\"type\":\"notify\"}\nid: 1\n\ndata: {\"type\":\"ping\"}\n\n");
        let cut = chunk("data: {\"type\":\"lost\"}\nid: 2\n");
        first.write_all(format!("{HEAD}{stored}{cut}").as_bytes()).await.unwrap();
        drop(first);
        let (mut second, request) = accept(listener).await;
        requests.push(request);
        let refusal = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        second.write_all(refusal.as_bytes()).await.unwrap();
        drop(second);
        let (mut third, request) = accept(listener).await;
        requests.push(request);
        let end = chunk("id: 2\n\ndata: {\"type\":\"agent_settled\"}\nid: 3\n\n");
        third.write_all(format!("{HEAD}{end}0\r\n\r\n").as_bytes()).await.unwrap();
        requests
    }

    #[tokio::test]
    async fn lost_stream_continues_after_the_last_complete_event() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let arguments = ServiceArguments::default();
        let client = Client::new(&address, ClientCredentials::None, &arguments).unwrap();
        let mut stream = EventFollower::new("/api/conversations/c", 0);
        let follow = async {
            let mut items = Vec::new();
            loop {
                let item = stream.next(&client).await.unwrap();
                let is_last = item == StreamUpdate::Settled;
                items.push(match item {
                    StreamUpdate::Event(event) => text(&event, "type").to_owned(),
                    StreamUpdate::Lost => "lost".to_owned(),
                    StreamUpdate::Resumed(_) => "resumed".to_owned(),
                    StreamUpdate::Settled => "settled".to_owned(),
                });
                if is_last {
                    return items;
                }
            }
        };
        let (requests, items) = tokio::join!(serve(&listener), follow);
        assert_eq!(items, ["notify", "lost", "resumed", "agent_settled", "settled"]);
        assert_eq!(stream.last_id(), 3);
        let after: Vec<&str> =
            requests.iter().filter_map(|line| line.split(['=', ' ']).nth_back(1)).collect();
        assert_eq!(after, ["0", "1", "1"], "{requests:?}");
    }
}
