//! Validation of a prompt's input, and conversion of long text into artifacts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::agent::content::{Block, Content, FileBlock, Image, image_type};
use crate::agent::head::Head;
use crate::agent::message::Message;
use crate::agent::raw::{Extra, RawJson};
use crate::agent::strict::pointer_token;
use crate::artifacts::{ArtifactError, ArtifactFacts, Shelf};
use crate::ids::{ArtifactId, EffectId, InputId};
use crate::tools::sha256_hex;
use crate::turn::World;
use crate::turn::admission::{Fault, Refusal};

/// Maximum bytes of text in one input. Longer text becomes an artifact.
pub const TEXT_BYTES_MAX: usize = 256 * 1024;
/// Image types that models accept. Any other would make every later request of the conversation
/// fail.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// Maximum bytes of an input in its inbox item, after long text has become an artifact. Its entry
/// and receipt must fit one batch.
const INPUT_BYTES_MAX: usize = 1_000_000;
/// Maximum bytes of all images of one input. Base64 turns three bytes into four.
const PICTURE_BYTES_MAX: usize = 700 * 1024;
const SMALLER_PICTURES: &str = "the pictures of one input may have 700 KB together: send them as JPEG, or with at most 1,500 pixels a side";

const FILE_NAME_BYTES_MAX: usize = 512;

/// Context of the conversion of one input.
struct Place<'a> {
    world: &'a World,
    shelf: Shelf,
    input_id: &'a InputId,
    /// True if the agent can read the files that long text becomes.
    can_read: bool,
}

/// Validates the input, adds metadata to its file blocks and moves long text into artifacts. The
/// artifacts are stored before the inbox item that names them.
pub(crate) async fn admit(
    world: &World,
    head: &Head,
    input_id: &InputId,
    input: Content,
) -> Result<Content, Refusal> {
    let shelf = Shelf { key: head.key(), incarnation: head.incarnation.clone() };
    let place = Place { world, shelf, input_id, can_read: can_read(world, head) };
    let is_empty = match &input {
        Content::Text(text) => text.is_empty(),
        Content::Blocks(blocks) => blocks.is_empty(),
    };
    if is_empty {
        return Err(Refusal::invalid(
            "/input",
            "the input is empty (unpaired surrogates are removed): leave it out to start without one",
        ));
    }
    let faults = content_faults(&input, "/input");
    if !faults.is_empty() {
        return Err(Refusal::Invalid(faults));
    }
    let input = match input {
        Content::Text(text) if text.len() <= TEXT_BYTES_MAX => Content::Text(text),
        Content::Text(text) => Content::Blocks(place.spilled(vec![Block::text(text)]).await?),
        Content::Blocks(blocks) => {
            let blocks = place.with_files(blocks).await?;
            Content::Blocks(place.spilled(blocks).await?)
        }
    };
    if RawJson::of(&input).text().len() > INPUT_BYTES_MAX {
        return Err(Refusal::TooLarge(format!(
            "the blocks of one input may be 1 MB together; {SMALLER_PICTURES}, and other files as artifacts that file blocks name"
        )));
    }
    Ok(input)
}

/// True if the agent offers the tool `read`, or is missing: the prompt then fails with that reason.
fn can_read(world: &World, head: &Head) -> bool {
    let Ok(agent) = world.agents.find(Some(&head.agent)) else { return true };
    let active = head.settings.active_tools.as_ref().or(agent.settings.active_tools.as_ref());
    agent.tool("read").is_some()
        && active.is_none_or(|active| active.iter().any(|tool| tool == "read"))
}

/// Validates content from a user, as far as the content alone allows.
fn content_faults(content: &Content, pointer: &str) -> Vec<Fault> {
    let Content::Blocks(blocks) = content else { return Vec::new() };
    let mut faults = Vec::new();
    for (position, block) in blocks.iter().enumerate() {
        let at = format!("{pointer}/{position}");
        match block {
            Block::Text(text) => faults.extend(unknown_members(&text.extra, &at)),
            Block::File(file) => {
                faults.extend(unknown_members(&file.extra, &at));
                if file.path.as_ref().is_some_and(|path| path.len() > FILE_NAME_BYTES_MAX) {
                    let detail = format!(
                        "a file's `path` is its name, of at most {FILE_NAME_BYTES_MAX} bytes"
                    );
                    faults.push(Fault::at(format!("{at}/path"), detail));
                }
            }
            Block::Image(image) => {
                faults.extend(unknown_members(&image.extra, &at));
                faults.extend(picture_faults(image, &at));
            }
            Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_) => {
                faults.push(Fault::at(
                    format!("{at}/type"),
                    "a block of an input is `text`, `image` or `file`",
                ));
            }
        }
    }
    faults
}

