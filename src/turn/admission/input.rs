//! A prompt's input: what it may hold, and how long text becomes a file.

use base64::Engine as _;
use bytes::Bytes;

use crate::agent::content::{Block, Content, FileBlock, image_type};
use crate::agent::head::Head;
use crate::agent::raw::{Extra, RawJson};
use crate::artifacts::{ArtifactError, ArtifactFacts, Shelf};
use crate::ids::{ArtifactId, EffectId, InputId};
use crate::tools::sha256_hex;
use crate::turn::World;
use crate::turn::admission::{Fault, Refusal};

/// Text above it becomes an artifact.
pub const TEXT_BYTES_MAX: usize = 256 * 1024;
/// What models take; anything else would make every later request of the conversation fail.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// What is left in the inbox item after that; its entry and receipt must fit one batch.
const INPUT_BYTES_MAX: usize = 1_000_000;

/// Checks the input and moves long text into artifacts, which are there before the item that names them.
pub(crate) async fn admit(
    world: &World,
    head: &Head,
    input_id: &InputId,
    input: Content,
) -> Result<Content, Refusal> {
    let shelf = Shelf { key: head.key(), incarnation: head.incarnation.clone() };
    let faults = faults(world, &shelf, &input).await?;
    if !faults.is_empty() {
        return Err(Refusal::Invalid(faults));
    }
    let input = match input {
        Content::Text(text) if text.len() <= TEXT_BYTES_MAX => Content::Text(text),
        Content::Text(text) => {
            Content::Blocks(spilled(world, &shelf, input_id, vec![Block::text(text)]).await?)
        }
        Content::Blocks(blocks) => Content::Blocks(spilled(world, &shelf, input_id, blocks).await?),
    };
    if RawJson::of(&input).text().len() > INPUT_BYTES_MAX {
        return Err(Refusal::TooLarge(
            "the blocks of one input may be 1 MB together: add larger files as artifacts and name them in file blocks"
                .to_owned(),
        ));
    }
    Ok(input)
}

async fn faults(world: &World, shelf: &Shelf, input: &Content) -> Result<Vec<Fault>, Refusal> {
    let blocks = match input {
        Content::Text(text) if text.is_empty() => {
            return Ok(vec![Fault::at(
                "/input",
                "the input is empty: leave it out to begin without one",
            )]);
        }
        Content::Text(_) => return Ok(Vec::new()),
        Content::Blocks(blocks) if blocks.is_empty() => {
            return Ok(vec![Fault::at(
                "/input",
                "the input is empty: leave it out to begin without one",
            )]);
        }
        Content::Blocks(blocks) => blocks,
    };
    let mut faults = Vec::new();
    for (position, block) in blocks.iter().enumerate() {
        let at = |member: &str| format!("/input/{position}{member}");
        match block {
            Block::Text(_) => {}
            Block::Image(image) => {
                if !PICTURES.contains(&image.mime_type.as_str()) {
                    faults.push(Fault::at(
                        at("/mimeType"),
                        "an image's `mimeType` is image/png, image/jpeg, image/gif or image/webp",
                    ));
                }
                let bytes = base64::engine::general_purpose::STANDARD.decode(&image.data);
                let fault = match bytes.as_deref().map(image_type) {
                    Err(_) => Some("an image's `data` is base64 without a data: prefix"),
                    Ok(None) => Some("the bytes of `data` are no PNG, JPEG, GIF or WebP picture"),
                    Ok(Some(_)) => None,
                };
                faults.extend(fault.map(|told| Fault::at(at("/data"), told)));
            }
            Block::File(file) => {
                if let Some(fault) = missing_file(world, shelf, file, at("/artifactId")).await? {
                    faults.push(fault);
                }
            }
            Block::Thinking(_) | Block::ToolCall(_) | Block::Other(_) => {
                faults.push(Fault::at(
                    at("/type"),
                    "a block of an input is `text`, `image` or `file`",
                ));
            }
        }
    }
    Ok(faults)
}

async fn missing_file(
    world: &World,
    shelf: &Shelf,
    file: &FileBlock,
    pointer: String,
) -> Result<Option<Fault>, Refusal> {
    match world.artifacts.facts(shelf, &file.artifact_id).await {
        Ok(_) => Ok(None),
        Err(ArtifactError::NotFound) => Ok(Some(Fault::at(
            pointer,
            format!("the conversation has no artifact `{}`: add it first", file.artifact_id),
        ))),
        Err(error) => Err(error.into()),
    }
}

/// The largest texts become files until what is left is short enough.
async fn spilled(
    world: &World,
    shelf: &Shelf,
    input_id: &InputId,
    blocks: Vec<Block>,
) -> Result<Vec<Block>, Refusal> {
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
        let file = put_text(world, shelf, input_id, &name, text).await?;
        kept.push(Block::text(format!(
            "The person's text is {} bytes long and was put into the file {name}.",
            text.len()
        )));
        kept.push(Block::File(file));
    }
    Ok(kept)
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

async fn put_text(
    world: &World,
    shelf: &Shelf,
    input_id: &InputId,
    name: &str,
    text: &str,
) -> Result<FileBlock, Refusal> {
    let facts = ArtifactFacts {
        id: ArtifactId::of(&upload_effect(input_id), &sha256_hex(text.as_bytes())),
        name: Some(name.to_owned()),
        mime_type: "text/plain; charset=utf-8".to_owned(),
        size: text.len() as u64,
        created_at: world.clock.now(),
    };
    world.artifacts.put(shelf, &facts, Bytes::copy_from_slice(text.as_bytes())).await?;
    world.probe.reached("admission.input-kept").await;
    Ok(FileBlock {
        artifact_id: facts.id,
        path: facts.name,
        mime_type: Some(facts.mime_type),
        size: Some(facts.size),
        extra: Extra::new(),
    })
}

/// What stands in place of an effect id for bytes that a person sent: the same for every repetition.
pub(crate) fn upload_effect(input_id: &InputId) -> EffectId {
    let text = input_id.as_str();
    EffectId::new(format!("up_{}", text.strip_prefix("in_").unwrap_or(text)))
}
