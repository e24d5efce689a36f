//! Isolation of suspect turns in child processes of the same program.
//!
//! A child runs one turn and reaches the store only through its parent. Both exchange messages over
//! a socket, which is the standard input of the child. The child exits when the socket closes, so
//! it never outlives the parent's lock of the data folder. It needs no identity, no connection of
//! its own and no SDK start-up.

pub(crate) mod child;
mod port_server;
mod protocol;
mod remote_ports;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use self::port_server::ChildOutcome;

use self::protocol::{ChildInit, duration_ms};
use crate::app::SettingsSource;
use crate::start::agent_files::ActiveAgents;
use crate::start::options::ServiceOptions;
use turnwheel_conversation::suspicion::SUSPECT_DEATHS;
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_record::documents;
use turnwheel_record::isolator::{InProcessIsolator, IsolatedOutcome, Isolator, SharedTurnPermit};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{Freshness, HEAD_ID, Partition};
use turnwheel_tools::http::address_rules::OwnPorts;

/// Name of the hidden command that the child runs.
pub(crate) const COMMAND: &str = "isolated-turn";
/// Maximum number of children of a hosted process. Each uses about 30 MB for the time of one delivery.
/// One child is left for other tenants.
const HOSTED_CHILDREN_MAX: usize = 4;
/// Maximum number of children of `dev`. Its one process has all conversations, which a death makes
/// suspect together: with few children they would wait for one another.
const LOCAL_CHILDREN_MAX: usize = 16;
/// Delay before the next attempt of a suspect step that found no free child. Meanwhile the
/// conversation has no lease and occupies no worker.
const HOSTED_SLOT_RETRY_DELAY: Duration = Duration::from_secs(2);
/// The same in `dev`, where an attempt costs no request of a service.
const LOCAL_SLOT_RETRY_DELAY: Duration = Duration::from_millis(250);
/// Delay before a child's death is reported. The end of a container or session kills the parent as
/// well within this time, so such a death is not attributed to the step.
const DEATH_REPORT_DELAY: Duration = Duration::from_millis(250);

/// [`Isolator`] that starts this program as a child process for each suspect turn.
#[derive(Debug)]
pub(crate) struct ChildProcessIsolator {
    settings: SettingsSource,
    payments_url: Option<String>,
    root: PathBuf,
    agents: Option<PathBuf>,
    own_ports: OwnPorts,
    slots: ChildSlots,
    slot_retry_delay: Duration,
    /// Fallback if the operating system cannot start a child.
    in_process: InProcessIsolator,
}

impl ChildProcessIsolator {
    /// Ports of this process, which no tool of a child may reach.
    pub(crate) fn with_own_ports(self, own_ports: OwnPorts) -> Self {
        Self { own_ports, ..self }
    }

    pub(crate) fn new(
        settings: SettingsSource,
        payments_url: Option<String>,
        options: &ServiceOptions,
    ) -> Self {
        Self {
            settings,
            payments_url,
            root: options.root.clone(),
            agents: options.agents.clone(),
            own_ports: OwnPorts::default(),
            slots: ChildSlots::new(if options.is_hosted {
                HOSTED_CHILDREN_MAX
            } else {
                LOCAL_CHILDREN_MAX
            }),
            slot_retry_delay: if options.is_hosted {
                HOSTED_SLOT_RETRY_DELAY
            } else {
                LOCAL_SLOT_RETRY_DELAY
            },
            in_process: InProcessIsolator::default(),
        }
    }

    fn build_init(&self, services: &Services, nudge: &Nudge, worker: &WorkerId) -> ChildInit {
        ChildInit {
            nudge: nudge.clone(),
            worker: worker.clone(),
            settings: self.settings,
            payments_url: self.payments_url.clone(),
            root: self.root.clone(),
            agents: self.agents.clone(),
            active_agents: ActiveAgents::from(&*services.agents.current()),
            stores_notifications: services.notification_sender.is_some(),
            turn_ms: duration_ms(
                services.limits.turn_duration.saturating_sub(port_server::KILL_GRACE),
            ),
            settle_after_ms: duration_ms(services.limits.settle_after),
            own_ports: self.own_ports.to_vec(),
        }
    }
}

