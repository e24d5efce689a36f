//! Keys that are typed while `turnwheel chat` reads no line, and the modes of the terminal afterwards.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::chat::{conversation_id, get, start_chat};
use super::screen::{ChatTerminal, close_terminal};
use crate::support::dev_process::DevProcess;

const TIMEOUT: Duration = Duration::from_mins(2);
const READY: &str = "/help lists the commands.";

fn signal(dev: &DevProcess, name: &str) {
    let id = dev.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
}

/// Stops the service. Until one of its threads handles the signal, the others still respond.
fn stop(dev: &DevProcess) {
    signal(dev, "-STOP");
    let id = dev.id().to_string();
    let state = || Command::new("ps").args(["-o", "stat=", "-p", &id]).output().unwrap().stdout;
    let deadline = Instant::now() + TIMEOUT;
    while !state().starts_with(b"T") {
        assert!(Instant::now() < deadline, "the process does not stop");
    }
}

async fn wait_until(chat: &ChatTerminal, is_wanted: impl Fn(&ChatTerminal) -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_wanted(chat) {
        assert!(Instant::now() < deadline, "{}", chat.text());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the lines of the user end with these.
async fn wait_for_inputs(dev: &DevProcess, chat: &ChatTerminal, expected: &[&str]) {
    let deadline = Instant::now() + TIMEOUT;
    let text = chat.wait_for("\nconversation c_").await;
    let path = format!("/api/conversations/{}/entries", conversation_id(&text));
    loop {
        let entries = get(dev, &path).await;
        let messages = entries["items"].as_array().unwrap().iter().map(|entry| &entry["message"]);
        let inputs = messages.filter(|message| message["role"] == "user");
        let text: Vec<String> = inputs.map(|message| input_text(&message["content"])).collect();
        let text = text.join("\n");
        let lines: Vec<&str> = text.lines().collect();
        if lines.ends_with(expected) {
            return;
        }
        assert!(Instant::now() < deadline, "{lines:?}\n{}", chat.text());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn input_text(content: &Value) -> String {
    content.as_str().or_else(|| content[0]["text"].as_str()).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_between_two_lines_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let chat = start_chat(&dev, folder.path(), "assistant");
    chat.wait_for(READY).await;
    chat.press("Hello\r");
    chat.wait_for("\nconversation c_").await;
    chat.wait_until(|text| text.ends_with("assistant >")).await;
    // The next line begins after the response of the service.
    stop(&dev);
    chat.press("/edit 1\r");
    wait_until(&chat, |chat| !chat.is_raw()).await;
    chat.press("one\rtwo\rthree\r");
    signal(&dev, "-CONT");
    chat.wait_for("there is no queued input 1").await;
    wait_for_inputs(&dev, &chat, &["Hello", "one", "two", "three"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_before_the_first_line_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    stop(&dev);
    let chat = start_chat(&dev, folder.path(), "assistant");
    wait_until(&chat, |chat| !chat.has_former_modes()).await;
    chat.press("one\rtwo\rthree\r");
    signal(&dev, "-CONT");
    wait_for_inputs(&dev, &chat, &["one", "two", "three"]).await;
}

/// As a signal, Ctrl-Z would discard the keys before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspend_key_keeps_earlier_keys() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    stop(&dev);
    let chat = start_chat(&dev, folder.path(), "assistant");
    wait_until(&chat, |chat| !chat.has_former_modes()).await;
    chat.press("one\r\x1atwo\r");
    signal(&dev, "-CONT");
    wait_for_inputs(&dev, &chat, &["one", "two"]).await;
}

/// The thread of the keyboard reads a closed terminal without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_ends_when_its_terminal_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    close_terminal(folder.path(), &["chat", "assistant", "--url", &dev.url("")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_has_its_former_modes_after_each_end() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let start = || start_chat(&dev, folder.path(), "assistant");
    for end in ["/quit\r", "\x04"] {
        let mut chat = start();
        chat.wait_for(READY).await;
        chat.press(end);
        assert_eq!(chat.wait_for_exit().await, 0, "{end:?}");
        assert!(chat.has_former_modes(), "{end:?}");
    }
    for name in ["-TERM", "-HUP", "-QUIT"] {
        let mut chat = start();
        chat.wait_for(READY).await;
        wait_until(&chat, ChatTerminal::has_bracketed_paste).await;
        chat.send_signal(name);
        assert_eq!(chat.wait_for_exit().await, 0, "{name}: {}", chat.text());
        assert!(chat.has_former_modes(), "{name}");
        wait_until(&chat, |chat| !chat.has_bracketed_paste()).await;
    }
    let unknown = ["chat", "--conversation", "nothing", "--url", &dev.url("")];
    let mut chat = ChatTerminal::start(folder.path(), &unknown, &[]);
    assert_eq!(chat.wait_for_exit().await, 1, "{}", chat.text());
    assert!(chat.has_former_modes(), "unknown conversation");
    stop(&dev);
    let mut chat = start();
    wait_until(&chat, |chat| !chat.has_former_modes()).await;
    chat.press("\x03");
    assert_eq!(chat.wait_for_exit().await, 1, "Ctrl-C during the first request");
    assert!(chat.has_former_modes(), "Ctrl-C during the first request");
}

/// An editor that reads a line, as the shell does, and writes it behind a byte order mark.
fn write_editor(folder: &Path) -> String {
    let editor = folder.join("editor");
    let script =
        "#!/bin/sh\necho editing\nread line\nprintf '\\357\\273\\277%s\\n' \"$line\" > \"$1\"\n";
    std::fs::write(&editor, script).unwrap();
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
    editor.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn editor_has_the_former_modes() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(folder.path(), &[]);
    let arguments = ["chat", "assistant", "--url", &dev.url("")];
    let editor = write_editor(folder.path());
    let chat = ChatTerminal::start(folder.path(), &arguments, &[("EDITOR", &editor)]);
    chat.wait_for(READY).await;
    chat.press("/edit\r");
    chat.wait_for("\nediting").await;
    assert!(chat.has_former_modes());
    chat.press("from the editor\r");
    wait_for_inputs(&dev, &chat, &["from the editor"]).await;
    chat.press("and a line\r");
    wait_for_inputs(&dev, &chat, &["from the editor", "and a line"]).await;
}
