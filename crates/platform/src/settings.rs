//! App settings: the only reader of the environment. Reads it once and reports all errors together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use url::Url;

pub mod azure;
pub mod budgets;
mod counts;
pub mod fail_point;
mod hook_timeout;
pub mod links;
pub(crate) mod local_file;
pub mod mistake;
pub mod model;
pub mod origins;
pub mod pauses;
pub mod rate_limits;
mod reader;
pub mod secret;
pub mod shell;
pub mod table;
pub mod telemetry;
#[cfg(test)]
mod tests;
mod unknown_names;

use azure::{AzureIdentity, CosmosAccount, StorageAccount};
use budgets::Budgets;
use fail_point::ArmedFailPoint;
use links::{ArtifactLinks, Auth, HostNames, Webhook};
use mistake::SettingMistake;
use model::ModelSettings;
use origins::AllowedOrigins;
use pauses::Pauses;
use rate_limits::RateLimits;
use reader::Reader;
pub use reader::{UNRESOLVED, is_unresolved};
use secret::Secret;
use telemetry::TelemetrySettings;

use crate::text_encoding::{skip_byte_order_mark, trim_text};

/// Validated settings. An absent value was not set, or was set to an empty text.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    pub model: ModelSettings,
    /// `FUNCTIONS_CUSTOMHANDLER_PORT`. Present if the Functions host started the process.
    pub port: Option<u16>,
    /// `FUNCTIONS_APP_ROOT_PATH`: the folder of `host.json` that the Functions host runs.
    pub app_root: Option<PathBuf>,
    pub host_names: HostNames,
    /// Absent: `keys` when served, `header` in `dev`.
    pub auth: Option<Auth>,
    /// `WEBSITE_AUTH_ENABLED`. Only then does the platform remove forged
    /// `X-MS-CLIENT-PRINCIPAL` headers.
    pub is_sign_in_on: bool,
    /// Origins of other sites whose pages may call the API.
    pub allowed_origins: AllowedOrigins,
    /// True in `dev`, which runs on a developer's machine: callers need no identity.
    pub is_dev: bool,
    /// The app's public address without a trailing slash; every approval link begins with it.
    pub public_url: Option<String>,
    /// At least 32 bytes each. The first key signs, all keys verify.
    pub signing_keys: Vec<Secret<Vec<u8>>>,
    /// `TURNWHEEL_CONSOLE`. Absent: on in `dev`, else off.
    pub console: Option<bool>,
    pub webhook: Option<Webhook>,
    /// Relative to the working folder; `agents` when not set.
    pub agents_dir: PathBuf,
    pub default_agent: Option<String>,
    /// Each is `host`, `host:port`, an address or a CIDR range.
    pub http_tools_allow: Vec<String>,
    /// MCP servers of `mcp.json` that `dev` may start as programs.
    pub mcp_stdio: Vec<String>,
    /// Runner of the tools `bash` and `shell`.
    pub shell: shell::ShellMode,
    /// The app's own identity, for every connection that names no other.
    pub identity: AzureIdentity,
    /// Absent: no account is configured. Required to serve in Azure.
    pub storage: Option<StorageAccount>,
    pub artifact_links: ArtifactLinks,
    /// Spending limits of tenants, users and agents.
    pub budgets: Budgets,
    pub rate_limits: RateLimits,
    /// Unknown names are reported when the agents are loaded.
    pub pauses: Pauses,
    /// Time limit of one extension hook; absent: 5 s.
    pub hook_timeout: Option<Duration>,
    /// Prompts in a row that extensions may start in a conversation; absent: 8.
    pub extension_prompts_max: Option<u32>,
    /// Turns of one owner that this instance runs at once; absent: no limit.
    pub owner_turns_max: Option<u32>,
    /// Absent: the embedded store, which is rejected in Azure.
    pub cosmos: Option<CosmosAccount>,
    pub is_in_azure: bool,
    /// Directives of `RUST_LOG`, already validated by `tracing_subscriber`.
    pub log_filter: String,
    pub telemetry: TelemetrySettings,
    pub armed_fail_point: Option<ArmedFailPoint>,
    app_settings: AppSettings,
}

/// Looks up a setting by name.
pub type Lookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The source of values that are read later: `${NAME}` references of agent files, and settings of the
/// Functions host.
#[derive(Clone)]
struct AppSettings {
    lookup: Lookup,
    /// Names that begin with [`HOST_SETTING_PREFIX`].
    host_setting_names: BTreeSet<String>,
}

/// First part of the names of settings that override `host.json`, compared case-insensitively.
pub const HOST_SETTING_PREFIX: &str = "AzureFunctionsJobHost";

