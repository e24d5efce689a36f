//! The programs of the pages for clients (`docs/clients-*.md`), run against the program as their
//! readers run them. A program consists of the code blocks of its page.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::npm::{install_pinned, run};
use crate::support::openapi_check::SendValidated as _;
use crate::support::python::install_python_packages;
use crate::webhooks::{Delivery, Receiver, SECRET};

const APPROVED: &str = "approve {\"to\":\"Ada\",\"amount\":250}\ncompleted\nto,amount\nAda,250\n";

/// The blocks of a page in one language, in their order.
fn program_of(page: &str, language: &str) -> String {
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks.map(|rest| rest.split_once("```").unwrap().0).collect()
}

/// A service that sends webhooks to a receiver.
struct Service {
    dev: DevProcess,
    receiver: Receiver,
    _data: tempfile::TempDir,
}

impl Service {
    async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let receiver = Receiver::default();
        let settings = [
            ("TURNWHEEL_WEBHOOK_URL", receiver.start().await),
            ("TURNWHEEL_WEBHOOK_SECRET", format!("whsec_{SECRET}")),
        ];
        Self { dev: DevProcess::start(data.path(), &settings), receiver, _data: data }
    }

    /// Runs the program for a conversation, and again with the webhook of its approval request: the same
    /// keys find the same results.
    async fn check(&self, command: impl Fn() -> Command) {
        let run = |notification: &str| {
            let mut command = command();
            command.env("TURNWHEEL_URL", self.dev.url("")).env("NOTIFICATION", notification);
            let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            String::from_utf8(output.stdout).unwrap()
        };
        let first = run("");
        assert!(
            first.trim_end().replace(": ", ":").replace(", ", ",") == APPROVED.trim_end(),
            "{first}"
        );
        let deliveries = self.receiver.until("prompt.approval-requested", 1).await;
        let second = run(&notification(&deliveries[0]).to_string());
        let last = second.lines().last().unwrap();
        let received: Value = serde_json::from_str(last).unwrap();
        assert_eq!(received, json!(["prompt.approval-requested", null]), "{second}");
        // The queue message has the same key in both runs.
        self.expect_completed("order-4712", 1).await;
    }

    /// Waits until the conversation is idle, and checks its prompts.
    async fn expect_completed(&self, conversation: &str, prompts: usize) {
        let client = reqwest::Client::new();
        let url = self.dev.url(&format!("/api/conversations/{conversation}?wait=20"));
        let mut seen = Value::Null;
        // A queue message starts its conversation a moment later.
        for _ in 0..100 {
            seen = client.get(&url).send_validated().await.unwrap().json().await.unwrap();
            if seen["state"] == "idle" {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        let completed = seen["prompts"].as_array().unwrap();
        assert_eq!(completed.len(), prompts, "{seen}");
        assert!(completed.iter().all(|prompt| prompt["state"] == "completed"), "{seen}");
    }
}

fn write_files(folder: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// The secret, the headers and the body of a delivery.
fn notification(delivery: &Delivery) -> Value {
    json!({
        "secret": format!("whsec_{SECRET}"),
        "headers": {
            "webhook-id": delivery.id,
            "webhook-timestamp": delivery.timestamp,
            "webhook-signature": delivery.signature,
        },
        "body": delivery.body,
    })
}

#[tokio::test]
async fn commands_of_the_curl_page_run_in_their_order() {
    let service = Service::start().await;
    let folder = tempfile::tempdir().unwrap();
    let page = include_str!("../../docs/clients-curl.md");
    let script = program_of(page, "sh").replace("http://127.0.0.1:7071", &service.dev.url(""));
    run(Command::new("sh").args(["-eu", "-c", &script]).current_dir(folder.path()));
    for (conversation, prompts) in [("order-4711", 2), ("order-4712", 1)] {
        service.expect_completed(conversation, prompts).await;
    }
}

/// Packages of Azure. The client of the queue sends to the service itself, which takes messages too.
const AZURE_MODULES: [(&str, &str); 6] = [
    ("node_modules/@azure/identity/package.json", r#"{"type": "module", "exports": "./index.js"}"#),
    ("node_modules/@azure/identity/index.js", "export class DefaultAzureCredential {}\n"),
    ("node_modules/@azure/identity/index.d.ts", "export class DefaultAzureCredential {}\n"),
    (
        "node_modules/@azure/storage-queue/package.json",
        r#"{"type": "module", "exports": "./index.js"}"#,
    ),
    (
        "node_modules/@azure/storage-queue/index.js",
        r#"
export class QueueClient {
  constructor(url, credential) {
    if (!credential) throw new Error("a credential is missing");
    this.url = url;
  }
  async sendMessage(body) {
    const response = await fetch(`${this.url}/messages`, { method: "POST", body });
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
  }
}
"#,
    ),
    (
        "node_modules/@azure/storage-queue/index.d.ts",
        r#"
import type { DefaultAzureCredential } from "@azure/identity";
export class QueueClient {
  constructor(url: string, credential: DefaultAzureCredential);
  sendMessage(body: string): Promise<void>;
}
"#,
    ),
];

#[tokio::test]
async fn program_of_the_typescript_page_compiles_and_runs() {
    let service = Service::start().await;
    let folder = tempfile::tempdir().unwrap();
    let packages = [
        ("package.json", include_str!("../../typescript/package.json")),
        ("package-lock.json", include_str!("../../typescript/package-lock.json")),
    ];
    let tools = install_pinned("typescript", &packages).join("node_modules");
    std::os::unix::fs::symlink(&tools, folder.path().join("node_modules")).unwrap();
    let program = folder.path().join("client");
    write_files(&program, &AZURE_MODULES);
    write_files(
        &program,
        &[
            ("turnwheel.mjs", include_str!("../../examples/clients/turnwheel.mjs")),
            ("turnwheel.d.mts", include_str!("../../examples/clients/turnwheel.d.mts")),
        ],
    );
    let here = |file: &str| program.join(file);
    fs::write(here("package.json"), r#"{"type": "module"}"#).unwrap();
    let page = program_of(include_str!("../../docs/clients-typescript.md"), "ts");
    let checked = r#"
await enqueue(`${baseUrl}/admin/queues/agent-prompts`, "order-4712", "order-4712-1", "Pay 50 to Ada");
const sent = process.env["NOTIFICATION"];
if (sent) {
  const { secret, headers, body } = JSON.parse(sent);
  const [first, second] = [receive(secret, headers, body), receive(secret, headers, body)] as { type: string }[];
  console.log(JSON.stringify([first?.type, second ?? null]));
}
"#;
    fs::write(here("client.ts"), page + checked).unwrap();
    let node = || {
        let mut node = Command::new("node");
        node.current_dir(&program);
        node
    };
    let description = service.dev.url("/api/openapi.json");
    let generator = tools.join("openapi-typescript/bin/cli.js");
    run(node().arg(generator).args([&description, "--output", "api.d.ts"]));
    run(node()
        .arg(tools.join("typescript/bin/tsc"))
        .args(["--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes"])
        .args(["--target", "es2022", "--module", "nodenext", "--skipLibCheck", "--types", "node"])
        .arg("client.ts"));
    service
        .check(|| {
            let mut command = node();
            command.arg("client.js");
            command
        })
        .await;
}

/// As [`AZURE_MODULES`].
const AZURE_PACKAGES: [(&str, &str); 4] = [
    ("azure/__init__.py", ""),
    ("azure/identity.py", "class DefaultAzureCredential: pass\n"),
    ("azure/storage/__init__.py", ""),
    (
        "azure/storage/queue.py",
        r#"
import httpx
class QueueClient:
    def __init__(self, account_url, queue_name, credential=None):
        assert credential is not None
        self.url = f"{account_url}/admin/queues/{queue_name}/messages"
    def send_message(self, content):
        httpx.post(self.url, content=content).raise_for_status()
"#,
    ),
];

/// Runs only with `TURNWHEEL_CLIENTS`, in the CI stage `clients`: it installs packages of Python.
#[tokio::test]
#[expect(clippy::print_stderr, reason = "the output of a test run names what it skips")]
async fn program_of_the_python_page_runs() {
    if std::env::var_os("TURNWHEEL_CLIENTS").is_none() {
        eprintln!("skipped: `.ci/run clients` runs this test");
        return;
    }
    let python = install_python_packages();
    let service = Service::start().await;
    let page = program_of(include_str!("../../docs/clients-python.md"), "python");
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), &AZURE_PACKAGES);
    let checked = r#"
enqueue(str(api.base_url).rstrip("/"), "order-4712", "order-4712-1", "Pay 50 to Ada")
if os.environ["NOTIFICATION"]:
    sent = json.loads(os.environ["NOTIFICATION"])
    first, second = (receive(sent["secret"], sent["headers"], sent["body"].encode()) for _ in range(2))
    print(json.dumps([first["type"], second]))
"#;
    service
        .check(|| {
            let mut command = Command::new(python);
            command.args(["-c", &format!("{page}{checked}")]).current_dir(folder.path());
            command
        })
        .await;
}

/// .NET is not on every machine: the queue step has the calls of the sample of the queue page.
#[test]
fn queue_step_of_the_csharp_page_is_that_of_the_queue_page() {
    let page = program_of(include_str!("../../docs/clients-csharp.md"), "csharp");
    let sample = program_of(include_str!("../../docs/queue.md"), "csharp");
    for part in [
        "using System.Text.Json;\n",
        "using Azure.Identity;\n",
        "using Azure.Storage.Queues;\n",
        "var queue = new QueueClient(",
        ", new DefaultAzureCredential());\n",
        "await queue.SendMessageAsync(JsonSerializer.Serialize(",
        "new { agent = \"payments-clerk\", conversationId",
    ] {
        assert!(sample.contains(part), "the queue page has no `{part}`");
        assert!(page.contains(part), "the C# page has no `{part}`");
    }
}
