//! The tenant's usage ledger, in its own partition: daily usage of users and agents, and the
//! accounts with limits. The conversation is authoritative: posting twice changes nothing, and
//! posting late loses nothing.

pub mod account;
pub mod documents;
pub mod locks;
pub mod rate_limit;
pub mod spending_limits;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::contract::Owner;
use crate::ledger::account::{Account, Availability, LimitState, safe_name};
use crate::ledger::documents::{LedgerReader, VersionedDocument};
use turnwheel_conversation::budget::{
    AccountAlert, BudgetAlert, BudgetExceeded, BudgetLevel, Reservation,
};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::usage::UsageTotals;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{TenantId, UserId};

use crate::services::Services;
use turnwheel_storage::store::conditional::{back_off_up_to, compare_and_set, write_once};
use turnwheel_storage::store::{Partition, StoreError, Write};
use turnwheel_tools::sha256_hex;

/// Attempts at one post: other conversations write into the same accounts.
const ATTEMPTS_MAX: usize = 24;
/// Attempts of one post for which the store may be unavailable.
const UNAVAILABLE_MAX: u32 = 3;
const RETRY_WAIT: Duration = Duration::from_millis(10);
const RETRY_WAIT_MAX: Duration = Duration::from_millis(640);
/// Alerts of one conversation that wait for a commit; older ones are dropped. One commit has room
/// for all of them.
const ALERTS_MAX: usize = 32;

/// Posted state of one conversation. It prevents double posting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConversationLine {
    /// Posted part of [`turnwheel_conversation::budget::Metering::spent`].
    #[serde(rename = "counted")]
    posted: UsageTotals,
    /// Number of the newest call whose reservation has ended.
    #[serde(rename = "done")]
    released_up_to: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "hold")]
    reservation: Option<LineReservation>,
    /// Alerts that the head may not have issued yet, by number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alerts: Vec<AccountAlert>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LineReservation {
    #[serde(rename = "held")]
    call: Reservation,
    /// Ids of the accounts with this reservation: settings may change before it ends.
    accounts: Vec<String>,
}