/// Validates a message of a new conversation. User messages are checked like an input. Responses
/// and tool results may come from other systems, so their unknown members are kept.
pub(super) fn message_faults(message: &Message, pointer: &str) -> Vec<Fault> {
    let content_pointer = format!("{pointer}/content");
    let of_content = |content: &Content, extra: &Extra| {
        let mut faults = unknown_members(extra, pointer);
        faults.extend(content_faults(content, &content_pointer));
        if let Content::Blocks(blocks) = content {
            for (position, block) in blocks.iter().enumerate() {
                if matches!(block, Block::File(_)) {
                    faults.push(Fault::at(
                        format!("{content_pointer}/{position}/artifactId"),
                        "a new conversation has no artifacts: leave the block out, and add the file to the conversation",
                    ));
                }
            }
        }
        faults
    };
    match message {
        Message::User(user) => of_content(&user.content, &user.extra),
        Message::Custom(custom) => of_content(&custom.content, &custom.extra),
        Message::ToolResult(result) => pictures_faults(&result.content, &content_pointer),
        Message::Assistant(answer) => pictures_faults(&answer.content, &content_pointer),
        Message::BashExecution(bash) => unknown_members(&bash.extra, pointer),
        Message::BranchSummary(branch) => unknown_members(&branch.extra, pointer),
        Message::CompactionSummary(summary) => unknown_members(&summary.extra, pointer),
        Message::Other(_) => Vec::new(),
    }
}

fn pictures_faults(blocks: &[Block], pointer: &str) -> Vec<Fault> {
    let pictures = blocks.iter().enumerate().filter_map(|(position, block)| match block {
        Block::Image(image) => Some(picture_faults(image, &format!("{pointer}/{position}"))),
        Block::Text(_)
        | Block::Thinking(_)
        | Block::ToolCall(_)
        | Block::File(_)
        | Block::Other(_) => None,
    });
    pictures.flatten().collect()
}

/// Returns an error for each unknown member of a client's object.
fn unknown_members(extra: &Extra, pointer: &str) -> Vec<Fault> {
    let fault = |name: &String| {
        Fault::at(format!("{pointer}/{}", pointer_token(name)), format!("unknown field `{name}`"))
    };
    extra.keys().map(fault).collect()
}

fn picture_faults(image: &Image, pointer: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !PICTURES.contains(&image.mime_type.as_str()) {
        faults.push(Fault::at(
            format!("{pointer}/mimeType"),
            "an image's `mimeType` is image/png, image/jpeg, image/gif or image/webp",
        ));
    }
    let detail = match STANDARD.decode(&image.data).as_deref().map(image_type) {
        Err(_) => "an image's `data` is base64 without a data: prefix",
        Ok(None) => "the bytes of `data` are no PNG, JPEG, GIF or WebP picture",
        Ok(Some(_)) => return faults,
    };
    faults.push(Fault::at(format!("{pointer}/data"), detail));
    faults
}

