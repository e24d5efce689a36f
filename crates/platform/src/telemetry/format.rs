//! Log line formats, and the streams of their lines. The Functions host takes a line of stdout for information. A line of
//! stderr is a warning if it has "warn" in it, otherwise an error.

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::clock::Clock;
use crate::telemetry::{TelemetryError, trace};

/// A layer that receives the same filtered log lines, for example to export them.
pub(super) type LogLayer = Box<dyn Layer<FilteredRegistry> + Send + Sync>;

/// The registry with the filter of all log layers.
pub(super) type FilteredRegistry = tracing_subscriber::layer::Layered<EnvFilter, Registry>;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStyle {
    /// For a terminal: time, level, message, fields.
    Dev { is_colored: bool },
    /// Text for the Functions host, which adds the time: level, target, message, fields.
    Hosted,
    /// For the Functions host in Azure: one JSON object per line.
    Json,
}

impl LogStyle {
    /// The format of `turnwheel dev`, with colours only on a terminal.
    pub fn dev() -> Self {
        Self::Dev { is_colored: std::io::stdout().is_terminal() }
    }

    /// The format of the custom handler.
    pub fn for_handler(is_in_azure: bool) -> Self {
        if is_in_azure { Self::Json } else { Self::Hosted }
    }
}

/// Filter of libraries, before the directives of `RUST_LOG`, which can name them. `rmcp` logs unexpected messages with
/// their content, as warnings too. The SDKs of Azure log each try of a failed request at `info`; the caller logs the
/// failure once. The OpenTelemetry SDK is off, because Turnwheel logs an unreachable collector once.
const LIBRARY_DIRECTIVES: &str = "rmcp=off,azure_core=warn,azure_identity=warn,typespec_client_core=warn,hyper=warn,h2=warn,reqwest=warn,opentelemetry=off";

/// The streams of the process: those of a log style.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessStreams {
    pub(super) style: LogStyle,
}

impl ProcessStreams {
    /// True if lines of this level go to stderr. A terminal has all lines in one stream.
    fn is_stderr(self, level: Level) -> bool {
        match self.style {
            LogStyle::Dev { .. } => false,
            LogStyle::Hosted | LogStyle::Json => level <= Level::WARN,
        }
    }
}

impl<'w> MakeWriter<'w> for ProcessStreams {
    type Writer = Box<dyn std::io::Write>;

    fn make_writer(&'w self) -> Self::Writer {
        Box::new(std::io::stdout())
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> Self::Writer {
        if self.is_stderr(*metadata.level()) {
            return Box::new(std::io::stderr());
        }
        self.make_writer()
    }
}

/// Creates the subscriber that writes lines to `out` and passes them to the optional layer.
pub(super) fn new_subscriber<W>(
    directives: &str,
    style: LogStyle,
    clock: Arc<dyn Clock>,
    out: W,
    extra_layer: Option<LogLayer>,
) -> Result<Box<dyn Subscriber + Send + Sync>, TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let directives = format!("{LIBRARY_DIRECTIVES},{directives}");
    let filter = EnvFilter::try_new(directives).map_err(TelemetryError::Filter)?;
    // The layer's own errors would go to stderr, and panic if stderr is closed.
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(out)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_timer(WallTime(Arc::clone(&clock)));
    let layer: LogLayer = match style {
        LogStyle::Dev { is_colored } => {
            Box::new(layer.event_format(TextFormat { clock, is_colored, is_hosted: false }))
        }
        LogStyle::Hosted => {
            Box::new(layer.event_format(TextFormat { clock, is_colored: false, is_hosted: true }))
        }
        LogStyle::Json => {
            let json = layer.json().flatten_event(true).with_span_list(false);
            Box::new(json.map_event_format(WithTraceIds))
        }
    };
    let layers: Vec<LogLayer> = std::iter::once(layer).chain(extra_layer).collect();
    Ok(Box::new(Registry::default().with(filter).with(layers)))
}

/// Adds trace id and span id to JSON lines, so that log backends can join lines and spans.
#[derive(Debug)]
struct WithTraceIds<F>(F);

