//! Log line formats. Lines go to stdout, because the Functions host logs stderr as errors.

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::clock::Clock;
use crate::telemetry::{TelemetryError, trace};

/// A layer that receives the same filtered log lines, for example to export them.
pub(super) type Copy = Box<dyn Layer<Lines> + Send + Sync>;

/// The registry with the filter of all log layers.
pub(super) type Lines = tracing_subscriber::layer::Layered<EnvFilter, Registry>;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// For a terminal: time, level, message, fields.
    Dev { is_colored: bool },
    /// Text for log collectors: with the date and the target.
    Plain,
    /// One JSON object per line.
    Json,
}

impl Style {
    /// The format of `turnwheel dev`, with colours only on a terminal.
    pub fn dev() -> Self {
        Self::Dev { is_colored: std::io::stdout().is_terminal() }
    }

    /// The format of the custom handler.
    pub fn served(is_in_azure: bool) -> Self {
        if is_in_azure { Self::Json } else { Self::Plain }
    }
}

/// Creates the subscriber that writes lines to `out` and passes them to the optional layer.
pub(super) fn subscriber<W>(
    directives: &str,
    style: Style,
    clock: Arc<dyn Clock>,
    (out, copy): (W, Option<Copy>),
) -> Result<Box<dyn Subscriber + Send + Sync>, TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(directives).map_err(TelemetryError::Filter)?;
    // The layer's own errors would go to stderr, and panic if stderr is closed.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(out)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_timer(WallTime(Arc::clone(&clock)));
    let lines: Copy = match style {
        Style::Dev { is_colored } => {
            Box::new(lines.event_format(Line { clock, is_colored, is_whole: false }))
        }
        Style::Plain => {
            Box::new(lines.event_format(Line { clock, is_colored: false, is_whole: true }))
        }
        Style::Json => {
            let json = lines.json().flatten_event(true).with_span_list(false);
            Box::new(json.map_event_format(Traced))
        }
    };
    let layers: Vec<Copy> = std::iter::once(lines).chain(copy).collect();
    Ok(Box::new(Registry::default().with(filter).with(layers)))
}

/// Adds trace id and span id to JSON lines, so that log backends can join lines and spans.
#[derive(Debug)]
struct Traced<F>(F);

impl<S, N, F> FormatEvent<S, N> for Traced<F>
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
        let Some((trace_id, span_id)) = trace::ids() else {
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
pub(super) fn log_panics() {
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

/// Text lines: `20:19:09.669 warn  the message  field=value …`. The library's own format does not
/// escape line breaks in values, so a value could forge a log line.
#[derive(Debug)]
struct Line {
    clock: Arc<dyn Clock>,
    is_colored: bool,
    /// True to include the date and the target.
    is_whole: bool,
}

const DIM: &str = "2";

impl Line {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.is_colored { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn level(&self, level: Level) -> String {
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

impl<S, N> FormatEvent<S, N> for Line
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
        let now = self.clock.now().to_string();
        // Cuts the time out of `2026-11-21T20:19:09.669Z`. At a terminal the date is not needed.
        let time = if self.is_whole { &now } else { now.get(11..23).unwrap_or(&now) };
        let mut parts = Parts::default();
        event.record(&mut parts);
        let level = self.level(*event.metadata().level());
        write!(writer, "{} {level} ", self.paint(DIM, time))?;
        if self.is_whole {
            write!(writer, "{}: ", event.metadata().target())?;
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
struct Parts {
    message: String,
    /// Each field is preceded by a space.
    fields: String,
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.take(field, &text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value);
    }
}

impl Parts {
    fn take(&mut self, field: &Field, value: &str) {
        let line = one_line(value);
        if field.name() == "message" {
            self.message = line;
        } else {
            // Writing to a string cannot fail.
            let _ = write!(self.fields, " {}={line}", field.name());
        }
    }
}

fn one_line(text: &str) -> String {
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
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that `log` writes. The clock is at 20:19:09.669 on a November evening.
    fn written(directives: &str, style: Style, tell: impl FnOnce()) -> String {
        let page = Page::default();
        let out = page.clone();
        let clock = Arc::new(ManualClock::new(Timestamp(1_795_292_349_669)));
        let subscriber = subscriber(directives, style, clock, (move || out.clone(), None))
            .expect("valid directives");
        tracing::subscriber::with_default(subscriber, tell);
        String::from_utf8(page.0.lock().unwrap().clone()).unwrap()
    }

    fn tell_a_turn() {
        let span = tracing::info_span!("turn", conversation.id = "c-1");
        let _entered = span.enter();
        tracing::info!(conversation.id = %"c-1", duration_ms = 12, "conversation c-1 ended: completed");
        tracing::debug!("debug line");
    }

    #[test]
    fn a_person_at_a_terminal_reads_short_lines() {
        let lines = written("info", Style::Dev { is_colored: false }, tell_a_turn);
        assert_eq!(
            lines,
            "20:19:09.669 info  conversation c-1 ended: completed  conversation.id=c-1 duration_ms=12\n"
        );
    }

    #[test]
    fn a_machine_reads_one_object_per_line() {
        let lines = written("info", Style::Json, tell_a_turn);
        let line: serde_json::Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(line["timestamp"], "2026-11-21T20:19:09.669Z");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "conversation c-1 ended: completed");
        assert_eq!(line["duration_ms"], 12);
        assert_eq!(line["span"]["conversation.id"], "c-1");
    }

    #[test]
    fn a_machine_reads_to_which_span_a_line_belongs() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let span = crate::telemetry::Telemetry::default().span("turn").under(Some(parent)).start();
        let lines = written("info", Style::Json, || span.run_now(tell_a_turn));
        let line: serde_json::Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(line["span_id"], "b7ad6b7169203331");
        assert_eq!(line["message"], "conversation c-1 ended: completed");
    }

    #[test]
    fn a_value_cannot_begin_a_line_of_its_own() {
        let forged = "x\n20:19:09.670 error forged line\u{1b}[31m";
        for style in [Style::Dev { is_colored: false }, Style::Plain, Style::Json] {
            let lines = written("info", style, || {
                tracing::info!(tool.name = forged, "ran {forged}");
                tracing::info!(tool.name = %forged, "ran it");
            });
            assert_eq!(lines.lines().count(), 2, "{style:?}: {lines}");
            assert!(!lines.contains('\u{1b}'), "{style:?}: {lines}");
        }
    }

    #[test]
    fn directives_choose_the_lines() {
        assert_eq!(written("warn", Style::Plain, tell_a_turn), "");
        assert!(written("debug", Style::Plain, tell_a_turn).contains("debug line"));
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let wrong = subscriber("turnwheel=loud", Style::Plain, clock, (std::io::sink, None));
        assert!(matches!(wrong.err(), Some(TelemetryError::Filter(_))));
    }
}
