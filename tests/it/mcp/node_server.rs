//! An MCP server of Node.js as a process on a free port.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use turnwheel::testing::app::find_free_port;

use crate::support::npm::{describe, install_pinned};

/// Runs the main file, and ends when its standard input closes: when this process ends.
const WRAPPER_SCRIPT: &str = "\
process.stdin.resume();
process.stdin.on('close', () => process.exit(0));
import(require('url').pathToFileURL(process.argv[1]).href);";

/// The folder with the pinned servers.
pub(super) fn install_servers() -> PathBuf {
    install_pinned(
        "mcp-servers",
        &[
            ("package.json", include_str!("../../mcp-servers/package.json")),
            ("package-lock.json", include_str!("../../mcp-servers/package-lock.json")),
            ("changing.mjs", include_str!("../../mcp-servers/changing.mjs")),
            ("stateful.mjs", include_str!("../../mcp-servers/stateful.mjs")),
        ],
    )
}

/// Stopped when dropped.
pub(super) struct NodeServer {
    main: PathBuf,
    arguments: Vec<String>,
    port: u16,
    child: Child,
}

impl NodeServer {
    pub(super) fn start(main: &Path, arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
        let mut last = String::new();
        // Another process may take the port meanwhile.
        for _ in 0..5 {
            let port = find_free_port().unwrap();
            match start(main, &arguments, port) {
                Ok(child) => return Self { main: main.to_owned(), arguments, port, child },
                Err(output) => last = output,
            }
        }
        panic!("{} did not start:\n{last}", main.display());
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(super) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts a new process at the same port.
    pub(super) fn restart(&mut self) {
        self.stop();
        self.child = start(&self.main, &self.arguments, self.port).unwrap();
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits until the server listens. Returns its output if it ends before.
fn start(main: &Path, arguments: &[String], port: u16) -> Result<Child, String> {
    let mut command = Command::new("node");
    command
        .args(["-e", WRAPPER_SCRIPT, "--"])
        .arg(main)
        .args(arguments)
        .env("PORT", port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child =
        command.spawn().unwrap_or_else(|error| panic!("{}", describe(&command, &error)));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut output = String::new();
    for line in lines.by_ref() {
        if line.contains("listening on port") {
            // A full pipe would block the server.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(child);
        }
        output.push_str(&line);
        output.push('\n');
    }
    let _ = child.wait();
    Err(output)
}
