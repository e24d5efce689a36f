//! `turnwheel certify`: runs one conversation per agent, injects each fault at every fail point
//! that it reaches, and checks the invariants each time.

mod asking;
mod conversation;
mod judge;
mod ledger;
mod only;
mod player;
mod render;
mod run;
mod stage;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::agents::Agent;
use crate::extensions::Extension;
use crate::store::embedded::OpenError;

pub use self::conversation::{Call, Conversation, Decide, Prompt, Said, file_name};
pub use self::only::Only;

use self::judge::{Outcome, Record};
use self::run::Cut;

/// The fail point before a call is sent.
const CALL_BEGINS: &str = "tool.before";

/// Concurrent runs: with real tools most of them wait.
const AT_ONCE: usize = 8;

/// The store of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// The embedded store: leases end with the process, and the next one starts with its files.
    Folder,
    /// As in Cosmos DB: leases are in heads and outlive their workers.
    Heads,
}

/// A fault at a fail point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The process is killed there, with its memory and its queues; another starts with its folder.
    Kill,
    /// One of several instances is killed there: another takes its work over when the lease has
    /// expired.
    TakeOver,
    /// The same message, or the same request with the same key, reaches another instance meanwhile.
    Duplicate,
    /// All nudges from there on are lost, and arrive when everything else is done.
    Late,
    /// From there on commits are applied, and the store's responses are lost.
    LostAnswer,
    /// Another writer commits in between.
    Conflict,
    /// The process stalls until its lease has expired and another has taken the work; then it
    /// continues.
    TwoWorkers,
    /// The tool does its work, and its response does not arrive in time.
    TimeOut,
}

impl Fault {
    pub const ALL: [Self; 8] = [
        Self::Kill,
        Self::TakeOver,
        Self::Duplicate,
        Self::Late,
        Self::LostAnswer,
        Self::Conflict,
        Self::TwoWorkers,
        Self::TimeOut,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::TakeOver => "take-over",
            Self::Duplicate => "duplicate",
            Self::Late => "late",
            Self::LostAnswer => "lost-answer",
            Self::Conflict => "conflict",
            Self::TwoWorkers => "two-workers",
            Self::TimeOut => "time-out",
        }
    }

    fn kept(self) -> Kept {
        match self {
            Self::TakeOver | Self::TwoWorkers => Kept::Heads,
            Self::Kill
            | Self::Duplicate
            | Self::Late
            | Self::LostAnswer
            | Self::Conflict
            | Self::TimeOut => Kept::Folder,
        }
    }

    /// True if the fault can happen at that fail point.
    fn is_possible_at(self, boundary: &str) -> bool {
        self != Self::TimeOut || boundary == CALL_BEGINS
    }
}

/// The tools that are called. File tools of the conversation always run, since they affect nothing
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    /// HTTP tools and the app's tools return at once and do nothing.
    Stub,
    Real,
}

/// Input of `certify`.
#[derive(Debug)]
pub struct Order {
    pub agents: Vec<(Arc<Agent>, Conversation)>,
    pub extensions: Vec<Arc<dyn Extension>>,
    pub tools: Tools,
    /// Names of tools that are always real, regardless of `tools`.
    pub harmless: BTreeSet<String>,
    /// The only runs to do.
    pub only: Option<Only>,
    /// The command that repeats all of this, without [`RunFilter`].
    pub command: String,
}

/// One run: a fault at the n-th hit of a fail point.
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
    /// The fault cannot happen there, or the run took another path; with the reason.
    Skipped(&'static str),
    Broken {
        /// Sentences with the invariants' names; never empty.
        what: Vec<String>,
        /// The events of the run, in order.
        story: Vec<String>,
    },
}

/// The results of one agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Certified {
    pub agent: String,
    /// Prompts and model responses in the run without faults.
    pub prompts: usize,
    pub answers: u32,
    /// Number of calls per tool of the conversation, and the tools that it does not call.
    pub called: BTreeMap<String, u32>,
    pub not_called: Vec<String>,
    /// Sentences for review that break no invariant.
    pub notes: Vec<String>,
    /// Fail points in the order of their first hit in the run without faults, with their number of
    /// hits.
    pub reached: Vec<(&'static str, u32)>,
    /// Problems without any fault; then there are no runs.
    pub faultless: Vec<String>,
    /// Set if the agent has no run of the requested name.
    pub missed: Option<String>,
    pub runs: Vec<Run>,
}

impl Certified {
    pub fn broken(&self) -> usize {
        let broken = self.runs.iter().filter(|run| matches!(run.verdict, Verdict::Broken { .. }));
        broken.count() + usize::from(!self.faultless.is_empty())
    }
}

/// The results of all agents. The text form is a table for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub tools: &'static str,
    /// [`CertifyOptions::command`].
    pub command: String,
    pub agents: Vec<Certified>,
}

impl Report {
    /// The reason why nothing ran: no agent has the requested run.
    pub fn missed(&self) -> Option<String> {
        let missed: Option<Vec<&str>> =
            self.agents.iter().map(|agent| agent.missed.as_deref()).collect();
        missed.filter(|missed| !missed.is_empty()).map(|missed| missed.join("\n"))
    }

    pub fn is_ok(&self) -> bool {
        self.agents.iter().all(|agent| agent.broken() == 0)
    }

    /// The report for programs.
    pub fn json(&self) -> serde_json::Value {
        render::json(self)
    }

    /// XML for build servers, one test case per run.
    pub fn junit(&self) -> String {
        render::junit(self)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render::text(self))
    }
}

