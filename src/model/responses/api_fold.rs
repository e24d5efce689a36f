//! A response that is being received on one of the two APIs.

use serde_json::{Value, json};

use crate::agent::compaction::tokens::count_message;
use crate::agent::event::AssistantMessageEvent;
use crate::agent::message::{AssistantMessage, Message};
use crate::agent::raw::RawJson;
use crate::agent::usage::Usage;
use crate::model::catalogue::find_tariff;
use crate::model::chat;
use crate::model::chat::fold::ChatFold;
use crate::model::responses::event::ProviderEvent;
use crate::model::responses::fold::{FoldedResponse, ResponseFold};
use crate::model::responses::names::ToolNames;
use crate::model::responses::provider_error::ProviderError;
use crate::model::tokens::count_tokens;
use crate::model::{Listener, ModelRecord, ModelRequest, USAGE_ESTIMATED};

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
                let (is_response, events) = fold.push_whole(body);
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
    let json: Value = serde_json::from_str(body)
        .map_err(|_| ProviderError::connection_lost("the model response is not valid JSON"))?;
    if json.get("object").and_then(Value::as_str) != Some("response") {
        let fault = ProviderError::from_error_event(&json).unwrap_or_else(no_response);
        return Err(fault.into());
    }
    let event = ProviderEvent::from_json(json!({ "type": "response.completed", "response": json }));
    for event in event.iter().flat_map(|event| fold.push_event(event)) {
        listener.on_event(event);
    }
    Ok(())
}
