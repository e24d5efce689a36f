//! Escape sequences in the texts of models, and colours.

use super::chat::{respond, start_chat, start_helper};
use super::program::run;
use super::screen::{ChatTerminal, SideEffects};
use crate::support::fake_model::FakeModel;

const HOSTILE: &str = "before\n\u{1b}[2J\u{1b}[3J\u{1b}[H\u{1b}]0;title\u{7}\u{1b}]52;c;ZXZpbA==\u{7}\u{1b}[8;5;5t\u{7}\u{9b}2Jkept \u{202e}001\u{202c}\n\u{1b}P$q\"p\u{1b}\\\u{1b}c\u{1b}[?1049hafter \u{1b}]8;;https://evil.example\u{1b}\\link\u{1b}]8;;\u{1b}\\";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn escape_sequences_of_a_model_have_no_effect() {
    let model = FakeModel::start([respond(HOSTILE), respond(HOSTILE)]).await;
    let (dev, folder) = start_helper(&model);
    let chat = start_chat(&dev, folder.path(), "helper");
    chat.wait_for("/help lists the commands.").await;
    chat.press("Hello\r");
    chat.wait_for("after link").await;
    let text = chat.wait_until(|text| text.ends_with("helper >")).await;
    for kept in ["/help lists the commands.", "before", "kept ⟦U+202E⟧001⟦U+202C⟧", "after link"]
    {
        assert!(text.contains(kept), "{kept}: {text}");
    }
    assert_eq!(chat.side_effects(), SideEffects::default());
    let bytes = String::from_utf8_lossy(&chat.bytes()).into_owned();
    assert!(!bytes.contains("evil.example") && !bytes.contains("\u{1b}[3J"), "{bytes:?}");
    let piped = run(&["send", "--url", &dev.url(""), "Hello"], "");
    assert_eq!(piped.stdout, "before\nkept ⟦U+202E⟧001⟦U+202C⟧\nafter link\n", "{piped:?}");
    assert!(!piped.stderr.contains('\u{1b}'), "{piped:?}");
}

/// Sequences that set a colour or a weight.
fn count_styles(chat: &ChatTerminal) -> usize {
    let bytes = String::from_utf8_lossy(&chat.bytes()).into_owned();
    let style = regex::Regex::new(r"\x1b\[(\d+;)*([1-9]|[1-9]\d)m").unwrap();
    style.find_iter(&bytes).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_color_removes_all_styles() {
    let response = "# Title\n\n**bold** and `code`";
    let model = FakeModel::start([respond(response), respond(response)]).await;
    let (dev, folder) = start_helper(&model);
    let url = dev.url("");
    let arguments = ["chat", "helper", "--url", &url];
    for (variables, is_styled) in [(&[("NO_COLOR", "1")][..], false), (&[][..], true)] {
        let chat = ChatTerminal::start(folder.path(), &arguments, variables);
        chat.wait_for("/help lists the commands.").await;
        chat.press("Hello\r");
        chat.wait_for("bold and code").await;
        chat.wait_until(|text| text.ends_with("helper >")).await;
        assert_eq!(
            count_styles(&chat) > 0,
            is_styled,
            "{:?}",
            String::from_utf8_lossy(&chat.bytes())
        );
    }
}
