//! For crash tests only: where the process stops for ever, so that a test can kill it there.

use std::num::NonZeroU32;

use super::mistake::Mistake;
use super::reader::Reader;

/// `boundary` or `boundary#n`: the process stops at the n-th time it reaches that boundary, after writing the file
/// `halted` in its data folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaltAt {
    /// As `turn::Probe` is told it.
    pub boundary: String,
    /// From 1.
    pub occurrence: NonZeroU32,
}

impl HaltAt {
    pub(super) fn read(reader: &mut Reader<'_>, is_in_azure: bool) -> Option<Self> {
        let halt_at = reader.parse(
            "TURNWHEEL_HALT_AT",
            "a boundary's name, or name#n with n from 1",
            Self::parse,
        )?;
        if is_in_azure {
            reader.note(Mistake::of(
                "TURNWHEEL_HALT_AT",
                "stops the process on purpose and is for crash tests only: remove it from the app's settings",
            ));
        }
        Some(halt_at)
    }

    fn parse(text: &str) -> Option<Self> {
        let (boundary, occurrence) = match text.split_once('#') {
            Some((boundary, count)) => (boundary, count.parse().ok()?),
            None => (text, NonZeroU32::MIN),
        };
        let is_name = !boundary.is_empty()
            && boundary.bytes().all(|byte| {
                byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':')
            });
        is_name.then(|| Self { boundary: boundary.to_owned(), occurrence })
    }
}
