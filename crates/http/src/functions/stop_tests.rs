//! Tests of invocations that are under way when the process ends.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use serde_json::json;
use tower::ServiceExt as _;

use super::*;
use turnwheel_platform::shutdown::StopTimes;
use turnwheel_storage::queue::{self, Queue};

/// Waits for ever, as for a store or a tool that does not respond, and records the messages that are put back.
#[derive(Debug, Default)]
pub(super) struct HangingFunctions {
    put_back: Mutex<Vec<(String, String, Option<String>)>>,
    /// True if no message can be put back: the storage account does not respond.
    has_hanging_queue: bool,
    /// Time of a turn. `None`: it never ends.
    turn_time: Option<Duration>,
    /// Receives a nudge at the beginning of each turn.
    queue: Option<Arc<dyn Queue>>,
    has_turn_ended: AtomicBool,
}

impl HangingFunctions {
    pub(super) fn with_queue(queue: Arc<dyn Queue>) -> Self {
        Self { queue: Some(queue), ..Self::default() }
    }
}

#[async_trait]
impl Functions for HangingFunctions {
    async fn turn(&self, _: String, _: InvocationMeta) -> Result<(), FunctionFailure> {
        if let Some(queue) = &self.queue {
            queue.send(queue::TURNS, "nudge".to_owned(), Duration::ZERO).await.unwrap();
        }
        let Some(time) = self.turn_time else { return std::future::pending().await };
        tokio::time::sleep(time).await;
        self.has_turn_ended.store(true, Ordering::Relaxed);
        Ok(())
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
        if self.has_hanging_queue {
            std::future::pending::<()>().await;
        }
        self.put_back.lock().unwrap().push((function.to_owned(), message, meta.message_id));
        Ok(())
    }
}

/// Status of an invocation under way when the signal comes, and the time from then on.
async fn stop(functions: &Arc<HangingFunctions>, function: &str) -> (StatusCode, Duration) {
    let (seconds, shutdown) = (Duration::from_secs, Shutdown::default());
    let router =
        functions_router(Arc::clone(functions) as _, shutdown.clone(), Duration::from_mins(5));
    let envelope =
        json!({"Data": {"message": "\"x\"", "timer": {}}, "Metadata": {"Id": "\"m-1\""}});
    let request =
        http::Request::post(format!("/{function}")).body(Body::from(envelope.to_string()));
    let mut invocation = Box::pin(router.oneshot(request.unwrap()));
    assert!(tokio::time::timeout(seconds(1), &mut invocation).await.is_err());
    let signal = Instant::now();
    shutdown.begin(StopTimes { repeatable: seconds(4), writes: seconds(9) });
    let response = tokio::time::timeout(seconds(30), invocation).await;
    (response.expect("a response").unwrap().status(), signal.elapsed())
}

#[tokio::test(start_paused = true)]
async fn signal_puts_unfinished_messages_back() {
    for function in FUNCTION_NAMES {
        let functions = Arc::new(HangingFunctions::default());
        let (status, took) = stop(&functions, function).await;
        assert_eq!(status, StatusCode::OK, "{function}: no failed delivery");
        assert!(took < Duration::from_secs(10), "{function}: the host gives 10 s");
        let is_turn = function == "turn";
        assert_eq!(took > Duration::from_millis(9_200), is_turn, "a turn gives itself back first");
        let put_back = functions.put_back.lock().unwrap().clone();
        let expected = (function.to_owned(), "x".to_owned(), Some("m-1".to_owned()));
        assert_eq!(put_back, Vec::from_iter((function != "sweep").then_some(expected)));
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_queue_does_not_delay_the_end() {
    for function in FUNCTION_NAMES {
        let functions = HangingFunctions { has_hanging_queue: true, ..HangingFunctions::default() };
        let (status, took) = stop(&Arc::new(functions), function).await;
        assert!(took < Duration::from_secs(10), "{function}: {took:?}");
        let is_kept = function == "prompt";
        assert_eq!(status.is_server_error(), is_kept, "{function}: the sweep finds other work");
    }
}

/// A slow store may still confirm the result of a write.
#[tokio::test(start_paused = true)]
async fn turn_goes_on_after_its_response() {
    let turn_time = Some(Duration::from_secs(11));
    let functions = Arc::new(HangingFunctions { turn_time, ..HangingFunctions::default() });
    let (status, took) = stop(&functions, "turn").await;
    assert_eq!(status, StatusCode::OK);
    assert!(took < Duration::from_secs(10) && !functions.has_turn_ended.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(functions.has_turn_ended.load(Ordering::Relaxed), "the result of a call is stored");
}
