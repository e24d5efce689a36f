//! Pages of conversations: sections, branches and hostile texts.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{CustomMessageEntry, EntryBase, Label};
use turnwheel_json::raw::RawJson;

fn base(seq: u64, parent: Option<u64>) -> EntryBase {
    EntryBase {
        entry_id: EntryId::new(format!("e{seq}")),
        parent_id: parent.map(|parent| EntryId::new(format!("e{parent}"))),
        seq,
        timestamp: Timestamp(1_795_000_000_000),
        prompt_id: None,
    }
}

fn entry(seq: u64, parent: Option<u64>, body: &Value) -> Entry {
    let body = EntryBody::from_raw(RawJson::from_value(body)).unwrap();
    Entry { base: base(seq, parent), body }
}

fn section_of(body: &Value) -> String {
    section(&entry(1, None, body), &PageZone::utc())
}

fn message(message: &Value) -> Value {
    json!({"type": "message", "message": message})
}

fn user(text: &str) -> Value {
    message(&json!({"role": "user", "content": text, "timestamp": 1}))
}

fn response(text: &str) -> Value {
    let content = json!([{"type": "text", "text": text}]);
    message(&json!({
        "role": "assistant", "content": content, "api": "a", "provider": "azure", "model": "gpt-5",
        "usage": {"input": 120, "output": 30, "totalTokens": 150, "cost": {"total": 0.0123}},
        "stopReason": "stop", "timestamp": 1,
    }))
}

fn result(text: &str, is_error: bool) -> Value {
    message(&json!({
        "role": "toolResult", "toolCallId": "c", "toolName": "pay", "isError": is_error,
        "content": [{"type": "text", "text": text}], "timestamp": 1,
    }))
}

/// A message of a model with this text.
fn markdown_of(text: &str) -> String {
    let html = section_of(&response(text));
    let content = html.split_once("</h2>\n").unwrap().1;
    content.strip_suffix("</section>\n").unwrap().to_owned()
}

