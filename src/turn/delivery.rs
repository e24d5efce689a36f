//! One delivery of a nudge: claim, take in what waits, take one turn, commit, let go, look once more.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::draft::{Draft, Rules};
use crate::agent::entry::Entry;
use crate::agent::head::{Claim, Head, READER};
use crate::agent::inbox::InboxItem;
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::request::Effect;
use crate::agent::settings::{Continuation, Settings};
use crate::agent::step::{CLAIMS_MAX, Input, can_land, step};
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::{
    BATCH_OPERATIONS_MAX, ClaimRequest, Claimed, ETag, Freshness, Kind, Partition, Selection,
    StoreError,
};
use crate::turn::{Nudge, World, expiry, record};

/// How long a claim lasts without renewal.
pub const CLAIM: Duration = Duration::from_mins(1);
/// How often a claim is renewed.
pub const RENEWAL: Duration = Duration::from_secs(20);
/// A holder that has not renewed by this long before the end cancels what it does.
pub const MARGIN: Duration = Duration::from_secs(10);
/// What must remain of a claim before an effect begins.
pub const SEND_MARGIN: Duration = Duration::from_secs(20);
/// Nudges are sent for what is due sooner than this; the rest is the sweep's.
pub const NUDGE_WITHIN: Duration = Duration::from_mins(2);
/// Operations that taking in may fill, so that a prepared call still fits.
const LANDING_OPERATIONS: usize = BATCH_OPERATIONS_MAX - 20;

/// Why a delivery stopped before its work was done. None of these loses anything: what is owed stands in the store.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// Somebody else holds the conversation now: acknowledge.
    #[error("the claim on {key} was lost")]
    ClaimLost { key: ConversationKey },
    /// Deliver again later.
    #[error("could not {what} {key}")]
    Store { key: ConversationKey, what: &'static str, source: StoreError },
}

/// What a delivery came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Nothing was owed, or somebody else is at it.
    Nothing,
    Worked,
}

/// Handles one nudge.
///
/// # Errors
/// The message must be delivered again; see [`TurnError`].
#[tracing::instrument(name = "turn", skip_all, fields(conversation.id = %nudge.key.conversation_id))]
pub async fn handle(world: &World, nudge: &Nudge) -> Result<Handled, TurnError> {
    let mut handled = Handled::Nothing;
    // Each round ends with a look at the inbox; a bound, so that a flood of requests cannot hold a worker for ever.
    for _ in 0..16 {
        match Box::pin(deliver(world, &nudge.key)).await? {
            Round::Nothing => return Ok(handled),
            Round::Done => return Ok(Handled::Worked),
            Round::Again => handled = Handled::Worked,
        }
    }
    Ok(handled)
}

#[derive(PartialEq, Eq)]
enum Round {
    Nothing,
    Done,
    /// Something came in while the claim was held.
    Again,
}

/// The right to act on one conversation, and what is known of it.
pub(super) struct Hold<'w> {
    pub(super) world: &'w World,
    pub(super) key: ConversationKey,
    pub(super) partition: Partition,
    /// This delivery's own: two deliveries of one process are two workers to each other.
    pub(super) worker: WorkerId,
    pub(super) head: Head,
    pub(super) etag: ETag,
    /// The answer whose calls are open.
    pub(super) answer: Option<Arc<Entry>>,
    pub(super) epoch: u64,
    /// Whether the right is kept outside the head and is already ours.
    pub(super) is_settled: bool,
    /// Whether the claim has been counted in a commit of this delivery.
    pub(super) is_counted: bool,
    /// Wall and monotonic ends of the claim: the earlier one holds.
    pub(super) until: Timestamp,
    pub(super) until_monotonic: Duration,
    /// When this turn must be over.
    pub(super) turn_ends: Duration,
    /// Answers taken in this delivery.
    pub(super) answers_taken: u32,
    /// Whether this is no delivery, and only counts one that came to nothing.
    pub(super) is_counting: bool,
}

