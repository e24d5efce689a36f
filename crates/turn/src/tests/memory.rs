//! Memory: notes reach later prompts of their user only, and cost one read per prompt.

use std::sync::Arc;

use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::frame::tool_names;
use super::parallel_calls::result_texts;
use super::recorded_requests::{RecordedEnv, system_text};
use super::store_requests::{handle_next_nudge, queued_nudges};
use super::test_env::{LoggedRequests as _, RequestLogStore, Script, TestEnv, call, owner, text};
use turnwheel_agent_files::AgentMemory;
use turnwheel_commands::delete_user::delete_user_data;
use turnwheel_commands::knowledge::Knowledge;
use turnwheel_commands::memory::delete_note;
use turnwheel_conversation::entry::{EntryBody, Output};
use turnwheel_conversation::memory::{ForgetTarget, Note};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationKey, EffectId, UserId};
use turnwheel_queries::memory::read_memory;
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::services::Services;
use turnwheel_storage::store::cosmos::testing::{connect_store, start_in_process};
use turnwheel_tools::memory::{NewNote, UserMemoryStore};

pub(super) const PROJECT: &str = "shop";

fn remembers(note: &str) -> Value {
    let arguments = json!({"text": note});
    json!({"type": "toolCall", "id": "c1", "name": "remember", "arguments": arguments})
}

pub(super) fn remembers_then_looks(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![remembers("# likes\ntea")],
        1 => vec![call("c2", "look", 0)],
        _ => vec![text("done")],
    }
}

impl TestEnv {
    /// The agent of all workers has a memory from now on.
    pub(super) fn set_memory(&mut self, write: &str, allows_shared_user: bool) {
        let plugin = turnwheel_agent_files::memory_plugin(write, PROJECT);
        self.change_agent(|agent| {
            agent.memory = Some(AgentMemory { allows_shared_user });
            agent.plugins = vec![Arc::clone(&plugin)];
        });
    }
}

pub(super) async fn notes_of(services: &Services, owner: &Owner, project: &str) -> Vec<Note> {
    read_memory(services, owner, project).await.unwrap().0.items
}

pub(super) async fn texts(services: &Services) -> Vec<String> {
    notes_of(services, &owner(), PROJECT).await.into_iter().map(|note| note.text).collect()
}

pub(super) async fn remember(
    services: &Services,
    key: &ConversationKey,
    number: usize,
    note: &str,
) {
    let effect = EffectId::from_call(&key.conversation_id, "0a1b2c3d", 9, number);
    let note = NewNote { effect: &effect, project: PROJECT, text: note };
    UserMemoryStore::remember(&Knowledge::new(services), key, note).await.unwrap();
}

fn recorded_env(script: Script, write: &str) -> RecordedEnv {
    let mut env = TestEnv::with_script(1, script);
    env.set_memory(write, false);
    RecordedEnv::new(env)
}

const REMEMBERED: &str = "\n\n## Remembered Context\n\n- likes tea";

#[tokio::test(start_paused = true)]
async fn note_is_shown_from_the_next_round_on() {
    let mut app = recorded_env(remembers_then_looks, "auto");
    let bodies = app.run("go").await;
    let prompts: Vec<String> = bodies.iter().map(system_text).collect();
    assert!(!prompts[0].contains("Remembered"), "{}", prompts[0]);
    assert_eq!(prompts[1], format!("{}{REMEMBERED}", prompts[0]));
    assert_eq!(prompts[2], prompts[1], "the system prompt stays the same");
    assert!(tool_names(&bodies[0]).ends_with(&["remember".to_owned(), "forget".to_owned()]));
    assert_eq!(result_texts(&app.env).await[0], "Remembered.");
    let entries = app.env.entries().await;
    let widgets = entries.iter().filter_map(|entry| match &entry.body {
        EntryBody::Output(output) => match &output.output {
            Output::Widget(widget) => Some((widget.widget.clone(), widget.fallback.clone())),
            _ => None,
        },
        _ => None,
    });
    let widget = ("memory".to_owned(), "Remembered: likes tea".to_owned());
    assert_eq!(widgets.collect::<Vec<_>>(), [widget]);
    let events = app.env.events().await;
    let widget = entries.iter().find(|entry| matches!(entry.body, EntryBody::Output(_))).unwrap();
    let is_output = |event: &Value| {
        event["body"]["type"] == "prompt.output" && event["body"]["seq"] == widget.base.seq
    };
    let events: Vec<Value> =
        events.iter().map(|event| serde_json::to_value(event).unwrap()).collect();
    assert!(events.iter().any(is_output), "{events:?}");
    // The next prompt starts with the note.
    let next = app.run("again").await;
    assert!(system_text(&next[0]).contains(REMEMBERED));
    assert_eq!(texts(&app.services).await, ["likes tea"; 2], "two calls are two notes");
}

