//! Azurite, Microsoft's storage emulator, as pinned in `azurite/`: for `dev` and for tests, stopped with whoever started it.

mod install;
mod process;
#[cfg(test)]
pub(crate) mod shared;

use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use self::process::Process;
use crate::settings::azure::{StorageAccess, StorageAccount};
use crate::settings::secret::Secret;

/// The account that every Azurite has.
pub const ACCOUNT: &str = "devstoreaccount1";

/// Its key: printed in Microsoft's documentation, so no secret.
pub const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// What to start.
#[derive(Clone, Debug, Default)]
pub struct AzuriteOptions {
    /// Where it is installed: made when absent, and shared by all processes that name it.
    pub install: PathBuf,
    /// Where it keeps queues and blobs; `None`: in memory, gone with it.
    pub data: Option<PathBuf>,
    pub ports: Ports,
    /// With a certificate it speaks https and takes Entra tokens, whose signatures it does not check.
    pub tls: Option<Tls>,
}

/// On 127.0.0.1; 0: any free one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ports {
    pub blob: u16,
    pub queue: u16,
    pub table: u16,
}

impl Ports {
    /// Those of `UseDevelopmentStorage=true`.
    pub const USUAL: Self = Self { blob: 10_000, queue: 10_001, table: 10_002 };
}

/// PEM files.
#[derive(Clone, Debug)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Show it: each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum AzuriteError {
    #[error(
        "`{0}` was not found: Azurite needs Node.js 20 or newer, which brings npm; install it from https://nodejs.org"
    )]
    NoNode(&'static str),
    #[error(
        "Azurite could not be installed; npm needs its registry for that, once. npm said:\n{0}"
    )]
    Install(String),
    #[error("Azurite did not start; it said:\n{0}")]
    Start(String),
    #[error("could not {doing} for Azurite")]
    Io { doing: &'static str, source: io::Error },
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> AzuriteError {
    move |source| AzuriteError::Io { doing, source }
}

/// A running Azurite. Dropping it stops it; so does the end of this process, however it comes.
#[derive(Debug)]
pub struct Azurite {
    process: Process,
}

impl Azurite {
    /// Installs it where that has not been done, which takes a minute and is told with one line, and waits until it answers.
    ///
    /// # Errors
    /// There is no Node.js, no registry, no free port: show it.
    pub async fn start(
        options: AzuriteOptions,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, AzuriteError> {
        let starting = tokio::task::spawn_blocking(move || {
            let main = install::installed(&options.install, &tell)?;
            Process::start(&main, &options).map(|process| Self { process })
        });
        starting.await.map_err(io::Error::other).map_err(failed("wait"))?
    }

    /// Where it answers, and its well-known key.
    pub fn account(&self) -> StorageAccount {
        account(self.process.endpoints.clone())
    }

    /// Moves its clock on.
    #[cfg(test)]
    pub(crate) fn advance(&self, span: std::time::Duration) {
        self.process.advance(span);
    }

    /// Its process, for who watches it.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

/// The account that `UseDevelopmentStorage=true` names, whether or not it answers.
pub fn usual_account() -> Option<StorageAccount> {
    let at = |port: u16| Url::parse(&format!("http://127.0.0.1:{port}/{ACCOUNT}")).ok();
    Some(account(Endpoints { blob: at(Ports::USUAL.blob)?, queue: at(Ports::USUAL.queue)? }))
}

fn account(Endpoints { blob, queue }: Endpoints) -> StorageAccount {
    let key = Secret::new(STANDARD.decode(KEY).unwrap_or_default());
    StorageAccount {
        queue,
        blob,
        access: StorageAccess::SharedKey { account: ACCOUNT.to_owned(), key },
    }
}

/// Of the services that we use.
#[derive(Clone, Debug)]
struct Endpoints {
    blob: Url,
    queue: Url,
}