async fn deliver(world: &World, key: &ConversationKey) -> Result<Round, TurnError> {
    world.probe.reached("claim.before").await;
    let Some(mut hold) = take(world, key).await? else { return Ok(Round::Nothing) };
    world.probe.reached("claim.after").await;
    let outcome = Box::pin(work(&mut hold)).await;
    world.probe.reached("release.before").await;
    world.store.release(key, &hold.worker).await;
    world.probe.reached("release.after").await;
    match outcome {
        Ok(Round::Done) if has_news(world, key).await? => Ok(Round::Again),
        other => other,
    }
}

/// The right to act on a conversation; `None`: it is somebody else's, or there is nothing to act on.
pub(super) async fn take<'w>(
    world: &'w World,
    key: &ConversationKey,
) -> Result<Option<Hold<'w>>, TurnError> {
    let now = world.clock.now();
    let until = now.plus(CLAIM);
    let worker = WorkerId::new(format!("{}.{}", world.worker, world.ids.fresh()));
    let request = ClaimRequest { key, worker: &worker, now, until };
    let claimed =
        world.store.claim(request).await.map_err(|source| store_error(key, "claim", source))?;
    let Claimed::Free { head: stored, is_settled } = claimed else { return Ok(None) };
    let head = match record::read_head(&stored) {
        Ok(head) if head.min_reader <= READER && head.phase != Phase::Deleted => head,
        unusable => {
            world.store.release(key, &worker).await;
            return unusable.map(|_| None).map_err(|source| store_error(key, "read", source));
        }
    };
    let started = world.clock.monotonic();
    Ok(Some(Hold {
        world,
        key: key.clone(),
        partition: Partition::Conversation(key.clone()),
        worker,
        epoch: head.epoch + 1,
        head,
        etag: stored.etag,
        answer: None,
        is_settled,
        is_counted: false,
        until,
        until_monotonic: started + CLAIM,
        turn_ends: started + world.limits.turn,
        answers_taken: 0,
        is_counting: false,
    }))
}

/// Release, then look: what came in while the claim was held found nobody to take it.
async fn has_news(world: &World, key: &ConversationKey) -> Result<bool, TurnError> {
    let partition = Partition::Conversation(key.clone());
    let read = async {
        let waiting =
            world.store.select(&partition, &Selection::all(Kind::Inbox), Freshness::Latest).await?;
        // What was looked at and left waiting owes nothing by itself.
        Ok(waiting.iter().any(|stored| stored.document.due.is_some()))
    };
    let has_news = read.await.map_err(|source| store_error(key, "look at", source))?;
    world.probe.reached("look.after").await;
    Ok(has_news)
}

async fn work(hold: &mut Hold<'_>) -> Result<Round, TurnError> {
    let now = hold.world.clock.now();
    expiry::decide_expired(hold.world, &hold.head, now)
        .await
        .map_err(|source| hold.error("expire", source))?;
    let inbox = hold.inbox().await?;
    let (landing, waiting) = sort_out(&hold.head, inbox, hold.rules(), now);
    let owes_a_look = waiting.iter().any(|waiting| waiting.is_due);
    let is_due =
        hold.head.owed_at(now).is_some_and(|due| due <= now) && !is_backing_off(&hold.head, now);
    let is_news = owes_a_look || waiting.len() != hold.head.waiting as usize;
    if landing.is_empty() && !is_due && !is_news {
        return Ok(Round::Nothing);
    }
    hold.load_answer().await?;
    let mut inputs: Vec<Input> = Vec::new();
    let is_poisoned = hold.head.claims >= CLAIMS_MAX;
    if is_poisoned {
        let reason = format!("{CLAIMS_MAX} workers tried this step and none came to its end.");
        inputs.push(Input::Poisoned { reason });
    } else if was_interrupted(&hold.head) {
        inputs.push(Input::TakenOver);
    }
    // A write that was under way when its worker stopped: nobody knows whether it happened.
    if !is_poisoned {
        inputs.extend(lost_writes(&hold.head, now));
    }
    inputs.extend(landing.into_iter().map(Input::Landed));
    // Always counted anew: a stale count would leave somebody waiting for nothing, or nobody looking.
    inputs.push(Input::Waiting(u32::try_from(waiting.len()).unwrap_or(u32::MAX)));
    hold.prepare(&mut inputs).await?;
    if inputs.len() > 1 || is_news || !hold.is_settled {
        hold.commit("take-in", &inputs, &waiting).await?;
    }
    hold.turn().await?;
    Ok(Round::Done)
}