impl Place<'_> {
    /// Adds name, type and size to each file block, and the image itself after the block of an
    /// image.
    async fn with_files(&self, blocks: Vec<Block>) -> Result<Vec<Block>, Refusal> {
        let mut known = Vec::with_capacity(blocks.len());
        let mut faults = Vec::new();
        let mut picture_bytes = 0;
        for (position, block) in blocks.into_iter().enumerate() {
            let Block::File(file) = block else {
                known.push(block);
                continue;
            };
            let facts = match self.world.artifacts.facts(&self.shelf, &file.artifact_id).await {
                Ok(facts) => facts,
                Err(ArtifactError::NotFound) => {
                    faults.push(Fault::at(
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
            let mime_type = facts.mime_type.split(';').next().unwrap_or_default().trim();
            let is_picture = PICTURES.contains(&mime_type);
            let file = FileBlock {
                path: file.path.or(facts.name.clone()),
                mime_type: Some(facts.mime_type.clone()),
                size: Some(facts.size),
                ..file
            };
            known.push(Block::File(file));
            if is_picture {
                picture_bytes += usize::try_from(facts.size).unwrap_or(usize::MAX);
                if picture_bytes > PICTURE_BYTES_MAX {
                    return Err(Refusal::TooLarge(format!(
                        "the picture of block {position} has {} bytes, and {SMALLER_PICTURES}",
                        facts.size
                    )));
                }
                match self.picture(&facts).await? {
                    Some(picture) => known.push(Block::Image(picture)),
                    None => faults.push(Fault::at(
                        format!("/input/{position}/artifactId"),
                        format!("the artifact's type is {mime_type}, but its bytes are no PNG, JPEG, GIF or WebP picture: add it again with its real type"),
                    )),
                }
            }
        }
        if faults.is_empty() { Ok(known) } else { Err(Refusal::Invalid(faults)) }
    }

    /// Loads an image artifact. `None`: its bytes are not an image that models accept.
    async fn picture(&self, facts: &ArtifactFacts) -> Result<Option<Image>, Refusal> {
        let bytes = self.world.artifacts.get(&self.shelf, &facts.id, None).await?;
        Ok(image_type(&bytes).map(|mime_type| Image {
            data: STANDARD.encode(&bytes),
            mime_type: mime_type.to_owned(),
            extra: Extra::new(),
        }))
    }

    /// Moves the largest texts into files until the rest is short enough.
    async fn spilled(&self, blocks: Vec<Block>) -> Result<Vec<Block>, Refusal> {
        let long = too_long(&blocks);
        if !long.is_empty() && !self.can_read {
            return Err(Refusal::TooLarge(format!(
                "the text of one input may have {TEXT_BYTES_MAX} bytes for an agent without the tool `read`: send less, or add `read` to the agent's tools"
            )));
        }
        let mut kept = Vec::with_capacity(blocks.len() + long.len());
        for (position, block) in blocks.into_iter().enumerate() {
            let Some(text) = text_of(&block).filter(|_| long.contains(&position)) else {
                kept.push(block);
                continue;
            };
            let name = if long.len() == 1 {
                "input.txt".to_owned()
            } else {
                format!("input-{}.txt", position + 1)
            };
            let file = self.put_text(name, text).await?;
            kept.push(Block::text(format!(
                "The user's text has {} bytes and is in this file:",
                text.len()
            )));
            kept.push(Block::File(file));
        }
        Ok(kept)
    }

    async fn put_text(&self, name: String, text: &str) -> Result<FileBlock, Refusal> {
        let facts = ArtifactFacts {
            id: ArtifactId::of(&upload_effect(self.input_id), &sha256_hex(text.as_bytes())),
            name: Some(name),
            mime_type: "text/plain; charset=utf-8".to_owned(),
            size: text.len() as u64,
            created_at: self.world.clock.now(),
        };
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        self.world.artifacts.put(&self.shelf, &facts, bytes).await?;
        self.world.probe.reached("admission.input-kept").await;
        Ok(FileBlock {
            artifact_id: facts.id,
            path: facts.name,
            mime_type: Some(facts.mime_type),
            size: Some(facts.size),
            extra: Extra::new(),
        })
    }
}

/// Positions of the largest texts, without which the rest is short enough.
fn too_long(blocks: &[Block]) -> Vec<usize> {
    let mut sizes: Vec<(usize, usize)> = blocks
        .iter()
        .enumerate()
        .filter_map(|(position, block)| text_of(block).map(|text| (text.len(), position)))
        .collect();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    let mut total: usize = sizes.iter().map(|(size, _)| size).sum();
    let mut long = Vec::new();
    for (size, position) in sizes {
        if total <= TEXT_BYTES_MAX {
            break;
        }
        total -= size;
        long.push(position);
    }
    long
}

fn text_of(block: &Block) -> Option<&str> {
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
pub(crate) fn upload_effect(input_id: &InputId) -> EffectId {
    let text = input_id.as_str();
    EffectId::new(format!("up_{}", text.strip_prefix("in_").unwrap_or(text)))
}
