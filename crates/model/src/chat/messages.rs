//! Messages of a Chat Completions request, made of the items that the Responses API would get: the
//! same texts in the same order. Texts are borrowed from the history.

use std::borrow::Cow;

use serde::Serialize;

use crate::responses::item::{ContentPart, DataUrl, InputItem, MessageContent, Role};

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(crate) enum ChatMessage<'a> {
    System { content: &'a str },
    User { content: UserContent<'a> },
    Assistant(AssistantContent<'a>),
    Tool { tool_call_id: Cow<'a, str>, content: Cow<'a, str> },
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum UserContent<'a> {
    /// Texts without an image. Not every endpoint accepts them as parts.
    Text(Cow<'a, str>),
    Parts(Vec<ChatPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ChatPart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
}

#[derive(Serialize)]
pub(crate) struct ImageUrl<'a> {
    url: DataUrl<'a>,
    detail: &'static str,
}

/// One response of the model, or several in a row: many endpoints require alternating roles.
#[derive(Default, Serialize)]
pub(crate) struct AssistantContent<'a> {
    /// `null` for a response of calls only.
    content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ChatCall<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct ChatCall<'a> {
    id: Cow<'a, str>,
    function: ChatFunction<'a>,
}

#[derive(Serialize)]
struct ChatFunction<'a> {
    name: Cow<'a, str>,
    arguments: Cow<'a, str>,
}

/// Converts the items. `requires_reasoning`: each response has a member `reasoning_content`.
pub(crate) fn to_messages(
    items: Vec<InputItem<'_>>,
    requires_reasoning: bool,
) -> Vec<ChatMessage<'_>> {
    let mut builder = MessageBuilder {
        messages: Vec::with_capacity(items.len()),
        response: AssistantContent::default(),
        requires_reasoning,
    };
    for item in items {
        builder.add(item);
    }
    builder.close_response();
    builder.messages
}

struct MessageBuilder<'a> {
    messages: Vec<ChatMessage<'a>>,
    /// The response whose items are being added; empty after another kind of message.
    response: AssistantContent<'a>,
    requires_reasoning: bool,
}

impl<'a> MessageBuilder<'a> {
    fn add(&mut self, item: InputItem<'a>) {
        match item {
            InputItem::InputMessage { role: Role::User, content } => {
                self.push(ChatMessage::User { content: user_content(content) });
            }
            InputItem::InputMessage { content: MessageContent::Text(content), .. } => {
                self.push(ChatMessage::System { content });
            }
            InputItem::FunctionCallOutput { call_id: tool_call_id, output: content } => {
                self.push(ChatMessage::Tool { tool_call_id, content });
            }
            InputItem::Message { content: [said], .. } => {
                append_text(&mut self.response.content, said.text);
            }
            InputItem::ReasoningText { text } => {
                append_text(&mut self.response.reasoning_content, text);
            }
            InputItem::FunctionCall { call_id: id, name, arguments, .. } => {
                let function = ChatFunction { name, arguments };
                self.response.tool_calls.push(ChatCall { id, function });
            }
            // Items of the Responses API, and instructions, which have no parts.
            InputItem::Reasoning { .. }
            | InputItem::ProviderItem(_)
            | InputItem::InputMessage { content: MessageContent::Parts(_), .. } => {}
        }
    }

    fn push(&mut self, message: ChatMessage<'a>) {
        self.close_response();
        self.messages.push(message);
    }

    /// Adds the response. Without text and calls it is omitted: endpoints reject reasoning alone.
    fn close_response(&mut self) {
        let mut response = std::mem::take(&mut self.response);
        if response.content.is_none() && response.tool_calls.is_empty() {
            return;
        }
        if self.requires_reasoning {
            response.reasoning_content.get_or_insert_default();
        }
        self.messages.push(ChatMessage::Assistant(response));
    }
}

/// Appends a text on a new line. The first one is borrowed.
fn append_text<'a>(place: &mut Option<Cow<'a, str>>, text: &'a str) {
    match place {
        None => *place = Some(Cow::Borrowed(text)),
        Some(before) => {
            let before = before.to_mut();
            before.push('\n');
            before.push_str(text);
        }
    }
}

fn user_content(content: MessageContent<'_>) -> UserContent<'_> {
    let parts = match content {
        MessageContent::Text(text) => return UserContent::Text(Cow::Borrowed(text)),
        MessageContent::Parts(parts) => parts,
    };
    let has_image = parts.iter().any(|part| matches!(part, ContentPart::InputImage { .. }));
    let mut parts: Vec<ChatPart<'_>> = parts.into_iter().map(ChatPart::from).collect();
    if has_image {
        return UserContent::Parts(parts);
    }
    let texts = parts.iter_mut().filter_map(|part| match part {
        ChatPart::Text { text } => Some(std::mem::take(text)),
        ChatPart::ImageUrl { .. } => None,
    });
    let joined = texts.reduce(|before, text| Cow::Owned(format!("{before}\n{text}")));
    UserContent::Text(joined.unwrap_or_default())
}

impl<'a> From<ContentPart<'a>> for ChatPart<'a> {
    fn from(part: ContentPart<'a>) -> Self {
        match part {
            ContentPart::InputText { text } => Self::Text { text },
            ContentPart::InputImage { detail, image_url } => {
                Self::ImageUrl { image_url: ImageUrl { url: image_url, detail } }
            }
        }
    }
}
