//! Shared state of all routes: services, access rules and the keys of approval links.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use crate::approval_token::SigningKeys;
use crate::auth::Access;
use crate::body::BODIES_KIB_MAX;
use crate::doctor::Doctor;
use crate::events::STREAMS_MAX;
use crate::health::HealthCache;
use crate::long_poll::WAITS_MAX;
use turnwheel_commands::waiting_client::WaitingClients;
use turnwheel_record::services::Services;

/// A process that requests can kill.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessIdentity {
    pub id: u32,
    /// A request to kill the process repeats it.
    pub nonce: String,
}

pub struct Api {
    pub services: Services,
    pub access: Access,
    pub signing_keys: SigningKeys,
    pub health: HealthCache,
    /// The process that the kill demonstration of `dev` can end.
    pub process: Option<ProcessIdentity>,
    /// `None` if the program cannot check itself.
    pub doctor: Option<Arc<dyn Doctor>>,
    /// Clients of `execution: here`. `None`: workers take all turns.
    pub waiting_clients: Option<Arc<WaitingClients>>,
    /// Free slots for event streams.
    pub stream_slots: Arc<Semaphore>,
    /// Free slots for requests that wait.
    pub wait_slots: Semaphore,
    /// Free kibibytes for large request bodies received concurrently.
    pub body_kib: Semaphore,
}

impl Api {
    pub fn new(services: Services, access: Access, signing_keys: SigningKeys) -> Self {
        let stream_slots = Arc::new(Semaphore::new(STREAMS_MAX));
        let body_kib = Semaphore::new(BODIES_KIB_MAX);
        Self {
            services,
            access,
            signing_keys,
            health: HealthCache::default(),
            process: None,
            doctor: None,
            waiting_clients: None,
            stream_slots,
            wait_slots: Semaphore::new(WAITS_MAX),
            body_kib,
        }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("access", &self.access).finish_non_exhaustive()
    }
}

pub(crate) type SharedApi = Arc<Api>;
