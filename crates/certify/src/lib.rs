//! `turnwheel certify`: runs one conversation per agent, injects each fault at every fail point
//! that it reaches, and checks the invariants each time.

mod call_log;
mod client;
mod conversation;
mod environment;
mod fault_run;
mod filter;
mod oracle;
mod render;
mod scripted_model;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};
use strum::{EnumString, IntoStaticStr, VariantArray};

use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::settings::Settings;
use turnwheel_extensions::Extension;
use turnwheel_storage::store::embedded::OpenError;

pub use self::conversation::{Conversation, file_name};
pub use self::filter::RunFilter;

use self::fault_run::InjectionPoint;
use self::oracle::{ExpectedRecord, Outcome};

/// The fail point before a call is sent.
const BEFORE_TOOL_CALL: &str = "tool.before";

/// Concurrent runs: with real tools most of them wait.
const RUN_CONCURRENCY: usize = 8;

/// The store of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreKind {
    /// The embedded store: leases end with the process, and the next one starts with its files.
    Embedded,
    /// As in Cosmos DB: leases are in heads and outlive their workers.
    LeaseInHead,
}

/// A fault at a fail point.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub enum Fault {
    /// The process is killed there, with its memory and its queues; another starts with its folder.
    Kill,
    /// One of several instances is killed there: another takes its work over when the lease has
    /// expired.
    TakeOver,
    /// The same message, or the same request with the same key, reaches another instance meanwhile.
    Duplicate,
    /// All nudges from there on are lost, and arrive when everything else is done.
    #[strum(serialize = "late")]
    LateNudges,
    /// From there on commits are applied, and the store's responses are lost.
    #[strum(to_string = "lost-response", serialize = "lost-answer")]
    LostResponse,
    /// Another writer commits in between.
    Conflict,
    /// The process stalls until its lease has expired and another has taken the work; then it
    /// continues.
    #[strum(serialize = "two-workers")]
    StalledWorker,
    /// The tool does its work, and its response does not arrive in time.
    TimeOut,
}

impl Fault {
    fn store_kind(self) -> StoreKind {
        match self {
            Self::TakeOver | Self::StalledWorker => StoreKind::LeaseInHead,
            Self::Kill
            | Self::Duplicate
            | Self::LateNudges
            | Self::LostResponse
            | Self::Conflict
            | Self::TimeOut => StoreKind::Embedded,
        }
    }

    /// One line for the legend of the table.
    fn describe(self) -> &'static str {
        match self {
            Self::Kill => "the process is killed; another one starts with its data",
            Self::TakeOver => "one of several instances is killed; another one takes over",
            Self::Duplicate => "the same message or request reaches another instance too",
            Self::LateNudges => "wake-up messages are lost until the end",
            Self::LostResponse => "commits are applied, and the responses of the store are lost",
            Self::Conflict => "another writer commits in between",
            Self::StalledWorker => {
                "the process stalls until another one has the work, then resumes"
            }
            Self::TimeOut => "the tool does its work, and its response is too late",
        }
    }

    /// True if the fault can happen at that fail point.
    fn is_possible_at(self, fail_point: &str) -> bool {
        self != Self::TimeOut || fail_point == BEFORE_TOOL_CALL
    }
}

/// The tools that are called. File tools of the conversation always run, since they affect nothing
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolMode {
    /// HTTP tools and the app's tools return at once and do nothing.
    Stub,
    Real,
}

/// Input of `certify`.
#[derive(Debug)]
pub struct CertifyOptions {
    pub agents: Vec<(Arc<AgentDefinition>, Conversation)>,
    pub extensions: Vec<Arc<dyn Extension>>,
    pub tools: ToolMode,
    /// Names of tools that are always real, regardless of `tools`.
    pub harmless: BTreeSet<String>,
    /// The only runs to do.
    pub filter: Option<RunFilter>,
    /// Every run of this number is done, from the first: 1 for all runs.
    pub run_interval: usize,
    /// The command that repeats all of this, without [`RunFilter`].
    pub command: String,
    /// Receives the progress after each run.
    pub progress: fn(CertifyProgress<'_>),
}

/// Progress of the runs of one agent.
#[derive(Clone, Copy, Debug)]
pub struct CertifyProgress<'a> {
    pub agent: &'a str,
    /// Runs so far.
    pub done: usize,
    pub total: usize,
}

impl CertifyOptions {
    /// False for hooks that call other systems, unless tools do so too.
    fn runs_hooks_of(&self, extension: &dyn Extension) -> bool {
        self.tools == ToolMode::Real || !extension.is_remote()
    }

    /// The runs to do.
    fn select_runs(&self, all: Vec<InjectionPoint>) -> Vec<InjectionPoint> {
        match &self.filter {
            Some(only) => all.into_iter().filter(|run| only.matches(run)).collect(),
            None => all.into_iter().step_by(self.run_interval).collect(),
        }
    }
}

