//! Tests of invocations that are under way when the process ends.

use std::sync::Mutex;

use axum::body::Body;
use serde_json::json;
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::*;
use turnwheel_platform::shutdown::StopTimes;

/// Waits for ever, as for a store or a tool that does not respond, and records the messages that are put back.
#[derive(Debug, Default)]
pub(super) struct HangingFunctions(Mutex<Vec<(String, String, Option<String>)>>);

#[async_trait]
impl Functions for HangingFunctions {
    async fn turn(&self, _: String, _: InvocationMeta) -> Result<(), FunctionFailure> {
        std::future::pending().await
    }
    async fn prompt(&self, _: String, _: InvocationMeta) -> Result<(), FunctionFailure> {
        std::future::pending().await
    }
    async fn notify(&self, _: String, _: InvocationMeta) -> Result<(), FunctionFailure> {
        std::future::pending().await
    }
    async fn sweep(&self, _: TimerInfo, _: InvocationMeta) -> Result<(), FunctionFailure> {
        std::future::pending().await
    }
    async fn turn_poison(&self, _: String, _: InvocationMeta) -> Result<(), FunctionFailure> {
        std::future::pending().await
    }
    async fn notify_poison(&self, _: String, _: InvocationMeta) -> Result<(), FunctionFailure> {
        std::future::pending().await
    }
    async fn put_back(
        &self,
        function: &str,
        message: String,
        meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        self.0.lock().unwrap().push((function.to_owned(), message, meta.message_id));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn signal_puts_unfinished_messages_back() {
    let seconds = Duration::from_secs;
    for function in FUNCTION_NAMES.into_iter().filter(|name| *name != "turn") {
        let (functions, shutdown) = (Arc::new(HangingFunctions::default()), Shutdown::default());
        let router =
            functions_router(Arc::clone(&functions) as _, shutdown.clone(), Duration::from_mins(5));
        let envelope =
            json!({"Data": {"message": "\"x\"", "timer": {}}, "Metadata": {"Id": "\"m-1\""}});
        let request =
            http::Request::post(format!("/{function}")).body(Body::from(envelope.to_string()));
        let mut invocation = Box::pin(router.oneshot(request.unwrap()));
        assert!(tokio::time::timeout(seconds(1), &mut invocation).await.is_err());
        let signal = Instant::now();
        shutdown.begin(StopTimes { repeatable: seconds(4), writes: seconds(9) });
        let response = invocation.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{function}: no failed delivery");
        assert!(signal.elapsed() < seconds(10), "{function}: the host gives 10 s");
        let put_back = functions.0.lock().unwrap().clone();
        let expected = (function.to_owned(), "x".to_owned(), Some("m-1".to_owned()));
        assert_eq!(put_back, Vec::from_iter((function != "sweep").then_some(expected)));
    }
}
