//! One simulated week: its inputs, its faults, and the checks at its end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::extensions::{self, WeekRecord};
use crate::tests::invariant_checks;
use crate::tests::simulation_runs::RunResult;
use crate::tests::test_env::{
    DeterministicStore, TestEnv, VersionMix, call, find_lost_updates, owner, text, three_rounds,
    usual_artifact_faults, usual_queue_faults, usual_store_faults,
};
use turnwheel_conversation::entry::{Entry, EntryBody, PromptState};
use turnwheel_conversation::frame_entry::FrameEntry;
use turnwheel_conversation::message::Message;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_platform::ids::{ArtifactId, ConversationKey};
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::frame_documents::get_frame_document;
use turnwheel_storage::artifacts::{ArtifactScope, Artifacts as _};
use turnwheel_storage::queue::QueueFaults;
use turnwheel_storage::store::ConversationStore;
use turnwheel_storage::store::memory::{MemoryStore, StoreFaults};
use turnwheel_tools::sha256_hex;

const INPUTS: [&str; 4] = ["go", "wire", "ask", "files"];
const EXTENSION_INPUTS: [&str; 5] = ["go", "wire", "tally", "ask", "files"];
/// Wall clocks may differ by less than the time between the last use of a lease and its take-over.
const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(14);
/// More bytes than an inbox item holds.
const LONG_INPUT_BYTES: usize = 256 * 1024 + 1;

/// Contents of a week.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeekPlan {
    conversations: usize,
    /// Prompts of each conversation.
    prompts: usize,
    client_inputs_max: usize,
    concurrency: u32,
    versions: VersionSetup,
    has_long_input: bool,
    /// True if an extension decides how turns end.
    has_turn_decisions: bool,
    extensions: ExtensionSetup,
    /// Upper bound of the requests of clients that use the session tree.
    tree_requests_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtensionSetup {
    None,
    Failing,
    /// Nothing but extensions fails.
    OnlyFailing,
}

/// Versions of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VersionSetup {
    One,
    /// An older and a newer version with the same agents.
    Two,
    /// An older and a newer version with different agents.
    TwoWithDifferentAgents,
}

impl WeekPlan {
    /// Most weeks are short; one of a hundred has all features.
    pub(super) fn from_seed(seed: u64) -> Self {
        if seed.is_multiple_of(100) {
            return Self::full();
        }
        let versions = match seed % 5 {
            1 => VersionSetup::Two,
            2 => VersionSetup::TwoWithDifferentAgents,
            _ => VersionSetup::One,
        };
        Self {
            conversations: 1,
            prompts: 1 + usize::from(seed.is_multiple_of(3)),
            client_inputs_max: if seed.is_multiple_of(2) { 3 } else { 0 },
            concurrency: if seed.is_multiple_of(4) { 3 } else { 1 },
            versions,
            has_long_input: seed % 32 == 5,
            has_turn_decisions: false,
            extensions: ExtensionSetup::None,
            tree_requests_max: 0,
        }
    }

    pub(super) fn full() -> Self {
        Self {
            conversations: 3,
            prompts: 3,
            client_inputs_max: 12,
            concurrency: 1,
            versions: VersionSetup::Two,
            has_long_input: true,
            has_turn_decisions: false,
            extensions: ExtensionSetup::None,
            tree_requests_max: 0,
        }
    }

    pub(super) fn with_parallel_calls(self) -> Self {
        Self { concurrency: 3, ..self }
    }

    pub(super) fn with_turn_decisions(self) -> Self {
        Self { has_turn_decisions: true, ..self }
    }

    /// A week whose clients move the leaf, edit earlier prompts, label, insert and fork.
    pub(super) fn with_tree_requests(self) -> Self {
        Self { tree_requests_max: 8, ..self }
    }

    pub(super) fn with_extensions(self) -> Self {
        Self { extensions: ExtensionSetup::Failing, ..self }
    }

