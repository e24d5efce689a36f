//! Command that applies a merge patch to settings, metadata and name. Changes that the model
//! receives become entries.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::agent::entry::{EntryBody, ModelChange, SessionInfo, ThinkingLevelChange};
use crate::agent::head::Head;
use crate::agent::raw::RawJson;
use crate::agent::settings::{MODEL, Settings};
use crate::agent::strict::{self, Mistake};
use crate::agent::workspace::is_deceptive;
use crate::ids::{CommitId, ConversationKey};
use crate::store::{ETag, Write};
use crate::turn::admission::conversation::{
    NAME_BYTES_MAX, agent_named, append_entry, metadata_faults, settings_faults,
};
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::write::{Written, head_document, receipt_document, write_surely};
use crate::turn::admission::{Answer, Fault, Refusal};
use crate::turn::views::conversation::conversation_view;
use crate::turn::views::{etag_of, load};
use crate::turn::{World, record};

/// Number of lost writes after which a patch gives up.
const TRIES_MAX: u32 = 10;

/// Applies an RFC 7396 merge patch to a conversation. Before each attempt `is_etag_accepted` checks
/// the conversation's `ETag`, so that no concurrent change is overwritten.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn patch_conversation(
    world: &World,
    key: &ConversationKey,
    patch: &Map<String, Value>,
    idempotency: &Idempotency,
    is_wanted: impl Fn(&str) -> bool + Send + Sync,
) -> Result<Answer, Refusal> {
    refuse_unknown(patch)?;
    let input_id = idempotency.input_id(key);
    let mut pause = std::time::Duration::from_millis(10);
    for _ in 0..TRIES_MAX {
        let (head, etag) = load::head(world, key).await?;
        if let Some(earlier) = earlier(world, key, input_id.as_str()).await? {
            let replayed = earlier.replay(idempotency)?;
            let body = match replayed.body {
                Some(body) => body,
                None => RawJson::of(&conversation_view(world, &head).await?),
            };
            return Ok(Answer { body: Some(body), ..replayed });
        }
        // A write by this version would drop the members that only a newer version supports.
        if head.min_reader > world.limits.reader {
            return Err(load::left_to_newer());
        }
        if !is_wanted(&etag_of(&head)) {
            return Err(Refusal::PreconditionFailed { etag: etag_of(&head) });
        }
        if let Some(answer) = attempt(world, (head, etag), patch, idempotency).await? {
            return Ok(answer);
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(Refusal::contended())
}

/// Tries the patch once. `None`: the write was lost, or won with a lost response; the receipt shows
/// which.
async fn attempt(
    world: &World,
    (head, etag): (Head, ETag),
    patch: &Map<String, Value>,
    idempotency: &Idempotency,
) -> Result<Option<Answer>, Refusal> {
    let key = head.key();
    let now = world.clock.now();
    let mut changed = head.clone();
    let bodies = apply(world, &mut changed, patch)?;
    let entries: Vec<_> =
        bodies.into_iter().map(|body| append_entry(&mut changed, body, now)).collect();
    if !entries.is_empty()
        || (&changed.settings, &changed.metadata) != (&head.settings, &head.metadata)
    {
        changed.revision += 1;
        changed.updated_at = now;
    }
    changed.commit_id = CommitId::new(world.ids.fresh());
    let body = RawJson::of(&conversation_view(world, &changed).await?);
    let answer = Answer {
        status: 200,
        body: Some(body),
        location: None,
        etag: Some(etag_of(&changed)),
        is_replayed: false,
    };
    let mut writes = vec![Write::Replace(head_document(&changed)?, Some(etag))];
    writes.extend(entries.iter().map(|entry| Write::Create(record::entry_document(entry))));
    writes.push(Write::Create(receipt_document(idempotency, &key, &answer, now)));
    world.probe.reached("admission.patch").await;
    match write_surely(world, &key, writes).await? {
        Written::Won(_) => Ok(Some(answer)),
        Written::Lost => Ok(None),
    }
}

fn refuse_unknown(patch: &Map<String, Value>) -> Result<(), Refusal> {
    let faults: Vec<Fault> = patch
        .keys()
        .filter(|name| !matches!(name.as_str(), "settings" | "metadata" | "name"))
        .map(|name| {
            Fault::at(
                format!("/{name}"),
                format!("unknown field `{name}`: `settings`, `metadata` and `name` can be changed"),
            )
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(Refusal::Invalid(faults)) }
}

/// Applies the patch to the head and returns the entries to append.
fn apply(
    world: &World,
    head: &mut Head,
    patch: &Map<String, Value>,
) -> Result<Vec<EntryBody>, Refusal> {
    let mut bodies = Vec::new();
    if let Some(settings) = patch.get("settings") {
        bodies.extend(apply_settings(world, head, settings)?);
    }
    if let Some(metadata) = patch.get("metadata") {
        head.metadata = merged_metadata(&head.metadata, metadata)?;
    }
    if let Some(name) = patch.get("name") {
        let name = new_name(name)?;
        if name != head.name {
            head.name.clone_from(&name);
            bodies.push(EntryBody::SessionInfo(SessionInfo { name }));
        }
    }
    Ok(bodies)
}

/// Parses and trims a name. `None` removes the name.
fn new_name(given: &Value) -> Result<Option<String>, Refusal> {
    let name = match given {
        Value::Null => return Ok(None),
        Value::String(name) => name.trim(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            return Err(Refusal::invalid("/name", "`name` is a text, or null to remove it"));
        }
    };
    if name.len() > NAME_BYTES_MAX {
        let detail =
            format!("`name` has {} bytes: at most {NAME_BYTES_MAX} are allowed", name.len());
        return Err(Refusal::invalid("/name", detail));
    }
    if name.chars().any(|letter| letter.is_control() || is_deceptive(letter)) {
        let detail = "`name` is one line without control characters and marks that change the writing direction";
        return Err(Refusal::invalid("/name", detail));
    }
    Ok(Some(name.to_owned()).filter(|name| !name.is_empty()))
}

fn apply_settings(
    world: &World,
    head: &mut Head,
    patch: &Value,
) -> Result<Vec<EntryBody>, Refusal> {
    if !matches!(patch, Value::Null | Value::Object(_)) {
        return Err(Refusal::invalid("/settings", "`settings` is an object"));
    }
    let mut merged = serde_json::to_value(&head.settings).unwrap_or_default();
    merge(&mut merged, patch);
    let settings: Settings = if merged.is_null() {
        Settings::default()
    } else {
        strict::from(merged).map_err(|mistake: Mistake| {
            let mistake = mistake.below("/settings");
            Refusal::invalid(mistake.pointer, mistake.detail)
        })?
    };
    let agent = agent_named(world, Some(&head.agent))?;
    let faults = settings_faults(world, &agent, &settings);
    if !faults.is_empty() {
        return Err(Refusal::Invalid(faults));
    }
    let before = head.settings.over(&agent.settings);
    let after = settings.over(&agent.settings);
    let mut bodies = Vec::new();
    let model = after.model.as_deref().unwrap_or(MODEL);
    if before.model.as_deref().unwrap_or(MODEL) != model {
        let record =
            world.model.record(model).map_err(|why| Refusal::invalid("/settings/model", why))?;
        bodies.push(EntryBody::ModelChange(ModelChange {
            provider: record.provider,
            model_id: record.id,
        }));
    }
    if before.thinking_level.unwrap_or_default() != after.thinking_level.unwrap_or_default() {
        let level =
            serde_json::to_value(after.thinking_level.unwrap_or_default()).unwrap_or_default();
        bodies.push(EntryBody::ThinkingLevelChange(ThinkingLevelChange {
            thinking_level: level.as_str().unwrap_or_default().to_owned(),
        }));
    }
    head.settings = settings;
    Ok(bodies)
}

fn merged_metadata(
    metadata: &BTreeMap<String, String>,
    patch: &Value,
) -> Result<BTreeMap<String, String>, Refusal> {
    let members = match patch {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Object(members) => members,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(Refusal::invalid("/metadata", "`metadata` is an object of texts"));
        }
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
                return Err(Refusal::invalid(
                    pointer,
                    "a member of `metadata` is a text, or null to remove it",
                ));
            }
        }
    }
    let faults = metadata_faults(&merged);
    if faults.is_empty() { Ok(merged) } else { Err(Refusal::Invalid(faults)) }
}

/// Applies a merge patch as RFC 7396 defines it.
fn merge(target: &mut Value, patch: &Value) {
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
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_does_what_rfc_7396_shows() {
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
            merge(&mut merged, &patch);
            assert_eq!(merged, expected);
        }
    }
}
