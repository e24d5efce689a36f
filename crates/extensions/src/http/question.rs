//! Questions in the responses of HTTP extensions.

use serde::Deserialize;

use super::response_parts::{Checked, read_approvers, read_expiry};
use crate::{HookContext, HookError, Question};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum QuestionKind {
    Confirm,
    Select,
    Input,
}

/// The member `ask`: the event is sent again with the answer in `answers`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct HookQuestion {
    kind: QuestionKind,
    key: String,
    text: String,
    options: Option<Vec<String>>,
    hint: Option<String>,
    approvers: Option<Vec<String>>,
    expires_after: Option<String>,
}

impl HookQuestion {
    /// Asks the question: the hook ends with an error, and runs again after the answer. The text
    /// of the error holds no value of the response.
    pub(super) fn ask(self, cx: &HookContext) -> HookError {
        if !cx.has_ui() {
            return invalid("nobody waits for an answer here: no prompt runs");
        }
        let question = match self.question() {
            Ok(question) => question,
            Err(reason) => return invalid(&reason),
        };
        let asked = match self.kind {
            QuestionKind::Confirm => cx.confirm(&self.key, question).map(drop),
            QuestionKind::Select => {
                cx.select(&self.key, question, &self.options.unwrap_or_default()).map(drop)
            }
            QuestionKind::Input => cx.input(&self.key, question, self.hint.as_deref()).map(drop),
        };
        match asked {
            Ok(()) => invalid("its key has an answer in `answers` already"),
            Err(waits) if cx.has_asked() => waits,
            Err(_names_values) => invalid(
                "a key has 1 to 64 bytes, a text, a hint and all options 2 KB, and the answers of one step 4 KB; options are different and not blank",
            ),
        }
    }

    fn question(&self) -> Checked<Question> {
        if self.options.is_some() != (self.kind == QuestionKind::Select) {
            return Err("select, and no other kind, needs options".to_owned());
        }
        if self.hint.is_some() && self.kind != QuestionKind::Input {
            return Err("hint needs the kind input".to_owned());
        }
        let question = Question::new(self.text.as_str());
        let question = question.by(read_approvers(self.approvers.clone())?);
        let expiry = read_expiry(self.expires_after.as_deref())?;
        Ok(expiry.into_iter().fold(question, Question::within))
    }
}

fn invalid(reason: &str) -> HookError {
    HookError::new(format!("its response is not valid: ask: {reason}"))
}
