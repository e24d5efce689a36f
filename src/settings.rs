//! What the app is told from outside: the only reader of the environment, once, with all mistakes at once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub mod azure;
pub mod brakes;
pub mod budgets;
pub mod halt;
mod hooks;
pub mod links;
pub mod local;
pub mod mistake;
pub mod model;
mod names;
pub mod origins;
pub mod rates;
mod reader;
pub mod secret;
pub mod table;
pub mod telemetry;
#[cfg(test)]
mod tests;

use azure::{CosmosAccount, Identity, StorageAccount};
use brakes::Brakes;
use budgets::Budgets;
use halt::HaltAt;
use links::{ArtifactLinks, Auth, Webhook};
use mistake::Mistake;
use model::ModelSettings;
use origins::AllowedOrigins;
use rates::RateLimits;
use reader::Reader;
pub use reader::{UNRESOLVED, is_unresolved};
use secret::Secret;
use telemetry::TelemetrySettings;

/// Everything below is checked; what is absent was not set, or was set to nothing.
#[derive(Clone, Debug)]
pub struct Settings {
    pub model: ModelSettings,
    /// `FUNCTIONS_CUSTOMHANDLER_PORT`: the Functions host started us.
    pub port: Option<u16>,
    /// Absent: `keys` when served, `header` in `dev`.
    pub auth: Option<Auth>,
    /// `WEBSITE_AUTH_ENABLED`: the platform removes forged `X-MS-CLIENT-PRINCIPAL` headers only when it is.
    pub is_sign_in_on: bool,
    /// Pages of other origins that may call the API.
    pub allowed_origins: AllowedOrigins,
    /// `dev` runs on a developer's machine: callers need no identity.
    pub is_dev: bool,
    /// Where people reach us, without a slash at the end; the start of every approval link.
    pub public_url: Option<String>,
    /// At least 32 bytes each. The first signs, all verify.
    pub signing_keys: Vec<Secret<Vec<u8>>>,
    pub webhook: Option<Webhook>,
    /// Relative to the working folder; `agents` when not set.
    pub agents_dir: PathBuf,
    pub default_agent: Option<String>,
    /// `host`, `host:port`, an address or a CIDR range each.
    pub http_tools_allow: Vec<String>,
    /// The app's own: of whatever names no other.
    pub identity: Identity,
    /// Absent: none is named. In Azure it is needed to serve.
    pub storage: Option<StorageAccount>,
    pub artifact_links: ArtifactLinks,
    /// Of tenants, users and agents.
    pub budgets: Budgets,
    pub rate_limits: RateLimits,
    /// Whether they are about anything there is, is seen when the agents are read.
    pub brakes: Brakes,
    /// How long one hook of an extension may take; absent: 5 s.
    pub hook_timeout: Option<Duration>,
    /// Absent: the embedded store, which Azure refuses.
    pub cosmos: Option<CosmosAccount>,
    pub is_in_azure: bool,
    /// Directives of `RUST_LOG`; `telemetry` has been shown to understand them.
    pub log: String,
    pub telemetry: TelemetrySettings,
    pub halt_at: Option<HaltAt>,
    app_settings: AppSettings,
}

/// A name's value, from wherever it comes.
pub type Lookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Where values come from; kept for the `${NAME}` of agent files, which are not known beforehand.
#[derive(Clone)]
struct AppSettings(Lookup);

impl fmt::Debug for AppSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AppSettings")
    }
}

/// One variable of the process; text that is no UTF-8 arrives damaged, so that its check fails by name.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of the environment")]
pub fn environment(name: &str) -> Option<String> {
    match std::env::var(name) {
        Ok(value) => Some(value),
        Err(std::env::VarError::NotPresent) => None,
        Err(std::env::VarError::NotUnicode(raw)) => Some(raw.to_string_lossy().into_owned()),
    }
}

/// The names of the process's variables.
fn environment_names() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
}

fn with_mistakes(
    read: Result<Settings, Vec<Mistake>>,
    more: Vec<Mistake>,
) -> Result<Settings, Vec<Mistake>> {
    match read {
        Ok(settings) if more.is_empty() => Ok(settings),
        Ok(_) => Err(more),
        Err(mistakes) => Err(mistakes.into_iter().chain(more).collect()),
    }
}

impl Settings {
    /// Those of the process's environment.
    ///
    /// # Errors
    /// As [`Settings::read`]; also for each variable that begins like ours and is no setting.
    pub fn of_environment() -> Result<Self, Vec<Mistake>> {
        let unknown = names::unknown(environment_names());
        with_mistakes(Self::read(environment), unknown)
    }