/// An accepted request in the inbox.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) item: Arc<InboxItem>,
    /// Whether it still owes a look by itself.
    pub(super) is_due: bool,
}

/// Which items land now, oldest first, and which wait.
fn sort_out(
    head: &Head,
    inbox: Vec<Waiting>,
    rules: Rules,
    now: Timestamp,
) -> (Vec<Arc<InboxItem>>, Vec<Waiting>) {
    let mut draft = Draft::new(head.clone(), None, rules, now);
    let (mut landing, mut waiting) = (Vec::new(), Vec::new());
    for waits in inbox {
        if draft.operations() < LANDING_OPERATIONS && can_land(&draft.head, &waits.item) {
            step(&mut draft, &Input::Landed(Arc::clone(&waits.item)));
            landing.push(waits.item);
        } else {
            waiting.push(waits);
        }
    }
    (landing, waiting)
}

/// Whether the last holder stopped without letting go.
fn was_interrupted(head: &Head) -> bool {
    let has_started = match &head.phase {
        Phase::Calls { calls, .. } => {
            calls.iter().any(|call| matches!(call.status, CallStatus::Started { .. }))
        }
        Phase::Idle | Phase::Model { .. } | Phase::Summary { .. } | Phase::Deleted => false,
    };
    head.claim.is_some() || has_started
}

/// A step that was tried in vain waits before it is tried again, whoever rings.
fn is_backing_off(head: &Head, now: Timestamp) -> bool {
    head.claim.is_none() && head.claims > 0 && head.due.is_some_and(|due| due > now)
}

fn lost_writes(head: &Head, now: Timestamp) -> Vec<Input> {
    let Phase::Calls { calls, .. } = &head.phase else { return Vec::new() };
    let lost = calls.iter().enumerate().filter(|(_, call)| {
        matches!(call.status, CallStatus::Started { effect: Effect::Write, .. })
    });
    lost.map(|(index, _)| Input::OutcomeUnknown {
        index,
        reason:
            "The worker stopped while this call was under way; whether it happened is not known."
                .to_owned(),
        expires_at: now.plus(OUTCOME_EXPIRES),
    })
    .collect()
}

/// How long a person has to say what became of a write.
pub(super) const OUTCOME_EXPIRES: Duration = Duration::from_hours(7 * 24);

pub(super) fn store_error(
    key: &ConversationKey,
    what: &'static str,
    source: StoreError,
) -> TurnError {
    TurnError::Store { key: key.clone(), what, source }
}