impl<S, N, F> FormatEvent<S, N> for WithTraceIds<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some((trace_id, span_id)) = trace::current_ids() else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        match line.trim_end().strip_suffix('}') {
            Some(open) => {
                writeln!(writer, r#"{open},"trace_id":"{trace_id}","span_id":"{span_id}"}}"#)
            }
            None => writer.write_str(&line),
        }
    }
}

/// Logs panics. The payload may quote content, so above `debug` only the location is logged.
pub(super) fn install_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic");
        let text = panic.payload_as_str().unwrap_or("no text");
        tracing::debug!(place, text, "panic payload");
    }));
}

/// Time of the service's clock, in ISO 8601.
#[derive(Debug)]
struct WallTime(Arc<dyn Clock>);

impl FormatTime for WallTime {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        write!(w, "{}", self.0.now())
    }
}

/// Text lines: `20:19:09.669 warn  the message  field=value …`, for the Functions host
/// `WARN turnwheel::turn: the message  field=value …`. The library's own format does not escape line breaks in values, so a
/// value could forge a log line.
#[derive(Debug)]
struct TextFormat {
    clock: Arc<dyn Clock>,
    is_colored: bool,
    is_hosted: bool,
}

const DIM: &str = "2";

impl TextFormat {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.is_colored { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn paint_level(&self, level: Level) -> String {
        let (code, text) = match level {
            Level::ERROR => ("31", "error"),
            Level::WARN => ("33", "warn "),
            Level::INFO => ("32", "info "),
            Level::DEBUG => ("36", "debug"),
            Level::TRACE => (DIM, "trace"),
        };
        self.paint(code, text)
    }
}

impl<S, N> FormatEvent<S, N> for TextFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut parts = EventFields::default();
        event.record(&mut parts);
        let level = *event.metadata().level();
        if self.is_hosted {
            write!(writer, "{level} {}: ", event.metadata().target())?;
        } else {
            let now = self.clock.now().to_string();
            // Cuts the time out of `2026-11-21T20:19:09.669Z`. At a terminal the date is not needed.
            let time = now.get(11..23).unwrap_or(&now);
            write!(writer, "{} {} ", self.paint(DIM, time), self.paint_level(level))?;
        }
        write!(writer, "{}", parts.message)?;
        if !parts.fields.is_empty() {
            write!(writer, " {}", self.paint(DIM, &parts.fields))?;
        }
        writeln!(writer)
    }
}

/// Message and fields of one event. Control characters in values are escaped, so an event stays one
/// line.
#[derive(Default)]
struct EventFields {
    message: String,
    /// Each field is preceded by a space.
    fields: String,
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.add_field(field, &text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_field(field, value);
    }
}

impl EventFields {
    fn add_field(&mut self, field: &Field, value: &str) {
        let line = escape_control_characters(value);
        if field.name() == "message" {
            self.message = line;
        } else {
            // Writing to a string cannot fail.
            let _ = write!(self.fields, " {}={line}", field.name());
        }
    }
}