#[async_trait]
impl Isolator for ChildProcessIsolator {
    async fn run(&self, services: &Services, nudge: &Nudge, worker: &WorkerId) -> IsolatedOutcome {
        let deaths = count_deaths(services, &nudge.key).await;
        let slot = self.slots.reserve(&nudge.key, deaths);
        let Some(slot) = slot.filter(|_| !services.shutdown.is_begun()) else {
            return IsolatedOutcome::RetryLater { wait: self.slot_retry_delay };
        };
        let (mut child, socket) = match spawn_child() {
            Ok(started) => started,
            Err(error) => {
                tracing::error!(error = %error, "child process not started; the suspect turn runs alone in this process: {error}");
                drop(slot);
                return self.in_process.run(services, nudge, worker).await;
            }
        };
        let id = &nudge.key.conversation_id;
        tracing::info!(conversation.id = %id, process = child.id(), "suspect turn runs in isolation conversation={id}");
        let init = self.build_init(services, nudge, worker);
        match port_server::serve_child(services, &mut child, socket, &init).await {
            ChildOutcome::Ended(outcome) => IsolatedOutcome::Completed(
                outcome.map_err(|error| error.into_turn_error(&nudge.key)),
            ),
            ChildOutcome::Died(reason) => {
                tokio::time::sleep(DEATH_REPORT_DELAY).await;
                IsolatedOutcome::ProcessDied(reason)
            }
        }
    }

    async fn acquire_shared(&self) -> Option<SharedTurnPermit> {
        self.in_process.acquire_shared().await
    }
}

/// Deaths of the service during the step that others may have caused.
async fn count_deaths(services: &Services, key: &ConversationKey) -> u32 {
    let partition = Partition::Conversation(key.clone());
    let stored = services.store.read(&partition, HEAD_ID, Freshness::Any).await.ok().flatten();
    let head = stored.and_then(|stored| documents::read_head(&stored).ok());
    head.map_or(0, |head| head.leases_without_progress)
}

fn spawn_child() -> std::io::Result<(Child, UnixStream)> {
    let (parent_socket, child_socket) = std::os::unix::net::UnixStream::pair()?;
    parent_socket.set_nonblocking(true)?;
    let parent_socket = UnixStream::from_std(parent_socket)?;
    let child = Command::new(program_path()?)
        .arg(COMMAND)
        .stdin(Stdio::from(OwnedFd::from(child_socket)))
        // Ctrl-C in a terminal reaches only the parent, which gives the turn its time.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    Ok((child, parent_socket))
}

/// Path of the running program. It stays valid if the program's file is replaced.
#[cfg(target_os = "linux")]
#[expect(clippy::unnecessary_wraps, reason = "the look-up on other systems can fail")]
pub(crate) fn program_path() -> std::io::Result<PathBuf> {
    Ok(PathBuf::from("/proc/self/exe"))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn program_path() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

#[derive(Clone)]
struct ChildSlots {
    running: Arc<Mutex<Vec<RunningChild>>>,
    max: usize,
}

struct RunningChild {
    key: ConversationKey,
    /// Maximum number of children while this one runs.
    children_max: usize,
}

impl fmt::Debug for ChildSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} children", self.lock().len())
    }
}

impl ChildSlots {
    fn new(max: usize) -> Self {
        Self { running: Arc::default(), max }
    }

    /// Reserves a child slot. Returns `None` at a limit, or if the conversation already has a
    /// child.
    fn reserve(&self, key: &ConversationKey, deaths: u32) -> Option<ChildSlot> {
        let mut running = self.lock();
        let of_tenant = running.iter().filter(|it| it.key.tenant == key.tenant).count();
        let children_max = self.children_beside(deaths);
        let limit = running.iter().map(|it| it.children_max).fold(children_max, usize::min);
        let has_free_slot = running.len() < limit && of_tenant + 1 < self.max;
        if !has_free_slot || running.iter().any(|it| it.key == *key) {
            return None;
        }
        running.push(RunningChild { key: key.clone(), children_max });
        Some(ChildSlot { slots: self.clone(), key: key.clone() })
    }

