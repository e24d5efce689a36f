//! Serialised items of a request's input. Members keep the order of the fields; texts are borrowed
//! from the history.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use turnwheel_conversation::content::Image;

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InputItem<'a> {
    /// A reasoning item with its full content, because the service stores nothing.
    Reasoning {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        summary: Vec<Value>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<Value>,
        encrypted_content: String,
    },
    /// Output text of the model.
    Message {
        role: &'static str,
        content: [OutputText<'a>; 1],
        status: &'static str,
        id: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        phase: Option<String>,
    },
    FunctionCall {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        call_id: Cow<'a, str>,
        name: Cow<'a, str>,
        arguments: Cow<'a, str>,
    },
    FunctionCallOutput {
        call_id: Cow<'a, str>,
        output: Cow<'a, str>,
    },
    /// Reasoning that a Chat Completions endpoint requires; never in a request of the Responses API.
    ReasoningText {
        text: &'a str,
    },
    /// Instructions, or a user message.
    #[serde(untagged)]
    #[serde(rename = "told")]
    InputMessage {
        role: Role,
        content: MessageContent<'a>,
    },
    /// An item of the service, replayed unchanged.
    #[serde(untagged)]
    #[serde(rename = "carried")]
    ProviderItem(Map<String, Value>),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    Developer,
    User,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum MessageContent<'a> {
    Text(&'a str),
    Parts(Vec<ContentPart<'a>>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart<'a> {
    InputText { text: Cow<'a, str> },
    InputImage { detail: &'static str, image_url: DataUrl<'a> },
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "output_text")]
pub struct OutputText<'a> {
    pub text: &'a str,
    annotations: [(); 0],
}

/// A data URL, built during serialisation because images are large.
#[derive(Debug)]
pub struct DataUrl<'a>(&'a Image);

impl Serialize for DataUrl<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Image { mime_type, data, .. } = self.0;
        serializer.collect_str(&format_args!("data:{mime_type};base64,{data}"))
    }
}

impl<'a> InputItem<'a> {
    pub(crate) fn output_message(text: &'a str, id: Cow<'a, str>, phase: Option<String>) -> Self {
        let content = [OutputText { text, annotations: [] }];
        Self::Message { role: "assistant", content, status: "completed", id, phase }
    }

    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Reasoning { id, .. } => id.as_deref(),
            Self::Message { id, .. } => Some(id),
            Self::FunctionCall { id, .. } => *id,
            Self::FunctionCallOutput { .. }
            | Self::InputMessage { .. }
            | Self::ReasoningText { .. } => None,
            Self::ProviderItem(item) => item.get("id")?.as_str(),
        }
    }

    /// Removes the recorded id of a replayed item. Other items have generated ids.
    #[must_use]
    pub fn without_id(mut self) -> Self {
        match &mut self {
            Self::Reasoning { id, .. } => *id = None,
            Self::ProviderItem(item) => {
                item.shift_remove("id");
            }
            Self::Message { .. }
            | Self::FunctionCall { .. }
            | Self::FunctionCallOutput { .. }
            | Self::ReasoningText { .. }
            | Self::InputMessage { .. } => {}
        }
        self
    }

    /// Bytes of the item's long texts.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Reasoning { encrypted_content, .. } => encrypted_content.len(),
            Self::Message { content: [said], .. } => said.text.len(),
            Self::FunctionCall { arguments, .. } => arguments.len(),
            Self::FunctionCallOutput { output, .. } => output.len(),
            Self::InputMessage { content: MessageContent::Text(text), .. }
            | Self::ReasoningText { text } => text.len(),
            Self::InputMessage { content: MessageContent::Parts(parts), .. } => {
                parts.iter().map(ContentPart::text_bytes).sum()
            }
            Self::ProviderItem(_) => 0,
        }
    }
}

impl<'a> ContentPart<'a> {
    pub fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::InputText { text: text.into() }
    }

    pub fn image(image: &'a Image) -> Self {
        Self::InputImage { detail: "auto", image_url: DataUrl(image) }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::InputText { text } if text.is_empty())
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::InputText { text } => text.len(),
            Self::InputImage { image_url: DataUrl(image), .. } => image.data.len(),
        }
    }
}
