//! A file of the app whose text is part of system prompts.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextFile {
    /// Path for users and the model: `context/company.md`.
    pub location: String,
    pub text: String,
}

impl ContextFile {
    /// Name in its folder.
    pub(super) fn name(&self) -> &str {
        self.location.rsplit('/').next().unwrap_or(&self.location)
    }
}
