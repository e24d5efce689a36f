//! Removals and edits of inputs whose write is stored, and its response lost.

use std::sync::Arc;
use std::time::Duration;

use super::super::store_requests::queued_nudges;
use super::super::test_env::{HookFailPoint, PauseFailPoint, TestEnv, idempotency};
use super::{calls_gated_first, send_input, send_input_when, two_calls};
use turnwheel_commands::inbox_clear::{clear_input, clear_queues};
use turnwheel_commands::inbox_edit::{InputChange, InputEdit, edit_input};
use turnwheel_commands::prompt::Mode;
use turnwheel_conversation::inbox::WhenIdle;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::inbox::InputView;
use turnwheel_record::services::Services;
use turnwheel_storage::store::memory::StoreFaults;

/// Runs the change by a client whose first batch after the fail point is stored, and its response lost.
async fn change_with_lost_response<T>(
    env: &mut TestEnv,
    fail_point: &'static str,
    change: impl AsyncFn(&Services) -> T,
) -> T {
    let store = Arc::clone(&env.store);
    let lose_responses = move || {
        store.set_faults(StoreFaults { unavailable_after: 1.0, ..StoreFaults::default() });
    };
    let client = env.new_worker(Arc::new(HookFailPoint(fail_point, lose_responses)));
    // Before the second attempt.
    let responds = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        env.store.set_faults(StoreFaults::default());
    };
    tokio::join!(Box::pin(change(&client)), responds).0
}

async fn clear_all(services: &Services) -> Vec<InputView> {
    clear_queues(services, &TestEnv::key(), None).await.unwrap()
}

async fn last_event_name(env: &TestEnv) -> String {
    env.events_of(&TestEnv::key()).await.last().unwrap().body.name()
}

#[tokio::test(start_paused = true)]
async fn removal_with_lost_response_lists_its_input() {
    let mut env = TestEnv::with_script(8, calls_gated_first);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    while env.deliver().await {}
    let follow_up = send_input(&client, Mode::FollowUp, "later").await;
    while env.deliver().await {}
    let before = queued_nudges(&env).await;
    let cleared = change_with_lost_response(&mut env, "admission.clear", clear_all).await;
    assert_eq!(cleared.iter().map(|it| &it.input_id).collect::<Vec<_>>(), [&follow_up]);
    assert_eq!(last_event_name(&env).await, "input_cleared");
    assert_eq!(queued_nudges(&env).await, before + 1);

    let other = send_input(&client, Mode::FollowUp, "other").await;
    let pause = Arc::new(PauseFailPoint::new("admission.clear"));
    let slow = env.new_worker(pause.clone());
    let (cleared, ()) = tokio::join!(Box::pin(clear_all(&slow)), async {
        pause.reached.notified().await;
        clear_input(&client, &TestEnv::key(), other.as_str()).await.unwrap();
        pause.resume.notify_one();
    });
    assert_eq!(cleared.len(), 0, "another request has removed it");
}

#[tokio::test(start_paused = true)]
async fn edit_with_lost_response_wakes_a_worker() {
    let mut env = TestEnv::with_script(9, two_calls);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    env.run_until_idle().await;
    let held = send_input_when(&client, Mode::FollowUp, "later", WhenIdle::Hold).await;
    let before = queued_nudges(&env).await;
    let start = async |services: &Services| {
        let change = InputChange { when_idle: Some(WhenIdle::Start), ..InputChange::default() };
        let edit = InputEdit { id: held.as_str(), change: &change };
        let (key, once) = (TestEnv::key(), idempotency("edit"));
        edit_input(services, &key, edit, &once, |_: &str| true).await.unwrap()
    };
    let response = change_with_lost_response(&mut env, "admission.edit", start).await;
    assert!(!response.is_replayed && response.etag.is_some());
    assert_eq!(queued_nudges(&env).await, before + 1);
    assert_eq!(last_event_name(&env).await, "input_changed");
}
