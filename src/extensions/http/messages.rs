//! Messages in the requests of HTTP extensions and plugins: without the bytes of images and the
//! replay data of model services, and bounded.

use serde_json::Value;

use crate::agent::content::Block;
use crate::agent::message::Message;

use super::BODY_BYTES_MAX;

/// Bytes of all messages of a request as JSON. The rest of the body needs less than 16 KB.
pub(super) const MESSAGES_BYTES_MAX: usize = BODY_BYTES_MAX - 16 * 1024;

/// Members of blocks that only model services read, or that are large.
const OMITTED: [&str; 4] = ["data", "textSignature", "thinkingSignature", "thoughtSignature"];

/// The newest messages that fit into `bytes_max`, in their order, and the number of older ones.
pub(super) fn newest<'m>(
    messages: impl DoubleEndedIterator<Item = &'m Message>,
    bytes_max: usize,
) -> (Vec<Value>, usize) {
    let (mut kept, mut bytes, mut omitted_count) = (Vec::new(), 0, 0);
    for message in messages.rev() {
        if omitted_count == 0 {
            let value = message_value(message);
            bytes += value.to_string().len() + 1;
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

pub(super) fn message_value(message: &Message) -> Value {
    let mut value = serde_json::to_value(message).unwrap_or_default();
    for block in value.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        omit_members(block);
    }
    value
}

pub(super) fn block_values(blocks: &[Block]) -> Vec<Value> {
    let values = blocks.iter().map(|block| {
        let mut value = serde_json::to_value(block).unwrap_or_default();
        omit_members(&mut value);
        value
    });
    values.collect()
}

fn omit_members(block: &mut Value) {
    if let Some(members) = block.as_object_mut() {
        members.retain(|name, _| !OMITTED.contains(&name.as_str()));
    }
}
