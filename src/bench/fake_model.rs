//! A model that takes no time: it streams like a Responses service and records the time of each
//! request.
//!
//! It implements a minimum of HTTP, so that processor time goes to the measured worker.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::bench::case::Case;

/// The only tool that is called: it is built in, reads nothing and takes no time.
pub(crate) const TOOL: &str = "ls";

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
/// A larger request does not come from a worker.
const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Serves until dropped.
#[derive(Debug)]
pub(crate) struct FakeModel {
    address: SocketAddr,
    log: Arc<Mutex<ModelLog>>,
    _server: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct ModelLog {
    /// By conversation: end of its last response.
    response_ended_at: HashMap<String, Instant>,
    /// Durations from the end of a response to the next request of the same prompt: a turn without
    /// the model.
    turn_durations: Vec<Duration>,
    request_bytes: u64,
}

/// Measurements since the last call.
#[derive(Debug)]
pub(super) struct Measurements {
    pub(super) turn_durations: Vec<Duration>,
    pub(super) request_bytes: u64,
}

impl FakeModel {
    /// # Errors
    /// No port is free.
    pub(crate) async fn start(case: &Case) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let notes = Arc::<Mutex<ModelLog>>::default();
        let (log, deltas) = (Arc::clone(&notes), case.deltas);
        #[expect(clippy::disallowed_methods, reason = "a server that ends with its handle")]
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let log = Arc::clone(&log);
                connections.spawn(async move { serve(stream, deltas, &log).await });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, log: notes, _server: AbortOnDropHandle::new(server) })
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/openai/v1", self.address)
    }

    pub(super) fn take_measurements(&self) -> Measurements {
        let mut notes = lock_log(&self.log);
        let request_bytes = std::mem::take(&mut notes.request_bytes);
        Measurements { turn_durations: std::mem::take(&mut notes.turn_durations), request_bytes }
    }
}

fn lock_log(notes: &Mutex<ModelLog>) -> MutexGuard<'_, ModelLog> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves requests until the connection ends; closes it at a request that is not a model call.
async fn serve(mut stream: TcpStream, deltas: usize, notes: &Mutex<ModelLog>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        let end = read_request(&mut stream, &mut buffer).await?;
        let call = ParsedModelCall::parse(std::str::from_utf8(buffer.get(..end)?).ok()?)?;
        {
            let now = Instant::now();
            let mut notes = lock_log(notes);
            notes.request_bytes += u64::try_from(end).unwrap_or_default();
            if let Some(at) = notes.response_ended_at.remove(&call.conversation)
                && call.results > 0
            {
                notes.turn_durations.push(now - at);
            }
        }
        buffer.drain(..end);
        let mut pieces = call.response_chunks(deltas).into_iter().peekable();
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                // Recorded before the last byte is sent: the worker may be faster than this task.
                lock_log(notes).response_ended_at.insert(call.conversation.clone(), Instant::now());
            }
            stream.write_all(piece.as_bytes()).await.ok()?;
            if deltas > 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Returns the length of the request at the start of the buffer, once it is complete.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<usize> {
    let mut request_length = None;
    loop {
        if request_length.is_none()
            && let Some(head) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n")
        {
            let text = std::str::from_utf8(buffer.get(..head)?).ok()?;
            let length = text.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                if is_length { value.trim().parse::<usize>().ok() } else { None }
            })?;
            request_length = Some(head + 4 + length)
                .filter(|request_length| *request_length <= REQUEST_BYTES_MAX);
            request_length?;
        }
        if let Some(request_length) = request_length
            && buffer.len() >= request_length
        {
            return Some(request_length);
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// The parts of a request that determine its response.
struct ParsedModelCall {
    conversation: String,
    /// Number of rounds that the prompt requests: the number at the end of its text.
    rounds: usize,
    /// Number of rounds so far.
    results: usize,
}

impl ParsedModelCall {
    /// Searches the body instead of parsing it: it is compact JSON in a fixed order, and long.
    fn parse(request: &str) -> Option<Self> {
        let prompt = request.rfind(r#""role":"user""#)?;
        let since = request.get(prompt..)?;
        let text = text_after(since, r#""text":""#)?;
        let rounds = text.split('"').next()?.rsplit(' ').next()?.parse().ok()?;
        let results = since.matches(r#""type":"function_call_output""#).count();
        let conversation =
            text_after(request, r#""prompt_cache_key":""#)?.split('"').next()?.to_owned();
        Some(Self { conversation, rounds, results })
    }

    /// The response's bytes in the chunks in which they are sent.
    fn response_chunks(&self, deltas: usize) -> Vec<String> {
        let number = self.results;
        let mut events = vec![sse_event(
            r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}"#,
        )];
        let mut output = Vec::new();
        let is_last = number >= self.rounds;
        if is_last || deltas > 0 {
            let text = "word ".repeat(deltas.max(1));
            let item = |content: &str| {
                format!(
                    r#"{{"type":"message","id":"msg_{number}","role":"assistant","content":[{content}]}}"#
                )
            };
            events.push(sse_event(&item_added_event(0, &item(""))));
            let delta = r#"{"type":"response.output_text.delta","output_index":0,"delta":"word "}"#;
            events.extend((0..deltas.max(1)).map(|_| sse_event(delta)));
            output.push(item(&format!(
                r#"{{"type":"output_text","text":"{text}","annotations":[]}}"#
            )));
            events.extend(output.last().map(|item| sse_event(&item_done_event(0, item))));
        }
        if !is_last {
            let index = output.len();
            let item = |arguments: &str| {
                format!(
                    r#"{{"type":"function_call","id":"fc_{number}","call_id":"call_{number}","name":"{TOOL}","arguments":"{arguments}"}}"#
                )
            };
            events.push(sse_event(&item_added_event(index, &item(""))));
            events.push(sse_event(&format!(r#"{{"type":"response.function_call_arguments.delta","output_index":{index},"delta":"{{}}"}}"#)));
            output.push(item("{}"));
            events.extend(output.last().map(|item| sse_event(&item_done_event(index, item))));
        }
        let output = output.join(",");
        events.push(sse_event(&format!(
            r#"{{"type":"response.completed","response":{{"id":"resp_1","status":"completed","output":[{output}],"usage":{{"input_tokens":10,"input_tokens_details":{{"cached_tokens":0}},"output_tokens":5,"total_tokens":15}}}}}}"#
        )));
        if deltas == 0 {
            return vec![format!("{HEAD}{}0\r\n\r\n", http_chunk(&events.concat()))];
        }
        let mut pieces: Vec<String> = events.iter().map(|event| http_chunk(event)).collect();
        pieces.insert(0, HEAD.to_owned());
        if let Some(last) = pieces.last_mut() {
            last.push_str("0\r\n\r\n");
        }
        pieces
    }
}

fn text_after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark).map(|(_, after)| after)
}

fn sse_event(data: &str) -> String {
    format!("data: {data}\n\n")
}

fn item_added_event(index: usize, item: &str) -> String {
    format!(r#"{{"type":"response.output_item.added","output_index":{index},"item":{item}}}"#)
}

fn item_done_event(index: usize, item: &str) -> String {
    format!(r#"{{"type":"response.output_item.done","output_index":{index},"item":{item}}}"#)
}

fn http_chunk(bytes: &str) -> String {
    let mut chunk = String::with_capacity(bytes.len() + 16);
    let _ = write!(chunk, "{:x}\r\n{bytes}\r\n", bytes.len());
    chunk
}
