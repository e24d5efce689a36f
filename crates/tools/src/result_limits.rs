//! Size limits of tool results. Oversized content becomes an artifact, and the model reads how to
//! read the rest.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;

use crate::workspace::{
    FILE_BYTES_MAX, Files, LINES_MAX, TEXT_BYTES_MAX, format_size, text_prefix,
};
use crate::{ToolContext, ToolResult};
use turnwheel_conversation::content::{Block, Image, detect_image_type, joined_text};
use turnwheel_conversation::entry::{FileOutput, Output};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::workspace::output_path;
use turnwheel_json::foreign::{FOREIGN_DEPTH_MAX, read_foreign_json};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::is_plain_text;
use turnwheel_storage::artifacts::ArtifactMetadata;

/// Extra bytes and lines for the notices of tools that truncate their own output.
const NOTICE_BYTES: usize = 4 * 1024;
const NOTICE_LINES: usize = 20;
/// Bytes of all images of one result: as base64 and with the rest of the result they fit one
/// commit.
pub const IMAGE_BYTES_MAX: usize = 384 * 1024;
/// Images of one result.
const IMAGES_MAX: usize = 20;
/// Bytes of each of `details` and `structured`.
const DATA_BYTES_MAX: usize = 128 * 1024;
/// Bytes of a widget's data.
const OUTPUT_BYTES_MAX: usize = 12 * 1024;
/// Files and widgets of one result. Each is an entry of the same commit.
const OUTPUTS_MAX: usize = 40;
/// Time limit of one artifact write: an unavailable store must not delay a result for longer.
const SAVE_TIME_MAX: Duration = Duration::from_secs(10);

/// Access of the model to the rest of truncated output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAccess {
    /// The agent has the built-in `read`.
    Available,
    Unavailable,
}

/// Limits a result to its bounds. Nothing is truncated silently: the model reads what is missing,
/// and the whole content is an artifact if the store is available.
pub async fn limit_result(
    mut result: ToolResult,
    context: &ToolContext,
    read_access: ReadAccess,
) -> ToolResult {
    result = limit_text(result, context, read_access).await;
    result = limit_images(result, context).await;
    for (name, data) in
        [("details.json", &mut result.details), ("structured.json", &mut result.structured)]
    {
        if let Some(json) = data {
            limit_json(json, DATA_BYTES_MAX, name, context).await;
        }
    }
    result = limit_outputs(result, context).await;
    if read_access == ReadAccess::Available {
        append_file_paths(&mut result);
    }
    result
}

async fn limit_text(
    mut result: ToolResult,
    context: &ToolContext,
    read_access: ReadAccess,
) -> ToolResult {
    // The model reads blocks of other types as JSON.
    for block in &mut result.content {
        if matches!(block, Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_)) {
            *block = Block::text(RawJson::from_value(block).text());
        }
    }
    let bytes_count: usize = result.content.iter().map(text_length).sum();
    let is_long = bytes_count > TEXT_BYTES_MAX + NOTICE_BYTES
        || count_lines(&result.content) > LINES_MAX + NOTICE_LINES;
    if !is_long {
        return result;
    }
    let whole = joined_text(&result.content);
    let head = text_prefix(&whole, LINES_MAX, TEXT_BYTES_MAX);
    let size = whole.len();
    let saved =
        save_within_time_limit(context, "output.txt", "text/plain", Bytes::from(whole.clone()))
            .await;
    let shown = format!(
        "showing {} of {}",
        match head.lines_count {
            0 => "the beginning".to_owned(),
            count => format!("lines 1-{count} of {}", head.lines_total),
        },
        format_size(size as u64)
    );
    let sentence = match saved {
        Err(problem) => format!("The rest could not be kept: {problem}."),
        Ok(facts) => {
            let sentence = format!("Full output: artifact {} ({size} bytes).", facts.id);
            let changes = std::mem::take(&mut result.workspace);
            let mut files = Files::with_changes(Arc::clone(&context.workspace), changes);
            let path = files.put_output(&context.effect_id, facts.id, facts.size);
            result.workspace = files.take_changes();
            match (path, read_access, head.lines_count) {
                (Some(path), ReadAccess::Available, 0) => {
                    let column = head.text.len() + 1;
                    format!(
                        "{sentence} Use read with path=\"{path}\", column={column} to continue."
                    )
                }
                (Some(path), ReadAccess::Available, count) => format!(
                    "{sentence} Use read with path=\"{path}\", offset={} to continue.",
                    count + 1
                ),
                (Some(_) | None, ReadAccess::Unavailable, _) | (None, ReadAccess::Available, _) => {
                    sentence
                }
            }
        }
    };
    let text = format!("{}\n\n[Output truncated: {shown}. {sentence}]", head.text);
    let others = result.content.into_iter().filter(|block| !matches!(block, Block::Text(_)));
    result.content = std::iter::once(Block::text(text)).chain(others).collect();
    result
}

