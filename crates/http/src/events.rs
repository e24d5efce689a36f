//! Event streams as server-sent events.

mod frame;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::OwnedSemaphorePermit;

use crate::conversation_request::ConversationRead;
use crate::events::frame::{EventFormat, FrameFormat};
use crate::lists::QueryParams;
use crate::problem::{self, Problem};
use turnwheel_commands::waiting_client::WaitingClient;
use turnwheel_conversation::head::Head;
use turnwheel_platform::clock::Clock;
use turnwheel_queries::event_stream::{
    EventPayload, EventReader, StreamEnd, StreamEvent, StreamItem, is_settled,
};
use turnwheel_queries::protocol_events::{ProtocolEvents, TextUnit};

/// Maximum number of event streams of one process. Each is an invocation that the host keeps open,
/// and buffers up to 1 MB for a slow reader.
pub const STREAMS_MAX: usize = 500;
/// Value of `until` for clients that end at this event.
const AGENT_SETTLED: &str = "agent_settled";
/// Time without a frame after which a `ping` is sent.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// Stream the events of the conversation (server-sent events).
#[utoipa::path(
    get, path = "/conversations/{id}/events", operation_id = "streamEvents", tag = "events",
    params(
        ("id" = String, Path),
        ("after" = Option<u64>, Query, description = "Number of the last event received."),
        ("Last-Event-ID" = Option<u64>, Header, description = "Number of the last event received. Overrides `after`."),
        ("follow" = Option<bool>, Query, description = "`false`: end after the stored events."),
        ("until" = Option<String>, Query, description = "`settled`: end after `agent_settled`; later requests get 204. `agent_settled`: the same, and later requests get `agent_settled` again."),
        ("events" = Option<String>, Query, description = "`message`: frames without the line `event:`, so that `onmessage` of browsers receives all."),
        ("format" = Option<String>, Query, description = "`protocol`: the events of the streaming text protocol."),
        ("stream" = Option<String>, Query, description = "With `format=protocol`: `token` sends texts as they are written, `event` (default) and `none` when they are complete."),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream", description = "Server-sent events; the data of each is an `Event`. With `until=settled`: 204 if nothing runs and there are no new events."),
        (status = 503, description = "This instance serves its maximum number of streams. Connect again after `Retry-After` seconds."),
    )
)]
pub(crate) async fn stream(
    read: ConversationRead,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let ConversationRead { api, key, head, params, .. } = read;
    let after = match last_event_id(&headers) {
        Some(after) => after,
        None => params.number("after", 0, u64::MAX)?.unwrap_or(0),
    };
    if after > head.event_seq {
        return Err(Problem::bad_request(format!(
            "The newest event has number {}. Start after that number or an earlier one.",
            head.event_seq
        )));
    }
    let until = match (params.flag("follow")?, params.get("until")) {
        (Some(false), _) => StreamEnd::AfterEvent(head.event_seq),
        (_, Some("settled" | AGENT_SETTLED)) => StreamEnd::WhenSettled,
        (_, None) => StreamEnd::AtMaxDuration,
        (_, Some(_)) => {
            return Err(Problem::bad_request("`until` must be `settled` or `agent_settled`."));
        }
    };
    let format = read_format(&params, after > 0)?;
    let has_all = after == head.event_seq;
    if until == StreamEnd::WhenSettled && has_all && is_settled(&api.services, &head).await? {
        // `EventSource` connects again until it gets 204, which other clients take for an error.
        return Ok(if params.get("until") == Some(AGENT_SETTLED) {
            settled_stream(&head, format)
        } else {
            StatusCode::NO_CONTENT.into_response()
        });
    }
    let Ok(slot) = Arc::clone(&api.stream_slots).try_acquire_owned() else {
        return Err(too_many_streams());
    };
    let services = &api.services;
    let reader = EventReader::new(services.clone(), key.clone(), after, until);
    // After the reader subscribed: it misses no event of turns that start now.
    let clients = api.waiting_clients.as_ref();
    let clients = clients.filter(|_| !matches!(until, StreamEnd::AfterEvent(_)));
    let client = clients.map(|clients| clients.add(&key));
    let slot = StreamSlot { _permit: slot, _client: client };
    let end = services.shutdown.clone().wait_until_begun();
    Ok(stream_response(reader, format, slot, Arc::clone(&services.clock), end))
}

