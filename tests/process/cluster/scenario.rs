//! Scenarios of the cluster test: the requests of one conversation, and checks of its final record.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::normalise::normalise_entries;

/// Conversations of a tenant start together, so that they write to the same usage ledger. The
/// emulator keeps a tenant in one physical partition and copies the whole partition for each batch:
/// with few tenants a long run grows slower and slower.
const CONVERSATIONS_PER_TENANT: usize = 8;

/// Result of a call that a steer skipped.
const SKIPPED: &str = "Skipped due to queued user message.";

/// Kind of a conversation's payments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScenarioKind {
    /// One payment that needs an approval.
    Large,
    /// One payment that needs no approval.
    Small,
    /// Three parallel payments, one of which needs an approval.
    Several,
    /// One payment, and a steer while it runs.
    Steered,
}

impl ScenarioKind {
    pub(super) const ALL: [Self; 4] = [Self::Large, Self::Small, Self::Several, Self::Steered];

    fn input(self) -> &'static str {
        match self {
            Self::Large => "Pay 250 to Ada",
            Self::Small | Self::Steered => "Pay 40 to Ada",
            Self::Several => "Pay 40 to Ada and 250 to Bob and 50 to Cleo",
        }
    }

    fn payments(self) -> usize {
        match self {
            Self::Large | Self::Small | Self::Steered => 1,
            Self::Several => 3,
        }
    }
}

/// A conversation and its first request.
pub(super) struct Scenario {
    pub(super) tenant: String,
    pub(super) conversation: String,
    /// Path of the conversation, below the address.
    pub(super) base: String,
    pub(super) body: Value,
    pub(super) kind: ScenarioKind,
    pub(super) client: ClientKind,
}

/// How a client learns the outcome. Instances take turns for clients that wait or read a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientKind {
    /// Its first request waits.
    Waits,
    /// It reads an event stream at each instance.
    Streams,
    Polls,
}

impl ClientKind {
    const ALL: [Self; 3] = [Self::Waits, Self::Streams, Self::Polls];
}

impl Scenario {
    pub(super) fn new(number: usize) -> Self {
        let conversation = format!("c{number}");
        let kind = ScenarioKind::ALL[number % ScenarioKind::ALL.len()];
        let mut body = json!({"agent": "payments-clerk", "conversationId": conversation, "input": kind.input()});
        if kind == ScenarioKind::Several {
            body["settings"] = json!({"toolExecution": "parallel"});
        }
        let base = format!("/api/conversations/{conversation}");
        let tenant = format!("tenant-{}", number / CONVERSATIONS_PER_TENANT);
        // A steer comes while the prompt runs.
        let client = if kind == ScenarioKind::Steered {
            ClientKind::Polls
        } else {
            ClientKind::ALL[number / ScenarioKind::ALL.len() % ClientKind::ALL.len()]
        };
        Self { tenant, conversation, base, body, kind, client }
    }
}

/// Final state of a conversation.
pub(super) struct ScenarioResult {
    pub(super) scenario: Scenario,
    pub(super) entries: Vec<Value>,
    pub(super) prompt: Value,
    pub(super) observed: Observations,
}

/// Observations of its client.
#[derive(Default)]
pub(super) struct Observations {
    pub(super) accepted_at: Option<jiff::Timestamp>,
    pub(super) has_outcome_request: bool,
}

/// Number of model responses in the record.
pub(super) fn count_responses(entries: &[Value]) -> usize {
    entries.iter().filter(|entry| entry["message"]["role"] == "assistant").count()
}

/// Longest time without a new entry since the first prompt was accepted. Approvals are decided at
/// once here, so it bounds every recovery.
pub(super) fn longest_pause(result: &ScenarioResult) -> Duration {
    let written = result.entries.iter();
    let written = written.map(|entry| entry["timestamp"].as_str().unwrap().parse().unwrap());
    let times: Vec<jiff::Timestamp> =
        result.observed.accepted_at.into_iter().chain(written).collect();
    let pauses = times.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    // Entries older than the 202 response make a negative pause, which is left out.
    pauses.filter_map(|pause| pause.try_into().ok()).max().unwrap_or_default()
}

/// Checks the final record of a conversation, and that no write was sent twice.
pub(super) fn check_result(
    outcome: &ScenarioResult,
    payments: &[u32],
    expected: &BTreeMap<ScenarioKind, Vec<Value>>,
) {
    let ScenarioResult { scenario, entries, prompt, observed } = outcome;
    let Scenario { conversation, kind, .. } = scenario;
    assert_eq!(prompt["state"], "completed", "{conversation}: {prompt}");
    assert!(payments.len() <= kind.payments(), "{conversation} paid {} times", payments.len());
    assert!(payments.iter().all(|times| *times == 1), "{conversation}: sent {payments:?}");
    let messages_with_role = |role: &str| {
        let messages = entries.iter().map(|entry| &entry["message"]);
        messages.filter(|message| message["role"] == role).collect::<Vec<_>>()
    };
    let calls: usize = messages_with_role("assistant")
        .iter()
        .flat_map(|answer| answer["content"].as_array().unwrap())
        .filter(|block| block["type"] == "toolCall")
        .count();
    assert_eq!(
        messages_with_role("toolResult").len(),
        calls,
        "{conversation}: each call has one result"
    );
    let inputs = usize::from(*kind == ScenarioKind::Steered) + 1;
    assert_eq!(
        messages_with_role("user").len(),
        inputs,
        "{conversation}: each input is applied once"
    );
    if observed.has_outcome_request {
        return;
    }
    // A steer before the start of a payment skips it: the result is `SKIPPED`.
    let is_skip = |result: &&&Value| result["content"][0]["text"] == SKIPPED;
    let skipped = messages_with_role("toolResult").iter().filter(is_skip).count();
    assert_eq!(payments.len() + skipped, kind.payments(), "{conversation}: not all was paid");
    if *kind == ScenarioKind::Steered {
        // The position of the steer depends on timing.
        return;
    }
    assert_eq!(
        comparable_entries(*kind, entries),
        expected[kind],
        "{conversation}: the record differs"
    );
}

/// Normalised entries for a comparison. Of parallel calls only the messages have a fixed order. Frames
/// have an entry more if a fault of the account kept their document from being stored in time.
pub(super) fn comparable_entries(kind: ScenarioKind, entries: &[Value]) -> Vec<Value> {
    let is_ordered = |entry: &&Value| kind != ScenarioKind::Several || entry["type"] == "message";
    let compared = entries.iter().filter(is_ordered).filter(|entry| entry["type"] != "frame");
    let mut compared: Vec<Value> = compared.cloned().collect();
    for entry in compared.iter_mut().filter_map(Value::as_object_mut) {
        entry.remove("frame");
    }
    normalise_entries(&compared)
}
