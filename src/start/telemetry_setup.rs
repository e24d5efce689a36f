//! Telemetry set-up of a process from its settings.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;

use turnwheel_azure::credential::create_credential;
use turnwheel_platform::clock::SystemClock;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::secret::Secret;
use turnwheel_platform::telemetry::{
    self, LogStyle, Telemetry, TelemetryConfig, TelemetryError, TokenSource,
};

/// Token scope of Application Insights. The double slash is part of the documented scope.
const INSIGHTS_SCOPE: &str = "https://monitor.azure.com//.default";
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct IdentityTokenSource(Arc<dyn TokenCredential>);

#[async_trait]
impl TokenSource for IdentityTokenSource {
    async fn token(&self) -> Result<Secret<String>, String> {
        // The credential caches tokens until shortly before they expire.
        match tokio::time::timeout(TOKEN_TIMEOUT, self.0.get_token(&[INSIGHTS_SCOPE], None)).await {
            Ok(Ok(token)) => Ok(Secret::new(token.token.secret().to_owned())),
            Ok(Err(_)) => {
                Err("the app's identity got no token: check its Application Insights role"
                    .to_owned())
            }
            Err(_elapsed) => {
                Err("the token request for Application Insights timed out after 10 s".to_owned())
            }
        }
    }
}

/// Starts logs, traces and metrics. `is_forwarded`: the Functions host forwards log lines of this
/// process to Application Insights.
///
/// # Errors
/// The telemetry settings are invalid: print the error and exit.
pub(crate) fn start_telemetry(
    settings: &ServiceSettings,
    style: LogStyle,
    is_forwarded: bool,
) -> Result<Telemetry, TelemetryError> {
    let identity = settings.telemetry.insights.as_ref().and_then(|one| one.identity.as_ref());
    let token = match identity.map(create_credential) {
        Some(Ok(credential)) => {
            Some(Arc::new(IdentityTokenSource(credential)) as Arc<dyn TokenSource>)
        }
        Some(Err(mistake)) => return Err(TelemetryError::Export(mistake.into())),
        None => None,
    };
    let config = TelemetryConfig {
        log_directives: &settings.log_filter,
        style,
        settings: &settings.telemetry,
        token_source: token,
        is_forwarded_by_host: is_forwarded,
    };
    telemetry::start(&config, Arc::new(SystemClock::default()))
}
