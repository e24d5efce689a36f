//! Command that creates a schedule. The schedule is validated, counted against the limit, and
//! stored with its idempotency receipt in one batch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ID_MAX, INPUT_BYTES_MAX, RECEIPT, SCHEDULES_MAX};
use super::{document, find, id_of, of_owner, of_user, partition, removal, ring_if_soon};
use crate::agent::content::{Block, Content};
use crate::agent::inbox::Admission;
use crate::agent::raw::{Extra, RawJson};
use crate::agent::schedule::rule::{Rule, Timing};
use crate::agent::schedule::{Mode, Schedule, Target};
use crate::clock::Timestamp;
use crate::ids::{ConversationId, ScheduleId, is_plain};
use crate::store::{Document, Freshness, Kind, Write};
use crate::turn::admission::conversation::{agent_named, metadata_faults};
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::admission::write::{Written, write_surely_in};
use crate::turn::admission::{Answer, Fault, Owner, Refusal, SAYS_NOTHING};
use crate::turn::views::load;
use crate::turn::views::schedules::ScheduleView;
use crate::turn::{World, record};

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
    pub mode: Option<Mode>,
    /// Metadata of the conversations that it creates.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// Receipt of an idempotency key, stored as long as its schedule.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Receipt {
    schedule: ScheduleId,
    admission: Admission,
}

/// Creates a schedule. `made_in` is the conversation whose agent requests it.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn create(
    world: &World,
    owner: &Owner,
    request: NewSchedule,
    idempotency: &Idempotency,
    made_in: Option<ConversationId>,
) -> Result<Answer, Refusal> {
    let key = idempotency.conversation_id(owner);
    let digest = key.strip_prefix("c_").unwrap_or(&key);
    let receipt_id = format!("{}-{digest}", of_owner(RECEIPT, &owner.user));
    if let Some(answer) = replayed(world, owner, &receipt_id, idempotency).await? {
        return Ok(answer);
    }
    let id = request.id.clone().unwrap_or_else(|| format!("s_{digest}"));
    let mut schedule = checked(world, owner, request, ScheduleId::new(id)).await?;
    schedule.made_in = made_in;
    let mut writes = room(world, owner).await?;
    let answer = answered(&schedule);
    if idempotency.is_repeatable {
        writes.push(Write::Create(receipt(&receipt_id, &schedule, idempotency, &answer)));
        schedule.receipt = Some(receipt_id.clone());
    }
    writes.push(Write::Create(document(&schedule)));
    world.probe.reached("schedule.create").await;
    if let Written::Lost = write_surely_in(world, &partition(&owner.tenant), writes).await? {
        let found = find(world, &owner.tenant, &id_of(&owner.user, &schedule.id)).await?;
        let is_mine =
            found.as_ref().is_some_and(|(found, _)| found.incarnation == schedule.incarnation);
        if !is_mine {
            if let Some(answer) = replayed(world, owner, &receipt_id, idempotency).await? {
                return Ok(answer);
            }
            return Err(match found {
                None => Refusal::contended(),
                Some(_) => taken(&schedule.id),
            });
        }
    }
    ring_if_soon(world, &owner.tenant, &schedule).await;
    Ok(answer)
}

fn taken(id: &ScheduleId) -> Refusal {
    let detail = format!("schedule `{id}` exists: use another id, or leave it out");
    Refusal::Conflict { detail, retry_after: None }
}

fn answered(schedule: &Schedule) -> Answer {
    Answer {
        status: 201,
        body: Some(RawJson::of(&ScheduleView::of(schedule))),
        location: Some(format!("schedules/{}", schedule.id)),
        etag: None,
        is_replayed: false,
    }
}

fn receipt(id: &str, schedule: &Schedule, idempotency: &Idempotency, answer: &Answer) -> Document {
    let receipt =
        Receipt { schedule: schedule.id.clone(), admission: idempotency.admission(answer) };
    Document {
        id: id.to_owned(),
        kind: Kind::Scope,
        body: RawJson::of(&receipt),
        due: None,
        created_at: None,
        state: None,
        ttl: None,
    }
}

/// Returns the first response for that key, if there is one.
async fn replayed(
    world: &World,
    owner: &Owner,
    receipt_id: &str,
    idempotency: &Idempotency,
) -> Result<Option<Answer>, Refusal> {
    if !idempotency.is_repeatable {
        return Ok(None);
    }
    let found = world.store.read(&partition(&owner.tenant), receipt_id, Freshness::Latest).await?;
    let Some(stored) = found else { return Ok(None) };
    let Admission { body_hash, status, answer, location } =
        record::read::<Receipt>(&stored.document)?.admission;
    if body_hash != idempotency.body_hash {
        return Err(Refusal::KeyReused);
    }
    Ok(Some(Answer { status, body: answer, location, etag: None, is_replayed: true }))
}

