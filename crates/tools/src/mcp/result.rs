//! Conversion of results of MCP tools. Each part is read by itself: what is not understood becomes
//! text, and only `isError` decides whether the result is an error.

use serde_json::json;

use crate::http::full_result::convert_full_result;
use crate::mcp::message::{ReceivedResult, plain_text};
use crate::{ToolContext, ToolResult};
use turnwheel_conversation::content::Block;
use turnwheel_json::foreign::{NOTE_NUMBERS, means_error};
use turnwheel_json::raw::RawJson;

/// Form of a result for the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum McpContent {
    /// Text and images as blocks, and JSON text for all other content.
    #[default]
    Native,
    /// The JSON text of the whole result.
    Json,
}

/// Members of a result without a meaning for the model.
const IGNORED: [&str; 3] = ["_meta", "resultType", "ttlMs"];

pub(super) async fn convert_result(
    received: &ReceivedResult,
    form: McpContent,
    context: &ToolContext,
) -> ToolResult {
    let mut parts = ResultParts::read(&received.json);
    if parts.asks_for_input {
        return ToolResult::error("The tool asks its caller for input, which is declined here.");
    }
    if form == McpContent::Json {
        let details = vec![("mcpResult".to_owned(), received.json.clone())];
        return ToolResult {
            content: vec![Block::text(received.json.text())],
            details: Some(RawJson::from_members(details)),
            is_error: parts.is_error,
            ..ToolResult::default()
        };
    }
    // Data with numbers that JSON does not have replace no text: they follow it.
    let has_odd_numbers = received.notes.iter().any(|note| note == NOTE_NUMBERS);
    if let Some(odd) = parts.structured.take_if(|_| has_odd_numbers && !parts.content.is_empty()) {
        parts.content.push(text_block(odd.text()));
    }
    let mut members = vec![
        ("content".to_owned(), RawJson::from_value(&parts.content)),
        ("isError".to_owned(), RawJson::from_value(&parts.is_error)),
    ];
    members.extend(parts.structured.map(|it| ("structuredContent".to_owned(), it)));
    let whole = RawJson::from_members(members);
    let mut converted = convert_full_result(whole.text(), context).await;
    if converted.content.is_empty() && !converted.is_error {
        converted.content.push(Block::text("The tool returned no content."));
    }
    let notes = parts.notes.iter().chain(&received.notes);
    converted.content.extend(notes.map(|note| Block::text(format!("[{note}]"))));
    converted
}

/// The parts of a result of which each is usable.
#[derive(Default)]
struct ResultParts {
    /// Text and image blocks.
    content: Vec<RawJson>,
    structured: Option<RawJson>,
    is_error: bool,
    asks_for_input: bool,
    notes: Vec<String>,
}

impl ResultParts {
    fn read(json: &RawJson) -> Self {
        let mut parts = Self::default();
        let Some(members) = json.members() else {
            if json.text() != "null" {
                parts.content.push(text_block(&plain_text(json)));
            }
            parts.notes.push("the result is not an object of MCP".to_owned());
            return parts;
        };
        let mut has_content = false;
        let mut others = Vec::new();
        for (name, value) in members {
            match name.as_str() {
                // Many serialisers write null for what is absent.
                _ if value.text() == "null" => {}
                "content" => {
                    has_content = true;
                    parts.read_content(&value);
                }
                "structuredContent" => parts.structured = Some(value),
                "isError" => parts.read_is_error(&value),
                "resultType" if value.text() == "\"input_required\"" => parts.asks_for_input = true,
                name if IGNORED.contains(&name) => {}
                _ => others.push((name, value)),
            }
        }
        // Of a result with an input request the requests are no data.
        parts.asks_for_input &= !has_content;
        if !others.is_empty() {
            parts.notes.push("the result has members that MCP does not have".to_owned());
            parts.content.push(text_block(RawJson::from_members(others).text()));
        }
        parts
    }

    fn read_is_error(&mut self, value: &RawJson) {
        self.is_error = means_error(&value.to_value());
        if !matches!(value.text(), "true" | "false") {
            let counts = if self.is_error { "counts" } else { "does not count" };
            self.notes
                .push(format!("`isError` is not true or false: the result {counts} as an error"));
        }
    }

