//! Queries: the read side of the API. Queries decide nothing, and include the queued inbox items.

pub mod approvals;
pub mod backlog;
pub mod budgets;
pub mod commands;
pub mod conversation;
pub mod conversation_list;
pub mod event_stream;
pub mod frame_document;
pub mod html_page;
pub mod inbox;
pub mod memory;
pub mod models;
pub mod plugins;
pub mod profile;
pub mod prompts;
pub mod protocol_events;
pub mod recall;
pub mod schedules;
pub mod session_export;
pub mod tree;
pub mod usage;
pub mod user_skills;
pub mod why;

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_conversation::head::{Head, State};
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::ids::ArtifactId;
use turnwheel_storage::artifacts::ArtifactMetadata;

/// Name of a state in JSON.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Running => "running",
        State::WaitingForApproval => "waiting_for_approval",
    }
}

/// `ETag` of a conversation. It changes with the members that clients may change, not with every
/// stored version.
pub fn conversation_etag(head: &Head) -> String {
    format!("\"{}-{}\"", head.incarnation, head.revision)
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactView {
    #[schema(value_type = String)]
    pub id: ArtifactId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub mime_type: String,
    pub size: u64,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

pub fn artifact_view(metadata: &ArtifactMetadata) -> ArtifactView {
    ArtifactView {
        id: metadata.id.clone(),
        name: metadata.name.clone(),
        mime_type: metadata.mime_type.clone(),
        size: metadata.size,
        created_at: metadata.created_at,
    }
}
