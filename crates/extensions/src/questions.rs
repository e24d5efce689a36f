//! Questions of a hook to approvers. An unanswered question ends the hook, and the step waits. After
//! the decision the hook runs again and receives the answer.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{HookContext, HookError};
use turnwheel_conversation::question::{
    Answer, Answers, Asker, QuestionSpec, STEP_ANSWERS_BYTES_MAX,
};
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::{is_visible_line, sanitize_lines};
use turnwheel_tools::code::EXPIRY_DEFAULT;

#[cfg(test)]
mod tests;

/// Maximum bytes of a question's key.
const KEY_BYTES_MAX: usize = 64;
/// Maximum bytes of a question's text, and of the options of a choice.
const TEXT_BYTES_MAX: usize = 2 * 1024;
/// Maximum characters of a text that an approver enters.
const INPUT_CHARACTERS_MAX: usize = 1_000;

/// A question to an approver. A text is a question to the owner of the conversation that expires
/// after seven days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    text: String,
    approvers: Vec<String>,
    expires_after: Duration,
}

impl Question {
    /// The text has at most 2 KB.
    pub fn new(text: impl Into<String>) -> Self {
        let approvers = vec!["owner".to_owned()];
        Self { text: text.into(), approvers, expires_after: EXPIRY_DEFAULT }
    }

    /// Sets who may answer: `owner`, `link`, `role:NAME`. An empty list leaves the owner.
    #[must_use]
    pub fn by(mut self, approvers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let approvers: Vec<String> = approvers.into_iter().map(Into::into).collect();
        if !approvers.is_empty() {
            self.approvers = approvers;
        }
        self
    }

    #[must_use]
    pub fn within(mut self, span: Duration) -> Self {
        self.expires_after = span;
        self
    }
}

impl From<&str> for Question {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Question {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

/// The questions of one call of a hook.
#[derive(Debug)]
pub(crate) struct HookQuestions {
    /// The recorded answers, by key.
    answers: BTreeMap<String, Answer>,
    /// Bytes for further answers of the step.
    bytes_left: usize,
    asked: Mutex<Option<QuestionSpec>>,
}

impl HookContext {
    /// The context of a hook that may ask. `answers`: those of its step so far.
    #[must_use]
    pub fn with_questions(mut self, answers: &Answers) -> Self {
        self.questions = Some(Box::new(HookQuestions {
            answers: answers.of_extension(self.extension().name()),
            bytes_left: STEP_ANSWERS_BYTES_MAX.saturating_sub(answers.byte_count()),
            asked: Mutex::default(),
        }));
        self
    }

