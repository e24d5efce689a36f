//! The timer trigger: on schedule, through the protocol, without overlapping runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use turnwheel::testing::clock::{ManualClock, parse_iso};
use turnwheel::testing::host::TimerStatuses;

use super::recorded_invocations::assert_recorded_run;
use super::recording_queue::TIMEOUT;
use super::test_host::{OK_RESPONSE, TestHost, TestHostConfig};

#[tokio::test]
async fn timer_fires_on_schedule_without_overlap() {
    let clock = Arc::new(ManualClock::new(parse_iso("2026-11-21T20:15:59.990Z").unwrap()));
    let gate = Arc::new(Semaphore::new(0));
    let (sender, mut envelopes) = mpsc::unbounded_channel();
    let (opened, failures) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let router = Router::new().route(
        "/sweep",
        post(move |body: String| {
            sender.send(serde_json::from_str::<Value>(&body).unwrap()).unwrap();
            let (gate, failures) = (Arc::clone(&opened), Arc::clone(&failures));
            async move {
                gate.acquire().await.unwrap().forget();
                let is_first = failures.fetch_add(1, Ordering::SeqCst) == 0;
                if is_first {
                    return StatusCode::INTERNAL_SERVER_ERROR.into_response();
                }
                ([(CONTENT_TYPE, "application/json")], OK_RESPONSE).into_response()
            }
        }),
    );
    let config = TestHostConfig { clock: Arc::clone(&clock) as _, ..TestHostConfig::default() };
    let host = TestHost::start_with(router, config).await;
    let mut next = async || tokio::time::timeout(TIMEOUT, envelopes.recv()).await.unwrap().unwrap();

    assert_eq!(host.get("/admin/host/ping").await.0, 200);
    clock.advance(Duration::from_millis(10));
    let first = next().await;
    assert_recorded_run(&first, "timer-first-run");
    let timer = &first["Data"]["timer"];
    assert_eq!(timer["ScheduleStatus"]["Last"], "0001-01-01T00:00:00+00:00");
    assert_eq!(timer["ScheduleStatus"]["Next"], "2026-11-21T20:16:00+00:00");
    assert_eq!(timer["IsPastDue"], false);
    assert_eq!(first["Metadata"]["sys"]["UtcNow"], "2026-11-21T20:16:00.0000000Z");

    // Three more minutes pass during the first run. They become one run, at the next minute,
    // although the first run failed.
    clock.advance(Duration::from_secs(210));
    gate.add_permits(1);
    let failure =
        tokio::time::timeout(TIMEOUT, async { while host.all_errors().await.is_empty() {} });
    failure.await.expect("the failure is reported");
    clock.advance(Duration::from_secs(30));
    let second = next().await;
    assert_recorded_run(&second, "timer-second-run");
    assert_eq!(second["Metadata"]["sys"]["UtcNow"], "2026-11-21T20:20:00.0000000Z");
    assert_eq!(second["Data"]["timer"]["ScheduleStatus"]["Last"], "2026-11-21T20:16:00+00:00");
}

/// The Functions host keeps the status of a timer in the storage account.
#[tokio::test]
async fn run_missed_between_hosts_is_past_due() {
    let clock = Arc::new(ManualClock::new(parse_iso("2026-11-21T20:15:30Z").unwrap()));
    let (sender, mut envelopes) = mpsc::unbounded_channel();
    let router = Router::new().route(
        "/sweep",
        post(async move |body: String| {
            sender.send(serde_json::from_str::<Value>(&body).unwrap()).unwrap();
            ([(CONTENT_TYPE, "application/json")], OK_RESPONSE)
        }),
    );
    let timers = TimerStatuses::default();
    let start = async || {
        let config = TestHostConfig {
            clock: Arc::clone(&clock) as _,
            timers: timers.clone(),
            ..TestHostConfig::default()
        };
        let host = TestHost::start_with(router.clone(), config).await;
        assert_eq!(host.get("/admin/host/ping").await.0, 200);
        host
    };
    let mut next = async || tokio::time::timeout(TIMEOUT, envelopes.recv()).await.unwrap().unwrap();

    let mut first = start().await;
    first.begin_shutdown();
    first.wait_for_end().await;
    clock.advance(Duration::from_mins(5));
    let _second = start().await;
    let missed = next().await;
    assert_recorded_run(&missed, "timer-past-due");
    let timer = &missed["Data"]["timer"];
    assert_eq!(timer["IsPastDue"], true);
    assert_eq!(timer["ScheduleStatus"]["Next"], "2026-11-21T20:16:00+00:00");
    clock.advance(Duration::from_secs(30));
    let regular = next().await;
    let timer = &regular["Data"]["timer"];
    assert_eq!(timer["IsPastDue"], false, "five missed runs are one");
    assert_eq!(timer["ScheduleStatus"]["Last"], "2026-11-21T20:20:30+00:00");
    assert_eq!(timer["ScheduleStatus"]["Next"], "2026-11-21T20:21:00+00:00");
}
