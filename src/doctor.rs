//! `turnwheel doctor`: checks the setup and reports each result, with its fix, on one line.

use std::path::PathBuf;

mod configuration;
mod identity;
mod read_charge;
mod render;
mod round_cost;
#[cfg(test)]
mod tests;

pub(crate) use configuration::{configuration_checks, program_check};
pub(crate) use identity::identity_checks;
pub(crate) use read_charge::{
    QUORUM_ADVICE, ReadCharges, compare_reads_of_version, measure_read_charges, quorum_check,
};
pub(crate) use round_cost::measure_round_cost;

/// The format of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
    /// Workflow commands, which GitHub shows at the line.
    Github,
}

/// The subject of a check; the report is in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, strum::Display)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "camelCase")]
pub(crate) enum Area {
    Configuration,
    Identity,
    Storage,
    Store,
    Model,
    Agents,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckResult {
    /// The result of the check.
    Ok(String),
    /// The problem and its fix.
    Fix(String),
    /// The reason why the check did not run.
    Skipped(String),
}

/// The position of a mistake, for tools that open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePosition {
    pub file: PathBuf,
    /// From 1.
    pub line: Option<u32>,
}

/// One line of the report. No text holds a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub area: Area,
    pub name: String,
    pub outcome: CheckResult,
    pub position: Option<FilePosition>,
}

impl Check {
    pub(crate) fn ok(area: Area, name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { area, name: name.into(), outcome: CheckResult::Ok(found.into()), position: None }
    }

    pub(crate) fn fix(area: Area, name: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { area, name: name.into(), outcome: CheckResult::Fix(to_do.into()), position: None }
    }

    pub(crate) fn skipped(area: Area, name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { area, name: name.into(), outcome: CheckResult::Skipped(why.into()), position: None }
    }

    /// Parses the mistake of an agent file: `agents/clerk.agent.md:7: reason`.
    pub(crate) fn from_agent_mistake(text: &str) -> Self {
        let mut parts = text.splitn(3, ':');
        let (file, line, reason) = (parts.next(), parts.next(), parts.next());
        let line = line.and_then(|line| line.trim().parse().ok());
        let (Some(file), Some(line), Some(reason)) = (file, line, reason) else {
            return Self::fix(Area::Agents, "agent file", text);
        };
        let place = FilePosition { file: file.into(), line: Some(line) };
        Self { position: Some(place), ..Self::fix(Area::Agents, file, reason.trim()) }
    }
}

/// All checks of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DoctorReport {
    checks: Vec<Check>,
}

impl DoctorReport {
    /// Sorts the checks by area; keeps their order within an area.
    pub(crate) fn new(mut checks: Vec<Check>) -> Self {
        checks.sort_by_key(|check| check.area);
        Self { checks }
    }

    /// Number of problems to fix.
    pub(crate) fn count_to_fix(&self) -> usize {
        self.checks.iter().filter(|check| matches!(check.outcome, CheckResult::Fix(_))).count()
    }

    /// Exit status of the process: 0 if there is nothing to fix, else 1.
    pub(crate) fn exit_status(&self) -> u8 {
        u8::from(self.count_to_fix() > 0)
    }

    /// Renders the report, with a final line break.
    pub(crate) fn render(&self, format: Format) -> String {
        match format {
            Format::Text => render::render_text(self),
            Format::Json => render::render_json(self),
            Format::Github => render::render_github(self),
        }
    }
}
