//! Extensions and plugins of simulated weeks: they count, ask, act, panic, hang and fail. The record
//! must hold each of their changes once, and none of a failed hook.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::tests::test_env::{APPROVAL_EXPIRES, RunLog, TestEnv};
use turnwheel_conversation::content::{Block, ToolCall};
use turnwheel_conversation::entry::{Custom, CustomMessageEntry, Entry, EntryBody};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::{AssistantMessage, Message, ToolResultMessage};
use turnwheel_conversation::request::{CallRef, Effect, RequestKind, Verdict};
use turnwheel_extensions::guardrails::{Guardrails, compile_pattern};
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::{
    CallBlock, ClosingTurn, Extension, FinishTurn, FinishedRun, FinishedToolCall, Hook,
    HookContext, HookError, InputDecision, Observation, PendingToolCall, Plugin, PluginError,
    PluginTools, Prepare, PromptText, Question, ResultChanges, RunChanges, StartingRun,
    ToolCallDecision,
};
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_tools::ToolResult;
use turnwheel_tools::code::{CallContext, ServiceRegistry, Tool, ToolError};

/// Names of the faults of extensions.
pub(super) const FAULT_NAMES: [&str; 3] = [PANICKED, HUNG, FAILED];
const PANICKED: &str = "an extension panicked";
const HUNG: &str = "an extension hung";
const FAILED: &str = "an extension failed";

/// Line of the log for a hook that ran again.
pub(super) const REPEATED: &str = "hook ran again";

/// Text that a hook adds to each result.
const SEEN: &str = "seen";

