//! Parser of the script in a user message: `use echo with {"value":"x"} and use read with {…} then
//! say done`.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::ToolOffer;
use crate::responses::provider_error::ProviderError;
use turnwheel_json::raw::RawJson;

static COMMAND: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"(?ix) (?: ^ \s* | \b (?<link>then|and) \s+ (?:please\s+)? )
            (?: use \s+ (?<tool>[^\s{},]+) (?<with>\s+with\b)? | (?<say>say)\b[:\s]* | fail \s+ (?: with \s+ (?<status>\w+) | (?<finally>finally) ) )",
    )
    .ok()
});

#[derive(Clone)]
pub(super) struct ScriptedCall {
    pub(super) tool: String,
    pub(super) arguments: RawJson,
}

/// One response of the model.
pub(super) enum ScriptStep {
    /// Tool calls; never empty. `and` adds a call to the same response, `then` starts the next one.
    Calls(Vec<ScriptedCall>),
    Text(String),
    Failure(Box<ProviderError>),
}

#[derive(Default)]
pub(super) struct Script {
    steps: Vec<ScriptStep>,
}

impl Script {
    /// Parses a text. The script is empty if the text contains no command.
    pub(super) fn parse(text: &str, tools: &[ToolOffer<'_>]) -> Self {
        let mut script = Self::default();
        let mut rest = text;
        while let Some(command) = COMMAND.as_ref().and_then(|command| command.captures(rest)) {
            let after =
                command.get(0).and_then(|whole| rest.get(whole.end()..)).unwrap_or_default();
            rest = script.add_step(&command, after, tools);
        }
        script
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the step that follows this number of tool results; `None` after the last step.
    pub(super) fn step_after(&self, results: usize) -> Option<&ScriptStep> {
        let mut left = results;
        self.steps.iter().find(|step| match step {
            ScriptStep::Calls(calls) if left > 0 => {
                left = left.saturating_sub(calls.len());
                false
            }
            ScriptStep::Calls(_) | ScriptStep::Text(_) | ScriptStep::Failure(_) => true,
        })
    }

    /// Adds the step of a command. Returns the text that remains after it.
    fn add_step<'a>(
        &mut self,
        command: &Captures<'_>,
        after: &'a str,
        tools: &[ToolOffer<'_>],
    ) -> &'a str {
        let named = |name: &str| command.name(name).map(|found| found.as_str());
        if let Some(tool) = named("tool") {
            let (arguments, after) = match named("with") {
                Some(_) => split_arguments(after),
                // Without arguments, the text is a command only if it names an existing tool.
                None if tools.iter().any(|offer| offer.name == tool) => {
                    (RawJson::from_value(&serde_json::json!({})), after)
                }
                None => return after,
            };
            let call = ScriptedCall { tool: tool.to_owned(), arguments };
            let is_same_answer = named("link").is_some_and(|link| link.eq_ignore_ascii_case("and"));
            match self.steps.last_mut() {
                Some(ScriptStep::Calls(calls)) if is_same_answer => calls.push(call),
                Some(_) | None => self.steps.push(ScriptStep::Calls(vec![call])),
            }
            return after;
        }
        if named("say").is_some() {
            let said = after.trim().trim_matches(['"', '“', '”']);
            self.steps.push(ScriptStep::Text(said.to_owned()));
            return "";
        }
        let fault = match named("status").map(|status| (status, status.parse::<u16>())) {
            Some((_, Ok(status))) => scripted_error(status, "requested_failure"),
            Some(("overflow", _)) => scripted_error(400, "context_length_exceeded"),
            Some(_) | None => scripted_error(400, "requested_failure"),
        };
        self.steps.push(ScriptStep::Failure(Box::new(fault)));
        ""
    }
}

fn scripted_error(status: u16, code: &str) -> ProviderError {
    let body = serde_json::json!({ "error": { "code": code, "message": "the scripted model fails as requested" } });
    ProviderError::from_http(status, &body.to_string())
}

/// Splits the leading JSON value off a text, as written. A text without one becomes a JSON string,
/// which no tool accepts: this simulates malformed arguments.
fn split_arguments(text: &str) -> (RawJson, &str) {
    let text = text.trim_start();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    let end = match values.next() {
        Some(Ok(_)) => values.byte_offset(),
        Some(Err(_)) | None => 0,
    };
    match (RawJson::from_text(text.get(..end).unwrap_or_default()), text.get(end..)) {
        (Ok(arguments), Some(after)) => (arguments, after),
        _ => (RawJson::from_value(&text), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_steps(text: &str) -> String {
        let tools = [ToolOffer {
            name: "list",
            description: "",
            parameters: &serde_json::Value::Null,
            strict: false,
        }];
        let line = |step: &ScriptStep| match step {
            ScriptStep::Calls(calls) => {
                let calls: Vec<String> = calls
                    .iter()
                    .map(|call| format!("{}{}", call.tool, call.arguments.text()))
                    .collect();
                calls.join(" & ")
            }
            ScriptStep::Text(text) => format!("say {text}"),
            ScriptStep::Failure(fault) => fault.text.clone(),
        };
        Script::parse(text, &tools).steps.iter().map(line).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn script_parses_steps() {
        let cases = [
            ("hello", ""),
            ("how do I use a pen with ink?", ""),
            ("use echo with {\"a\": 1.50}", "echo{\"a\": 1.50}"),
            (
                "Use echo with {} and use list then use echo with {\"b\":2}, then say \"all done\"",
                "echo{} & list{} | echo{\"b\":2} | say all done",
            ),
            ("use pen", ""),
            ("use list", "list{}"),
            ("say hello and use list", "say hello and use list"),
            ("use echo with {broken", "echo\"{broken\""),
            ("fail with 503", "HTTP 503: requested_failure: the scripted model fails as requested"),
            (
                "use list then fail finally",
                "list{} | HTTP 400: requested_failure: the scripted model fails as requested",
            ),
            (
                "use payment.send with {\"to\":\"then say x\"}",
                "payment.send{\"to\":\"then say x\"}",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(parsed_steps(text), expected, "{text}");
        }
    }

    #[test]
    fn script_selects_step_by_result_count() {
        let script =
            Script::parse("use a with {} and use b with {} then use c with {} then say x", &[]);
        let next = |results| match script.step_after(results) {
            Some(ScriptStep::Calls(calls)) => calls[0].tool.clone(),
            Some(ScriptStep::Text(text)) => format!("say {text}"),
            Some(ScriptStep::Failure(_)) | None => "-".to_owned(),
        };
        assert_eq!([next(0), next(2), next(3)], ["a", "c", "say x"]);
    }
}
