//! Every recorded stream and error becomes a message or a classified failure, in chunks of any
//! size.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::iter;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use turnwheel::agent::content::{Block, joined_text};
use turnwheel::agent::message::{AssistantMessage, StopReason};
use turnwheel::clock::Timestamp;
use turnwheel::model::Failure;
use turnwheel::model::catalogue::Tariff;
use turnwheel::model::responses::fault::{Fault, classify};
use turnwheel::model::responses::fold::{Fold, Folded};
use turnwheel::model::responses::names::Names;
use turnwheel::model::responses::stream::Events;
use turnwheel::tools::sha256_hex;

use crate::support::shared::shared;

pub(super) const MODEL: &str = "gpt-5.1";

/// Folds the bytes of a stream, read in chunks of `size`.
pub(super) async fn fold(bytes: &[u8], size: usize) -> Folded {
    let chunks: Vec<Result<Bytes, Infallible>> =
        bytes.chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    let mut events = Events::new(iter(chunks), Duration::from_mins(1));
    let mut fold = Fold::new(MODEL, Tariff::default(), Names::default());
    while let Some((name, data)) = events.next().await.unwrap() {
        fold.push_frame(name.as_deref(), &data);
    }
    fold.finish()
}

pub(super) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
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

pub(super) fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The usage at the end of the stream.
fn usage(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    let events = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok());
    let mut usages = events.map(|event| event["response"]["usage"].clone());
    usages.rfind(Value::is_object).unwrap_or_default()
}

