//! Shared state of all routes: services, access rules and the keys of approval links.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::http::approval_token::SigningKeys;
use crate::http::body::BODIES_KIB_MAX;
use crate::http::events::STREAMS_MAX;
use crate::http::health::HealthCache;
use crate::services::Services;
use crate::settings::Settings;
use crate::settings::links::Auth;
use crate::settings::origins::AllowedOrigins;

/// Authentication mode and allowed browser origins.
#[derive(Clone, Debug)]
pub struct Access {
    pub auth: Auth,
    /// True if App Service Authentication is on. Without it, any client can send its header.
    pub is_sign_in_on: bool,
    /// True in `dev`: a request without `Turnwheel-User` belongs to user `default`.
    pub is_dev: bool,
    pub allowed_origins: AllowedOrigins,
    /// Public address, without a trailing slash. `None` if only the `Host` header names the app.
    pub public_url: Option<String>,
}

impl Access {
    pub fn from_settings(settings: &Settings) -> Self {
        Self {
            auth: settings.auth.unwrap_or(Auth::Keys),
            is_sign_in_on: settings.is_sign_in_on,
            is_dev: settings.is_dev,
            allowed_origins: settings.allowed_origins.clone(),
            public_url: settings.public_url.clone(),
        }
    }

    /// The rules of `dev`.
    pub fn dev() -> Self {
        Self {
            auth: Auth::Header,
            is_sign_in_on: false,
            is_dev: true,
            allowed_origins: AllowedOrigins::default().with_loopback(),
            public_url: None,
        }
    }
}

pub struct Api {
    pub services: Services,
    pub access: Access,
    pub signing_keys: SigningKeys,
    pub(crate) health: HealthCache,
    /// Free slots for event streams.
    pub(crate) stream_slots: Arc<Semaphore>,
    /// Free kibibytes for large request bodies received concurrently.
    pub(crate) body_kib: Semaphore,
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
            stream_slots,
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
