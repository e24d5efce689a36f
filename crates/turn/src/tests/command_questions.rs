//! Questions of commands: a command that asks is stored, survives restarts and days, blocks no
//! prompt, and its actions land once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::call_approval::{handle_nudges, only_request};
use super::parallel_calls::result_texts;
use super::questions::{answer, asked_counts};
use super::test_env::{
    TestEnv, call, idempotency, owner, text, three_rounds, usual_queue_faults, usual_store_faults,
};
use super::why::why_view;
use crate::delivery::handle;
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_commands::extension_command::{CommandRequest, NamedCommand, run_extension_command};
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::head::State;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::request::RequestKind;
use turnwheel_extensions::{
    CommandCall, CommandOutcome, CommandSpec, Extension, HookContext, HookError, Question,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::inbox::read_input;
use turnwheel_record::contract::{CommandResponse, Decider};
use turnwheel_record::services::{Limits, Services};
use turnwheel_storage::store::memory as stores;

/// Asks before it appends its arguments.
#[derive(Debug, Default)]
struct Asking {
    calls: Mutex<u32>,
}

#[async_trait]
impl Extension for Asking {
    fn name(&self) -> &'static str {
        "desk"
    }

    fn commands(&self) -> Vec<CommandSpec> {
        ["note", "two", "many", "fail"].map(|name| CommandSpec::new(name, "")).into()
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        *self.calls.lock().unwrap() += 1;
        cx.append_entry("desk/note", &call.args)?;
        if call.name == "many" {
            for number in 0..9 {
                cx.input(&format!("{number}"), "Name?", None)?;
            }
        }
        let question = Question::new("Sure?").within(Duration::from_hours(24 * 3));
        if !cx.confirm("sure", question)? {
            return Ok(CommandOutcome::text("dropped"));
        }
        if call.name == "two" && !cx.confirm("really", "Really?")? {
            return Ok(CommandOutcome::text("dropped late"));
        }
        if call.name == "fail" {
            return Err(HookError::new("no such desk"));
        }
        Ok(CommandOutcome::text("noted"))
    }
}

fn says_done(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("done")]
}

pub(super) async fn run(worker: &Services, name: &str, key: &str) -> CommandResponse {
    let request = CommandRequest { args: Some(key.to_owned()) };
    let idempotency = idempotency(key);
    run_extension_command(
        worker,
        &TestEnv::key(),
        NamedCommand { name, request },
        &idempotency,
        None,
    )
    .await
    .unwrap()
}

/// An idle conversation with a command that waits for its answer.
async fn env_with_command(name: &str) -> (TestEnv, Services, Arc<Asking>) {
    let mut env = TestEnv::with_script(31, says_done);
    let desk = Arc::<Asking>::default();
    env.extensions = vec![Arc::clone(&desk) as Arc<dyn Extension>];
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    handle_nudges(&env, &worker).await;
    let response = run(&worker, name, "k").await;
    assert_eq!(response.status, 202);
    assert_eq!(response.body.unwrap().to_value()["disposition"], "waiting");
    assert!(response.location.unwrap().starts_with("conversations/c/inbox/in_"));
    handle_nudges(&env, &worker).await;
    (env, worker, desk)
}

/// The data of the entries that commands appended.
async fn notes(env: &TestEnv) -> Vec<String> {
    let entries = env.entries().await.into_iter();
    let data = entries.filter_map(|entry| {
        if let EntryBody::Custom(custom) = entry.body { custom.data } else { None }
    });
    data.map(|data| data.read().unwrap()).collect()
}

/// The response of the waiting command, as its receipt has it.
async fn result(worker: &Services) -> Option<Value> {
    let id = idempotency("k").input_id(&TestEnv::key());
    let (view, _) = read_input(worker, &TestEnv::key(), id.as_str()).await.unwrap();
    Some(view.result?.to_value())
}

