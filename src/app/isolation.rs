//! Suspect steps in processes of their own: this program once more, for one turn, with no access to the store but through the
//! process that started it.
//!
//! The child speaks to its parent over a socket that is its standard input. It ends with the socket, so it never outlives the
//! parent's lock of a data folder; and it needs no identity, no second connection and no second start of an SDK.

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

/// The hidden command that the child runs.
pub(super) const COMMAND: &str = "isolated-turn";
/// Children of one process: each takes some 30 MB and the time of one delivery.
const CHILDREN_MAX: usize = 4;
/// Of one tenant, so that another one's suspect step finds room too.
const CHILDREN_OF_TENANT_MAX: usize = 3;
/// Until a suspect step for which there was no room comes again; it holds no lease and no worker meanwhile.
const ROOM_AGAIN: Duration = Duration::from_secs(2);
/// Who kills a container or a session kills parent and child within this: such a death is nobody's.
const PARENT_FIRST: Duration = Duration::from_millis(250);

/// Starts this program for one turn.
#[derive(Debug)]
pub(super) struct ChildProcesses {
    settings: SettingsSource,
    payments_url: Option<String>,
    root: PathBuf,
    agents: Option<PathBuf>,
    children: Children,
    /// Where no child can be started.
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
                tracing::error!(error = %error, "no process can be started for a suspect turn, which runs alone in this one: {error}");
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
        // Ctrl-C in a terminal goes to the parent, which lets the turn come to its end.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    Ok((child, ours))
}

/// This very program, also when its file has been replaced since it was started.
#[cfg(target_os = "linux")]
#[expect(clippy::unnecessary_wraps, reason = "other systems look for the file")]
fn program() -> std::io::Result<PathBuf> {
    Ok(PathBuf::from("/proc/self/exe"))
}

#[cfg(not(target_os = "linux"))]
fn program() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

/// The conversations whose turns run in children.
#[derive(Clone, Default)]
struct Children(Arc<Mutex<Vec<ConversationKey>>>);

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} children", self.lock().len())
    }
}

impl Children {
    /// `None`: there is no room, or the conversation has a child already.
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

/// A child's place among the others; free again when it is dropped.
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
        assert!(children.add(&key("a", "1")).is_none(), "one child for one conversation");
        let rest: Vec<_> = ["2", "3"].map(|id| children.add(&key("a", id)).unwrap()).into();
        assert!(children.add(&key("a", "4")).is_none());
        let other = children.add(&key("b", "1")).unwrap();
        assert!(children.add(&key("c", "1")).is_none(), "there are four at most");
        drop((first, other));
        assert!(children.add(&key("a", "4")).is_some());
        drop(rest);
    }
}
