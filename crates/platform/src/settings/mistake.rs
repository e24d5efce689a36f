//! Error of one setting: its name, its value and the expected value.

use std::fmt;

use super::table;

/// An invalid or missing setting. Never contains the value of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingMistake {
    pub name: String,
    /// A clause that follows the name: "is `foo`: expected …", "is not set: expected …".
    pub problem: String,
}

/// Characters of an invalid value that are shown.
const SHOWN_MAX: usize = 80;

impl SettingMistake {
    /// The error of an invalid value. Shows the value unless the table marks it as a secret, or it
    /// may contain a password, as in `https://user:password@host`.
    pub fn invalid(name: &str, found: &str, expected: &str) -> Self {
        let is_secret =
            table::find_row(name).is_none_or(|row| row.is_secret) || found.contains('@');
        let found = if is_secret {
            "is not usable (its value is kept secret)".to_owned()
        } else if found.chars().count() > SHOWN_MAX {
            format!("is `{}…`", found.chars().take(SHOWN_MAX).collect::<String>().escape_debug())
        } else {
            format!("is `{}`", found.escape_debug())
        };
        Self { name: name.to_owned(), problem: format!("{found}: expected {expected}") }
    }

    pub fn missing(name: &str, expected: &str) -> Self {
        Self { name: name.to_owned(), problem: format!("is not set: expected {expected}") }
    }

    /// An error with the given `problem`.
    pub fn new(name: &str, problem: impl Into<String>) -> Self {
        Self { name: name.to_owned(), problem: problem.into() }
    }
}

impl fmt::Display for SettingMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.problem)
    }
}
