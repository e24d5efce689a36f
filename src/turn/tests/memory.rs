//! Memory: notes reach later prompts of their user only, cost one read per prompt, and survive kills
//! and concurrent writes as one note each.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::frame::{RecordingModel, tool_names};
use super::parallel_calls::result_texts;
use super::store_requests::{handle_next_nudge, queued_nudges};
use super::test_env::{
    PauseFailPoint, RequestLogStore, Script, TestEnv, call, kill_at, owner, text,
};
use crate::agent::entry::{EntryBody, Output};
use crate::agent::memory::{ForgetTarget, MEMORY_BYTES_MAX, Memory, NOTE_CHARS_MAX, Note};
use crate::agents::AgentMemory;
use crate::commands::contract::{CommandError, Owner};
use crate::commands::delete_user::delete_user_data;
use crate::commands::memory::{MemoryTarget, clear_memory, delete_note, replace_memory};
use crate::fail_points::NoFailPoints;
use crate::ids::{ConversationKey, EffectId, UserId};
use crate::queries::memory::{memory_etag, read_memory};
use crate::services::Services;
use crate::store::cosmos::testing::{connect_store, start_in_process};
use crate::store::memory::StoreFaults;
use crate::store::{DocumentKind, Freshness, Selection};
use crate::tools::memory::{MemoryStore, NewNote};
use crate::turn::user_documents::{load_memories, user_partition};

const PROJECT: &str = "shop";

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

fn forgets(results: usize, _input: &str) -> Vec<Value> {
    let arguments = json!({"text": "likes tea"});
    match results {
        0 => {
            vec![json!({"type": "toolCall", "id": "c1", "name": "forget", "arguments": arguments})]
        }
        _ => vec![text("done")],
    }
}

impl TestEnv {
    /// The agent of all workers has a memory from now on.
    pub(super) fn set_memory(&mut self, write: &str, allows_shared_user: bool) {
        let plugin = crate::agents::memory_plugin(write, PROJECT);
        self.change_agent(|agent| {
            agent.memory = Some(AgentMemory { allows_shared_user });
            agent.plugins = vec![Arc::clone(&plugin)];
        });
    }
}

async fn notes_of(services: &Services, owner: &Owner, project: &str) -> Vec<Note> {
    read_memory(services, owner, project).await.unwrap().0.items
}

async fn texts(services: &Services) -> Vec<String> {
    notes_of(services, &owner(), PROJECT).await.into_iter().map(|note| note.text).collect()
}

async fn remember(services: &Services, key: &ConversationKey, number: usize, note: &str) {
    let effect = EffectId::from_call(&key.conversation_id, "0a1b2c3d", 9, number);
    let note = NewNote { effect: &effect, project: PROJECT, text: note };
    MemoryStore::remember(services, key, note).await.unwrap();
}

struct Recorded {
    env: TestEnv,
    services: Services,
    model: Arc<RecordingModel>,
}

impl Recorded {
    fn new(script: Script, write: &str) -> Self {
        let mut env = TestEnv::with_script(1, script);
        env.set_memory(write, false);
        let model = Arc::new(RecordingModel { model: env.model.clone(), bodies: Mutex::default() });
        env.model_override = Some(model.clone());
        let services = env.new_worker(Arc::new(NoFailPoints));
        Self { env, services, model }
    }

    /// Runs a prompt in the conversation `c`. Returns the bodies of its model calls.
    async fn run(&mut self, input: &str) -> Vec<Value> {
        self.model.bodies.lock().unwrap().clear();
        if self.env.head().await.is_none() {
            self.env.send_prompt(&self.services).await;
        } else {
            self.env.queue_prompt(&self.services, &TestEnv::key(), input).await.unwrap();
        }
        handle_until_idle(&self.env, &self.services).await;
        self.model.bodies.lock().unwrap().clone()
    }
}

/// The system prompt of a request.
fn system(body: &Value) -> String {
    body["input"][0]["content"].as_str().map_or_else(|| body["input"][0].to_string(), str::to_owned)
}

const REMEMBERED: &str = "\n\n## Remembered Context\n\n- likes tea";

#[tokio::test(start_paused = true)]
async fn note_is_shown_from_the_next_round_on() {
    let mut app = Recorded::new(remembers_then_looks, "auto");
    let bodies = app.run("").await;
    let prompts: Vec<String> = bodies.iter().map(system).collect();
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
    assert!(system(&next[0]).contains(REMEMBERED));
    assert_eq!(texts(&app.services).await, ["likes tea"; 2], "two calls are two notes");
}

