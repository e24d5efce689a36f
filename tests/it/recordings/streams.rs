//! Every recorded stream and error becomes a message or a classified failure, in chunks of any
//! size.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::iter;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use turnwheel::messages::{AssistantMessage, Block, StopReason};
use turnwheel::models::ModelFailure;
use turnwheel::testing::agent::content::joined_text;
use turnwheel::testing::clock::Timestamp;
use turnwheel::testing::model::catalogue::Tariff;
use turnwheel::testing::model::responses::fold::{FoldedResponse, ResponseFold};
use turnwheel::testing::model::responses::names::ToolNames;
use turnwheel::testing::model::responses::provider_error::{ProviderError, classify};
use turnwheel::testing::model::responses::stream::SseReader;
use turnwheel::testing::tools::sha256_hex;

use crate::support::shared_data::find_shared_data;

pub(super) const MODEL: &str = "gpt-5.1";

/// The beginning of a note for an item that is no text, call or reasoning.
const OMITTED: &str = "(output of the type `";

/// Folds the bytes of a stream, read in chunks of `size`.
pub(super) async fn fold(bytes: &[u8], size: usize) -> FoldedResponse {
    let chunks: Vec<Result<Bytes, Infallible>> =
        bytes.chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    let mut events = SseReader::new(iter(chunks), Duration::from_mins(1));
    let mut fold = ResponseFold::new(MODEL, Tariff::default(), ToolNames::default());
    while let Some((name, data)) = events.next_event().await.unwrap() {
        fold.push_frame(name.as_deref(), &data);
    }
    fold.finish()
}

pub(super) fn recordings_in(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.to_str().unwrap().ends_with(ending)
                && !path.to_str().unwrap().ends_with(".request.json")
        })
        .collect();
    files.sort();
    files
}

pub(super) fn file_name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The usage at the end of the stream.
fn recorded_usage(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    let events = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok());
    let mut usages = events.map(|event| event["response"]["usage"].clone());
    usages.rfind(Value::is_object).unwrap_or_default()
}

/// The complete items of the stream.
fn complete_items(bytes: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(bytes);
    let events = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok());
    events
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| event["item"].clone())
        .collect()
}

#[tokio::test]
async fn recorded_streams_become_messages() {
    let Some(folder) = find_shared_data("recordings/responses-stream") else { return };
    let files = recordings_in(&folder, ".sse");
    assert!(files.len() > 100, "only {} recordings", files.len());
    for path in files {
        let bytes = std::fs::read(&path).unwrap();
        let folded = fold(&bytes, bytes.len()).await;
        let file = file_name(&path);
        let again = fold(&bytes, 7).await;
        assert_eq!(folded.message, again.message, "{file} in chunks");
        let message = &folded.message;
        assert!(folded.error.is_none(), "{file}: {:?}", message.error_message);
        let reported = recorded_usage(&bytes);
        let counted = *message.usage;
        assert_eq!(
            (counted.input + counted.cache_read + counted.cache_write, counted.output),
            (
                reported["input_tokens"].as_u64().unwrap_or(0),
                reported["output_tokens"].as_u64().unwrap_or(0)
            ),
            "{file}"
        );

        let items = complete_items(&bytes);
        let of = |kind: &str| items.iter().filter(|item| item["type"] == kind).collect::<Vec<_>>();
        let calls: Vec<(String, Value)> = message
            .tool_calls()
            .map(|call| (call.id.split('|').next().unwrap().to_owned(), call.arguments.to_value()))
            .collect();
        let is_call =
            |item: &&Value| item["type"] == "function_call" || item["type"] == "custom_tool_call";
        let expected: Vec<(String, Value)> = items
            .iter()
            .filter(is_call)
            .map(|item| {
                let arguments = item.get("arguments").unwrap_or(&item["input"]).as_str().unwrap();
                let value = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
                (item["call_id"].as_str().unwrap().to_owned(), value)
            })
            .collect();
        assert_eq!(calls, expected, "{file}");
        let texts: Vec<String> = of("message")
            .iter()
            .map(|item| {
                let parts = item["content"].as_array().unwrap().iter();
                parts
                    .filter_map(|part| part.get("text").or_else(|| part.get("refusal"))?.as_str())
                    .collect()
            })
            .collect();
        let written = message.content.iter().filter_map(|block| match block {
            Block::Text(text) if text.text.starts_with(OMITTED) => None,
            Block::Text(text) => Some(text.text.as_str()),
            Block::Thinking(_)
            | Block::Image(_)
            | Block::File(_)
            | Block::ToolCall(_)
            | Block::Other(_) => None,
        });
        assert_eq!(written.collect::<Vec<_>>().join("\n"), texts.join("\n"), "{file}");
        let reasoning_blocks =
            message.content.iter().filter(|block| matches!(block, Block::Thinking(_))).count();
        assert_eq!(reasoning_blocks, of("reasoning").len(), "{file}");
    }
}

