//! Titles that the model makes after the first completed prompt.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::budgets::{check_ledger, limit_everything, limit_users, pass_minutes};
use super::test_env::{
    LoggedRequests as _, PauseFailPoint, RequestLogStore, TestEnv, idempotency, kill_at, text,
};
use crate::delivery::handle;
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::entry::{EntryBody, SessionInfo};
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::settings::Settings;
use turnwheel_conversation::usage::Usage;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;

const TITLE: &str = "Paying two invoices";

fn titled(_results: usize, input: &str) -> Vec<Value> {
    vec![text(if input.starts_with("<message>") { TITLE } else { "done" })]
}

fn untitled(_results: usize, input: &str) -> Vec<Value> {
    let answer =
        if input.starts_with("<message>") { "This is not a title but a sentence" } else { "done" };
    vec![text(answer)]
}

/// An environment whose agent has `title: auto`. Each response costs 10 tokens.
fn new_env(script: super::test_env::Script) -> TestEnv {
    let mut env = TestEnv::with_script(1, script);
    env.set_automatic_title();
    *env.model.usage.lock().unwrap() =
        Usage { input: 7, output: 3, total_tokens: 10, ..Usage::default() };
    env
}

async fn run_prompt(env: &mut TestEnv, input: &str) -> Services {
    let services = env.new_worker(Arc::new(NoFailPoints));
    if env.head().await.is_none() {
        env.send_prompt_to(&services, "c", input).await;
    } else {
        env.queue_prompt(&services, &TestEnv::key(), input).await.unwrap();
    }
    env.run_until_idle().await;
    services
}

fn calls(env: &TestEnv) -> u32 {
    *env.model.calls.lock().unwrap()
}

async fn session_infos(env: &TestEnv) -> Vec<SessionInfo> {
    let infos = env.entries().await.into_iter().filter_map(|entry| match entry.body {
        EntryBody::SessionInfo(info) => Some(info),
        _ => None,
    });
    infos.collect()
}

