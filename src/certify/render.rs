//! A report as text, JSON or XML for build servers.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Certified, Fault, Report, Run, Verdict};
use crate::turn::BOUNDARIES;

/// Number of lines shown from the beginning and from the end of a long log.
const STORY_LINES_MAX: usize = 20;

/// `tool.after#2 × kill`
fn title(run: &Run) -> String {
    format!("{}#{} × {}", run.boundary, run.occurrence, run.fault.as_str())
}

fn count(report: &Report, is_meant: impl Fn(&Verdict) -> bool) -> usize {
    report.agents.iter().flat_map(|agent| &agent.runs).filter(|run| is_meant(&run.verdict)).count()
}

fn is_ok(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Ok)
}

fn is_skipped(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Skipped(_))
}

/// A table per agent, the broken runs, and a summary sentence.
pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for agent in &report.agents {
        table(&mut text, agent);
        failures(&mut text, (report, agent));
        text.push('\n');
    }
    let broken: usize = report.agents.iter().map(Certified::broken).sum();
    let (ok, skipped) = (count(report, is_ok), count(report, is_skipped));
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{} ok, {broken} broken, {skipped} not possible; tools: {}.",
        counted(ok, "run"),
        report.tools
    );
    text
}

/// `1 prompt`, `2 prompts`
fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn table(text: &mut String, agent: &Certified) {
    let Certified { agent: name, prompts, answers, called, not_called, reached, .. } = agent;
    let calls: u32 = called.values().sum();
    let _ = writeln!(
        text,
        "{name}: {}, {}, {}; reached {} of {} fail points",
        counted(*prompts, "prompt"),
        counted(*answers as usize, "answer"),
        counted(calls as usize, "call"),
        reached.len(),
        BOUNDARIES.len()
    );
    if !not_called.is_empty() {
        let _ = writeln!(
            text,
            "  not called: {} (write prompts that call them in {})",
            not_called.join(", "),
            super::file_name(name)
        );
    }
    for note in &agent.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    if !agent.faultless.is_empty() {
        return;
    }
    let has_runs = |boundary: &str| agent.runs.iter().any(|run| run.boundary == boundary);
    let reached: Vec<_> = reached.iter().filter(|(boundary, _)| has_runs(boundary)).collect();
    let width = reached.iter().map(|(boundary, _)| boundary.len()).max().unwrap_or(0);
    let _ = write!(text, "\n  {:width$}  times", "fail point");
    for fault in Fault::ALL {
        let _ = write!(text, "  {}", fault.as_str());
    }
    text.push('\n');
    for (boundary, times) in reached.iter().copied() {
        let mut line = format!("  {boundary:width$}  {times:>5}");
        for fault in Fault::ALL {
            let word = cell(agent, boundary, fault);
            let _ = write!(line, "  {word:w$}", w = fault.as_str().len());
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// The combined verdict of all occurrences.
fn cell(agent: &Certified, boundary: &str, fault: Fault) -> &'static str {
    let runs = || agent.runs.iter().filter(|run| run.boundary == boundary && run.fault == fault);
    if runs().any(|run| matches!(run.verdict, Verdict::Broken { .. })) {
        "BROKEN"
    } else if runs().any(|run| is_ok(&run.verdict)) {
        "ok"
    } else {
        "–"
    }
}

/// The command that repeats only this run.
fn again(report: &Report, agent: &Certified, run: &Run) -> String {
    let Run { boundary, occurrence, fault, verdict: _ } = run;
    let only = format!("--only {boundary}#{occurrence}:{}", fault.as_str());
    format!("{} {} {only}", report.command, agent.agent)
}

fn failures(text: &mut String, (report, agent): (&Report, &Certified)) {
    for what in &agent.faultless {
        let _ = writeln!(text, "\n  without any fault: {what}");
    }
    for run in &agent.runs {
        let Verdict::Broken { what, story } = &run.verdict else { continue };
        let _ = writeln!(text, "\n  {}", title(run));
        for what in what {
            let _ = writeln!(text, "    {what}");
        }
        for line in ends(story) {
            let _ = writeln!(text, "      {line}");
        }
        let _ = writeln!(text, "    again: {}", again(report, agent, run));
    }
}

fn ends(story: &[String]) -> Vec<&str> {
    let left_out = story.len().saturating_sub(2 * STORY_LINES_MAX);
    let (begin, rest) = story.split_at(story.len().min(STORY_LINES_MAX));
    let end = rest.iter().skip(left_out);
    let gap = (left_out > 0).then_some("…");
    begin.iter().map(String::as_str).chain(gap).chain(end.map(String::as_str)).collect()
}

pub(super) fn json(report: &Report) -> Value {
    let agents = report.agents.iter().map(|agent| {
        let reached = agent.reached.iter();
        let reached =
            reached.map(|(boundary, times)| json!({"boundary": boundary, "times": times}));
        json!({
            "agent": agent.agent,
            "prompts": agent.prompts,
            "answers": agent.answers,
            "called": agent.called,
            "notCalled": agent.not_called,
            "notes": agent.notes,
            "reached": reached.collect::<Vec<_>>(),
            "faultless": agent.faultless,
            "runs": agent.runs.iter().map(|run| run_json(report, agent, run)).collect::<Vec<_>>(),
        })
    });
    json!({
        "isOk": report.is_ok(),
        "tools": report.tools,
        "ok": count(report, is_ok),
        "broken": report.agents.iter().map(Certified::broken).sum::<usize>(),
        "skipped": count(report, is_skipped),
        "agents": agents.collect::<Vec<_>>(),
    })
}

fn run_json(report: &Report, agent: &Certified, run: &Run) -> Value {
    let Run { boundary, occurrence, fault, verdict } = run;
    let (word, why, what, story): (_, _, &[String], &[String]) = match verdict {
        Verdict::Ok => ("ok", None, &[], &[]),
        Verdict::Skipped(why) => ("skipped", Some(why), &[], &[]),
        Verdict::Broken { what, story } => ("broken", None, what, story),
    };
    let again = (word == "broken").then(|| again(report, agent, run));
    json!({
        "boundary": boundary, "occurrence": occurrence, "fault": fault.as_str(),
        "verdict": word, "why": why, "what": what, "story": story, "again": again,
    })
}

pub(super) fn junit(report: &Report) -> String {
    let mut xml = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"turnwheel certify\">\n",
    );
    for agent in &report.agents {
        let skipped = agent.runs.iter().filter(|run| is_skipped(&run.verdict)).count();
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{skipped}\">",
            escaped(&agent.agent),
            agent.runs.len() + 1,
            agent.broken()
        );
        let faultless = match agent.faultless.as_slice() {
            [] => None,
            what => Some(what.join("\n")),
        };
        let mut inner = faultless.as_deref().map_or(String::new(), failure);
        if !agent.notes.is_empty() {
            let _ = write!(inner, "<system-out>{}</system-out>", escaped(&agent.notes.join("\n")));
        }
        case(&mut xml, &agent.agent, "without any fault", &inner);
        for run in &agent.runs {
            let inner = match &run.verdict {
                Verdict::Ok => String::new(),
                Verdict::Skipped(why) => format!("<skipped message=\"{}\"/>", escaped(why)),
                Verdict::Broken { what, story } => {
                    let (what, story) = (what.join("\n"), ends(story).join("\n"));
                    let again = again(report, agent, run);
                    failure(&format!("{what}\n\n{story}\n\nagain: {again}"))
                }
            };
            case(&mut xml, &agent.agent, &title(run), &inner);
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn case(xml: &mut String, agent: &str, title: &str, inner: &str) {
    let (agent, title) = (escaped(agent), escaped(title));
    let head = format!("    <testcase classname=\"certify.{agent}\" name=\"{title}\"");
    let _ = match inner {
        "" => writeln!(xml, "{head}/>"),
        inner => writeln!(xml, "{head}>{inner}</testcase>"),
    };
}

fn failure(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    format!("<failure message=\"{}\">{}</failure>", escaped(first), escaped(text))
}

/// Escapes text for XML; replaces characters that XML does not allow.
fn escaped(text: &str) -> String {
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