fn find_host_setting_names(names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let is_of_host = |name: &String| {
        let start = name.get(..HOST_SETTING_PREFIX.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(HOST_SETTING_PREFIX))
    };
    names.into_iter().filter(is_of_host).collect()
}

/// Like [`find_host_setting_names`], of the environment and `local.settings.json`. The Functions tools
/// add no empty value of the file to the environment.
fn find_folder_host_setting_names(
    environment: impl Iterator<Item = String>,
    file: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let added = file.iter().filter(|(_, value)| !value.is_empty());
    find_host_setting_names(environment.chain(added.map(|(name, _)| name.clone())))
}

impl fmt::Debug for AppSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AppSettings")
    }
}

/// One variable of the process. Text that is not UTF-8 is converted with losses, so that the
/// validation of that setting fails and names it.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of the environment")]
pub fn environment(name: &str) -> Option<String> {
    match std::env::var(name) {
        Ok(value) => Some(value),
        Err(std::env::VarError::NotPresent) => None,
        Err(std::env::VarError::NotUnicode(raw)) => Some(raw.to_string_lossy().into_owned()),
    }
}

fn environment_names() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
}

fn add_mistakes(
    read: Result<ServiceSettings, Vec<SettingMistake>>,
    additional: Vec<SettingMistake>,
) -> Result<ServiceSettings, Vec<SettingMistake>> {
    match read {
        Ok(settings) if additional.is_empty() => Ok(settings),
        Ok(_) => Err(additional),
        Err(mistakes) => Err(mistakes.into_iter().chain(additional).collect()),
    }
}

impl ServiceSettings {
    /// Reads the settings from the process's environment.
    ///
    /// # Errors
    /// As [`ServiceSettings::read`], and for each variable with our prefix that is not a setting.
    pub fn from_environment() -> Result<Self, Vec<SettingMistake>> {
        Self::read_process(environment, &BTreeMap::new())
    }

    /// Reads the settings of a developer's machine: the environment, then `local.settings.json` in
    /// the folder.
    ///
    /// # Errors
    /// As [`ServiceSettings::from_environment`], and for the file.
    pub fn from_folder(folder: &Path) -> Result<Self, Vec<SettingMistake>> {
        let values = local_file::read(folder).map_err(|mistake| vec![mistake])?;
        Self::read_process(local_file::lookup_environment_first(values.clone()), &values)
    }

    /// Reads the settings, and checks and lists the names in the environment and in `file`.
    fn read_process(
        lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        file: &BTreeMap<String, String>,
    ) -> Result<Self, Vec<SettingMistake>> {
        let unknown = unknown_names::find_unknown(environment_names().chain(file.keys().cloned()));
        let mut settings = add_mistakes(Self::read(lookup), unknown)?;
        settings.app_settings.host_setting_names =
            find_folder_host_setting_names(environment_names(), file);
        Ok(settings)
    }

