//! Mistakes in agent files: all of a file at once, each with its line and its remedy.

use std::fmt;

use crate::yaml::Position;

/// An error in an agent file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// Path of the file, with the folder as in the settings or `--agents`: `agents/clerk.agent.md`.
    pub file: String,
    /// From 1.
    pub line: u64,
    /// From 1, in characters.
    pub column: u64,
    /// One sentence. It never contains the value of an app setting.
    pub reason: String,
    /// Name of a missing app setting, if that is the only problem. The file itself is correct, and
    /// `package` does not need the setting.
    pub missing_setting: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.reason)
    }
}

/// Mistakes found so far in one file.
#[derive(Debug)]
pub(super) struct Findings {
    file: String,
    mistakes: Vec<Mistake>,
}

impl Findings {
    pub(super) fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), mistakes: Vec::new() }
    }

    pub(super) fn add(&mut self, at: Position, reason: impl Into<String>) {
        self.push(at, reason.into(), None);
    }

    pub(super) fn add_missing_setting(&mut self, at: Position, name: &str) {
        let reason = format!(
            "the app setting {name} is not set: in Azure add it to the app's settings, here set the environment variable, or add it to `Values` in local.settings.json"
        );
        self.push(at, reason, Some(name.to_owned()));
    }

    fn push(&mut self, at: Position, reason: String, missing_setting: Option<String>) {
        self.mistakes.push(Mistake {
            file: self.file.clone(),
            line: at.line,
            column: at.column,
            reason,
            missing_setting,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.mistakes.len()
    }

    /// Returns the mistakes in the order of the file, without duplicates.
    pub(super) fn into_sorted(mut self) -> Vec<Mistake> {
        self.mistakes.sort();
        self.mistakes.dedup();
        self.mistakes
    }
}

/// Returns "did you mean `x`?" if a known name is similar, otherwise the nearest and all known
/// names.
pub(super) fn suggest_name<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let folded = given.to_lowercase();
    let nearest = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&folded, &name.to_lowercase()), *name))
        .min();
    match nearest {
        None => "there are none".to_owned(),
        Some((distance, name)) if distance <= (given.chars().count() / 3).max(1) => {
            format!("did you mean `{name}`?")
        }
        Some((_, name)) => {
            format!("the nearest is `{name}`; there are: {}", known.join(", "))
        }
    }
}
