//! Reader of server-sent events that can disconnect in the middle of a stream.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;

use crate::support::openapi_check::{self, Exchange};
use crate::support::service::Service;

/// Time limit of one read; a stream that sends nothing for so long fails the test.
const READ_TIMEOUT: Duration = Duration::from_mins(2);

/// One frame. A frame with only an id advances the reader's last event id.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) id: Option<u64>,
    /// Empty when there is none.
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// An open event stream. Dropping it closes the connection.
pub(crate) struct EventStream {
    pub(crate) status: u16,
    response: reqwest::Response,
    text: String,
}

impl EventStream {
    /// Opens a stream; it receives all later events. `after` is sent as `Last-Event-ID`.
    pub(crate) async fn open(
        service: &Service,
        conversation: &str,
        query: &str,
        after: Option<u64>,
    ) -> Self {
        let url = format!("{}/api/conversations/{conversation}/events{query}", service.base);
        let mut request = service.client.get(url);
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let url = response.url();
        // The events are validated as they arrive.
        openapi_check::check_response(&Exchange {
            method: &Method::GET,
            path: url.path(),
            query: url.query().unwrap_or_default(),
            status,
            headers: response.headers(),
            text: "",
        });
        assert!(status < 300, "the stream request fails with {status}");
        Self { status, response, text: String::new() }
    }

    /// The next frame that is not a ping; `None` if the stream has ended.
    pub(crate) async fn next_frame(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, rest)) = self.text.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.text = rest;
                openapi_check::check_events(&format!("{frame}\n\n"));
                if let Some(frame) = parse_frame(&frame) {
                    return Some(frame);
                }
                continue;
            }
            let chunk = tokio::time::timeout(READ_TIMEOUT, self.response.chunk()).await;
            let chunk = chunk.expect("the stream must continue or end").unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).expect("a chunk must be a whole frame"));
        }
    }

    /// Reads all frames up to the first of that name.
    pub(crate) async fn read_until(&mut self, name: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next_frame().await {
            let is_last = frame.name == name;
            frames.push(frame);
            if is_last {
                return frames;
            }
        }
        panic!("the stream ended without {name}: {frames:#?}");
    }

    /// Reads all frames up to the end of the stream.
    pub(crate) async fn read_rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next_frame().await {
            frames.push(frame);
        }
        frames
    }
}

fn parse_frame(text: &str) -> Option<Frame> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let id = line("id:").map(|id| id.parse().expect("an id must be a number"));
    let name = line("event:").unwrap_or_default().to_owned();
    let data = line("data:").map_or(Value::Null, |data| serde_json::from_str(data).unwrap());
    let is_event = !name.is_empty() && name != "ping";
    (id.is_some() || is_event).then_some(Frame { id, name, data })
}

/// The ids of the frames.
pub(crate) fn frame_ids(frames: &[Frame]) -> Vec<u64> {
    frames.iter().filter_map(|frame| frame.id).collect()
}
