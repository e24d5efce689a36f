//! `TURNWHEEL_HALT_AT`, for crash tests only: the fail point at which the process suspends itself.

use std::num::NonZeroU32;

use super::mistake::SettingMistake;
use super::reader::Reader;
use crate::fail_points::current_name;

/// `name` or `name#n`: the process suspends itself when it reaches that fail point for the n-th
/// time, after it has written the file `halted` in its data folder. A test then kills it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmedFailPoint {
    /// The name of the fail point, as in the port of fail points.
    pub name: String,
    /// Counted from 1.
    pub occurrence: NonZeroU32,
}

impl ArmedFailPoint {
    pub(super) fn read(reader: &mut Reader<'_>, is_in_azure: bool) -> Option<Self> {
        let armed = reader.parse(
            "TURNWHEEL_HALT_AT",
            "the name of a fail point, or name#n with n from 1",
            Self::parse,
        )?;
        if is_in_azure {
            reader.add_mistake(SettingMistake::new(
                "TURNWHEEL_HALT_AT",
                "stops the process on purpose and is for crash tests only: remove it from the app's settings",
            ));
        }
        Some(armed)
    }

    fn parse(text: &str) -> Option<Self> {
        let (name, occurrence) = match text.split_once('#') {
            Some((name, count)) => (name, count.parse().ok()?),
            None => (text, NonZeroU32::MIN),
        };
        let is_name = !name.is_empty()
            && name.bytes().all(|byte| {
                byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':')
            });
        is_name.then(|| Self { name: current_name(name).to_owned(), occurrence })
    }
}
