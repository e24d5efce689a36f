//! All 22 events of the source through two extensions: their order, and the results that decide.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::entries::Entry;
use turnwheel::extensions::{
    BashResult, CallBlock, ClosingTurn, DiscoveredResources, DiscoveryReason, Extension,
    FinishTurn, FinishedRun, FinishedToolCall, HookContext, HookError, InputDecision, Observation,
    PendingCompaction, PendingFork, PendingLeafMove, PendingSwitch, PendingToolCall, PromptText,
    ResultChanges, RunChanges, SessionDecision, StartingRun, SummaryOverride, ToolCallDecision,
    UserBash,
};
use turnwheel::messages::Message;
use turnwheel::{Agent, App};

use crate::support::openapi_check::SendValidated as _;
use crate::support::service::Service;

/// The events of the source (`resources_discover` to `input`), in the order of its list.
const EVENTS: [&str; 22] = [
    "resources_discover",
    "session_start",
    "session_before_switch",
    "session_switch",
    "session_before_fork",
    "session_fork",
    "session_before_compact",
    "session_compact",
    "session_shutdown",
    "session_before_tree",
    "session_tree",
    "context",
    "before_agent_start",
    "agent_start",
    "agent_end",
    "turn_start",
    "turn_end",
    "model_select",
    "tool_call",
    "tool_result",
    "user_bash",
    "input",
];

#[derive(Debug, Default)]
struct Record {
    calls: Mutex<Vec<String>>,
    /// True if the extension `a` decides where it can.
    decides: AtomicBool,
}

impl Record {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

/// Records its calls.
#[derive(Clone, Debug)]
struct Recorder {
    name: &'static str,
    record: Arc<Record>,
}

impl Recorder {
    fn add(&self, event: &str) {
        self.record.calls.lock().unwrap().push(format!("{} {event}", self.name));
    }

    fn decides(&self) -> bool {
        self.name == "a" && self.record.decides.load(Ordering::Relaxed)
    }

    fn session_decision(&self, event: &str) -> SessionDecision {
        self.add(event);
        if self.decides() { SessionDecision::Cancel } else { SessionDecision::Continue }
    }
}

#[async_trait]
impl Extension for Recorder {
    fn name(&self) -> &str {
        self.name
    }

    fn discover_resources(
        &self,
        _reason: DiscoveryReason,
    ) -> Result<DiscoveredResources, HookError> {
        self.add("resources_discover");
        Ok(DiscoveredResources::default())
    }

    async fn before_agent_start(
        &self,
        _cx: &HookContext,
        run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        self.add("before_agent_start");
        let system_prompt = Some(format!("{} {}", run.system_prompt, self.name));
        Ok(RunChanges { system_prompt, ..RunChanges::default() })
    }

    async fn finish_run(&self, _cx: &HookContext, _run: &FinishedRun<'_>) -> Result<(), HookError> {
        self.add("agent_end");
        Ok(())
    }

    async fn before_session_switch(
        &self,
        _cx: &HookContext,
        _switch: &PendingSwitch<'_>,
    ) -> Result<SessionDecision, HookError> {
        Ok(self.session_decision("session_before_switch"))
    }

    async fn before_session_fork(
        &self,
        _cx: &HookContext,
        _fork: &PendingFork<'_>,
    ) -> Result<SessionDecision, HookError> {
        Ok(self.session_decision("session_before_fork"))
    }

    async fn before_leaf_move(
        &self,
        _cx: &HookContext,
        _move: &PendingLeafMove<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        self.add("session_before_tree");
        Ok(self.decides().then_some(SummaryOverride::Cancel))
    }

    async fn observe(&self, cx: &HookContext, _fact: &Observation) -> Result<(), HookError> {
        self.add(cx.hook().name());
        Ok(())
    }

    async fn transform_context<'m>(
        &self,
        _cx: &HookContext,
        messages: Vec<Cow<'m, Message>>,
    ) -> Result<Vec<Cow<'m, Message>>, HookError> {
        self.add("context");
        Ok(messages)
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        self.add("tool_call");
        let block = CallBlock { reason: Some("No.".to_owned()), ..CallBlock::default() };
        let is_blocked = self.decides();
        Ok(if is_blocked { ToolCallDecision::Block(block) } else { ToolCallDecision::Allow })
    }

    async fn after_tool_call(
        &self,
        _cx: &HookContext,
        _call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        self.add("tool_result");
        Ok(ResultChanges::default())
    }

    async fn finish_turn(
        &self,
        _cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        self.add("turn_end");
        Ok(self.decides().then_some(FinishTurn::End))
    }

    async fn before_compaction(
        &self,
        _cx: &HookContext,
        _compaction: &PendingCompaction<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        self.add("session_before_compact");
        let summary = SummaryOverride::Summary { summary: self.name.to_owned(), details: None };
        Ok(Some(if self.decides() { SummaryOverride::Cancel } else { summary }))
    }

    async fn after_compaction(&self, _cx: &HookContext, _entry: &Entry) -> Result<(), HookError> {
        self.add("session_compact");
        Ok(())
    }

    async fn transform_input(
        &self,
        _cx: &HookContext,
        _input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        self.add("input");
        Ok(if self.decides() { InputDecision::Handled } else { InputDecision::Continue })
    }

    async fn replace_bash_result(
        &self,
        _cx: &HookContext,
        _bash: &UserBash,
    ) -> Result<Option<BashResult>, HookError> {
        self.add("user_bash");
        let result = BashResult { output: "replaced".to_owned(), ..BashResult::default() };
        Ok(self.decides().then_some(result))
    }
}