#[tokio::test(start_paused = true)]
async fn system_prompt_ignores_notes_of_other_conversations_during_a_prompt() {
    fn looks_twice(results: usize, _input: &str) -> Vec<Value> {
        if results < 2 { vec![call("c1", "look", results)] } else { vec![text("done")] }
    }
    let mut app = recorded_env(looks_twice, "auto");
    app.env.send_prompt(&app.services).await;
    let other = owner().conversation_key("other");
    while queued_nudges(&app.env).await > 0 {
        let number = app.model.bodies().len();
        let nudge = TestEnv::nudge();
        app.env.queue.drop_queue(turnwheel_storage::queue::TURNS);
        crate::delivery::handle(&app.services, &nudge).await.unwrap();
        remember(&app.services, &other, number, &format!("note {number}")).await;
    }
    let bodies = app.model.bodies();
    assert_eq!(bodies.len(), 3);
    for (earlier, later) in bodies.iter().zip(&bodies[1..]) {
        // The service caches a request by its beginning: tools and the messages so far.
        let sent = earlier["input"].as_array().unwrap();
        let next = later["input"].as_array().unwrap();
        assert_eq!(next[..sent.len()], sent[..], "the beginning of the request stays the same");
        assert_eq!(later["tools"], earlier["tools"]);
    }
    assert!(system_text(&app.run("again").await[0]).contains("- note 0\n- note 1\n- note 2"));
}

/// Returns an environment whose agent has a memory, with an accepted prompt.
pub(super) async fn new_memory_env(script: Script) -> (TestEnv, Services, Arc<RequestLogStore>) {
    let mut env = TestEnv::with_script(1, script);
    env.set_memory("auto", false);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    (env, services, counting)
}

