//! Validation of a prompt's input, and conversion of long text into artifacts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use turnwheel_conversation::content::{
    Block, Content, FileBlock, IMAGE_TYPES, Image, detect_image_type,
};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::pointer_token;
use turnwheel_platform::ids::{ArtifactId, EffectId, InputId};
use turnwheel_record::contract::{CommandError, FieldError};
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::{ArtifactError, ArtifactMetadata, ArtifactScope};
use turnwheel_tools::sha256_hex;

/// Maximum bytes of text in one input. Longer text becomes an artifact.
pub const TEXT_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of an input in its inbox item, after long text has become an artifact. Its entry
/// and receipt must fit one batch.
const INPUT_BYTES_MAX: usize = 1_000_000;
/// Maximum bytes of all images of one input. Base64 turns three bytes into four.
const IMAGE_BYTES_MAX: usize = 700 * 1024;
const IMAGE_LIMIT_TEXT: &str = "the pictures of one input may have 700 KB together: send them as JPEG, or with at most 1,500 pixels a side";

const FILE_NAME_BYTES_MAX: usize = 512;

/// Context of the conversion of one input.
struct InputContext<'a> {
    services: &'a Services,
    scope: ArtifactScope,
    input_id: &'a InputId,
    /// True if the agent can read the files that long text becomes.
    can_read: bool,
}

/// Validates the input, adds metadata to its file blocks and moves long text into artifacts. The
/// artifacts are stored before the inbox item that names them.
///
/// # Errors
/// A file block names no artifact of the conversation, a bound is exceeded, or the artifacts are unavailable.
pub(crate) async fn prepare_input(
    services: &Services,
    head: &Head,
    input_id: &InputId,
    input: Content,
) -> Result<Content, CommandError> {
    let scope = ArtifactScope { key: head.key(), incarnation: head.incarnation.clone() };
    let context =
        InputContext { services, scope, input_id, can_read: can_agent_read(services, head) };
    if is_empty(&input) {
        return Err(CommandError::invalid(
            "/input",
            "the input is empty (unpaired surrogates are removed): send a text; `POST …/continue` continues without new input",
        ));
    }
    let errors = validate_content(&input, "/input");
    if !errors.is_empty() {
        return Err(CommandError::Invalid(errors));
    }
    let input = match input {
        Content::Text(text) if text.len() <= TEXT_BYTES_MAX => Content::Text(text),
        Content::Text(text) => {
            Content::Blocks(context.spill_long_texts(vec![Block::text(text)]).await?)
        }
        Content::Blocks(blocks) => {
            let blocks = context.resolve_files(blocks).await?;
            Content::Blocks(context.spill_long_texts(blocks).await?)
        }
    };
    if RawJson::from_value(&input).text().len() > INPUT_BYTES_MAX {
        return Err(CommandError::TooLarge(format!(
            "the blocks of one input may be 1 MB together; {IMAGE_LIMIT_TEXT}, and other files as artifacts that file blocks name"
        )));
    }
    Ok(input)
}

/// Like [`prepare_input`], for an input that an extension may have changed. Returns the prepared
/// input and what was sent: its text and files, without images.
pub(crate) async fn prepare_changed_input(
    services: &Services,
    head: &Head,
    input_id: &InputId,
    input: Content,
    original: Option<Content>,
) -> Result<(Content, Option<Content>), CommandError> {
    let input = prepare_input(services, head, input_id, input).await?;
    let Some(original) = original else { return Ok((input, None)) };
    let mut original = without_images(original);
    if !is_empty(&original) {
        original = without_images(prepare_input(services, head, input_id, original).await?);
    }
    let bytes = |content: &Content| RawJson::from_value(content).text().len();
    if bytes(&input) + bytes(&original) > INPUT_BYTES_MAX {
        let detail = "the input and its changed text may be 1 MB together: send less text";
        return Err(CommandError::TooLarge(detail.to_owned()));
    }
    Ok((input, Some(original)))
}

fn without_images(content: Content) -> Content {
    let Content::Blocks(mut blocks) = content else { return content };
    blocks.retain(|block| !matches!(block, Block::Image(_)));
    Content::Blocks(blocks)
}

fn is_empty(content: &Content) -> bool {
    match content {
        Content::Text(text) => text.is_empty(),
        Content::Blocks(blocks) => blocks.is_empty(),
    }
}

/// True if the agent offers the tool `read`, or is missing: the prompt then fails with that reason.
fn can_agent_read(services: &Services, head: &Head) -> bool {
    let Ok(agent) = services.agents.find(Some(&head.agent)) else { return true };
    let active = head.settings.active_tools.as_ref().or(agent.settings.active_tools.as_ref());
    agent.find_tool("read").is_some()
        && active.is_none_or(|active| active.iter().any(|tool| tool == "read"))
}

