//! Items that a delivery leaves in the inbox: a worker is woken for those that are due.

use std::sync::Arc;
use std::time::Duration;

use super::actions::{lease, sends_message_as};
use super::bounds::{env_with_long_question, replies_too_long, send_command, send_unstartable};
use super::test_env::{TestEnv, call, text};
use crate::commit::CommitKind;
use crate::delivery::handle;
use crate::inbox::drain_inputs;
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::inbox::DeliverAs;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::inbox::{InputState, read_input};
use turnwheel_storage::queue;

/// The smaller commit, which ends the prompt, does not drain the inbox that was read before.
#[tokio::test(start_paused = true)]
async fn prompt_behind_oversized_response_is_due() {
    let mut env = TestEnv::with_script(1, |results, input| {
        if input == "go" { replies_too_long(results, input) } else { vec![text("done")] }
    });
    // The lease is renewed meanwhile, which reads the head with the new prompt.
    *env.model.response_time.lock().unwrap() = Duration::from_secs(40);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let nudge = TestEnv::nudge();
    let queued = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        env.queue_prompt(&services, &TestEnv::key(), "next").await.unwrap();
        env.queue.drop_queue(queue::TURNS);
    };
    let (handled, ()) = tokio::join!(Box::pin(handle(&services, &nudge)), queued);
    handled.unwrap();
    assert_eq!(env.head().await.unwrap().inbox_count, Some(1));
    assert!(env.deliver().await, "a worker is woken");
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    let states: Vec<PromptState> = head.prompts.iter().map(|prompt| prompt.state).collect();
    assert_eq!(states, [PromptState::Failed, PromptState::Completed]);
}

#[tokio::test(start_paused = true)]
async fn only_input_that_never_fits_leaves_no_work() {
    let mut env = TestEnv::with_script(5, |_, _| vec![text("done")]);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    send_unstartable(&services).await;
    env.queue.drop_queue(queue::TURNS);
    Box::pin(handle(&services, &TestEnv::nudge())).await.unwrap();
    let head = env.head().await.unwrap();
    assert_eq!((head.inbox_count, head.due), (Some(0), head.metering.settle_at));
    assert!(!env.deliver().await, "no worker is woken");
}

#[tokio::test(start_paused = true)]
async fn command_beside_input_that_never_fits_is_due() {
    let (mut env, services) = env_with_long_question().await;
    send_command(&services).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let id = send_unstartable(&services).await;
    env.queue.drop_queue(queue::TURNS);
    Box::pin(handle(&services, &TestEnv::nudge())).await.unwrap();
    let key = TestEnv::key();
    let (input, _) = read_input(&services, &key, id.as_str()).await.unwrap();
    assert_eq!(input.state, InputState::Ignored);
    assert!(env.deliver().await, "a worker is woken");
    assert_eq!(env.head().await.unwrap().requests.len(), 1, "its question is open");
}

/// A call waits for its approval, so nothing else is due.
#[tokio::test(start_paused = true)]
async fn undrained_message_is_due_unless_for_next_turn() {
    for (deliver_as, is_due) in [(DeliverAs::Steer, true), (DeliverAs::NextTurn, false)] {
        let mut env = TestEnv::with_script(1, |_, _| vec![call("c1", "gated", 0)]);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        env.deliver().await;
        let mut conversation = Box::pin(lease(&services)).await;
        let message = vec![sends_message_as(Some(deliver_as))];
        for inputs in [Vec::from(drain_inputs(&[])), message] {
            let plan = conversation.state.plan(&services, inputs);
            conversation.commit(CommitKind::PendingWork, plan).await.unwrap();
        }
        let head = env.head().await.unwrap();
        assert_eq!((head.inbox_count, head.requests.len()), (Some(1), 1));
        assert_eq!(head.due.is_some_and(|due| due <= services.clock.now()), is_due);
    }
}
