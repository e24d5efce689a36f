//! The `read` tool: returns a file's text by lines, or its image.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;

use super::document::{self, OfficeKind};
use super::path::WorkspacePath;
use super::text::{LINES_MAX, TEXT_BYTES_MAX, format_size, is_binary, text_prefix};
use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError};
use crate::result_limits::IMAGE_BYTES_MAX;
use crate::{CheckContext, ToolResult};
use turnwheel_conversation::content::{Block, Image, detect_image_type};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::unknown_members::Extra;

pub(super) struct ReadTool;

#[derive(Deserialize, JsonSchema)]
pub(super) struct ReadArgs {
    /// Path to the file to read, from the workspace's root
    path: String,
    /// Line number to start reading from (1-indexed)
    offset: Option<u64>,
    /// Maximum number of lines to read
    #[schemars(range(min = 1))]
    limit: Option<u64>,
    /// Byte of the first line to start from (1-indexed); only for lines too long to show at once
    column: Option<u64>,
}

impl Tool for ReadTool {
    type Args = ReadArgs;

    fn name(&self) -> &'static str {
        "read"
    }

    fn description(&self) -> &'static str {
        "Read the contents of a file. Supports text files and images (jpg, png, gif, webp). Images are sent as \
         attachments. For text files, output is truncated to 2000 lines or 50KB (whichever is hit first). Use offset/limit \
         for large files. When you need the full file, continue with offset until complete."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    async fn check(&self, args: &ReadArgs, _cx: &CheckContext<'_>) -> Result<(), String> {
        WorkspacePath::parse(&args.path).map(drop)
    }

    async fn call(&self, args: ReadArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let bytes = cx.workspace().read(&args.path).await?;
        if let Some(mime_type) = detect_image_type(&bytes) {
            if bytes.len() > IMAGE_BYTES_MAX {
                return Ok(ToolResult::text(format!(
                    "[The image {} ({mime_type}) has {}: images up to {} are shown. Ask for a smaller one.]",
                    args.path,
                    format_size(bytes.len() as u64),
                    format_size(IMAGE_BYTES_MAX as u64)
                )));
            }
            let image = Image {
                data: STANDARD.encode(&bytes),
                mime_type: mime_type.to_owned(),
                extra: Extra::new(),
            };
            return Ok(ToolResult {
                content: vec![
                    Block::text(format!("Read image file [{mime_type}]")),
                    Block::Image(image),
                ],
                ..ToolResult::default()
            });
        }
        if let Some(kind) = OfficeKind::detect(&bytes) {
            return read_document(kind, bytes, &args).await;
        }
        if is_binary(&bytes) {
            let mime_type = mime_guess::from_path(&args.path).first_or_octet_stream();
            return Ok(ToolResult::text(format!(
                "[Binary file {}: {}, {mime_type}. It holds no text, so it is not shown.]",
                args.path,
                format_size(bytes.len() as u64)
            )));
        }
        if bytes.is_empty() {
            return Ok(ToolResult::text(format!("[The file {} is empty.]", args.path)));
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut shown = excerpt(&text, &args).map_err(ToolError::Failed)?;
        if matches!(text, std::borrow::Cow::Owned(_)) {
            shown.push_str(
                "\n\n[The file is not valid UTF-8: bytes that are no text are shown as \u{fffd}, and columns count them as 3.]",
            );
        }
        Ok(ToolResult::text(shown))
    }
}

/// Returns the text of a document by lines. It is extracted on a separate thread, so that a panic
/// ends only that thread.
async fn read_document(
    kind: OfficeKind,
    bytes: Bytes,
    args: &ReadArgs,
) -> Result<ToolResult, ToolError> {
    let size = format_size(bytes.len() as u64);
    let extracted = tokio::task::spawn_blocking(move || document::extract_text(kind, bytes)).await;
    let text = extracted.unwrap_or_else(|_| Err("it is damaged".to_owned())).map_err(|why| {
        ToolError::failed(format!("{} is a {} of {size}: {why}.", args.path, kind.name()))
    })?;
    if text.trim().is_empty() {
        return Ok(ToolResult::text(format!("[The {} {} has no text.]", kind.name(), args.path)));
    }
    let shown = excerpt(&text, args).map_err(ToolError::Failed)?;
    Ok(ToolResult::text(format!("{shown}\n\n[This is the text of a {}.]", kind.name())))
}

/// Returns the requested part of a text, with a note on how to continue.
fn excerpt(text: &str, args: &ReadArgs) -> Result<String, String> {
    let total = text.split('\n').count();
    let first = usize::try_from(args.offset.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
    let start = line_start(text, first)
        .ok_or_else(|| format!("Offset {first} is beyond end of file ({total} lines total)"))?;
    let from_line = text.get(start..).unwrap_or_default();
    let column = usize::try_from(args.column.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
    let line_length = from_line.find('\n').unwrap_or(from_line.len());
    if column > line_length.max(1) {
        return Err(format!(
            "Column {column} is beyond the end of line {first} ({line_length} bytes)"
        ));
    }
    let rest = from_line.get(from_line.floor_char_boundary(column - 1)..).unwrap_or_default();
    let lines_limit = usize::try_from(args.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let head = text_prefix(rest, lines_limit.min(LINES_MAX), TEXT_BYTES_MAX);
    let mut shown = head.text.to_owned();
    if !head.is_cut {
        return Ok(shown);
    }
    let note = if head.lines_count == 0 {
        let next = column + head.text.len();
        format!(
            "[Line {first} is {}; showing its bytes {column}-{}. Use offset={first}, column={next} to continue.]",
            format_size(line_length as u64),
            next - 1
        )
    } else {
        let last = first + head.lines_count - 1;
        let next = last + 1;
        if head.is_byte_limited {
            format!(
                "[Showing lines {first}-{last} of {total} (50.0KB limit). Use offset={next} to continue.]"
            )
        } else if lines_limit < LINES_MAX {
            format!("[{} more lines in file. Use offset={next} to continue.]", total - last)
        } else {
            format!("[Showing lines {first}-{last} of {total}. Use offset={next} to continue.]")
        }
    };
    shown.push_str("\n\n");
    shown.push_str(&note);
    Ok(shown)
}

/// Byte offset of a line; lines count from 1.
fn line_start(text: &str, line: usize) -> Option<usize> {
    if line == 1 {
        return Some(0);
    }
    text.match_indices('\n').nth(line - 2).map(|(at, _)| at + 1)
}