    /// The question whose answer the hook needs. Then its result does not count.
    pub fn take_question(&self) -> Option<QuestionSpec> {
        self.questions.as_ref()?.asked.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn has_asked(&self) -> bool {
        let asked =
            |it: &HookQuestions| it.asked.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.questions.as_deref().is_some_and(asked)
    }

    /// The answers to earlier questions, by key. `None`: the hook may not ask.
    pub(super) fn recorded_answers(&self) -> Option<&BTreeMap<String, Answer>> {
        self.questions.as_ref().map(|questions| &questions.answers)
    }

    /// True if the hook may ask a question: a command, `tool_call`, `session_before_compact`,
    /// `session_before_fork` and `session_before_tree`.
    pub fn has_ui(&self) -> bool {
        self.questions.is_some()
    }

    /// Asks for yes or no. `false` if the question expired or was declined.
    ///
    /// A question has a key of the hook's choice, at most 64 bytes. The first use of a key in a
    /// step, for example a tool call, ends the hook with an error. Return it with `?`. The step
    /// waits, without a worker, until an approver answers. Then the hook runs again from its start,
    /// and every use of the key has the recorded answer.
    ///
    /// # Errors
    /// The question has no answer yet, the hook may not ask, or the question exceeds a limit.
    pub fn confirm(&self, key: &str, question: impl Into<Question>) -> Result<bool, HookError> {
        let answer = self.ask(key, question.into(), &json!({"type": "boolean"}))?;
        Ok(answer == Answer::Confirmation(true))
    }

    /// Asks for one of several texts, together at most 2 KB. `None` if the question expired
    /// or was declined, or if the recorded answer is no longer an option. See [`HookContext::confirm`].
    ///
    /// # Errors
    /// The question has no answer yet, the hook may not ask, or the question exceeds a limit.
    pub fn select<T: AsRef<str>>(
        &self,
        key: &str,
        question: impl Into<Question>,
        options: &[T],
    ) -> Result<Option<String>, HookError> {
        let options: Vec<&str> = options.iter().map(AsRef::as_ref).collect();
        check_options(&options)?;
        let schema = json!({"type": "string", "enum": options});
        let answer = text_of(self.ask(key, question.into(), &schema)?);
        Ok(answer.filter(|text| options.contains(&text.as_str())))
    }

    /// Asks for a text, at most 1,000 characters and 2 KB. `hint` describes it. `None` if the
    /// question expired or was declined. See [`HookContext::confirm`].
    ///
    /// # Errors
    /// The question has no answer yet, the hook may not ask, or the question exceeds a limit.
    pub fn input(
        &self,
        key: &str,
        question: impl Into<Question>,
        hint: Option<&str>,
    ) -> Result<Option<String>, HookError> {
        let mut schema = json!({"type": "string", "maxLength": INPUT_CHARACTERS_MAX});
        if let (Some(hint), Some(schema)) = (hint, schema.as_object_mut()) {
            check_text("the hint", hint)?;
            let shown = sanitize_lines(hint, TEXT_BYTES_MAX);
            check_text("the visible part of the hint", &shown)?;
            schema.insert("description".to_owned(), Value::from(shown));
        }
        Ok(text_of(self.ask(key, question.into(), &schema)?))
    }

    /// The recorded answer, or an error if the hook has to wait for it. The first of several
    /// questions without an answer is asked.
    fn ask(&self, key: &str, question: Question, schema: &Value) -> Result<Answer, HookError> {
        let Some(questions) = self.questions.as_deref() else {
            return Err(HookError::new(
                "a question can be asked only by a command, in `tool_call`, and in `session_before_compact`, `session_before_fork` and `session_before_tree`: check `has_ui()` first",
            ));
        };
        if let Some(answer) = questions.answers.get(key) {
            return Ok(answer.clone());
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX || !is_visible_line(key) {
            return Err(HookError::new(format!(
                "the key of a question has 1 to {KEY_BYTES_MAX} bytes and no invisible characters; this one has {} bytes",
                key.len()
            )));
        }
        check_text("the text of a question", &question.text)?;
        let spec = QuestionSpec {
            asker: Asker { extension: self.extension().name().to_owned(), key: key.to_owned() },
            text: question.text,
            schema: RawJson::from_value(schema),
            approvers: question.approvers,
            expires_after: question.expires_after,
        };
        if spec.answer_bytes_max() > questions.bytes_left {
            return Err(HookError::new(format!(
                "the question `{key}` is one too many: the answers of one step have at most {STEP_ANSWERS_BYTES_MAX} bytes together"
            )));
        }
        let mut asked = questions.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.get_or_insert(spec);
        Err(HookError::new(format!("the question `{key}` has no answer yet")))
    }
}

fn text_of(answer: Answer) -> Option<String> {
    if let Answer::Text(text) = answer { Some(text) } else { None }
}

fn check_text(what: &str, text: &str) -> Result<(), HookError> {
    if text.trim().is_empty() || text.len() > TEXT_BYTES_MAX {
        return Err(HookError::new(format!(
            "{what} is not blank and has at most {TEXT_BYTES_MAX} bytes; this one has {}",
            text.len()
        )));
    }
    Ok(())
}

fn check_options(options: &[&str]) -> Result<(), HookError> {
    let bytes: usize = options.iter().map(|option| option.len()).sum();
    let unique: HashSet<&&str> = options.iter().collect();
    let is_valid = !options.is_empty()
        // An approver chooses the value itself, so no part of it is left out.
        && options.iter().all(|option| !option.trim().is_empty() && is_visible_line(option))
        && unique.len() == options.len()
        && bytes <= TEXT_BYTES_MAX;
    if is_valid {
        return Ok(());
    }
    Err(HookError::new(format!(
        "the options of a question are one or more different texts that are not blank, without line breaks and invisible characters, with at most {TEXT_BYTES_MAX} bytes together"
    )))
}