#[tokio::test]
async fn truncated_streams_are_retryable_failures() {
    let Some(folder) = find_shared_data("recordings/responses-stream") else { return };
    for path in recordings_in(&folder, ".sse").into_iter().step_by(12) {
        let bytes = std::fs::read(&path).unwrap();
        let end =
            String::from_utf8_lossy(&bytes).rfind("event: response.").unwrap_or(bytes.len() / 2);
        for part in [1, 2, 5] {
            let cut = end / part;
            let folded = fold(&bytes[..cut.saturating_sub(1)], 997).await;
            let Some(fault) = folded.error else {
                panic!("{} cut at {cut} is not a failure", file_name(&path))
            };
            assert_eq!(fault.text, "stream closed before response.completed");
            assert_eq!(
                classify(&fault, &HeaderMap::new(), Timestamp(0)),
                ModelFailure::Retryable { after: None }
            );
        }
    }
}

struct IndexEntry {
    status: Option<u16>,
    headers: HeaderMap,
}

/// Looks up a file in the index of the recordings.
fn index_entry(index: &Path, file: &str) -> IndexEntry {
    let index: Value = serde_json::from_str(&std::fs::read_to_string(index).unwrap()).unwrap();
    let entry = index
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["file"].as_str().unwrap().ends_with(file))
        .unwrap();
    let headers = entry["headers"].as_object().cloned().unwrap_or_default();
    let headers = headers
        .iter()
        .map(|(name, value)| {
            let value = HeaderValue::from_str(value.as_str().unwrap()).unwrap();
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), value)
        })
        .collect();
    IndexEntry {
        status: entry["status"].as_u64().map(|status| u16::try_from(status).unwrap()),
        headers,
    }
}

async fn classify_recording(index: &Path, path: &Path) -> (String, ModelFailure) {
    let entry = index_entry(index, file_name(path));
    let bytes = std::fs::read(path).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let fault = if path.extension().is_some_and(|kind| kind == "sse") {
        let whole = fold(&bytes, bytes.len()).await.error.unwrap();
        assert_eq!(Some(&whole), fold(&bytes, 7).await.error.as_ref());
        whole
    } else {
        match entry.status {
            // An error body with status 200 is an error too.
            Some(status) if status != 200 => ProviderError::from_http(status, &text),
            Some(_) | None => {
                ProviderError::from_error_event(&serde_json::from_str(&text).unwrap()).unwrap()
            }
        }
    };
    (fault.text.clone(), classify(&fault, &entry.headers, Timestamp(0)))
}

#[tokio::test]
async fn recorded_errors_are_permanent_failures() {
    let Some(folder) = find_shared_data("recordings/errors") else { return };
    let index = find_shared_data("recordings/index.json").unwrap();
    let files = [recordings_in(&folder, ".json"), recordings_in(&folder, ".sse")].concat();
    assert!(files.len() > 25, "only {} errors", files.len());
    for path in files {
        let (text, failure) = classify_recording(&index, &path).await;
        assert!(!text.is_empty(), "{}", file_name(&path));
        // Every recorded error is caused by the request or the account.
        assert_eq!(failure, ModelFailure::Permanent, "{}: {text}", file_name(&path));
    }
}

