//! A terminal with `turnwheel chat` in it: types keys, and reads what is on the screen and above it.

use std::io::{Read as _, Write};
use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use vt100::{Callbacks, Parser, Screen};

const TIMEOUT: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(10);
/// Pause after a change of the width: a signal may be lost in one read with a key.
const RESIZE_PAUSE: Duration = Duration::from_millis(300);
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;
const SCROLLBACK: usize = 10_000;
/// Request of the cursor's position, to which a terminal responds.
const POSITION_REQUEST: &[u8] = b"\x1b[6n";

/// Effects beyond text that a program can have on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SideEffects {
    pub(super) titles: u32,
    pub(super) clipboards: u32,
    pub(super) sounds: u32,
    pub(super) resizes: u32,
}

impl Callbacks for SideEffects {
    fn audible_bell(&mut self, _: &mut Screen) {
        self.sounds += 1;
    }

    fn resize(&mut self, _: &mut Screen, _request: (u16, u16)) {
        self.resizes += 1;
    }

    fn set_window_title(&mut self, _: &mut Screen, _title: &[u8]) {
        self.titles += 1;
    }

    fn copy_to_clipboard(&mut self, _: &mut Screen, _kind: &[u8], _data: &[u8]) {
        self.clipboards += 1;
    }
}

struct Output {
    parser: Parser<SideEffects>,
    bytes: Vec<u8>,
}

type SharedWriter = Arc<Mutex<Box<dyn Write + Send>>>;

/// A program in a terminal. Killed when dropped.
struct Program(Box<dyn Child + Send + Sync>);

impl Program {
    /// Starts `turnwheel` in a new terminal.
    fn start(
        folder: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> (Self, Box<dyn MasterPty + Send>, Modes) {
        let pair = native_pty_system().openpty(size(COLUMNS)).unwrap();
        let modes = read_modes(&*pair.master);
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_turnwheel"));
        command.args(arguments);
        command.cwd(folder);
        command.env_clear();
        command.env("TERM", "xterm-256color");
        for (name, value) in variables {
            command.env(name, value);
        }
        (Self(pair.slave.spawn_command(command).unwrap()), pair.master, modes)
    }

    /// Waits for the end. Returns the exit code; `None`: the program runs on.
    async fn wait_for_exit(&mut self) -> Option<u32> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status.exit_code());
            }
            if Instant::now() > deadline {
                return None;
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) struct ChatTerminal {
    program: Program,
    master: Box<dyn MasterPty + Send>,
    writer: SharedWriter,
    output: Arc<Mutex<Output>>,
    /// The modes before the start of the program.
    former_modes: Modes,
}

/// Bits of the input and local modes of a terminal, and its special characters.
type Modes = (u32, u32, Vec<u8>);

/// Bit of the local modes: Ctrl-C is a signal. Raw mode has none.
const ISIG: u32 = 1;

fn read_modes(terminal: &dyn MasterPty) -> Modes {
    let modes = terminal.get_termios().unwrap();
    (modes.input_flags.bits(), modes.local_flags.bits(), modes.control_chars.to_vec())
}

fn size(columns: u16) -> PtySize {
    PtySize { rows: ROWS, cols: columns, pixel_width: 0, pixel_height: 0 }
}

fn cells(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).unwrap()
}

