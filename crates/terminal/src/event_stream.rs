//! Events of a conversation until nothing runs in it, across lost connections.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::{Response, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use crate::client::{ApiRequest, Client, first_delay, next_delay};
use crate::error::TerminalError;
use crate::members::text;
use crate::sse::{Frame, FrameParser};

/// The server sends `ping` after 15 s without another event: a silent stream is dead.
const SILENCE_MAX: Duration = Duration::from_secs(35);
/// Wait after a regular end of a stream, as the server requests it.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// An item of the stream.
#[derive(Debug, PartialEq)]
pub(crate) enum StreamItem {
    Event(Value),
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

/// Dropping a future of [`EventStream::next`] loses no event.
#[derive(Debug)]
pub(crate) struct EventStream {
    request: String,
    /// The newest stored event that was read.
    last_id: u64,
    connection: Connection,
    frames: VecDeque<Frame>,
    lost_since: Option<Instant>,
    delay: Duration,
    /// `agent_settled` was the last stored event.
    is_settled: bool,
}

impl EventStream {
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
    pub(crate) async fn next(&mut self, client: &Client) -> Result<StreamItem, TerminalError> {
        loop {
            if let Some(event) = self.next_event() {
                return Ok(StreamItem::Event(event));
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

    fn next_event(&mut self) -> Option<Value> {
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

    async fn connect(&mut self, client: &Client) -> Result<Option<StreamItem>, TerminalError> {
        let request = ApiRequest::get(format!("{}&after={}", self.request, self.last_id));
        match client.open(&request).await {
            Ok(response) => {
                let is_settled = response.status() == StatusCode::NO_CONTENT;
                let resumed = self.lost_since.take().map(|since| since.elapsed());
                self.delay = first_delay();
                if is_settled && resumed.is_none() {
                    return Ok(Some(StreamItem::Settled));
                }
                // The next request reports the end.
                self.connection = if is_settled {
                    Connection::Waiting(Instant::now())
                } else {
                    let deadline = Instant::now() + SILENCE_MAX;
                    Connection::Open(Box::new(response), FrameParser::default(), deadline)
                };
                Ok(resumed.map(StreamItem::Resumed))
            }
            Err(error) if error.is_temporary() => Ok(self.lose()),
            Err(error) => Err(error),
        }
    }

    /// Ends a stream that the server has ended.
    fn end(&mut self) -> Option<StreamItem> {
        self.connection = Connection::Waiting(Instant::now() + RECONNECT_DELAY);
        self.is_settled.then_some(StreamItem::Settled)
    }

    fn lose(&mut self) -> Option<StreamItem> {
        self.connection = Connection::Waiting(Instant::now() + self.delay);
        self.delay = next_delay(self.delay);
        let is_first = self.lost_since.is_none();
        self.lost_since.get_or_insert_with(Instant::now);
        is_first.then_some(StreamItem::Lost)
    }
}
