//! Tests of the times in which invocations end.

use axum::body::Body;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::stop_tests::HangingFunctions;
use super::*;
use turnwheel_storage::queue::HangingQueue;
use turnwheel_storage::queue::output_binding::OutputBindingQueue;

/// Time and status of an invocation that waits for ever.
async fn invoke(function: &str, turn_duration: Duration) -> (Duration, StatusCode) {
    invoke_with(HangingFunctions::default(), function, turn_duration).await
}

async fn invoke_with(
    functions: HangingFunctions,
    function: &str,
    turn_duration: Duration,
) -> (Duration, StatusCode) {
    let router = functions_router(Arc::new(functions), Shutdown::default(), turn_duration);
    let envelope = json!({"Data": {"message": "\"x\"", "timer": {}}, "Metadata": {}});
    let request =
        http::Request::post(format!("/{function}")).body(Body::from(envelope.to_string()));
    let began = Instant::now();
    let response = router.oneshot(request.unwrap()).await.unwrap();
    let status = response.status();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("did not end within"), "{function}: {text}");
    (began.elapsed(), status)
}

#[tokio::test(start_paused = true)]
async fn function_that_hangs_ends_before_function_timeout() {
    for function_timeout in [201, 300, 600].map(Duration::from_secs) {
        for function in FUNCTION_NAMES {
            let (took, status) = invoke(function, function_timeout / 2).await;
            // Timers are exact to a millisecond.
            assert!(
                took + END_MARGIN < function_timeout + Duration::from_secs(1),
                "{function}: {took:?}"
            );
            assert_eq!(
                status,
                StatusCode::INTERNAL_SERVER_ERROR,
                "{function}: the host repeats it"
            );
        }
    }
}

/// A turn that ends by itself has its whole time, and time for a commit.
#[tokio::test(start_paused = true)]
async fn turn_is_cut_after_its_own_limit() {
    let turn_duration = Duration::from_mins(5);
    let (took, _) = invoke("turn", turn_duration).await;
    assert!(took > turn_duration + Duration::from_mins(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn response_does_not_wait_for_nudges() {
    let hanging = Arc::new(HangingQueue::default());
    let queue = OutputBindingQueue::wrap(Arc::clone(&hanging) as _);
    let functions = HangingFunctions::with_queue(queue);
    let function_timeout = Duration::from_mins(10);
    let invocation = invoke_with(functions, "turn", function_timeout / 2);
    let (took, status) = tokio::time::timeout(function_timeout, invocation).await.unwrap();
    assert!(took + END_MARGIN < function_timeout + Duration::from_secs(1), "{took:?}");
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(hanging.sends_in_flight(), 1, "the nudge of the cut turn");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(hanging.sends_in_flight(), 0, "it is given up");
}
