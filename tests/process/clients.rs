//! The example clients of `docs/clients.md`, run against the program over connections that break.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::client_module::{has_raw_json, number_flags};
use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::SendValidated as _;

const TURNWHEEL_MJS: &str = include_str!("../../examples/clients/turnwheel.mjs");

/// An example client: its interpreter with flags, the version to install, and its file.
#[derive(Clone, Copy)]
struct Client {
    program: &'static str,
    flags: &'static [&'static str],
    version: &'static str,
    file: &'static str,
}

const NODE: Client = Client {
    program: "node",
    flags: &[],
    version: "Node 18.3",
    file: "examples/clients/client.mjs",
};
const PYTHON: Client = Client {
    program: "python3",
    flags: &[],
    version: "Python 3.8",
    file: "examples/clients/client.py",
};

/// The JSON that a client printed, and its progress messages.
struct Outcome {
    result: Value,
    progress: String,
}

impl Client {
    /// Runs the client to its end.
    fn output(self, url: &str, arguments: &[&str]) -> Output {
        let Self { program, flags, version, file } = self;
        Command::new(program)
            .args(flags)
            .arg(file)
            .args(["--url", url, "--agent", "payments-clerk", "--json"])
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .output()
            .unwrap_or_else(|error| {
                panic!(
                    "`{program}` does not start ({error}). Install {version} or later: this test runs {file}."
                )
            })
    }

    /// Runs the client to its end, which is a success.
    fn run(self, url: &str, arguments: &[&str]) -> Outcome {
        let (output, file) = (self.output(url, arguments), self.file);
        let progress = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{file} fails with {}: {progress}", output.status);
        let result = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{file} must print JSON ({error}): {}", String::from_utf8_lossy(&output.stdout))
        });
        Outcome { result, progress }
    }
}

/// The value with every number as a float: JavaScript prints `0.0` as `0`.
fn with_floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(with_floats).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), with_floats(value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

fn start_dev(data: &tempfile::TempDir) -> DevProcess {
    DevProcess::start(data.path(), &[])
}

/// A proxy that cuts the first event streams, each after a number of response bytes.
struct CuttingProxy {
    url: String,
    cuts: Arc<Mutex<VecDeque<usize>>>,
}

impl CuttingProxy {
    /// `upstream` is a host and port.
    fn start(upstream: String, cuts: &[usize]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let cuts = Arc::new(Mutex::new(cuts.iter().copied().collect::<VecDeque<usize>>()));
        let open_cuts = Arc::clone(&cuts);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(&upstream) else { continue };
                proxy_connection(&client, &server, &open_cuts);
            }
        });
        Self { url, cuts }
    }
}

/// Starts the two threads of a connection.
fn proxy_connection(client: &TcpStream, server: &TcpStream, cuts: &Arc<Mutex<VecDeque<usize>>>) {
    let bytes_left = Arc::new(Mutex::new(None));
    let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (next_cuts, limit) = (Arc::clone(cuts), Arc::clone(&bytes_left));
    thread::spawn(move || forward_requests((from, to), &next_cuts, &limit));
    let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || forward_responses((from, to), &bytes_left));
}

/// Copies requests. The request of an event stream takes the next cut.
fn forward_requests(
    (mut from, mut to): (TcpStream, TcpStream),
    cuts: &Mutex<VecDeque<usize>>,
    bytes_left: &Mutex<Option<usize>>,
) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        let request = &buffer[..count];
        if String::from_utf8_lossy(request).contains("/events?") {
            *bytes_left.lock().unwrap() = cuts.lock().unwrap().pop_front();
        }
        if count == 0 || to.write_all(request).is_err() {
            break;
        }
    }
    close(&from, &to);
}

/// Copies responses until the connection ends or `bytes_left` is used up.
fn forward_responses(
    (mut from, mut to): (TcpStream, TcpStream),
    bytes_left: &Mutex<Option<usize>>,
) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        let (sent, is_cut) = {
            let mut left = bytes_left.lock().unwrap();
            let sent = left.map_or(count, |left| left.min(count));
            *left = left.map(|left| left - sent);
            (sent, *left == Some(0))
        };
        if count == 0 || to.write_all(&buffer[..sent]).is_err() || is_cut {
            break;
        }
    }
    close(&from, &to);
}

