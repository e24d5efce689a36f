//! A report as text, JSON or XML for build servers.

use std::fmt::Write as _;

use serde_json::{Value, json};
use strum::VariantArray as _;

use super::{AgentReport, Fault, Report, Run, RunVerdict};
use turnwheel_platform::fail_points::FAIL_POINTS;

/// Number of lines shown from the beginning and from the end of a long log.
const LOG_LINES_MAX: usize = 20;

/// `tool.after#2 × kill`
fn run_title(run: &Run) -> String {
    format!("{}#{} × {}", run.fail_point, run.occurrence, run.fault.into_str())
}

fn count_verdicts(report: &Report, is_counted: impl Fn(&RunVerdict) -> bool) -> usize {
    report
        .agents
        .iter()
        .flat_map(|agent| &agent.runs)
        .filter(|run| is_counted(&run.verdict))
        .count()
}

fn is_ok(verdict: &RunVerdict) -> bool {
    matches!(verdict, RunVerdict::Ok)
}

fn is_skipped(verdict: &RunVerdict) -> bool {
    matches!(verdict, RunVerdict::Skipped(_))
}

/// A table per agent, the broken runs, and a summary sentence.
pub(super) fn render_text(report: &Report) -> String {
    let mut text = String::new();
    for agent in &report.agents {
        write_table(&mut text, agent);
        write_failures(&mut text, report, agent);
        text.push('\n');
    }
    if report.agents.iter().any(|agent| !agent.runs.is_empty()) {
        write_legend(&mut text);
    }
    let broken: usize = report.agents.iter().map(AgentReport::failure_count).sum();
    let (ok, skipped) = (count_verdicts(report, is_ok), count_verdicts(report, is_skipped));
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{} ok, {broken} broken, {skipped} not possible; tools: {}.",
        count_text(ok, "run"),
        report.tools
    );
    text
}

/// The meaning of the cells and of the faults.
fn write_legend(text: &mut String) {
    let cells = [
        ("times", "how often the run without a fault reached the fail point"),
        ("ok", "all of these runs kept the invariants"),
        ("BROKEN", "a run violated one: its steps are below the table"),
        ("–", "not possible there"),
    ];
    let faults = Fault::VARIANTS.iter().map(|fault| (fault.into_str(), fault.describe()));
    let rows: Vec<(&str, &str)> = cells.into_iter().chain(faults).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, meaning) in rows {
        let _ = writeln!(text, "{name:width$}  {meaning}");
    }
    text.push('\n');
}