    /// Reads a list of blocks, one block, or one text.
    fn read_content(&mut self, content: &RawJson) {
        let Ok(blocks) = content.read::<Vec<RawJson>>() else {
            return self.read_block(content);
        };
        for block in &blocks {
            self.read_block(block);
        }
    }

    fn read_block(&mut self, block: &RawJson) {
        let members = block.members().unwrap_or_default();
        let text_of = |name: &str| {
            let found = members.iter().find(|(other, _)| other == name);
            found.and_then(|(_, value)| value.read::<String>().ok())
        };
        match (text_of("type").as_deref(), text_of("text"), text_of("data")) {
            (Some("text"), Some(text), _) => self.content.push(text_block(&text)),
            (Some("image"), _, Some(data)) => {
                let mime_type = text_of("mimeType").unwrap_or_else(|| "image/png".to_owned());
                let image = json!({ "type": "image", "data": data, "mimeType": mime_type });
                self.content.push(RawJson::from_value(&image));
            }
            (Some("text" | "image") | None, ..) => {
                self.notes
                    .push("a content block that MCP does not have is shown as text".to_owned());
                self.content.push(text_block(&plain_text(block)));
            }
            (Some(_), ..) => self.content.push(text_block(block.text())),
        }
    }
}

fn text_block(text: &str) -> RawJson {
    RawJson::from_value(&json!({ "type": "text", "text": text }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_env::TestEnv;
    use turnwheel_conversation::content::joined_text;
    use turnwheel_json::foreign::read_foreign_json;

    async fn convert(text: &str) -> ToolResult {
        let json = RawJson::from_text(text).unwrap();
        let received = ReceivedResult { json, notes: Vec::new() };
        convert_result(&received, McpContent::Native, &TestEnv::new().context()).await
    }

    /// An odd part stands beside a good one, which must survive.
    #[tokio::test]
    async fn odd_part_of_result_costs_only_itself() {
        for odd in [
            r#"{"type":"text","text":5}"#,
            r#"{"type":"text"}"#,
            r#"{"type":5,"text":"x"}"#,
            r#"{"type":"audio"}"#,
            r#"{"type":"resource","resource":null}"#,
            r#"{"type":"resource_link"}"#,
            r#"{"type":"image","mimeType":5}"#,
            r#"{"type":"image","data":"no base64!"}"#,
            r#"{"type":"later","x":[1]}"#,
            r#""text""#,
            "null",
            "[1]",
            "7",
        ] {
            for template in [
                r#"{"content":[{"type":"text","text":"booked","annotations":5},ODD]}"#,
                r#"{"content":[ODD,{"type":"text","text":"booked","_meta":[]}],"isError":null}"#,
                r#"{"content":[{"type":"text","text":"booked"}],"later":ODD,"_meta":ODD}"#,
                r#"{"content":[{"type":"text","text":"booked"}],"structuredContent":ODD}"#,
            ] {
                let text = template.replace("ODD", odd);
                let result = convert(&text).await;
                assert!(!result.is_error, "{text}");
                assert!(joined_text(&result.content).contains("booked"), "{text}: {result:?}");
            }
            let text = r#"{"isError":true,"content":[ODD],"later":ODD}"#.replace("ODD", odd);
            assert!(convert(&text).await.is_error, "{text}");
        }
    }

    #[tokio::test]
    async fn result_of_any_form_is_a_response() {
        for (text, expected) in [
            ("null", "The tool returned no content.\n[the result is not an object of MCP]"),
            ("\"booked\"", "booked\n[the result is not an object of MCP]"),
            ("[1.50]", "[1.50]\n[the result is not an object of MCP]"),
            ("{}", "The tool returned no content."),
            (
                r#"{"content":"booked"}"#,
                "booked\n[a content block that MCP does not have is shown as text]",
            ),
            (r#"{"content":{"type":"text","text":"booked"}}"#, "booked"),
            (r#"{"content":null,"structuredContent":{"n":1.500}}"#, r#"{"n":1.500}"#),
            (
                r#"{"resultType":"complete","content":[],"ttlMs":5}"#,
                "The tool returned no content.",
            ),
            (
                r#"{"toolResult":12345678901234567890.10}"#,
                "{\"toolResult\":12345678901234567890.10}\n[the result has members that MCP does not have]",
            ),
        ] {
            let result = convert(text).await;
            assert_eq!((joined_text(&result.content).as_str(), result.is_error), (expected, false));
        }
        let declined = convert(r#"{"resultType":"input_required","inputRequests":{}}"#).await;
        assert!(declined.is_error && joined_text(&declined.content).contains("declined here"));
    }

    /// Python's `encodebytes` writes lines, and browsers write a URL.
    #[tokio::test]
    async fn image_in_any_form_of_base64_is_an_image() {
        for data in [
            "+/8aGk0=",
            "+/8a\nGk0=\n",
            " +/8a\r\n Gk0=",
            "+/8aGk0",
            "-_8aGk0",
            "data:image/png;base64,+/8aGk0=",
            "data:image/png;charset=utf-8;BASE64,\n+/8a\nGk0=\n",
        ] {
            let image = json!({ "type": "image", "data": data, "mimeType": "image/png" });
            let result = convert(&json!({ "content": [image] }).to_string()).await;
            let [Block::Image(image)] = &result.content[..] else { panic!("{data}: {result:?}") };
            assert_eq!(image.data, "+/8aGk0=", "{data}");
        }
        for data in
            ["no base64!", "data:image/png,+/8aGk0=", "+/8a Gk0=", "https://a.example/b.png"]
        {
            let image = json!({ "type": "image", "data": data, "mimeType": "image/png" });
            let text =
                joined_text(&convert(&json!({ "content": [image] }).to_string()).await.content);
            assert!(text.contains("its data is not base64"), "{data}: {text}");
        }
    }

    #[tokio::test]
    async fn only_is_error_decides_about_an_error() {
        for (value, is_error) in [
            ("true", true),
            ("\"true\"", true),
            ("\"True\"", true),
            ("\"no\"", true),
            ("1", true),
            ("-0.5", true),
            ("{}", true),
            ("[]", true),
            ("false", false),
            ("\"false\"", false),
            ("\"False\"", false),
            ("\"\"", false),
            ("0", false),
            ("0.0", false),
            ("null", false),
        ] {
            let text = format!(r#"{{"content":[{{"type":"text","text":"x"}}],"isError":{value}}}"#);
            assert_eq!(convert(&text).await.is_error, is_error, "{value}");
        }
    }

    #[tokio::test]
    async fn data_with_odd_numbers_follow_the_text() {
        let data = r#"{"content":TEXT,"structuredContent":{"score":NaN}}"#;
        for (text, expected, has_data) in [
            (r#"[{"type":"text","text":"booked"}]"#, "booked\n{\"score\":\"NaN\"}\n", false),
            ("[]", "{\"score\":\"NaN\"}\n", true),
        ] {
            let foreign = read_foreign_json(&data.replace("TEXT", text)).unwrap();
            let notes = foreign.notes.into_iter().map(str::to_owned).collect();
            let received = ReceivedResult { json: foreign.json, notes };
            let result =
                convert_result(&received, McpContent::Native, &TestEnv::new().context()).await;
            assert!(joined_text(&result.content).starts_with(expected), "{result:?}");
            assert_eq!(result.structured.is_some(), has_data, "{result:?}");
        }
    }

    #[tokio::test]
    async fn digits_of_results_are_exact() {
        let digits = "12345678901234567890123.4500";
        let text = r#"{"content":[{"type":"later","n":DIGITS}],"structuredContent":{"n":DIGITS}}"#;
        let received = ReceivedResult {
            json: RawJson::from_text(text.replace("DIGITS", digits)).unwrap(),
            notes: Vec::new(),
        };
        for form in [McpContent::Native, McpContent::Json] {
            let result = convert_result(&received, form, &TestEnv::new().context()).await;
            assert!(joined_text(&result.content).contains(digits), "{result:?}");
            let data = result.structured.or(result.details).unwrap();
            assert!(data.text().contains(digits), "{}", data.text());
        }
    }
}