impl Hold<'_> {
    pub(super) fn error(&self, what: &'static str, source: StoreError) -> TurnError {
        store_error(&self.key, what, source)
    }

    /// What waits, oldest first.
    async fn inbox(&self) -> Result<Vec<Waiting>, TurnError> {
        let selection = Selection::all(Kind::Inbox);
        let stored = self.world.store.select(&self.partition, &selection, Freshness::Latest).await;
        self.world.probe.reached("inbox.after").await;
        let stored = stored.map_err(|source| self.error("read the inbox of", source))?;
        let mut items = Vec::with_capacity(stored.len());
        for stored in stored {
            let item: InboxItem = record::read(&stored.document)
                .map_err(|source| self.error("read the inbox of", source))?;
            items.push(Waiting { item: Arc::new(item), is_due: stored.document.due.is_some() });
        }
        items.sort_by(|a, b| {
            (a.item.accepted_at, &a.item.input_id).cmp(&(b.item.accepted_at, &b.item.input_id))
        });
        Ok(items)
    }

    /// The answer that the phase names: its calls are what is owed.
    pub(super) async fn load_answer(&mut self) -> Result<(), TurnError> {
        self.answer = None;
        if let Phase::Calls { answer, .. } = &self.head.phase {
            let place = usize::try_from(answer.saturating_sub(1)).unwrap_or(usize::MAX);
            let entries = self.entries().await?;
            self.answer = entries.get(place).cloned();
        }
        Ok(())
    }

    pub(super) async fn entries(&self) -> Result<Arc<Vec<Arc<Entry>>>, TurnError> {
        let entries = self.world.entries.entries(&*self.world.store, &self.head).await;
        entries.map_err(|source| self.error("read the entries of", source))
    }

    /// Settings in force: the conversation's over the agent's.
    pub(super) fn settings(&self) -> Settings {
        match self.world.agents.find(Some(&self.head.agent)) {
            Ok(agent) => self.head.settings.over(&agent.settings),
            Err(_) => self.head.settings.clone(),
        }
    }

    pub(super) fn rules(&self) -> Rules {
        let settings = self.settings();
        Rules {
            rounds_max: settings.rounds_max(),
            hard_rounds_max: settings.hard_rounds(),
            writes_notices: self.world.herald.is_some(),
        }
    }

    /// A draft of the head as it is, with the inputs applied: to see what they come to.
    pub(super) fn try_out(&self, inputs: &[Input]) -> Draft {
        let mut draft = Draft::new(
            self.head.clone(),
            self.answer.clone(),
            self.rules(),
            self.world.clock.now(),
        );
        for input in inputs {
            step(&mut draft, input);
        }
        draft
    }

    /// Performs what is owed until the turn is over.
    async fn turn(&mut self) -> Result<(), TurnError> {
        loop {
            let now = self.world.clock.now();
            match &self.head.phase {
                Phase::Idle | Phase::Deleted | Phase::Summary { .. } => return Ok(()),
                Phase::Model { not_before, .. } => {
                    let is_early = not_before.is_some_and(|time| time > now);
                    if is_early || !self.may_answer(&self.head) {
                        return Ok(());
                    }
                    Box::pin(self.answer()).await?;
                }
                Phase::Calls { calls, .. } => {
                    let open = calls.iter().enumerate().find(|(_, call)| !call.is_done());
                    match open.map(|(index, call)| (index, call.status.clone())) {
                        Some((index, CallStatus::Started { .. })) => {
                            Box::pin(self.call(index)).await?;
                        }
                        Some((
                            _,
                            CallStatus::Ready
                            | CallStatus::Waiting { .. }
                            | CallStatus::Done { .. },
                        ))
                        | None => {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Whether this delivery answers (once more): the first answer always, later ones where turns continue inline.
    fn may_answer(&self, head: &Head) -> bool {
        if self.answers_taken == 0 {
            return true;
        }
        let is_inline = self.settings().continuation == Some(Continuation::Inline);
        let now = self.world.clock.monotonic();
        is_inline && head.waiting == 0 && now + self.world.limits.turn / 2 < self.turn_ends
    }

    /// Whether nothing more will be performed in this delivery after this commit, so that it clears the claim.
    pub(super) fn is_last(&self, draft: &Draft) -> bool {
        if self.is_counting {
            return true;
        }
        match &draft.head.phase {
            Phase::Idle | Phase::Deleted | Phase::Summary { .. } => true,
            Phase::Model { not_before, .. } => {
                not_before.is_some_and(|time| time > draft.now) || !self.may_answer(&draft.head)
            }
            Phase::Calls { .. } => {
                !matches!(draft.next_call(), Some((_, CallStatus::Started { .. })))
            }
        }
    }

    /// The claim as the head shows it while this delivery goes on.
    pub(super) fn claim(&self) -> Claim {
        Claim { worker: self.worker.clone(), epoch: self.epoch, until: self.until }
    }
}
