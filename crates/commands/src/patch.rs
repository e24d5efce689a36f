//! Command that applies a merge patch to settings, metadata and name. Changes that the model
//! receives become entries.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::conversation::{append_entry, find_agent, validate_metadata, validate_settings};
use crate::head_change::{new_event, publish_events};
use crate::pipeline::{CommandContext, Signal};
use crate::request_hooks::RequestHooks;
use turnwheel_conversation::entry::{EntryBody, ModelChange, SessionInfo, ThinkingLevelChange};
use turnwheel_conversation::event::{EventBody, SessionInfoChanged};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::name;
use turnwheel_conversation::path_settings::{PathSettings, active_tools_entry};
use turnwheel_conversation::settings::{DEFAULT_MODEL, Settings, model_id_error};
use turnwheel_extensions::Observation;
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::{self, JsonError};
use turnwheel_platform::ids::ConversationKey;
use turnwheel_queries::conversation::conversation_view;
use turnwheel_queries::conversation_etag;
use turnwheel_record::certain_write::{receipt_document, write_head};
use turnwheel_record::contract::{CommandError, CommandResponse, FieldError};
use turnwheel_record::head_commit::{HeadCommit, stamp_head};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};

/// Number of lost writes after which a patch gives up.
const ATTEMPTS_MAX: usize = 10;
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Applies an RFC 7396 merge patch to a conversation. Before each attempt `is_etag_accepted` checks
/// the conversation's `ETag`, so that no concurrent change is overwritten.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn patch_conversation(
    services: &Services,
    key: &ConversationKey,
    patch: &Map<String, Value>,
    idempotency: &Idempotency,
    is_etag_accepted: impl Fn(&str) -> bool + Send + Sync,
) -> Result<CommandResponse, CommandError> {
    reject_unknown_members(patch)?;
    let context = CommandContext { services, key, idempotency, signal: Signal::None };
    let attempt = || try_patch(context, patch, &is_etag_accepted);
    compare_and_set(back_off(ATTEMPTS_MAX, RETRY_DELAY), attempt).await
}

/// Tries the patch once. `None`: the write was lost, or won with a lost response; the receipt shows
/// which.
async fn try_patch(
    context: CommandContext<'_>,
    patch: &Map<String, Value>,
    is_etag_accepted: &(impl Fn(&str) -> bool + Send + Sync),
) -> Result<Option<CommandResponse>, CommandError> {
    let CommandContext { services, key, idempotency, .. } = context;
    let (head, etag) = load::head(services, key).await?;
    if let Some(replayed) = context.find_response().await? {
        let body = match replayed.body {
            Some(body) => body,
            None => RawJson::from_value(&conversation_view(services, &head).await?),
        };
        return Ok(Some(CommandResponse { body: Some(body), ..replayed }));
    }
    // A write by this version would drop the members that only a newer version supports.
    if head.min_reader > services.limits.reader_version {
        return Err(load::newer_version_error());
    }
    if !is_etag_accepted(&conversation_etag(&head)) {
        return Err(CommandError::PreconditionFailed { etag: conversation_etag(&head) });
    }
    let now = services.clock.now();
    let mut changed = head.clone();
    let bodies = apply_patch(services, &mut changed, patch)?;
    let entries: Vec<_> =
        bodies.into_iter().map(|body| append_entry(&mut changed, body, now)).collect();
    let has_news = !entries.is_empty()
        || (&changed.settings, &changed.metadata) != (&head.settings, &head.metadata);
    let renaming = (changed.name != head.name).then(|| {
        let info = SessionInfoChanged { name: changed.name.clone() };
        new_event(&mut changed, EventBody::SessionInfoChanged(info), now)
    });
    stamp_head(services, &mut changed, has_news.then_some(now));
    let response = CommandResponse::new(200, &conversation_view(services, &changed).await?)
        .with_etag(conversation_etag(&changed));
    let commit = HeadCommit::replace(&changed, etag)
        .with_entries(&entries)
        .with_events(renaming.as_slice())
        .with_created([receipt_document(idempotency, key, &response, now)]);
    services.fail_points.hit("admission.patch").await;
    if write_head(services, key, commit).await?.is_none() {
        return Ok(None);
    }
    if renaming.is_some() {
        publish_events(services, &changed);
    }
    if let Some(change) = entries.iter().find_map(|entry| entry.body.model_change()) {
        let input_id = context.input_id();
        let fact = Observation::ModelSelect(change.clone());
        RequestHooks::new(services, &changed, &input_id).observe(&fact).await;
    }
    Ok(Some(response))
}

