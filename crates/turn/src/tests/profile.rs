//! Profile: five messages of a user's conversations are learnt from once.

mod interruptions;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use self::interruptions::kill_at;
use super::budgets::{check_ledger, limit_everything, limit_users, pass_minutes};
use super::pauses::parse_pauses;
use super::recorded_requests::{RecordedEnv, system_text};
use super::store_requests::handle_next_nudge;
use super::test_env::{
    LoggedRequests as _, PauseFailPoint, RequestLogStore, Script, TestEnv, owner, text,
};
use crate::delivery::handle;
use turnwheel_agent_files::AgentProfile;
use turnwheel_commands::delete_user::delete_user_data;
use turnwheel_conversation::profile::document::ProfileDocument;
use turnwheel_conversation::usage::Usage;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_queries::profile::read_profile;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::store::cosmos::testing::{connect_store, start_in_process};

pub(super) const LEARNT: &str = r#"{"who":"a pilot"}"#;

fn respond(said: &str, learnt: &str) -> Vec<Value> {
    vec![text(if said.starts_with("<profile>") { learnt } else { "done" })]
}

pub(super) fn learns(_results: usize, said: &str) -> Vec<Value> {
    respond(said, LEARNT)
}

fn skips(_results: usize, said: &str) -> Vec<Value> {
    respond(said, "SKIP")
}

fn learns_nonsense(_results: usize, said: &str) -> Vec<Value> {
    respond(said, "The user is a pilot.")
}

impl TestEnv {
    /// The agent of all workers has a profile from now on.
    pub(super) fn set_profile(&mut self, allows_shared_user: bool) {
        let plugin = turnwheel_agent_files::profile_plugin();
        self.change_agent(|agent| {
            agent.profile = Some(AgentProfile { allows_shared_user });
            agent.plugins = vec![Arc::clone(&plugin)];
        });
    }
}

/// An environment whose agent has a profile. Each response costs 10 tokens.
pub(super) fn profile_env(script: Script) -> TestEnv {
    let mut env = TestEnv::with_script(1, script);
    env.set_profile(false);
    *env.model.usage.lock().unwrap() =
        Usage { input: 7, output: 3, total_tokens: 10, ..Usage::default() };
    env
}

/// Accepts a message of the user in a conversation.
pub(super) async fn accept(env: &mut TestEnv, conversation: &str, said: &str) {
    let services = env.new_worker(Arc::new(NoFailPoints));
    let key = owner().conversation_key(conversation);
    if env.head_of(&key).await.is_none() {
        env.send_prompt_to(&services, conversation, said).await;
    } else {
        env.queue_prompt(&services, &key, said).await.unwrap();
    }
}

/// Writes messages, the first one to `c1`, the next one to `c2`, and so on.
pub(super) async fn write(env: &mut TestEnv, numbers: std::ops::RangeInclusive<usize>) {
    for number in numbers {
        accept(env, &format!("c{}", 2 - number % 2), &format!("message {number}")).await;
        while env.deliver().await {}
    }
}

pub(super) async fn document(env: &mut TestEnv) -> ProfileDocument {
    let services = env.new_worker(Arc::new(NoFailPoints));
    read_profile(&services, &owner()).await.unwrap()
}

fn who(document: &ProfileDocument) -> Option<&str> {
    document.profile.as_ref().map(|profile| profile.fields.who.as_str())
}

fn calls(env: &TestEnv) -> u32 {
    *env.model.calls.lock().unwrap()
}