async fn rename(services: &Services, name: &str) {
    let patch = json!({"name": name});
    let patch = patch.as_object().unwrap();
    patch_conversation(services, &TestEnv::key(), patch, &idempotency(name), |_| true)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn first_completed_prompt_gets_a_title() {
    let mut env = new_env(titled);
    run_prompt(&mut env, "begin").await;
    let head = env.head().await.unwrap();
    assert_eq!((head.name.as_deref(), calls(&env)), (Some(TITLE), 2));
    assert_eq!((head.usage.total_tokens, head.metering.spent.calls), (20, 2));
    let infos = session_infos(&env).await;
    assert_eq!((infos.len(), infos[0].name.as_deref()), (1, Some(TITLE)));
    assert_eq!(infos[0].extra["usage"]["totalTokens"], 10);
    let events: Vec<String> = env.events().await.iter().map(|it| it.body.name()).collect();
    assert_eq!(events[events.len() - 2..], ["agent_settled", "session_info_changed"]);
    run_prompt(&mut env, "again").await;
    assert_eq!(calls(&env), 3, "a conversation gets one title");
}

#[tokio::test(start_paused = true)]
async fn agent_without_titles_makes_no_request() {
    let mut env = TestEnv::with_script(1, titled);
    run_prompt(&mut env, "begin").await;
    assert_eq!((env.head().await.unwrap().name, calls(&env)), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn unusable_title_is_dropped_and_counted() {
    let mut env = new_env(untitled);
    run_prompt(&mut env, "begin").await;
    run_prompt(&mut env, "again").await;
    let head = env.head().await.unwrap();
    assert_eq!((head.name, calls(&env)), (None, 3));
    assert_eq!(head.usage.total_tokens, 30);
    assert!(session_infos(&env).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_title_call_leaves_the_conversation_alone() {
    let mut env = new_env(titled);
    let pause = Arc::new(PauseFailPoint::new("title.before"));
    let services = env.new_worker(pause.clone());
    env.send_prompt(&services).await;
    let delivery = async { handle(&services, &TestEnv::nudge()).await.unwrap() };
    let fail = async {
        pause.reached.notified().await;
        *env.model.next_error.lock().unwrap() = Some("server_error");
        pause.resume.notify_one();
    };
    tokio::join!(delivery, fail);
    let head = env.head().await.unwrap();
    assert_eq!((head.name, head.phase, calls(&env)), (None, Phase::Idle, 2));
}

#[tokio::test(start_paused = true)]
async fn name_of_the_client_wins() {
    let mut env = new_env(titled);
    let pause = Arc::new(PauseFailPoint::new("title.after"));
    let services = env.new_worker(pause.clone());
    env.send_prompt(&services).await;
    let delivery = async { handle(&services, &TestEnv::nudge()).await.unwrap() };
    let patch = async {
        pause.reached.notified().await;
        rename(&services, "Mine").await;
        pause.resume.notify_one();
    };
    tokio::join!(delivery, patch);
    let head = env.head().await.unwrap();
    assert_eq!((head.name.as_deref(), head.usage.total_tokens), (Some("Mine"), 20));
    assert_eq!(session_infos(&env).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn next_prompt_does_not_wait_for_the_title() {
    for fail_point in ["title.before", "title.after"] {
        let mut env = new_env(titled);
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let slow = env.new_worker(pause.clone());
        env.send_prompt(&slow).await;
        let slow_delivery = async { handle(&slow, &TestEnv::nudge()).await.unwrap() };
        let next = async {
            pause.reached.notified().await;
            run_prompt(&mut env, "again").await;
            assert_eq!(env.head().await.unwrap().prompts.len(), 2, "{fail_point}");
            pause.resume.notify_one();
            env
        };
        let (_, env) = tokio::join!(slow_delivery, next);
        let head = env.head().await.unwrap();
        assert_eq!((head.name.as_deref(), calls(&env)), (Some(TITLE), 3), "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn killed_worker_never_makes_a_second_title_call() {
    for fail_point in
        ["response.after", "release.before", "release.after", "title.before", "title.after"]
    {
        let mut env = new_env(titled);
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        env.send_prompt(&victim).await;
        kill_at(victim, &pause).await;
        tokio::time::sleep(Duration::from_secs(66)).await;
        env.run_until_idle().await;
        let after_kill = calls(&env);
        assert!(after_kill <= 2, "{fail_point}");
        run_prompt(&mut env, "again").await;
        let head = env.head().await.unwrap();
        assert_eq!((head.name, calls(&env)), (None, after_kill + 1), "{fail_point}");
        assert_eq!(head.prompts.len(), 2, "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn exhausted_limits_prevent_the_title() {
    let budget = json!({"budget": {"conversation": {"tokens": 10}}});
    let settings: Settings = serde_json::from_value(budget).unwrap();
    let mut of_conversation = new_env(titled);
    of_conversation.settings = settings;
    let mut of_user = new_env(titled);
    of_user.budget_limits = limit_users(10);
    for (mut env, what) in [(of_conversation, "conversation"), (of_user, "user")] {
        run_prompt(&mut env, "begin").await;
        assert_eq!((env.head().await.unwrap().name, calls(&env)), (None, 1), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn title_is_posted_to_the_ledger_with_limits() {
    let mut env = new_env(titled);
    env.budget_limits = limit_everything();
    run_prompt(&mut env, "begin").await;
    assert_eq!(env.head().await.unwrap().metering.spent.calls, 2);
    pass_minutes(&mut env, 15).await;
    check_ledger(&env, &[TestEnv::key()], "limited").await;
}

#[tokio::test(start_paused = true)]
async fn title_costs_three_requests_of_the_store() {
    let mut env = new_env(titled);
    let log = RequestLogStore::wrap(env.store.clone());
    env.worker_store = log.clone();
    let pause = Arc::new(PauseFailPoint::new("title.before"));
    let services = env.new_worker(pause.clone());
    env.send_prompt(&services).await;
    let delivery = async { handle(&services, &TestEnv::nudge()).await.unwrap() };
    let title = async {
        pause.reached.notified().await;
        log.take_requests();
        pause.resume.notify_one();
    };
    tokio::join!(delivery, title);
    assert_eq!(log.take_requests(), "select entry\nread head\nwrite head, commit");
}
