//! The stored form of arguments that an extension set: JSON, or its text if JSON would lose digits of
//! numbers. Arguments are objects, so a string is always such a text.

use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
use serde_json::Value;

use turnwheel_json::raw::RawJson;

/// True if workers that read the arguments as JSON get each digit.
pub(crate) fn keeps_digits_as_json(arguments: &RawJson) -> bool {
    RawJson::from_value(&arguments.to_value()).text() == arguments.text()
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the member")]
pub(crate) fn serialize<S: Serializer>(
    arguments: &Option<RawJson>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let stored = arguments.as_ref().map(|arguments| {
        if keeps_digits_as_json(arguments) {
            arguments.to_value()
        } else {
            Value::from(arguments.text())
        }
    });
    stored.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RawJson>, D::Error> {
    let stored = Option::<Value>::deserialize(deserializer)?;
    let read = stored.map(|stored| match stored.as_str() {
        Some(text) => RawJson::from_text(text).map_err(serde::de::Error::custom),
        None => Ok(RawJson::from_value(&stored)),
    });
    read.transpose()
}
