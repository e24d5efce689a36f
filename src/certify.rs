//! `turnwheel certify`: one conversation with each agent, cut and disturbed at every boundary that it reaches, and held to the
//! invariants each time.

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

/// Where a call is about to be sent.
const CALL_BEGINS: &str = "tool.before";

/// Runs at the same time: with real tools most of them wait.
const AT_ONCE: usize = 8;

/// Where conversations are kept in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// In the embedded store: claims die with the process, and the next one begins with its files.
    Folder,
    /// As in Cosmos DB: claims stand in heads and outlive who took them.
    Heads,
}

/// What goes wrong at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The process dies there, with everything it remembers and its queues; another begins with its folder.
    Kill,
    /// One of several instances dies there: another takes its work over when its claim has run out.
    TakeOver,
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
    /// The tool does what it does, and its answer does not come in time.
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

    /// Whether it can happen at that boundary.
    fn is_possible_at(self, boundary: &str) -> bool {
        self != Self::TimeOut || boundary == CALL_BEGINS
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
    /// What alone is to be run.
    pub only: Option<Only>,
    /// The command that does all of this again, but for [`Only`].
    pub command: String,
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
    /// What a person should look at, though no promise was broken: sentences.
    pub notes: Vec<String>,
    /// Boundaries in the order in which the faultless run first came to them, and how often it did.
    pub reached: Vec<(&'static str, u32)>,
    /// What is wrong without any fault; then there are no runs.
    pub faultless: Vec<String>,
    /// Set when it has no run of the name that was asked for.
    pub missed: Option<String>,
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
    /// [`Order::command`].
    pub command: String,
    pub agents: Vec<Certified>,
}

impl Report {
    /// Why nothing was run: no agent has the run that was asked for.
    pub fn missed(&self) -> Option<String> {
        let missed: Option<Vec<&str>> =
            self.agents.iter().map(|agent| agent.missed.as_deref()).collect();
        missed.filter(|missed| !missed.is_empty()).map(|missed| missed.join("\n"))
    }

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
///
/// # Errors
/// There is no folder for the stores of runs: show it and exit.
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
            "`{tool}` says that it is idempotent, and {times} answered the same call (the same Idempotency-Key) with something else: see that it does its work once, or declare it as a write"
        )
    }));
    Ok(certified)
}

/// What the faultless run shows beside the invariants.
fn notes(outcome: &Outcome) -> Vec<String> {
    let failed = outcome.failed.iter().map(|tool| {
        format!(
            "`{tool}` did not succeed without a fault either: little is shown about it; try it in `turnwheel dev`"
        )
    });
    let unanswered = outcome.unanswered.iter().map(|prompt| {
        format!(
            "the conversation's file has too few answers to `{prompt}`: the model is asked again after calls, so the last answer has none"
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

/// What either came to, and how often at most.
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

/// Every fault at every time that its store's faultless run came to a boundary.
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
