//! Lenient parser of Chat Completions chunks: every member may be missing, and unknown ones are
//! ignored. Texts are borrowed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::agent::usage::Usage;

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
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Choice<'a> {
    /// Absent: 0.
    pub(super) index: Option<u64>,
    /// Absent in chunks of Azure's asynchronous filter.
    #[serde(borrow)]
    pub(super) delta: Option<Delta<'a>>,
    /// The whole message of a response without a stream.
    #[serde(borrow)]
    pub(super) message: Option<Delta<'a>>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<&'a RawValue>,
    /// Some services put the usage here.
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
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
    pub(super) tool_calls: Option<Vec<CallDelta<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct CallDelta<'a> {
    pub(super) index: Option<u64>,
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) function: Option<FunctionDelta<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct FunctionDelta<'a> {
    #[serde(borrow)]
    pub(super) name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Borrows a string without escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A part of a content list, as Mistral's reasoning models send it.
#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    thinking: Option<&'a RawValue>,
}

/// Text of a delta, in the order of its arrival.
pub(super) enum Piece<'a> {
    Text(Cow<'a, str>),
    /// With the name of its member.
    Thinking(Cow<'a, str>, &'static str),
}

impl<'a> Delta<'a> {
    /// The texts of the delta. Of several members with reasoning the first counts: some services
    /// send it twice.
    pub(super) fn pieces(&self) -> Vec<Piece<'a>> {
        let reasoning = [
            ("reasoning_content", self.reasoning_content),
            ("reasoning", self.reasoning),
            ("reasoning_text", self.reasoning_text),
        ];
        let thinking = reasoning
            .into_iter()
            .find_map(|(name, raw)| Some(Piece::Thinking(non_empty_text(raw)?, name)));
        let mut pieces: Vec<Piece<'a>> = thinking.into_iter().collect();
        match self.content {
            Some(raw) if raw.get().starts_with('[') => add_parts(raw, &mut pieces),
            content => pieces.extend(non_empty_text(content).map(Piece::Text)),
        }
        pieces.extend(non_empty_text(self.refusal).map(Piece::Text));
        pieces
    }
}

impl<'a> FunctionDelta<'a> {
    /// The next part of the arguments. Some services send an object instead of its text.
    pub(super) fn arguments(&self) -> Option<Cow<'a, str>> {
        match self.arguments {
            Some(raw) if raw.get().starts_with('{') => Some(Cow::Borrowed(raw.get())),
            raw => non_empty_text(raw),
        }
    }
}

fn add_parts<'a>(raw: &'a RawValue, pieces: &mut Vec<Piece<'a>>) {
    let parts: Vec<ContentPart<'a>> = serde_json::from_str(raw.get()).unwrap_or_default();
    for part in parts {
        if let Some(thinking) = part.thinking {
            let thoughts: Vec<ContentPart<'a>> =
                serde_json::from_str(thinking.get()).unwrap_or_default();
            let texts = thoughts.iter().filter_map(|part| non_empty_text(part.text));
            pieces.extend(texts.map(|text| Piece::Thinking(text, "thinking")));
        }
        pieces.extend(non_empty_text(part.text).map(Piece::Text));
    }
}

/// The string, if the value is one and not empty.
pub(super) fn non_empty_text(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    let json = raw?.get();
    let Text(text) = serde_json::from_str(json).ok()?;
    (!text.is_empty()).then_some(text)
}

/// Parses the usage. `None` without the counts of a real call: the caller estimates them.
/// `prompt_tokens` includes cached tokens, which have another price. Some services leave reasoning
/// out of `completion_tokens`, but not out of the total.
pub(super) fn parse_usage(raw: &RawValue) -> Option<Usage> {
    let usage: Value = serde_json::from_str(raw.get()).ok()?;
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
    let input_tokens = count("/prompt_tokens").filter(|tokens| *tokens > 0)?;
    let completion = count("/completion_tokens")?;
    let total = count("/total_tokens").unwrap_or(0);
    let output = completion.max(total.saturating_sub(input_tokens));
    let cached = count("/prompt_tokens_details/cached_tokens");
    let cache_read =
        cached.or_else(|| count("/prompt_cache_hit_tokens")).unwrap_or(0).min(input_tokens);
    let cache_write = count("/prompt_tokens_details/cache_write_tokens")
        .unwrap_or(0)
        .min(input_tokens - cache_read);
    let reasoning = count("/completion_tokens_details/reasoning_tokens");
    Some(Usage {
        input: input_tokens - cache_read - cache_write,
        output,
        cache_read,
        cache_write,
        reasoning: reasoning.or_else(|| count("/reasoning_tokens")).unwrap_or(0).min(output),
        total_tokens: input_tokens.saturating_add(output),
        ..Usage::default()
    })
}