/// Writes that make room for another schedule. At the limit, they remove the oldest ended schedule.
async fn room(world: &World, owner: &Owner) -> Result<Vec<Write>, Refusal> {
    let schedules = of_user(world, owner).await?;
    if schedules.len() < SCHEDULES_MAX {
        return Ok(Vec::new());
    }
    let ended = schedules.iter().rev().find(|schedule| schedule.next_at.is_none());
    ended.map(|ended| removal(ended, None)).ok_or_else(|| Refusal::Conflict {
        detail: format!("the user already has {SCHEDULES_MAX} active schedules: cancel one first"),
        retry_after: None,
    })
}

async fn checked(
    world: &World,
    owner: &Owner,
    request: NewSchedule,
    id: ScheduleId,
) -> Result<Schedule, Refusal> {
    let now = world.clock.now();
    let mut faults = Vec::new();
    if id.as_str().len() > ID_MAX || !is_plain(id.as_str()) {
        faults.push(Fault::at(
            "/id",
            "a schedule's id is 1 to 64 of the characters A-Z a-z 0-9 _ . - and not only dots",
        ));
    }
    faults.extend(request.input.as_ref().and_then(input_fault));
    if request.mode == Some(Mode::Steer) && request.input.is_none() {
        faults.push(Fault::at("/input", SAYS_NOTHING));
    }
    let metadata = request.metadata.unwrap_or_default();
    faults.extend(metadata_faults(&metadata));
    let timing = Timing {
        at: request.at,
        every: request.every,
        time_zone: request.time_zone,
        until: request.until,
    };
    let next_at = match first(&timing, now) {
        Ok(next_at) => Some(next_at),
        Err(mistakes) => {
            faults.extend(mistakes);
            None
        }
    };
    let (agent, conversation) =
        target(world, owner, (request.agent, request.conversation_id), &mut faults).await?;
    if !faults.is_empty() {
        return Err(Refusal::Invalid(faults));
    }
    Ok(Schedule {
        id,
        user: owner.user.clone(),
        incarnation: world.ids.fresh(),
        agent,
        conversation,
        made_in: None,
        input: request.input,
        mode: request.mode.unwrap_or_default(),
        metadata,
        timing,
        created_at: now,
        next_at,
        again_at: None,
        last_fired: None,
        last_problem: None,
        receipt: None,
        extra: Extra::new(),
    })
}

/// Time of the first firing.
fn first(timing: &Timing, now: Timestamp) -> Result<Timestamp, Vec<Fault>> {
    let rule = Rule::read(timing, now).map_err(|mistakes| {
        let faults = mistakes.into_iter();
        faults.map(|it| Fault::at(format!("/{}", it.member), it.detail)).collect::<Vec<_>>()
    })?;
    rule.after(now).ok_or_else(|| {
        let (member, what) = match (rule.is_recurring(), &timing.until) {
            (false, None) => ("/at", "`at` is past"),
            (_, Some(_)) => ("/until", "nothing fires up to `until`"),
            (true, None) => ("/every", "`every` never fires"),
        };
        vec![Fault::at(member, format!("{what}; it is now {}", rule.zone().shown(now)))]
    })
}

fn input_fault(input: &Content) -> Option<Fault> {
    let is_text = match input {
        Content::Text(text) => !text.is_empty(),
        Content::Blocks(blocks) => {
            !blocks.is_empty() && blocks.iter().all(|block| matches!(block, Block::Text(_)))
        }
    };
    if !is_text {
        return Some(Fault::at(
            "/input",
            "a schedule's input is text or text blocks; leave it out to begin without one",
        ));
    }
    (RawJson::of(input).text().len() > INPUT_BYTES_MAX)
        .then(|| Fault::at("/input", "a schedule's input may be 32 KB long"))
}

/// Resolves the agent, and the conversation in its current incarnation.
async fn target(
    world: &World,
    owner: &Owner,
    (agent, conversation): (Option<String>, Option<String>),
    faults: &mut Vec<Fault>,
) -> Result<(String, Option<Target>), Refusal> {
    let Some(conversation) = conversation else {
        let found = agent_named(world, agent.as_deref());
        return match found {
            Ok(agent) => Ok((agent.name.clone(), None)),
            Err(Refusal::Invalid(unknown)) => {
                faults.extend(unknown);
                Ok((String::new(), None))
            }
            Err(refusal) => Err(refusal),
        };
    };
    let found = if is_plain(&conversation) {
        load::find_head(world, &owner.key(&conversation)).await?
    } else {
        None
    };
    let Some((head, _)) = found else {
        faults.push(Fault::at(
            "/conversationId",
            format!("there is no conversation `{conversation}`: create it first, or leave it out"),
        ));
        return Ok((String::new(), None));
    };
    if agent.is_some_and(|agent| agent != head.agent) {
        faults.push(Fault::at(
            "/agent",
            format!("conversation `{conversation}` belongs to the agent `{}`", head.agent),
        ));
    }
    let target = Target { id: head.conversation_id, incarnation: head.incarnation };
    Ok((head.agent, Some(target)))
}
