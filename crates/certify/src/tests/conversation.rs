//! Tests of conversation files.

use super::*;

#[test]
fn conversation_with_unknown_tool_is_rejected() {
    let options = certify_options(Settings::default(), Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let file = "- prompt: Go.\n  answers: [{calls: [{tool: look}, {tool: loook}]}]\n";
    std::fs::write(folder.path().join("clerk.certify.yaml"), file).unwrap();
    let error = Conversation::for_agent(&options.agents[0].0, folder.path()).unwrap_err();
    assert_eq!(
        error,
        "clerk.certify.yaml: `loook` is not a tool of the agent `clerk`; its tools: look, pay, gated, report, put"
    );
}

#[test]
fn conversation_file_may_have_a_byte_order_mark() {
    let options = certify_options(Settings::default(), Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let read = |bytes: &[u8]| {
        std::fs::write(folder.path().join("clerk.certify.yaml"), bytes).unwrap();
        Conversation::for_agent(&options.agents[0].0, folder.path())
    };
    assert_eq!(read(b"\xef\xbb\xbf- prompt: Go.\n").unwrap().prompts[0].prompt, "Go.");
    let error = read(b"\xff\xfe-\0 \0").unwrap_err();
    assert!(error.starts_with("clerk.certify.yaml: is UTF-16 text"), "{error}");
}

#[test]
fn conversation_file_is_parsed_or_rejected() {
    let read = Conversation::read(
        "- prompt: Hello\n  decide: reject\n  answers:\n    - say: Hm\n      calls: [{tool: look, arguments: {n: 1}}]\n",
    );
    let prompt = read.unwrap().prompts.remove(0);
    assert_eq!((prompt.responses[0].text.as_str(), prompt.responses[0].calls.len()), ("Hm", 1));
    for (text, expected) in [
        ("[]", "it contains no prompt"),
        ("- prompt: a\n- prompt: a\n", "`a` occurs twice"),
        ("- prompt: a\n- prompt: b\n  replaces: 2\n", "`replaces: 2` of prompt 2: name an earlier"),
        ("- say: a\n", "expected a list of `prompt: …`"),
        ("prompt: a\n", "expected a list of `prompt: …`"),
    ] {
        let error = Conversation::read(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