/// Guards of a stream, dropped with its body.
struct StreamSlot {
    _permit: OwnedSemaphorePermit,
    _client: Option<WaitingClient>,
}

/// The stream of a reader that has all events while nothing runs: `agent_settled` once more.
fn settled_stream(head: &Head, mut format: FrameFormat) -> Response {
    let settled = StreamEvent {
        number: Some(head.event_seq).filter(|number| *number > 0),
        at: head.updated_at,
        prompt_id: head.prompts.last().map(|prompt| prompt.id.clone()),
        turn: head.turn,
        payload: EventPayload::AgentSettled,
    };
    let frame = format.render(&StreamItem::Event(Box::new(settled)));
    event_stream(Body::from(format!("{}{frame}", frame::RETRY)))
}

/// # Errors
/// `format`, `stream` or `events` is invalid.
fn read_format(params: &QueryParams, is_resumed: bool) -> Result<FrameFormat, Problem> {
    let unit = match params.get("stream") {
        None | Some("event" | "none") => TextUnit::Event,
        Some("token") => TextUnit::Token,
        Some(_) => {
            return Err(Problem::bad_request("`stream` must be `token`, `event` or `none`."));
        }
    };
    let events = match params.get("format") {
        Some("protocol") => EventFormat::Protocol(ProtocolEvents::new(unit, is_resumed)),
        Some(_) => return Err(Problem::bad_request("`format` must be `protocol`.")),
        None if params.get("stream").is_some() => {
            return Err(Problem::bad_request("`stream` needs `format=protocol`."));
        }
        None => EventFormat::Own,
    };
    match params.get("events") {
        None => Ok(FrameFormat { events, has_names: true }),
        Some("message") => Ok(FrameFormat { events, has_names: false }),
        Some(_) => Err(Problem::bad_request("`events` must be `message`.")),
    }
}

fn too_many_streams() -> Problem {
    let detail = format!(
        "This instance already serves {STREAMS_MAX} event streams, its limit. Connect again after `Retry-After` seconds."
    );
    Problem::new(problem::UNAVAILABLE, detail).with_header(RETRY_AFTER, "5")
}

/// Returns the event number that browsers send when they reconnect. An invalid number is ignored.
pub(super) fn last_event_id(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.trim().parse().ok()
}

/// Renders the events as the response body. The stream's slot is free again when the body is
/// dropped.
fn stream_response(
    reader: EventReader,
    format: FrameFormat,
    slot: StreamSlot,
    clock: Arc<dyn Clock>,
    end: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let items = stream::unfold(reader, |mut reader| async move {
        let item = reader.next().await?;
        Some((item, reader))
    });
    // The stream of items keeps a read that is in progress when a ping is due.
    let start = (Box::pin(items.take_until(Box::pin(end))), format, slot, clock);
    let events = stream::unfold(start, |(mut items, mut format, slot, clock)| async move {
        let frames = loop {
            match tokio::time::timeout(PING_INTERVAL, items.next()).await {
                Ok(item) => {
                    let frames = format.render(&item?);
                    if !frames.is_empty() {
                        break frames;
                    }
                }
                Err(_) => break format.ping(clock.now()),
            }
        };
        Some((Bytes::from(frames), (items, format, slot, clock)))
    });
    let retry = stream::iter([Bytes::from_static(frame::RETRY.as_bytes())]);
    let frames = retry.chain(events).map(Ok::<_, Infallible>);
    event_stream(Body::from_stream(frames))
}

fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that buffer responses would delay events for minutes.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
