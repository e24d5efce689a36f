//! Tests of oversized results: the text for the model, and no lost content.

use std::sync::atomic::Ordering;

use serde_json::Value;

use super::*;
use crate::test_env::TestEnv;
use turnwheel_conversation::entry::WidgetOutput;
use turnwheel_conversation::message::WorkspaceFile;
use turnwheel_platform::ids::{ArtifactId, EffectId};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

fn image(bytes: &[u8]) -> Block {
    Block::Image(Image {
        data: STANDARD.encode(bytes),
        mime_type: "image/x-wrong".to_owned(),
        extra: Extra::new(),
    })
}

async fn bytes_of(context: &ToolContext, id: &ArtifactId) -> Bytes {
    context.artifacts.get(&context.artifact_scope, id, None).await.unwrap()
}

#[tokio::test]
async fn small_result_is_unchanged() {
    let context = TestEnv::new().context();
    let mut result = ToolResult::json(&json!({"a": 1}));
    result.content.push(Block::text("more\nlines"));
    assert_eq!(limit_result(result.clone(), &context, ReadAccess::Available).await, result);
    let full = ToolResult::text("x".repeat(TEXT_BYTES_MAX));
    assert_eq!(limit_result(full.clone(), &context, ReadAccess::Available).await, full);
}

#[tokio::test]
async fn rest_of_long_text_is_readable() {
    let mut env = TestEnv::new();
    let lines: Vec<String> = (1..=3_000).map(|number| format!("line {number}")).collect();
    let whole = format!("{}\n", lines.join("\n"));
    let context = env.context();
    let result =
        limit_result(ToolResult::text(whole.clone()), &context, ReadAccess::Available).await;
    let text = joined_text(&result.content);
    let path = ".turnwheel/outputs/tw_c_0a1b2c3d_0_0.txt";
    let file = result.workspace[path].clone().unwrap();
    assert_eq!(
        text.split_once("line 2000\n\n").unwrap().1,
        format!(
            "[Output truncated: showing lines 1-2000 of 3001 of {}. Full output: artifact {} ({} bytes). Use read with path=\"{path}\", offset=2001 to continue.]",
            format_size(whole.len() as u64),
            file.artifact_id,
            whole.len()
        )
    );
    assert_eq!(bytes_of(&context, &file.artifact_id).await, whole);
    env.files.insert(path.to_owned(), file);
    let rest = env.call_builtin_text("read", &json!({"path": path, "offset": 2001})).await;
    assert!(rest.starts_with("line 2001\n") && rest.ends_with("line 3000\n"));
}

#[tokio::test]
async fn long_line_is_cut_and_continued_by_column() {
    let mut env = TestEnv::new();
    let whole = "ä€".repeat(30_000);
    let context = env.context();
    let result =
        limit_result(ToolResult::text(whole.clone()), &context, ReadAccess::Available).await;
    let text = joined_text(&result.content);
    let (head, note) = text.split_once("\n\n[Output truncated: showing the beginning of ").unwrap();
    assert!(whole.starts_with(head) && head.len() > TEXT_BYTES_MAX - 4);
    assert!(note.contains(&format!("column={} to continue", head.len() + 1)), "{note}");
    let path = ".turnwheel/outputs/tw_c_0a1b2c3d_0_0.txt";
    env.files.insert(path.to_owned(), result.workspace[path].clone().unwrap());
    let rest =
        env.call_builtin_text("read", &json!({"path": path, "column": head.len() + 1})).await;
    assert!(whole.strip_prefix(head).unwrap().starts_with(rest.split_once("\n\n[").unwrap().0));
}

#[tokio::test]
async fn truncated_text_names_only_artifact_without_read_tool() {
    let context = TestEnv::new().context();
    let result =
        limit_result(ToolResult::text("x\n".repeat(9_000)), &context, ReadAccess::Unavailable)
            .await;
    let text = joined_text(&result.content);
    assert!(text.ends_with("(18000 bytes).]") && !text.contains("Use read"), "{text}");
}

#[test]
fn progress_is_bounded_like_a_result() {
    assert_eq!(limit_progress(&ToolResult::text("half way")), None);
    let capped = limit_progress(&ToolResult::text("x\n".repeat(9_000))).unwrap();
    assert!(joined_text(&capped.content).ends_with("\n\n[The rest comes with the result.]"));
    let heavy = ToolResult { content: vec![image(&[0; 300_000])], ..ToolResult::default() };
    assert!(limit_progress(&heavy).is_some());
}

#[test]
fn deep_details_of_progress_become_text() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    let details = RawJson::from_text(deep).ok();
    let limited = limit_progress(&ToolResult { details, ..ToolResult::text("half way") }).unwrap();
    assert_eq!(joined_text(&limited.content), "half way");
    assert_eq!(limited.details.unwrap().depth(), FOREIGN_DEPTH_MAX);
}

#[tokio::test]
async fn text_limit_applies_to_all_blocks_together() {
    let context = TestEnv::new().context();
    let mut result =
        ToolResult { content: vec![Block::text("x".repeat(1_000)); 100], ..ToolResult::default() };
    result.content.push(image(PNG));
    let result = limit_result(result, &context, ReadAccess::Available).await;
    assert!(
        matches!(&result.content[..], [Block::Text(_), Block::Image(_)]),
        "{:?}",
        result.content
    );
    assert!(joined_text(&result.content).len() < TEXT_BYTES_MAX + 1_000);
}

