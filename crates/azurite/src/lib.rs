//! Azurite, Microsoft's storage emulator, as pinned in `azurite/`: for `dev` and for tests. It
//! stops with the process that started it.

mod install;
mod process;
#[cfg(any(test, feature = "testing"))]
pub mod shared;

use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use self::process::Process;
use turnwheel_platform::settings::azure::{StorageAccess, StorageAccount};
use turnwheel_platform::settings::secret::Secret;

/// The account of every Azurite.
pub const ACCOUNT: &str = "devstoreaccount1";

/// The account's key. Microsoft's documentation prints it, so it is not a secret.
pub const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Options of an Azurite to start.
#[derive(Clone, Debug, Default)]
pub struct AzuriteOptions {
    /// The folder of the installation. Created if absent, and shared by all processes that name it.
    pub install: PathBuf,
    /// The folder for queues and blobs; `None`: in memory, lost at exit.
    pub data: Option<PathBuf>,
    pub ports: AzuritePorts,
    /// With a certificate Azurite serves https and accepts Entra tokens, whose signatures it does
    /// not check.
    pub tls: Option<Tls>,
}

/// Ports on 127.0.0.1; 0: any free one.
#[derive(Clone, Copy, Debug, Default)]
pub struct AzuritePorts {
    pub blob: u16,
    pub queue: u16,
    pub table: u16,
}

impl AzuritePorts {
    /// The ports of `UseDevelopmentStorage=true`.
    pub const DEVELOPMENT: Self = Self { blob: 10_000, queue: 10_001, table: 10_002 };
}

/// PEM files.
#[derive(Clone, Debug)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// An error of Azurite's installation or start. Show it: each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum AzuriteError {
    #[error(
        "`{0}` was not found: Azurite needs Node.js 20 or newer, which brings npm; install it from https://nodejs.org"
    )]
    NoNode(&'static str),
    #[error(
        "Azurite could not be installed; npm needs access to its registry once. Output of npm:\n{0}"
    )]
    Install(String),
    #[error("Azurite did not start. Its output:\n{0}")]
    Start(String),
    #[error("could not {doing} for Azurite")]
    Io { doing: &'static str, source: io::Error },
}

fn io_error(doing: &'static str) -> impl FnOnce(io::Error) -> AzuriteError {
    move |source| AzuriteError::Io { doing, source }
}

/// A running Azurite. It stops when dropped, and whenever this process ends.
#[derive(Debug)]
pub struct Azurite {
    process: Process,
}

impl Azurite {
    /// Installs Azurite if necessary (about a minute, reported with one line) and waits until it
    /// listens.
    ///
    /// # Errors
    /// Node.js, the registry or a free port is missing: show the error.
    pub async fn start(
        options: AzuriteOptions,
        report: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, AzuriteError> {
        let starting = tokio::task::spawn_blocking(move || {
            let main = install::find_or_install(&options.install, &report)?;
            Process::start(&main, &options).map(|process| Self { process })
        });
        starting.await.map_err(io::Error::other).map_err(io_error("wait"))?
    }

    /// Returns Azurite's endpoints and its well-known key.
    pub fn account(&self) -> StorageAccount {
        storage_account(self.process.endpoints.clone())
    }

    /// Advances Azurite's clock.
    #[cfg(any(test, feature = "testing"))]
    pub fn advance(&self, span: std::time::Duration) {
        self.process.advance(span);
    }

    /// Returns the process id, for monitoring.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

/// Returns the account that `UseDevelopmentStorage=true` names, without connecting to it.
pub fn development_account() -> Option<StorageAccount> {
    let at = |port: u16| Url::parse(&format!("http://127.0.0.1:{port}/{ACCOUNT}")).ok();
    Some(storage_account(Endpoints {
        blob: at(AzuritePorts::DEVELOPMENT.blob)?,
        queue: at(AzuritePorts::DEVELOPMENT.queue)?,
    }))
}

fn storage_account(Endpoints { blob, queue }: Endpoints) -> StorageAccount {
    let key = Secret::new(STANDARD.decode(KEY).unwrap_or_default());
    StorageAccount {
        queue,
        blob,
        access: StorageAccess::SharedKey { account: ACCOUNT.to_owned(), key },
    }
}

/// Endpoints of the services in use.
#[derive(Clone, Debug)]
struct Endpoints {
    blob: Url,
    queue: Url,
}