/// `1 prompt`, `2 prompts`
fn count_text(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn write_table(text: &mut String, agent: &AgentReport) {
    let AgentReport {
        agent: name,
        prompts,
        responses: answers,
        calls: calls_by_tool,
        uncalled_tools: uncalled,
        fail_points,
        ..
    } = agent;
    let calls: u32 = calls_by_tool.values().sum();
    let _ = writeln!(
        text,
        "{name}: {}, {}, {}; reached {} of {} fail points",
        count_text(*prompts, "prompt"),
        count_text(*answers as usize, "answer"),
        count_text(calls as usize, "call"),
        fail_points.len(),
        FAIL_POINTS.len()
    );
    if !uncalled.is_empty() {
        let _ = writeln!(
            text,
            "  not called: {} (write prompts that call them in {})",
            uncalled.join(", "),
            super::file_name(name)
        );
    }
    for note in &agent.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    if !agent.faultless_problems.is_empty() {
        return;
    }
    let has_runs = |fail_point: &str| agent.runs.iter().any(|run| run.fail_point == fail_point);
    let fail_points: Vec<_> =
        fail_points.iter().filter(|(fail_point, _)| has_runs(fail_point)).collect();
    let width = fail_points.iter().map(|(fail_point, _)| fail_point.len()).max().unwrap_or(0);
    let _ = write!(text, "\n  {:width$}  times", "fail point");
    for fault in Fault::VARIANTS {
        let _ = write!(text, "  {}", fault.into_str());
    }
    text.push('\n');
    for (fail_point, times) in fail_points.iter().copied() {
        let mut line = format!("  {fail_point:width$}  {times:>5}");
        for fault in Fault::VARIANTS {
            let word = table_cell(agent, fail_point, *fault);
            let _ = write!(line, "  {word:w$}", w = fault.into_str().len());
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// The combined verdict of all occurrences.
fn table_cell(agent: &AgentReport, fail_point: &str, fault: Fault) -> &'static str {
    let runs =
        || agent.runs.iter().filter(|run| run.fail_point == fail_point && run.fault == fault);
    if runs().any(|run| matches!(run.verdict, RunVerdict::Broken { .. })) {
        "BROKEN"
    } else if runs().any(|run| is_ok(&run.verdict)) {
        "ok"
    } else {
        "–"
    }
}

/// The command that repeats only this run.
fn repeat_command(report: &Report, agent: &AgentReport, run: &Run) -> String {
    let Run { fail_point, occurrence, fault, verdict: _ } = run;
    let filter = format!("--only {fail_point}#{occurrence}:{}", fault.into_str());
    format!("{} {} {filter}", report.command, agent.agent)
}

fn write_failures(text: &mut String, report: &Report, agent: &AgentReport) {
    for what in &agent.faultless_problems {
        let _ = writeln!(text, "\n  without any fault: {what}");
    }
    for run in &agent.runs {
        let RunVerdict::Broken { violations: what, log: story } = &run.verdict else { continue };
        let _ = writeln!(text, "\n  {}", run_title(run));
        for what in what {
            let _ = writeln!(text, "    {what}");
        }
        for line in shortened_log(story) {
            let _ = writeln!(text, "      {line}");
        }
        let _ = writeln!(text, "    again: {}", repeat_command(report, agent, run));
    }
}

fn shortened_log(log: &[String]) -> Vec<&str> {
    let omitted = log.len().saturating_sub(2 * LOG_LINES_MAX);
    let (first, rest) = log.split_at(log.len().min(LOG_LINES_MAX));
    let last = rest.iter().skip(omitted);
    let gap = (omitted > 0).then_some("…");
    first.iter().map(String::as_str).chain(gap).chain(last.map(String::as_str)).collect()
}

pub(super) fn render_json(report: &Report) -> Value {
    let agents = report.agents.iter().map(|agent| {
        let fail_points = agent.fail_points.iter();
        let fail_points =
            fail_points.map(|(fail_point, times)| json!({"boundary": fail_point, "times": times}));
        json!({
            "agent": agent.agent,
            "prompts": agent.prompts,
            "answers": agent.responses,
            "called": agent.calls,
            "notCalled": agent.uncalled_tools,
            "notes": agent.notes,
            "reached": fail_points.collect::<Vec<_>>(),
            "faultless": agent.faultless_problems,
            "runs": agent.runs.iter().map(|run| render_run(report, agent, run)).collect::<Vec<_>>(),
        })
    });
    json!({
        "isOk": report.is_ok(),
        "tools": report.tools,
        "ok": count_verdicts(report, is_ok),
        "broken": report.agents.iter().map(AgentReport::failure_count).sum::<usize>(),
        "skipped": count_verdicts(report, is_skipped),
        "agents": agents.collect::<Vec<_>>(),
    })
}

fn render_run(report: &Report, agent: &AgentReport, run: &Run) -> Value {
    let Run { fail_point, occurrence, fault, verdict } = run;
    let (word, reason, violations, log): (_, _, &[String], &[String]) = match verdict {
        RunVerdict::Ok => ("ok", None, &[], &[]),
        RunVerdict::Skipped(reason) => ("skipped", Some(reason), &[], &[]),
        RunVerdict::Broken { violations, log } => ("broken", None, violations, log),
    };
    let command = (word == "broken").then(|| repeat_command(report, agent, run));
    json!({
        "boundary": fail_point, "occurrence": occurrence, "fault": fault.into_str(),
        "verdict": word, "why": reason, "what": violations, "story": log, "again": command,
    })
}

pub(super) fn render_junit(report: &Report) -> String {
    let mut xml = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"turnwheel certify\">\n",
    );
    for agent in &report.agents {
        let skipped = agent.runs.iter().filter(|run| is_skipped(&run.verdict)).count();
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{skipped}\">",
            escape_xml(&agent.agent),
            agent.runs.len() + 1,
            agent.failure_count()
        );
        let faultless = match agent.faultless_problems.as_slice() {
            [] => None,
            violations => Some(violations.join("\n")),
        };
        let mut inner = faultless.as_deref().map_or(String::new(), failure_element);
        if !agent.notes.is_empty() {
            let _ =
                write!(inner, "<system-out>{}</system-out>", escape_xml(&agent.notes.join("\n")));
        }
        write_test_case(&mut xml, &agent.agent, "without any fault", &inner);
        for run in &agent.runs {
            let inner = match &run.verdict {
                RunVerdict::Ok => String::new(),
                RunVerdict::Skipped(why) => format!("<skipped message=\"{}\"/>", escape_xml(why)),
                RunVerdict::Broken { violations, log } => {
                    let (violations, log) = (violations.join("\n"), shortened_log(log).join("\n"));
                    let again = repeat_command(report, agent, run);
                    failure_element(&format!("{violations}\n\n{log}\n\nagain: {again}"))
                }
            };
            write_test_case(&mut xml, &agent.agent, &run_title(run), &inner);
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn write_test_case(xml: &mut String, agent: &str, title: &str, inner: &str) {
    let (agent, title) = (escape_xml(agent), escape_xml(title));
    let head = format!("    <testcase classname=\"certify.{agent}\" name=\"{title}\"");
    let _ = match inner {
        "" => writeln!(xml, "{head}/>"),
        inner => writeln!(xml, "{head}>{inner}</testcase>"),
    };
}

fn failure_element(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    format!("<failure message=\"{}\">{}</failure>", escape_xml(first), escape_xml(text))
}

/// Escapes text for XML; replaces characters that XML does not allow.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' => escaped.push(c),
            c if c < ' ' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
