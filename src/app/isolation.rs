//! Isolation of suspect turns in child processes of the same program.
//!
//! A child runs one turn and reaches the store only through its parent. Both exchange messages over
//! a socket, which is the standard input of the child. The child exits when the socket closes, so
//! it never outlives the parent's lock of the data folder. It needs no identity, no connection of
//! its own and no SDK start-up.

pub(super) mod child;
mod ports;
mod serving;
mod wire;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use self::serving::Served;
pub(super) use self::wire::SettingsSource;
use self::wire::{Beginning, span_ms};
use crate::app::agent_files::AgentsInForce;
use crate::app::service::ServiceOptions;
use crate::ids::{ConversationKey, TenantId, WorkerId};
use crate::turn::isolation::{InProcess, Isolated, Isolator, Shared};
use crate::turn::{Nudge, World};

/// Name of the hidden command that the child runs.
pub(super) const COMMAND: &str = "isolated-turn";
/// Maximum number of children of a process. Each uses about 30 MB for the time of one delivery.
const CHILDREN_MAX: usize = 4;
/// Maximum number of children for one tenant. It leaves one child for other tenants.
const CHILDREN_OF_TENANT_MAX: usize = 3;
/// Delay before the next attempt of a suspect step that found no free child. Meanwhile the
/// conversation has no lease and occupies no worker.
const ROOM_AGAIN: Duration = Duration::from_secs(2);
/// Delay before a child's death is reported. The end of a container or session kills the parent as
/// well within this time, so such a death is not attributed to the step.
const PARENT_FIRST: Duration = Duration::from_millis(250);

/// [`Isolator`] that starts this program as a child process for each suspect turn.
#[derive(Debug)]
pub(super) struct ChildProcesses {
    settings: SettingsSource,
    payments_url: Option<String>,
    root: PathBuf,
    agents: Option<PathBuf>,
    children: Children,
    /// Fallback if the operating system cannot start a child.
    alone: InProcess,
}

impl ChildProcesses {
    pub(super) fn new(
        settings: SettingsSource,
        payments_url: Option<String>,
        options: &ServiceOptions,
    ) -> Self {
        Self {
            settings,
            payments_url,
            root: options.root.clone(),
            agents: options.agents.clone(),
            children: Children::default(),
            alone: InProcess::default(),
        }
    }

    fn beginning(&self, world: &World, nudge: &Nudge, worker: &WorkerId) -> Beginning {
        Beginning {
            nudge: nudge.clone(),
            worker: worker.clone(),
            settings: self.settings,
            payments_url: self.payments_url.clone(),
            root: self.root.clone(),
            agents: self.agents.clone(),
            agents_in_force: AgentsInForce::from(&*world.agents.now()),
            writes_notices: world.herald.is_some(),
            turn_ms: span_ms(world.limits.turn),
            settle_after_ms: span_ms(world.limits.settle_after),
        }
    }
}

#[async_trait]
impl Isolator for ChildProcesses {
    async fn run(&self, world: &World, nudge: &Nudge, worker: &WorkerId) -> Isolated {
        let Some(place) = self.children.add(&nudge.key) else {
            return Isolated::NotNow { wait: ROOM_AGAIN };
        };
        let (mut child, socket) = match start() {
            Ok(started) => started,
            Err(error) => {
                tracing::error!(error = %error, "child process not started; the suspect turn runs alone in this process: {error}");
                drop(place);
                return self.alone.run(world, nudge, worker).await;
            }
        };
        let id = &nudge.key.conversation_id;
        tracing::info!(conversation.id = %id, process = child.id(), "suspect turn runs in isolation conversation={id}");
        let beginning = self.beginning(world, nudge, worker);
        match serving::serve(world, &mut child, socket, &beginning).await {
            Served::Ended(outcome) => {
                Isolated::Ended(outcome.map_err(|fault| fault.of(&nudge.key)))
            }
            Served::Died(how) => {
                tokio::time::sleep(PARENT_FIRST).await;
                Isolated::Died(how)
            }
        }
    }

    async fn enter(&self) -> Option<Shared> {
        self.alone.enter().await
    }
}

fn start() -> std::io::Result<(Child, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = UnixStream::from_std(ours)?;
    let child = Command::new(program()?)
        .arg(COMMAND)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        // Ctrl-C in a terminal reaches only the parent, which lets the turn finish.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    Ok((child, ours))
}

/// Path of the running program. It stays valid if the program's file is replaced.
#[cfg(target_os = "linux")]
#[expect(clippy::unnecessary_wraps, reason = "the look-up on other systems can fail")]
fn program() -> std::io::Result<PathBuf> {
    Ok(PathBuf::from("/proc/self/exe"))
}

#[cfg(not(target_os = "linux"))]
fn program() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

/// Conversations whose turns run in children.
#[derive(Clone, Default)]
struct Children(Arc<Mutex<Vec<ConversationKey>>>);

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} children", self.lock().len())
    }
}

impl Children {
    /// Reserves a child slot. Returns `None` at a limit, or if the conversation already has a
    /// child.
    fn add(&self, key: &ConversationKey) -> Option<Place> {
        let mut running = self.lock();
        let of_tenant =
            |tenant: &TenantId| running.iter().filter(|it| it.tenant == *tenant).count();
        let has_room =
            running.len() < CHILDREN_MAX && of_tenant(&key.tenant) < CHILDREN_OF_TENANT_MAX;
        if !has_room || running.contains(key) {
            return None;
        }
        running.push(key.clone());
        Some(Place { children: self.clone(), key: key.clone() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<ConversationKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reserved child slot. Dropping it frees the slot.
struct Place {
    children: Children,
    key: ConversationKey,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.children.lock().retain(|key| *key != self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ConversationId, UserId};

    fn key(tenant: &str, id: &str) -> ConversationKey {
        ConversationKey {
            tenant: TenantId::new(tenant),
            user: UserId::new("u"),
            conversation_id: ConversationId::new(id),
        }
    }

    #[test]
    fn one_tenant_leaves_room_for_others() {
        let children = Children::default();
        let first = children.add(&key("a", "1")).unwrap();
        assert!(children.add(&key("a", "1")).is_none(), "a conversation has at most one child");
        let rest: Vec<_> = ["2", "3"].map(|id| children.add(&key("a", id)).unwrap()).into();
        assert!(children.add(&key("a", "4")).is_none());
        let other = children.add(&key("b", "1")).unwrap();
        assert!(children.add(&key("c", "1")).is_none(), "the process has at most four children");
        drop((first, other));
        assert!(children.add(&key("a", "4")).is_some());
        drop(rest);
    }
}
