//! A report as text, JSON or workflow commands.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::{Area, Check, CheckResult, DoctorReport};

/// Returns the outcome's word and its text.
fn word_and_detail(check: &Check) -> (&'static str, &str) {
    match &check.outcome {
        CheckResult::Ok(found) => ("ok", found),
        CheckResult::Fix(to_do) => ("fix", to_do),
        CheckResult::Skipped(reason) => ("skipped", reason),
    }
}

/// Returns the line of the check's position, if any.
fn line_number(check: &Check) -> Option<u32> {
    check.position.as_ref().and_then(|place| place.line)
}

/// `configuration  ok   auth: keys`
pub(super) fn render_text(report: &DoctorReport) -> String {
    let mut text = String::new();
    let width = report.checks.iter().map(|check| check.area.to_string().len()).max().unwrap_or(0);
    for check in &report.checks {
        let (word, detail) = word_and_detail(check);
        let area = check.area.to_string();
        let place = line_number(check).map(|line| format!(":{line}")).unwrap_or_default();
        // Further lines of a text are indented under its first line.
        let detail = detail.replace('\n', "\n    ");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{area:width$}  {word:7}  {}{place}: {detail}", check.name);
    }
    let _ = match report.count_to_fix() {
        0 => writeln!(text, "All completed checks are in order."),
        1 => writeln!(text, "1 problem to fix."),
        count => writeln!(text, "{count} problems to fix."),
    };
    text
}

#[derive(Serialize)]
struct JsonReport<'a> {
    ok: bool,
    checks: Vec<JsonCheck<'a>>,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct JsonCheck<'a> {
    area: Area,
    name: &'a str,
    outcome: &'static str,
    detail: &'a str,
    file: Option<&'a Path>,
    line: Option<u32>,
}

pub(super) fn render_json(report: &DoctorReport) -> String {
    let checks = report.checks.iter().map(|check| {
        let (outcome, detail) = word_and_detail(check);
        let file = check.position.as_ref().map(|place| place.file.as_path());
        JsonCheck {
            area: check.area,
            name: &check.name,
            outcome,
            detail,
            file,
            line: line_number(check),
        }
    });
    let page = JsonReport { ok: report.count_to_fix() == 0, checks: checks.collect() };
    // Serialising fails only for a path that is not UTF-8; the text form still shows it.
    serde_json::to_string_pretty(&page).map_or_else(|_| render_text(report), |json| json + "\n")
}

/// Renders good results as plain lines of the log, and the rest as annotations.
pub(super) fn render_github(report: &DoctorReport) -> String {
    let mut text = String::new();
    for check in &report.checks {
        let (word, detail) = word_and_detail(check);
        let title = format!("{}: {}", check.area, check.name);
        let command = match check.outcome {
            CheckResult::Ok(_) => None,
            CheckResult::Fix(_) => Some("error"),
            CheckResult::Skipped(_) => Some("notice"),
        };
        let Some(command) = command else {
            // A line that begins with `::` would be a command.
            let _ = writeln!(text, "{word} {title}: {}", detail.replace(['\r', '\n'], " "));
            continue;
        };
        let mut properties = Vec::new();
        if let Some(place) = &check.position {
            properties.push(format!("file={}", escape_property(&place.file.to_string_lossy())));
            properties.extend(place.line.map(|line| format!("line={line}")));
        }
        properties.push(format!("title={}", escape_property(&title)));
        let _ = writeln!(text, "::{command} {}::{}", properties.join(","), escape_data(detail));
    }
    text
}

/// Escapes as GitHub's toolkit does (actions/toolkit, `core/src/command.ts`).
fn escape_data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn escape_property(text: &str) -> String {
    escape_data(text).replace(':', "%3A").replace(',', "%2C")
}