#[tokio::test(start_paused = true)]
async fn five_messages_of_two_conversations_are_learnt_once() {
    let mut env = profile_env(learns);
    write(&mut env, 1..=4).await;
    let unlearnt = document(&mut env).await;
    assert_eq!((who(&unlearnt), unlearnt.unseen.len(), calls(&env)), (None, 4, 4));
    write(&mut env, 5..=5).await;
    let learnt = document(&mut env).await;
    assert_eq!((who(&learnt), learnt.unseen.len(), calls(&env)), (Some("a pilot"), 0, 6));
    assert!(learnt.learning.is_none() && learnt.learned_until.is_some());
    for id in ["c1", "c2"] {
        let head = env.head_of(&owner().conversation_key(id)).await.unwrap();
        assert_eq!(head.profile_messages, None, "{id}");
        assert_eq!(head.due, head.metering.settle_at, "{id}");
        // The conversation of the fifth message paid for the call.
        let count = if id == "c1" { 4 } else { 2 };
        assert_eq!((head.usage.total_tokens, head.metering.spent.calls), (count * 10, count));
    }
    write(&mut env, 6..=9).await;
    assert_eq!(calls(&env), 10, "the next five have not come");
}

#[tokio::test(start_paused = true)]
async fn model_receives_the_profile_and_unseen_messages() {
    let mut app = RecordedEnv::new(profile_env(learns));
    for number in 1..=4 {
        app.run(&format!("message {number} </messages>")).await;
    }
    let bodies = app.run("message 5").await;
    assert_eq!(bodies.len(), 2);
    assert!(!system_text(&bodies[0]).contains("USER PROFILE"), "no profile, no section");
    let request = bodies[1]["input"][1]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(request.starts_with("<profile>\n{}\n</profile>\n<messages>\n[{\"at\":"), "{request}");
    assert!(request.contains("\"text\":\"message 1 \\u003c/messages>\""), "{request}");
    assert_eq!(request.matches("message ").count(), 5);
    let next = app.run("message 6").await;
    let system = system_text(&next[0]);
    assert!(
        system.contains("\n\nUSER PROFILE:\n{\n  \"who\": \"a pilot\",\n  \"_meta\""),
        "{system}"
    );
    assert_eq!(next.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn skip_leaves_the_profile_as_it_is() {
    let mut env = profile_env(learns);
    write(&mut env, 1..=5).await;
    let before = document(&mut env).await;
    *env.model.script.lock().unwrap() = skips;
    write(&mut env, 6..=10).await;
    let after = document(&mut env).await;
    assert_eq!(after.profile, before.profile);
    assert!(after.learned_until > before.learned_until && after.unseen.is_empty());
    assert_eq!(calls(&env), 12);
}

#[tokio::test(start_paused = true)]
async fn failed_call_is_repeated_twice_at_later_messages() {
    let mut env = profile_env(learns_nonsense);
    write(&mut env, 1..=5).await;
    for number in 6..=7 {
        let failed = document(&mut env).await;
        assert_eq!((who(&failed), failed.unseen.len()), (None, number - 1));
        assert_eq!(failed.learning, None);
        write(&mut env, number..=number).await;
    }
    let dropped = document(&mut env).await;
    assert_eq!((dropped.unseen.len(), dropped.attempts, calls(&env)), (0, 0, 10));
    let spent = env.head_of(&owner().conversation_key("c1")).await.unwrap().metering.spent;
    assert_eq!(spent.calls, 4 + 2, "failed calls count");
    // The next attempt waits an hour, also after a restart.
    write(&mut env, 8..=12).await;
    assert_eq!(calls(&env), 10 + 5, "only the prompts are paid for");
    tokio::time::sleep(Duration::from_hours(1)).await;
    // A usable response in time saves the messages.
    write(&mut env, 13..=13).await;
    *env.model.script.lock().unwrap() = learns;
    write(&mut env, 14..=14).await;
    assert_eq!(who(&document(&mut env).await), Some("a pilot"));
}

#[tokio::test(start_paused = true)]
async fn error_of_the_model_service_leaves_the_messages() {
    let mut env = profile_env(learns);
    write(&mut env, 1..=4).await;
    accept(&mut env, "c1", "message 5").await;
    let pause = Arc::new(PauseFailPoint::new("profile.posted"));
    let services = env.new_worker(pause.clone());
    let nudge = Nudge::for_conversation(owner().conversation_key("c1"), None);
    let delivery = async { handle(&services, &nudge).await.unwrap() };
    let fail = async {
        pause.reached.notified().await;
        *env.model.next_error.lock().unwrap() = Some("server_error");
        pause.resume.notify_one();
    };
    tokio::join!(delivery, fail);
    let failed = document(&mut env).await;
    assert_eq!((who(&failed), failed.unseen.len(), failed.attempts), (None, 5, 1));
    write(&mut env, 6..=6).await;
    assert_eq!(who(&document(&mut env).await), Some("a pilot"));
}

#[tokio::test(start_paused = true)]
async fn exhausted_budgets_and_pauses_prevent_the_call() {
    let budget = json!({"budget": {"conversation": {"tokens": 10}}});
    let mut of_conversation = profile_env(learns);
    of_conversation.settings = serde_json::from_value(budget).unwrap();
    let mut of_user = profile_env(learns);
    of_user.budget_limits = limit_users(50);
    for (env, what) in [(&mut of_conversation, "conversation"), (&mut of_user, "user")] {
        for number in 1..=5 {
            accept(env, &format!("c{number}"), &format!("message {number}")).await;
            while env.deliver().await {}
        }
        let unlearnt = document(env).await;
        assert_eq!((who(&unlearnt), unlearnt.unseen.len(), calls(env)), (None, 5, 5), "{what}");
        assert_eq!((unlearnt.attempts, unlearnt.learning), (0, None), "{what}");
    }
    let mut paused = profile_env(learns);
    write(&mut paused, 1..=4).await;
    kill_at(&mut paused, "profile.before", "message 5").await;
    paused.pauses = parse_pauses("agent:clerk");
    pass_minutes(&mut paused, 6).await;
    let unlearnt = document(&mut paused).await;
    assert_eq!((who(&unlearnt), unlearnt.unseen.len(), calls(&paused)), (None, 5, 5));
    paused.pauses = Arc::default();
    write(&mut paused, 6..=6).await;
    assert_eq!(who(&document(&mut paused).await), Some("a pilot"));
}

#[tokio::test(start_paused = true)]
async fn long_profile_is_compacted_or_cut() {
    fn long() -> String {
        json!({"who": "x".repeat(1_500), "misc": "y".repeat(1_500)}).to_string()
    }
    fn compacts(_results: usize, said: &str) -> Vec<Value> {
        let is_compaction = said.starts_with("<profile>") && !said.contains("<messages>");
        let long = long();
        respond(said, if is_compaction { LEARNT } else { &long })
    }
    fn stays_long(_results: usize, said: &str) -> Vec<Value> {
        respond(said, &long())
    }
    fn fails_to_compact(_results: usize, said: &str) -> Vec<Value> {
        let is_compaction = said.starts_with("<profile>") && !said.contains("<messages>");
        let long = long();
        respond(said, if is_compaction { "no" } else { &long })
    }
    for (script, chars) in
        [(compacts as Script, "a pilot".len()), (stays_long, 380), (fails_to_compact, 380)]
    {
        let mut env = profile_env(script);
        write(&mut env, 1..=5).await;
        let learnt = document(&mut env).await;
        assert_eq!(who(&learnt).map(|who| who.chars().count()), Some(chars));
        assert_eq!(calls(&env), 7, "one more call");
        let head = env.head_of(&owner().conversation_key("c1")).await.unwrap();
        assert_eq!((head.usage.total_tokens, head.metering.spent.calls), (50, 5));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_prompts_do_not_count() {
    let mut env = profile_env(learns);
    *env.model.failures_left.lock().unwrap() = 100;
    write(&mut env, 1..=1).await;
    env.conversations = vec![owner().conversation_key("c1")];
    env.run_until_idle().await;
    *env.model.failures_left.lock().unwrap() = 0;
    write(&mut env, 2..=2).await;
    let unseen = document(&mut env).await.unseen;
    assert_eq!(unseen.len(), 1);
    assert_eq!(unseen[0].text, "message 2");
    let head = env.head_of(&owner().conversation_key("c1")).await.unwrap();
    assert_eq!(head.profile_messages, None);
}

#[tokio::test(start_paused = true)]
async fn profile_is_off_when_all_callers_are_one_user() {
    for (allows_shared_user, is_on) in [(false, false), (true, true)] {
        let mut env = profile_env(learns);
        env.set_profile(allows_shared_user);
        let mut app = RecordedEnv::new(env);
        app.services.limits.has_shared_user = true;
        for number in 1..=6 {
            app.run(&format!("message {number}")).await;
        }
        let system = system_text(&app.model.bodies()[0]);
        assert_eq!(system.contains("USER PROFILE"), is_on);
        assert_eq!(document(&mut app.env).await.is_blank(), !is_on);
    }
}

#[tokio::test(start_paused = true)]
async fn agent_without_profile_drops_messages_of_the_head() {
    let mut env = profile_env(learns);
    kill_at(&mut env, "profile.before", "message 1").await;
    env.change_agent(|agent| agent.profile = None);
    pass_minutes(&mut env, 6).await;
    let head = env.head_of(&owner().conversation_key("c1")).await.unwrap();
    assert_eq!((head.profile_messages, head.due), (None, head.metering.settle_at));
    assert!(document(&mut env).await.is_blank());
}

#[tokio::test(start_paused = true)]
async fn calls_are_posted_to_the_ledger_with_limits() {
    let mut env = profile_env(learns);
    env.budget_limits = limit_everything();
    write(&mut env, 1..=5).await;
    pass_minutes(&mut env, 15).await;
    assert_eq!(who(&document(&mut env).await), Some("a pilot"));
    let keys = ["c1", "c2"].map(|id| owner().conversation_key(id));
    check_ledger(&env, &keys, "limited").await;
}

/// Returns an environment that records store requests, and a worker.
fn counting_env(has_profile: bool) -> (TestEnv, Services, Arc<RequestLogStore>) {
    let mut env = if has_profile { profile_env(learns) } else { TestEnv::with_script(1, learns) };
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    (env, services, counting)
}

#[tokio::test(start_paused = true)]
async fn profile_adds_five_requests_to_a_prompt() {
    let (mut env, services, counting) = counting_env(true);
    let (mut plain_env, plain, plain_log) = counting_env(false);
    let mut requests = Vec::new();
    for number in 1..=5 {
        let said = format!("message {number}");
        accept(&mut plain_env, "c", &said).await;
        let without = handle_next_nudge(&plain_env, &plain, &plain_log).await;
        assert!(!without.contains("scope") && !without.contains("item"), "{without}");
        accept(&mut env, "c", &said).await;
        requests.push(handle_next_nudge(&env, &services, &counting).await);
    }
    insta::assert_snapshot!(requests[1], @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    select scope
    write head, commit
    read item
    write scope (changed)
    read head
    write head
    ");
    insta::assert_snapshot!(requests[4], @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    select scope
    write head, commit
    read item
    write scope (changed)
    read item
    write scope (changed)
    read head
    write head
    ");
    assert_eq!(requests[2], requests[1]);
}

#[tokio::test(start_paused = true)]
async fn cosmos_learns_and_deletes_the_profile() {
    let emulator = start_in_process(1);
    let mut env = profile_env(learns);
    env.worker_store = Arc::new(connect_store(&emulator, Vec::new()).await);
    write(&mut env, 1..=4).await;
    kill_at(&mut env, "profile.before", "message 5").await;
    pass_minutes(&mut env, 6).await;
    let learnt = document(&mut env).await;
    assert_eq!((who(&learnt), learnt.unseen.len(), calls(&env)), (Some("a pilot"), 0, 6));
    let services = env.new_worker(Arc::new(NoFailPoints));
    let deletion = delete_user_data(&services, &owner()).await.unwrap();
    assert_eq!((deletion.conversations, deletion.documents), (2, 1));
    assert!(document(&mut env).await.is_blank());
}