/// Workers from now on have the extensions and plugins.
pub(super) fn install(env: &mut TestEnv, fault_plan: &FaultPlan) {
    let register =
        |plugin| Arc::new(RegisteredPlugin::new(plugin, ServiceRegistry::default()).unwrap());
    let faults = Faults(fault_plan.clone());
    env.set_plugins(&[
        register(WeekPlugin { name: "rounds", faults: None }),
        register(WeekPlugin { name: "unruly", faults: Some(faults.clone()) }),
        register(WeekPlugin { name: "tally", faults: None }),
    ]);
    let extension = |name, role| {
        let (run_log, faults) = (env.run_log.clone(), faults.clone());
        Arc::new(WeekExtension { name, role, faults, run_log, seen: Mutex::default() })
    };
    env.extensions = vec![
        extension("acting", Role::Acts),
        extension("unruly", Role::Misbehaves),
        extension("asking", Role::Asks),
        Arc::new(Guardrails {
            tools: Some(vec!["put".to_owned(), "wir*".to_owned()]),
            patterns: vec![compile_pattern(r#""n":3"#).unwrap()],
            approvers: Vec::new(),
            expires_after: APPROVAL_EXPIRES,
        }),
    ];
}

fn is_guarded(call: &ToolCall) -> bool {
    matches!(call.name.as_str(), "put" | "wire") && call.arguments.to_value()["n"] == 3
}

#[derive(Clone, Debug)]
struct Faults(FaultPlan);

impl Faults {
    /// Panics, never ends, fails after an action, or does nothing.
    async fn inject(&self, cx: &HookContext) -> Result<(), HookError> {
        let place = format!("{} {}", cx.conversation().conversation_id, cx.hook().name());
        let happens = |fault| self.0.should_inject(fault, &place, 0.03);
        // A panic here fails the prompt, as documented; the others are retried.
        assert!(cx.hook() == Hook::Context || !happens(PANICKED), "unruly");
        if happens(HUNG) {
            std::future::pending::<()>().await;
        }
        if happens(FAILED) {
            if cx.hook().action_origin().is_some() {
                cx.append_entry("week/dropped", &json!({"id": cx.hook_id()}))?;
            }
            return Err(HookError::new("unruly"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Role {
    /// Leaves an entry at each event that has actions.
    Acts,
    Misbehaves,
    /// Asks before `pay` and `wire`.
    Asks,
}

/// Runs at every event.
struct WeekExtension {
    name: &'static str,
    role: Role,
    faults: Faults,
    run_log: RunLog,
    /// Ids of the hooks that have run.
    seen: Mutex<BTreeSet<String>>,
}

impl fmt::Debug for WeekExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl WeekExtension {
    async fn run(&self, cx: &HookContext) -> Result<(), HookError> {
        match self.role {
            Role::Acts => {
                let (id, event) = (cx.hook_id(), cx.hook().name());
                if !self.seen.lock().unwrap().insert(id.clone()) {
                    self.run_log.push(format_args!("{REPEATED}: {event}"));
                }
                if cx.hook().action_origin().is_some() {
                    cx.append_entry(format!("week/{event}"), &json!({"id": id}))?;
                }
                Ok(())
            }
            Role::Misbehaves => self.faults.inject(cx).await,
            Role::Asks => Ok(()),
        }
    }

    fn acts(&self) -> bool {
        matches!(self.role, Role::Acts)
    }
}

#[async_trait]
impl Extension for WeekExtension {
    fn name(&self) -> &str {
        self.name
    }

    async fn before_agent_start(
        &self,
        cx: &HookContext,
        run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        self.run(cx).await?;
        if !self.acts() {
            return Ok(RunChanges::default());
        }
        Ok(RunChanges {
            messages: vec![CustomMessageEntry::new("week/start", "It is Monday.")],
            system_prompt: Some(format!("{} Be brief.", run.system_prompt)),
        })
    }

    async fn finish_run(&self, cx: &HookContext, _run: &FinishedRun<'_>) -> Result<(), HookError> {
        self.run(cx).await
    }

    async fn observe(&self, cx: &HookContext, _fact: &Observation) -> Result<(), HookError> {
        self.run(cx).await
    }

    async fn transform_context<'a>(
        &self,
        cx: &HookContext,
        messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, HookError> {
        self.run(cx).await?;
        Ok(messages)
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        self.run(cx).await?;
        if !matches!(self.role, Role::Asks) || !matches!(call.tool_name, "pay" | "wire") {
            return Ok(ToolCallDecision::Allow);
        }
        let question = Question::new(format!("Run {}?", call.tool_name)).within(APPROVAL_EXPIRES);
        Ok(if cx.confirm("sure", question)? {
            ToolCallDecision::Allow
        } else {
            ToolCallDecision::Block(CallBlock::default())
        })
    }

    async fn after_tool_call(
        &self,
        cx: &HookContext,
        call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        self.run(cx).await?;
        let content = [call.content, &[Block::text(SEEN)]].concat();
        Ok(ResultChanges { content: self.acts().then_some(content), ..ResultChanges::default() })
    }

    async fn finish_turn(
        &self,
        cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        self.run(cx).await.map(|()| None)
    }

    async fn transform_input(
        &self,
        cx: &HookContext,
        _input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        self.run(cx).await.map(|()| InputDecision::Continue)
    }
}

/// `rounds` counts the complete responses, `tally` the calls of its tool, and `unruly` fails.
struct WeekPlugin {
    name: &'static str,
    faults: Option<Faults>,
}

impl fmt::Debug for WeekPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Plugin for WeekPlugin {
    type State = Value;

    fn name(&self) -> &str {
        self.name
    }

    fn tools(&self, tools: &mut PluginTools) {
        if self.name == "tally" {
            tools.tool(TallyTool);
        }
    }

    fn is_optional(&self) -> bool {
        self.faults.is_some()
    }

    async fn prepare(&self, cx: &mut Prepare<'_, Value>) -> Result<(), PluginError> {
        if let Some(faults) = &self.faults {
            let injected = faults.inject(cx.hook()).await;
            return injected.map_err(|error| PluginError::new(error.to_string()));
        }
        if self.name == "tally" {
            return cx.activate("tally");
        }
        let before = cx.state().and_then(Value::as_u64).unwrap_or_default();
        cx.set_state(json!(before + 1))
    }
}

/// Adds 1 to the state of its plugin: a change that must land once, although the call may repeat.
struct TallyTool;

#[derive(Deserialize, JsonSchema)]
struct TallyArguments {
    n: u64,
}

impl Tool for TallyTool {
    type Args = TallyArguments;

    fn name(&self) -> &'static str {
        "tally"
    }

    fn description(&self) -> &'static str {
        "Counts."
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn writes_state(&self) -> bool {
        true
    }

    async fn call(&self, args: TallyArguments, cx: CallContext) -> Result<ToolResult, ToolError> {
        let before: u64 = cx.state()?.unwrap_or_default();
        tokio::task::yield_now().await;
        cx.set_state(&(before + 1))?;
        Ok(ToolResult::text(format!("call {} is number {}", args.n, before + 1)))
    }
}

/// The entries of one conversation after its week.
pub(super) struct WeekRecord<'a> {
    pub(super) head: &'a Head,
    pub(super) entries: &'a [Entry],
    /// True if a prompt failed: its hooks may not all have run.
    pub(super) has_failed_prompt: bool,
    /// True if the only faults were those of extensions.
    pub(super) has_only_hook_faults: bool,
}

impl WeekRecord<'_> {
    pub(super) fn find_violations(&self) -> Vec<String> {
        let mut violations = self.find_wrong_actions();
        violations.extend(self.find_wrong_states());
        violations.extend(self.find_wrong_calls());
        violations.iter().map(|text| format!("{}: {text}", self.head.key())).collect()
    }

    fn customs(&self) -> impl Iterator<Item = &Custom> {
        self.entries.iter().filter_map(|entry| match &entry.body {
            EntryBody::Custom(custom) => Some(custom),
            _ => None,
        })
    }

    fn count(&self, custom_type: &str) -> usize {
        self.customs().filter(|custom| custom.custom_type == custom_type).count()
    }

    fn messages(&self) -> impl Iterator<Item = &Message> {
        self.entries.iter().filter_map(|entry| entry.body.message())
    }

    fn results(&self) -> impl Iterator<Item = &ToolResultMessage> {
        self.messages().filter_map(|message| match message {
            Message::ToolResult(result) => Some(result),
            _ => None,
        })
    }

    /// Number of complete responses.
    fn responses(&self) -> usize {
        let responses = self.messages().filter_map(Message::as_assistant);
        responses.filter(|response| !response.is_failed()).count()
    }

    fn find_wrong_actions(&self) -> Vec<String> {
        let mut violations = Vec::new();
        let mut ids = BTreeSet::new();
        for custom in self.customs().filter(|custom| custom.custom_type.starts_with("week/")) {
            let id = custom.data.as_ref().unwrap().to_value()["id"].to_string();
            if !ids.insert(id) {
                violations.push(format!("the action of a hook landed twice: {custom:?}"));
            }
        }
        let starts = self.entries.iter().filter(|entry| {
            matches!(&entry.body, EntryBody::CustomMessage(message) if message.custom_type == "week/start")
        });
        let is_seen = |block: &&Block| matches!(block, Block::Text(text) if text.text == SEEN);
        let seen = self.results().map(|result| result.content.iter().filter(is_seen).count());
        let seen: Vec<usize> = seen.collect();
        let users = self.messages().filter(|message| matches!(message, Message::User(_))).count();
        let mut check = |what: &str, found: usize, expected: usize| {
            let is_right =
                if self.has_failed_prompt { found <= expected } else { found == expected };
            if !is_right {
                violations.push(format!("{found} {what}, not {expected}"));
            }
        };
        let runs = self.count("week/before_agent_start");
        check("messages of starts", starts.count(), runs);
        check("system prompts of runs", self.count("turnwheel/system_prompt"), runs);
        check("actions of turn ends", self.count("week/turn_end"), self.responses());
        check("results with the text of a hook twice", usize::from(seen.iter().any(|n| *n > 1)), 0);
        check("actions of failed hooks", self.count("week/dropped"), 0);
        // The result of a lost commit is kept as an inbox item, with the text and without the action.
        let (landed, changed) = (self.count("week/tool_result"), seen.iter().sum());
        if landed > changed || (self.has_only_hook_faults && landed < changed) {
            violations.push(format!("{landed} actions of results, not {changed}"));
        }
        // Those of an input that was cleared land, too.
        if self.count("week/input") < users {
            violations.push("the actions of an input are missing".to_owned());
        }
        violations
    }

    /// The state of a plugin is the number of its committed changes.
    fn find_wrong_states(&self) -> Vec<String> {
        let mut states = BTreeMap::<String, Vec<Value>>::new();
        for custom in self.customs().filter(|custom| custom.custom_type == "turnwheel/state") {
            let change = custom.data.as_ref().unwrap().to_value();
            let plugin = change["plugin"].as_str().unwrap().to_owned();
            states.entry(plugin).or_default().push(change["state"]["value"].clone());
        }
        let is_tally =
            |result: &&ToolResultMessage| result.tool_name == "tally" && !result.is_error;
        let expected =
            [("rounds", self.responses()), ("tally", self.results().filter(is_tally).count())];
        let mut violations = Vec::new();
        for (plugin, count) in expected {
            let recorded = states.remove(plugin).unwrap_or_default();
            if recorded != (1..=count).map(|n| json!(n)).collect::<Vec<_>>() {
                violations.push(format!("{plugin} counted {recorded:?}, not {count}"));
            }
            let stored = self.head.plugin_state.get(plugin).map(|state| state.value.to_value());
            if stored != recorded.last().cloned() {
                violations.push(format!("the head has {stored:?} of {plugin}, not {recorded:?}"));
            }
        }
        violations
    }

    /// Guarded calls without an approval, questions that were asked twice, and known outcomes that
    /// became unknown.
    fn find_wrong_calls(&self) -> Vec<String> {
        let mut violations = Vec::new();
        let mut calls = HashMap::<CallRef, &ToolCall>::new();
        let (mut requests, mut approved) = (HashMap::new(), HashSet::new());
        let mut asked = HashSet::new();
        for entry in self.entries {
            match &entry.body {
                EntryBody::Message(message) => {
                    let response = message.message.as_assistant();
                    let own = response.into_iter().flat_map(AssistantMessage::tool_calls);
                    calls.extend(own.enumerate().map(|(index, call)| {
                        (CallRef { response_seq: entry.base.seq, index }, call)
                    }));
                }
                EntryBody::Request(entry) => {
                    let request = &entry.request;
                    requests.insert(&request.id, request);
                    let key = request.asker.as_ref().map(|asker| (request.call, &asker.key));
                    if key.is_some_and(|key| !asked.insert(key)) {
                        violations.push(format!("a question was asked twice: {request:?}"));
                    }
                    let is_known = request.tool.as_deref() != Some("wire");
                    if request.kind == RequestKind::Outcome && self.has_only_hook_faults && is_known
                    {
                        violations.push(format!("a known outcome became unknown: {request:?}"));
                    }
                }
                EntryBody::Decision(entry) if entry.decision.verdict == Verdict::Approve => {
                    approved.extend(requests.get(&entry.decision.request_id).map(|it| it.call));
                }
                EntryBody::ToolStarted(started) => {
                    let is_guarded = calls.get(&started.call).is_some_and(|call| is_guarded(call));
                    if is_guarded && !approved.contains(&Some(started.call)) {
                        violations.push(format!("a guarded call was not approved: {started:?}"));
                    }
                }
                _ => {}
            }
        }
        violations
    }
}
