//! Telemetry: log lines to stdout and stderr; spans, metrics and logs to collectors.
//!
//! Field and attribute names are the same everywhere. They are dotted by subject, with the unit
//! last: `conversation.id`, `prompt.id`, `turn`, `effect.id`, `effect.number`, `tool.name`,
//! `agent.name`, `queue.name`, `attempt`, `duration_ms`, `size_bytes`, `error`. Model and tool
//! calls use OpenTelemetry's `gen_ai.*` (docs/telemetry.md).
//! Prompts, responses, arguments, results, keys and addresses are in no line above `debug`. They
//! are exported only if OpenTelemetry's own switch allows content.

pub mod cost_meter;
pub mod error_class;
mod export;
mod format;
pub mod metrics;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_sdk::trace::SdkTracer;

use crate::clock::Clock;
use crate::settings::secret::Secret;
use crate::settings::telemetry::TelemetrySettings;
pub use format::LogStyle;
use metrics::Metrics;

/// Time that a stop waits for collectors.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The reason why telemetry cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("invalid RUST_LOG")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// The process already has a global log subscriber. Continue without starting telemetry.
    #[error("a log subscriber is already installed")]
    Started(#[source] tracing_subscriber::util::TryInitError),
    #[error("creating a telemetry exporter failed")]
    Export(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Source of the tokens that authenticate the app to Application Insights.
#[async_trait]
pub trait TokenSource: Send + Sync + fmt::Debug {
    /// Returns the reason as text if no token is available. The export fails; log the reason.
    async fn token(&self) -> Result<Secret<String>, String>;
}

/// The log format and the destinations of telemetry.
#[derive(Debug)]
pub struct TelemetryConfig<'a> {
    /// Directives of `RUST_LOG`.
    pub log_directives: &'a str,
    pub style: LogStyle,
    pub settings: &'a TelemetrySettings,
    pub token_source: Option<Arc<dyn TokenSource>>,
    /// True if the Functions host forwards log lines to Application Insights. Log lines are then not
    /// exported a second time.
    pub is_forwarded_by_host: bool,
}

/// Handle for spans and metrics. Clones share one pipeline. The default records nothing and costs
/// nothing.
#[derive(Clone, Default)]
pub struct Telemetry(Option<Arc<TelemetryPipeline>>);

struct TelemetryPipeline {
    tracer: Option<SdkTracer>,
    metrics: Option<Metrics>,
    should_capture_content: bool,
    providers: export::Providers,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Telemetry({})", if self.0.is_some() { "on" } else { "off" })
    }
}

/// Starts telemetry for the rest of the process. Call it within the runtime that sends exports.
///
/// # Errors
/// The directives are invalid (`ServiceSettings::log_filter` never is), an exporter cannot be built, or the
/// process already has a log subscriber. Report the error at start-up.
pub fn start(
    config: &TelemetryConfig<'_>,
    clock: Arc<dyn Clock>,
) -> Result<Telemetry, TelemetryError> {
    use tracing_subscriber::util::SubscriberInitExt as _;
    let should_capture_content = config.settings.should_capture_content;
    let (providers, log_layer) = export::build_providers(config)?;
    format::new_subscriber(
        config.log_directives,
        config.style,
        clock,
        format::ProcessStreams { style: config.style },
        log_layer,
    )?
    .try_init()
    .map_err(TelemetryError::Started)?;
    format::install_panic_hook();
    Ok(Telemetry::from_providers(providers, should_capture_content))
}

impl Telemetry {
    fn from_providers(providers: export::Providers, should_capture_content: bool) -> Self {
        let tracer = providers.tracer();
        let metrics = providers.meter().map(|meter| Metrics::new(&meter));
        if tracer.is_none() && metrics.is_none() && !providers.has_logs() {
            return Self(None);
        }
        Self(Some(Arc::new(TelemetryPipeline {
            tracer,
            metrics,
            should_capture_content,
            providers,
        })))
    }

    /// Returns the metrics, or `None` if no metrics are exported.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.0.as_ref()?.metrics.as_ref()
    }

    /// True if spans are exported and may carry content.
    pub fn should_capture_content(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|pipeline| pipeline.should_capture_content && pipeline.tracer.is_some())
    }

    /// Builds a span to start. Without a collector the span only propagates its parent.
    pub fn span(&self, name: impl Into<std::borrow::Cow<'static, str>>) -> trace::PendingSpan {
        trace::PendingSpan::new(
            self.0.as_ref().and_then(|pipeline| pipeline.tracer.clone()),
            name.into(),
        )
    }

    /// Flushes for at most [`FLUSH_TIMEOUT`]. A collector that hangs does not delay the process
    /// further.
    pub async fn stop(&self) {
        self.stop_within(FLUSH_TIMEOUT).await;
    }

    /// Like [`Telemetry::stop`], within this time. With none, what is not exported is lost.
    pub async fn stop_within(&self, time: Duration) {
        let Some(pipeline) = self.0.as_ref().filter(|_| !time.is_zero()) else { return };
        pipeline.providers.shut_down(time.min(FLUSH_TIMEOUT)).await;
    }
}
