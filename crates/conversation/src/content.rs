//! Blocks of a message: text, thinking, images, tool calls, files, and unknown kinds.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::tagged::tagged;
use crate::unknown_members::{Extra, keep_unknown_members};
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::JsonError;
use turnwheel_platform::ids::ArtifactId;

#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Text(Text),
    Thinking(Thinking),
    Image(Image),
    ToolCall(ToolCall),
    File(FileBlock),
    /// An unknown kind: stored unchanged, never sent to the model.
    Other(RawJson),
}

tagged!(Block by "type" {
    "text" => Text(Text),
    "thinking" => Thinking(Thinking),
    "image" => Image(Image),
    "toolCall" => ToolCall(ToolCall),
    "file" => File(FileBlock),
});

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Text {
    pub text: String,
    /// Opaque replay data of the provider; Azure: the id of the message item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_signature: Option<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Thinking {
    pub thinking: String,
    /// Azure: the whole reasoning item as JSON, with `encrypted_content`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking_signature: Option<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Image {
    /// Base64, no `data:` prefix.
    pub data: String,
    pub mime_type: String,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// Media type of an image that models accept, detected by its first bytes.
pub fn detect_image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Media types of images that models accept.
pub const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

impl Image {
    /// Why no model accepts the media type.
    pub fn type_error(&self) -> Option<&'static str> {
        let is_known = IMAGE_TYPES.contains(&self.mime_type.as_str());
        (!is_known)
            .then_some("an image's `mimeType` is image/png, image/jpeg, image/gif or image/webp")
    }

    /// Why no model accepts the data.
    pub fn data_error(&self) -> Option<&'static str> {
        match STANDARD.decode(&self.data).as_deref().map(detect_image_type) {
            Err(_) => Some("an image's `data` is base64 without a data: prefix"),
            Ok(None) => Some("the bytes of `data` are no PNG, JPEG, GIF or WebP picture"),
            Ok(Some(_)) => None,
        }
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ToolCall {
    /// The provider's id; Azure: `call_id|item id`. Models repeat them, so they are never a key.
    pub id: String,
    /// The tool's own name, not its name in the model request.
    pub name: String,
    /// As the model wrote them: an object, unless the model made an error.
    pub arguments: RawJson,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought_signature: Option<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// Reference to a file of the conversation.
#[serde_with::skip_serializing_none]
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct FileBlock {
    pub artifact_id: ArtifactId,
    pub path: Option<String>,
    pub mime_type: Option<String>,
    pub size: Option<u64>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!(["type"] Text, Thinking, Image, ToolCall, FileBlock);

/// Hides content from `Debug`, so that it never reaches a log.
macro_rules! redacted {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(…)"))
            }
        }
    )*};
}
pub(super) use redacted;
redacted!(Text, Thinking, Image, ToolCall, FileBlock);

impl Block {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(Text { text: text.into(), text_signature: None, extra: Extra::new() })
    }
}

/// The text blocks of a list, joined by newlines. Other kinds are skipped.
pub fn joined_text(blocks: &[Block]) -> String {
    let texts: Vec<&str> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Text(text) => Some(text.text.as_str()),
            Block::Thinking(_)
            | Block::Image(_)
            | Block::ToolCall(_)
            | Block::File(_)
            | Block::Other(_) => None,
        })
        .collect();
    texts.join("\n")
}

/// A message's content: a plain string or a list of blocks. Serialisation keeps the form.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let raw = RawJson::deserialize(deserializer)?;
        match raw.text().trim_start().bytes().next() {
            Some(b'"') => raw.read().map(Self::Text).map_err(D::Error::custom),
            Some(b'[') => raw
                .read()
                .map(Self::Blocks)
                .map_err(|error| D::Error::custom(find_block_error(&raw, &error))),
            _ => Err(D::Error::custom("this must be a text or a list of blocks")),
        }
    }
}

/// Locates the first invalid block.
fn find_block_error(raw: &RawJson, error: &serde_json::Error) -> JsonError {
    let blocks: Vec<RawJson> = raw.read().unwrap_or_default();
    let first = blocks.iter().enumerate().find_map(|(position, block)| {
        Block::check(block)
            .err()
            .map(|mistake| mistake.with_parent_pointer(&format!("/{position}")))
    });
    first.unwrap_or_else(|| JsonError { pointer: String::new(), detail: error.to_string() })
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<Block>> for Content {
    fn from(blocks: Vec<Block>) -> Self {
        Self::Blocks(blocks)
    }
}

impl Content {
    pub fn joined_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Blocks(blocks) => joined_text(blocks),
        }
    }
}