#[tokio::test]
async fn oldest_outputs_are_evicted_before_conversation_files() {
    let env = TestEnv::new();
    let mut context = env.context();
    let file = WorkspaceFile { artifact_id: ArtifactId::new("x"), size: 1 };
    let output = |number| format!(".turnwheel/outputs/tw_c_0a1b2c3d_{number}_0.txt");
    let names = (0..1_000).map(|number| format!("f{number}")).chain((1..=100).map(output));
    context.workspace = Arc::new(names.map(|name| (name, file.clone())).collect());
    context.effect_id = EffectId::new("tw_c_0a1b2c3d_101_0");
    let result =
        limit_result(ToolResult::text("x\n".repeat(9_000)), &context, ReadAccess::Available).await;
    let changes: Vec<_> =
        result.workspace.iter().map(|(path, file)| (path.clone(), file.is_some())).collect();
    assert_eq!(changes, [(output(101), true), (output(1), false)]);
}

#[tokio::test]
async fn unreadably_large_output_names_only_its_artifact() {
    let env = TestEnv::new();
    let whole = "x\n".repeat(6_000_000);
    let result = limit_result(ToolResult::text(whole), &env.context(), ReadAccess::Available).await;
    assert!(result.workspace.is_empty());
    assert!(joined_text(&result.content).ends_with("(12000000 bytes).]"));
    assert_eq!(env.artifacts.count(), 1);
}

#[tokio::test]
async fn truncation_is_reported_when_artifact_store_fails() {
    let env = TestEnv::new();
    env.artifacts.is_down.store(true, Ordering::SeqCst);
    let mut result = ToolResult::text("x\n".repeat(9_000));
    result.content.push(image(b"no picture"));
    result.details = Some(RawJson::from_value(&"x".repeat(300_000)));
    let result = limit_result(result, &env.context(), ReadAccess::Available).await;
    let text = joined_text(&result.content);
    assert!(
        text.contains("The rest could not be kept: the artifact store is unavailable.]"),
        "{text}"
    );
    assert!(text.contains("It could not be kept"), "{text}");
    let details = result.details.unwrap().to_value();
    assert_eq!(details["problem"], json!("the artifact store is unavailable"));
}

#[tokio::test]
async fn unsupported_image_becomes_a_file() {
    let context = TestEnv::new().context();
    let mut large = PNG.to_vec();
    large.resize(IMAGE_BYTES_MAX + 1, 0);
    let not_base64 = Block::Image(Image {
        data: "%%%".to_owned(),
        mime_type: "image/png".to_owned(),
        extra: Extra::new(),
    });
    let blocks = vec![image(PNG), image(&large), image(b"<svg>"), not_base64];
    let result = limit_result(
        ToolResult { content: blocks, ..ToolResult::default() },
        &context,
        ReadAccess::Available,
    )
    .await;
    let Block::Image(first) = &result.content[0] else { panic!("the first image is kept") };
    assert_eq!(first.mime_type, "image/png");
    let text = joined_text(&result.content[1..]);
    assert!(
        text.contains("[An image of 384.0KB was left out: at most 20 images of 384.0KB together"),
        "{text}"
    );
    assert!(text.contains("[An image of 5B was left out: it is not a PNG"), "{text}");
    assert!(text.contains("its data is not base64"), "{text}");
    let [Output::File(file), Output::File(_)] = &result.outputs[..] else {
        panic!("{:?}", result.outputs)
    };
    assert_eq!(bytes_of(&context, &file.artifact_id).await.len(), IMAGE_BYTES_MAX + 1);
}

#[tokio::test]
async fn large_json_becomes_an_artifact_reference() {
    let context = TestEnv::new().context();
    let large = RawJson::from_value(&"x".repeat(300_000));
    let widget = Output::Widget(WidgetOutput {
        widget: "w".to_owned(),
        data: large.clone(),
        fallback: String::new(),
        extra: Extra::new(),
    });
    let result = ToolResult {
        details: Some(large.clone()),
        structured: Some(large.clone()),
        outputs: vec![widget; 101],
        ..ToolResult::default()
    };
    let result = limit_result(result, &context, ReadAccess::Available).await;
    let Output::Widget(widget) = &result.outputs[39] else { panic!("a widget stays a widget") };
    for data in [&result.details.unwrap(), &result.structured.unwrap(), &widget.data] {
        let reference: Value = data.to_value();
        let id = ArtifactId::new(reference["artifactId"].as_str().unwrap());
        assert_eq!(bytes_of(&context, &id).await, large.text());
        assert_eq!(reference["truncated"], json!(true));
    }
    assert_eq!(result.outputs.len(), 40);
    assert!(joined_text(&result.content).starts_with("[101 files and widgets were returned"));
}

#[tokio::test]
async fn unknown_blocks_become_json_text() {
    let context = TestEnv::new().context();
    let odd = Block::Other(RawJson::from_text(r#"{"type":"audio","data":"x"}"#).unwrap());
    let result = limit_result(
        ToolResult { content: vec![odd], ..ToolResult::default() },
        &context,
        ReadAccess::Available,
    )
    .await;
    assert_eq!(joined_text(&result.content), r#"{"type":"audio","data":"x"}"#);
}