    /// Reads each setting of [`table::ROWS`] that Turnwheel reads. An empty value counts as absent,
    /// as in the Azure portal. Settings of the Functions host are not listed.
    ///
    /// # Errors
    /// All errors, in the order of the table. Show them all and do not start.
    pub fn read(
        lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, Vec<SettingMistake>> {
        let lookup = Arc::new(lookup);
        let mut reader = Reader::new(&*lookup);
        let is_in_azure = reader.is_in_azure();
        let model = ModelSettings::read(&mut reader);
        let identity = AzureIdentity::read(&mut reader, is_in_azure);
        let storage = StorageAccount::read(&mut reader, &identity, is_in_azure);
        let settings = Self {
            model,
            port: reader.read_port(),
            app_root: reader.get("FUNCTIONS_APP_ROOT_PATH").map(PathBuf::from),
            host_names: HostNames::read(&reader),
            auth: Auth::read(&mut reader),
            is_sign_in_on: reader.read_flag("WEBSITE_AUTH_ENABLED"),
            allowed_origins: AllowedOrigins::read(&mut reader),
            is_dev: false,
            public_url: links::read_public_url(&mut reader),
            signing_keys: links::read_signing_keys(&mut reader),
            console: links::read_console(&mut reader),
            webhook: Webhook::read(&mut reader),
            agents_dir: reader.get("TURNWHEEL_AGENTS_DIR").unwrap_or("agents".to_owned()).into(),
            default_agent: reader.read_agent_name("TURNWHEEL_DEFAULT_AGENT"),
            http_tools_allow: reader.read_hosts("TURNWHEEL_HTTP_TOOLS_ALLOW"),
            mcp_stdio: reader.read_list("TURNWHEEL_MCP_STDIO"),
            shell: shell::read(&mut reader),
            artifact_links: ArtifactLinks::read(&mut reader, storage.as_ref()),
            storage,
            budgets: budgets::read(&mut reader),
            rate_limits: rate_limits::read(&mut reader),
            pauses: pauses::read(&mut reader),
            hook_timeout: hook_timeout::read(&mut reader),
            extension_prompts_max: counts::read_extension_prompts(&mut reader),
            owner_turns_max: counts::read_owner_turns(&mut reader),
            cosmos: CosmosAccount::read(&mut reader, &identity),
            telemetry: TelemetrySettings::read(&mut reader, &identity),
            identity,
            is_in_azure,
            log_filter: reader.read_log_filter(),
            armed_fail_point: ArmedFailPoint::read(&mut reader, is_in_azure),
            app_settings: AppSettings {
                lookup: Arc::clone(&lookup) as _,
                host_setting_names: BTreeSet::new(),
            },
        };
        let mut mistakes = reader.into_mistakes();
        if mistakes.is_empty() {
            return Ok(settings);
        }
        mistakes.sort_by_key(|mistake| table::row_index(&mistake.name));
        Err(mistakes)
    }

    /// The settings for `dev`: callers name themselves, and pages of this machine may call the API.
    #[must_use]
    pub fn with_dev_defaults(self) -> Self {
        let allowed_origins = self.allowed_origins.clone().with_loopback();
        Self { auth: self.auth.or(Some(Auth::Header)), is_dev: true, allowed_origins, ..self }
    }

    /// True if the web console is served.
    pub fn has_console(&self) -> bool {
        self.console.unwrap_or(self.is_dev)
    }

    /// The value of `${NAME}` in an agent file, without a byte order mark before it.
    pub fn app_setting(&self, name: &str) -> Option<String> {
        let value = (self.app_settings.lookup)(name)?;
        (!trim_text(&value).is_empty()).then(|| skip_byte_order_mark(&value).to_owned())
    }

    /// Names and values of the settings that override `host.json` for the Functions host, ordered by
    /// name. A value may be empty.
    pub fn host_settings(&self) -> Vec<(String, String)> {
        let AppSettings { lookup, host_setting_names } = &self.app_settings;
        host_setting_names.iter().filter_map(|name| Some((name.clone(), lookup(name)?))).collect()
    }

    /// The host name of the app's public address.
    pub fn public_host(&self) -> Option<String> {
        let url = Url::parse(self.public_url.as_deref()?).ok()?;
        url.host_str().map(str::to_owned)
    }

    /// The lookup of [`ServiceSettings::app_setting`], for callers that outlive the settings.
    pub fn app_settings(&self) -> Lookup {
        let settings = self.clone();
        Arc::new(move |name| settings.app_setting(name))
    }

    /// Uses `value` for an app setting that is not set. `dev` sets the address of the example's
    /// server with it.
    #[must_use]
    pub fn with_app_setting(mut self, name: impl Into<String>, value: String) -> Self {
        let name = name.into();
        let AppSettings { lookup: previous, mut host_setting_names } = self.app_settings;
        host_setting_names.extend(find_host_setting_names([name.clone()]));
        let lookup: Lookup = Arc::new(move |requested| {
            let set = previous(requested);
            if requested != name {
                return set;
            }
            set.filter(|set| !trim_text(set).is_empty()).or_else(|| Some(value.clone()))
        });
        self.app_settings = AppSettings { lookup, host_setting_names };
        self
    }

    /// Settings that are required to serve and that `dev` generates itself; empty if all are set.
    pub fn missing_required(&self) -> Vec<SettingMistake> {
        let mut missing = Vec::new();
        if self.is_in_azure && self.storage.is_none() {
            missing.push(StorageAccount::missing_account());
        }
        if self.is_in_azure && self.cosmos.is_none() {
            missing.push(CosmosAccount::missing_account());
        }
        if let Some(mistake) = self.model.missing_provider() {
            missing.push(mistake);
        }
        if self.public_url.is_none() {
            missing.push(SettingMistake::missing(
                "TURNWHEEL_PUBLIC_URL",
                "the app's public address, such as https://my-app.azurewebsites.net: approval links begin with it",
            ));
        }
        if self.signing_keys.is_empty() {
            missing.push(SettingMistake::missing(
                "TURNWHEEL_SIGNING_KEYS",
                "at least one key of 32 or more random bytes in base64 (`head -c 32 /dev/urandom | base64` makes one): it signs approval links",
            ));
        }
        missing
    }
}
