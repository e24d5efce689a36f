//! What the service tells of itself: log lines to stdout; spans, metrics and logs to collectors.
//!
//! Names of fields and attributes, the same everywhere, dotted by thing, unit last: `conversation.id`, `prompt.id`,
//! `turn`, `effect.id`, `effect.number`, `tool.name`, `agent.name`, `queue.name`, `attempt`, `duration_ms`, `size_bytes`,
//! `error`; of model and tool calls OpenTelemetry's `gen_ai.*` (docs/telemetry.md). Prompts, answers, arguments, results,
//! keys and addresses are in no line above `debug`, and in nothing exported unless OpenTelemetry's own switch says so.

mod export;
pub mod fault;
mod lines;
pub mod meter;
pub mod metrics;
#[cfg(test)]
pub(crate) mod testing;
pub mod trace;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_sdk::trace::SdkTracer;

use crate::clock::Clock;
use crate::settings::secret::Secret;
use crate::settings::telemetry::TelemetrySettings;
pub use lines::Style;
use metrics::Metrics;

/// How long a stop waits for collectors.
pub const FLUSH_WITHIN: Duration = Duration::from_secs(3);

/// Why nothing is told.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("RUST_LOG is not usable")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// Something else in the process writes them already; go on.
    #[error("log lines are already being written")]
    Started(#[source] tracing_subscriber::util::TryInitError),
    #[error("telemetry cannot be exported")]
    Export(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Gives the tokens with which Application Insights knows the app.
#[async_trait]
pub trait TokenSource: Send + Sync + fmt::Debug {
    /// # Errors
    /// The sentence that says why there is none.
    async fn token(&self) -> Result<Secret<String>, String>;
}

/// What is told, and to whom.
#[derive(Debug)]
pub struct Voice<'a> {
    /// Directives of `RUST_LOG`.
    pub log: &'a str,
    pub style: Style,
    pub settings: &'a TelemetrySettings,
    pub token: Option<Arc<dyn TokenSource>>,
    /// The Functions host carries the lines to Application Insights: then nobody else does.
    pub is_carried: bool,
}

/// Where spans and metrics are given; a clone is the same. The default tells nobody and costs nothing.
#[derive(Clone, Default)]
pub struct Telemetry(Option<Arc<Told>>);

struct Told {
    tracer: Option<SdkTracer>,
    metrics: Option<Metrics>,
    captures_content: bool,
    providers: export::Providers,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Telemetry({})", if self.0.is_some() { "on" } else { "off" })
    }
}

/// Begins to tell, for the rest of the process. Within the runtime that sends what is exported.
///
/// # Errors
/// The directives are wrong (`Settings::log` never is), an exporter cannot be built, or it was called before.
pub fn start(voice: &Voice<'_>, clock: Arc<dyn Clock>) -> Result<Telemetry, TelemetryError> {
    use tracing_subscriber::util::SubscriberInitExt as _;
    let captures_content = voice.settings.captures_content;
    let (providers, copy) = export::providers(voice)?;
    lines::subscriber(voice.log, voice.style, clock, (std::io::stdout, copy))?
        .try_init()
        .map_err(TelemetryError::Started)?;
    lines::log_panics();
    Ok(Telemetry::of(providers, captures_content))
}

impl Telemetry {
    fn of(providers: export::Providers, captures_content: bool) -> Self {
        let tracer = providers.tracer();
        let metrics = providers.meter().map(|meter| Metrics::new(&meter));
        if tracer.is_none() && metrics.is_none() && !providers.has_logs() {
            return Self(None);
        }
        Self(Some(Arc::new(Told { tracer, metrics, captures_content, providers })))
    }

    /// `None`: nobody counts.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.0.as_ref()?.metrics.as_ref()
    }

    /// Whether content may be put on spans, and there are spans.
    pub fn captures_content(&self) -> bool {
        self.0.as_ref().is_some_and(|told| told.captures_content && told.tracer.is_some())
    }

    /// A span that can be started; without a collector it only passes its parent on.
    pub fn span(&self, name: impl Into<std::borrow::Cow<'static, str>>) -> trace::Beginning {
        trace::Beginning::new(self.0.as_ref().and_then(|told| told.tracer.clone()), name.into())
    }

    /// Sends what is left, for at most [`FLUSH_WITHIN`]: a collector that hangs does not hold the process.
    pub async fn stop(&self) {
        let Some(told) = &self.0 else { return };
        told.providers.stop(FLUSH_WITHIN).await;
    }
}
