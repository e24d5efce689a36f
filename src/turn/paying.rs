//! Budget checks of a turn: reserves the next model call, requests a limit increase, and posts
//! usage to the tenant's ledger.

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

/// Time for an approver to decide a budget request.
const BUDGET_EXPIRES: Duration = Duration::from_hours(7 * 24);
/// Delay of a retry while running calls may use the remaining budget.
const BUSY: Duration = Duration::from_secs(5);
/// Delay of a retry while the ledger is unavailable.
const SILENT: Duration = Duration::from_secs(10);
/// Bounds of the interval at which a waiting prompt rechecks its budget. The interval grows with
/// the age of the request.
const LOOK_MIN: Duration = Duration::from_mins(1);
const LOOK_MAX: Duration = Duration::from_mins(15);

impl Hold<'_> {
    /// Posts overdue usage to the tenant's ledger. The added inputs record the outcome.
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
                tracing::warn!(conversation.id = %self.key.conversation_id, tenant = %self.key.tenant, error = %error, "usage not posted to the ledger; retrying later");
                Paying::SettleAt(books::again_at(self.world.clock.now()))
            }
        };
        Input::Paying(Box::new(paying))
    }

    fn settled(&self, alerts: Vec<AccountAlert>) -> Paying {
        let books = &self.head.books;
        Paying::Settled { spent: books.spent, agreed: books.agreed.clone(), alerts }
    }

    /// Posts usage after a delivery that leaves nothing running: an unused reservation blocks other
    /// calls. Without limits it blocks nothing, and the usage is posted later.
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
            tracing::debug!(conversation.id = %self.key.conversation_id, error = %error, "ledger update not recorded; another worker has the conversation");
        }
    }

    /// Like [`LeasedConversation::plan_reservation`], for a further call of this delivery.
    pub(super) async fn reserve_next(&mut self, tried: &mut Tried) -> Result<(), TurnError> {
        let goes_on = self.may_answer(&tried.draft().head);
        if goes_on { self.reserve(tried).await } else { Ok(()) }
    }

    /// Adds the reservation of the model call that the inputs lead to, if this delivery makes the
    /// call.
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

    /// Returns true if the model may be called now. Otherwise commits the reason for waiting,
    /// without a reservation.
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
                tracing::warn!(conversation.id = %self.key.conversation_id, tenant = %self.key.tenant, error = %error, "tenant ledger unavailable; model call deferred");
                let until = now.plus(SILENT);
                let put_off = Paying::PutOff { behind: Behind::Books, until, keeps_hold: true };
                let tried = self.try_out(vec![Input::Paying(Box::new(put_off))]);
                self.is_admitted = false;
                self.commit("reserve", tried, &[]).await?;
                return Ok(false);
            }
            Err(error) => return Err(self.error("update the ledger for", error)),
        };
        self.is_admitted = false;
        let inputs = [self.settled(alerts), paying].map(|paying| Input::Paying(Box::new(paying)));
        let tried = self.try_out(inputs.into());
        self.commit("reserve", tried, &[]).await?;
        Ok(false)
    }
}

/// True if this delivery has to make a model call.
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

/// Approves the budget request of a waiting prompt if budget is available again: a limit was
/// raised, a setting changed or a new day began. It creates the same decision as an approver.
/// Returns true if it did.
///
/// # Errors
/// The store is unavailable: deliver again later.
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
    let reason = Some("The budget is available again.".to_owned());
    let decision =
        Decision { reason, ..expiry::decision(request, (Verdict::Approve, "budget"), now) };
    // An approver or another delivery may be quicker; the first decision counts.
    expiry::decide(world, &hold.key, decision).await?;
    Ok(true)
}
