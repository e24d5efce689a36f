//! Messages in the requests of HTTP extensions and plugins: without the bytes of images and the
//! replay data of model services, and bounded.

use turnwheel_conversation::content::{Block, Content};
use turnwheel_conversation::message::Message;
use turnwheel_json::raw::RawJson;

use super::BODY_BYTES_MAX;

/// Bytes of all messages of a request as JSON. The rest of the body needs less than 16 KB.
pub(super) const MESSAGES_BYTES_MAX: usize = BODY_BYTES_MAX - 16 * 1024;

/// Members of blocks that only model services read, or that are large.
const OMITTED: [&str; 4] = ["data", "textSignature", "thinkingSignature", "thoughtSignature"];

/// The newest messages that fit into `bytes_max`, in their order, and the number of older ones.
pub(super) fn newest<'m>(
    messages: impl DoubleEndedIterator<Item = &'m Message>,
    bytes_max: usize,
) -> (Vec<RawJson>, usize) {
    let (mut kept, mut bytes, mut omitted_count) = (Vec::new(), 0, 0);
    for message in messages.rev() {
        if omitted_count == 0 {
            let value = message_value(message);
            bytes += value.text().len() + 1;
            if bytes <= bytes_max {
                kept.push(value);
                continue;
            }
        }
        omitted_count += 1;
    }
    kept.reverse();
    (kept, omitted_count)
}

pub(super) fn message_value(message: &Message) -> RawJson {
    let written = RawJson::from_value(message);
    let Some(mut members) = written.members() else { return written };
    for (_, content) in members.iter_mut().filter(|(name, _)| name == "content") {
        if let Ok(blocks) = content.read::<Vec<RawJson>>() {
            *content = RawJson::from_value(&blocks.iter().map(omit_members).collect::<Vec<_>>());
        }
    }
    RawJson::from_members(members)
}

pub(super) fn content_value(content: &Content) -> RawJson {
    match content {
        Content::Text(text) => RawJson::from_value(text),
        Content::Blocks(blocks) => RawJson::from_value(&block_values(blocks)),
    }
}

pub(super) fn block_values(blocks: &[Block]) -> Vec<RawJson> {
    blocks.iter().map(|block| omit_members(&RawJson::from_value(block))).collect()
}

fn omit_members(block: &RawJson) -> RawJson {
    let Some(mut members) = block.members() else { return block.clone() };
    members.retain(|(name, _)| !OMITTED.contains(&name.as_str()));
    RawJson::from_members(members)
}
