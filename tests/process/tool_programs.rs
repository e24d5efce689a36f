//! Programs with the packages for Python and for Node: `dev` starts them, and kills of either side
//! around a write repeat nothing.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_client::DevClient;
use crate::support::dev_process::DevProcess;
use crate::support::npm::{install_pinned, run};
use crate::support::openapi_check::SendValidated as _;
use crate::support::restarting_client::RestartingClient;

const TIMEOUT: Duration = Duration::from_mins(2);
const AGENT: &str = "---\ntools:\n  - mcp: shop\n---\nWork.";
const PACKAGE: &str = include_str!("../../typescript/package.json");
const PACKAGE_LOCK: &str = include_str!("../../typescript/package-lock.json");

#[derive(Clone, Copy, Debug, PartialEq)]
enum Language {
    Python,
    Node,
}

/// Gives the folder the package for tools, and zod.
pub(crate) fn link_node_packages(folder: &Path) {
    let files = [("package.json", PACKAGE), ("package-lock.json", PACKAGE_LOCK)];
    let zod = install_pinned("typescript", &files).join("node_modules/zod");
    let modules = folder.join("node_modules/@turnwheel/tools");
    fs::create_dir_all(&modules).unwrap();
    for file in ["package.json", "index.mjs"] {
        let source = root().join("packages/typescript-tools").join(file);
        fs::copy(source, modules.join(file)).unwrap();
    }
    std::os::unix::fs::symlink(zod, folder.join("node_modules/zod")).unwrap();
}

/// A folder with an agent and a program in the language.
struct Project {
    language: Language,
    folder: tempfile::TempDir,
}

