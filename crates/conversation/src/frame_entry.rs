//! The frame of a model call: the system prompt and the tools that the model receives beside the
//! messages. An entry records the first frame of a conversation and each one that differs from the
//! previous one.

use serde::{Deserialize, Serialize};

use crate::entry::session::BASE_MEMBERS;
use crate::unknown_members::{Extra, keep_unknown_members};

/// A frame, in force from the next model response on. It is never sent to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct FrameEntry {
    /// SHA-256 of the frame. Entries of earlier versions have 16 digits of another one.
    pub hash: String,
    /// SHA-256 of the frame document, which has the texts, definitions and settings of the call.
    /// Absent in entries of earlier versions, and if the artifact store did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// Revision of the agent file.
    pub revision: String,
    /// `seq` of the entry that holds the system prompt of the agent run. Absent: the agent's own
    /// instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt_seq: Option<u64>,
    /// The offered tools, in the order in which the model receives them.
    pub tools: Vec<OfferedTool>,
    /// Texts of plugins, in the order in which the model receives them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contributions: Vec<Contribution>,
    /// True if the request has no response schema, because the model service refused that of the
    /// agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_out_response_schema: bool,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!(BASE_MEMBERS; FrameEntry);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedTool {
    pub name: String,
    pub revision: String,
}

/// A text of a plugin or of the runtime in the system prompt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Contribution {
    /// Name of the plugin, `mcp` for a note about missing tools, or `protocol` for a text of the loop.
    pub by: String,
    pub text: String,
    /// True if the text follows the security section.
    #[serde(default, rename = "volatile", skip_serializing_if = "std::ops::Not::not")]
    pub is_volatile: bool,
}

impl std::fmt::Debug for Contribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Contribution({}, {} bytes)", self.by, self.text.len())
    }
}

/// The frame in force, in the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CurrentFrame {
    pub hash: String,
    /// `seq` of its entry.
    pub seq: u64,
    /// Tokens of the frame.
    pub tokens: u64,
    /// `seq` of the entry that holds its system prompt. Absent: the agent's own instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt_seq: Option<u64>,
    /// SHA-256 of its frame document. Absent: none is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// True if the frame has no text and no tool of a plugin, an extension or an MCP server. Its tokens
    /// are not counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_own: bool,
}

impl CurrentFrame {
    /// True for the frame with these hashes.
    pub fn is_same(&self, hash: &str, document: Option<&str>) -> bool {
        self.hash == hash && self.document.as_deref() == document
    }
}

/// A frame of a model call that differs from the one in the head.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameInput {
    pub entry: FrameEntry,
    pub tokens: u64,
    /// True for the frame of the agent alone.
    pub is_own: bool,
    /// Names of tools of MCP servers whose definitions differ from those in the previous frame.
    pub changed_tools: Vec<String>,
}