#[tokio::test(start_paused = true)]
async fn memory_costs_one_read_per_prompt() {
    let (mut env, services, counting) =
        new_memory_env(super::store_requests::calls_look_twice).await;
    let requests = handle_next_nudge(&env, &services, &counting).await;
    insta::assert_snapshot!(requests, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    select scope
    write head, commit
    write head, commit
    ");
    let requests = handle_next_nudge(&env, &services, &counting).await;
    insta::assert_snapshot!(requests, @r"
    write head
    write head, commit
    write head, commit
    ");
    // Another worker reads the notes once more.
    let cold = env.new_worker(Arc::new(NoFailPoints));
    let requests = handle_next_nudge(&env, &cold, &counting).await;
    assert_eq!(requests.matches("select scope").count(), 1, "{requests}");
}

#[tokio::test(start_paused = true)]
async fn memory_adds_no_other_request() {
    let script = super::store_requests::calls_look_twice;
    let (plain_env, plain, plain_log) = super::store_requests::new_env(script).await;
    let (env, services, log) = new_memory_env(script).await;
    let without = handle_next_nudge(&plain_env, &plain, &plain_log).await;
    let with = handle_next_nudge(&env, &services, &log).await;
    assert_eq!(with.replacen("select scope\n", "", 1), without);
    assert!(!without.contains("scope"), "{without}");
    for _ in 0..2 {
        let without = handle_next_nudge(&plain_env, &plain, &plain_log).await;
        assert_eq!(handle_next_nudge(&env, &services, &log).await, without);
    }
}

#[tokio::test(start_paused = true)]
async fn cosmos_stores_reads_and_deletes_notes() {
    let emulator = start_in_process(1);
    let mut env = TestEnv::with_script(1, remembers_then_looks);
    env.set_memory("auto", false);
    let log = RequestLogStore::wrap(Arc::new(connect_store(&emulator, Vec::new()).await));
    env.worker_store = log.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let requests = handle_next_nudge(&env, &services, &log).await;
    assert!(requests.contains("select scope\nwrite scope"), "{requests}");
    while queued_nudges(&env).await > 0 {
        handle_next_nudge(&env, &services, &log).await;
    }
    assert_eq!(texts(&services).await, ["likes tea"]);
    let eve = Owner { user: UserId::new("eve"), ..owner() };
    assert_eq!(notes_of(&services, &eve, PROJECT).await.len(), 0);
    let deletion = delete_user_data(&services, &owner()).await.unwrap();
    assert!(deletion.is_complete);
    assert_eq!((deletion.conversations, deletion.documents), (1, 1));
    assert_eq!(texts(&services).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn change_costs_a_read_and_a_write_and_a_read_of_the_next_round() {
    let (env, services, counting) = new_memory_env(remembers_then_looks).await;
    let requests = handle_next_nudge(&env, &services, &counting).await;
    insta::assert_snapshot!(requests, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    select scope
    select scope
    write head, commit
    select scope
    write scope
    write head, commit
    ");
    let requests = handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(requests.matches("scope").count(), 1, "{requests}");
    let requests = handle_next_nudge(&env, &services, &counting).await;
    assert!(!requests.contains("scope"), "{requests}");
}

#[tokio::test(start_paused = true)]
async fn write_needs_an_approval_when_the_agent_asks() {
    for (decision, expected) in [("approve", 1), ("reject", 0)] {
        let mut app = recorded_env(remembers_then_looks, "ask");
        app.env.send_prompt(&app.services).await;
        let nudge = TestEnv::nudge();
        crate::delivery::handle(&app.services, &nudge).await.unwrap();
        let head = app.env.head().await.unwrap();
        assert_eq!(head.requests.len(), 1);
        assert_eq!(texts(&app.services).await.len(), 0, "nothing is stored before the decision");
        app.env.decide_all(decision).await;
        handle_until_idle(&app.env, &app.services).await;
        assert_eq!(texts(&app.services).await.len(), expected, "{decision}");
    }
}

#[tokio::test(start_paused = true)]
async fn note_reaches_no_other_user() {
    let mut app = recorded_env(remembers_then_looks, "auto");
    app.run("go").await;
    let eve = Owner { user: UserId::new("eve"), ..owner() };
    assert_eq!(notes_of(&app.services, &eve, PROJECT).await.len(), 0);
    let of_eve = eve.conversation_key("c");
    let loaded = app.services.user_documents.load(
        &*app.services.store,
        &of_eve,
        turnwheel_record::user_documents::DocumentsVersion {
            prompt: turnwheel_platform::ids::PromptId::new("p"),
            own_changes: 0,
            is_shared: false,
        },
    );
    assert_eq!(loaded.await.unwrap().render_memory(PROJECT), None);
    let id = notes_of(&app.services, &owner(), PROJECT).await[0].id.clone();
    let refused = delete_note(&app.services, &eve, &id).await;
    assert!(matches!(refused, Err(CommandError::NotFound("note"))), "{refused:?}");
    let target = ForgetTarget::Id(id);
    let forgotten =
        UserMemoryStore::forget(&Knowledge::new(&app.services), &of_eve, PROJECT, &target).await;
    assert_eq!(forgotten, Ok(0));
    assert_eq!(texts(&app.services).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn memory_is_off_when_all_callers_are_one_user() {
    for (allows_shared_user, is_on) in [(false, false), (true, true)] {
        let mut app = recorded_env(remembers_then_looks, "auto");
        app.env.set_memory("auto", allows_shared_user);
        app.services.limits.has_shared_user = true;
        let bodies = app.run("go").await;
        assert_eq!(tool_names(&bodies[0]).contains(&"remember".to_owned()), is_on);
        assert_eq!(texts(&app.services).await.len(), usize::from(is_on));
        assert_eq!(system_text(&bodies[1]).contains("Remembered"), is_on);
    }
}
