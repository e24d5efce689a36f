//! Settings that are whole numbers.

use super::reader::Reader;

const EXTENSION_PROMPTS: &str = "TURNWHEEL_EXTENSION_PROMPTS_MAX";
const OWNER_TURNS: &str = "TURNWHEEL_OWNER_TURNS_MAX";
const MAX: u32 = 1_000;

/// Prompts in a row that extensions may start. `None`: absent or invalid.
pub(super) fn read_extension_prompts(reader: &mut Reader<'_>) -> Option<u32> {
    reader.parse(EXTENSION_PROMPTS, "a whole number from 1 to 1000", parse)
}

/// Turns of one owner that an instance runs at once. `None`: absent or invalid.
pub(super) fn read_owner_turns(reader: &mut Reader<'_>) -> Option<u32> {
    reader.parse(OWNER_TURNS, "a whole number from 1 to 1000", parse)
}

fn parse(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && (1..=MAX).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_whole_numbers_from_one() {
        assert_eq!((parse("1"), parse("8"), parse("1000")), (Some(1), Some(8), Some(MAX)));
        for wrong in ["0", "-1", "+1", "1001", "1.5", "8 prompts", "99999999999"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