/// One run: a fault at the n-th hit of a fail point.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub fail_point: &'static str,
    /// From 1.
    pub occurrence: u32,
    pub fault: Fault,
    pub verdict: RunVerdict,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RunVerdict {
    Ok,
    /// The fault cannot happen there, or the run took another path; with the reason.
    Skipped(&'static str),
    Broken {
        /// Sentences with the invariants' names; never empty.
        violations: Vec<String>,
        /// The events of the run, in order.
        log: Vec<String>,
    },
}

/// The results of one agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentReport {
    pub agent: String,
    /// Prompts and model responses in the run without faults.
    pub prompts: usize,
    pub responses: u32,
    /// Number of calls per tool of the conversation, and the tools that it does not call.
    pub calls: BTreeMap<String, u32>,
    pub uncalled_tools: Vec<String>,
    /// Sentences for review that break no invariant.
    pub notes: Vec<String>,
    /// Fail points in the order of their first hit in the run without faults, with their number of
    /// hits.
    pub fail_points: Vec<(&'static str, u32)>,
    /// Problems without any fault; then there are no runs.
    pub faultless_problems: Vec<String>,
    /// Set if the agent has no run of the requested name.
    pub unmatched_filter: Option<String>,
    pub runs: Vec<Run>,
}

impl AgentReport {
    pub fn failure_count(&self) -> usize {
        let broken =
            self.runs.iter().filter(|run| matches!(run.verdict, RunVerdict::Broken { .. }));
        broken.count() + usize::from(!self.faultless_problems.is_empty())
    }
}

/// The results of all agents. The text form is a table for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub tools: &'static str,
    /// [`CertifyOptions::command`].
    pub command: String,
    pub agents: Vec<AgentReport>,
}

impl Report {
    /// The reason why nothing ran: no agent has the requested run.
    pub fn unmatched_filter(&self) -> Option<String> {
        let missed: Option<Vec<&str>> =
            self.agents.iter().map(|agent| agent.unmatched_filter.as_deref()).collect();
        missed.filter(|missed| !missed.is_empty()).map(|missed| missed.join("\n"))
    }

    pub fn is_ok(&self) -> bool {
        self.agents.iter().all(|agent| agent.failure_count() == 0)
    }

    /// The report for programs.
    pub fn json(&self) -> serde_json::Value {
        render::render_json(self)
    }

    /// XML for build servers, one test case per run.
    pub fn junit(&self) -> String {
        render::render_junit(self)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render::render_text(self))
    }
}

/// Runs each agent's conversation once without a fault, then once for each fault at each fail point
/// that it reached.
///
/// # Errors
/// There is no folder for the stores of runs: show the error and exit.
pub async fn run_certify(options: &CertifyOptions) -> Result<Report, OpenError> {
    let mut agents = Vec::new();
    for (agent, conversation) in &options.agents {
        agents.push(Box::pin(certify_agent(options, agent, conversation)).await?);
    }
    let tools = match options.tools {
        ToolMode::Stub => "stub",
        ToolMode::Real => "real",
    };
    Ok(Report { tools, command: options.command.clone(), agents })
}

async fn certify_agent(
    options: &CertifyOptions,
    agent: &Arc<AgentDefinition>,
    conversation: &Conversation,
) -> Result<AgentReport, OpenError> {
    let faultless = async |store_kind| {
        let run = fault_run::run_conversation(options, agent, conversation, store_kind, None);
        let outcome = Box::pin(run).await?;
        Ok::<_, OpenError>((
            oracle::check_invariants(&outcome),
            count_hits(&outcome.fail_points),
            outcome,
        ))
    };
    let (violations, embedded_hits, outcome) = faultless(StoreKind::Embedded).await?;
    let (shared_violations, shared_hits, shared_outcome) =
        faultless(StoreKind::LeaseInHead).await?;
    let calls = outcome.calls_by_tool.clone();
    let plugins = agent.plugins.iter().filter(|plugin| options.runs_hooks_of(&*plugin.hook()));
    let own = agent.active_tools(&Settings::default());
    let tools = own.iter().chain(plugins.flat_map(|plugin| plugin.tools()));
    let names = tools.map(|tool| tool.definition().name.clone());
    let uncalled_tools = names.filter(|name| !calls.contains_key(name)).collect();
    let mut report = AgentReport {
        agent: agent.name.clone(),
        prompts: conversation.prompts.len(),
        responses: outcome.responses,
        calls,
        uncalled_tools,
        notes: review_notes(&outcome),
        fail_points: merge_hits(&embedded_hits, &shared_hits),
        faultless_problems: if violations.is_empty() { shared_violations } else { violations },
        unmatched_filter: None,
        runs: Vec::new(),
    };
    if !report.faultless_problems.is_empty() {
        return Ok(report);
    }
    let cuts = list_cuts(&report.fail_points, |store_kind| match store_kind {
        StoreKind::Embedded => &embedded_hits,
        StoreKind::LeaseInHead => &shared_hits,
    });
    let cuts = options.select_runs(cuts);
    if let (Some(only), true) = (&options.filter, cuts.is_empty()) {
        let missed = only.mismatch_reason(&report.fail_points);
        report.unmatched_filter = Some(format!("{}: {missed}", agent.name));
        report.faultless_problems.push(missed);
        return Ok(report);
    }
    let expected =
        [ExpectedRecord::from_outcome(&outcome), ExpectedRecord::from_outcome(&shared_outcome)];
    let (mut done, total) = (0, cuts.len());
    let runs = futures_util::stream::iter(cuts).map(|cut| {
        let [embedded_hits, shared_hits] = &expected;
        let store_kind = cut.fault.store_kind();
        async move {
            let play =
                fault_run::run_conversation(options, agent, conversation, store_kind, Some(cut));
            let outcome = Box::pin(play).await?;
            let expected =
                if store_kind == StoreKind::Embedded { embedded_hits } else { shared_hits };
            let changed_results = outcome.changed_results.clone();
            Ok::<_, OpenError>((judge_run(cut, outcome, expected), changed_results))
        }
    });
    let runs = runs.buffered(RUN_CONCURRENCY).inspect(|_| {
        done += 1;
        (options.progress)(CertifyProgress { agent: &agent.name, done, total });
    });
    let runs: Vec<_> = runs.try_collect().await?;
    record_runs(&mut report, runs);
    Ok(report)
}

