//! The tenant's usage ledger, in its own partition: daily usage of users and agents, and the
//! accounts with limits. The conversation is authoritative: posting twice changes nothing, and
//! posting late loses nothing.

pub(super) mod account;
mod writers;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::account::{Account, Room};
pub use self::writers::Writers;
use crate::agent::budget::{AccountAlert, BudgetAlert, Held, Level, Shortage};
use crate::agent::head::Head;
use crate::agent::raw::RawJson;
use crate::agent::usage::Tally;
use crate::clock::Timestamp;
use crate::ids::{UserId, is_plain};
use crate::store::{Document, ETag, Freshness, Kind, Partition, StoreError, Write};
use crate::tools::sha256_hex;
use crate::turn::{World, record};

/// Attempts at one post: other conversations write into the same accounts.
const TRIES_MAX: u32 = 24;
/// Consecutive attempts for which the store may be unavailable.
const SILENT_MAX: u32 = 3;
const WAIT: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_millis(640);
/// Alerts of one conversation that wait for a commit; older ones are dropped. One commit has room
/// for all of them.
const ALERTS_MAX: usize = 32;
/// Longer names are hashed in document ids.
const NAME_MAX: usize = 200;

/// Posted state of one conversation. It prevents double posting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Line {
    /// Posted part of [`crate::agent::budget::Books::spent`].
    counted: Tally,
    /// Number of the newest call whose reservation has ended.
    done: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<LineHold>,
    /// Alerts that the head may not have issued yet, by number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alerts: Vec<AccountAlert>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LineHold {
    held: Held,
    /// Ids of the accounts with this reservation: settings may change before it ends.
    accounts: Vec<String>,
}

impl Line {
    /// Keeps the newest alert of each limit, which has the highest percentage. `issued`: the newest
    /// number of the head.
    fn add_alerts(&mut self, alerts: Vec<BudgetAlert>, issued: u64) {
        for alert in alerts {
            let newest = self.alerts.last().map_or(0, |known| known.number);
            self.alerts.retain(|known| !known.alert.is_of_same_limit(&alert));
            self.alerts.push(AccountAlert { number: newest.max(issued) + 1, alert });
        }
        let surplus = self.alerts.len().saturating_sub(ALERTS_MAX);
        self.alerts.drain(..surplus);
    }
}

/// Usage of a user's agents on one day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsageDay {
    pub(super) day: String,
    pub(super) user: UserId,
    pub(super) agents: BTreeMap<String, Tally>,
}

/// The outcome of a post, and the alerts that the conversation's next commit must issue.
#[derive(Debug)]
pub(super) struct LedgerEntry {
    pub(super) entered: Entered,
    pub(super) alerts: Vec<AccountAlert>,
}

/// Outcome of a post to the ledger.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entered {
    /// The ledger has all usage of the head. No reservation was requested.
    Settled,
    /// As `Settled`, and the call may be made.
    Held,
    /// As `Settled`, but the call needs an approver's decision.
    UsedUp(Shortage),
    /// As `Settled`, but running calls may use the remaining budget: retry later.
    Busy,
    /// The ledger has a later call: the caller has lost the conversation.
    Overtaken,
}

/// A document of the ledger as read, with pending changes.
struct Kept<T> {
    id: String,
    etag: Option<ETag>,
    value: T,
    is_changed: bool,
}

impl<T: Serialize> Kept<T> {
    fn change(&mut self) -> &mut T {
        self.is_changed = true;
        &mut self.value
    }

    fn write(&self) -> Option<Write> {
        let document = || document(&self.id, &self.value);
        self.is_changed.then(|| match &self.etag {
            Some(etag) => Write::Replace(document(), Some(etag.clone())),
            None => Write::Create(document()),
        })
    }
}

fn document(id: &str, value: &impl Serialize) -> Document {
    Document {
        id: id.to_owned(),
        kind: Kind::Scope,
        body: RawJson::of(value),
        due: None,
        created_at: None,
        state: None,
        ttl: None,
    }
}

fn safe(name: &str) -> String {
    let is_short = name.len() <= NAME_MAX && is_plain(name);
    if is_short { name.to_owned() } else { sha256_hex(name.as_bytes()) }
}

fn line_id(head: &Head) -> String {
    let key = format!("{}\n{}", head.user, head.conversation_id);
    let hash: String = sha256_hex(key.as_bytes()).chars().take(32).collect();
    format!("line-{hash}-{}", head.incarnation)
}

pub(super) fn usage_id(day: &str, user: &str) -> String {
    format!("usage-{day}-{}", safe(user))
}

/// The ledger documents that one conversation uses.
struct Page {
    line: Kept<Line>,
    days: Vec<Kept<UsageDay>>,
    accounts: Vec<Kept<Account>>,
}

