//! Money in a turn: the next model call is held before it is made, a used-up budget asks, and the tenant's books are told.

mod estimate;

use std::time::Duration;

use crate::agent::brake::Behind;
use crate::agent::budget::{AccountAlert, Level};
use crate::agent::head::Head;
use crate::agent::phase::Phase;
use crate::agent::request::{Decision, RequestKind, Verdict};
use crate::agent::step::{Asks, Input, Paying, own_shortage};
use crate::clock::Timestamp;
use crate::store::StoreError;
use crate::turn::World;
use crate::turn::books::{self, Entered, LedgerEntry};
use crate::turn::delivery::TurnError;
use crate::turn::expiry;
use crate::turn::hold::Hold;
use crate::turn::tried::Tried;

/// How long a person has to say whether it may cost more.
const BUDGET_EXPIRES: Duration = Duration::from_hours(7 * 24);
/// Calls under way may use up what is left: so long until somebody looks again.
const BUSY: Duration = Duration::from_secs(5);
/// The books did not answer.
const SILENT: Duration = Duration::from_secs(10);
/// How often a prompt that asks looks whether there is room by now: seldom, once it has asked for long.
const LOOK_MIN: Duration = Duration::from_mins(1);
const LOOK_MAX: Duration = Duration::from_mins(15);

impl Hold<'_> {
    /// Tells the tenant's books what they should know by now; the inputs of the next commit say whether they do.
    pub(super) async fn settle_due(&self, inputs: &mut Vec<Input>) {
        let now = self.world.clock.now();
        if self.head.books.settle_at.is_some_and(|at| at <= now) {
            inputs.push(self.settle().await);
        }
        if self.head.books.look_at.is_some_and(|at| at <= now) {
            let at = look_again_at(&self.head, now);
            inputs.push(Input::Paying(Box::new(Paying::LookAt(at))));
        }
    }

    async fn settle(&self) -> Input {
        let paying = match books::enter(self.world, &self.head).await {
            Ok(LedgerEntry { entered: Entered::Overtaken, .. }) => {
                Paying::SettleAt(books::again_at(self.world.clock.now()))
            }
            Ok(LedgerEntry { alerts, .. }) => self.settled(alerts),
            Err(error) => {
                tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "the books of {} were not told what {} cost: later", self.key.tenant, self.key.conversation_id);
                Paying::SettleAt(books::again_at(self.world.clock.now()))
            }
        };
        Input::Paying(Box::new(paying))
    }

    fn settled(&self, alerts: Vec<AccountAlert>) -> Paying {
        let books = &self.head.books;
        Paying::Settled { spent: books.spent, agreed: books.agreed.clone(), alerts }
    }

    /// After a delivery that leaves nothing running: what is held for nothing keeps others waiting. Where nothing is bounded
    /// nobody waits for it, and it is told later.
    pub(super) async fn settle_at_rest(&mut self) {
        let now = self.world.clock.now();
        let goes_on = self.nudge_at.is_some_and(|at| at <= now) || self.head.held.is_some();
        let is_owed = self.head.books.settle_at.is_some() && self.head.claim.is_none();
        if !is_owed || goes_on || self.world.money.accounts_of(&self.head).is_empty() {
            return;
        }
        let settled = self.settle().await;
        let tried = self.try_out(vec![settled]);
        if let Err(error) = self.commit("settled", tried, &[]).await {
            tracing::debug!(conversation.id = %self.key.conversation_id, error = %error, "{} goes on elsewhere", self.key);
        }
    }

    /// The same for a call that this delivery makes after another one.
    pub(super) async fn reserve_next(&mut self, tried: &mut Tried) -> Result<(), TurnError> {
        let goes_on = self.may_answer(&tried.draft().head);
        if goes_on { self.reserve(tried).await } else { Ok(()) }
    }

    /// Adds the reservation of the model call that the inputs lead to, when it is made in this delivery.
    pub(super) async fn reserve(&mut self, tried: &mut Tried) -> Result<(), TurnError> {
        let draft = tried.draft();
        if !is_call_due(&draft.head, draft.now) {
            return Ok(());
        }
        let owner = (&self.key.tenant, &self.key.user);
        let now = self.world.clock.monotonic();
        if !self.is_admitted
            && let Err(wait) = self.world.money.rates.model_call(owner, now)
        {
            let until = draft.now.plus(wait.max(Duration::from_millis(1)));
            let put_off = Paying::PutOff { behind: Behind::Rate, until, keeps_hold: true };
            tried.add(Input::Paying(Box::new(put_off)));
            return Ok(());
        }
        self.is_admitted = true;
        let is_bounded =
            draft.rules.budget.is_some() || !self.world.money.accounts_of(&self.head).is_empty();
        if draft.head.held.is_some() || !is_bounded {
            return Ok(());
        }
        let estimate = self.estimate(draft).await?;
        let asks = Self::asks(draft.now, vec!["owner".to_owned(), "link".to_owned()]);
        tried.add(Input::Paying(Box::new(Paying::Reserve { estimate, asks })));
        Ok(())
    }

    fn asks(now: Timestamp, approvers: Vec<String>) -> Asks {
        Asks { approvers, expires_at: now.plus(BUDGET_EXPIRES), look_at: now.plus(LOOK_MIN) }
    }

    /// Whether the model may be called now. If not, why it waits is committed, and nothing is held for it.
    pub(super) async fn pay(&mut self) -> Result<bool, TurnError> {
        let mut tried = self.try_out(Vec::new());
        self.reserve(&mut tried).await?;
        if !tried.inputs().is_empty() {
            self.commit("reserve", tried, &[]).await?;
            if self.head.claim.is_none() {
                return Ok(false);
            }
        }
        if !is_call_due(&self.head, self.world.clock.now()) {
            return Ok(false);
        }
        if self.head.held.is_none() || self.world.money.accounts_of(&self.head).is_empty() {
            return Ok(true);
        }
        let entry = books::enter(self.world, &self.head).await;
        let now = self.world.clock.now();
        let (entered, alerts) = match entry {
            Ok(entry) => (Ok(entry.entered), entry.alerts),
            Err(error) => (Err(error), Vec::new()),
        };
        let paying = match entered {
            Ok(Entered::Held | Entered::Settled) => {
                self.told = Some(self.settled(alerts));
                self.check_claim().await?;
                return Ok(true);
            }
            Ok(Entered::UsedUp(shortage)) => {
                let asks = Self::asks(now, self.world.money.approvers.clone());
                Paying::UsedUp { shortage, asks }
            }
            Ok(Entered::Busy) => Paying::PutOff {
                behind: Behind::BudgetInUse,
                until: now.plus(BUSY),
                keeps_hold: false,
            },
            Ok(Entered::Overtaken) => {
                return Err(TurnError::ClaimLost { key: self.key.clone() });
            }
            Err(error @ (StoreError::Unavailable(_) | StoreError::Conflict)) => {
                tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "the books of {} did not answer: the model is not called for {} yet", self.key.tenant, self.key.conversation_id);
                let until = now.plus(SILENT);
                let put_off = Paying::PutOff { behind: Behind::Books, until, keeps_hold: true };
                let tried = self.try_out(vec![Input::Paying(Box::new(put_off))]);
                self.is_admitted = false;
                self.commit("reserve", tried, &[]).await?;
                return Ok(false);
            }
            Err(error) => return Err(self.error("keep the books of", error)),
        };
        self.is_admitted = false;
        let inputs = [self.settled(alerts), paying].map(|paying| Input::Paying(Box::new(paying)));
        let tried = self.try_out(inputs.into());
        self.commit("reserve", tried, &[]).await?;
        Ok(false)
    }
}

