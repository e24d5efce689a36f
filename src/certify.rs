//! `turnwheel certify`: one conversation with each agent, cut and disturbed at every boundary that it reaches, and held to the
//! invariants each time.

mod asking;
mod conversation;
mod judge;
mod ledger;
mod player;
mod render;
mod run;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures_util::StreamExt as _;

use crate::agents::Agent;
use crate::extensions::Extension;

pub use self::conversation::{Call, Conversation, Decide, Prompt, Said, file_name};
use self::judge::{Outcome, Record};
use self::run::Cut;

/// Runs at the same time: with real tools most of them wait.
const AT_ONCE: usize = 8;

/// What goes wrong at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The process dies there.
    Kill,
    /// The same message, or the same request with the same key, comes to another instance meanwhile.
    Duplicate,
    /// All bells that are rung from there on are lost, and come when everything is over.
    Late,
    /// From there on what is committed is committed, and the store's answers are lost.
    LostAnswer,
    /// Another writer commits in between.
    Conflict,
    /// The process stands still until its claim is over and another has taken the work; then it goes on.
    TwoWorkers,
}

impl Fault {
    pub const ALL: [Self; 6] = [
        Self::Kill,
        Self::Duplicate,
        Self::Late,
        Self::LostAnswer,
        Self::Conflict,
        Self::TwoWorkers,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Duplicate => "duplicate",
            Self::Late => "late",
            Self::LostAnswer => "lost-answer",
            Self::Conflict => "conflict",
            Self::TwoWorkers => "two-workers",
        }
    }
}

/// Which tools are called: those of files in the conversation always are, since they touch nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    /// HTTP tools and those of the app answer at once and do nothing.
    Stub,
    Real,
}

/// What is to be certified.
#[derive(Debug)]
pub struct Order {
    pub agents: Vec<(Arc<Agent>, Conversation)>,
    pub extensions: Vec<Arc<dyn Extension>>,
    pub tools: Tools,
    /// Names of those that are called for what they are, whatever `tools` says.
    pub harmless: BTreeSet<String>,
}

/// One run: a fault at the n-th time that a boundary was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub boundary: &'static str,
    /// From 1.
    pub occurrence: u32,
    pub fault: Fault,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Ok,
    /// The fault cannot happen there, or the run took another way; says which.
    Skipped(&'static str),
    Broken {
        /// Sentences with the invariants' names; never empty.
        what: Vec<String>,
        /// What happened, in order.
        story: Vec<String>,
    },
}

/// What came of one agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Certified {
    pub agent: String,
    /// Prompts and answers of the model in the faultless run.
    pub prompts: usize,
    pub answers: u32,
    /// Tools that the conversation calls, and how often; and those that it never does.
    pub called: BTreeMap<String, u32>,
    pub not_called: Vec<String>,
    /// Boundaries in the order in which the faultless run first came to them, and how often it did.
    pub reached: Vec<(&'static str, u32)>,
    /// What is wrong without any fault; then there are no runs.
    pub faultless: Vec<String>,
    pub runs: Vec<Run>,
}

impl Certified {
    pub fn broken(&self) -> usize {
        let broken = self.runs.iter().filter(|run| matches!(run.verdict, Verdict::Broken { .. }));
        broken.count() + usize::from(!self.faultless.is_empty())
    }
}

/// What came of all agents. As text: a table for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub tools: &'static str,
    pub agents: Vec<Certified>,
}

impl Report {
    pub fn is_ok(&self) -> bool {
        self.agents.iter().all(|agent| agent.broken() == 0)
    }

    /// For programs.
    pub fn json(&self) -> serde_json::Value {
        render::json(self)
    }

    /// XML for build servers, a test case for each run.
    pub fn junit(&self) -> String {
        render::junit(self)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render::text(self))
    }
}

/// Plays each agent's conversation once without a fault, then once for each fault at each boundary that it came to.
pub async fn certify(order: &Order) -> Report {
    let mut agents = Vec::new();
    for (agent, conversation) in &order.agents {
        agents.push(Box::pin(certify_agent(order, agent, conversation)).await);
    }
    let tools = match order.tools {
        Tools::Stub => "stub",
        Tools::Real => "real",
    };
    Report { tools, agents }
}

async fn certify_agent(
    order: &Order,
    agent: &Arc<Agent>,
    conversation: &Conversation,
) -> Certified {
    let faultless = Box::pin(run::play(order, (agent, conversation), None)).await;
    let broken = judge::alone(&faultless);
    let reached = counted(&faultless.reached);
    let called = faultless.called.clone();
    let mut certified = Certified {
        agent: agent.name.clone(),
        prompts: conversation.prompts.len(),
        answers: faultless.answers,
        not_called: agent
            .tools
            .iter()
            .map(|tool| tool.definition().name.clone())
            .filter(|name| !called.contains_key(name))
            .collect(),
        called,
        reached,
        faultless: broken,
        runs: Vec::new(),
    };
    if certified.faultless.is_empty() {
        let good = Record::of(&faultless);
        let cuts = cuts(&certified.reached);
        let runs = futures_util::stream::iter(cuts).map(|cut| {
            let good = &good;
            async move {
                let outcome = Box::pin(run::play(order, (agent, conversation), Some(cut))).await;
                verdict(cut, outcome, good)
            }
        });
        certified.runs = runs.buffered(AT_ONCE).collect().await;
    }
    certified
}

fn verdict(cut: Cut, outcome: Outcome, good: &Record) -> Run {
    let Cut { boundary, occurrence, fault } = cut;
    let what = judge::beside(&outcome, good, fault);
    let verdict = if what.is_empty() {
        outcome.missed.map_or(Verdict::Ok, Verdict::Skipped)
    } else {
        Verdict::Broken { what, story: outcome.story }
    };
    Run { boundary, occurrence, fault, verdict }
}

/// In the order of the first time.
fn counted(reached: &[&'static str]) -> Vec<(&'static str, u32)> {
    let mut counted: Vec<(&'static str, u32)> = Vec::new();
    for boundary in reached.iter().copied() {
        match counted.iter_mut().find(|(name, _)| *name == boundary) {
            Some((_, times)) => *times += 1,
            None => counted.push((boundary, 1)),
        }
    }
    counted
}

fn cuts(reached: &[(&'static str, u32)]) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for (boundary, times) in reached.iter().copied() {
        for occurrence in 1..=times {
            cuts.extend(Fault::ALL.map(|fault| Cut { boundary, occurrence, fault }));
        }
    }
    cuts
}

#[cfg(test)]
mod tests;
