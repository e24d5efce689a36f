//! What every route shares: the world, who may ask, and the keys of approval links.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::http::body::BODIES_KIB_MAX;
use crate::http::events::STREAMS_MAX;
use crate::http::health::Health;
use crate::http::token::SigningKeys;
use crate::settings::links::Auth;
use crate::turn::World;

pub struct Api {
    pub world: World,
    pub auth: Auth,
    /// Whether the platform's sign-in stands in front: only then is its header believed.
    pub is_sign_in_on: bool,
    pub keys: SigningKeys,
    pub(crate) health: Health,
    /// Streams of events that may still begin.
    pub(crate) streams: Arc<Semaphore>,
    /// Kibibytes of large bodies that may still be taken in at the same time.
    pub(crate) bodies: Semaphore,
}

impl Api {
    pub fn new(world: World, auth: Auth, is_sign_in_on: bool, keys: SigningKeys) -> Self {
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        let bodies = Semaphore::new(BODIES_KIB_MAX);
        Self { world, auth, is_sign_in_on, keys, health: Health::default(), streams, bodies }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("auth", &self.auth).finish_non_exhaustive()
    }
}

pub(crate) type Shared = Arc<Api>;
