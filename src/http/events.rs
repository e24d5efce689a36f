//! Events: what happened, what happens, and nothing twice. Durable ones come from the store by number, so any instance serves
//! any reader; live ones are only faster.

mod feed;
mod fill;
mod frame;
mod told;

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, Path, State};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::agent::head::Head;
use crate::agent::phase::Phase;
use crate::http::lists::Params;
use crate::http::owner::Caller;
use crate::http::problem::Problem;
use crate::http::{Shared, reach};
use crate::turn::World;
use crate::turn::admission::Refusal;
use crate::turn::views::load;

pub use feed::{Feed, Until};

/// Events as they happen (SSE).
#[utoipa::path(
    get, path = "/conversations/{id}/events", tag = "events",
    params(
        ("id" = String, Path),
        ("after" = Option<u64>, Query, description = "number of the last event that is known"),
        ("Last-Event-ID" = Option<u64>, Header, description = "the same; wins"),
        ("follow" = Option<bool>, Query, description = "false: end after the past"),
        ("until" = Option<String>, Query, description = "`settled`: end when nothing runs any more, then 204"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream"),
        (status = 204, description = "`until=settled`, and nothing runs or is new"),
    )
)]
pub(crate) async fn stream(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (key, head) = reach::to_read(&api, &caller, (&id, &uri)).await?;
    let params = Params::of(&uri);
    let after = match last_event_id(&headers) {
        Some(after) => after,
        None => params.number("after", 0, u64::MAX)?.unwrap_or(0),
    };
    if after > head.event_seq {
        return Err(Problem::bad_request(format!(
            "the newest event has the number {}: begin there or before",
            head.event_seq
        )));
    }
    let until = match (params.flag("follow")?, params.get("until")) {
        (Some(false), _) => Until::Past(head.event_seq),
        (_, Some("settled")) => Until::Settled,
        (_, None) => Until::Closed,
        (_, Some(_)) => return Err(Problem::bad_request("`until` is `settled`")),
    };
    let is_over = after == head.event_seq && after > 0;
    if until == Until::Settled && is_over && is_settled(&api.world, &head).await? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let feed = Feed::new(api.world.clone(), key, after, until);
    Ok(response(feed))
}

/// Browsers send it when they connect again; one that is no number of ours is passed over.
fn last_event_id(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.trim().parse().ok()
}

/// Whether nothing runs, waits for a person, or is about to run; and nothing happened since the head was read.
pub(crate) async fn is_settled(world: &World, head: &Head) -> Result<bool, Refusal> {
    if head.phase != Phase::Idle {
        return Ok(false);
    }
    let (inbox, now) = load::inbox_then_head(world, &head.key()).await?;
    let is_idle = now.phase == Phase::Idle && now.event_seq == head.event_seq;
    Ok(is_idle && !inbox.iter().any(|item| load::waiting_prompt(item).is_some()))
}

fn response(feed: Feed) -> Response {
    let frames = stream::unfold(feed, |mut feed| async move {
        let frame = feed.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(frame)), feed))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that hold answers back would hold these for minutes.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
