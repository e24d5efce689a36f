//! Command that labels an entry.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::head_change::HeadChange;
use crate::pipeline::{CommandContext, Signal};
use turnwheel_conversation::entry::{EntryBody, Label};
use turnwheel_platform::ids::{ConversationKey, EntryId};
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};

/// Number of lost writes after which the command gives up.
const ATTEMPTS_MAX: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelRequest {
    /// At most 64 characters. An empty text removes the label.
    pub label: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelView {
    #[schema(value_type = String)]
    pub entry_id: EntryId,
    /// Null: the entry has no label.
    #[schema(required = true)]
    pub label: Option<String>,
    /// The leaf after the request: the entry that records the label.
    #[schema(value_type = Option<String>, required = true)]
    pub leaf_id: Option<EntryId>,
}

/// Labels an entry, also while a prompt runs.
///
/// # Errors
/// Returns [`CommandError::EntryNotFound`] for an unknown entry, and otherwise the [`CommandError`]
/// to report to the client. After `Unavailable`, repeat the request with the same key.
pub async fn set_label(
    services: &Services,
    key: &ConversationKey,
    entry_id: &str,
    request: &LabelRequest,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let context = CommandContext { services, key, idempotency, signal: Signal::None };
    let attempt = || try_set_label(context, entry_id, &request.label);
    compare_and_set(back_off(ATTEMPTS_MAX, RETRY_DELAY), attempt).await
}

/// `None`: the write was lost, or won with a lost response; the receipt shows which.
async fn try_set_label(
    context: CommandContext<'_>,
    entry_id: &str,
    label: &str,
) -> Result<Option<CommandResponse>, CommandError> {
    let CommandContext { services, key, .. } = context;
    let (head, etag) = load::head(services, key).await?;
    if let Some(replayed) = context.find_response().await? {
        return Ok(Some(replayed));
    }
    let entries = load::all_entries(services, &head).await?;
    let entry_id = EntryId::new(entry_id);
    if !entries.iter().any(|entry| entry.base.entry_id == entry_id) {
        return Err(CommandError::EntryNotFound(entry_id.to_string()));
    }
    let mut change = HeadChange::new(services, head, etag)?;
    let before = change.head.labels.get(entry_id.as_str()).cloned();
    let label = change.head.set_label(&entry_id, Some(label));
    let label = label.map_err(|why| CommandError::invalid("/label", why))?;
    if before != label {
        change.append(EntryBody::Label(Label::new(entry_id.clone(), label.clone())));
    }
    let view = LabelView { entry_id, label, leaf_id: change.leaf_id().cloned() };
    let response = CommandResponse::new(200, &view);
    Ok(change.commit(context, &response).await?.then_some(response))
}