#[tokio::test]
async fn azure_failures_are_classified() {
    let Some(folder) = find_shared_data("recordings/errors/transcribed") else { return };
    let index = find_shared_data("recordings/index.json").unwrap();
    let retry = |ms: u64| ModelFailure::Retryable { after: Some(Duration::from_millis(ms)) };
    let retry_unspecified = ModelFailure::Retryable { after: None };
    let expected = [
        ("azure-400-content-filter-prompt.json", ModelFailure::Permanent),
        ("azure-400-item-not-found-store-false.json", ModelFailure::Permanent),
        ("azure-429-http.json", retry(86_400_000)),
        ("azure-429-in-200__error-then-failed.sse", retry(4_000)),
        ("azure-429-in-200__failed-null-then-error.sse", retry(4_000)),
        ("azure-429-in-200__too-many-requests.sse", retry_unspecified.clone()),
        ("azure-429-uncoded-failed.sse", retry_unspecified),
        ("azure-content-policy-in-200.sse", ModelFailure::Permanent),
        ("context-length-in-200.sse", ModelFailure::ContextOverflow),
        ("openai-rate-limit-tokens-in-200.sse", retry(44)),
        ("ws-connection-limit-reached.json", ModelFailure::Permanent),
        ("ws-previous-response-not-found.json", ModelFailure::Permanent),
    ];
    for (file, expected) in expected {
        let (text, failure) = classify_recording(&index, &folder.join(file)).await;
        assert_eq!(failure, expected, "{file}: {text}");
    }
}

async fn read_azure_recording(file: &str) -> Option<(AssistantMessage, Vec<Value>)> {
    let bytes = std::fs::read(find_shared_data("recordings/responses-stream")?.join(file)).unwrap();
    let folded = fold(&bytes, bytes.len()).await;
    Some((folded.message, complete_items(&bytes)))
}

/// Exact description without the recorded text: lengths and hashes.
fn describe_message(message: &AssistantMessage) -> String {
    let mark = |text: &str| format!("{} bytes {:.8}", text.len(), sha256_hex(text.as_bytes()));
    let mut lines: Vec<String> = message
        .content
        .iter()
        .map(|block| match block {
            Block::Text(text) => {
                format!("text {} {}", mark(&text.text), text.text_signature.as_deref().unwrap())
            }
            Block::Thinking(thinking) => {
                format!(
                    "thinking {} {}",
                    mark(&thinking.thinking),
                    mark(thinking.thinking_signature.as_deref().unwrap())
                )
            }
            Block::ToolCall(call) => {
                format!("call {} {} {}", call.name, call.arguments.text(), call.id)
            }
            Block::Image(_) | Block::File(_) | Block::Other(_) => "another block".to_owned(),
        })
        .collect();
    let usage = *message.usage;
    lines.push(format!(
        "{:?} in {} cached {} out {} reasoning {} total {}",
        message.stop_reason,
        usage.input,
        usage.cache_read,
        usage.output,
        usage.reasoning,
        usage.total_tokens
    ));
    lines.join("\n")
}