fn close(from: &TcpStream, to: &TcpStream) {
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// The client's view of the conversation must be the stored one, though its streams were cut.
async fn check_cut_streams(client: Client) {
    let data = tempfile::tempdir().unwrap();
    let dev = start_dev(&data);
    let upstream = dev.url("").replace("http://", "");
    let proxy = CuttingProxy::start(upstream, &[100, 1_200, 4_000]);
    let Outcome { result, progress } =
        client.run(&proxy.url, &["--input", "Pay 250 to Ada", "--decide", "approve"]);
    assert!(proxy.cuts.lock().unwrap().is_empty(), "streams were not cut: {progress}");
    assert!(progress.contains("reconnecting after event"), "{progress}");
    assert!(progress.contains("Sending 250 to Ada requires approval."), "{progress}");
    let text = result["text"].as_str().unwrap();
    assert!(text.starts_with("Paid 250 to Ada. The receipt is rcpt_"), "{result}");
    assert_eq!(result["prompt"]["state"], "completed", "{result}");
    let conversation = result["conversationId"].as_str().unwrap();
    let url = dev.url(&format!("/api/conversations/{conversation}/messages"));
    let stored: Value =
        reqwest::Client::new().get(url).send_validated().await.unwrap().json().await.unwrap();
    let (rebuilt, stored) = (with_floats(&result["messages"]), with_floats(&stored["items"]));
    assert_eq!(rebuilt, stored, "{progress}");
}

#[tokio::test]
async fn node_client_continues_cut_event_streams() {
    check_cut_streams(NODE).await;
}

#[tokio::test]
async fn python_client_continues_cut_event_streams() {
    check_cut_streams(PYTHON).await;
}

#[test]
fn clients_with_the_same_key_share_one_prompt() {
    let data = tempfile::tempdir().unwrap();
    let dev = start_dev(&data);
    let arguments = ["--input", "Pay 250 to Ada", "--decide", "approve", "--key", "order-4711"];
    let [first, second] = [NODE, PYTHON].map(|client| client.run(&dev.url(""), &arguments).result);
    assert_eq!(with_floats(&first), with_floats(&second));
}

#[test]
fn clients_report_rejected_calls() {
    let data = tempfile::tempdir().unwrap();
    let dev = start_dev(&data);
    for client in [NODE, PYTHON] {
        let arguments = ["--input", "Pay 300 to Bob", "--decide", "reject"];
        let result = client.run(&dev.url(""), &arguments).result;
        let call = json!({
            "type": "error", "error": "Rejected by user", "rejected": {"by": "default"},
        });
        assert_eq!(result["prompt"]["output"][1]["result"], call, "{result}");
    }
}

/// Node 20 and earlier refuse the number instead, unless a flag adds `JSON.rawJSON`.
#[test]
fn clients_show_each_digit_of_the_arguments() {
    let data = tempfile::tempdir().unwrap();
    let dev = start_dev(&data);
    let arguments = ["--input", "Pay 250.000000000000000000001 to Ada", "--decide", "approve"];
    let shown = |client: Client| {
        let output = client.output(&dev.url(""), &arguments);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let refused = "JavaScript would round 250.000000000000000000001";
    let exact = r#"send_payment {"to":"Ada","amount":250.000000000000000000001}"#;
    for &flags in number_flags() {
        let (is_done, progress) = shown(Client { flags, ..NODE });
        assert_eq!(is_done, has_raw_json(flags), "{progress}");
        assert!(progress.contains(if is_done { exact } else { refused }), "{progress}");
    }
    let (is_done, progress) = shown(PYTHON);
    let exact = r#"send_payment {"to": "Ada", "amount": "250.000000000000000000001"}"#;
    assert!(is_done && progress.contains(exact), "{progress}");
}

/// A request that waits is repeated by many libraries, and without a key starts another
/// conversation.
#[test]
fn examples_that_wait_have_an_idempotency_key() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("docs"), root.join("examples")];
    let mut pages = vec![root.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() && !entry.ends_with("node_modules") && !entry.ends_with("target") {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "md") {
                pages.push(entry);
            }
        }
    }
    let mut count = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap().replace("\\\n", " ");
        let commands = text.lines().filter(|line| line.contains("curl "));
        for command in commands.filter(|command| command.contains("prompts?wait=")) {
            let has_key = command.to_lowercase().contains("idempotency-key");
            assert!(has_key, "{}: {command}", page.display());
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
}

/// The browser client of `docs/authentication.md` reads every stored event once, though its
/// connections are cut.
#[tokio::test]
async fn browser_client_continues_cut_event_streams() {
    let page = include_str!("../../docs/authentication.md");
    let (_, block) = page.split_once("```js\nasync function* events(").unwrap();
    let (body, _) = block.split_once("```").unwrap();
    let data = tempfile::tempdir().unwrap();
    let dev = start_dev(&data);
    let prompt =
        json!({"agent": "payments-clerk", "conversationId": "cut", "input": "Pay 40 to Ada"});
    let url = dev.url("/api/prompts?wait=60");
    let done = reqwest::Client::new().post(url).json(&prompt).send_validated().await.unwrap();
    assert_eq!(done.status(), 200);
    let proxy = CuttingProxy::start(dev.url("").replace("http://", ""), &[100, 1_200, 4_000, 100]);
    let script = data.path().join("client.mjs");
    let main =
        "for await (const event of events(process.argv[2], 'cut', 't')) console.log(event.type);";
    std::fs::write(&script, format!("async function* events({body}{main}\n")).unwrap();
    let output = Command::new("node").arg(&script).arg(&proxy.url).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(proxy.cuts.lock().unwrap().is_empty(), "streams were not cut");
    let read: Vec<&str> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    let stored = reqwest::Client::new()
        .get(dev.url("/api/conversations/cut/events?follow=false"))
        .send_validated()
        .await
        .unwrap();
    let stored = stored.text().await.unwrap();
    let stored: Vec<&str> =
        stored.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    // Deltas are live only.
    let read: Vec<&str> = read.into_iter().filter(|kind| *kind != "message_update").collect();
    let stored: Vec<&str> = stored.into_iter().filter(|kind| *kind != "message_update").collect();
    assert_eq!(read, stored);
}

#[test]
fn events_page_shows_the_reducer_of_the_client() {
    let (_, reducer) = TURNWHEEL_MJS.split_once("// The reducer of docs/events.md.\n").unwrap();
    let (reducer, _) = reducer.split_once("// End of the reducer.\n").unwrap();
    let page = include_str!("../../docs/events.md");
    assert!(
        page.contains(&format!("```js\n{reducer}```\n")),
        "copy the reducer of examples/clients/turnwheel.mjs into docs/events.md"
    );
}
