//! What every route shares: the world, who may ask, and the keys of approval links.

use std::fmt;
use std::sync::Arc;

use crate::http::health::Health;
use crate::http::token::SigningKeys;
use crate::settings::Settings;
use crate::settings::links::Auth;
use crate::turn::World;

pub struct Api {
    pub world: Arc<World>,
    pub auth: Auth,
    /// Whether the platform's sign-in stands in front: only then is its header believed.
    pub is_sign_in_on: bool,
    pub keys: SigningKeys,
    pub(crate) health: Health,
}

impl Api {
    /// As the settings have it; without `TURNWHEEL_AUTH`, function keys.
    pub fn new(world: Arc<World>, settings: &Settings, keys: SigningKeys) -> Self {
        Self::known_by(world, settings.auth.unwrap_or(Auth::Keys), keys)
            .with_sign_in(settings.is_sign_in_on)
    }

    pub fn known_by(world: Arc<World>, auth: Auth, keys: SigningKeys) -> Self {
        Self { world, auth, is_sign_in_on: false, keys, health: Health::default() }
    }

    #[must_use]
    pub fn with_sign_in(self, is_sign_in_on: bool) -> Self {
        Self { is_sign_in_on, ..self }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("auth", &self.auth).finish_non_exhaustive()
    }
}

pub(crate) type Shared = Arc<Api>;
