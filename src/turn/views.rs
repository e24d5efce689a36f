//! Views: what clients are shown of a conversation. They read, decide nothing, and see what waits in the inbox too.

pub mod approvals;
pub mod conversation;
pub mod inbox;
pub mod load;
pub mod prompts;
pub mod schedules;
pub mod usage;
pub mod why;
pub mod work;

use serde::Serialize;
use utoipa::ToSchema;

use crate::agent::head::{Head, State};
use crate::artifacts::ArtifactFacts;
use crate::clock::{Timestamp, iso};
use crate::ids::ArtifactId;

/// As JSON has it.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Running => "running",
        State::WaitingForApproval => "waiting_for_approval",
    }
}

/// The conversation's `ETag`: changes with what clients may change, not with the store's versions.
pub fn etag_of(head: &Head) -> String {
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

pub fn artifact_view(facts: &ArtifactFacts) -> ArtifactView {
    ArtifactView {
        id: facts.id.clone(),
        name: facts.name.clone(),
        mime_type: facts.mime_type.clone(),
        size: facts.size,
        created_at: facts.created_at,
    }
}
