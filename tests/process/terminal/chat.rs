//! `turnwheel chat` in a pseudo-terminal.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::screen::ChatTerminal;
use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check;

const TIMEOUT: Duration = Duration::from_mins(2);
const READY: &str = "/help lists the commands.";
const AGENT: &str = "---\ndescription: Helps.\nmodel: gpt-5-mini\n---\nBe brief.\n";

pub(super) fn start_chat(dev: &DevProcess, folder: &Path, agent: &str) -> ChatTerminal {
    ChatTerminal::start(folder, &["chat", agent, "--url", &dev.url("")], &[])
}

/// A `dev` whose agent `helper` uses this model.
pub(super) fn start_helper(model: &FakeModel) -> (DevProcess, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
    let settings = [
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("AZURE_OPENAI_API_KEY", "a-key".to_owned()),
    ];
    let dev = DevProcess::start_in(folder.path(), &folder.path().join("data"), &settings);
    (dev, folder)
}

pub(super) fn respond(text: &str) -> ScriptedResponse {
    ScriptedResponse::Response(ResponseScript::text(text))
}

pub(super) async fn get(dev: &DevProcess, path: &str) -> Value {
    openapi_check::send(reqwest::Client::new().get(dev.url(path))).await.unwrap().json()
}

/// The id after `conversation`.
pub(super) fn conversation_id(text: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix("conversation ")).unwrap();
    line.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_approves_and_rejects_payments() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let mut chat = start_chat(&dev, folder.path(), "payments-clerk");
    chat.wait_for(READY).await;
    chat.press("Pay 250 to Ada\r");
    let text = chat.wait_for("effect: write, cannot be undone").await;
    assert!(text.contains("\"amount\": 250"), "all arguments are shown: {text}");
    chat.wait_for("waiting for a decision >").await;
    // One key approves only a request that has been on the screen for a while.
    let deadline = Instant::now() + TIMEOUT;
    while !chat.text().contains("May send_payment run? approve, decided by `default`") {
        assert!(Instant::now() < deadline, "{}", chat.text());
        chat.press("a\r");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    chat.wait_for("✓ send_payment").await;
    chat.wait_until(|text| text.ends_with("payments-clerk >")).await;
    chat.press("Pay 300 to Bob\r");
    chat.wait_for("\"amount\": 300").await;
    chat.press("/reject the amount is wrong\r");
    chat.wait_for("reject, decided by `default` (the amount is wrong)").await;
    chat.wait_for("✗ send_payment rejected").await;
    let text = chat.wait_until(|text| text.ends_with("payments-clerk >")).await;
    chat.press("/receipt\r");
    chat.wait_for("writes: 0 done").await;
    chat.press("/quit\r");
    assert_eq!(chat.wait_for_exit().await, 0);
    let resume = format!("Resume: turnwheel chat --conversation {} ", conversation_id(&text));
    // The terminal wraps it.
    chat.wait_until(|text| text.replace('\n', "").contains(&resume)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_typed_while_streaming_steers() {
    let permits = Arc::new(Semaphore::new(0));
    let first = ResponseScript {
        text: vec!["first line\n".to_owned(), "second line".to_owned()],
        ..ResponseScript::default()
    };
    let events = first.events();
    let is_delta = |event: &Value| event["type"] == "response.output_text.delta";
    let until_first_line = events.iter().position(is_delta).unwrap() + 1;
    let paced = ScriptedResponse::Paced(Arc::clone(&permits), events);
    let model = FakeModel::start([paced, respond("steered"), respond("then queued")]).await;
    let (dev, folder) = start_helper(&model);
    let chat = start_chat(&dev, folder.path(), "helper");
    chat.wait_for(READY).await;
    chat.press("Hello\r");
    permits.add_permits(until_first_line);
    chat.wait_for("first line").await;
    assert!(!chat.text().contains("second line"), "a line is printed while the next one streams");
    chat.press("Only 20\r");
    chat.wait_for("steers: joins the prompt").await;
    chat.press("> And then 30\r");
    chat.wait_for("queued: waits for the end").await;
    permits.add_permits(100);
    let text = chat.wait_for("then queued").await;
    let parts =
        ["first line", "second line", "> joined: Only 20", "steered", "> joined: And then 30"];
    let positions = parts.map(|part| text.rfind(part).unwrap_or_else(|| panic!("{part}: {text}")));
    assert!(positions.is_sorted(), "{positions:?} {text}");
    let bodies = model.request_bodies();
    assert!(bodies[1].to_string().contains("Only 20"), "{}", bodies[1]);
    chat.wait_until(|text| text.ends_with("helper >")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_resumes_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start_supervised(folder.path(), &[]);
    let chat = start_chat(&dev, folder.path(), "payments-clerk");
    chat.wait_for(READY).await;
    chat.press("Pay 250 to Ada\r");
    chat.wait_for("waiting for a decision >").await;
    for kills in 1..=2 {
        let process = get(&dev, "/api/me").await["process"]["id"].to_string();
        let status = Command::new("kill").args(["-9", &process]).status().unwrap();
        assert!(status.success());
        chat.wait_until(|text| text.matches("resumed after ").count() == kills).await;
        let text = chat.text();
        assert_eq!(text.matches("… reconnecting").count(), kills, "once for each loss: {text}");
    }
    chat.press("/approve\r");
    let text = chat.wait_for("✓ send_payment").await;
    assert_eq!(text.matches("? May send_payment run? [").count(), 1, "{text}");
    chat.wait_until(|text| text.ends_with("payments-clerk >")).await;
    let path = format!("/api/conversations/{}/prompts", conversation_id(&text));
    assert_eq!(get(&dev, &path).await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversation_is_continued_with_its_open_request() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let mut first = start_chat(&dev, folder.path(), "payments-clerk");
    first.wait_for(READY).await;
    first.press("Pay 250 to Ada\r");
    first.wait_for("cannot be undone").await;
    let text = first.wait_for("waiting for a decision >").await;
    let id = conversation_id(&text);
    first.press("\x03");
    first.wait_for("Ctrl-C again leaves").await;
    // The two keys together, in case the second of the first pair has passed.
    first.press("\x03\x03");
    assert_eq!(first.wait_for_exit().await, 0);
    assert!(first.has_former_modes());
    // Found by the data folder.
    let data = folder.path().to_str().unwrap();
    let arguments = ["chat", "--conversation", &id, "--data", data];
    let second = ChatTerminal::start(folder.path(), &arguments, &[]);
    second.wait_for("> you Pay 250 to Ada").await;
    second.wait_for("waiting for a decision >").await;
    second.press("/why\r");
    second.wait_for("An approver must decide whether").await;
    second.press("/approve\r");
    second.wait_for("✓ send_payment").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pasted_lines_are_one_input() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let chat = start_chat(&dev, folder.path(), "assistant");
    chat.wait_for(READY).await;
    let lines: Vec<String> = (1..=20).map(|number| format!("line {number}")).collect();
    chat.press(&format!("\x1b[200~{}\x1b[201~", lines.join("\r")));
    chat.wait_for("line 20").await;
    chat.press("\r");
    let text = chat.wait_for("conversation ").await;
    let text = if text.contains("\nconversation c_") {
        text
    } else {
        chat.wait_for("\nconversation c_").await
    };
    let path = format!("/api/conversations/{}/prompts", conversation_id(&text));
    let prompts = get(&dev, &path).await;
    let items = prompts["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{prompts}");
    assert_eq!(items[0]["input"], lines.join("\n"), "{prompts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_after_a_resize_leaves_earlier_rows() {
    let lines: Vec<String> = (1..=60).map(|number| format!("row {number}")).collect();
    let later: Vec<String> = (61..=90).map(|number| format!("row {number}")).collect();
    let model = FakeModel::start([respond(&lines.join("\n")), respond(&later.join("\n"))]).await;
    let (dev, folder) = start_helper(&model);
    let chat = start_chat(&dev, folder.path(), "helper");
    chat.wait_for(READY).await;
    chat.press("Hello\r");
    chat.wait_for("row 60").await;
    chat.wait_until(|text| text.ends_with("helper >")).await;
    chat.resize(100).await;
    chat.press("More");
    chat.wait_for("helper > More").await;
    chat.resize(60).await;
    chat.press("!");
    chat.wait_for("helper > More!").await;
    chat.press("\r");
    chat.wait_for("row 90").await;
    let text = chat.wait_until(|text| text.ends_with("helper >")).await;
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("row ")).collect();
    let expected: Vec<String> = lines.into_iter().chain(later).collect();
    assert_eq!(rows, expected, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn narrow_terminal_gets_whole_lines() {
    let line = "line 20 of the response";
    let model = FakeModel::start([respond(&format!("{line}\nEND"))]).await;
    let (dev, folder) = start_helper(&model);
    let chat = start_chat(&dev, folder.path(), "helper");
    chat.wait_for(READY).await;
    chat.resize(10).await;
    chat.press("Hello\r");
    let output = || String::from_utf8_lossy(&chat.bytes()).into_owned();
    chat.wait_until(|_| output().contains("END")).await;
    assert!(output().contains(line), "{:?}", output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_wide_characters_have_no_blank_rows_between() {
    let model = FakeModel::start([respond(&"日本語のとても長い一行です。".repeat(3))]).await;
    let (dev, folder) = start_helper(&model);
    let chat = start_chat(&dev, folder.path(), "helper");
    chat.wait_for(READY).await;
    chat.resize(20).await;
    chat.press("Hello");
    chat.wait_for("helper > Hello").await;
    chat.press("\r");
    let rows = "日本語のとても長い一\n行です。日本語のとて\nも長い一行です。日本\n語のとても長い一行で\nす。\n";
    chat.wait_for(rows).await;
}
