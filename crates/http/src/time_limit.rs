//! Time limit of requests. The Functions host kills the whole process when one invocation exceeds
//! `functionTimeout`, with all other work in it.

use std::io;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, StreamExt as _, stream};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tokio::time::{Instant, timeout_at};

use crate::problem::{self, Problem};
use crate::request_bounds::{EndReason, RequestEnd};

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// `Retry-After` in seconds of a request that the end of the process cut.
const RETRY_AFTER: u64 = 5;

/// Ends requests and response bodies that take longer than [`RequestEnd`]. Event streams end by
/// themselves.
pub(crate) async fn limit_time(request: Request, next: Next) -> Response {
    let Some(end) = request.extensions().get::<RequestEnd>().cloned() else {
        return next.run(request).await;
    };
    let begun = Instant::now();
    tokio::select! {
        response = next.run(request) => {
            if response.headers().get(CONTENT_TYPE) == Some(&EVENT_STREAM) {
                return response;
            }
            response.map(|body| limit_body(body, end.at))
        }
        reason = end.wait() => end_problem(reason, begun).into_response(),
    }
}

fn end_problem(reason: EndReason, begun: Instant) -> Problem {
    match reason {
        EndReason::TimeOver => {
            let seconds = begun.elapsed().as_secs();
            let detail = format!(
                "The request did not end within {seconds} s. Repeat it; send less data, or read less at a time."
            );
            Problem::new(problem::UNAVAILABLE, detail)
        }
        EndReason::Stopping => {
            let detail = "This instance stops, and the request was under way. Repeat it, with its `Idempotency-Key` if it has one.";
            Problem::new(problem::UNAVAILABLE, detail).retry_after(RETRY_AFTER)
        }
    }
}

/// A body that is cut at that time. One of known size is in memory: the server cuts its connection.
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
    use std::time::Duration;

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