/// Posts the head's unposted usage to the tenant's ledger, and the reservation of the call that the
/// head names.
///
/// # Errors
/// The store is unavailable, or other writers always won: call again later. Nothing is lost, and
/// the repeated call has the same effect.
pub(super) async fn enter(world: &World, head: &Head) -> Result<LedgerEntry, StoreError> {
    let partition = Partition::Scope(head.tenant.clone());
    let (mut wait, mut silent) = (WAIT, 0);
    for _ in 0..TRIES_MAX {
        let turn = world.writers.turn(shared(world, head)).await;
        let tried = try_to_enter(world, head, &partition).await;
        drop(turn);
        let failed = match tried {
            Ok(entered) => return Ok(entered),
            Err(error @ StoreError::Unavailable(_)) if silent < SILENT_MAX => {
                silent += 1;
                error
            }
            Err(StoreError::Conflict) => StoreError::Conflict,
            Err(error) => return Err(error),
        };
        tracing::debug!(conversation.id = %head.conversation_id, tenant = %head.tenant, error = %failed, "ledger write failed, retrying");
        tokio::time::sleep(wait.mul_f64(chance(world))).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
    Err(StoreError::Conflict)
}

/// The documents that other writers share, as the key of a lock.
fn shared(world: &World, head: &Head) -> writers::Books {
    let of_others =
        |(level, _, _): &(Level, &str, _)| matches!(level, Level::Agent | Level::Tenant);
    let is_users = !world.money.accounts_of(head).iter().any(of_others);
    (head.tenant.clone(), is_users.then(|| head.user.clone()))
}

/// From ½ to 1½: writers that conflict once should not retry at the same time.
fn chance(world: &World) -> f64 {
    let fresh = world.ids.fresh();
    let drawn = sha256_hex(fresh.as_bytes()).bytes().next().unwrap_or_default();
    0.5 + f64::from(drawn % 16) / 15.0
}

async fn try_to_enter(
    world: &World,
    head: &Head,
    partition: &Partition,
) -> Result<LedgerEntry, StoreError> {
    let mut page = Page::read(world, head, partition).await?;
    let entered = page.enter(world, head);
    let writes = page.writes();
    if !writes.is_empty() {
        let (before, after) = if head.held.is_some() {
            ("hold.before", "hold.after")
        } else {
            ("settle.before", "settle.after")
        };
        world.probe.reached(before).await;
        world.store.write(partition, writes).await?;
        world.probe.reached(after).await;
    }
    Ok(LedgerEntry { entered, alerts: page.line.value.alerts })
}

/// A document of the ledger, or `blank` if it does not exist.
async fn read<T: DeserializeOwned>(
    world: &World,
    partition: &Partition,
    id: String,
    blank: T,
) -> Result<Kept<T>, StoreError> {
    let stored = world.store.read(partition, &id, Freshness::Latest).await?;
    let Some(stored) = stored else {
        return Ok(Kept { id, etag: None, value: blank, is_changed: false });
    };
    let value = record::read(&stored.document)?;
    Ok(Kept { id, etag: Some(stored.etag), value, is_changed: false })
}

impl Page {
    async fn read(world: &World, head: &Head, partition: &Partition) -> Result<Self, StoreError> {
        let days = head.books.days.iter().map(|end| {
            let blank =
                UsageDay { day: end.day.clone(), user: head.user.clone(), agents: BTreeMap::new() };
            read(world, partition, usage_id(&end.day, head.user.as_str()), blank)
        });
        let bounded = world.money.accounts_of(head);
        let accounts = bounded.iter().map(|(level, name, _)| {
            let id = account::id(*level, name);
            read(world, partition, id, Account::default())
        });
        let (line, days, mut accounts) = tokio::try_join!(
            read(world, partition, line_id(head), Line::default()),
            try_join_all(days),
            try_join_all(accounts),
        )?;
        // Reserved under earlier limits.
        for id in line.value.hold.iter().flat_map(|hold| &hold.accounts) {
            if !accounts.iter().any(|account| &account.id == id) {
                accounts.push(read(world, partition, id.clone(), Account::default()).await?);
            }
        }
        Ok(Self { line, days, accounts })
    }

    fn enter(&mut self, world: &World, head: &Head) -> Entered {
        let today = world.clock.now().utc_day();
        self.increase_limits(head, &today);
        self.count(world, head);
        let number = head.held.as_ref().map(|held| held.number);
        if self.line.value.hold.as_ref().is_some_and(|hold| Some(hold.held.number) == number) {
            return Entered::Held;
        }
        self.release(head.books.holds);
        let Some(held) = &head.held else { return Entered::Settled };
        let is_later = self.line.value.hold.is_some() || self.line.value.done >= held.number;
        if is_later {
            return Entered::Overtaken;
        }
        let mut is_busy = false;
        // A call without a prompt can neither wait nor request an increase: it is counted, but not
        // refused.
        let bounding =
            if head.prompt.is_some() { world.money.accounts_of(head) } else { Vec::new() };
        for (level, name, limits) in bounding {
            let id = account::id(level, name);
            let Some(account) = self.accounts.iter().find(|account| account.id == id) else {
                continue;
            };
            match account.value.room(level, limits, &today) {
                Room::Enough => {}
                Room::Perhaps => is_busy = true,
                Room::None(shortage) => return Entered::UsedUp(shortage),
            }
        }
        if is_busy {
            return Entered::Busy;
        }
        self.hold(world, head, held);
        Entered::Held
    }

    /// Runs before counting, so that alerts refer to the increased limit.
    fn increase_limits(&mut self, head: &Head, today: &str) {
        for agreed in &head.books.agreed {
            let id = account::id(agreed.level, account::name_in(agreed.level, head));
            for account in self.accounts.iter_mut().filter(|account| account.id == id) {
                if account.value.lacks(agreed) {
                    account.change().raise(agreed, today);
                }
            }
        }
    }

    /// Posts the conversation's new usage.
    fn count(&mut self, world: &World, head: &Head) {
        // Issued alerts are dropped with the next write.
        self.line.value.alerts.retain(|alert| alert.number > head.books.account_alerts);
        let owed = head.books.owed_by_day(self.line.value.counted);
        if owed.is_empty() {
            return;
        }
        let mut alerts = Vec::new();
        for (day, cost) in owed {
            for kept in self.days.iter_mut().filter(|kept| kept.value.day == day) {
                let sum = kept.change().agents.entry(head.agent.clone()).or_default();
                *sum = sum.plus(cost);
            }
            for account in &mut self.accounts {
                account.change().count(day, cost);
            }
            for (level, name, limits) in world.money.accounts_of(head) {
                let id = account::id(level, name);
                for account in self.accounts.iter_mut().filter(|account| account.id == id) {
                    let crossings = account.value.cross(limits, day, cost);
                    alerts.extend(crossings.into_iter().map(|it| it.alert(level, name)));
                }
            }
        }
        self.line.value.add_alerts(alerts, head.books.account_alerts);
        let line = self.line.change();
        line.counted = line.counted.or_more(head.books.spent);
    }

    /// Ends the reservation of a finished call, up to the head's newest number.
    fn release(&mut self, number: u64) {
        let Some(hold) = self.line.value.hold.clone().filter(|it| it.held.number <= number) else {
            return;
        };
        let line = self.line.change();
        line.hold = None;
        line.done = line.done.max(hold.held.number);
        for account in &mut self.accounts {
            if hold.accounts.contains(&account.id) {
                let account = account.change();
                account.held = account.held.minus(hold.held.estimate);
            }
        }
    }

    fn hold(&mut self, world: &World, head: &Head, held: &Held) {
        let bounded = world.money.accounts_of(head);
        let ids: Vec<String> =
            bounded.iter().map(|(level, name, _)| account::id(*level, name)).collect();
        for account in self.accounts.iter_mut().filter(|account| ids.contains(&account.id)) {
            let account = account.change();
            account.held = account.held.plus(held.estimate);
        }
        self.line.change().hold = Some(LineHold { held: held.clone(), accounts: ids });
    }

    fn writes(&self) -> Vec<Write> {
        let line = self.line.write();
        let days = self.days.iter().filter_map(Kept::write);
        line.into_iter().chain(days).chain(self.accounts.iter().filter_map(Kept::write)).collect()
    }
}

/// True if every account that limits the conversation has budget left.
///
/// # Errors
/// The store is unavailable: try again later.
pub(super) async fn has_room(world: &World, head: &Head) -> Result<bool, StoreError> {
    let partition = Partition::Scope(head.tenant.clone());
    let today = world.clock.now().utc_day();
    for (level, name, limits) in world.money.accounts_of(head) {
        let account =
            read(world, &partition, account::id(level, name), Account::default()).await?.value;
        if matches!(account.room(level, limits, &today), Room::None(_)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Deletes the line of a deleted conversation, once all its usage is posted.
///
/// # Errors
/// The store is unavailable: try again later.
pub(super) async fn forget(world: &World, head: &Head) -> Result<(), StoreError> {
    let partition = Partition::Scope(head.tenant.clone());
    match world.store.write(&partition, vec![Write::Delete(line_id(head), None)]).await {
        // The line does not exist.
        Ok(_) | Err(StoreError::Conflict) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Latest time for the post after a call at `now`.
pub(super) fn again_at(now: Timestamp) -> Timestamp {
    now.plus(Duration::from_mins(1))
}
