//! Lenient parser of Chat Completions chunks: every member may be missing, and unknown ones are
//! ignored. Texts are borrowed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::response_text::{OmittedPart, arguments_of, split_parts, text_of};
use crate::responses::provider_error::ProviderError;

/// One event of a stream, or a response without a stream.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) object: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) model: Option<&'a RawValue>,
    /// Empty in the chunk with the usage, and in Azure's first one, with the results of its filter.
    #[serde(borrow)]
    pub(super) choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
    /// The status that some services add to each response.
    #[serde(borrow)]
    base_resp: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Choice<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    /// Absent in chunks of Azure's asynchronous filter.
    #[serde(borrow)]
    pub(super) delta: Option<Delta<'a>>,
    /// The whole message of a response without a stream. Some services add it to the last chunk.
    #[serde(borrow)]
    pub(super) message: Option<Delta<'a>>,
    /// The text of the API before Chat Completions.
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<&'a RawValue>,
    /// Some services put the usage here.
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    /// A router puts the error of its provider here, with status 200.
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Delta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_text: Option<&'a RawValue>,
    #[serde(borrow)]
    audio: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<CallDelta<'a>>>,
    /// The only call, in the form before `tool_calls`.
    #[serde(borrow)]
    function_call: Option<FunctionDelta<'a>>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct CallDelta<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    function: Option<FunctionDelta<'a>>,
    /// A call with a text as its input.
    #[serde(borrow)]
    custom: Option<FunctionDelta<'a>>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct FunctionDelta<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

/// The pieces of a call in one delta; none is empty.
pub(super) struct CallPieces<'a> {
    pub(super) id: Option<Cow<'a, str>>,
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) arguments: Option<Cow<'a, str>>,
}

/// A part of a content list, as Mistral's reasoning models send it.
#[derive(Debug, Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    thinking: Option<&'a RawValue>,
}

/// Spoken output. Its sound is of no use here.
#[derive(Deserialize)]
struct Audio<'a> {
    #[serde(borrow, default)]
    transcript: Option<&'a RawValue>,
}

/// Text of a delta, in the order of its arrival.
pub(super) enum DeltaPiece<'a> {
    Text(Cow<'a, str>),
    /// With the name of its member.
    Thinking(Cow<'a, str>, &'static str),
}

impl Chunk<'_> {
    /// True if the chunk reports an error, or the status of one, beside its choices.
    pub(super) fn reports_error(&self) -> bool {
        let status = self.base_resp.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
        let code = status.and_then(|status| status.get("status_code")?.as_i64());
        read_error(self.error).is_some() || code.is_some_and(|code| code != 0)
    }

    pub(super) fn has_choice(&self) -> bool {
        self.choices.as_ref().is_some_and(|choices| !choices.is_empty())
    }
}

impl Choice<'_> {
    /// Absent: 0.
    pub(super) fn index(&self) -> u64 {
        self.index.and_then(read_index).unwrap_or(0)
    }

    /// The text of a choice that has neither a delta nor a message.
    pub(super) fn bare_text(&self) -> Option<DeltaPiece<'_>> {
        let is_bare = self.delta.is_none() && self.message.is_none();
        self.text.and_then(text_of).filter(|_| is_bare).map(DeltaPiece::Text)
    }

    /// The error of this choice. `None` also for one without details.
    pub(super) fn read_error(&self) -> Option<ProviderError> {
        read_error(self.error)
    }
}

impl CallDelta<'_> {
    pub(super) fn index(&self) -> Option<u64> {
        self.index.and_then(read_index)
    }
}

/// The error in a member. `None` also for one without details, which some services send beside
/// each choice.
fn read_error(raw: Option<&RawValue>) -> Option<ProviderError> {
    let error: Value = serde_json::from_str(raw?.get()).ok()?;
    ProviderError::from_error_event(&error)
}

/// An index. Some services send it as a text.
fn read_index(raw: &RawValue) -> Option<u64> {
    raw.get().trim_matches('"').parse().ok()
}

impl DeltaPiece<'_> {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Thinking(text, _) => text,
        }
    }
}

impl CallPieces<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.id.is_none() && self.name.is_none() && self.arguments.is_none()
    }
}

