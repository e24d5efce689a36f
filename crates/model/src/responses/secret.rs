//! A secret of the model client.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A string that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    /// True if every character is valid in a key.
    pub(crate) fn is_header_text(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|byte| (0x21..0x7f).contains(&byte))
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Parsed as generic JSON first: serde's own errors quote the invalid value.
        let key = serde_json::Value::deserialize(from)?;
        let text = key.as_str().ok_or_else(|| D::Error::custom("a key must be a text"))?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