impl ConversationLine {
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
pub struct UsageDay {
    pub day: String,
    pub user: UserId,
    pub agents: BTreeMap<String, UsageTotals>,
}

/// The outcome of a post, and the alerts that the conversation's next commit must issue.
#[derive(Debug)]
pub struct PostResult {
    pub outcome: PostOutcome,
    pub alerts: Vec<AccountAlert>,
}

/// Outcome of a post to the ledger.
#[derive(Clone, Debug, PartialEq)]
pub enum PostOutcome {
    /// The ledger has all usage of the head. No reservation was requested.
    Settled,
    /// As `Settled`, and the call may be made.
    Reserved,
    /// As `Settled`, but the call needs an approver's decision.
    Exhausted(BudgetExceeded),
    /// As `Settled`, but running calls may use the remaining budget: retry later.
    InUse,
    /// The ledger has a later call: the caller has lost the conversation.
    Superseded,
}

fn line_id(head: &Head) -> String {
    let key = format!("{}\n{}", head.user, head.conversation_id);
    let hash: String = sha256_hex(key.as_bytes()).chars().take(32).collect();
    format!("line-{hash}-{}", head.incarnation)
}

pub fn usage_id(day: &str, user: &str) -> String {
    format!("usage-{day}-{}", safe_name(user))
}

/// The ledger documents that one conversation uses.
struct LedgerSnapshot {
    line: VersionedDocument<ConversationLine>,
    days: Vec<VersionedDocument<UsageDay>>,
    accounts: Vec<VersionedDocument<Account>>,
}

/// Posts the head's unposted usage to the tenant's ledger, and the reservation of the call that the
/// head names.
///
/// # Errors
/// The store is unavailable, or other writers always won: call again later. Nothing is lost, and
/// the repeated call has the same effect.
pub async fn post(services: &Services, head: &Head) -> Result<PostResult, StoreError> {
    let unavailable = AtomicU32::new(0);
    let waits = back_off_up_to(RETRY_WAIT, RETRY_WAIT_MAX).take(ATTEMPTS_MAX - 1);
    let waits = waits.map(|wait| wait.mul_f64(jitter(services)));
    compare_and_set(waits, || try_post(services, head, &unavailable)).await
}

/// Tries the post once. `None`: another writer came first, or the store was unavailable.
async fn try_post(
    services: &Services,
    head: &Head,
    unavailable: &AtomicU32,
) -> Result<Option<PostResult>, StoreError> {
    let guard = services.ledger_locks.lock(lock_key(services, head)).await;
    let result = post_once(services, head).await;
    drop(guard);
    let failure = match result {
        Ok(posted) => return Ok(Some(posted)),
        Err(StoreError::Conflict) => StoreError::Conflict,
        Err(error @ StoreError::Unavailable(_))
            if unavailable.fetch_add(1, Ordering::Relaxed) < UNAVAILABLE_MAX =>
        {
            error
        }
        Err(error) => return Err(error),
    };
    tracing::debug!(conversation.id = %head.conversation_id, tenant = %head.tenant, error = %failure, "ledger write failed, retrying");
    Ok(None)
}

/// The documents that other writers share, as the key of a lock.
fn lock_key(services: &Services, head: &Head) -> locks::LedgerKey {
    let of_others = |(level, _, _): &(BudgetLevel, &str, _)| {
        matches!(level, BudgetLevel::Agent | BudgetLevel::Tenant)
    };
    let is_users = !services.spending_limits.limiting_accounts(head).iter().any(of_others);
    (head.tenant.clone(), is_users.then(|| head.user.clone()))
}

/// From ½ to 1½: writers that conflict once should not retry at the same time.
fn jitter(services: &Services) -> f64 {
    let fresh = services.ids.new_id();
    let drawn = sha256_hex(fresh.as_bytes()).bytes().next().unwrap_or_default();
    0.5 + f64::from(drawn % 16) / 15.0
}

async fn post_once(services: &Services, head: &Head) -> Result<PostResult, StoreError> {
    let uncached = uncached_reader(services, &head.tenant);
    let cached = LedgerReader { cache: Some(&services.ledger_documents), ..uncached };
    let snapshot = LedgerSnapshot::read(services, head, cached).await?;
    let shared = snapshot.cached_shared_documents();
    let is_cached = snapshot.line.is_cached() || !shared.is_empty();
    // A cached document that is old, or that decides without being written, leads to a second try with
    // documents of the store.
    match post_to(services, head, snapshot).await {
        Ok(Some(result)) => return Ok(result),
        Ok(None) => {}
        Err(StoreError::Conflict) if is_cached => {
            let now = services.clock.monotonic();
            services.ledger_documents.mark_shared(&head.tenant, shared, now);
        }
        Err(error) => return Err(error),
    }
    let snapshot = LedgerSnapshot::read(services, head, uncached).await?;
    post_to(services, head, snapshot).await?.ok_or(StoreError::Conflict)
}

fn uncached_reader<'a>(services: &'a Services, tenant: &'a TenantId) -> LedgerReader<'a> {
    LedgerReader { store: &*services.store, tenant, cache: None }
}

/// Posts to the documents of a snapshot. `None`: a cached document decided something, and the batch
/// would not show whether it is current.
async fn post_to(
    services: &Services,
    head: &Head,
    mut snapshot: LedgerSnapshot,
) -> Result<Option<PostResult>, StoreError> {
    let outcome = snapshot.apply(services, head);
    if snapshot.relies_on_cache() {
        return Ok(None);
    }
    let writes = snapshot.writes();
    if !writes.is_empty() {
        let (before, after) = if head.reservation.is_some() {
            ("reservation.before", "reservation.after")
        } else {
            ("settle.before", "settle.after")
        };
        services.fail_points.hit(before).await;
        let (store, now) = (&*services.store, services.clock.monotonic());
        services.ledger_documents.write(store, &head.tenant, writes, now).await?;
        services.fail_points.hit(after).await;
    }
    Ok(Some(PostResult { outcome, alerts: snapshot.line.value.alerts }))
}

impl LedgerSnapshot {
    async fn read(
        services: &Services,
        head: &Head,
        ledger: LedgerReader<'_>,
    ) -> Result<Self, StoreError> {
        let days = head.metering.days.iter().map(|end| {
            let blank =
                UsageDay { day: end.day.clone(), user: head.user.clone(), agents: BTreeMap::new() };
            ledger.read(usage_id(&end.day, head.user.as_str()), blank)
        });
        let bounded = services.spending_limits.limiting_accounts(head);
        let accounts = bounded.iter().map(|(level, name, _)| {
            let id = account::id(*level, name);
            ledger.read(id, Account::default())
        });
        let (line, days, mut accounts) = tokio::try_join!(
            ledger.read(line_id(head), ConversationLine::default()),
            try_join_all(days),
            try_join_all(accounts),
        )?;
        // Reserved under earlier limits.
        for id in line.value.reservation.iter().flat_map(|reservation| &reservation.accounts) {
            if !accounts.iter().any(|account| &account.id == id) {
                accounts.push(ledger.read(id.clone(), Account::default()).await?);
            }
        }
        Ok(Self { line, days, accounts })
    }

