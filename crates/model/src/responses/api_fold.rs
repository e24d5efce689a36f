//! A response that is being received on one of the two APIs.

use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::catalogue::find_tariff;
use crate::chat;
use crate::chat::fold::{ChatFold, END_FRAME};
use crate::lost_content::loses_content;
use crate::responses::fold::{FoldedResponse, ResponseFold};
use crate::responses::names::ToolNames;
use crate::responses::provider_error::ProviderError;
use crate::tokens::count_tokens;
use crate::{Listener, ModelRecord, ModelRequest, USAGE_ESTIMATED};
use turnwheel_conversation::compaction::tokens::count_message;
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{AssistantMessage, Message};
use turnwheel_conversation::usage::Usage;
use turnwheel_json::foreign::read_foreign_json;
use turnwheel_json::raw::RawJson;

#[derive(Debug)]
pub(super) enum ApiFold {
    Responses(ResponseFold),
    Chat(ChatFold),
}

impl ApiFold {
    pub(super) fn new(model: &ModelRecord, names: ToolNames) -> Self {
        let (id, tariff) = (model.id.as_str(), find_tariff(model));
        if model.api == chat::API {
            Self::Chat(ChatFold::new(id, tariff, names))
        } else {
            Self::Responses(ResponseFold::new(id, tariff, names))
        }
    }

    pub(super) fn push_frame(
        &mut self,
        name: Option<&str>,
        data: &str,
    ) -> Vec<AssistantMessageEvent> {
        match self {
            Self::Responses(fold) => fold.push_frame(name, data),
            Self::Chat(fold) => fold.push_frame(name, data),
        }
    }

    /// Applies a response of a gateway that does not stream: the whole response, or an error, with
    /// status 200.
    pub(super) fn push_whole(
        &mut self,
        body: &str,
        listener: &dyn Listener,
    ) -> Result<(), Box<ProviderError>> {
        match self {
            Self::Responses(fold) => read_json_response(body, fold, listener),
            Self::Chat(fold) => {
                let (is_response, events) = read_json_texts(body, |texts| fold.push_whole(texts))?;
                for event in events {
                    listener.on_event(event);
                }
                if is_response { Ok(()) } else { Err(no_response().into()) }
            }
        }
    }

    /// True if later frames cannot change the response.
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Responses(fold) => fold.is_finished(),
            Self::Chat(fold) => fold.is_finished(),
        }
    }

    /// True if only the reason of a failure or the usage may follow, which it does at once.
    pub(super) fn is_awaiting_end(&self) -> bool {
        match self {
            Self::Responses(fold) => fold.is_awaiting_reason(),
            Self::Chat(fold) => fold.is_awaiting_usage(),
        }
    }

    /// True for a complete Chat Completions response whose service reported no usable usage.
    pub(super) fn lacks_usage(&self) -> bool {
        match self {
            Self::Responses(_) => false,
            Self::Chat(fold) => fold.lacks_usage(),
        }
    }

    pub(super) fn fail(&mut self, fault: ProviderError) {
        match self {
            Self::Responses(fold) => fold.fail(fault),
            Self::Chat(fold) => fold.fail(fault),
        }
    }

    pub(super) fn finish(self) -> FoldedResponse {
        match self {
            Self::Responses(fold) => fold.finish(),
            Self::Chat(fold) => fold.finish(),
        }
    }
}

/// Replaces missing usage by an estimate from the tokens sent and received, as for an aborted
/// response. Limits would otherwise not count the call.
pub(super) fn record_estimated_usage(request: &ModelRequest<'_>, message: &mut AssistantMessage) {
    let messages = request.messages.iter().map(|message| count_message(message, &count_tokens));
    let tools = request.tools.iter().map(|tool| {
        let schema = RawJson::from_value(tool.parameters);
        count_tokens(tool.name) + count_tokens(tool.description) + count_tokens(schema.text())
    });
    let input = messages.chain(tools).sum::<u64>() + request.system.map_or(0, count_tokens);
    let output = count_message(&Message::Assistant(message.clone()), &count_tokens);
    let mut usage = Usage { input, output, total_tokens: input + output, ..Usage::default() };
    usage.cost = find_tariff(request.model).cost(&usage);
    message.usage = usage.into();
    message.extra.insert(USAGE_ESTIMATED.to_owned(), Value::Bool(true));
}

fn no_response() -> ProviderError {
    ProviderError::permanent(
        "the server did not return a model response: check AZURE_OPENAI_BASE_URL",
    )
}

/// Reads a response of a gateway that does not stream: the whole response, or an error, with status
/// 200.
pub(super) fn read_json_response(
    body: &str,
    fold: &mut ResponseFold,
    listener: &dyn Listener,
) -> Result<(), Box<ProviderError>> {
    read_json_texts(body, |texts| {
        for event in texts.iter().flat_map(|text| fold.push_frame(None, text)) {
            listener.on_event(event);
        }
    })?;
    if fold.is_finished() || fold.is_awaiting_reason() { Ok(()) } else { Err(no_response().into()) }
}

