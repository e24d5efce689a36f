//! Model calls for titles and profiles while the process ends.

use super::super::budgets::pass_minutes;
use super::super::profile::{accept, document, learns, profile_env, write};
use super::super::test_env::{PauseFailPoint, owner};
use super::*;
use turnwheel_agent_files::{AgentProfile, profile_plugin};
use turnwheel_record::nudge::Nudge;

/// Handles a nudge. From this fail point on, a response takes `response_time`, and the process ends
/// after one second. Returns the time from then on.
async fn end_during_call(
    env: &mut TestEnv,
    fail_point: &'static str,
    conversation: &str,
    response_time: Duration,
) -> Duration {
    let pause = Arc::new(PauseFailPoint::new(fail_point));
    let worker = env.new_worker(pause.clone());
    let nudge = Nudge::for_conversation(owner().conversation_key(conversation), None);
    let ends = async {
        pause.reached.notified().await;
        *env.model.response_time.lock().unwrap() = response_time;
        pause.resume.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await;
        worker.shutdown.begin(TIMES);
        Instant::now()
    };
    let (handled, ended) = tokio::join!(Box::pin(handle(&worker, &nudge)), ends);
    handled.unwrap();
    ended.elapsed()
}

fn calls(env: &TestEnv) -> u32 {
    *env.model.calls.lock().unwrap()
}

#[tokio::test(start_paused = true)]
async fn signal_ends_title_call_in_time() {
    let mut env = TestEnv::with_script(41, replies);
    env.set_automatic_title();
    accept(&mut env, "c", "begin").await;
    let took = end_during_call(&mut env, "title.before", "c", Duration::from_mins(1)).await;
    assert_eq!(took, TIMES.repeatable);
    let head = env.head().await.unwrap();
    assert_eq!((head.name, calls(&env)), (None, 2));
    assert!(head.usage.total_tokens > 0, "the cost of the cut call counts");
}

#[tokio::test(start_paused = true)]
async fn signal_before_title_call_prevents_it() {
    let mut env = TestEnv::with_script(41, replies);
    env.set_automatic_title();
    let pause = Arc::new(PauseFailPoint::new("title.before"));
    let worker = env.new_worker(pause.clone());
    env.send_prompt(&worker).await;
    let ends = async {
        pause.reached.notified().await;
        worker.shutdown.begin(TIMES);
        pause.resume.notify_one();
    };
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(Box::pin(handle(&worker, &nudge)), ends);
    handled.unwrap();
    assert_eq!((env.head().await.unwrap().name, calls(&env)), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn signal_during_title_leaves_profile_messages() {
    let mut env = profile_env(learns);
    let plugin = profile_plugin();
    env.change_agent(|agent| {
        agent.has_automatic_title = true;
        agent.profile = Some(AgentProfile { allows_shared_user: false });
        agent.plugins = vec![Arc::clone(&plugin)];
    });
    accept(&mut env, "c", "begin").await;
    let took = end_during_call(&mut env, "title.before", "c", Duration::from_secs(2)).await;
    assert_eq!(took, Duration::from_secs(1));
    let head = env.head().await.unwrap();
    assert_eq!(head.name.as_deref(), Some("done"), "a response in time is recorded");
    assert!(head.profile_messages.is_some());
    assert!(document(&mut env).await.is_blank());
    pass_minutes(&mut env, 6).await;
    assert_eq!(document(&mut env).await.unseen.len(), 1, "a later delivery passes them on");
    assert_eq!(env.head().await.unwrap().profile_messages, None);
}

#[tokio::test(start_paused = true)]
async fn signal_ends_profile_call_in_time() {
    let mut env = profile_env(learns);
    write(&mut env, 1..=4).await;
    accept(&mut env, "c1", "message 5").await;
    let took = end_during_call(&mut env, "profile.posted", "c1", Duration::from_mins(1)).await;
    assert_eq!(took, TIMES.repeatable);
    let cut = document(&mut env).await;
    assert_eq!((cut.unseen.len(), calls(&env)), (5, 6));
    assert!(cut.profile.is_none() && cut.learning.is_none(), "the next post learns");
    let key = owner().conversation_key("c1");
    assert_eq!(env.head_of(&key).await.unwrap().metering.spent.calls, 4, "the cut call counts");
    *env.model.response_time.lock().unwrap() = Duration::from_millis(100);
    write(&mut env, 6..=6).await;
    assert!(document(&mut env).await.profile.is_some());
}

#[tokio::test(start_paused = true)]
async fn no_second_profile_call_begins_after_signal() {
    fn stays_long(_results: usize, input: &str) -> Vec<Value> {
        let long = serde_json::json!({"style": "x".repeat(1_500), "misc": "y".repeat(1_500)});
        vec![if input.starts_with("<profile>") { text(&long.to_string()) } else { text("done") }]
    }
    let mut env = profile_env(stays_long);
    write(&mut env, 1..=4).await;
    accept(&mut env, "c1", "message 5").await;
    let took = end_during_call(&mut env, "profile.posted", "c1", Duration::from_secs(2)).await;
    assert_eq!(took, Duration::from_secs(1));
    let learnt = document(&mut env).await;
    assert!(learnt.profile.is_some(), "the first response counts");
    assert_eq!((learnt.unseen.len(), calls(&env)), (0, 6));
}