/// The complete items of the stream.
fn whole_items(bytes: &[u8]) -> Vec<Value> {
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
async fn every_recorded_stream_comes_to_a_message() {
    let Some(shelf) = shared("recordings/responses-stream") else { return };
    let files = files(&shelf, ".sse");
    assert!(files.len() > 100, "only {} recordings", files.len());
    for path in files {
        let bytes = std::fs::read(&path).unwrap();
        let folded = fold(&bytes, bytes.len()).await;
        let file = name(&path);
        let again = fold(&bytes, 7).await;
        assert_eq!(folded.message, again.message, "{file} in chunks");
        let message = &folded.message;
        assert!(folded.fault.is_none(), "{file}: {:?}", message.error_message);
        let told = usage(&bytes);
        let counted = message.usage;
        assert_eq!(
            (counted.input + counted.cache_read + counted.cache_write, counted.output),
            (
                told["input_tokens"].as_u64().unwrap_or(0),
                told["output_tokens"].as_u64().unwrap_or(0)
            ),
            "{file}"
        );

        let items = whole_items(&bytes);
        let of = |kind: &str| items.iter().filter(|item| item["type"] == kind).collect::<Vec<_>>();
        let calls: Vec<(String, Value)> = message
            .tool_calls()
            .map(|call| (call.id.split('|').next().unwrap().to_owned(), call.arguments.value()))
            .collect();
        let expected: Vec<(String, Value)> = of("function_call")
            .iter()
            .map(|item| {
                let arguments = item["arguments"].as_str().unwrap();
                let value = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
                (item["call_id"].as_str().unwrap().to_owned(), value)
            })
            .collect();
        assert_eq!(calls, expected, "{file}");
        let said: Vec<String> = of("message")
            .iter()
            .map(|item| {
                let parts = item["content"].as_array().unwrap().iter();
                parts
                    .filter_map(|part| part.get("text").or_else(|| part.get("refusal"))?.as_str())
                    .collect()
            })
            .collect();
        assert_eq!(joined_text(&message.content), said.join("\n"), "{file}");
        let thoughts =
            message.content.iter().filter(|block| matches!(block, Block::Thinking(_))).count();
        assert_eq!(thoughts, of("reasoning").len(), "{file}");
    }
}

#[tokio::test]
async fn streams_cut_anywhere_are_failures_to_try_again() {
    let Some(shelf) = shared("recordings/responses-stream") else { return };
    for path in files(&shelf, ".sse").into_iter().step_by(12) {
        let bytes = std::fs::read(&path).unwrap();
        let end =
            String::from_utf8_lossy(&bytes).rfind("event: response.").unwrap_or(bytes.len() / 2);
        for part in [1, 2, 5] {
            let cut = end / part;
            let folded = fold(&bytes[..cut.saturating_sub(1)], 997).await;
            let Some(fault) = folded.fault else { panic!("{} cut at {cut} is not a failure", name(&path)) };
            assert_eq!(fault.text, "stream closed before response.completed");
            assert_eq!(
                classify(&fault, &HeaderMap::new(), Timestamp(0)),
                Failure::Retryable { after: None }
            );
        }
    }
}

struct Known {
    status: Option<u16>,
    headers: HeaderMap,
}

/// Looks up a file in the index of the recordings.
fn known(index: &Path, file: &str) -> Known {
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
    Known { status: entry["status"].as_u64().map(|status| u16::try_from(status).unwrap()), headers }
}

async fn judged(index: &Path, path: &Path) -> (String, Failure) {
    let known = known(index, name(path));
    let bytes = std::fs::read(path).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let fault = if path.extension().is_some_and(|kind| kind == "sse") {
        let whole = fold(&bytes, bytes.len()).await.fault.unwrap();
        assert_eq!(Some(&whole), fold(&bytes, 7).await.fault.as_ref());
        whole
    } else {
        match known.status {
            // An error body with status 200 is an error too.
            Some(status) if status != 200 => Fault::of_http(status, &text),
            Some(_) | None => Fault::of_error_event(&serde_json::from_str(&text).unwrap()).unwrap(),
        }
    };
    (fault.text.clone(), classify(&fault, &known.headers, Timestamp(0)))
}

#[tokio::test]
async fn every_recorded_error_is_judged() {
    let Some(shelf) = shared("recordings/errors") else { return };
    let index = shared("recordings/index.json").unwrap();
    let files = [files(&shelf, ".json"), files(&shelf, ".sse")].concat();
    assert!(files.len() > 25, "only {} errors", files.len());
    for path in files {
        let (text, failure) = judged(&index, &path).await;
        assert!(!text.is_empty(), "{}", name(&path));
        // Every recorded error is caused by the request or the account.
        assert_eq!(failure, Failure::Final, "{}: {text}", name(&path));
    }
}

#[tokio::test]
async fn the_failures_of_azure_are_told_apart() {
    let Some(shelf) = shared("recordings/errors/transcribed") else { return };
    let index = shared("recordings/index.json").unwrap();
    let retry = |ms: u64| Failure::Retryable { after: Some(Duration::from_millis(ms)) };
    let soon = Failure::Retryable { after: None };
    let expected = [
        ("azure-400-content-filter-prompt.json", Failure::Final),
        ("azure-400-item-not-found-store-false.json", Failure::Final),
        ("azure-429-http.json", retry(86_400_000)),
        ("azure-429-in-200__error-then-failed.sse", retry(4_000)),
        ("azure-429-in-200__failed-null-then-error.sse", retry(4_000)),
        ("azure-429-in-200__too-many-requests.sse", soon.clone()),
        ("azure-429-uncoded-failed.sse", soon),
        ("azure-content-policy-in-200.sse", Failure::Final),
        ("context-length-in-200.sse", Failure::Overflow),
        ("openai-rate-limit-tokens-in-200.sse", retry(44)),
        ("ws-connection-limit-reached.json", Failure::Final),
        ("ws-previous-response-not-found.json", Failure::Final),
    ];
    for (file, expected) in expected {
        let (text, failure) = judged(&index, &shelf.join(file)).await;
        assert_eq!(failure, expected, "{file}: {text}");
    }
}

async fn azure(file: &str) -> Option<(AssistantMessage, Vec<Value>)> {
    let bytes = std::fs::read(shared("recordings/responses-stream")?.join(file)).unwrap();
    let folded = fold(&bytes, bytes.len()).await;
    Some((folded.message, whole_items(&bytes)))
}

/// Exact description without the recorded text: lengths and hashes.
fn described(message: &AssistantMessage) -> String {
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
    let usage = message.usage;
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
async fn azures_text_is_read_exactly() {
    let Some((message, _)) = azure("vercel-azure__azure-text.1__00.sse").await else { return };
    insta::assert_snapshot!(described(&message), @r"
    text 5 bytes 185f8db3 msg_02ce8deeb6197db200698c5198ca0c81979bedbe6c98a8ab93
    Stop in 11 cached 0 out 11 reasoning 0 total 22
    ");
}

#[tokio::test]
async fn azures_tool_call_is_read_exactly() {
    let Some((message, _)) = azure("vercel-azure__azure-tool-call.1__00.sse").await else { return };
    insta::assert_snapshot!(described(&message), @r#"
    call weather {"location":"San Francisco"} call_H5DxLSFnsGhiROnUiDHmgyc8|fc_04041325ab8ae30400698c51c5468c8197a395f18875a5339f
    ToolUse in 45 cached 0 out 24 reasoning 0 total 69
    "#);
}

#[tokio::test]
async fn azures_encrypted_thoughts_are_kept_as_they_came_with_their_item() {
    let mut rounds = Vec::new();
    for round in 1..=4 {
        let file =
            format!("vercel-azure__azure-reasoning-encrypted-content.1__00.round{round}.sse");
        let Some((message, items)) = azure(&file).await else { return };
        for (block, item) in message.content.iter().zip(&items) {
            if let Block::Thinking(thinking) = block {
                let kept: Value =
                    serde_json::from_str(thinking.thinking_signature.as_deref().unwrap()).unwrap();
                assert_eq!(&kept, item, "{file}");
                assert!(kept["encrypted_content"].as_str().unwrap().len() > 1_000, "{file}");
            }
        }
        rounds.push(described(&message));
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
async fn the_projects_own_streams_come_to_what_they_should() {
    let shelf = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/recordings");
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
    let found: Vec<PathBuf> = files(&shelf, ".sse");
    assert_eq!(
        found.iter().map(|path| name(path)).collect::<Vec<_>>(),
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