impl ChatTerminal {
    pub(super) fn start(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let (program, master, former_modes) = Program::start(folder, arguments, variables);
        let parser = Parser::new_with_callbacks(
            cells(ROWS),
            cells(COLUMNS),
            SCROLLBACK,
            SideEffects::default(),
        );
        let output = Arc::new(Mutex::new(Output { parser, bytes: Vec::new() }));
        let writer: SharedWriter = Arc::new(Mutex::new(master.take_writer().unwrap()));
        let mut reader = master.try_clone_reader().unwrap();
        let (shared, responses) = (Arc::clone(&output), Arc::clone(&writer));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                let response = shared.lock().unwrap().add(&buffer[..count]);
                if let Some(response) = response {
                    let _ = responses.lock().unwrap().write_all(response.as_bytes());
                }
            }
        });
        Self { program, master, writer, output, former_modes }
    }

    /// Types keys. `\r` is Enter.
    pub(super) fn press(&self, keys: &str) {
        let mut writer = self.writer.lock().unwrap();
        writer.write_all(keys.as_bytes()).unwrap();
        writer.flush().unwrap();
    }

    /// Changes the width, and gives the program time to notice it before the next key.
    pub(super) async fn resize(&self, columns: u16) {
        self.output.lock().unwrap().parser.set_size(cells(ROWS), cells(columns));
        self.master.resize(size(columns)).unwrap();
        tokio::time::sleep(RESIZE_PAUSE).await;
    }

    /// All rows, those above the screen included, without blanks at their ends.
    pub(super) fn text(&self) -> String {
        let mut output = self.output.lock().unwrap();
        let screen = output.parser.screen_mut();
        let (_, columns) = screen.size();
        let mut rows = Vec::new();
        for offset in (1..=screen.scrollback_len()).rev() {
            screen.set_scrollback(offset);
            rows.extend(screen.rows(0, columns.get()).next());
        }
        screen.set_scrollback(0);
        rows.extend(screen.rows(0, columns.get()));
        let rows: Vec<&str> = rows.iter().map(|row| row.trim_end()).collect();
        rows.join("\n").trim_end().to_owned()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.output.lock().unwrap().bytes.clone()
    }

    pub(super) fn side_effects(&self) -> SideEffects {
        *self.output.lock().unwrap().parser.callbacks()
    }

    /// True if the terminal has the modes from before the start of the program.
    pub(super) fn has_former_modes(&self) -> bool {
        read_modes(&*self.master) == self.former_modes
    }

    /// True while a line is read.
    pub(super) fn is_raw(&self) -> bool {
        read_modes(&*self.master).1 & ISIG == 0
    }

    /// True if the program receives marked pastes.
    pub(super) fn has_bracketed_paste(&self) -> bool {
        self.output.lock().unwrap().parser.screen().bracketed_paste()
    }

    /// Resident memory of the program without its files, in KB.
    pub(super) fn memory_kb(&self) -> u64 {
        let path = format!("/proc/{}/status", self.program.0.process_id().unwrap());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(super) fn send_signal(&self, name: &str) {
        let id = self.program.0.process_id().unwrap().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits until the rows satisfy the condition. Returns them.
    pub(super) async fn wait_until(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let text = self.text();
            if is_wanted(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "the terminal has:\n{text}");
            tokio::time::sleep(POLL).await;
        }
    }

    pub(super) async fn wait_for(&self, part: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let text = self.text();
            if text.contains(part) {
                return text;
            }
            assert!(Instant::now() < deadline, "no `{part}` in the terminal:\n{text}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits for the end of the program. Returns its exit code.
    pub(super) async fn wait_for_exit(&mut self) -> u32 {
        let code = self.program.wait_for_exit().await;
        code.unwrap_or_else(|| panic!("the program runs on:\n{}", self.text()))
    }
}

/// Closes the terminal of a program that reads a line, and waits for its end.
pub(super) async fn close_terminal(folder: &Path, arguments: &[&str]) {
    let (mut program, master, _) = Program::start(folder, arguments, &[]);
    let mut reader = master.try_clone_reader().unwrap();
    let line = tokio::task::spawn_blocking(move || {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        while !requests_position(&bytes) {
            let count = reader.read(&mut buffer).unwrap();
            bytes.extend_from_slice(&buffer[..count]);
        }
    });
    tokio::time::timeout(TIMEOUT, line).await.unwrap().unwrap();
    drop(master);
    assert!(program.wait_for_exit().await.is_some(), "the program runs on");
}

/// True if the output has the request with which a line begins.
fn requests_position(output: &[u8]) -> bool {
    output.windows(POSITION_REQUEST.len()).any(|part| part == POSITION_REQUEST)
}

impl Output {
    /// Processes output. Returns the response to a request of the cursor's position.
    fn add(&mut self, bytes: &[u8]) -> Option<String> {
        self.parser.process(bytes);
        self.bytes.extend_from_slice(bytes);
        let start = self.bytes.len().saturating_sub(bytes.len() + POSITION_REQUEST.len() - 1);
        let is_requested = requests_position(&self.bytes[start..]);
        let (row, column) = self.parser.screen().cursor_position();
        is_requested.then(|| format!("\x1b[{};{}R", row + 1, column + 1))
    }
}
