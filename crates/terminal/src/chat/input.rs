//! The input line: a thread that reads keys, and prints rows above the line that is being typed.

use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reedline::{ExternalPrinter, Reedline, Signal, ValidationResult, Validator};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use turnwheel_platform::settings::environment;

use super::command::{ChatCommand, ChatLine, parse_line};
use super::modes::KeyModes;
use super::status::{SharedStatus, StatusPrompt};
use crate::error::TerminalError;
use crate::screen::is_interactive;
use crate::send::parse_text;

/// Texts that wait for the thread, which prints all of them at once.
const TEXTS_MAX: usize = 40;
/// Delay of a printed text.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const FULL_DELAY: Duration = Duration::from_millis(5);
/// A second Ctrl-C in this time leaves.
const LEAVE_TIME: Duration = Duration::from_secs(1);

/// An event of the keyboard.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyboardEvent {
    /// A complete line, which may have line breaks.
    Line(String),
    /// Ctrl-C: the line is cleared.
    Cleared,
    /// The user edits a queued input, whose text the thread waits for.
    EditRequested(usize),
    /// The number of a queued input, and its new text.
    Edited(usize, String),
    /// The user leaves.
    Left,
}

/// The input line of a terminal, which gets its former modes when this is dropped.
pub(super) struct InputLine {
    rows: SyncSender<String>,
    repaint: Box<dyn Fn() + Send + Sync>,
    stop: Arc<AtomicBool>,
    /// Texts to edit; `None` in it: there is no such input. Absent at the end.
    texts: Option<Sender<Option<String>>>,
    thread: JoinHandle<()>,
}

impl InputLine {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(
        status: SharedStatus,
        is_coloured: bool,
        modes: KeyModes,
    ) -> Result<(Self, UnboundedReceiver<KeyboardEvent>), TerminalError> {
        let printer = ExternalPrinter::new(TEXTS_MAX);
        let rows = printer.sender();
        let stop = Arc::new(AtomicBool::new(false));
        let mut line = Reedline::create()
            .use_bracketed_paste(true)
            .with_ansi_colors(is_coloured)
            .with_validator(Box::new(ContinuedLines))
            .with_break_signal(Arc::clone(&stop))
            .with_poll_interval(POLL_INTERVAL)
            .with_external_printer(printer);
        let signal = line.repaint_signal();
        let repaint = Box::new(move || signal.request_repaint());
        let (sender, receiver) = unbounded_channel();
        let (texts, texts_to_edit) = channel();
        let prompt = StatusPrompt(status);
        let reader =
            KeyboardReader { line, prompt, modes: Some(modes), sender, texts: texts_to_edit };
        let thread = std::thread::Builder::new()
            .name("keyboard".to_owned())
            .spawn(move || reader.run())
            .map_err(|source| TerminalError::Io { doing: "read the keyboard", source })?;
        Ok((Self { rows, repaint, stop, texts: Some(texts), thread }, receiver))
    }

    /// Prints rows above the line.
    pub(super) async fn print(&self, rows: &str) {
        // Without a line break, an empty row would be none.
        let mut text = format!("{rows}\n");
        loop {
            match self.rows.try_send(text) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(same)) => text = same,
            }
            tokio::time::sleep(FULL_DELAY).await;
        }
    }

    /// Shows the new state in the prompt.
    pub(super) fn repaint(&self) {
        (self.repaint)();
    }

    /// Opens the editor with the text of the input that the user edits.
    pub(super) fn edit(&self, text: Option<String>) {
        let _ = self.texts.as_ref().map(|texts| texts.send(text));
    }
}

impl Drop for InputLine {
    /// Ends the thread, which has the modes.
    fn drop(&mut self) {
        // The thread may wait for a text.
        self.texts = None;
        self.stop.store(true, Ordering::Relaxed);
        // A closed terminal has no modes, and a thread in `crossterm` reads it without end.
        while !self.thread.is_finished() && is_interactive() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }
}

/// A line that ends with `\` continues.
struct ContinuedLines;