    /// A week of one version in which extensions fail, and some responses of `wire` are lost.
    pub(super) fn with_only_hook_faults(self) -> Self {
        let versions = VersionSetup::One;
        Self { extensions: ExtensionSetup::OnlyFailing, versions, ..self }
    }

    /// A full week of one process, which has one version.
    pub(super) fn one_process(seed: u64) -> Self {
        let concurrency = if seed.is_multiple_of(2) { 3 } else { 1 };
        Self { concurrency, versions: VersionSetup::One, ..Self::full() }
    }

    fn has_extensions(&self) -> bool {
        self.extensions != ExtensionSetup::None
    }

    fn has_only_hook_faults(&self) -> bool {
        self.extensions == ExtensionSetup::OnlyFailing
    }

    /// Inputs of the conversation with the number, in order.
    fn inputs(&self, seed: u64, number: usize) -> Vec<&'static str> {
        let first = usize::try_from(seed / 2).unwrap_or(0) + number;
        let inputs = if self.has_extensions() { &EXTENSION_INPUTS[..] } else { &INPUTS };
        (0..self.prompts).map(|offset| inputs[(first + offset) % inputs.len()]).collect()
    }
}

fn script(results: usize, input: &str) -> Vec<Value> {
    // Inputs of clients that use the tree have a number, because they are looked up by their text.
    let input = input.split(' ').next().unwrap_or(input);
    let file = |id: &str, tool: &str, arguments: &Value| json!({"type": "toolCall", "id": id, "name": tool, "arguments": arguments});
    match (input, results) {
        ("go", _) => three_rounds(results, input),
        ("wire", 0) => vec![call("c1", "wire", 0), call("c2", "look", 0), call("c3", "wire", 1)],
        ("wire", 3) => vec![call("c1", "put", 3), call("c2", "wire", 3)],
        ("tally", 0) => vec![call("c1", "tally", 0), call("c2", "pay", 0), call("c3", "tally", 1)],
        ("tally", 3) => vec![call("c1", "tally", 2), call("c2", "put", 3)],
        ("ask", 0) => vec![call("c1", "gated", 0), call("c2", "gated", 1)],
        ("files", 0) => vec![
            file("c1", "write", &json!({"path": "a.txt", "content": "one"})),
            call("c2", "dump", 0),
            file("c3", "edit", &json!({"path": "a.txt", "old_text": "one", "new_text": "two"})),
        ],
        ("files", 3) => {
            let edit = json!({"path": "a.txt", "old_text": "two", "new_text": "three"});
            vec![call("c4", "dump", 1), file("c5", "edit", &edit)]
        }
        _ => vec![text("done")],
    }
}

/// The store of a week.
pub(super) enum WeekStore {
    Memory,
    /// A decorator of the memory store.
    Decorated(fn(Arc<MemoryStore>) -> Arc<dyn ConversationStore>),
    Embedded(Arc<DeterministicStore>),
}

pub(super) async fn run_week(
    seed: u64,
    fault_plan: &FaultPlan,
    plan: &WeekPlan,
    week_store: WeekStore,
) -> RunResult {
    let response_loss = if plan.has_only_hook_faults() { 0.0 } else { 0.03 };
    let mut env = TestEnv::with_fault_plan(seed, fault_plan, script, response_loss);
    if plan.concurrency > 1 {
        env.enable_parallel_calls(plan.concurrency);
    }
    match week_store {
        WeekStore::Memory => {}
        WeekStore::Decorated(store) => env.worker_store = store(env.store.clone()),
        WeekStore::Embedded(embedded) => env.use_embedded_store(embedded),
    }
    inject_faults(&mut env, fault_plan, plan);
    let sent = send_inputs(&mut env, (seed, fault_plan), plan).await;
    env.store.set_faults(StoreFaults::default());
    env.queue.set_faults(QueueFaults::default());
    env.artifacts.clear_faults();
    let outcome = match sent {
        Ok(()) => check_week(&mut env, plan).await,
        Err(error) => Err(error),
    };
    RunResult { outcome, run_log: env.run_log.clone() }
}