/// Adds the runs with faults, and a note on each tool whose repeated call returned another result.
fn record_runs(report: &mut AgentReport, runs: Vec<(Run, BTreeMap<String, u32>)>) {
    let mut changed_results: BTreeMap<String, u32> = BTreeMap::new();
    for (run, changes) in runs {
        for (tool, times) in changes {
            *changed_results.entry(tool).or_default() += times;
        }
        report.runs.push(run);
    }
    report.notes.extend(changed_results.into_iter().map(|(tool, times)| {
        let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
        format!(
            "`{tool}` is declared idempotent, and {times} returned another result for the same call (the same Idempotency-Key): make it do its work once, or declare it as a write"
        )
    }));
}

/// Findings of the run without faults besides the invariants.
fn review_notes(outcome: &Outcome) -> Vec<String> {
    let failed = outcome.failed_tools.iter().map(|tool| {
        format!(
            "`{tool}` did not succeed without a fault either: its runs show little; try it in `turnwheel dev`"
        )
    });
    let unanswered = outcome.incomplete_prompts.iter().map(|prompt| {
        format!(
            "the conversation file has too few `answers` to `{prompt}`: the model is called again after tool calls, so the last answer must have none"
        )
    });
    failed.chain(unanswered).collect()
}

fn judge_run(cut: InjectionPoint, outcome: Outcome, expected: &ExpectedRecord) -> Run {
    let InjectionPoint { fail_point, occurrence, fault } = cut;
    let violations = oracle::compare_with_expected(&outcome, expected, fault);
    let verdict = if violations.is_empty() {
        outcome.skip_reason.map_or(RunVerdict::Ok, RunVerdict::Skipped)
    } else {
        RunVerdict::Broken { violations, log: outcome.log }
    };
    Run { fail_point, occurrence, fault, verdict }
}

/// Counts the hits per fail point, in the order of the first hit.
fn count_hits(hits: &[&'static str]) -> Vec<(&'static str, u32)> {
    let mut counts: Vec<(&'static str, u32)> = Vec::new();
    for fail_point in hits.iter().copied() {
        match counts.iter_mut().find(|(name, _)| *name == fail_point) {
            Some((_, times)) => *times += 1,
            None => counts.push((fail_point, 1)),
        }
    }
    counts
}

/// Returns the fail points of both lists, with the larger number of hits.
fn merge_hits(
    first: &[(&'static str, u32)],
    second: &[(&'static str, u32)],
) -> Vec<(&'static str, u32)> {
    let mut merged = first.to_vec();
    for (fail_point, times) in second {
        match merged.iter_mut().find(|(name, _)| name == fail_point) {
            Some((_, count)) => *count = (*count).max(*times),
            None => merged.push((fail_point, *times)),
        }
    }
    merged
}

/// Returns every fault for every hit of a fail point in the faultless run with the fault's store.
fn list_cuts<'a>(
    fail_points: &[(&'static str, u32)],
    faultless_hits: impl Fn(StoreKind) -> &'a [(&'static str, u32)],
) -> Vec<InjectionPoint> {
    let mut cuts = Vec::new();
    for (fail_point, hits) in fail_points.iter().copied() {
        for occurrence in 1..=hits {
            let is_possible = |fault: &Fault| {
                let found =
                    faultless_hits(fault.store_kind()).iter().find(|(name, _)| *name == fail_point);
                fault.is_possible_at(fail_point)
                    && found.is_some_and(|(_, times)| *times >= occurrence)
            };
            let faults = Fault::VARIANTS.iter().copied().filter(is_possible);
            cuts.extend(faults.map(|fault| InjectionPoint { fail_point, occurrence, fault }));
        }
    }
    cuts
}

#[cfg(test)]
mod tests;