fn escape_control_characters(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::clock::{ManualClock, Timestamp};

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that `log` writes. The clock is at 20:19:09.669 on a November evening.
    fn capture_log(directives: &str, style: LogStyle, log: impl FnOnce()) -> String {
        let buffer = LogBuffer::default();
        let out = buffer.clone();
        let clock = Arc::new(ManualClock::new(Timestamp(1_795_292_349_669)));
        let subscriber = new_subscriber(directives, style, clock, move || out.clone(), None)
            .expect("valid directives");
        tracing::subscriber::with_default(subscriber, log);
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    fn log_turn() {
        let span = tracing::info_span!("turn", conversation.id = "c-1");
        let _entered = span.enter();
        tracing::info!(conversation.id = %"c-1", duration_ms = 12, "conversation c-1 ended: completed");
        tracing::debug!("debug line");
    }

    #[test]
    fn dev_style_writes_short_lines() {
        let lines = capture_log("info", LogStyle::Dev { is_colored: false }, log_turn);
        assert_eq!(
            lines,
            "20:19:09.669 info  conversation c-1 ended: completed  conversation.id=c-1 duration_ms=12\n"
        );
    }

    #[test]
    fn lines_with_content_of_servers_are_not_written() {
        let log = || tracing::warn!(target: "rmcp::service", "Received unexpected message: secret");
        assert_eq!(capture_log("info", LogStyle::Hosted, log), "");
        assert!(capture_log("info,rmcp=warn", LogStyle::Hosted, log).contains("secret"));
    }

    #[test]
    fn tries_of_libraries_are_not_logged() {
        let log = || {
            tracing::info!(target: "typespec_client_core::http::policies::logging", "<== Failed response");
            tracing::info!(target: "azure_core::http", "retry");
            tracing::error!(target: "opentelemetry_sdk", "export failed");
        };
        for directives in ["info", "warn", "info,turnwheel=debug"] {
            assert_eq!(capture_log(directives, LogStyle::Hosted, log), "", "{directives}");
        }
        let lines = capture_log("info,azure_core=info", LogStyle::Hosted, log);
        assert_eq!(lines, "INFO azure_core::http: retry\n");
    }

    /// The Functions host adds the time, and knows a warning by its word.
    #[test]
    fn hosted_style_has_levels_and_no_time() {
        let log = || {
            tracing::error!(target: "turnwheel::turn", "store failed");
            tracing::warn!(target: "turnwheel::turn", attempt = 2, "model call failed");
        };
        assert_eq!(
            capture_log("info", LogStyle::Hosted, log),
            "ERROR turnwheel::turn: store failed\nWARN turnwheel::turn: model call failed  attempt=2\n"
        );
        for line in capture_log("info", LogStyle::Json, log).lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(["ERROR", "WARN"].contains(&line["level"].as_str().unwrap()), "{line}");
            assert_eq!(line["timestamp"], "2026-11-21T20:19:09.669Z");
        }
    }

    #[test]
    fn hosted_warnings_and_errors_go_to_stderr() {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        for style in [LogStyle::Hosted, LogStyle::Json] {
            let streams = ProcessStreams { style };
            assert_eq!(
                levels.map(|level| streams.is_stderr(level)),
                [true, true, false, false, false]
            );
        }
        let terminal = ProcessStreams { style: LogStyle::Dev { is_colored: true } };
        assert_eq!(levels.map(|level| terminal.is_stderr(level)), [false; 5]);
    }

    #[test]
    fn json_style_writes_one_object_per_line() {
        let lines = capture_log("info", LogStyle::Json, log_turn);
        let line: serde_json::Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(line["timestamp"], "2026-11-21T20:19:09.669Z");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "conversation c-1 ended: completed");
        assert_eq!(line["duration_ms"], 12);
        assert_eq!(line["span"]["conversation.id"], "c-1");
    }

    #[test]
    fn json_lines_carry_trace_and_span_ids() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let span =
            crate::telemetry::Telemetry::default().span("turn").with_parent(Some(parent)).start();
        let lines = capture_log("info", LogStyle::Json, || span.run_sync(log_turn));
        let line: serde_json::Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(line["span_id"], "b7ad6b7169203331");
        assert_eq!(line["message"], "conversation c-1 ended: completed");
    }

    #[test]
    fn log_values_cannot_forge_lines() {
        let forged = "x\n20:19:09.670 error forged line\u{1b}[31m";
        for style in [LogStyle::Dev { is_colored: false }, LogStyle::Hosted, LogStyle::Json] {
            let lines = capture_log("info", style, || {
                tracing::info!(tool.name = forged, "ran {forged}");
                tracing::info!(tool.name = %forged, "ran it");
            });
            assert_eq!(lines.lines().count(), 2, "{style:?}: {lines}");
            assert!(!lines.contains('\u{1b}'), "{style:?}: {lines}");
        }
    }

    #[test]
    fn log_directives_filter_lines() {
        assert_eq!(capture_log("warn", LogStyle::Hosted, log_turn), "");
        assert!(capture_log("debug", LogStyle::Hosted, log_turn).contains("debug line"));
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let wrong = new_subscriber("turnwheel=loud", LogStyle::Hosted, clock, std::io::sink, None);
        assert!(matches!(wrong.err(), Some(TelemetryError::Filter(_))));
    }
}
