//! The progress of `turnwheel certify`: on one line of a terminal, until the report replaces it.

use std::path::Path;

use super::screen::ChatTerminal;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certify_shows_progress_that_the_report_replaces() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let arguments = ["certify", "assistant", "--only", "tool.after#1"];
    let mut terminal = ChatTerminal::start(repository, &arguments, &[]);
    assert_eq!(terminal.wait_for_exit().await, 0, "{}", terminal.text());
    let text = terminal.wait_for("tools: stub.").await;
    assert!(text.starts_with("assistant: 1 prompt, "), "the line is removed: {text}");
    let output = String::from_utf8(terminal.bytes()).unwrap();
    let shown: Vec<&str> =
        output.split('\r').map(str::trim).filter(|line| line.ends_with(" runs")).collect();
    let total = shown.len() + 1;
    assert!(total > 2, "{output}");
    for (line, done) in shown.into_iter().zip(1..) {
        assert_eq!(line, format!("assistant: {done} of {total} runs"), "{output}");
    }
}
