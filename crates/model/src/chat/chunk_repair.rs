//! Repair of chunks that cannot be parsed as they are.

use crate::lost_content::{is_empty, loses_content};
use turnwheel_json::foreign::read_foreign_json;
use turnwheel_json::raw::RawJson;

/// Members that are objects or lists. In place of one, some services send an empty value of another
/// type: `{}` for a list, or an empty text.
const STRUCTURES: [&str; 7] =
    ["choices", "delta", "message", "tool_calls", "function_call", "function", "custom"];
/// Levels from a chunk to the function of a call.
const LEVELS: usize = 7;

/// The chunk as valid JSON without empty structures. `None`: it is not JSON, or the repair would lose
/// content or change the arguments of a call.
pub(super) fn repair_chunk(text: &str) -> Option<RawJson> {
    let foreign = read_foreign_json(text).filter(|it| !loses_content(text, it))?;
    Some(without_empty_structures(foreign.json, LEVELS))
}

/// Removes empty structures and empty items of lists. A value of a wrong type that is not empty
/// stays: content would be lost with it.
fn without_empty_structures(json: RawJson, levels: usize) -> RawJson {
    if levels == 0 {
        return json;
    }
    if let Some(members) = json.members() {
        let kept = members.into_iter().filter_map(|(name, value)| {
            if !STRUCTURES.contains(&name.as_str()) {
                return Some((name, value));
            }
            (!is_empty(&value)).then(|| (name, without_empty_structures(value, levels - 1)))
        });
        return RawJson::from_members(kept.collect());
    }
    let Ok(items) = json.read::<Vec<RawJson>>() else { return json };
    let items = items.into_iter().filter(|item| !is_empty(item));
    let items: Vec<RawJson> =
        items.map(|item| without_empty_structures(item, levels - 1)).collect();
    RawJson::from_value(&items)
}