/// The two extensions, with their common record.
fn recorders() -> ([Recorder; 2], Arc<Record>) {
    let record = Arc::<Record>::default();
    let recorder = |name| Recorder { name, record: Arc::clone(&record) };
    ([recorder("a"), recorder("b")], record)
}

/// Both extensions are called for each event, `a` first.
fn both(events: &[&str]) -> Vec<String> {
    events.iter().flat_map(|event| [format!("a {event}"), format!("b {event}")]).collect()
}

/// A service with the extensions, and its conversation `c`.
struct TestApp {
    service: Service,
    record: Arc<Record>,
    seen: BTreeSet<String>,
    _folder: tempfile::TempDir,
}

impl TestApp {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agents")).unwrap();
        let agent = "---\ntools: [ls]\ncompaction: {keepRecentTokens: 1}\n---\nHelp.";
        std::fs::write(folder.path().join("agents/helper.agent.md"), agent).unwrap();
        let ([a, b], record) = recorders();
        let app = App::new().extension(a).extension(b);
        let service = Service::start(app, folder.path(), &[]).await;
        Self { service, record, seen: BTreeSet::new(), _folder: folder }
    }

    /// Sends a POST request to a conversation without work.
    async fn post(&self, path: &str, body: Value) -> Value {
        if path != "/api/conversations" {
            self.wait_for_no_worker().await;
        }
        let (status, answer) = self.service.post(path, &body).await;
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    }

    async fn prompt(&self, input: &str) -> Value {
        self.post("/api/conversations/c/prompts?wait=60", json!({"input": input})).await
    }

    /// Waits until the conversation has no work and no worker has it.
    async fn wait_for_no_worker(&self) {
        let polling = async {
            loop {
                let why = self.service.get("/api/conversations/c/why").await;
                let is_idle = why["waitsFor"] == "nothing" || why["waitsFor"] == "next_prompt";
                if is_idle && why["claim"].is_null() {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(25)).await;
            }
        };
        let polled = tokio::time::timeout(std::time::Duration::from_mins(1), polling).await;
        assert!(polled.is_ok(), "a worker keeps the conversation");
    }

    /// Id of the first message of a user.
    async fn first_message(&self) -> Value {
        let points = self.service.get("/api/conversations/c/fork-points").await;
        points["items"][0]["entryId"].clone()
    }

    /// Asserts that the calls since the last check are these. The hooks of a request run again when
    /// a worker commits before it (docs/extensions.md), which a nudge can cause at any time.
    fn expect(&mut self, step: &str, calls: &[String]) {
        let mut found = self.record.take();
        while found.len() > calls.len()
            && let Some(attempt) =
                (1..=found.len() / 2).find(|&len| found[..len] == found[len..2 * len])
        {
            found.drain(..attempt);
        }
        assert_eq!(found, calls, "{step}");
        self.seen.extend(found.iter().filter_map(|call| Some(call.split_once(' ')?.1.to_owned())));
    }

    /// Waits until an event that follows a response has this number of calls.
    async fn wait_for(&self, call: &str, count: usize) {
        let is_complete = || {
            let calls = self.record.calls.lock().unwrap();
            calls.iter().filter(|found| *found == call).count() >= count
        };
        let polling = async {
            while !is_complete() {
                tokio::time::sleep(std::time::Duration::from_millis(25)).await;
            }
        };
        let polled = tokio::time::timeout(std::time::Duration::from_mins(1), polling).await;
        assert!(polled.is_ok(), "no {call}: {:?}", self.record.take());
    }
}