    fn apply(&mut self, services: &Services, head: &Head) -> PostOutcome {
        let today = services.clock.now().utc_day();
        self.increase_limits(head, &today);
        self.post_usage(services, head);
        let number = head.reservation.as_ref().map(|reservation| reservation.number);
        if self
            .line
            .value
            .reservation
            .as_ref()
            .is_some_and(|reservation| Some(reservation.call.number) == number)
        {
            return PostOutcome::Reserved;
        }
        self.release_reservation(head.metering.reservations_made);
        let Some(reservation) = &head.reservation else { return PostOutcome::Settled };
        let is_later = self.line.value.reservation.is_some()
            || self.line.value.released_up_to >= reservation.number;
        if is_later {
            return PostOutcome::Superseded;
        }
        let mut is_busy = false;
        // A call without a prompt can neither wait nor request an increase: it is counted, but not
        // refused.
        let bounding = if head.prompt.is_some() {
            services.spending_limits.limiting_accounts(head)
        } else {
            Vec::new()
        };
        for (level, name, limits) in bounding {
            let id = account::id(level, name);
            let Some(account) = self.accounts.iter().find(|account| account.id == id) else {
                continue;
            };
            match account.value.availability(level, limits, &today) {
                Availability::Available => {}
                Availability::Uncertain => is_busy = true,
                Availability::Exhausted(shortage) => return PostOutcome::Exhausted(shortage),
            }
        }
        if is_busy {
            return PostOutcome::InUse;
        }
        self.reserve(services, head, reservation);
        PostOutcome::Reserved
    }

    /// Runs before counting, so that alerts refer to the increased limit.
    fn increase_limits(&mut self, head: &Head, today: &str) {
        for agreed in &head.metering.approved_increases {
            let id = account::id(agreed.level, account::owner_name(agreed.level, head));
            for account in self.accounts.iter_mut().filter(|account| account.id == id) {
                if account.value.needs_increase(agreed) {
                    account.change().apply_increase(agreed, today);
                }
            }
        }
    }

    /// Posts the conversation's new usage.
    fn post_usage(&mut self, services: &Services, head: &Head) {
        // Issued alerts are dropped with the next write.
        self.line.value.alerts.retain(|alert| alert.number > head.metering.account_alerts);
        let unposted = head.metering.unsettled_by_day(self.line.value.posted);
        if unposted.is_empty() {
            return;
        }
        let mut alerts = Vec::new();
        for (day, cost) in unposted {
            for document in self.days.iter_mut().filter(|document| document.value.day == day) {
                let sum = document.change().agents.entry(head.agent.clone()).or_default();
                *sum = sum.plus(cost);
            }
            for account in &mut self.accounts {
                account.change().count(day, cost);
            }
            for (level, name, limits) in services.spending_limits.limiting_accounts(head) {
                let id = account::id(level, name);
                for account in self.accounts.iter_mut().filter(|account| account.id == id) {
                    let crossings = account.value.record_crossings(limits, day, cost);
                    alerts.extend(crossings.into_iter().map(|it| it.alert(level, name)));
                }
            }
        }
        self.line.value.add_alerts(alerts, head.metering.account_alerts);
        let line = self.line.change();
        line.posted = line.posted.max_each(head.metering.spent);
    }

