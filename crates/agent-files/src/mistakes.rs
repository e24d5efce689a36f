//! Mistakes in agent files: all of a file at once, each with its line and its remedy.

use std::fmt;

use crate::yaml::Position;
use turnwheel_platform::settings::UNRESOLVED;

/// A clause that follows the setting's name.
const NOT_SET: &str = "is not set: in Azure add it to the app's settings, here set the environment variable, or add it to `Values` in local.settings.json";

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
    /// Name of an app setting without a value here, if that is the only problem. The file itself is
    /// correct, and `package` does not need the setting.
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
    /// Number of mistakes in the file itself: those that are no missing app settings.
    file_mistakes: usize,
}

impl Findings {
    pub(super) fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), mistakes: Vec::new(), file_mistakes: 0 }
    }

    pub(super) fn add(&mut self, at: Position, reason: impl Into<String>) {
        self.push(at, reason.into(), None);
    }

    /// `is_reference`: the setting is a Key Vault reference that is not resolved.
    pub(super) fn add_missing_setting(&mut self, at: Position, name: &str, is_reference: bool) {
        let problem = if is_reference { UNRESOLVED } else { NOT_SET };
        self.push(at, format!("the app setting {name} {problem}"), Some(name.to_owned()));
    }

    /// Adds mistakes of another file at the place that refers to it.
    pub(super) fn add_referenced(&mut self, at: Position, mistakes: &[Mistake]) {
        for mistake in mistakes {
            self.push(at, mistake.reason.clone(), mistake.missing_setting.clone());
        }
    }

    fn push(&mut self, at: Position, reason: String, missing_setting: Option<String>) {
        self.file_mistakes += usize::from(missing_setting.is_none());
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

    pub(super) fn file_mistakes(&self) -> usize {
        self.file_mistakes
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
