//! Command that creates a schedule. The schedule is validated, counted against the limit, and
//! stored with its idempotency receipt in one batch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::conversation::{find_agent, validate_metadata};
use crate::schedules::{
    ID_LENGTH_MAX, INPUT_BYTES_MAX, RECEIPT_PREFIX, SCHEDULES_MAX, enqueue_if_near, find_document,
    list_user_schedules, owner_prefix, removal_writes, schedule_document, schedule_document_id,
    scope_partition,
};
use turnwheel_conversation::content::{Block, Content};
use turnwheel_conversation::inbox::IdempotencyRecord;
use turnwheel_conversation::schedule::rule::{ScheduleRule, Timing};
use turnwheel_conversation::schedule::{Schedule, ScheduleMode, ScheduleTarget};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ScheduleId, is_plain_text};
use turnwheel_queries::schedules::ScheduleView;
use turnwheel_record::certain_write::{BatchOutcome, write_until_certain_in};
use turnwheel_record::contract::{
    CommandError, CommandResponse, FieldError, Owner, STEER_WITHOUT_INPUT,
};
use turnwheel_record::documents;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{Document, DocumentKind, Freshness, Write};

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewSchedule {
    /// 1 to 64 of `A-Z a-z 0-9 _ . -`; if absent, derived from owner and idempotency key.
    pub id: Option<String>,
    /// Name of an agent; if absent, the agent of the conversation, else the default agent.
    pub agent: Option<String>,
    /// Conversation of the prompts; absent: each firing creates a conversation.
    pub conversation_id: Option<String>,
    /// Text or text blocks, at most 32 KB; absent: the prompt starts without a user message.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Content>,
    /// The first firing: ISO 8601 with an offset, a local time with a `timeZone`, or a duration from
    /// now (`PT10M`).
    pub at: Option<String>,
    /// An ISO 8601 duration (`P1D`, `PT15M`) or five cron fields (`0 9 * * MON-FRI`), at least a
    /// minute; absent: it fires once.
    pub every: Option<String>,
    /// An IANA name such as `Europe/Berlin`; absent: UTC.
    pub time_zone: Option<String>,
    /// The last time at which it may fire, in the form of `at`.
    pub until: Option<String>,
    /// Mode while the conversation is busy; if absent, `followUp`.
    pub mode: Option<ScheduleMode>,
    /// Metadata of the conversations that it creates.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Receipt of an idempotency key, stored as long as its schedule.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyReceipt {
    schedule: ScheduleId,
    admission: IdempotencyRecord,
}

/// Creates a schedule. `made_in` is the conversation whose agent requests it.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn accept_schedule(
    services: &Services,
    owner: &Owner,
    request: NewSchedule,
    idempotency: &Idempotency,
    made_in: Option<ConversationId>,
) -> Result<CommandResponse, CommandError> {
    let key = idempotency.conversation_id(owner);
    let digest = key.strip_prefix("c_").unwrap_or(&key);
    let receipt_id = format!("{}-{digest}", owner_prefix(RECEIPT_PREFIX, &owner.user));
    if let Some(response) = replay_receipt(services, owner, &receipt_id, idempotency).await? {
        return Ok(response);
    }
    let id = request.id.clone().unwrap_or_else(|| format!("s_{digest}"));
    let mut schedule = build_schedule(services, owner, request, ScheduleId::new(id)).await?;
    schedule.created_in = made_in;
    let mut writes = make_room(services, owner).await?;
    let response = created_response(&schedule);
    if idempotency.is_repeatable {
        writes.push(Write::Create(key_receipt_document(
            &receipt_id,
            &schedule,
            idempotency,
            &response,
        )));
        schedule.receipt = Some(receipt_id.clone());
    }
    writes.push(Write::Create(schedule_document(&schedule)));
    services.fail_points.hit("schedule.create").await;
    if let BatchOutcome::Lost =
        write_until_certain_in(services, &scope_partition(&owner.tenant), writes).await?
    {
        let found = find_document(
            services,
            &owner.tenant,
            &schedule_document_id(&owner.user, &schedule.id),
        )
        .await?;
        let is_own_write =
            found.as_ref().is_some_and(|(found, _)| found.incarnation == schedule.incarnation);
        if !is_own_write {
            if let Some(response) =
                replay_receipt(services, owner, &receipt_id, idempotency).await?
            {
                return Ok(response);
            }
            return Err(match found {
                None => CommandError::contended(),
                Some(_) => id_taken_error(&schedule.id),
            });
        }
    }
    enqueue_if_near(services, &owner.tenant, &schedule).await;
    Ok(response)
}

fn id_taken_error(id: &ScheduleId) -> CommandError {
    let detail = format!("schedule `{id}` exists: use another id, or leave it out");
    CommandError::Conflict { detail, retry_after: None }
}

fn created_response(schedule: &Schedule) -> CommandResponse {
    CommandResponse::new(201, &ScheduleView::from_schedule(schedule))
        .with_location(format!("schedules/{}", schedule.id))
}

fn key_receipt_document(
    id: &str,
    schedule: &Schedule,
    idempotency: &Idempotency,
    response: &CommandResponse,
) -> Document {
    let receipt =
        KeyReceipt { schedule: schedule.id.clone(), admission: idempotency.to_record(response) };
    Document::new(id, DocumentKind::Scope, &receipt, None)
}

