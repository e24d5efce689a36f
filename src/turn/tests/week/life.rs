//! One simulated week: its inputs, its faults, and the checks at its end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::entry::{Entry, EntryBody, PromptState};
use crate::agent::message::Message;
use crate::artifacts::{Artifacts as _, Shelf};
use crate::ids::fate::Fate;
use crate::ids::{ArtifactId, ConversationKey};
use crate::queue::Faults as QueueFaults;
use crate::store::ConversationStore;
use crate::store::memory::{Faults, MemoryStore};
use crate::tools::sha256_hex;
use crate::turn::NoProbe;
use crate::turn::tests::bench::{
    Bench, Mix, Steady, bad_blobs, bad_queue, bad_store, call, lost_to_older, owner, text,
    three_rounds,
};
use crate::turn::tests::checks;
use crate::turn::tests::seeds::Lived;

const ALL: [&str; 4] = ["go", "wire", "ask", "files"];
/// Wall clocks may differ by less than the time between the last use of a lease and its take-over.
const SKEW: Duration = Duration::from_secs(14);
/// More bytes than an inbox item holds.
const LONG_BYTES: usize = 256 * 1024 + 1;

/// Contents of a week.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    conversations: usize,
    /// Prompts of each conversation.
    prompts: usize,
    chats_max: usize,
    at_once: u32,
    versions: Versions,
    has_long_input: bool,
    /// True if an extension decides how turns end.
    is_decided: bool,
}

/// Versions of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Versions {
    One,
    /// An older and a newer version with the same agents.
    Two,
    /// An older and a newer version with different agents.
    TwoWithOtherAgents,
}

impl Plan {
    /// Most weeks are short; one of a hundred has all features.
    pub(super) fn of(seed: u64) -> Self {
        if seed.is_multiple_of(100) {
            return Self::whole();
        }
        let versions = match seed % 5 {
            1 => Versions::Two,
            2 => Versions::TwoWithOtherAgents,
            _ => Versions::One,
        };
        Self {
            conversations: 1,
            prompts: 1 + usize::from(seed.is_multiple_of(3)),
            chats_max: if seed.is_multiple_of(2) { 3 } else { 0 },
            at_once: if seed.is_multiple_of(4) { 3 } else { 1 },
            versions,
            has_long_input: seed % 32 == 5,
            is_decided: false,
        }
    }

    pub(super) fn whole() -> Self {
        Self {
            conversations: 3,
            prompts: 3,
            chats_max: 12,
            at_once: 1,
            versions: Versions::Two,
            has_long_input: true,
            is_decided: false,
        }
    }

    pub(super) fn with_calls_at_once(self) -> Self {
        Self { at_once: 3, ..self }
    }

    pub(super) fn with_decided_turns(self) -> Self {
        Self { is_decided: true, ..self }
    }

    /// A full week of one process, which has one version.
    pub(super) fn of_one_process(seed: u64) -> Self {
        let at_once = if seed.is_multiple_of(2) { 3 } else { 1 };
        Self { at_once, versions: Versions::One, ..Self::whole() }
    }

    /// Inputs of the conversation with the number, in order.
    fn said(&self, seed: u64, number: usize) -> Vec<&'static str> {
        let first = usize::try_from(seed / 2).unwrap_or(0) + number;
        (0..self.prompts).map(|offset| ALL[(first + offset) % ALL.len()]).collect()
    }
}

