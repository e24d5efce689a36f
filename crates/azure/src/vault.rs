//! A Key Vault secret with refresh: a rotated value takes effect without a restart.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use azure_core::http::{ClientOptions, ExponentialRetryOptions, RetryOptions, StatusCode};
use azure_security_keyvault_secrets::models::SecretClientGetSecretOptions;
use azure_security_keyvault_secrets::{SecretClient, SecretClientOptions};
use tokio::time::{Instant, timeout};

use turnwheel_platform::settings::azure::KeyVaultSecret;
use turnwheel_platform::settings::secret::Secret;
use turnwheel_platform::text_encoding::trim_text;

#[cfg(test)]
mod tests;

/// Time after which a value is read again.
const REFRESH_INTERVAL: Duration = Duration::from_mins(5);
/// Minimum time between reads after a failed read, and between reads after rejected values.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit of one read, with its retries.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// One secret, shared by all its users.
pub struct VaultSecret {
    client: SecretClient,
    place: KeyVaultSecret,
    cached: Mutex<Option<CachedSecret>>,
    /// Allows one read at a time. Other callers wait, or use the cached value.
    read_lock: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct CachedSecret {
    value: Secret<String>,
    /// Time of the next read.
    refresh_at: Instant,
    /// Time of the last read caused by a service that rejected the value.
    rejected_at: Option<Instant>,
}

impl fmt::Debug for VaultSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VaultSecret({})", self.place)
    }
}

impl VaultSecret {
    /// Creates the client of a secret and sends no request.
    ///
    /// # Errors
    /// The reason as one sentence: show it to the operator and do not start.
    pub fn new(
        place: KeyVaultSecret,
        credential: Arc<dyn TokenCredential>,
    ) -> Result<Self, String> {
        Self::with_options(place, credential, ClientOptions::default())
    }

    /// Like [`VaultSecret::new`], with custom client options.
    ///
    /// # Errors
    /// See [`VaultSecret::new`].
    pub fn with_options(
        place: KeyVaultSecret,
        credential: Arc<dyn TokenCredential>,
        mut client_options: ClientOptions,
    ) -> Result<Self, String> {
        client_options.retry = RetryOptions::exponential(ExponentialRetryOptions {
            max_retries: 2,
            ..ExponentialRetryOptions::default()
        });
        let options = SecretClientOptions { client_options, ..SecretClientOptions::default() };
        let client = SecretClient::new(place.vault.as_str(), credential, Some(options))
            .map_err(|error| format!("the secret {place} cannot be requested: {error}"))?;
        Ok(Self {
            client,
            place,
            cached: Mutex::default(),
            read_lock: tokio::sync::Mutex::default(),
        })
    }

    /// Returns the current value, or the last one while the vault is unavailable.
    ///
    /// # Errors
    /// The secret was never read. The text gives the reason and the remedy: show it to the
    /// operator.
    pub async fn value(&self) -> Result<Secret<String>, String> {
        if let Some(value) = self.fresh_value() {
            return Ok(value);
        }
        let _reading = match (self.load_cached(), self.read_lock.try_lock()) {
            // The cached value is good enough while another caller reads.
            (Some(cached), Err(_)) => return Ok(cached.value),
            (_, Ok(reading)) => reading,
            (None, Err(_)) => self.read_lock.lock().await,
        };
        if let Some(value) = self.fresh_value() {
            return Ok(value);
        }
        self.refresh().await
    }

    /// Returns the value that replaces one that a service rejected; `None` if there is no other.
    pub async fn replacement_of(&self, rejected: &str) -> Option<Secret<String>> {
        let _reading = self.read_lock.lock().await;
        let cached = self.load_cached()?;
        if cached.value.reveal() != rejected {
            return Some(cached.value);
        }
        let now = Instant::now();
        if cached.rejected_at.is_some_and(|rejected| now < rejected + RETRY_INTERVAL) {
            return None;
        }
        self.set_cached(CachedSecret { rejected_at: Some(now), ..cached });
        self.refresh().await.ok().filter(|value| value.reveal() != rejected)
    }

    /// Returns the last value that was read, without a request.
    pub fn cached_value(&self) -> Option<Secret<String>> {
        self.load_cached().map(|cached| cached.value)
    }

    async fn refresh(&self) -> Result<Secret<String>, String> {
        let before = self.load_cached();
        let fetched = timeout(READ_TIMEOUT, Box::pin(self.fetch())).await;
        let reason = match fetched {
            Ok(Ok(value)) => {
                let refused = before.and_then(|cached| cached.rejected_at);
                self.set_cached(CachedSecret {
                    value: value.clone(),
                    refresh_at: Instant::now() + REFRESH_INTERVAL,
                    rejected_at: refused,
                });
                return Ok(value);
            }
            Ok(Err(reason)) => reason,
            Err(_) => format!("no response within {} seconds", READ_TIMEOUT.as_secs()),
        };
        let place = &self.place;
        let Some(cached) = before else {
            return Err(format!("the secret {place} could not be read: {reason}"));
        };
        tracing::warn!(secret.place = %place, error = %reason,
            "secret refresh failed; the last value stays in use");
        let value = cached.value.clone();
        self.set_cached(CachedSecret { refresh_at: Instant::now() + RETRY_INTERVAL, ..cached });
        Ok(value)
    }

    async fn fetch(&self) -> Result<Secret<String>, String> {
        let options = SecretClientGetSecretOptions {
            secret_version: self.place.version.clone(),
            ..SecretClientGetSecretOptions::default()
        };
        let answer = self.client.get_secret(&self.place.name, Some(options)).await;
        let secret = answer.and_then(azure_core::http::Response::into_model).map_err(|error| {
            match error.http_status() {
                Some(StatusCode::Unauthorized | StatusCode::Forbidden) => format!(
                    "{error} (give the app's identity the role `Key Vault Secrets User` on the vault, and check the vault's network rules)"
                ),
                Some(StatusCode::NotFound) => format!("{error} (check the name, and that the secret is enabled)"),
                _ => error.to_string(),
            }
        })?;
        let value = secret.value.as_deref().map(trim_text).filter(|value| !value.is_empty());
        value
            .map(|value| Secret::new(value.to_owned()))
            .ok_or_else(|| "the value is empty".to_owned())
    }

    fn fresh_value(&self) -> Option<Secret<String>> {
        self.load_cached()
            .filter(|cached| Instant::now() < cached.refresh_at)
            .map(|cached| cached.value)
    }

    fn load_cached(&self) -> Option<CachedSecret> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_cached(&self, cached: CachedSecret) {
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(cached);
    }
}
