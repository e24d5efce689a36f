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
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::problem::{self, Problem};
use crate::request_bounds::{EndReason, RequestEnd};
use turnwheel_queries::event_stream::STREAM_DURATION_MAX;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// `Retry-After` in seconds of a request that the end of the process cut.
const RETRY_AFTER: u64 = 5;

/// Ends requests and response bodies that take longer than [`RequestEnd`], and event streams after
/// their longest time.
pub(crate) async fn limit_time(request: Request, next: Next) -> Response {
    let Some(end) = request.extensions().get::<RequestEnd>().cloned() else {
        return next.run(request).await;
    };
    let begun = Instant::now();
    tokio::select! {
        response = next.run(request) => limit_response(response, begun, end.at),
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

/// A response whose body is cut at that time. A body of known size is in memory: the server cuts its
/// connection.
fn limit_response(response: Response, begun: Instant, ends: Instant) -> Response {
    use axum::body::HttpBody as _;

    if response.body().size_hint().exact().is_some() {
        return response;
    }
    if response.headers().get(CONTENT_TYPE) == Some(&EVENT_STREAM) {
        // Its own end waits for reads of the store. A client continues after a clean end.
        let ends = ends.min(begun + STREAM_DURATION_MAX);
        return response
            .map(|body| Body::from_stream(body.into_data_stream().take_until(sleep_until(ends))));
    }
    response.map(|body| Body::from_stream(cut_at(body.into_data_stream(), ends)))
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

    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn event_stream_ends_cleanly_while_store_hangs() {
        for seconds in [200, 300] {
            let frames = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"retry: 1\n\n"))])
                .chain(stream::pending());
            let mut response = Body::from_stream(frames).into_response();
            response.headers_mut().insert(CONTENT_TYPE, EVENT_STREAM);
            let begun = Instant::now();
            let limited = limit_response(response, begun, begun + Duration::from_secs(seconds));
            let read = timeout_at(begun + Duration::from_mins(10), limited.into_body().collect());
            let data = read.await.unwrap().expect("a clean end").to_bytes();
            assert_eq!((&data[..], begun.elapsed()), (&b"retry: 1\n\n"[..], STREAM_DURATION_MAX));
        }
    }

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