#[test]
fn markdown_of_models_is_rendered() {
    let text = "# Sum\n\n**two** _and_ `x < y`\n\n1. a\n2. b\n\n| n | v |\n|---|--:|\n| a | 1 |\n\n```rust\nfn f() {}\n```\n";
    insta::assert_snapshot!(markdown_of(text), @r"
    <h1>Sum</h1>
    <p><strong>two</strong> <em>and</em> <code>x &lt; y</code></p>
    <ol>
    <li>a</li>
    <li>b</li>
    </ol>
    <table><thead><tr><th>n</th><th>v</th></tr></thead><tbody>
    <tr><td>a</td><td>1</td></tr>
    </tbody></table>
    <pre><code>fn f() {}
    </code></pre>
    ");
}

#[test]
fn markup_and_addresses_of_models_do_nothing() {
    for (text, expected) in [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a <img src=x onerror=alert(1)> b", "<p>a &lt;img src=x onerror=alert(1)&gt; b</p>"),
        ("[go](javascript:alert(1))", "<p>go</p>"),
        (
            "![seen](https://x.example/p.png?secret)",
            "<p><a href=\"https://x.example/p.png?secret\">seen</a></p>",
        ),
        ("[go](HTTPS://x.example \"title\")", "<p><a href=\"HTTPS://x.example\">go</a></p>"),
        (
            "[go](data:text/html,x) [mail](mailto:a@b.example)",
            "<p>go <a href=\"mailto:a@b.example\">mail</a></p>",
        ),
        ("```html onload=x\n<b>\n```", "<pre><code>&lt;b&gt;\n</code></pre>"),
    ] {
        assert_eq!(markdown_of(text).trim_end(), expected, "{text}");
    }
}

#[test]
fn failures_and_long_results_are_visible() {
    let short = section_of(&result("paid", false));
    assert!(
        short.contains("<pre class=\"text\">paid</pre>") && !short.contains("<details>"),
        "{short}"
    );
    let failed = section_of(&result("no such account", true));
    assert!(
        failed.contains("<section class=\"failed\">")
            && failed.contains("<b>failed</b> · result of pay"),
        "{failed}"
    );
    let long = section_of(&result(&"line\n".repeat(30), false));
    assert!(long.contains("<details><summary>result</summary>"), "{long}");
    let ended = section_of(&json!({"type": "prompt_end", "state": "failed", "stopReason": "error",
        "error": {"type": "model", "message": "no deployment"}}));
    assert!(
        ended.contains("<b>failed</b> · end of the prompt") && ended.contains("no deployment"),
        "{ended}"
    );
    let priced = section_of(&response("hi"));
    assert!(
        priced.contains("<span>gpt-5</span> · <span>120 in, 30 out</span> · <span>$0.0123</span>"),
        "{priced}"
    );
}

#[test]
fn arguments_keep_each_digit() {
    let call = RawJson::from_text(r#"{"type":"message","message":{"role":"assistant","content":[{"type":"toolCall","id":"c","name":"pay","arguments":{"amount":1.10,"n":12345678901234567890.1}}],"api":"a","provider":"p","model":"m","stopReason":"toolUse","timestamp":1}}"#).unwrap();
    let body = EntryBody::from_raw(call).unwrap();
    let html = section(&Entry { base: base(1, None), body }, &PageZone::utc());
    let shown = "pay {\n  &quot;amount&quot;: 1.10,\n  &quot;n&quot;: 12345678901234567890.1\n}";
    assert!(html.contains(shown), "{html}");
}

#[test]
fn times_are_in_the_zone_of_the_reader() {
    let zone = PageZone::from_name("Europe/Berlin").unwrap();
    let html = section(&entry(1, None, &user("hi")), &zone);
    let time = "<time datetime=\"2026-11-18T11:06:40.000Z\">18 Nov 2026, 12:06:40</time>";
    assert!(html.contains(time), "{html}");
    assert!(PageZone::from_name("Berlin").unwrap_err().contains("write an IANA name"));
}

/// The kinds of items: entries by number, branches by title.
fn outline(entries: &[Entry], leaf: u64) -> String {
    let entries: Vec<Arc<Entry>> = entries.iter().cloned().map(Arc::new).collect();
    let leaf = EntryId::new(format!("e{leaf}"));
    let path = path_to_leaf(&entries, Some(&leaf));
    let names = place_branches(&entries, &path).into_iter().map(|item| match item {
        Item::Entry(entry) => entry.base.seq.to_string(),
        Item::BranchStart { title, entries } => format!("({entries} `{title}`"),
        Item::BranchEnd => ")".to_owned(),
    });
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn other_branches_are_folded_where_they_begin() {
    let tree = [
        entry(1, None, &user("one")),
        entry(2, Some(1), &response("two")),
        entry(3, Some(2), &user("left\nbehind")),
        entry(4, Some(3), &response("lost")),
        entry(5, Some(3), &response("also lost")),
        entry(6, Some(2), &user("kept")),
        entry(7, Some(1), &user("second")),
        entry(8, Some(6), &response("end")),
        entry(9, None, &user("another root")),
        entry(10, Some(8), &json!({"type": "label", "targetId": "e1", "label": "x"})),
    ];
    assert_eq!(
        outline(&tree, 8),
        "(1 `another root` 9 ) 1 (1 `second` 7 ) 2 (3 `left` 3 4 5 ) 6 8"
    );
    assert_eq!(
        outline(&tree, 5),
        "(1 `another root` 9 ) 1 (1 `second` 7 ) 2 (3 `kept` 6 8 10 ) 3 (1 `lost` 4 ) 5"
    );
}

#[test]
fn hidden_messages_are_not_in_the_page() {
    let hidden = CustomMessageEntry {
        display: false,
        ..CustomMessageEntry::new("note", Content::Text("secret".to_owned()))
    };
    for body in [
        EntryBody::CustomMessage(hidden),
        EntryBody::Label(Label::new(EntryId::new("e"), Some("secret".to_owned()))),
    ] {
        assert_eq!(section(&Entry { base: base(1, None), body }, &PageZone::utc()), "");
    }
}

/// All tags of a page that content could add.
pub(super) fn assert_only_own_tags(html: &str) {
    let tag = regex::Regex::new("^(/?(section|h[1-6]|p|strong|em|del|ul|ol|li|pre|code|blockquote|table|thead|tbody|tr|th|td|details|summary|span|time|a|b)|hr /|br /|section class=\"(user|failed)?\"|pre class=\"text\"|time datetime=\"[0-9TZ:.-]+\"|a href=\"(?i:https?://|mailto:)[^\"<>]*\")>").unwrap();
    for rest in html.split('<').skip(1) {
        assert!(tag.is_match(rest), "<{rest:.80}");
    }
    assert!(!html.contains('\0'));
}

proptest! {
    #[test]
    fn no_text_adds_a_tag_to_a_page(text in "[<>&\"'/a-z\\x00-\\x1f !=;:()\\[\\]`*_#|-]{1,60}", other in "\\PC{1,20}") {
        for text in [text, other] {
            assert_only_own_tags(&sections(&text));
            assert_only_own_tags(&section_of(&response(&text)));
        }
    }
}

/// The sections of entries with the text in every member that a page shows.
fn sections(text: &str) -> String {
    let block = json!([
        {"type": "text", "text": text}, {"type": "thinking", "thinking": text},
        {"type": "toolCall", "id": text, "name": text, "arguments": {text: text}},
        {"type": "image", "data": "", "mimeType": text},
        {"type": "file", "artifactId": text, "path": text},
    ]);
    let messages = [
        json!({"role": "user", "content": text, "timestamp": 1}),
        json!({"role": "assistant", "content": block, "api": text, "provider": text, "model": text, "stopReason": "error", "errorMessage": text, "timestamp": 1}),
        json!({"role": "toolResult", "toolCallId": text, "toolName": text, "content": block, "isError": true, "timestamp": 1}),
        json!({"role": "bashExecution", "command": text, "output": text, "cancelled": false, "truncated": false, "timestamp": 1}),
        json!({"role": "custom", "customType": text, "content": text, "display": true, "timestamp": 1}),
        json!({"role": "branchSummary", "summary": text, "fromId": text, "timestamp": 1}),
        json!({"role": text, "content": text}),
    ];
    let bodies = messages.map(|message| json!({"type": "message", "message": message}));
    let others = [
        json!({"type": "custom_message", "customType": text, "content": text, "display": true}),
        json!({"type": "compaction", "summary": text, "firstKeptEntryId": text, "tokensBefore": 1}),
        json!({"type": "branch_summary", "summary": text, "fromId": text}),
        json!({"type": "output", "output": {"type": "widget", "widget": text, "data": text, "fallback": text}}),
        json!({"type": "output", "output": {"type": "file", "artifactId": text, "path": text, "mimeType": text, "size": 1}}),
        json!({"type": text, "text": text}),
    ];
    bodies.iter().chain(&others).map(section_of).collect()
}
