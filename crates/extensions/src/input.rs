//! Inputs and results of the hooks that run when a request is accepted.

use turnwheel_conversation::content::Image;
use turnwheel_conversation::entry::Source;

/// A prompt's input before it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptText {
    /// The text blocks of the input, joined by newlines.
    pub text: String,
    pub images: Vec<Image>,
    pub source: Source,
}

/// Decision of an extension on an input.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum InputDecision {
    /// The input stays as it is.
    #[default]
    Continue,
    /// Replaces the text and the images. `images: None`: the images stay. Files always stay.
    Transform { text: String, images: Option<Vec<Image>> },
    /// The extension has handled the input: no prompt starts, and later extensions do not run.
    Handled,
}

/// A shell command that a client has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserBash {
    pub command: String,
    pub result: BashResult,
    /// True if the model does not receive it.
    pub is_excluded_from_context: bool,
}

/// Result of a shell command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BashResult {
    pub output: String,
    /// `None`: the command did not exit by itself.
    pub exit_code: Option<i64>,
    pub is_cancelled: bool,
    /// True if `output` is not the whole output.
    pub is_truncated: bool,
}