fn text_length(block: &Block) -> usize {
    match block {
        Block::Text(text) => text.text.len() + 1,
        Block::Thinking(_)
        | Block::Image(_)
        | Block::ToolCall(_)
        | Block::File(_)
        | Block::Other(_) => 0,
    }
}

fn count_lines(blocks: &[Block]) -> usize {
    joined_text(blocks).split('\n').count()
}

/// Limits a progress report, which is not stored. Returns `None` if it is within the bounds,
/// otherwise its beginning with a note.
pub(crate) fn limit_progress(partial: &ToolResult) -> Option<ToolResult> {
    let is_deep = |details: &RawJson| details.depth() > FOREIGN_DEPTH_MAX;
    if partial.details.as_ref().is_some_and(is_deep) {
        let mut limited = partial.clone();
        limited.details.iter_mut().for_each(limit_depth);
        return Some(limit_progress(&limited).unwrap_or(limited));
    }
    let whole = joined_text(&partial.content);
    let head = text_prefix(&whole, LINES_MAX, TEXT_BYTES_MAX);
    let details_bytes = partial.details.as_ref().map_or(0, |details| details.text().len());
    let is_heavy =
        RawJson::from_value(&partial.content).text().len().max(details_bytes) > DATA_BYTES_MAX;
    (head.is_cut || is_heavy)
        .then(|| ToolResult::text(format!("{}\n\n[The rest comes with the result.]", head.text)))
}

/// Limits the images of a result. An image that models reject would fail every later request, so it
/// becomes a file or a sentence.
async fn limit_images(mut result: ToolResult, context: &ToolContext) -> ToolResult {
    let mut shown = Vec::with_capacity(result.content.len());
    let (mut images_count, mut images_bytes) = (0, 0);
    for block in std::mem::take(&mut result.content) {
        let Block::Image(image) = block else {
            shown.push(block);
            continue;
        };
        let Ok(bytes) = STANDARD.decode(&image.data) else {
            shown.push(Block::text("[An image was left out: its data is not base64.]"));
            continue;
        };
        let Some(mime_type) = detect_image_type(&bytes) else {
            let why = "it is not a PNG, JPEG, GIF or WebP image";
            shown.push(Block::text(
                replace_image_by_file(&mut result, context, &image.mime_type, bytes, why).await,
            ));
            continue;
        };
        images_count += 1;
        images_bytes += bytes.len();
        if images_bytes > IMAGE_BYTES_MAX || images_count > IMAGES_MAX {
            let why = format!(
                "at most {IMAGES_MAX} images of {} together are shown",
                format_size(IMAGE_BYTES_MAX as u64)
            );
            shown.push(Block::text(
                replace_image_by_file(&mut result, context, mime_type, bytes, &why).await,
            ));
            continue;
        }
        // The type comes from the bytes, because the tool's type may be wrong.
        shown.push(Block::Image(Image { mime_type: mime_type.to_owned(), ..image }));
    }
    result.content = shown;
    result
}

