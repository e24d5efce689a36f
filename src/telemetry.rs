//! Log lines to stdout: stderr is "error" to the Functions host.
//!
//! Names of fields, the same everywhere, dotted by thing, unit last: `conversation.id`, `prompt.id`, `turn`, `effect.id`,
//! `effect.number`, `tool.name`, `agent.name`, `queue.name`, `attempt`, `duration_ms`, `size_bytes`, `error`; of model
//! calls OpenTelemetry's `gen_ai.request.model`, `gen_ai.usage.input_tokens`, `gen_ai.usage.output_tokens`. Prompts,
//! answers, arguments, results, keys and addresses are in no line above `debug`.

pub mod meter;

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::Clock;

/// Who reads the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A person at a terminal: time, level, message, fields.
    Dev { is_colored: bool },
    /// A person behind a collector: the whole time, and where in the code.
    Plain,
    /// A machine.
    Json,
}

impl Style {
    /// Of `turnwheel dev`: colours only on a terminal.
    pub fn dev() -> Self {
        Self::Dev { is_colored: std::io::stdout().is_terminal() }
    }

    /// Of the custom handler.
    pub fn served(is_in_azure: bool) -> Self {
        if is_in_azure { Self::Json } else { Self::Plain }
    }
}

/// Why there are no log lines.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("RUST_LOG is not usable")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// Something else in the process writes them already; go on.
    #[error("log lines are already being written")]
    Started(#[source] tracing_subscriber::util::TryInitError),
}

/// Begins to write log lines, for the rest of the process.
///
/// # Errors
/// The directives are wrong (`Settings::log` never is), or it was called before.
pub fn start(directives: &str, style: Style, clock: Arc<dyn Clock>) -> Result<(), TelemetryError> {
    use tracing_subscriber::util::SubscriberInitExt as _;
    subscriber(directives, style, clock, std::io::stdout)?
        .try_init()
        .map_err(TelemetryError::Started)?;
    log_panics();
    Ok(())
}

/// The same, written elsewhere and not installed.
fn subscriber<W>(
    directives: &str,
    style: Style,
    clock: Arc<dyn Clock>,
    out: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(directives).map_err(TelemetryError::Filter)?;
    // Its own complaints would go to stderr, and panic when that is closed.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(out)
        .with_ansi(false)
        .log_internal_errors(false)
        .with_timer(WallTime(Arc::clone(&clock)));
    Ok(match style {
        Style::Dev { is_colored } => {
            Box::new(lines.event_format(Line { clock, is_colored, is_whole: false }).finish())
        }
        Style::Plain => {
            Box::new(lines.event_format(Line { clock, is_colored: false, is_whole: true }).finish())
        }
        Style::Json => Box::new(lines.json().flatten_event(true).with_span_list(false).finish()),
    })
}

/// A panic's text may quote what it was working on, so above `debug` only its place is told.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a panic at {place}");
        let text = panic.payload_as_str().unwrap_or("no text");
        tracing::debug!(place, "the panic said: {text}");
    }));
}

/// Time from the one clock, in ISO 8601.
#[derive(Debug)]
struct WallTime(Arc<dyn Clock>);

impl FormatTime for WallTime {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        write!(w, "{}", self.0.now())
    }
}

/// `20:19:09.669 warn  the message  field=value …`. Not the library's own lines: those pass on the line ends of values, so
/// that a value could begin a line of its own.
#[derive(Debug)]
struct Line {
    clock: Arc<dyn Clock>,
    is_colored: bool,
    /// With the day and the target.
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
        // `2026-11-21T20:19:09.669Z`: the day is known to whoever watches.
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

/// One event, its message apart. Control characters of values are escaped: a line stays a line.
#[derive(Default)]
struct Parts {
    message: String,
    /// Each with a space before it.
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

    /// What `tell` has written, at 20:19:09.669 on a November evening.
    fn written(directives: &str, style: Style, tell: impl FnOnce()) -> String {
        let page = Page::default();
        let out = page.clone();
        let clock = Arc::new(ManualClock::new(Timestamp(1_795_292_349_669)));
        let subscriber =
            subscriber(directives, style, clock, move || out.clone()).expect("good directives");
        tracing::subscriber::with_default(subscriber, tell);
        String::from_utf8(page.0.lock().unwrap().clone()).unwrap()
    }

    fn tell_a_turn() {
        let span = tracing::info_span!("turn", conversation.id = "c-1");
        let _entered = span.enter();
        tracing::info!(conversation.id = %"c-1", duration_ms = 12, "conversation c-1 ended: completed");
        tracing::debug!("never seen");
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
    fn a_value_cannot_begin_a_line_of_its_own() {
        let forged = "x\n20:19:09.670 error all is lost\u{1b}[31m";
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
        assert!(written("debug", Style::Plain, tell_a_turn).contains("never seen"));
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let wrong = subscriber("turnwheel=loud", Style::Plain, clock, std::io::sink);
        assert!(matches!(wrong.err(), Some(TelemetryError::Filter(_))));
    }
}