#[tokio::test(start_paused = true)]
async fn command_runs_again_after_restart_and_days() {
    for (value, output, expected) in
        [(json!(true), "noted", vec!["k"]), (json!(false), "dropped", vec!["k"])]
    {
        let (mut env, worker, desk) = env_with_command("note").await;
        let (head, request) = (env.head().await.unwrap(), only_request(&env).await);
        assert_eq!(request.title, "The extension \"desk\" asks about the command /note.");
        assert_eq!((request.kind, request.running_prompt()), (RequestKind::Question, None));
        assert_eq!((head.state(), head.listed_state()), (State::Idle, State::WaitingForApproval));
        assert_eq!((head.lease.is_none(), head.min_reader), (true, 7));
        let next = head.next_step_due(head.updated_at);
        assert_eq!(next, request.expires_at, "nothing wakes a worker before");
        assert_eq!((result(&worker).await, notes(&env).await), (None, vec![]));
        drop(worker);
        tokio::time::sleep(Duration::from_hours(24 * 2)).await;
        let restarted = env.new_worker(Arc::new(NoFailPoints));
        answer(&mut env, &restarted, value).await;
        let result = result(&restarted).await.unwrap();
        assert_eq!(
            (&result["output"], &result["disposition"]),
            (&json!(output), &json!("handled"))
        );
        assert_eq!(notes(&env).await, expected);
        assert_eq!(*desk.calls.lock().unwrap(), 3, "at admission, to ask, and with the answer");
        let head = env.head().await.unwrap();
        assert!(head.waiting_commands.is_empty() && head.requests.is_empty());
        assert_eq!(head.next_step_due(head.updated_at), None);
        assert!(head.min_reader < 7, "a turn lowers it again");
        assert_eq!(run(&restarted, "note", "k").await.status, 202, "the first response again");
        assert_eq!(*desk.calls.lock().unwrap(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn expired_question_of_a_command_is_no() {
    let (mut env, worker, _) = env_with_command("note").await;
    env.undecided_percent = 100;
    tokio::time::sleep(Duration::from_hours(24 * 4)).await;
    env.run_until_idle().await;
    assert_eq!(result(&worker).await.unwrap()["output"], "dropped");
}

#[tokio::test(start_paused = true)]
async fn questions_of_a_command_follow_each_other() {
    let (mut env, worker, _) = env_with_command("two").await;
    answer(&mut env, &worker, json!(true)).await;
    assert_eq!(only_request(&env).await.reason, "Really?");
    assert_eq!(result(&worker).await, None);
    answer(&mut env, &worker, json!(true)).await;
    assert_eq!(result(&worker).await.unwrap()["output"], "noted");
    assert_eq!(notes(&env).await, ["k"]);
}

#[tokio::test(start_paused = true)]
async fn failure_after_the_answer_is_part_of_the_result() {
    let (mut env, worker, _) = env_with_command("fail").await;
    answer(&mut env, &worker, json!(true)).await;
    assert_eq!(result(&worker).await.unwrap()["error"], "no such desk");
    assert_eq!(notes(&env).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn too_many_answers_end_the_command_with_an_error() {
    let (mut env, worker, _) = env_with_command("many").await;
    for _ in 0..2 {
        answer(&mut env, &worker, json!("ä".repeat(1_000))).await;
    }
    let error = result(&worker).await.unwrap()["error"].to_string();
    assert!(error.contains("is one too many"), "{error}");
}

/// Four texts reserve the room of the head.
#[tokio::test(start_paused = true)]
async fn command_without_room_for_its_question_ends_with_an_error() {
    let (env, worker, _) = env_with_command("many").await;
    for number in 0..4 {
        assert_eq!(run(&worker, "many", &format!("k{number}")).await.status, 202);
        handle_nudges(&env, &worker).await;
    }
    let head = env.head().await.unwrap();
    assert!((2..=4).contains(&head.requests.len()), "{}", head.requests.len());
    assert_eq!(head.requests.len(), head.waiting_commands.len());
    let id = idempotency("k3").input_id(&TestEnv::key());
    let (view, _) = read_input(&worker, &TestEnv::key(), id.as_str()).await.unwrap();
    let error = view.result.unwrap().to_value()["error"].to_string();
    assert!(error.contains("leave no room"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn prompt_runs_while_a_command_waits() {
    let (mut env, worker, _) = env_with_command("note").await;
    env.queue_prompt(&worker, &TestEnv::key(), "next").await.unwrap();
    handle_nudges(&env, &worker).await;
    let head = env.head().await.unwrap();
    assert_eq!((head.phase, head.prompts.len()), (Phase::Idle, 2));
    assert!(head.prompts.iter().all(|span| span.to_seq.is_some()), "it has ended");
    assert_eq!(only_request(&env).await.reason, "Sure?", "the question stays open");
    answer(&mut env, &worker, json!(true)).await;
    assert_eq!(notes(&env).await, ["k"]);
}

fn calls_gated(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

/// The approval of a call and the question of a command wait for themselves.
#[tokio::test(start_paused = true)]
async fn abort_of_the_prompt_leaves_the_question_of_a_command() {
    let mut env = TestEnv::with_script(32, calls_gated);
    env.extensions = vec![Arc::<Asking>::default()];
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    handle_nudges(&env, &worker).await;
    run(&worker, "note", "k").await;
    handle_nudges(&env, &worker).await;
    assert_eq!(env.head().await.unwrap().requests.len(), 2);
    let request = AbortRequest::default();
    abort(&worker, &TestEnv::key(), request, &idempotency("stop")).await.unwrap();
    handle_nudges(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["Operation aborted"]);
    assert_eq!(only_request(&env).await.reason, "Sure?");
    answer(&mut env, &worker, json!(true)).await;
    assert_eq!(notes(&env).await, ["k"]);
}

/// State that the conversation waits for, as `why` explains it.
async fn waits_for(env: &TestEnv) -> String {
    serde_json::to_value(why_view(env).await.waits_for).unwrap().as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn why_explains_a_waiting_command() {
    let (mut env, worker, _) = env_with_command("note").await;
    let view = why_view(&env).await;
    assert_eq!(serde_json::to_value(view.waits_for).unwrap(), "answer");
    let request = only_request(&env).await;
    assert!(view.unblock[0].contains(request.id.as_str()), "{:?}", view.unblock);
    assert_eq!(view.due, request.expires_at);
    assert_eq!(run(&worker, "note", "second").await.status, 202);
    assert_eq!(waits_for(&env).await, "nudge", "its hooks have not run yet");
    handle_nudges(&env, &worker).await;
    assert_eq!(waits_for(&env).await, "answer");
    env.answer_all(&json!(true)).await;
    assert_eq!(waits_for(&env).await, "nudge");
    handle_nudges(&env, &worker).await;
    assert_eq!(waits_for(&env).await, "nothing");
}

/// The prompt does not wait for the question of the command, which stays open.
#[tokio::test(start_paused = true)]
async fn why_names_the_prompt_before_a_waiting_command() {
    let mut env = TestEnv::with_script(33, calls_gated);
    env.extensions = vec![Arc::<Asking>::default()];
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    run(&worker, "note", "k").await;
    handle_nudges(&env, &worker).await;
    assert_eq!(env.head().await.unwrap().requests.len(), 2);
    assert_eq!(waits_for(&env).await, "approval");
    let approval = env.head().await.unwrap().step_requests().next().unwrap().id.clone();
    let request = DecisionRequest { decision: "approve".to_owned(), reason: None, value: None };
    let approver = Decider::User { tenant: owner().tenant, user: owner().user, roles: Vec::new() };
    decide(&worker, &TestEnv::key(), approval.as_str(), request, &approver).await.unwrap();
    assert_eq!(waits_for(&env).await, "nudge");
    handle_nudges(&env, &worker).await;
    assert_eq!(waits_for(&env).await, "answer", "the prompt has ended");
}

#[tokio::test(start_paused = true)]
async fn older_version_leaves_a_waiting_command() {
    let (mut env, worker, _) = env_with_command("note").await;
    env.answer_all(&json!(true)).await;
    let limits = Limits { reader_version: 6, ..worker.limits };
    let older = Services { limits, ..env.new_worker(Arc::new(NoFailPoints)) };
    let before = env.head().await.unwrap();
    handle(&older, &TestEnv::nudge()).await.unwrap();
    assert_eq!(env.head().await.unwrap(), before);
    env.run_until_idle().await;
    assert_eq!(notes(&env).await, ["k"], "a newer worker runs it");
}

/// Crashes at every fail point, lost commits and a prompt beside the command: each question is
/// asked once, and the actions land once.
#[tokio::test(start_paused = true)]
async fn crashes_ask_no_question_twice_and_apply_actions_once() {
    for seed in 0..60 {
        let mut env = TestEnv::with_script(seed, three_rounds);
        env.extensions = vec![Arc::<Asking>::default()];
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        for key in ["one", "two"] {
            assert_eq!(run(&services, "two", key).await.status, 202);
        }
        env.store.set_faults(usual_store_faults());
        env.queue.set_faults(usual_queue_faults());
        env.crash_percent = 4;
        env.run_until_idle().await;
        env.store.set_faults(stores::StoreFaults::default());
        let head = env.head().await.unwrap();
        assert!(head.waiting_commands.is_empty() && head.requests.is_empty(), "seed {seed}");
        let mut notes = notes(&env).await;
        notes.sort_unstable();
        assert_eq!(notes, ["one", "two"], "seed {seed}");
        let asked = asked_counts(&env).await;
        let is_once = asked.len() == 4 && asked.values().all(|count| *count == 1);
        assert!(is_once, "seed {seed}: {asked:?}");
    }
}