#[tokio::test(start_paused = true)]
async fn system_prompt_ignores_notes_of_other_conversations_during_a_prompt() {
    fn looks_twice(results: usize, _input: &str) -> Vec<Value> {
        if results < 2 { vec![call("c1", "look", results)] } else { vec![text("done")] }
    }
    let mut app = Recorded::new(looks_twice, "auto");
    app.env.send_prompt(&app.services).await;
    let other = owner().conversation_key("other");
    while queued_nudges(&app.env).await > 0 {
        let number = app.model.bodies.lock().unwrap().len();
        let nudge = TestEnv::nudge();
        app.env.queue.drop_queue(crate::queue::TURNS);
        crate::turn::delivery::handle(&app.services, &nudge).await.unwrap();
        remember(&app.services, &other, number, &format!("note {number}")).await;
    }
    let bodies = app.model.bodies.lock().unwrap().clone();
    assert_eq!(bodies.len(), 3);
    for (earlier, later) in bodies.iter().zip(&bodies[1..]) {
        // The service caches a request by its beginning: tools and the messages so far.
        let sent = earlier["input"].as_array().unwrap();
        let next = later["input"].as_array().unwrap();
        assert_eq!(next[..sent.len()], sent[..], "the beginning of the request stays the same");
        assert_eq!(later["tools"], earlier["tools"]);
    }
    assert!(system(&app.run("again").await[0]).contains("- note 0\n- note 1\n- note 2"));
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
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select scope
    select inbox
    write head, 3 entry, events
    select inbox
    write head, entry, events
    ");
    let requests = handle_next_nudge(&env, &services, &counting).await;
    insta::assert_snapshot!(requests, @r"
    lease (head and inbox)
    write head
    select inbox
    write head, 2 entry, events
    select inbox
    write head, entry, events
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
    // The response also stores the frame: the tools that the memory offers.
    let with = with.replace("write head, 3 entry", "write head, 2 entry");
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
async fn full_memory_refuses_notes_until_one_is_forgotten() {
    let mut env = TestEnv::with_script(1, remembers_then_looks);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let key = TestEnv::key();
    let text = "ü".repeat(NOTE_CHARS_MAX);
    let add = async |number: usize| {
        let effect = EffectId::from_call(&key.conversation_id, "0a1b2c3d", 9, number);
        let note = NewNote { effect: &effect, project: PROJECT, text: &text };
        MemoryStore::remember(&services, &key, note).await
    };
    let mut count = 0;
    let reason = loop {
        match add(count).await {
            Ok(()) => count += 1,
            Err(reason) => break reason,
        }
    };
    assert!(reason.contains("at most 65536 are allowed. Forget notes"), "{reason}");
    let partition = user_partition(&owner().tenant, &owner().user);
    let stored = load_memories(&*services.store, &partition);
    let (memory, _, bytes) = stored.await.unwrap().remove(PROJECT).unwrap();
    assert_eq!(memory.items.len(), count, "nothing is lost");
    let note = bytes / count;
    assert!(bytes <= MEMORY_BYTES_MAX && bytes + note > MEMORY_BYTES_MAX, "{count} notes, {bytes}");
    let oldest = ForgetTarget::Id(memory.items[0].id.clone());
    assert_eq!(MemoryStore::forget(&services, &key, PROJECT, &oldest).await, Ok(1));
    assert_eq!(add(count).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn change_costs_a_read_and_a_write_and_a_read_of_the_next_round() {
    let (env, services, counting) = new_memory_env(remembers_then_looks).await;
    let requests = handle_next_nudge(&env, &services, &counting).await;
    insta::assert_snapshot!(requests, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select scope
    select inbox
    write head, 3 entry, events
    select scope
    write scope
    select inbox
    write head, 2 entry, events
    ");
    let requests = handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(requests.matches("scope").count(), 1, "{requests}");
    let requests = handle_next_nudge(&env, &services, &counting).await;
    assert!(!requests.contains("scope"), "{requests}");
}

#[tokio::test(start_paused = true)]
async fn kill_around_the_write_leaves_one_note() {
    for fail_point in ["tool.before", "memory.write", "memory.written", "result.before"] {
        let mut env = TestEnv::with_script(33, remembers_then_looks);
        env.set_memory("auto", false);
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        env.send_prompt(&victim).await;
        kill_at(victim, &pause).await;
        env.run_until_idle().await;
        let services = env.new_worker(Arc::new(NoFailPoints));
        assert_eq!(texts(&services).await, ["likes tea"], "{fail_point}");
        assert_eq!(result_texts(&env).await[0], "Remembered.", "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn kill_around_forget_removes_no_other_note() {
    for fail_point in ["memory.write", "memory.written", "result.before"] {
        let mut env = TestEnv::with_script(33, forgets);
        env.set_memory("auto", false);
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let services = env.new_worker(Arc::new(NoFailPoints));
        for (number, note) in ["likes tea", "likes tea with milk"].into_iter().enumerate() {
            remember(&services, &TestEnv::key(), number, note).await;
        }
        let victim = env.new_worker(pause.clone());
        env.send_prompt(&victim).await;
        kill_at(victim, &pause).await;
        env.run_until_idle().await;
        assert_eq!(texts(&services).await, ["likes tea with milk"], "{fail_point}");
        assert_eq!(result_texts(&env).await, ["Forgotten."], "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_response_of_the_write_leaves_one_note() {
    for faults in [
        StoreFaults { unavailable_after: 0.5, ..Default::default() },
        StoreFaults { conflict_after: 0.5, ..Default::default() },
    ] {
        let mut env = TestEnv::with_script(7, remembers_then_looks);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.store.set_faults(faults);
        for number in 0..20 {
            let key = TestEnv::key();
            let effect = EffectId::from_call(&key.conversation_id, "0a1b2c3d", 9, number);
            let text = format!("note {number}");
            let note = || NewNote { effect: &effect, project: PROJECT, text: &text };
            while MemoryStore::remember(&services, &key, note()).await.is_err() {}
        }
        env.store.set_faults(StoreFaults::default());
        assert_eq!(texts(&services).await.len(), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_writes_of_two_conversations_keep_both_notes() {
    let mut env = TestEnv::with_script(1, remembers_then_looks);
    let pause = Arc::new(PauseFailPoint::new("memory.write"));
    let (slow, quick) = (env.new_worker(pause.clone()), env.new_worker(Arc::new(NoFailPoints)));
    let other = owner().conversation_key("other");
    let key = TestEnv::key();
    tokio::join!(remember(&slow, &key, 0, "slow"), async {
        pause.reached.notified().await;
        remember(&quick, &other, 0, "quick").await;
        pause.resume.notify_one();
    });
    assert_eq!(texts(&quick).await, ["quick", "slow"]);
}

#[tokio::test(start_paused = true)]
async fn write_needs_an_approval_when_the_agent_asks() {
    for (decision, expected) in [("approve", 1), ("reject", 0)] {
        let mut app = Recorded::new(remembers_then_looks, "ask");
        app.env.send_prompt(&app.services).await;
        let nudge = TestEnv::nudge();
        crate::turn::delivery::handle(&app.services, &nudge).await.unwrap();
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
    let mut app = Recorded::new(remembers_then_looks, "auto");
    app.run("").await;
    let eve = Owner { user: UserId::new("eve"), ..owner() };
    assert_eq!(notes_of(&app.services, &eve, PROJECT).await.len(), 0);
    let of_eve = eve.conversation_key("c");
    let loaded = app.services.user_documents.load(
        &*app.services.store,
        &of_eve,
        crate::turn::user_documents::DocumentsVersion {
            prompt: crate::ids::PromptId::new("p"),
            own_changes: 0,
        },
    );
    assert_eq!(loaded.await.unwrap().render_memory(PROJECT), None);
    let id = notes_of(&app.services, &owner(), PROJECT).await[0].id.clone();
    let refused = delete_note(&app.services, &eve, &id).await;
    assert!(matches!(refused, Err(CommandError::NotFound("note"))), "{refused:?}");
    let target = ForgetTarget::Id(id);
    let forgotten = MemoryStore::forget(&app.services, &of_eve, PROJECT, &target).await;
    assert_eq!(forgotten, Ok(0));
    assert_eq!(texts(&app.services).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn memory_is_off_when_all_callers_are_one_user() {
    for (allows_shared_user, is_on) in [(false, false), (true, true)] {
        let mut app = Recorded::new(remembers_then_looks, "auto");
        app.env.set_memory("auto", allows_shared_user);
        app.services.limits.has_shared_user = true;
        let bodies = app.run("").await;
        assert_eq!(tool_names(&bodies[0]).contains(&"remember".to_owned()), is_on);
        assert_eq!(texts(&app.services).await.len(), usize::from(is_on));
        assert_eq!(system(&bodies[1]).contains("Remembered"), is_on);
    }
}

#[tokio::test(start_paused = true)]
async fn user_replaces_and_deletes_notes_with_versions() {
    let mut env = TestEnv::with_script(1, remembers_then_looks);
    let services = env.new_worker(Arc::new(NoFailPoints));
    remember(&services, &TestEnv::key(), 0, "likes tea").await;
    let known = notes_of(&services, &owner(), PROJECT).await[0].clone();
    let owner = owner();
    let change = |items: Value| serde_json::from_value(json!({"items": items})).unwrap();
    let stale = |etag: &str| etag == "\"old\"";
    let target = MemoryTarget { owner: &owner, project: PROJECT, is_wanted: &stale };
    let refused = replace_memory(&services, &target, change(json!([{"text": "x"}]))).await;
    assert!(matches!(refused, Err(CommandError::PreconditionFailed { .. })), "{refused:?}");
    let refused = clear_memory(&services, &target).await;
    assert!(matches!(refused, Err(CommandError::PreconditionFailed { .. })), "{refused:?}");
    let current = memory_etag(&Memory { items: vec![known.clone()], ..Memory::default() });
    let is_current = |etag: &str| etag == current;
    let target = MemoryTarget { is_wanted: &is_current, ..target };
    let items = json!([{"id": known.id, "text": "likes tea"}, {"text": "# two\nlines"}]);
    let stored = replace_memory(&services, &target, change(items)).await.unwrap();
    assert_eq!(stored.items[0], known, "an unchanged note keeps its author and time");
    assert_eq!(stored.items[1].text, "two lines");
    let any = |_: &str| true;
    let target = MemoryTarget { is_wanted: &any, ..target };
    let invalid = json!([{"text": ""}, {"id": "a", "text": "b"}, {"id": "a", "text": "c"}]);
    let refused = replace_memory(&services, &target, change(invalid)).await.unwrap_err();
    let CommandError::Invalid(errors) = refused else { panic!("{refused:?}") };
    let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
    assert_eq!(pointers, ["/items/0/text", "/items/2/id"]);
    let text = "x".repeat(490);
    let many: Vec<Value> = (0..200).map(|_| json!({"text": text})).collect();
    let refused = replace_memory(&services, &target, change(json!(many))).await;
    assert!(matches!(refused, Err(CommandError::TooLarge(_))), "{refused:?}");
    for project in (0..15).map(|number| format!("p{number}")) {
        let target = MemoryTarget { project: &project, ..target };
        replace_memory(&services, &target, change(json!([{"text": "x"}]))).await.unwrap();
    }
    let target = MemoryTarget { project: "p15", ..target };
    let refused = replace_memory(&services, &target, change(json!([{"text": "x"}]))).await;
    assert!(matches!(refused, Err(CommandError::TooLarge(_))), "{refused:?}");
    delete_note(&services, &owner, &known.id).await.unwrap();
    assert_eq!(texts(&services).await, ["two lines"]);
    let target = MemoryTarget { project: PROJECT, ..target };
    clear_memory(&services, &target).await.unwrap();
    clear_memory(&services, &target).await.unwrap();
    assert_eq!(texts(&services).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn deleted_user_leaves_nothing_even_after_a_kill() {
    for fail_point in ["user.conversation", "admission.purged", "user.documents", "none"] {
        let mut env = TestEnv::with_script(5, remembers_then_looks);
        env.set_memory("auto", false);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        handle_until_idle(&env, &services).await;
        let eve = Owner { user: UserId::new("eve"), ..owner() };
        remember(&services, &eve.conversation_key("c"), 0, "stays").await;
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        let owner = owner();
        tokio::select! {
            biased;
            () = pause.reached.notified() => {}
            deleted = delete_user_data(&victim, &owner) => assert!(deleted.unwrap().is_complete),
        }
        let deletion = delete_user_data(&services, &owner).await.unwrap();
        assert!(deletion.is_complete, "{fail_point}");
        let again = delete_user_data(&services, &owner).await.unwrap();
        assert_eq!((again.conversations, again.documents), (0, 0), "{fail_point}");
        let partition = user_partition(&owner.tenant, &owner.user);
        let all = Selection::all(DocumentKind::Scope);
        let left = services.store.select(&partition, &all, Freshness::Latest).await.unwrap();
        assert_eq!(left.len(), 0, "{fail_point}");
        assert_eq!(notes_of(&services, &eve, PROJECT).await.len(), 1, "{fail_point}");
        env.run_sweep().await;
        assert_eq!(env.entries().await.len(), 0, "{fail_point}");
    }
}