#[tokio::test]
async fn two_extensions_see_all_22_events_in_the_order_of_the_source() {
    let mut app = TestApp::start().await;
    app.expect("start", &both(&["resources_discover"]));
    app.post("/api/conversations", json!({"id": "c"})).await;
    app.expect("new conversation", &both(&["session_start"]));
    app.prompt("use ls then say done").await;
    app.wait_for("b agent_end", 1).await;
    let turns = ["turn_start", "context", "tool_call", "tool_result", "turn_end", "turn_start"];
    let run = [&["input", "before_agent_start", "agent_start"][..], &turns[..]].concat();
    app.expect("prompt", &both(&[&run[..], &["context", "turn_end", "agent_end"]].concat()));
    let bash = json!({"command": "ls", "output": "a"});
    app.post("/api/conversations/c/bash", bash).await;
    app.expect("shell command", &both(&["user_bash"]));
    app.wait_for_no_worker().await;
    let client = &app.service.client;
    let patch = client.patch(format!("{}/api/conversations/c", app.service.base));
    let patched =
        patch.json(&json!({"settings": {"model": "high"}})).send_validated().await.unwrap();
    assert!(patched.status().is_success());
    app.expect("model", &both(&["model_select"]));
    app.post("/api/conversations/c/compact", json!({})).await;
    app.wait_for("b session_compact", 1).await;
    app.expect("compaction", &both(&["session_before_compact", "session_compact"]));
    let messages = app.service.get("/api/conversations/c/messages?limit=100").await;
    let summaries =
        messages["items"].as_array().unwrap().iter().filter_map(|it| it["summary"].as_str());
    assert_eq!(summaries.collect::<Vec<_>>(), ["b"], "the last summary counts");
    let target = app.first_message().await;
    app.post("/api/conversations/c/fork", json!({"entryId": target})).await;
    let fork = ["session_before_fork", "session_start", "session_fork"];
    app.expect("fork", &both(&fork));
    app.post("/api/conversations/c/leaf", json!({"entryId": target})).await;
    app.expect("move", &both(&["session_before_tree", "session_tree"]));
    app.wait_for_no_worker().await;
    let deleted = app.service.client.delete(format!("{}/api/conversations/c", app.service.base));
    assert!(deleted.send_validated().await.unwrap().status().is_success());
    app.expect("deletion", &both(&["session_shutdown"]));
    // Only an embedded agent has a current conversation that it can leave.
    let ([a, b], record) = recorders();
    let agent = Agent::builder().extension(a).extension(b).start().await.unwrap();
    agent.prompt("say hi").await.unwrap();
    record.take();
    assert!(agent.new_session().await.unwrap());
    let switch = both(&["session_before_switch", "session_switch"]);
    let found = record.take();
    let of_switch = |call: &&String| call.contains("switch");
    assert_eq!(found.iter().filter(of_switch).cloned().collect::<Vec<_>>(), switch, "{found:?}");
    app.seen.extend(["session_before_switch".to_owned(), "session_switch".to_owned()]);
    let expected: BTreeSet<String> = EVENTS.map(str::to_owned).into();
    assert_eq!(app.seen, expected);
    app.service.stop().await;
}

/// The first decision counts, and the other extension is not called.
#[tokio::test]
async fn first_decision_ends_the_events_that_can_be_decided() {
    let mut app = TestApp::start().await;
    app.post("/api/conversations", json!({"id": "c"})).await;
    app.prompt("say one").await;
    app.prompt("say two").await;
    app.wait_for("b agent_end", 2).await;
    let target = app.first_message().await;
    app.record.take();
    app.record.decides.store(true, Ordering::Relaxed);
    let handled = app.prompt("say three").await;
    assert_eq!(handled["disposition"], "handled");
    app.expect("input", &["a input".to_owned()]);
    let bash = json!({"command": "ls", "output": "a"});
    app.post("/api/conversations/c/bash", bash).await;
    app.expect("shell command", &["a user_bash".to_owned()]);
    let forked = app.post("/api/conversations/c/fork", json!({"entryId": target})).await;
    assert_eq!(forked, json!({"cancelled": true}));
    app.expect("fork", &["a session_before_fork".to_owned()]);
    let moved = app.post("/api/conversations/c/leaf", json!({"entryId": target})).await;
    assert_eq!(moved["cancelled"], true, "{moved}");
    app.expect("move", &["a session_before_tree".to_owned()]);
    app.post("/api/conversations/c/compact", json!({})).await;
    app.wait_for("a session_before_compact", 1).await;
    // The messages arrive by another route, because the input hook handles every prompt.
    let message =
        json!({"customType": "note", "content": "use ls then say done", "triggerTurn": true});
    app.post("/api/conversations/c/messages", message).await;
    app.wait_for("b agent_end", 1).await;
    let calls = app.record.take();
    let count = |call: &str| calls.iter().filter(|found| *found == call).count();
    assert_eq!(count("b session_before_compact"), 0, "{calls:?}");
    assert_eq!((count("b session_compact"), count("b turn_end")), (0, 0), "{calls:?}");
    assert_eq!((count("a tool_call"), count("b tool_call")), (1, 0), "{calls:?}");
    assert!(count("a turn_end") > 0, "{calls:?}");
    app.service.stop().await;
}