#[tokio::test]
async fn azure_text_is_read_exactly() {
    let Some((message, _)) = read_azure_recording("vercel-azure__azure-text.1__00.sse").await
    else {
        return;
    };
    insta::assert_snapshot!(describe_message(&message), @r"
    text 5 bytes 185f8db3 msg_02ce8deeb6197db200698c5198ca0c81979bedbe6c98a8ab93
    Stop in 11 cached 0 out 11 reasoning 0 total 22
    ");
}

#[tokio::test]
async fn azure_tool_call_is_read_exactly() {
    let Some((message, _)) = read_azure_recording("vercel-azure__azure-tool-call.1__00.sse").await
    else {
        return;
    };
    insta::assert_snapshot!(describe_message(&message), @r#"
    call weather {"location":"San Francisco"} call_H5DxLSFnsGhiROnUiDHmgyc8|fc_04041325ab8ae30400698c51c5468c8197a395f18875a5339f
    ToolUse in 45 cached 0 out 24 reasoning 0 total 69
    "#);
}

#[tokio::test]
async fn azure_encrypted_reasoning_is_stored_unchanged() {
    let mut rounds = Vec::new();
    for round in 1..=4 {
        let file =
            format!("vercel-azure__azure-reasoning-encrypted-content.1__00.round{round}.sse");
        let Some((message, items)) = read_azure_recording(&file).await else { return };
        for (block, item) in message.content.iter().zip(&items) {
            if let Block::Thinking(thinking) = block {
                let stored: Value =
                    serde_json::from_str(thinking.thinking_signature.as_deref().unwrap()).unwrap();
                assert_eq!(&stored, item, "{file}");
                assert!(stored["encrypted_content"].as_str().unwrap().len() > 1_000, "{file}");
            }
        }
        rounds.push(describe_message(&message));
    }
    insta::assert_snapshot!(rounds.join("\n\n"), @r#"
    thinking 457 bytes 57fc8b05 1797 bytes e78de8d5
    call calculator {"a":12,"b":7,"op":"add"} call_UdvUeOElp5zdU0DKr6IoyhjE|fc_0ca3f598125653cf01693c1f25167881959e4d4741c31622ce
    ToolUse in 137 cached 0 out 28 reasoning 0 total 165

    call calculator {"a":19,"b":3,"op":"multiply"} call_Qm7RkNSRinyfYLyTUPXLrgH5|fc_0ca3f598125653cf01693c1f2808c48195b40a751e71a7167d
    ToolUse in 237 cached 0 out 26 reasoning 0 total 263

    call calculator {"a":57,"b":10,"op":"multiply"} call_axaLIcwBQwyb49kT8613pJxW|fc_0ca3f598125653cf01693c1f2a3eb8819590a66d296c0d4edf
    ToolUse in 276 cached 0 out 26 reasoning 0 total 302

    text 28 bytes f0bb39f8 msg_0ca3f598125653cf01693c1f2ba6408195b1f9ddd95d7d331c
    Stop in 315 cached 0 out 12 reasoning 0 total 327
    "#);
}

/// The project's own streams, one of each kind, for machines without the recordings.
#[tokio::test]
async fn local_streams_become_expected_messages() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/recordings");
    let expected = [
        ("call.sse", StopReason::ToolUse, "", None),
        ("closed.sse", StopReason::Error, "Hel", Some("stream closed before response.completed")),
        ("cut.sse", StopReason::Length, "", None),
        ("empty-output.sse", StopReason::Stop, "Hello", None),
        (
            "filtered.sse",
            StopReason::Error,
            "",
            Some("Error Code content_policy_violation: The prompt was filtered."),
        ),
        ("limited.sse", StopReason::Error, "", Some("Error Code rate_limit_exceeded: Slow down.")),
        ("refusal.sse", StopReason::Stop, "I cannot do that.", None),
        ("rotating-ids.sse", StopReason::Stop, "Hello", None),
        ("text.sse", StopReason::Stop, "Hello", None),
        ("thoughts.sse", StopReason::Stop, "42", None),
    ];
    let found: Vec<PathBuf> = recordings_in(&folder, ".sse");
    assert_eq!(
        found.iter().map(|path| file_name(path)).collect::<Vec<_>>(),
        expected.map(|(file, ..)| file)
    );
    for (path, (file, stop, text, error)) in found.iter().zip(expected) {
        let bytes = std::fs::read(path).unwrap();
        for size in [7, bytes.len()] {
            let message = fold(&bytes, size).await.message;
            assert_eq!(message.stop_reason, stop, "{file}");
            assert_eq!(joined_text(&message.content), text, "{file}");
            assert_eq!(message.error_message.as_deref(), error, "{file}");
        }
    }
}
