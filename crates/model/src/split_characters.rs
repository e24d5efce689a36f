//! Characters whose surrogate halves are in two frames of a stream.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use turnwheel_json::text::{UnpairedHalf, repair_surrogates, unpaired_halves};

/// Texts of one response that may end in a first half at the same time.
const TEXTS_MAX: usize = 1_024;

/// First halves that ended a text, until the second half begins its next delta.
#[derive(Debug, Default)]
pub(crate) struct SplitCharacters {
    /// By the address of the text.
    first_halves: BTreeMap<String, u16>,
}

impl SplitCharacters {
    /// Returns the frame as valid JSON. A second half gets its first half from an earlier frame with
    /// the same address; other unpaired halves are removed.
    pub(crate) fn join<'d>(
        &mut self,
        data: &'d str,
        address: impl Fn(&Value) -> String,
    ) -> Cow<'d, str> {
        let halves = unpaired_halves(data);
        if halves.is_empty() {
            return Cow::Borrowed(data);
        }
        let repaired = repair_surrogates(data);
        let Ok(address) = serde_json::from_str(&repaired).map(|frame| address(&frame)) else {
            return repaired;
        };
        let second = halves.iter().find(|half| half.is_second() && half.begins_text);
        let first = self.first_halves.remove(&address);
        let joined = first.zip(second).and_then(|(first, second)| with_half(data, first, second));
        let last = halves.iter().rfind(|half| !half.is_second() && half.ends_text);
        if let Some(last) = last
            && self.first_halves.len() < TEXTS_MAX
        {
            self.first_halves.insert(address, last.unit);
        }
        joined.map_or(repaired, Cow::Owned)
    }
}

/// The frame with the first half before its second half.
fn with_half(data: &str, first: u16, second: &UnpairedHalf) -> Option<String> {
    let (before, after) = data.split_at_checked(second.at)?;
    Some(repair_surrogates(&format!("{before}\\u{first:04x}{after}")).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(frame: &Value) -> String {
        frame["to"].to_string()
    }

    fn texts(frames: &[&str]) -> Vec<String> {
        let mut split = SplitCharacters::default();
        let joined = frames.iter().map(|frame| split.join(frame, address).into_owned());
        let parsed = joined.map(|frame| serde_json::from_str::<Value>(&frame).unwrap());
        parsed.map(|frame| frame["t"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn halves_of_two_frames_are_joined_by_address() {
        let frames = [
            r#"{"to":1,"t":"a\ud83d"}"#,
            r#"{"to":2,"t":"b\uD83D"}"#,
            r#"{"to":1,"t":""}"#,
            r#"{"to":1,"t":"\ude00c"}"#,
            r#"{"to":2,"t":"\uDE01\ud83d"}"#,
            r#"{"to":2,"t":"\ude02"}"#,
        ];
        assert_eq!(texts(&frames), ["a", "b", "", "😀c", "😁", "😂"]);
    }

    #[test]
    fn halves_without_partner_are_removed() {
        let frames = [
            r#"{"to":1,"t":"\ude00a\ud83d"}"#,
            r#"{"to":2,"t":"\ude00"}"#,
            r#"{"to":1,"t":"b\ude00"}"#,
            r#"{"to":1,"t":"\"\ude00"}"#,
        ];
        assert_eq!(texts(&frames), ["a", "", "b", "\""]);
    }
}