    /// Maximum number of children while a step with this many deaths runs. A step that ends the
    /// whole service from its child also ends the children beside it, so each such death leaves a
    /// quarter of them, and in the end one: the next death then blames nobody else.
    fn children_beside(&self, deaths: u32) -> usize {
        let in_isolation = deaths.saturating_sub(SUSPECT_DEATHS);
        self.max.checked_shr(in_isolation.saturating_mul(2)).unwrap_or_default().max(1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<RunningChild>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reserved child slot. Dropping it frees the slot.
struct ChildSlot {
    slots: ChildSlots,
    key: ConversationKey,
}

impl Drop for ChildSlot {
    fn drop(&mut self) {
        self.slots.lock().retain(|it| it.key != self.key);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::start::test_services::TestServices;
    use turnwheel_platform::clock::Timestamp;
    use turnwheel_platform::ids::{ConversationId, TenantId, UserId};
    use turnwheel_platform::shutdown::StopTimes;

    const TIMES: StopTimes =
        StopTimes { repeatable: Duration::from_secs(4), writes: Duration::from_secs(9) };

    fn key(tenant: &str, id: &str) -> ConversationKey {
        ConversationKey {
            tenant: TenantId::new(tenant),
            user: UserId::new("u"),
            conversation_id: ConversationId::new(id),
        }
    }

    #[test]
    fn child_slots_are_limited_per_tenant_and_process() {
        let slots = ChildSlots::new(HOSTED_CHILDREN_MAX);
        let first = slots.reserve(&key("a", "1"), 0).unwrap();
        assert!(slots.reserve(&key("a", "1"), 0).is_none(), "a conversation has at most one child");
        let rest: Vec<_> = ["2", "3"].map(|id| slots.reserve(&key("a", id), 0).unwrap()).into();
        assert!(slots.reserve(&key("a", "4"), 0).is_none());
        let other = slots.reserve(&key("b", "1"), 0).unwrap();
        assert!(
            slots.reserve(&key("c", "1"), 0).is_none(),
            "the process has at most four children"
        );
        drop((first, other));
        assert!(slots.reserve(&key("a", "4"), 0).is_some());
        assert!(
            slots.reserve(&key("b", "1"), SUSPECT_DEATHS + 1).is_none(),
            "others run beside it"
        );
        drop(rest);
        let alone = slots.reserve(&key("b", "1"), SUSPECT_DEATHS + 1).unwrap();
        assert!(slots.reserve(&key("a", "1"), 0).is_none());
        drop(alone);
        assert!(slots.reserve(&key("a", "1"), 0).is_some());
    }

    #[tokio::test]
    async fn no_child_starts_in_a_process_that_ends() {
        let services = TestServices::new(Timestamp(0)).services;
        services.shutdown.begin(TIMES);
        let options = ServiceOptions::default();
        let isolator = ChildProcessIsolator::new(SettingsSource::Environment, None, &options);
        let nudge = Nudge::for_conversation(key("a", "1"), None);
        let outcome = isolator.run(&services, &nudge, &WorkerId::new("w.1")).await;
        assert!(matches!(outcome, IsolatedOutcome::RetryLater { .. }), "{outcome:?}");
        assert!(isolator.slots.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_other_turns_ends_with_the_process() {
        let services = TestServices::new(Timestamp(0)).services;
        let isolator = InProcessIsolator::default();
        let other_turn = isolator.acquire_shared().await;
        let ending = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            services.shutdown.begin(TIMES);
        };
        let nudge = Nudge::for_conversation(key("a", "1"), None);
        let (start, worker) = (Instant::now(), WorkerId::new("w.1"));
        let (outcome, ()) = tokio::join!(isolator.run(&services, &nudge, &worker), ending);
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        assert!(matches!(outcome, IsolatedOutcome::RetryLater { .. }), "{outcome:?}");
        drop(other_turn);
    }

    #[test]
    fn neighbours_of_a_killer_run_at_once_in_dev() {
        let slots = ChildSlots::new(LOCAL_CHILDREN_MAX);
        let ids: Vec<String> = (0..13).map(|number| number.to_string()).collect();
        let running: Vec<_> = ids.iter().filter_map(|id| slots.reserve(&key("a", id), 0)).collect();
        assert_eq!(running.len(), 13);
        assert!(slots.reserve(&key("b", "1"), 0).is_some());
    }

    /// Of a step that ends the whole service the conversations beside it are soon separated: four
    /// at a time run after the first death in isolation, then one.
    #[test]
    fn deaths_in_isolation_leave_a_quarter_of_the_children() {
        let slots = ChildSlots::new(LOCAL_CHILDREN_MAX);
        let reserve = |deaths: u32| -> usize {
            let ids: Vec<String> = (0..13).map(|number| number.to_string()).collect();
            let running: Vec<_> =
                ids.iter().filter_map(|id| slots.reserve(&key("a", id), deaths)).collect();
            running.len()
        };
        let counts = [0, 2, 3, 4, 5, u32::MAX].map(reserve);
        assert_eq!(counts, [13, 13, 4, 1, 1, 1]);
        let first = slots.reserve(&key("a", "1"), 3).unwrap();
        assert!(slots.reserve(&key("a", "2"), 4).is_none(), "another runs beside it");
        let second = slots.reserve(&key("a", "3"), 2).unwrap();
        drop((first, second));
        let alone = slots.reserve(&key("a", "2"), 4).unwrap();
        assert!(slots.reserve(&key("a", "1"), 2).is_none(), "it runs alone");
        drop(alone);
    }
}