impl<'a> Delta<'a> {
    /// The calls of the delta.
    pub(super) fn calls(&self) -> &[CallDelta<'a>] {
        self.tool_calls.as_deref().unwrap_or_default()
    }

    /// The only call in the older form, unless the delta has calls in both forms.
    pub(super) fn single_call(&self) -> Option<CallDelta<'a>> {
        let function = self.function_call.filter(|_| self.calls().is_empty());
        function.map(|function| CallDelta { function: Some(function), ..CallDelta::default() })
    }

    /// The text that the delta continues, for characters that two deltas share.
    pub(super) fn text_address(delta: &Value) -> String {
        if let Some(call) = delta.pointer("/tool_calls/0") {
            return format!("call {}", call.get("index").unwrap_or(&Value::Null));
        }
        let has_text = |name: &str| delta.get(name).is_some_and(|text| !text.is_null());
        let texts =
            ["content", "reasoning_content", "reasoning", "reasoning_text", "refusal", "audio"];
        texts.into_iter().find(|name| has_text(name)).unwrap_or("call").to_owned()
    }

    /// The texts of the delta. Parts of unknown types are added to `omitted` instead. Of several members
    /// with reasoning the first counts: some services send it twice.
    pub(super) fn pieces(&self, omitted: &mut Vec<OmittedPart>) -> Vec<DeltaPiece<'a>> {
        let reasoning = [
            ("reasoning_content", self.reasoning_content),
            ("reasoning", self.reasoning),
            ("reasoning_text", self.reasoning_text),
        ];
        let thinking = reasoning
            .into_iter()
            .find_map(|(name, raw)| Some(DeltaPiece::Thinking(raw.and_then(text_of)?, name)));
        let mut pieces: Vec<DeltaPiece<'a>> = thinking.into_iter().collect();
        if let Some(content) = self.content {
            if content.get().starts_with(['[', '{']) {
                let (known, unknown) = split_parts(content);
                for part in known {
                    add_part(part, &mut pieces);
                }
                omitted.extend(unknown);
            } else {
                add_part(content, &mut pieces);
            }
        }
        pieces.extend(self.refusal.and_then(text_of).map(DeltaPiece::Text));
        if !pieces.iter().any(|piece| matches!(piece, DeltaPiece::Text(_))) {
            pieces.extend(self.transcript().map(DeltaPiece::Text));
        }
        pieces
    }
}

impl<'a> Delta<'a> {
    fn transcript(&self) -> Option<Cow<'a, str>> {
        let audio: Audio<'a> = serde_json::from_str(self.audio?.get()).ok()?;
        audio.transcript.and_then(text_of)
    }
}

impl<'a> CallDelta<'a> {
    pub(super) fn pieces(&self) -> CallPieces<'a> {
        let functions = [self.function, self.custom];
        let mut names = functions.into_iter().flatten().map(|function| function.name);
        let mut arguments = functions.into_iter().flatten();
        CallPieces {
            id: non_empty_text(self.id),
            name: names.find_map(non_empty_text),
            arguments: arguments.find_map(|function| function.arguments()),
        }
    }
}

impl<'a> FunctionDelta<'a> {
    /// The next part of the arguments. Some services send a value instead of its text.
    fn arguments(&self) -> Option<Cow<'a, str>> {
        [self.arguments, self.input].into_iter().flatten().find_map(arguments_of)
    }
}

/// Adds a part of the content, or the whole content.
fn add_part<'a>(raw: &'a RawValue, pieces: &mut Vec<DeltaPiece<'a>>) {
    let is_object = raw.get().starts_with('{');
    let part = is_object.then(|| serde_json::from_str::<ContentPart<'a>>(raw.get()).ok());
    match part.flatten() {
        Some(ContentPart { text, thinking: Some(thinking) }) => {
            let thinking = text_of(thinking).map(|text| DeltaPiece::Thinking(text, "thinking"));
            pieces.extend(thinking);
            pieces.extend(text.and_then(text_of).map(DeltaPiece::Text));
        }
        Some(_) | None => pieces.extend(text_of(raw).map(DeltaPiece::Text)),
    }
}

/// The string, if the value is one and not empty.
pub(super) fn non_empty_text(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    raw.filter(|raw| raw.get().starts_with('"')).and_then(text_of)
}