/// Whether a model call is what this visit has to make.
pub(super) fn is_call_due(head: &Head, now: Timestamp) -> bool {
    let is_call = match head.phase {
        Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
            not_before.is_none_or(|time| time <= now)
        }
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => false,
    };
    is_call && !head.is_paused() && head.brake.is_none()
}

fn look_again_at(head: &Head, now: Timestamp) -> Timestamp {
    let asked = head.requests.iter().find(|request| request.kind == RequestKind::Budget);
    let since = asked.map_or(Duration::ZERO, |request| request.requested_at.until(now));
    now.plus((since / 4).clamp(LOOK_MIN, LOOK_MAX))
}

/// A prompt that waits for a budget goes on by itself once there is room: another one's limit was raised, a setting
/// changed, a new day began. Decided in the same way as by a person. Whether it was.
///
/// # Errors
/// As the store's.
pub(super) async fn decide_freed(
    world: &World,
    hold: &Hold<'_>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let head = &hold.head;
    if head.books.look_at.is_none_or(|at| now < at) {
        return Ok(false);
    }
    let asked = head.requests.iter().find(|request| request.kind == RequestKind::Budget);
    let Some((request, shortage)) = asked.and_then(|it| Some((it, it.budget.as_ref()?))) else {
        return Ok(false);
    };
    let is_free = match shortage.level {
        Level::Prompt | Level::Conversation => {
            own_shortage(head, hold.rules().budget.as_ref()).is_none()
        }
        Level::User | Level::Agent | Level::Tenant => books::has_room(world, head).await?,
    };
    if !is_free {
        return Ok(false);
    }
    let reason = Some("There is room in the budget by now.".to_owned());
    let decision =
        Decision { reason, ..expiry::decision(request, (Verdict::Approve, "budget"), now) };
    // A person may be quicker, or another visit: that counts, then.
    expiry::decide(world, &hold.key, decision).await?;
    Ok(true)
}