/// Replaces an image by a file for the user. Returns the sentence for the model.
async fn replace_image_by_file(
    result: &mut ToolResult,
    context: &ToolContext,
    mime_type: &str,
    bytes: Vec<u8>,
    why: &str,
) -> String {
    let size = format_size(bytes.len() as u64);
    match save_within_time_limit(context, "image", mime_type, Bytes::from(bytes)).await {
        Ok(facts) => {
            let sentence = format!(
                "[An image of {size} was left out: {why}. It is kept as artifact {}.]",
                facts.id
            );
            result.outputs.push(Output::File(FileOutput {
                artifact_id: facts.id,
                path: "image".to_owned(),
                mime_type: facts.mime_type,
                size: facts.size,
                description: None,
                extra: Extra::new(),
            }));
            sentence
        }
        Err(problem) => {
            format!("[An image of {size} was left out: {why}. It could not be kept: {problem}.]")
        }
    }
}

/// Makes values that nest too deeply text, so that all that is stored can be read.
fn limit_depth(json: &mut RawJson) {
    if json.depth() > FOREIGN_DEPTH_MAX
        && let Some(foreign) = read_foreign_json(json.text())
    {
        *json = foreign.json;
    }
}

async fn limit_json(json: &mut RawJson, bytes_max: usize, name: &str, context: &ToolContext) {
    limit_depth(json);
    let size = json.text().len();
    if size <= bytes_max {
        return;
    }
    let bytes = Bytes::from(json.text().to_owned());
    *json = match save_within_time_limit(context, name, "application/json", bytes).await {
        Ok(facts) => {
            RawJson::from_value(&json!({"artifactId": facts.id, "size": size, "truncated": true}))
        }
        Err(problem) => {
            RawJson::from_value(&json!({"size": size, "truncated": true, "problem": problem}))
        }
    };
}

async fn limit_outputs(mut result: ToolResult, context: &ToolContext) -> ToolResult {
    let count = result.outputs.len();
    if count > OUTPUTS_MAX {
        result.outputs.truncate(OUTPUTS_MAX);
        result.content.push(Block::text(format!(
            "[{count} files and widgets were returned: the user sees the first {OUTPUTS_MAX}.]"
        )));
    }
    for output in &mut result.outputs {
        match output {
            Output::Widget(widget) => {
                limit_json(&mut widget.data, OUTPUT_BYTES_MAX, "widget.json", context).await;
            }
            Output::Other(data) => limit_json(data, OUTPUT_BYTES_MAX, "output.json", context).await,
            Output::File(_) => {}
        }
    }
    result
}

/// Converts `{"type": …}` to an output of a kind that the tool defines.
///
/// # Errors
/// It is no such object, or too large. The text is for the model.
pub(crate) fn custom_output(data: RawJson) -> Result<Output, String> {
    let kind = data.string_member("type").unwrap_or_default();
    let kind = kind.as_str();
    if !is_plain_text(kind) || matches!(kind, "file" | "widget") {
        return Err(
            "an output was left out: it needs a `type` of letters and digits that is not `file` or `widget`"
                .to_owned(),
        );
    }
    if data.text().len() > OUTPUT_BYTES_MAX {
        return Err(format!(
            "the output `{kind}` was left out: it has over {} KB",
            OUTPUT_BYTES_MAX / 1024
        ));
    }
    Ok(Output::Other(data))
}

/// Appends the paths at which the model can read the files that the call sent to the user.
fn append_file_paths(result: &mut ToolResult) {
    let is_readable = |file: &&FileOutput| {
        let is_picture = file.mime_type.starts_with("image/");
        let bytes_max = if is_picture { IMAGE_BYTES_MAX as u64 } else { FILE_BYTES_MAX };
        file.size <= bytes_max
    };
    let files = result.outputs.iter().filter_map(|output| match output {
        Output::File(file) => Some(file),
        Output::Widget(_) | Output::Other(_) => None,
    });
    let paths: Vec<String> =
        files.filter(is_readable).map(|file| format!("path=\"{}\"", output_path(file))).collect();
    if !paths.is_empty() {
        let text = format!("[The files can be read: use read with {}.]", paths.join(" or "));
        result.content.push(Block::text(text));
    }
}

async fn save_within_time_limit(
    context: &ToolContext,
    name: &str,
    mime_type: &str,
    bytes: Bytes,
) -> Result<ArtifactMetadata, String> {
    match tokio::time::timeout(SAVE_TIME_MAX, context.save_artifact(name, mime_type, bytes)).await {
        Ok(Ok(facts)) => Ok(facts),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the artifact store is unavailable".to_owned()),
    }
}
