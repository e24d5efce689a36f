//! Runner of shell commands in dynamic sessions of Azure Container Apps. A session is a virtual
//! machine of its own; nothing depends on what an earlier call left in it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use self::client::{PoolClient, PoolFailure};
use self::transfer::{HelperReport, RunReport};
use super::{ShellCommandEnd, ShellError, ShellOutcome, ShellRequest, ShellRunner};
use crate::destination::BoundDestination;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{ConversationKey, secret_bytes};
use turnwheel_platform::settings::secret::Secret;

pub mod client;
#[cfg(test)]
mod tests;
mod transfer;

/// Time that a session may take beyond the command's time limit: to unpack the files and to read
/// them. With it an execution stays below the service's limit of 220 seconds.
const EXTRA_TIME: Duration = Duration::from_secs(20);
pub(crate) const COMMAND_TIME_MAX: Duration = Duration::from_secs(200);
/// The service refuses larger uploads.
const UPLOAD_BYTES_MAX: usize = 128 * 1024 * 1024;
const DOWNLOAD_ATTEMPTS: usize = 2;
/// Separates the key of the sessions from other uses of the same signing key.
const KEY_PURPOSE: &[u8] = b"turnwheel session identifiers 1\n";

/// Runner on one session pool.
pub struct SessionRunner {
    pool: PoolClient,
    /// Key of the sessions' identifiers. An identifier and a token of the pool give access to the
    /// session, so no identifier can be computed from a conversation's name.
    key: Secret<Vec<u8>>,
}

impl fmt::Debug for SessionRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionRunner({:?})", self.pool)
    }
}

impl SessionRunner {
    /// Creates a runner whose identifiers are the same in each process with this signing key. Without one, no other process
    /// knows them.
    ///
    /// # Errors
    /// The operating system has no randomness.
    pub fn new(pool: PoolClient, signing_key: Option<&[u8]>) -> std::io::Result<Self> {
        let key = match signing_key {
            Some(signing_key) => {
                let mut mac =
                    Hmac::<Sha256>::new_from_slice(signing_key).map_err(std::io::Error::other)?;
                mac.update(KEY_PURPOSE);
                mac.finalize().into_bytes().to_vec()
            }
            None => secret_bytes(32)?,
        };
        Ok(Self { pool, key: Secret::new(key) })
    }

    /// Identifier of the conversation's session: 64 hex digits.
    fn session_identifier(&self, conversation: &ConversationKey) -> Result<String, ShellError> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.reveal())
            .map_err(|error| ShellError::Unavailable(error.to_string()))?;
        let parts = [
            conversation.tenant.as_str(),
            conversation.user.as_str(),
            conversation.conversation_id.as_str(),
        ];
        for part in parts {
            // With lengths, so that no two keys have the same bytes.
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        Ok(sha256_hex(&mac.finalize().into_bytes()))
    }

    async fn run_in_session(
        &self,
        session: &str,
        request: &ShellRequest,
    ) -> Result<ShellOutcome, ShellError> {
        let input = transfer::build_input(request);
        if input.len() > UPLOAD_BYTES_MAX {
            return Err(ShellError::Unavailable(format!(
                "the workspace has more than the {UPLOAD_BYTES_MAX} bytes that a session accepts; delete files"
            )));
        }
        let salt = secret_bytes(16).map_err(|error| ShellError::Unavailable(error.to_string()))?;
        let name = format!("turnwheel-{}", sha256_hex(&[salt.as_slice(), &input].concat()));
        let upload = self.pool.upload(session, &name, &input).await;
        upload.map_err(|failure| {
            ShellError::Unavailable(format!("the command did not run: {}", failure.into_text()))
        })?;
        let code = transfer::build_code(&name, &input);
        let time = request.limits.time.min(COMMAND_TIME_MAX) + EXTRA_TIME;
        let response = self.pool.execute(session, &code, time).await.map_err(execution_error)?;
        match transfer::parse_report(&name, &response).map_err(lost)? {
            HelperReport::Missing => Err(ShellError::Unavailable(
                "the command did not run: its session ended before; try again".to_owned(),
            )),
            HelperReport::Damaged => Err(ShellError::Unavailable(
                "the command did not run: its files arrived damaged; try again".to_owned(),
            )),
            HelperReport::NoFolder => Err(ShellError::Unavailable(format!(
                "the command did not run: the workspace has no folder {:?}",
                request.folder
            ))),
            HelperReport::Ran(report) => self.collect(session, &name, report, request).await,
        }
    }

    /// Reads the changed files. If they are lost, the result says so: the command ran.
    async fn collect(
        &self,
        session: &str,
        name: &str,
        report: RunReport,
        request: &ShellRequest,
    ) -> Result<ShellOutcome, ShellError> {
        let output = report.output(&request.limits).map_err(lost)?;
        let (end, dropped_bytes) = (report.end.clone(), report.dropped);
        let contents = match report.contents_size(&request.limits) {
            Ok(Some(size)) => self.download(session, &format!("{name}.out"), size).await,
            Ok(None) => Ok(Bytes::new()),
            Err(reason) => Err(reason),
        };
        let changes = contents.and_then(|contents| report.changes(contents, request));
        Ok(ShellOutcome { end, output, dropped_bytes, changes })
    }

    async fn download(&self, session: &str, name: &str, size: usize) -> Result<Bytes, String> {
        let mut reason = String::new();
        for _ in 0..DOWNLOAD_ATTEMPTS {
            match self.pool.download(session, name, size).await {
                Ok(contents) => return Ok(contents),
                Err(PoolFailure::Refused(text) | PoolFailure::Unknown(text)) => reason = text,
            }
        }
        Err(format!("the changed files could not be read: {reason}"))
    }

    /// Ends a session in which a command may still run.
    async fn end_session(&self, session: &str) {
        if let Err(failure) = self.pool.delete_session(session).await {
            tracing::warn!(error = %failure.into_text(),
                "a session could not be ended; its command ends by the time limit");
        }
    }
}

#[async_trait]
impl ShellRunner for SessionRunner {
    fn destination(&self) -> BoundDestination {
        BoundDestination::shell(Some(self.pool.endpoint()))
    }

    async fn run(&self, request: ShellRequest) -> Result<ShellOutcome, ShellError> {
        if request.limits.time > COMMAND_TIME_MAX {
            return Err(ShellError::Unavailable(format!(
                "a command in a session has at most {} seconds; lower the time limit",
                COMMAND_TIME_MAX.as_secs()
            )));
        }
        let session = self.session_identifier(&request.conversation)?;
        let run = tokio::select! {
            biased;
            () = request.abort.cancelled() => None,
            run = self.run_in_session(&session, &request) => Some(run),
        };
        match run {
            Some(Err(error @ ShellError::Lost(_))) => {
                self.end_session(&session).await;
                Err(error)
            }
            Some(run) => run,
            None => {
                self.end_session(&session).await;
                Ok(ShellOutcome {
                    end: ShellCommandEnd::Aborted,
                    output: Bytes::new(),
                    dropped_bytes: 0,
                    changes: Err("the command was aborted".to_owned()),
                })
            }
        }
    }
}

fn execution_error(failure: PoolFailure) -> ShellError {
    match failure {
        PoolFailure::Refused(text) => {
            ShellError::Unavailable(format!("the command did not run: {text}"))
        }
        PoolFailure::Unknown(text) => lost(text),
    }
}

fn lost(reason: impl fmt::Display) -> ShellError {
    ShellError::Lost(format!("the command started, and its result is lost: {reason}"))
}