/// Validates content from a user, as far as the content alone allows.
fn validate_content(content: &Content, pointer: &str) -> Vec<FieldError> {
    let Content::Blocks(blocks) = content else { return Vec::new() };
    let mut errors = Vec::new();
    for (position, block) in blocks.iter().enumerate() {
        let at = format!("{pointer}/{position}");
        match block {
            Block::Text(text) => errors.extend(reject_unknown_members(&text.extra, &at)),
            Block::File(file) => {
                errors.extend(reject_unknown_members(&file.extra, &at));
                if file.path.as_ref().is_some_and(|path| path.len() > FILE_NAME_BYTES_MAX) {
                    let detail = format!(
                        "a file's `path` is its name, of at most {FILE_NAME_BYTES_MAX} bytes"
                    );
                    errors.push(FieldError::new(format!("{at}/path"), detail));
                }
            }
            Block::Image(image) => {
                errors.extend(reject_unknown_members(&image.extra, &at));
                errors.extend(validate_image(image, &at));
            }
            Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_) => {
                errors.push(FieldError::new(
                    format!("{at}/type"),
                    "a block of an input is `text`, `image` or `file`",
                ));
            }
        }
    }
    errors
}

/// Validates a message of a new conversation. User messages are checked like an input. Responses
/// and tool results may come from other systems, so their unknown members are kept.
pub(super) fn validate_message(message: &Message, pointer: &str) -> Vec<FieldError> {
    let content_pointer = format!("{pointer}/content");
    let validate_fields = |content: &Content, extra: &Extra| {
        let mut errors = reject_unknown_members(extra, pointer);
        errors.extend(validate_content(content, &content_pointer));
        if let Content::Blocks(blocks) = content {
            for (position, block) in blocks.iter().enumerate() {
                if matches!(block, Block::File(_)) {
                    errors.push(FieldError::new(
                        format!("{content_pointer}/{position}/artifactId"),
                        "a new conversation has no artifacts: leave the block out, and add the file to the conversation",
                    ));
                }
            }
        }
        errors
    };
    match message {
        Message::User(user) => validate_fields(&user.content, &user.extra),
        Message::Custom(custom) => validate_fields(&custom.content, &custom.extra),
        Message::ToolResult(result) => validate_images(&result.content, &content_pointer),
        Message::Assistant(response) => validate_images(&response.content, &content_pointer),
        Message::BashExecution(bash) => reject_unknown_members(&bash.extra, pointer),
        Message::BranchSummary(branch) => reject_unknown_members(&branch.extra, pointer),
        Message::CompactionSummary(summary) => reject_unknown_members(&summary.extra, pointer),
        Message::Other(_) => Vec::new(),
    }
}

fn validate_images(blocks: &[Block], pointer: &str) -> Vec<FieldError> {
    let errors = blocks.iter().enumerate().filter_map(|(position, block)| match block {
        Block::Image(image) => Some(validate_image(image, &format!("{pointer}/{position}"))),
        Block::Text(_)
        | Block::Thinking(_)
        | Block::ToolCall(_)
        | Block::File(_)
        | Block::Other(_) => None,
    });
    errors.flatten().collect()
}

/// Members that other services have in their messages and blocks.
const OTHER_TAGS: [&str; 2] = ["type", "role"];

/// Returns an error for each unknown member of a client's object.
fn reject_unknown_members(extra: &Extra, pointer: &str) -> Vec<FieldError> {
    let to_error = |name: &String| {
        FieldError::new(
            format!("{pointer}/{}", pointer_token(name)),
            format!("unknown field `{name}`"),
        )
    };
    extra.keys().filter(|name| !OTHER_TAGS.contains(&name.as_str())).map(to_error).collect()
}

fn validate_image(image: &Image, pointer: &str) -> Vec<FieldError> {
    let errors = [("mimeType", image.type_error()), ("data", image.data_error())];
    errors
        .into_iter()
        .filter_map(|(member, error)| Some(FieldError::new(format!("{pointer}/{member}"), error?)))
        .collect()
}

