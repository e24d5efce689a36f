//! Queries: the read side of the API. Queries decide nothing, and include the queued inbox items.

pub(crate) mod approvals;
pub(crate) mod backlog;
pub(crate) mod commands;
pub(crate) mod conversation;
pub(crate) mod conversation_list;
pub(crate) mod event_stream;
pub(crate) mod inbox;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod models;
pub(crate) mod plugins;
pub(crate) mod profile;
pub(crate) mod prompts;
pub(crate) mod protocol_events;
pub(crate) mod recall;
pub(crate) mod schedules;
pub(crate) mod session_export;
pub(crate) mod tree;
pub(crate) mod usage;
pub(crate) mod user_skills;
pub(crate) mod why;

use serde::Serialize;
use utoipa::ToSchema;

use crate::agent::head::{Head, State};
use crate::artifacts::ArtifactMetadata;
use crate::clock::{Timestamp, iso};
use crate::ids::ArtifactId;

/// Name of a state in JSON.
pub(crate) fn state_name(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Running => "running",
        State::WaitingForApproval => "waiting_for_approval",
    }
}

/// `ETag` of a conversation. It changes with the members that clients may change, not with every
/// stored version.
pub(crate) fn conversation_etag(head: &Head) -> String {
    format!("\"{}-{}\"", head.incarnation, head.revision)
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ArtifactView {
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

pub(crate) fn artifact_view(metadata: &ArtifactMetadata) -> ArtifactView {
    ArtifactView {
        id: metadata.id.clone(),
        name: metadata.name.clone(),
        mime_type: metadata.mime_type.clone(),
        size: metadata.size,
        created_at: metadata.created_at,
    }
}
