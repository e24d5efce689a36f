//! What the clients do in one conversation, and what its record has to be at its end.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::normal::normal;

/// They begin close to each other, so that they write into the same books. All that a tenant has lies in one physical
/// partition of the emulator, which copies a whole one for each batch: with few tenants a long run grows slower and slower.
const CONVERSATIONS_OF_TENANT: usize = 8;

/// The result of a call that a steer came before.
const SKIPPED: &str = "Skipped due to queued user message.";

/// What a conversation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// One payment that a person has to agree to.
    Large,
    /// One that nobody is asked about.
    Small,
    /// Three at once, one of which a person has to agree to.
    Several,
    /// One, and somebody steers meanwhile.
    Steered,
}

impl Kind {
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

/// A conversation and what it begins with.
pub(super) struct Story {
    pub(super) tenant: String,
    pub(super) conversation: String,
    /// Below the address.
    pub(super) base: String,
    pub(super) body: Value,
    pub(super) kind: Kind,
}

impl Story {
    pub(super) fn new(number: usize) -> Self {
        let conversation = format!("c{number}");
        let kind = Kind::ALL[number % Kind::ALL.len()];
        let mut body = json!({"agent": "payments-clerk", "conversationId": conversation, "input": kind.input()});
        if kind == Kind::Several {
            body["settings"] = json!({"toolExecution": "parallel"});
        }
        let base = format!("/api/conversations/{conversation}");
        let tenant = format!("tenant-{}", number / CONVERSATIONS_OF_TENANT);
        Self { tenant, conversation, base, body, kind }
    }
}

/// How a conversation ended.
pub(super) struct Ending {
    pub(super) story: Story,
    pub(super) entries: Vec<Value>,
    pub(super) prompt: Value,
    pub(super) seen: Seen,
}

/// What its client has seen on the way.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) accepted_at: Option<jiff::Timestamp>,
    pub(super) is_asked_for_outcome: bool,
}

/// Answers that stand in the record.
pub(super) fn answers(entries: &[Value]) -> usize {
    entries.iter().filter(|entry| entry["message"]["role"] == "assistant").count()
}

/// The longest time in which nothing happened, from when the first prompt was accepted: nobody waits for a person for long
/// here, so it bounds every recovery.
pub(super) fn longest_pause(ending: &Ending) -> Duration {
    let written = ending.entries.iter();
    let written = written.map(|entry| entry["timestamp"].as_str().unwrap().parse().unwrap());
    let times: Vec<jiff::Timestamp> = ending.seen.accepted_at.into_iter().chain(written).collect();
    let pauses = times.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    // What is written before the answer is there ends no pause.
    pauses.filter_map(|pause| pause.try_into().ok()).max().unwrap_or_default()
}

/// What the record of a conversation has to be, whatever happened; how often a write was sent again.
pub(super) fn check(ending: &Ending, payments: &[u32], expected: &BTreeMap<Kind, Vec<Value>>) {
    let Ending { story, entries, prompt, seen } = ending;
    let Story { conversation, kind, .. } = story;
    assert_eq!(prompt["state"], "completed", "{conversation}: {prompt}");
    assert!(payments.len() <= kind.payments(), "{conversation} paid {} times", payments.len());
    assert!(payments.iter().all(|times| *times == 1), "{conversation}: sent {payments:?}");
    let said = |role: &str| {
        let messages = entries.iter().map(|entry| &entry["message"]);
        messages.filter(|message| message["role"] == role).collect::<Vec<_>>()
    };
    let calls: usize = said("assistant")
        .iter()
        .flat_map(|answer| answer["content"].as_array().unwrap())
        .filter(|block| block["type"] == "toolCall")
        .count();
    assert_eq!(said("toolResult").len(), calls, "{conversation}: each call has one result");
    let words = usize::from(*kind == Kind::Steered) + 1;
    assert_eq!(said("user").len(), words, "{conversation}: what is said lands once");
    if seen.is_asked_for_outcome {
        return;
    }
    // A steer that comes before a payment has begun skips it, and says so in its result.
    let is_skip = |result: &&&Value| result["content"][0]["text"] == SKIPPED;
    let skipped = said("toolResult").iter().filter(is_skip).count();
    assert_eq!(payments.len() + skipped, kind.payments(), "{conversation}: not all was paid");
    if *kind == Kind::Steered {
        // Where the steer lands is a matter of moments.
        return;
    }
    assert_eq!(record(*kind, entries), expected[kind], "{conversation}: the record differs");
}

/// Of calls that run at once only what the model reads has an order.
pub(super) fn record(kind: Kind, entries: &[Value]) -> Vec<Value> {
    let is_ordered = |entry: &&Value| kind != Kind::Several || entry["type"] == "message";
    let kept: Vec<Value> = entries.iter().filter(is_ordered).cloned().collect();
    normal(&kept)
}