impl InputContext<'_> {
    /// Adds name, type and size to each file block, and the image itself after the block of an
    /// image.
    async fn resolve_files(&self, blocks: Vec<Block>) -> Result<Vec<Block>, CommandError> {
        let mut resolved = Vec::with_capacity(blocks.len());
        let mut errors = Vec::new();
        let mut image_bytes = 0;
        for (position, block) in blocks.into_iter().enumerate() {
            let Block::File(file) = block else {
                resolved.push(block);
                continue;
            };
            let metadata =
                match self.services.artifacts.metadata(&self.scope, &file.artifact_id).await {
                    Ok(metadata) => metadata,
                    Err(ArtifactError::NotFound) => {
                        errors.push(FieldError::new(
                            format!("/input/{position}/artifactId"),
                            format!(
                                "the conversation has no artifact `{}`: add it first",
                                file.artifact_id
                            ),
                        ));
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
            let mime_type = metadata.mime_type.split(';').next().unwrap_or_default().trim();
            let is_image = IMAGE_TYPES.contains(&mime_type);
            let file = FileBlock {
                path: file.path.or(metadata.name.clone()),
                mime_type: Some(metadata.mime_type.clone()),
                size: Some(metadata.size),
                ..file
            };
            resolved.push(Block::File(file));
            if is_image {
                image_bytes += usize::try_from(metadata.size).unwrap_or(usize::MAX);
                if image_bytes > IMAGE_BYTES_MAX {
                    return Err(CommandError::TooLarge(format!(
                        "the picture of block {position} has {} bytes, and {IMAGE_LIMIT_TEXT}",
                        metadata.size
                    )));
                }
                match self.load_image(&metadata).await? {
                    Some(image) => resolved.push(Block::Image(image)),
                    None => errors.push(FieldError::new(
                        format!("/input/{position}/artifactId"),
                        format!("the artifact's type is {mime_type}, but its bytes are no PNG, JPEG, GIF or WebP picture: add it again with its real type"),
                    )),
                }
            }
        }
        if errors.is_empty() { Ok(resolved) } else { Err(CommandError::Invalid(errors)) }
    }

    /// Loads an image artifact. `None`: its bytes are not an image that models accept.
    async fn load_image(&self, metadata: &ArtifactMetadata) -> Result<Option<Image>, CommandError> {
        let bytes = self.services.artifacts.get(&self.scope, &metadata.id, None).await?;
        Ok(detect_image_type(&bytes).map(|mime_type| Image {
            data: STANDARD.encode(&bytes),
            mime_type: mime_type.to_owned(),
            extra: Extra::new(),
        }))
    }

    /// Moves the largest texts into files until the rest is short enough.
    async fn spill_long_texts(&self, blocks: Vec<Block>) -> Result<Vec<Block>, CommandError> {
        let spilled = texts_to_spill(&blocks);
        if !spilled.is_empty() && !self.can_read {
            return Err(CommandError::TooLarge(format!(
                "the text of one input may have {TEXT_BYTES_MAX} bytes for an agent without the tool `read`: send less, or add `read` to the agent's tools"
            )));
        }
        let mut result = Vec::with_capacity(blocks.len() + spilled.len());
        for (position, block) in blocks.into_iter().enumerate() {
            let Some(text) = block_text(&block).filter(|_| spilled.contains(&position)) else {
                result.push(block);
                continue;
            };
            let name = if spilled.len() == 1 {
                "input.txt".to_owned()
            } else {
                format!("input-{}.txt", position + 1)
            };
            let file = self.store_text(name, text).await?;
            result.push(Block::text(format!(
                "The user's text has {} bytes and is in this file:",
                text.len()
            )));
            result.push(Block::File(file));
        }
        Ok(result)
    }

    async fn store_text(&self, name: String, text: &str) -> Result<FileBlock, CommandError> {
        let metadata = ArtifactMetadata {
            id: ArtifactId::from_hash(
                &upload_effect_id(self.input_id),
                &sha256_hex(text.as_bytes()),
            ),
            name: Some(name),
            mime_type: "text/plain; charset=utf-8".to_owned(),
            size: text.len() as u64,
            created_at: self.services.clock.now(),
        };
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        self.services.artifacts.put(&self.scope, &metadata, bytes).await?;
        self.services.fail_points.hit("admission.input-stored").await;
        Ok(FileBlock {
            artifact_id: metadata.id,
            path: metadata.name,
            mime_type: Some(metadata.mime_type),
            size: Some(metadata.size),
            extra: Extra::new(),
        })
    }
}

/// Positions of the largest texts, without which the rest is short enough.
fn texts_to_spill(blocks: &[Block]) -> Vec<usize> {
    let mut sizes: Vec<(usize, usize)> = blocks
        .iter()
        .enumerate()
        .filter_map(|(position, block)| block_text(block).map(|text| (text.len(), position)))
        .collect();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let mut total: usize = sizes.iter().map(|(size, _)| size).sum();
    let mut positions = Vec::new();
    for (size, position) in sizes {
        if total <= TEXT_BYTES_MAX {
            break;
        }
        total -= size;
        positions.push(position);
    }
    positions
}

fn block_text(block: &Block) -> Option<&str> {
    match block {
        Block::Text(text) => Some(&text.text),
        Block::Thinking(_)
        | Block::Image(_)
        | Block::ToolCall(_)
        | Block::File(_)
        | Block::Other(_) => None,
    }
}

/// Effect id of uploaded bytes; equal for every repetition of the request.
pub(crate) fn upload_effect_id(input_id: &InputId) -> EffectId {
    let text = input_id.as_str();
    EffectId::new(format!("up_{}", text.strip_prefix("in_").unwrap_or(text)))
}