/// Returns the first response for that key, if there is one.
async fn replay_receipt(
    services: &Services,
    owner: &Owner,
    receipt_id: &str,
    idempotency: &Idempotency,
) -> Result<Option<CommandResponse>, CommandError> {
    if !idempotency.is_repeatable {
        return Ok(None);
    }
    let found =
        services.store.read(&scope_partition(&owner.tenant), receipt_id, Freshness::Latest).await?;
    let Some(stored) = found else { return Ok(None) };
    let receipt: KeyReceipt = documents::read(&stored.document)?;
    idempotency.replay(&receipt.admission).map(Some)
}

/// Writes that make room for another schedule. At the limit, they remove the oldest ended schedule.
async fn make_room(services: &Services, owner: &Owner) -> Result<Vec<Write>, CommandError> {
    let schedules = list_user_schedules(services, owner).await?;
    if schedules.len() < SCHEDULES_MAX {
        return Ok(Vec::new());
    }
    let ended = schedules.iter().rev().find(|schedule| schedule.next_at.is_none());
    ended.map(|ended| removal_writes(ended, None)).ok_or_else(|| CommandError::Conflict {
        detail: format!("the user already has {SCHEDULES_MAX} active schedules: cancel one first"),
        retry_after: None,
    })
}

async fn build_schedule(
    services: &Services,
    owner: &Owner,
    request: NewSchedule,
    id: ScheduleId,
) -> Result<Schedule, CommandError> {
    let now = services.clock.now();
    let mut errors = Vec::new();
    if id.as_str().len() > ID_LENGTH_MAX || !is_plain_text(id.as_str()) {
        errors.push(FieldError::new(
            "/id",
            "a schedule's id is 1 to 64 of the characters A-Z a-z 0-9 _ . - and not only dots",
        ));
    }
    errors.extend(request.input.as_ref().and_then(find_input_error));
    if request.mode == Some(ScheduleMode::Steer) && request.input.is_none() {
        errors.push(FieldError::new("/input", STEER_WITHOUT_INPUT));
    }
    let metadata = request.metadata.unwrap_or_default();
    errors.extend(validate_metadata(&metadata));
    let timing = Timing {
        at: request.at,
        every: request.every,
        time_zone: request.time_zone,
        until: request.until,
    };
    let next_at = match first_firing(&timing, now) {
        Ok(next_at) => Some(next_at),
        Err(mistakes) => {
            errors.extend(mistakes);
            None
        }
    };
    let (agent, conversation) =
        resolve_target(services, owner, request.agent, request.conversation_id, &mut errors)
            .await?;
    if !errors.is_empty() {
        return Err(CommandError::Invalid(errors));
    }
    Ok(Schedule {
        id,
        user: owner.user.clone(),
        incarnation: services.ids.new_id(),
        agent,
        conversation,
        created_in: None,
        input: request.input,
        mode: request.mode.unwrap_or_default(),
        metadata,
        timing,
        created_at: now,
        next_at,
        retry_at: None,
        last_firing: None,
        last_problem: None,
        receipt: None,
        extra: Extra::new(),
    })
}

/// Time of the first firing.
fn first_firing(timing: &Timing, now: Timestamp) -> Result<Timestamp, Vec<FieldError>> {
    let rule = ScheduleRule::parse(timing, now).map_err(|mistakes| {
        let errors = mistakes.into_iter();
        errors.map(|it| FieldError::new(format!("/{}", it.member), it.detail)).collect::<Vec<_>>()
    })?;
    rule.next_after(now).ok_or_else(|| {
        let (member, problem) = match (rule.is_recurring(), &timing.until) {
            (false, None) => ("/at", "`at` is past"),
            (_, Some(_)) => ("/until", "nothing fires up to `until`"),
            (true, None) => ("/every", "`every` never fires"),
        };
        vec![FieldError::new(member, format!("{problem}; it is now {}", rule.zone().format(now)))]
    })
}

fn find_input_error(input: &Content) -> Option<FieldError> {
    let is_text = match input {
        Content::Text(text) => !text.is_empty(),
        Content::Blocks(blocks) => {
            !blocks.is_empty() && blocks.iter().all(|block| matches!(block, Block::Text(_)))
        }
    };
    if !is_text {
        return Some(FieldError::new(
            "/input",
            "a schedule's input is text or text blocks; leave it out to begin without one",
        ));
    }
    (RawJson::from_value(input).text().len() > INPUT_BYTES_MAX)
        .then(|| FieldError::new("/input", "a schedule's input may be 32 KB long"))
}

/// Resolves the agent, and the conversation in its current incarnation.
async fn resolve_target(
    services: &Services,
    owner: &Owner,
    agent: Option<String>,
    conversation: Option<String>,
    errors: &mut Vec<FieldError>,
) -> Result<(String, Option<ScheduleTarget>), CommandError> {
    let Some(conversation) = conversation else {
        let found = find_agent(services, agent.as_deref());
        return match found {
            Ok(agent) => Ok((agent.name.clone(), None)),
            Err(CommandError::Invalid(unknown)) => {
                errors.extend(unknown);
                Ok((String::new(), None))
            }
            Err(refusal) => Err(refusal),
        };
    };
    let found = if is_plain_text(&conversation) {
        load::find_head(services, &owner.conversation_key(&conversation)).await?
    } else {
        None
    };
    let Some((head, _)) = found else {
        errors.push(FieldError::new(
            "/conversationId",
            format!("there is no conversation `{conversation}`: create it first, or leave it out"),
        ));
        return Ok((String::new(), None));
    };
    if agent.is_some_and(|agent| agent != head.agent) {
        errors.push(FieldError::new(
            "/agent",
            format!("conversation `{conversation}` belongs to the agent `{}`", head.agent),
        ));
    }
    let target = ScheduleTarget { id: head.conversation_id, incarnation: head.incarnation };
    Ok((head.agent, Some(target)))
}