    /// Those of a developer's machine: the environment, behind it `local.settings.json` in that folder.
    ///
    /// # Errors
    /// As [`Settings::of_environment`], for the file too.
    pub fn of_folder(folder: &Path) -> Result<Self, Vec<Mistake>> {
        let values = local::read(folder).map_err(|mistake| vec![mistake])?;
        let unknown = names::unknown(environment_names().chain(values.keys().cloned()));
        with_mistakes(Self::read(local::behind_environment(values)), unknown)
    }

    /// Reads each setting of [`table::ROWS`] that is ours. An empty value counts as absent, as in the portal.
    ///
    /// # Errors
    /// Every mistake, in the order of the table: show them all and do not start.
    pub fn read(
        lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, Vec<Mistake>> {
        let lookup = Arc::new(lookup);
        let mut reader = Reader::new(&*lookup);
        let is_in_azure = reader.is_in_azure();
        let model = ModelSettings::read(&mut reader);
        let identity = Identity::read(&mut reader, is_in_azure);
        let storage = StorageAccount::read(&mut reader, &identity, is_in_azure);
        let settings = Self {
            model,
            port: reader.port(),
            auth: Auth::read(&mut reader),
            is_sign_in_on: reader.flag("WEBSITE_AUTH_ENABLED"),
            allowed_origins: AllowedOrigins::read(&mut reader),
            is_dev: false,
            public_url: links::public_url(&mut reader),
            signing_keys: links::signing_keys(&mut reader),
            webhook: Webhook::read(&mut reader),
            agents_dir: reader.text("TURNWHEEL_AGENTS_DIR").unwrap_or("agents".to_owned()).into(),
            default_agent: reader.agent_name("TURNWHEEL_DEFAULT_AGENT"),
            http_tools_allow: reader.hosts("TURNWHEEL_HTTP_TOOLS_ALLOW"),
            artifact_links: ArtifactLinks::read(&mut reader, storage.as_ref()),
            storage,
            budgets: budgets::read(&mut reader),
            rate_limits: rates::read(&mut reader),
            brakes: brakes::read(&mut reader),
            hook_timeout: hooks::read(&mut reader),
            cosmos: CosmosAccount::read(&mut reader, &identity),
            telemetry: TelemetrySettings::read(&mut reader, &identity),
            identity,
            is_in_azure,
            log: reader.log(),
            halt_at: HaltAt::read(&mut reader, is_in_azure),
            app_settings: AppSettings(Arc::clone(&lookup) as _),
        };
        let mut mistakes = reader.all_mistakes();
        if mistakes.is_empty() {
            return Ok(settings);
        }
        mistakes.sort_by_key(|mistake| table::position(&mistake.name));
        Err(mistakes)
    }

    /// As `dev` has them: callers name themselves, and pages of this machine may call.
    #[must_use]
    pub fn for_dev(self) -> Self {
        let allowed_origins = self.allowed_origins.clone().with_loopback();
        Self { auth: self.auth.or(Some(Auth::Header)), is_dev: true, allowed_origins, ..self }
    }

    /// The value behind `${NAME}` in an agent file.
    pub fn app_setting(&self, name: &str) -> Option<String> {
        (self.app_settings.0)(name).filter(|value| !value.trim().is_empty())
    }

    /// The lookup behind [`Settings::app_setting`], for who outlives the settings.
    pub fn app_settings(&self) -> Lookup {
        let settings = self.clone();
        Arc::new(move |name| settings.app_setting(name))
    }

    /// Answers `value` for an app setting that is not set: `dev` brings the example's server with it.
    #[must_use]
    pub fn with_app_setting(mut self, name: &'static str, value: String) -> Self {
        let before = self.app_settings.0;
        self.app_settings = AppSettings(Arc::new(move |asked| {
            let set = before(asked).filter(|set| !set.trim().is_empty());
            if asked == name { set.or_else(|| Some(value.clone())) } else { set }
        }));
        self
    }

    /// What is needed to serve and what `dev` makes for itself; empty when nothing is missing.
    pub fn missing_to_serve(&self) -> Vec<Mistake> {
        let mut missing = Vec::new();
        if self.is_in_azure && self.storage.is_none() {
            missing.push(StorageAccount::missing());
        }
        if self.is_in_azure && self.cosmos.is_none() {
            missing.push(CosmosAccount::missing());
        }
        if let Some(mistake) = self.model.missing() {
            missing.push(mistake);
        }
        if self.public_url.is_none() {
            missing.push(Mistake::absent(
                "TURNWHEEL_PUBLIC_URL",
                "the address people reach the app at, such as https://my-app.azurewebsites.net: approval links begin with it",
            ));
        }
        if self.signing_keys.is_empty() {
            missing.push(Mistake::absent(
                "TURNWHEEL_SIGNING_KEYS",
                "at least one key of 32 or more random bytes in base64 (`head -c 32 /dev/urandom | base64` makes one): it signs approval links",
            ));
        }
        missing
    }
}