/// Passes the JSON texts of a body to `read`. If the body is not valid JSON, mistakes that have a
/// plain meaning are repaired.
fn read_json_texts<T>(
    body: &str,
    read: impl FnOnce(&[&str]) -> T,
) -> Result<T, Box<ProviderError>> {
    if let Some(texts) = json_texts(body) {
        return Ok(read(&texts));
    }
    let repaired = repair_body(body);
    let texts = repaired.as_deref().and_then(json_texts);
    texts.map(|texts| read(&texts)).ok_or_else(|| {
        ProviderError::connection_lost("the model response is not valid JSON").into()
    })
}

/// The JSON texts of a body: one, or one in each line, or the items of a list.
fn json_texts(body: &str) -> Option<Vec<&str>> {
    let body = body.trim_start_matches('\u{feff}');
    if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(body) {
        return Some(items.into_iter().map(RawValue::get).collect());
    }
    let is_json = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
    if is_json(body) {
        return Some(vec![body]);
    }
    let lines: Vec<&str> = text_lines(body).collect();
    (!lines.is_empty() && lines.iter().all(|line| is_json(line))).then_some(lines)
}

/// The lines of a body with JSON texts, without the line after the last one.
fn text_lines(body: &str) -> impl Iterator<Item = &str> {
    let lines = body.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.filter(|line| line.strip_prefix("data:").unwrap_or(line).trim() != END_FRAME)
}

/// The repaired body, or its repaired lines. `None`: a part of it is not JSON, or would lose content.
fn repair_body(body: &str) -> Option<String> {
    let repair = |text: &str| {
        let foreign = read_foreign_json(text).filter(|it| !loses_content(text, it))?;
        Some(foreign.json.text().to_owned())
    };
    repair(body).or_else(|| {
        let lines: Option<Vec<String>> = text_lines(body).map(repair).collect();
        Some(lines?.join("\n"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalogue::{Catalogue, Tariff};
    use turnwheel_conversation::content::joined_text;

    struct NullListener;

    impl Listener for NullListener {
        fn on_event(&self, _: AssistantMessageEvent) {}
    }

    /// The text of a whole body, or the error.
    fn read(body: &str) -> Result<String, String> {
        let mut fold = ResponseFold::new("m", Tariff::default(), ToolNames::default());
        read_json_response(body, &mut fold, &NullListener).map_err(|fault| fault.text)?;
        let folded = fold.finish();
        match folded.error {
            Some(fault) => Err(fault.text),
            None => Ok(joined_text(&folded.message.content)),
        }
    }

    #[test]
    fn json_body_is_read_as_response_events_or_error() {
        let item = json!({ "type": "message", "id": "m", "content": [{ "type": "output_text", "text": "Paid." }] });
        let response = json!({ "object": "response", "status": "completed", "output": [item] });
        let delta =
            json!({ "type": "response.output_text.delta", "output_index": 0, "delta": "Paid." });
        let end = json!({ "type": "response.completed", "response": response });
        for body in [
            response.to_string(),
            format!("\u{feff}{response}"),
            json!({ "output": [item] }).to_string(),
            end.to_string(),
            format!("{delta}\n\n{end}\n"),
            format!("{delta}\n{end}\n[DONE]"),
            format!("{delta}\n{end}\ndata: [DONE]\n"),
            format!("[{{\"type\":\"x\",\"score\":NaN}},{delta},{end}]"),
            format!("{{\"type\":\"x\",\"score\":NaN}}\n{delta}\n{end}"),
            json!([delta, end]).to_string(),
        ] {
            assert_eq!(read(&body).as_deref(), Ok("Paid."), "{body}");
        }
        let errors = [
            (json!({ "error": { "code": "c", "message": "m" } }).to_string(), "Error Code c: m"),
            (json!({ "detail": "m" }).to_string(), "m"),
            (
                json!({ "object": "response", "status": "failed", "error": { "message": "m" } })
                    .to_string(),
                "m",
            ),
            ("{\"output\": [".to_owned(), "the model response is not valid JSON"),
            (
                "{\"hello\": 1}".to_owned(),
                "the server did not return a model response: check AZURE_OPENAI_BASE_URL",
            ),
        ];
        for (body, text) in errors {
            assert_eq!(read(&body), Err(text.to_owned()), "{body}");
        }
        let record =
            ModelRecord { api: chat::API.to_owned(), ..Catalogue::default().record("m", "m") };
        let mut fold = ApiFold::new(&record, ToolNames::default());
        let chunk = |delta: Value, reason: Value| json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] });
        let lines = [
            chunk(json!({ "content": "Pa" }), Value::Null),
            chunk(json!({ "content": "id." }), json!("stop")),
        ];
        let body = lines.map(|line| line.to_string()).join("\n");
        fold.push_whole(&body, &NullListener).unwrap();
        assert_eq!(joined_text(&fold.finish().message.content), "Paid.");
    }
}
