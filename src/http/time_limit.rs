//! Time limit of requests. The Functions host kills the whole process when one invocation exceeds
//! `functionTimeout`, with all other work in it.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, StreamExt as _, stream};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tokio::time::{Instant, timeout_at};

use crate::http::SharedApi;
use crate::http::problem::{self, Problem};
use crate::queries::event_stream::STREAM_DURATION_MAX;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// Ends requests and response bodies that take longer than a turn. Event streams end by themselves.
pub(crate) async fn limit_time(
    State(api): State<SharedApi>,
    request: Request,
    next: Next,
) -> Response {
    let limit = api.services.limits.turn_duration.max(STREAM_DURATION_MAX);
    let ends = Instant::now() + limit;
    match timeout_at(ends, next.run(request)).await {
        Ok(response) if response.headers().get(CONTENT_TYPE) == Some(&EVENT_STREAM) => response,
        Ok(response) => response.map(|body| limit_body(body, ends)),
        Err(_) => too_slow(limit).into_response(),
    }
}

fn too_slow(limit: Duration) -> Problem {
    let detail = format!(
        "The request did not end within {} s. Repeat it; send less data, or read less at a time.",
        limit.as_secs()
    );
    Problem::new(problem::UNAVAILABLE, detail)
}

/// A body that is cut at that time. A body of known size keeps its size.
fn limit_body(body: Body, ends: Instant) -> Body {
    use axum::body::HttpBody as _;

    if body.size_hint().exact().is_some() {
        return body;
    }
    Body::from_stream(cut_at(body.into_data_stream(), ends))
}

fn cut_at<E: Into<axum::BoxError>>(
    data: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ends: Instant,
) -> impl Stream<Item = Result<Bytes, axum::BoxError>> {
    stream::unfold(Some(data), move |data| async move {
        let mut data = data?;
        match timeout_at(ends, data.next()).await {
            Ok(item) => Some((item?.map_err(Into::into), Some(data))),
            Err(_) => Some((Err(io::Error::from(io::ErrorKind::TimedOut).into()), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn body_that_does_not_end_is_cut() {
        let ends = Instant::now() + Duration::from_mins(5);
        let slow = stream::unfold(0_u32, |count| async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            Some((Ok::<_, Infallible>(Bytes::from_static(b"x")), count + 1))
        });
        let items: Vec<_> = cut_at(Box::pin(slow), ends).collect().await;
        assert_eq!(items.len(), 4, "three parts and an error");
        assert!(items[3].is_err());
        let whole = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"x"))]);
        let items: Vec<_> = cut_at(whole, ends).collect().await;
        assert!(items.len() == 1 && items[0].is_ok());
    }
}