/// Runs each agent's conversation once without a fault, then once for each fault at each fail point
/// that it reached.
///
/// # Errors
/// There is no folder for the stores of runs: show the error and exit.
pub async fn certify(order: &Order) -> Result<Report, OpenError> {
    let mut agents = Vec::new();
    for (agent, conversation) in &order.agents {
        agents.push(Box::pin(certify_agent(order, agent, conversation)).await?);
    }
    let tools = match order.tools {
        Tools::Stub => "stub",
        Tools::Real => "real",
    };
    Ok(Report { tools, command: order.command.clone(), agents })
}

async fn certify_agent(
    order: &Order,
    agent: &Arc<Agent>,
    conversation: &Conversation,
) -> Result<Certified, OpenError> {
    let faultless = async |kept| {
        let outcome = Box::pin(run::play(order, (agent, conversation), (kept, None))).await?;
        Ok::<_, OpenError>((judge::alone(&outcome), counted(&outcome.reached), outcome))
    };
    let (broken, in_folder, outcome) = faultless(Kept::Folder).await?;
    let (also_broken, in_heads, in_heads_outcome) = faultless(Kept::Heads).await?;
    let called = outcome.called.clone();
    let not_called = agent.tools.iter().map(|tool| tool.definition().name.clone());
    let not_called = not_called.filter(|name| !called.contains_key(name)).collect();
    let mut certified = Certified {
        agent: agent.name.clone(),
        prompts: conversation.prompts.len(),
        answers: outcome.answers,
        called,
        not_called,
        notes: notes(&outcome),
        reached: together(&in_folder, &in_heads),
        faultless: if broken.is_empty() { also_broken } else { broken },
        missed: None,
        runs: Vec::new(),
    };
    if !certified.faultless.is_empty() {
        return Ok(certified);
    }
    let cuts = cuts(&certified.reached, |kept| match kept {
        Kept::Folder => &in_folder,
        Kept::Heads => &in_heads,
    });
    let cuts: Vec<Cut> = match &order.only {
        Some(only) => cuts.into_iter().filter(|cut| only.is(cut)).collect(),
        None => cuts,
    };
    if let (Some(only), true) = (&order.only, cuts.is_empty()) {
        let missed = only.missed(&certified.reached);
        certified.missed = Some(format!("{}: {missed}", agent.name));
        certified.faultless.push(missed);
        return Ok(certified);
    }
    let good = [Record::of(&outcome), Record::of(&in_heads_outcome)];
    let runs = futures_util::stream::iter(cuts).map(|cut| {
        let [in_folder, in_heads] = &good;
        let kept = cut.fault.kept();
        async move {
            let play = run::play(order, (agent, conversation), (kept, Some(cut)));
            let outcome = Box::pin(play).await?;
            let good = if kept == Kept::Folder { in_folder } else { in_heads };
            let otherwise = outcome.otherwise.clone();
            Ok::<_, OpenError>((verdict(cut, outcome, good), otherwise))
        }
    });
    let runs: Vec<_> = runs.buffered(AT_ONCE).try_collect().await?;
    let mut otherwise: BTreeMap<String, u32> = BTreeMap::new();
    for (run, differs) in runs {
        for (tool, times) in differs {
            *otherwise.entry(tool).or_default() += times;
        }
        certified.runs.push(run);
    }
    certified.notes.extend(otherwise.into_iter().map(|(tool, times)| {
        let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
        format!(
            "`{tool}` is declared idempotent, and {times} returned another result for the same call (the same Idempotency-Key): make it do its work once, or declare it as a write"
        )
    }));
    Ok(certified)
}

/// Findings of the run without faults besides the invariants.
fn notes(outcome: &Outcome) -> Vec<String> {
    let failed = outcome.failed.iter().map(|tool| {
        format!(
            "`{tool}` did not succeed without a fault either: its runs show little; try it in `turnwheel dev`"
        )
    });
    let unanswered = outcome.unanswered.iter().map(|prompt| {
        format!(
            "the conversation file has too few `answers` to `{prompt}`: the model is called again after tool calls, so the last answer must have none"
        )
    });
    failed.chain(unanswered).collect()
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

/// Counts the hits per fail point, in the order of the first hit.
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

/// Returns the fail points of both lists, with the larger number of hits.
fn together(
    one: &[(&'static str, u32)],
    other: &[(&'static str, u32)],
) -> Vec<(&'static str, u32)> {
    let mut together = one.to_vec();
    for (boundary, times) in other {
        match together.iter_mut().find(|(name, _)| name == boundary) {
            Some((_, most)) => *most = (*most).max(*times),
            None => together.push((boundary, *times)),
        }
    }
    together
}

/// Returns every fault for every hit of a fail point in the faultless run with the fault's store.
fn cuts<'a>(
    reached: &[(&'static str, u32)],
    of: impl Fn(Kept) -> &'a [(&'static str, u32)],
) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for (boundary, most) in reached.iter().copied() {
        for occurrence in 1..=most {
            let happens = |fault: &Fault| {
                let found = of(fault.kept()).iter().find(|(name, _)| *name == boundary);
                fault.is_possible_at(boundary)
                    && found.is_some_and(|(_, times)| *times >= occurrence)
            };
            let faults = Fault::ALL.into_iter().filter(happens);
            cuts.extend(faults.map(|fault| Cut { boundary, occurrence, fault }));
        }
    }
    cuts
}

#[cfg(test)]
mod tests;