impl Project {
    fn new(language: Language) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("agents")).unwrap();
        fs::write(folder.path().join("agents/desk.agent.md"), AGENT).unwrap();
        let project = Self { language, folder };
        let source = root().join("tests/tool-programs").join(project.code());
        fs::copy(source, project.path(project.code())).unwrap();
        if language == Language::Node {
            link_node_packages(project.folder.path());
        }
        project.write_servers(&json!({
            "command": project.command(), "args": [project.code()], "trusted": true,
            "env": { "PYTHONPATH": python_path() },
        }));
        project
    }

    fn write_servers(&self, entry: &Value) {
        let file = json!({ "servers": { "shop": entry } }).to_string();
        fs::write(self.path("mcp.json"), file).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn code(&self) -> &'static str {
        match self.language {
            Language::Python => "shop.py",
            Language::Node => "shop.mjs",
        }
    }

    fn command(&self) -> &'static str {
        match self.language {
            Language::Python => "python3",
            Language::Node => "node",
        }
    }

    fn start(&self) -> DevClient {
        DevClient::start(self.folder.path(), &settings())
    }

    /// Lines that the program has written.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("payments.txt")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn payments(&self) -> usize {
        self.lines().iter().filter(|line| line.starts_with("paid")).count()
    }

    async fn wait_for_line(&self, start: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(line) = self.lines().into_iter().find(|line| line.starts_with(start)) {
                return line;
            }
            assert!(Instant::now() < deadline, "no line {start}: {:?}", self.lines());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn python_path() -> String {
    root().join("packages/python-tools/src").display().to_string()
}

fn settings() -> [(&'static str, String); 1] {
    [("TURNWHEEL_MCP_STDIO", "shop".to_owned())]
}

fn pay(amount: u32) -> String {
    format!(r#"use mcp__shop__pay with {{"amount": {amount}}} then say done"#)
}

/// Texts of the results of a conversation's calls.
async fn results(app: &DevClient, conversation: &str) -> Vec<String> {
    let messages = app.get(&format!("/api/conversations/{conversation}/messages?limit=100")).await;
    let messages = messages["items"].as_array().unwrap().iter();
    let results = messages.filter(|message| message["role"] == "toolResult");
    results.map(|message| message["content"].to_string()).collect()
}

async fn check_tools_in_dev(language: Language) {
    let project = Project::new(language);
    let app = project.start();
    app.dev.wait_for_log(&["tool program started", "find, pay"]).await;
    let find = r#"use mcp__shop__find with {"kind": "wheel"} then use mcp__shop__find with {"kind": "x"} then "#;
    let prompt = app.prompt("c", &format!("{find}{}", pay(5))).await;
    assert_eq!(prompt["state"], "completed", "{prompt}\n{}", app.dev.log());
    let [found, refused, paid] = &*results(&app, "c").await else { panic!("{prompt}") };
    assert!(found.contains("wheel") && found.contains("count") && paid.contains("paid 5"));
    assert!(refused.contains("Validation failed"), "{refused}");
    // The rule is that of the program, and the reason too.
    let prompt = app.prompt("d", &pay(500)).await;
    assert_eq!(prompt["state"], "waiting_for_approval", "{prompt}\n{}", app.dev.log());
    assert_eq!(project.payments(), 1);
    let request = app.decide("d", "approve").await;
    assert!(request.to_string().contains("Payments above 100 need an approval."), "{request}");
    app.wait_until_idle("d").await;
    let lines = project.lines();
    assert_eq!(lines.len(), 4, "{lines:?}");
    let keys: Vec<_> = lines.iter().filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(keys.len() == 2 && keys[0] != keys[1] && keys[0].len() > 10, "{keys:?}");
    // A mistake in the code, and its correction.
    let code = fs::read_to_string(project.path(project.code())).unwrap();
    fs::write(project.path(project.code()), format!("{code}\n(")).unwrap();
    app.dev.wait_for_log(&["MCP server not read", "ended with exit code 1"]).await;
    fs::write(
        project.path(project.code()),
        code.replace("\"find\"", "\"seek\"").replace("def find", "def seek"),
    )
    .unwrap();
    app.dev.wait_for_log(&["seek, pay"]).await;
    app.prompt("e", r#"use mcp__shop__seek with {"kind": "axle"} then say done"#).await;
    assert!(results(&app, "e").await[0].contains("axle"), "{}", app.dev.log());
}

#[tokio::test]
async fn python_tools_run_in_dev() {
    check_tools_in_dev(Language::Python).await;
}

#[tokio::test]
async fn node_tools_run_in_dev() {
    check_tools_in_dev(Language::Node).await;
}

async fn check_progress_and_cancellation(language: Language) {
    let project = Project::new(language);
    let app = project.start();
    app.prompt("c", "say hello").await;
    fs::write(project.path("hold"), "").unwrap();
    let mut events = app.http.get(app.dev.url("/api/conversations/c/events")).send().await.unwrap();
    let prompts = app.dev.url("/api/conversations/c/prompts");
    let body = json!({ "input": pay(7) });
    app.http.post(prompts).json(&body).send_validated().await.unwrap();
    let mut seen = String::new();
    while !seen.contains("paying 7") {
        let chunk = tokio::time::timeout(TIMEOUT, events.chunk()).await.unwrap().unwrap();
        seen.push_str(&String::from_utf8_lossy(&chunk.unwrap()));
    }
    assert!(seen.contains("tool_execution_update"), "{seen}");
    let abort = app.dev.url("/api/conversations/c/abort");
    app.http.post(abort).json(&json!({})).send_validated().await.unwrap();
    project.wait_for_line("cancelled").await;
    app.wait_until_idle("c").await;
    assert_eq!(project.payments(), 0);
    // The program has stayed.
    fs::remove_file(project.path("hold")).unwrap();
    app.prompt("d", &pay(8)).await;
    let ids: Vec<_> = project
        .lines()
        .iter()
        .filter_map(|line| line.split(' ').nth(1).map(str::to_owned))
        .collect();
    assert_eq!((project.payments(), &ids[0]), (1, &ids[1]), "{ids:?}");
}

#[tokio::test]
async fn python_call_reports_progress_and_is_cancelled() {
    check_progress_and_cancellation(Language::Python).await;
}

#[tokio::test]
async fn node_call_reports_progress_and_is_cancelled() {
    check_progress_and_cancellation(Language::Node).await;
}

async fn check_kill_of_program(language: Language) {
    let project = Project::new(language);
    fs::write(project.path("hold"), "").unwrap();
    let app = project.start();
    app.dev.wait_for_log(&["tool program started"]).await;
    let body = json!({ "conversationId": "c", "input": pay(5) });
    app.http.post(app.dev.url("/api/prompts")).json(&body).send_validated().await.unwrap();
    let line = project.wait_for_line("begin").await;
    run(Command::new("kill").args(["-9", line.split(' ').nth(1).unwrap()]));
    fs::remove_file(project.path("hold")).unwrap();
    app.wait_for("c", |seen| seen["pendingApprovals"][0]["kind"] == "outcome").await;
    app.dev.wait_until_log(|log| log.matches("tool program started").count() >= 2).await;
    assert_eq!((project.lines().len(), project.payments()), (1, 0), "nothing runs again by itself");
    app.decide("c", "again").await;
    app.wait_until_idle("c").await;
    let lines = project.lines();
    assert_eq!((lines.len(), project.payments()), (3, 1), "{lines:?}");
    let key = |line: &str| line.split(' ').nth(2).map(str::to_owned);
    assert_eq!(key(&lines[0]), key(&lines[1]), "the repeated call has the same key");
}

#[tokio::test]
async fn killed_python_program_repeats_no_write() {
    check_kill_of_program(Language::Python).await;
}

#[tokio::test]
async fn killed_node_program_repeats_no_write() {
    check_kill_of_program(Language::Node).await;
}

/// Kills the service at a fail point around the write, or while the tool works.
async fn check_kill_of_service(language: Language, halt_at: Option<&str>) {
    let project = Project::new(language);
    let hold = project.path("hold");
    if halt_at.is_none() {
        fs::write(&hold, "").unwrap();
    }
    let folder = project.folder.path().to_owned();
    let start = move |data: &Path, given: &[(&str, String)]| {
        let all: Vec<_> = settings().into_iter().chain(given.iter().cloned()).collect();
        DevProcess::start_in(&folder, data, &all)
    };
    let mut client = RestartingClient::new(start, halt_at.map(str::to_owned));
    let body = json!({ "conversationId": "c", "input": pay(5) });
    let (accepted, _) = client.post("/api/prompts", "pay", &body).await;
    let path = format!("/api/conversations/c/prompts/{}", accepted["promptId"].as_str().unwrap());
    if halt_at.is_none() {
        project.wait_for_line("begin").await;
        client.restart();
        // The program of the killed service finishes its work.
        fs::remove_file(&hold).unwrap();
        project.wait_for_line("paid").await;
    }
    let deadline = Instant::now() + TIMEOUT;
    let mut outcomes = 0;
    loop {
        let prompt = client.get(&path).await;
        assert!(Instant::now() < deadline, "{prompt}\n{}", client.dev.log());
        if prompt["state"] == "completed" {
            break;
        }
        let view = client.get("/api/conversations/c").await;
        for approval in view["pendingApprovals"].as_array().unwrap() {
            assert_eq!(approval["kind"], "outcome", "{approval}");
            outcomes += 1;
            let decision = if project.payments() == 0 { "did_not_happen" } else { "happened" };
            let id = approval["id"].as_str().unwrap();
            let path = format!("/api/conversations/c/approvals/{id}");
            client.post(&path, id, &json!({ "decision": decision })).await;
        }
    }
    let lines = project.lines();
    assert!(outcomes >= 1 && project.payments() <= 1, "{halt_at:?}: {outcomes} {lines:?}");
    assert!(halt_at.is_none() || !client.hits.is_empty(), "{halt_at:?} was not reached");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_service_repeats_no_write_of_python() {
    for halt_at in [Some("tool.before#1"), Some("tool.after#1"), Some("result.before#1"), None] {
        check_kill_of_service(Language::Python, halt_at).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_service_repeats_no_write_of_node() {
    check_kill_of_service(Language::Node, Some("tool.after#1")).await;
    check_kill_of_service(Language::Node, None).await;
}

/// The program as a server of HTTP, as in Azure.
async fn check_http(language: Language) {
    let project = Project::new(language);
    let mut server = Command::new(project.command())
        .args([project.code(), "--http", "0"])
        .current_dir(project.folder.path())
        .env("PYTHONPATH", python_path())
        .env("TURNWHEEL_TOOLS_TOKEN", "a-token-of-this-test")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap();
    let url = format!("http://{address}/mcp");
    project.write_servers(&json!({
        "url": url, "trusted": true, "headers": { "authorization": "Bearer ${TOOLS_TOKEN}" },
    }));
    let token = ("TOOLS_TOKEN", "a-token-of-this-test".to_owned());
    let app = DevClient::start(project.folder.path(), &[token]);
    let prompt = app.prompt("c", &pay(5)).await;
    assert_eq!(prompt["state"], "completed", "{prompt}\n{}", app.dev.log());
    assert_eq!(results(&app, "c").await.len(), 1);
    // A repeated key has the first result, and pays nothing.
    let key = project.lines()[0].split(' ').nth(2).unwrap().to_owned();
    let params = json!({ "name": "pay", "arguments": { "amount": 5 }, "_meta": { "turnwheel/effectId": key } });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let post = |token: &'static str| app.http.post(&url).bearer_auth(token).json(&call);
    let text = post("a-token-of-this-test").send_validated().await.unwrap().text().await.unwrap();
    assert!(text.contains("paid 5"), "{text}");
    assert_eq!(project.payments(), 1, "{:?}", project.lines());
    assert_eq!(post("other").send_validated().await.unwrap().status(), 401);
    server.kill().unwrap();
    server.wait().unwrap();
}

#[tokio::test]
async fn python_tools_run_over_http() {
    check_http(Language::Python).await;
}

#[tokio::test]
async fn node_tools_run_over_http() {
    check_http(Language::Node).await;
}

#[test]
fn packages_pass_their_own_tests() {
    let python = root().join("packages/python-tools");
    run(Command::new("python3").args(["-m", "unittest", "discover", "tests"]).current_dir(python));
    let node = root().join("packages/typescript-tools");
    run(Command::new("node").args(["--test", "test/"]).current_dir(&node));
    // The types compile, and those of arguments are inferred.
    let files = [("package.json", PACKAGE), ("package-lock.json", PACKAGE_LOCK)];
    let modules = install_pinned("typescript", &files).join("node_modules");
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(&modules, folder.path().join("node_modules")).unwrap();
    fs::copy(node.join("index.d.mts"), folder.path().join("tools.d.mts")).unwrap();
    fs::write(folder.path().join("shop.mts"), TYPES).unwrap();
    let options = [
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--types",
        "node",
        "--module",
        "nodenext",
        "--target",
        "es2023",
        "shop.mts",
    ];
    let compiler = modules.join("typescript/bin/tsc");
    run(Command::new("node").arg(compiler).args(options).current_dir(folder.path()));
}

const TYPES: &str = r#"
import { Tools } from "./tools.mjs";
import { z } from "zod";
const tools = new Tools({ name: "shop" });
tools.tool({
  name: "pay",
  parameters: z.object({ amount: z.int(), to: z.string().optional() }),
  effect: "write",
  approval: { when: {}, reason: "x" },
  run: ({ amount, to }, call) => {
    const exact: number = amount;
    // @ts-expect-error: it may be absent
    const given: string = to;
    call.progress(`${exact} ${given} ${call.effectId}`);
  },
});
tools.tool({ name: "plain", parameters: { type: "object" }, run: (args) => args.any });
// @ts-expect-error: there is no such effect
tools.tool({ name: "odd", effect: "none", run: () => "" });
await tools.run();
"#;

/// The packages stay small.
#[test]
fn packages_have_at_most_600_lines_of_code() {
    let code = |path: &str| {
        let text = fs::read_to_string(root().join("packages").join(path)).unwrap();
        let is_code = |line: &&str| {
            !line.is_empty() && !line.starts_with(['#', '"']) && !line.starts_with("//")
        };
        text.lines().map(str::trim).filter(is_code).count()
    };
    let of_python = ["__init__.py", "schema.py", "server.py", "tools.py"];
    let python: usize = of_python
        .iter()
        .map(|file| code(&format!("python-tools/src/turnwheel_tools/{file}")))
        .sum();
    let node = code("typescript-tools/index.mjs") + code("typescript-tools/index.d.mts");
    assert!(python <= 600 && node <= 600, "{python} {node}");
}
