//! Requests of clients that get no response from the handler: the host sends those without a body
//! again.
//!
//! Source: azure-functions-host, `RetryProxyHandler.cs`; repeats on a closed connection are those
//! of .NET's `SocketsHttpHandler`.

use std::time::Duration;

use axum::body::Body;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, request};
use http_body::Body as _;
use http_body_util::LengthLimitError;

use super::InvocationError;
use super::invoke::Handler;
use turnwheel_platform::error_chain::has_cause;
use turnwheel_platform::server::is_client_too_slow;

const TRIES: u32 = 10;
const FIRST_WAIT: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_millis(250);
/// Sends per try of a request that changes nothing twice.
const IDEMPOTENT_SENDS: u32 = 4;

impl Handler {
    /// Sends a client's request. A request with a body is sent once; after a failure, its client
    /// waits as long as the others.
    pub(super) async fn send_with_repeats(
        &self,
        head: request::Parts,
        body: Body,
        path: PathAndQuery,
    ) -> Result<Response<Body>, InvocationError> {
        if self.is_in_process() {
            return self.send(Request::from_parts(head, body), path).await;
        }
        let is_repeatable = body.is_end_stream();
        let mut outcome = if is_repeatable {
            Box::pin(self.send_try(&head, &path)).await
        } else {
            self.send(Request::from_parts(head.clone(), body), path.clone()).await
        };
        let mut wait = FIRST_WAIT;
        for _ in 1..TRIES {
            match &outcome {
                Ok(_) => break,
                Err(error) if has_cause::<LengthLimitError>(error) || is_client_too_slow(error) => {
                    break;
                }
                Err(_) => {}
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
            if is_repeatable {
                outcome = Box::pin(self.send_try(&head, &path)).await;
            }
        }
        outcome
    }

    /// Sends a request without a body, again if the handler closes the connection instead of
    /// responding.
    async fn send_try(
        &self,
        head: &request::Parts,
        path: &PathAndQuery,
    ) -> Result<Response<Body>, InvocationError> {
        let is_idempotent = [Method::GET, Method::HEAD, Method::DELETE].contains(&head.method);
        let mut sends = if is_idempotent { IDEMPOTENT_SENDS } else { 1 };
        loop {
            let request = Request::from_parts(head.clone(), Body::empty());
            let outcome = self.send(request, path.clone()).await;
            sends -= 1;
            match &outcome {
                Err(error) if sends > 0 && is_closed_without_response(error) => {}
                Err(_) | Ok(_) => return outcome,
            }
        }
    }
}

fn is_closed_without_response(error: &InvocationError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return error.is_incomplete_message();
        }
        cause = error.source();
    }
    false
}