fn inject_faults(env: &mut TestEnv, fault_plan: &FaultPlan, plan: &WeekPlan) {
    let ids = ["c", "d", "e"].into_iter().take(plan.conversations);
    env.conversations = ids.map(|id| owner().conversation_key(id)).collect();
    env.client_inputs_max = plan.client_inputs_max;
    env.client_input_percent = 30;
    env.tree_requests_max = plan.tree_requests_max;
    env.set_turn_decisions(plan.has_turn_decisions);
    if plan.has_extensions() {
        extensions::install(env, fault_plan);
    }
    if plan.has_only_hook_faults() {
        return;
    }
    env.undecided_percent = 25;
    env.patch_percent = 5;
    env.crash_percent = 3;
    env.stall_percent = 1;
    env.queue_loss_percent = 3;
    env.clock_offset_max = CLOCK_OFFSET_MAX;
    env.store.set_faults(usual_store_faults());
    env.queue.set_faults(usual_queue_faults());
    env.artifacts.set_faults(fault_plan, usual_artifact_faults());
    let mut version_mix = VersionMix::half_and_half();
    match plan.versions {
        VersionSetup::One => return,
        VersionSetup::Two => {}
        VersionSetup::TwoWithDifferentAgents => env.change_newer_agents(&mut version_mix),
    }
    env.version_mix = Some(version_mix);
}