fn reject_unknown_members(patch: &Map<String, Value>) -> Result<(), CommandError> {
    let errors: Vec<FieldError> = patch
        .keys()
        .filter(|name| !matches!(name.as_str(), "settings" | "metadata" | "name"))
        .map(|name| {
            FieldError::new(
                format!("/{name}"),
                format!("unknown field `{name}`: `settings`, `metadata` and `name` can be changed"),
            )
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(CommandError::Invalid(errors)) }
}

/// Applies the patch to the head and returns the entries to append.
fn apply_patch(
    services: &Services,
    head: &mut Head,
    patch: &Map<String, Value>,
) -> Result<Vec<EntryBody>, CommandError> {
    let mut bodies = Vec::new();
    for (name, members) in [("settings", "every setting"), ("metadata", "all metadata")] {
        if patch.get(name).is_some_and(Value::is_null) {
            let detail = format!(
                "`{name}` is null, which would remove {members}: leave it out to keep them, or set single members of it to null to remove them"
            );
            return Err(CommandError::invalid(format!("/{name}"), detail));
        }
    }
    if let Some(settings) = patch.get("settings") {
        bodies.extend(apply_settings(services, head, settings)?);
    }
    if let Some(metadata) = patch.get("metadata") {
        head.metadata = merge_metadata(&head.metadata, metadata)?;
    }
    if let Some(name) = patch.get("name") {
        let name = parse_name(name)?;
        if name != head.name {
            head.name.clone_from(&name);
            bodies.push(EntryBody::SessionInfo(SessionInfo::new(name)));
        }
    }
    Ok(bodies)
}

/// Parses and trims a name. `None` removes the name.
fn parse_name(given: &Value) -> Result<Option<String>, CommandError> {
    match given {
        Value::Null => Ok(None),
        Value::String(text) => name::parse(text)
            .map_err(|reason| CommandError::invalid("/name", format!("`name` {reason}"))),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(CommandError::invalid("/name", "`name` is a text, or null to remove it"))
        }
    }
}

fn apply_settings(
    services: &Services,
    head: &mut Head,
    patch: &Value,
) -> Result<Vec<EntryBody>, CommandError> {
    if !patch.is_object() {
        return Err(CommandError::invalid("/settings", "`settings` is an object"));
    }
    let mut merged = serde_json::to_value(&head.settings).unwrap_or_default();
    merge_json(&mut merged, patch);
    let mut settings: Settings =
        strict::from_deserializer(merged).map_err(|mistake: JsonError| {
            let mistake = mistake.with_parent_pointer("/settings");
            CommandError::invalid(mistake.pointer, mistake.detail)
        })?;
    // A name that an earlier version imported must not refuse another change.
    if settings.model == head.settings.model {
        settings.model = settings.model.filter(|model| model_id_error(model).is_none());
    }
    let agent = find_agent(services, Some(&head.agent))?;
    let errors = validate_settings(services, &agent, &settings);
    if !errors.is_empty() {
        return Err(CommandError::Invalid(errors));
    }
    let before = head.settings.with_fallback(&agent.settings);
    let after = settings.with_fallback(&agent.settings);
    let mut bodies = Vec::new();
    let model = after.model.as_deref().unwrap_or(DEFAULT_MODEL);
    if before.model.as_deref().unwrap_or(DEFAULT_MODEL) != model {
        let record = services
            .model
            .record(model)
            .map_err(|why| CommandError::invalid("/settings/model", why))?;
        bodies.push(EntryBody::ModelChange(ModelChange::new(record.provider, record.id)));
    }
    if before.thinking_level.unwrap_or_default() != after.thinking_level.unwrap_or_default() {
        let level = after.thinking_level.unwrap_or_default();
        bodies.push(EntryBody::ThinkingLevelChange(ThinkingLevelChange::new(level)));
    }
    if settings.active_tools != head.settings.active_tools {
        bodies.push(active_tools_entry(settings.active_tools.as_deref()));
    }
    if PathSettings::of(&settings) != PathSettings::of(&head.settings) {
        head.record_base_settings();
    }
    head.settings = settings;
    Ok(bodies)
}

fn merge_metadata(
    metadata: &BTreeMap<String, String>,
    patch: &Value,
) -> Result<BTreeMap<String, String>, CommandError> {
    let Value::Object(members) = patch else {
        return Err(CommandError::invalid("/metadata", "`metadata` is an object of texts"));
    };
    let mut merged = metadata.clone();
    for (name, value) in members {
        match value {
            Value::Null => {
                merged.remove(name);
            }
            Value::String(text) => {
                merged.insert(name.clone(), text.clone());
            }
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                let pointer = format!("/metadata/{}", strict::pointer_token(name));
                return Err(CommandError::invalid(
                    pointer,
                    "a member of `metadata` is a text, or null to remove it",
                ));
            }
        }
    }
    let errors = validate_metadata(&merged);
    if errors.is_empty() { Ok(merged) } else { Err(CommandError::Invalid(errors)) }
}

/// Applies a merge patch as RFC 7396 defines it.
fn merge_json(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else { return };
    for (name, value) in members {
        if value.is_null() {
            object.remove(name);
        } else {
            merge_json(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::patch::*;

    #[test]
    fn merge_patch_follows_rfc_7396() {
        for (target, patch, expected) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ] {
            let mut merged = target;
            merge_json(&mut merged, &patch);
            assert_eq!(merged, expected);
        }
    }
}