impl Validator for ContinuedLines {
    fn validate(&self, line: &str) -> ValidationResult {
        if line.ends_with('\\') { ValidationResult::Incomplete } else { ValidationResult::Complete }
    }
}

struct KeyboardReader {
    line: Reedline,
    prompt: StatusPrompt,
    /// After `line`, so that the former modes are the last ones that are set. `None` while an editor has the terminal.
    modes: Option<KeyModes>,
    sender: UnboundedSender<KeyboardEvent>,
    texts: Receiver<Option<String>>,
}

impl KeyboardReader {
    fn run(mut self) {
        let mut cleared_at: Option<Instant> = None;
        loop {
            let event = match self.line.read_line(&self.prompt) {
                Ok(Signal::Success(line)) => self.handle_line(line),
                Ok(Signal::CtrlC) if cleared_at.is_some_and(|at| at.elapsed() < LEAVE_TIME) => {
                    Some(KeyboardEvent::Left)
                }
                Ok(Signal::CtrlC) => {
                    cleared_at = Some(Instant::now());
                    Some(KeyboardEvent::Cleared)
                }
                Ok(Signal::ExternalBreak(_)) => {
                    print_direct("");
                    return;
                }
                // Ctrl-D, or the terminal has gone.
                Ok(_) | Err(_) => Some(KeyboardEvent::Left),
            };
            let Some(event) = event else { continue };
            let is_last = event == KeyboardEvent::Left;
            if self.sender.send(event).is_err() || is_last {
                return;
            }
        }
    }

    /// Opens the editor itself: nothing else may read keys meanwhile. `None`: there is nothing to send.
    fn handle_line(&mut self, line: String) -> Option<KeyboardEvent> {
        match parse_line(&line) {
            ChatLine::Command(ChatCommand::Quit) => Some(KeyboardEvent::Left),
            ChatLine::Command(ChatCommand::Edit(None)) => self.edit("").map(KeyboardEvent::Line),
            ChatLine::Command(ChatCommand::Edit(Some(number))) => {
                self.sender.send(KeyboardEvent::EditRequested(number)).ok()?;
                let text = self.texts.recv().ok()??;
                Some(KeyboardEvent::Edited(number, self.edit(&text)?))
            }
            ChatLine::Command(_)
            | ChatLine::Send(_)
            | ChatLine::Queue(_)
            | ChatLine::QuickApprove
            | ChatLine::Empty
            | ChatLine::Wrong(_) => Some(KeyboardEvent::Line(line)),
        }
    }

    /// Gives the terminal to the editor.
    fn edit(&mut self, text: &str) -> Option<String> {
        self.prompt.0.update(|status| status.is_editing = true);
        self.modes = None;
        let edited = edit_text(text);
        self.modes = Some(KeyModes::set());
        self.prompt.0.update(|status| status.is_editing = false);
        edited.map_err(|error| print_direct(&error)).ok()
    }
}

/// Prints between two lines of input.
fn print_direct(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Opens the editor with a text. Returns the edited text, or why there is none.
fn edit_text(text: &str) -> Result<String, String> {
    let editor = ["VISUAL", "EDITOR"].into_iter().find_map(environment);
    let editor = editor.filter(|editor| !editor.trim().is_empty());
    let editor = editor.unwrap_or_else(|| if cfg!(windows) { "notepad" } else { "vi" }.to_owned());
    let failed = |error: std::io::Error| format!("{editor} does not run: {error}; set EDITOR");
    let mut file = tempfile::Builder::new().suffix(".md").tempfile().map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    let mut words = editor.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    let status = command.args(words).arg(file.path()).status().map_err(failed)?;
    if !status.success() {
        return Err(format!("{editor} ended with {status}: nothing is sent"));
    }
    let bytes = std::fs::read(file.path()).map_err(failed)?;
    let text =
        parse_text(&bytes).map_err(|reason| format!("the text {reason}: nothing is sent"))?;
    Ok(text.trim_start().to_owned())
}
