//! The samples of docs/queue.md. The SDKs of Azure are replaced by modules that print the message.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_process::DevProcess;
use crate::support::npm::run;
use crate::support::openapi_check::SendValidated as _;
use crate::tour::blocks;

const PAGE: &str = "docs/queue.md";
const TIMEOUT: Duration = Duration::from_mins(2);

/// The message of each sample that sends one through an SDK or a command of Azure.
fn sent_message() -> Value {
    json!({"agent": "payments-clerk", "conversationId": "invoice-4711", "input": "Pay 250 to Ada"})
}

/// The block in that language that has the text.
fn sample(language: &str, text: &str) -> String {
    let found = blocks(PAGE).into_iter().find(|it| it.info == language && it.text.contains(text));
    found.unwrap_or_else(|| panic!("{PAGE} has no block `{language}` with {text}")).text
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Runs a sample. Returns the message that it sends.
fn run_sample(command: &mut Command) -> Value {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn python_sample_of_the_queue_page_sends_its_message() {
    let folder = tempfile::tempdir().unwrap();
    let queue_client = r#"
class QueueClient:
    def __init__(self, account_url, queue_name, credential=None):
        assert account_url == "https://ACCOUNT.queue.core.windows.net" and queue_name == "agent-prompts"
        assert credential is not None
    def send_message(self, content):
        print(content)
"#;
    let files = [
        ("azure/__init__.py", ""),
        ("azure/identity/__init__.py", "class DefaultAzureCredential: pass\n"),
        ("azure/storage/__init__.py", ""),
        ("azure/storage/queue/__init__.py", queue_client),
        ("sample.py", &sample("python", "QueueClient")),
    ];
    write(folder.path(), &files);
    let sent = run_sample(Command::new("python3").arg("sample.py").current_dir(folder.path()));
    assert_eq!(sent, sent_message());
}

#[test]
fn javascript_sample_of_the_queue_page_sends_its_message() {
    let folder = tempfile::tempdir().unwrap();
    let package = r#"{"type": "module", "exports": "./index.js"}"#;
    let queue_client = r#"
export class QueueClient {
  constructor(url, credential) {
    if (url !== "https://ACCOUNT.queue.core.windows.net/agent-prompts" || !credential) throw new Error(url);
  }
  async sendMessage(text) { console.log(text); }
}
"#;
    let files = [
        ("node_modules/@azure/identity/package.json", package),
        ("node_modules/@azure/identity/index.js", "export class DefaultAzureCredential {}\n"),
        ("node_modules/@azure/storage-queue/package.json", package),
        ("node_modules/@azure/storage-queue/index.js", queue_client),
        ("sample.mjs", &sample("js", "QueueClient")),
    ];
    write(folder.path(), &files);
    let sent = run_sample(Command::new("node").arg("sample.mjs").current_dir(folder.path()));
    assert_eq!(sent, sent_message());
}

/// `az` and .NET are not on every machine: the message, and the namespaces of the types.
#[test]
fn other_samples_of_the_queue_page_are_complete() {
    let command = sample("sh", "az storage message put");
    let (_, content) = command.split_once("--content '").unwrap();
    let content: Value = serde_json::from_str(content.trim_end().trim_end_matches('\'')).unwrap();
    assert_eq!(content, sent_message());
    let csharp = sample("csharp", "SendMessageAsync");
    for (name, namespace) in [
        ("JsonSerializer", "System.Text.Json"),
        ("DefaultAzureCredential", "Azure.Identity"),
        ("QueueClient", "Azure.Storage.Queues"),
    ] {
        assert!(csharp.contains(name) && csharp.contains(&format!("using {namespace};")), "{name}");
    }
}

/// The commands for a developer's machine, and each message of the page.
#[tokio::test]
async fn messages_of_the_queue_page_are_accepted() {
    let data = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(data.path(), &[]);
    let local = sample("sh", "/admin/queues/").replace("http://127.0.0.1:7071", &dev.url(""));
    run(Command::new("sh").args(["-eu", "-c", &local]));
    let client = reqwest::Client::new();
    let first: Value = serde_json::from_str(&sample("json", "idempotencyKey")).unwrap();
    let mut conversations = vec!["invoice-4711".to_owned()];
    for (number, mut message) in [first, sent_message()].into_iter().enumerate() {
        let conversation = format!("{}-{number}", message["conversationId"].as_str().unwrap());
        message["conversationId"] = json!(conversation);
        conversations.push(conversation);
        let url = dev.url("/admin/queues/agent-prompts/messages");
        let sent = client.post(url).body(message.to_string()).send_validated().await.unwrap();
        assert!(sent.status().is_success(), "{}", sent.status());
    }
    let deadline = Instant::now() + TIMEOUT;
    for conversation in conversations {
        let url = dev.url(&format!("/api/conversations/{conversation}"));
        loop {
            let seen: Value =
                client.get(&url).send_validated().await.unwrap().json().await.unwrap();
            if seen["prompts"].as_array().is_some_and(|prompts| prompts.len() == 1) {
                break;
            }
            assert!(Instant::now() < deadline, "{seen}\n{}", dev.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