/// # Errors
/// If the conversations never become idle.
async fn send_inputs(
    env: &mut TestEnv,
    (seed, fault_plan): (u64, &FaultPlan),
    plan: &WeekPlan,
) -> Result<(), String> {
    let long = "x".repeat(LONG_INPUT_BYTES);
    for (number, key) in env.conversations.clone().iter().enumerate() {
        let mut inputs = plan.inputs(seed, number);
        if plan.has_long_input && number == 0 {
            inputs.push(&long);
        }
        for (position, inputs) in inputs.into_iter().enumerate() {
            loop {
                let services = env.new_worker(Arc::new(NoFailPoints));
                if position == 0 {
                    env.send_prompt_to(&services, key.conversation_id.as_str(), inputs).await;
                } else {
                    // The client repeats the request with the same key until it is accepted.
                    while let Err(error) = env.queue_prompt(&services, key, inputs).await {
                        env.run_log.push(format_args!("prompt not accepted: {error}"));
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
                if !fault_plan.should_inject(
                    "a client repeated its request",
                    key.conversation_id.as_str(),
                    0.4,
                ) {
                    break;
                }
            }
        }
    }
    if env.try_run_until_idle().await { Ok(()) } else { Err("the prompts never ended".to_owned()) }
}

/// Returns the number of failed prompts.
///
/// # Errors
/// Returns the violations.
async fn check_week(env: &mut TestEnv, plan: &WeekPlan) -> Result<usize, String> {
    env.version_mix = None;
    let (mut failed, mut violations) = (0, Vec::new());
    let services = env.new_worker(Arc::new(NoFailPoints));
    let forks = continue_forks(env, &services).await?;
    let env = &*env;
    for (key, prompts) in &forks {
        let (input_violations, _, held) = env.find_input_violations(&services, key).await;
        violations.extend(input_violations);
        violations.extend(invariant_checks::violation_lines(env, key, (prompts + 1, held)).await);
    }
    for (number, key) in env.conversations.iter().enumerate() {
        let (input_violations, started, held) = env.find_input_violations(&services, key).await;
        violations.extend(input_violations);
        let (tree_violations, added) = env.find_tree_violations(&services, key).await;
        violations.extend(tree_violations);
        let expected = plan.prompts + usize::from(plan.has_long_input && number == 0) + added;
        violations
            .extend(invariant_checks::violation_lines(env, key, (expected + started, held)).await);
        violations.extend(find_lost_updates(&env.store, key));
        let entries = env.entries_of(key).await;
        violations.extend(find_unreadable_files(env, key, &entries).await);
        let mut has_failed_prompt = false;
        for entry in &entries {
            let EntryBody::PromptEnd(end) = &entry.body else { continue };
            // A move of the leaf may abort a prompt.
            let is_abort = end.state == PromptState::Aborted && plan.tree_requests_max > 0;
            if end.state == PromptState::Completed || is_abort {
                continue;
            }
            failed += 1;
            has_failed_prompt = true;
            let kind = end.error.as_ref().map(|error| error.kind.as_str());
            if kind != Some("poisoned") {
                violations.push(format!("{key}: a prompt ended {:?}: {kind:?}", end.state));
            }
        }
        if plan.has_extensions() {
            let head = &env.head_of(key).await.unwrap();
            let has_only_hook_faults = plan.has_only_hook_faults();
            let record =
                WeekRecord { head, entries: &entries, has_failed_prompt, has_only_hook_faults };
            violations.extend(record.find_violations());
        }
    }
    if violations.is_empty() { Ok(failed) } else { Err(violations.join("\n")) }
}

/// Runs a prompt in each fork. Returns the forks, with the number of prompts that they had before.
///
/// # Errors
/// If the prompts never end.
async fn continue_forks(
    env: &mut TestEnv,
    services: &Services,
) -> Result<Vec<(ConversationKey, usize)>, String> {
    let forks = env.forks().await;
    if forks.is_empty() {
        return Ok(forks);
    }
    env.tree_requests_max = 0;
    let own = env.conversations.clone();
    env.conversations = forks.iter().map(|(key, _)| key.clone()).collect();
    for key in env.conversations.clone() {
        env.queue_prompt(services, &key, "wire").await.map_err(|error| error.to_string())?;
    }
    let is_idle = env.try_run_until_idle().await;
    env.conversations = own;
    if is_idle { Ok(forks) } else { Err("the prompts of forks never ended".to_owned()) }
}

/// Returns files that the record names but cannot be read, and results that were truncated
/// silently.
async fn find_unreadable_files(
    env: &TestEnv,
    key: &ConversationKey,
    entries: &[Entry],
) -> Vec<String> {
    let Some(head) = env.head_of(key).await else { return Vec::new() };
    let scope = ArtifactScope { key: key.clone(), incarnation: head.incarnation };
    let mut violations = Vec::new();
    for entry in entries {
        let mut ids = Vec::new();
        collect_artifact_ids(&serde_json::to_value(&entry.body).unwrap(), &mut ids);
        for id in ids {
            let (_, sha256) = id.parts().unwrap();
            let is_whole = env
                .artifacts
                .get(&scope, &id, None)
                .await
                .is_ok_and(|bytes| sha256_hex(&bytes) == sha256);
            if !is_whole {
                violations
                    .push(format!("{key}: the record names the file {id}, which cannot be read"));
            }
        }
        if let EntryBody::Frame(FrameEntry { document: Some(sha256), .. }) = &entry.body {
            let document = get_frame_document(&*env.artifacts, &scope, sha256).await;
            if !document.is_ok_and(|bytes| bytes.is_some_and(|it| sha256_hex(&it) == *sha256)) {
                violations.push(format!("{key}: the record names a lost frame document {sha256}"));
            }
        }
        if let Some(Message::ToolResult(result)) = entry.body.message()
            && result.tool_name == "dump"
            && !result.is_error
        {
            let text = serde_json::to_string(&result.content).unwrap();
            let notes = ["Full output: artifact", "The rest could not be kept"];
            // A result that an approver supplied is not truncated.
            let is_cut = text.contains("line\\nline");
            if is_cut && !notes.iter().any(|note| text.contains(note)) {
                violations.push(format!("{key}: a result was truncated silently"));
            }
        }
    }
    violations
}

/// Collects the ids of artifacts anywhere in the value.
fn collect_artifact_ids(value: &Value, ids: &mut Vec<ArtifactId>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_artifact_ids(item, ids)),
        Value::Object(members) => {
            members.values().for_each(|member| collect_artifact_ids(member, ids));
        }
        Value::String(text) => {
            let words = text.split([' ', '(', ')', '\n']).map(ArtifactId::new);
            ids.extend(words.filter(|word| word.parts().is_some()));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