fn script(results: usize, said: &str) -> Vec<Value> {
    let file = |id: &str, tool: &str, arguments: &Value| json!({"type": "toolCall", "id": id, "name": tool, "arguments": arguments});
    match (said, results) {
        ("go", _) => three_rounds(results, said),
        ("wire", 0) => vec![call("c1", "wire", 0), call("c2", "look", 0), call("c3", "wire", 1)],
        ("wire", 3) => vec![call("c1", "put", 3), call("c2", "wire", 3)],
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
pub(super) enum Over {
    Memory,
    /// A decorator of the memory store.
    InFront(fn(Arc<MemoryStore>) -> Arc<dyn ConversationStore>),
    Embedded(Arc<Steady>),
}

pub(super) async fn live_through(seed: u64, fate: &Fate, plan: &Plan, over: Over) -> Lived {
    let mut bench = Bench::fated(seed, fate, script, 0.03);
    if plan.at_once > 1 {
        bench.run_calls_at_once(plan.at_once);
    }
    match over {
        Over::Memory => {}
        Over::InFront(store) => bench.shared = store(bench.store.clone()),
        Over::Embedded(steady) => bench.use_steady(steady),
    }
    prepare(&mut bench, fate, plan);
    let lived = live(&mut bench, (seed, fate), plan).await;
    bench.store.set_faults(Faults::default());
    bench.queue.set_faults(QueueFaults::default());
    bench.artifacts.calm();
    let outcome = match lived {
        Ok(()) => check(&mut bench, plan).await,
        Err(why) => Err(why),
    };
    Lived { outcome, story: bench.story.clone() }
}

fn prepare(bench: &mut Bench, fate: &Fate, plan: &Plan) {
    let ids = ["c", "d", "e"].into_iter().take(plan.conversations);
    bench.conversations = ids.map(|id| owner().key(id)).collect();
    bench.ignored_in_a_hundred = 25;
    bench.patched_in_a_hundred = 5;
    bench.crash_in_a_hundred = 3;
    bench.still_in_a_hundred = 1;
    bench.queues_lost_in_a_hundred = 3;
    bench.chats_in_a_hundred = 30;
    bench.chats_max = plan.chats_max;
    bench.decide_turns(plan.is_decided);
    bench.skew_max = SKEW;
    bench.store.set_faults(bad_store());
    bench.queue.set_faults(bad_queue());
    bench.artifacts.set_faults(fate, bad_blobs());
    let mut mix = Mix::of_versions();
    match plan.versions {
        Versions::One => return,
        Versions::Two => {}
        Versions::TwoWithOtherAgents => bench.change_agents(&mut mix),
    }
    bench.mix = Some(mix);
}

/// # Errors
/// If the conversations never become idle.
async fn live(bench: &mut Bench, (seed, fate): (u64, &Fate), plan: &Plan) -> Result<(), String> {
    let long = "x".repeat(LONG_BYTES);
    for (number, key) in bench.conversations.clone().iter().enumerate() {
        let mut said = plan.said(seed, number);
        if plan.has_long_input && number == 0 {
            said.push(&long);
        }
        for (place, said) in said.into_iter().enumerate() {
            loop {
                let world = bench.worker(Arc::new(NoProbe));
                if place == 0 {
                    bench.ask_in(&world, key.conversation_id.as_str(), said).await;
                } else {
                    // The client repeats the request with the same key until it is accepted.
                    while let Err(error) = bench.queue_up(&world, key, said).await {
                        bench.story.push(format_args!("prompt not accepted: {error}"));
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
                if !fate.says("a client repeated itself", key.conversation_id.as_str(), 0.4) {
                    break;
                }
            }
        }
    }
    if bench.comes_to_rest().await { Ok(()) } else { Err("the prompts never ended".to_owned()) }
}

/// Returns the number of failed prompts.
///
/// # Errors
/// Returns the violations.
async fn check(bench: &mut Bench, plan: &Plan) -> Result<usize, String> {
    bench.mix = None;
    let (mut failed, mut faults) = (0, Vec::new());
    let world = bench.worker(Arc::new(NoProbe));
    let bench = &*bench;
    for (number, key) in bench.conversations.iter().enumerate() {
        let (wrong, begun, held) = bench.chat_faults(&world, key).await;
        faults.extend(wrong);
        let asked = plan.prompts + usize::from(plan.has_long_input && number == 0);
        faults.extend(checks::faults(bench, key, (asked + begun, held)).await);
        faults.extend(lost_to_older(&bench.store, key));
        let entries = bench.entries_of(key).await;
        faults.extend(lost_files(bench, key, &entries).await);
        for entry in &entries {
            let EntryBody::PromptEnd(end) = &entry.body else { continue };
            if end.state == PromptState::Completed {
                continue;
            }
            failed += 1;
            let kind = end.error.as_ref().map(|error| error.kind.as_str());
            if kind != Some("poisoned") {
                faults.push(format!("{key}: a prompt ended {:?}: {kind:?}", end.state));
            }
        }
    }
    if faults.is_empty() { Ok(failed) } else { Err(faults.join("\n")) }
}

/// Returns files that the record names but cannot be read, and results that were truncated
/// silently.
async fn lost_files(bench: &Bench, key: &ConversationKey, entries: &[Entry]) -> Vec<String> {
    let Some(head) = bench.head_of(key).await else { return Vec::new() };
    let shelf = Shelf { key: key.clone(), incarnation: head.incarnation };
    let mut lost = Vec::new();
    for entry in entries {
        let mut named = Vec::new();
        name_files(&serde_json::to_value(&entry.body).unwrap(), &mut named);
        for id in named {
            let (_, sha256) = id.parts().unwrap();
            let is_whole = bench
                .artifacts
                .get(&shelf, &id, None)
                .await
                .is_ok_and(|bytes| sha256_hex(&bytes) == sha256);
            if !is_whole {
                lost.push(format!("{key}: the record names the file {id}, which cannot be read"));
            }
        }
        if let Some(Message::ToolResult(result)) = entry.body.message()
            && result.tool_name == "dump"
            && !result.is_error
        {
            let text = serde_json::to_string(&result.content).unwrap();
            let is_told = ["Full output: artifact", "The rest could not be kept"];
            // A result that an approver supplied is not truncated.
            let is_cut = text.contains("line\\nline");
            if is_cut && !is_told.iter().any(|told| text.contains(told)) {
                lost.push(format!("{key}: a result was truncated silently"));
            }
        }
    }
    lost
}

/// Collects the ids of artifacts anywhere in the value.
fn name_files(value: &Value, named: &mut Vec<ArtifactId>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| name_files(item, named)),
        Value::Object(members) => members.values().for_each(|member| name_files(member, named)),
        Value::String(text) => {
            let words = text.split([' ', '(', ')', '\n']).map(ArtifactId::new);
            named.extend(words.filter(|word| word.parts().is_some()));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