    /// Ends the reservation of a finished call, up to the head's newest number.
    fn release_reservation(&mut self, number: u64) {
        let Some(reservation) =
            self.line.value.reservation.clone().filter(|it| it.call.number <= number)
        else {
            return;
        };
        let line = self.line.change();
        line.reservation = None;
        line.released_up_to = line.released_up_to.max(reservation.call.number);
        for account in &mut self.accounts {
            if reservation.accounts.contains(&account.id) {
                let account = account.change();
                account.reserved = account.reserved.minus(reservation.call.estimate);
            }
        }
    }

    fn reserve(&mut self, services: &Services, head: &Head, reservation: &Reservation) {
        let bounded = services.spending_limits.limiting_accounts(head);
        let ids: Vec<String> =
            bounded.iter().map(|(level, name, _)| account::id(*level, name)).collect();
        for account in self.accounts.iter_mut().filter(|account| ids.contains(&account.id)) {
            let account = account.change();
            account.reserved = account.reserved.plus(reservation.estimate);
        }
        self.line.change().reservation =
            Some(LineReservation { call: reservation.clone(), accounts: ids });
    }

    /// Ids of the cached documents that other conversations write as well.
    fn cached_shared_documents(&self) -> Vec<String> {
        let days = self.days.iter().filter(|day| day.is_cached()).map(|day| &day.id);
        let accounts = self.accounts.iter().filter(|account| account.is_cached());
        days.chain(accounts.map(|account| &account.id)).cloned().collect()
    }

    /// True if a cached document was decisive, and the batch would not show that it is current. Days
    /// are only added to.
    fn relies_on_cache(&self) -> bool {
        self.line.relies_on_cache() || self.accounts.iter().any(VersionedDocument::relies_on_cache)
    }

    fn writes(&self) -> Vec<Write> {
        let line = self.line.write();
        let days = self.days.iter().filter_map(VersionedDocument::write);
        line.into_iter()
            .chain(days)
            .chain(self.accounts.iter().filter_map(VersionedDocument::write))
            .collect()
    }
}

/// True if every account that limits the conversation has budget left.
///
/// # Errors
/// The store is unavailable: try again later.
pub async fn has_budget(services: &Services, head: &Head) -> Result<bool, StoreError> {
    let today = services.clock.now().utc_day();
    for (level, name, limits) in services.spending_limits.limiting_accounts(head) {
        let id = account::id(level, name);
        let account =
            uncached_reader(services, &head.tenant).read(id, Account::default()).await?.value;
        if matches!(account.availability(level, limits, &today), Availability::Exhausted(_)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The limits of one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountLimits {
    pub level: BudgetLevel,
    /// Id of the user or tenant, or name of the agent.
    pub name: String,
    pub limits: Vec<LimitState>,
}

/// Reads the limits of a user, and with `is_whole_tenant` those of the agents and of the tenant, with
/// their usage now.
///
/// # Errors
/// The store is unavailable: repeat the request.
pub async fn read_limits(
    services: &Services,
    owner: &Owner,
    is_whole_tenant: bool,
) -> Result<Vec<AccountLimits>, StoreError> {
    let today = services.clock.now().utc_day();
    let accounts = services.spending_limits.accounts(owner, is_whole_tenant);
    let read = accounts.into_iter().map(|(level, name, limits)| {
        let today = &today;
        async move {
            let id = account::id(level, name);
            let account =
                uncached_reader(services, &owner.tenant).read(id, Account::default()).await?.value;
            let limits = account.limit_states(limits, today);
            Ok(AccountLimits { level, name: name.to_owned(), limits })
        }
    });
    try_join_all(read).await
}

/// Deletes the line of a deleted conversation, once all its usage is posted.
///
/// # Errors
/// The store is unavailable: try again later.
pub async fn delete_line(services: &Services, head: &Head) -> Result<(), StoreError> {
    let partition = Partition::Scope(head.tenant.clone());
    // Lost: the line does not exist.
    services.ledger_documents.remove(&head.tenant, &line_id(head));
    let writes = vec![Write::Delete(line_id(head), None)];
    write_once(&*services.store, &partition, writes).await.map(|_| ())
}

/// Latest time for the post after a call at `now`.
pub fn retry_at(now: Timestamp) -> Timestamp {
    now.plus(Duration::from_mins(1))
}
