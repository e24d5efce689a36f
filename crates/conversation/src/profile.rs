//! Profile of a user: what the model learnt about the user from messages, and its form in the system
//! prompt.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::unknown_members::{Extra, keep_unknown_members};
use turnwheel_json::text::{one_line, strip_code_fence};
use turnwheel_platform::clock::{Timestamp, iso};

pub mod document;
pub mod messages;
#[cfg(test)]
mod tests;

/// Characters of the fields as JSON.
pub(crate) const PROFILE_CHARS_MAX: usize = 2_000;
/// Bytes of a model response that are parsed.
const RESPONSE_BYTES_MAX: usize = 32 * 1024;
/// Characters of one field in a profile that must be cut. All five fit [`PROFILE_CHARS_MAX`] unless
/// many characters need an escape.
const CUT_FIELD_CHARS: usize = 380;
const HEADING: &str = "USER PROFILE:\n";
/// The response of the model that leaves the profile as it is.
const SKIP: &str = "SKIP";

/// The fields that the model writes. An empty one is absent.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileFields {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub who: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub style: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub focus: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interests: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub misc: String,
}

impl fmt::Debug for ProfileFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProfileFields({} characters)", self.char_count())
    }
}

impl ProfileFields {
    /// Reads the JSON object of a model response.
    ///
    /// # Errors
    /// The reason why the object is unusable, without its content.
    fn from_object(text: &str) -> Result<Self, &'static str> {
        let value: Value = serde_json::from_str(text).map_err(|_| "the response is not JSON")?;
        let Value::Object(members) = value else { return Err("the response is no object") };
        let mut fields = Self::default();
        for (name, value) in members {
            let Value::String(text) = value else { return Err("a member is no string") };
            let field = match name.as_str() {
                "who" => &mut fields.who,
                "style" => &mut fields.style,
                "focus" => &mut fields.focus,
                "interests" => &mut fields.interests,
                "misc" => &mut fields.misc,
                _ => return Err("a member is unknown"),
            };
            *field = one_line(&text);
        }
        if fields == Self::default() { Err("all members are empty") } else { Ok(fields) }
    }

    /// As the model receives them: a JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn char_count(&self) -> usize {
        self.to_json().chars().count()
    }

    pub fn is_too_long(&self) -> bool {
        self.char_count() > PROFILE_CHARS_MAX
    }

    /// Cuts long fields until all together fit.
    #[must_use]
    pub fn cut(mut self) -> Self {
        let mut most = CUT_FIELD_CHARS;
        while self.is_too_long() && most > 0 {
            let Self { who, style, focus, interests, misc } = &mut self;
            for field in [who, style, focus, interests, misc] {
                *field = field.chars().take(most).collect();
            }
            most /= 2;
        }
        self
    }
}

/// The profile of a user as stored and as the system prompt has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    #[serde(flatten)]
    pub fields: ProfileFields,
    #[serde(rename = "_meta")]
    pub meta: ProfileMeta,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct ProfileMeta {
    #[serde(with = "iso")]
    pub last_learned_at: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!([] ProfileMeta);

impl Profile {
    pub fn new(fields: ProfileFields, now: Timestamp) -> Self {
        Self { fields, meta: ProfileMeta { last_learned_at: now, extra: Extra::new() } }
    }

    /// The part of the system prompt with the profile.
    pub fn render(&self) -> String {
        let json = serde_json::to_string_pretty(self).unwrap_or_default();
        format!("{HEADING}{json}")
    }
}

/// A usable response of the model to new messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileUpdate {
    /// The messages change nothing.
    Unchanged,
    /// May be too long.
    Replaced(ProfileFields),
}

impl ProfileUpdate {
    /// Reads `SKIP` or a JSON object, also within a code block of Markdown.
    ///
    /// # Errors
    /// The reason why the response is unusable, without its content.
    pub fn parse(response: &str) -> Result<Self, &'static str> {
        if response.len() > RESPONSE_BYTES_MAX {
            return Err("the response is too long");
        }
        let text = strip_code_fence(response);
        if text.trim_matches(|letter: char| "\"'`.".contains(letter)).eq_ignore_ascii_case(SKIP) {
            return Ok(Self::Unchanged);
        }
        ProfileFields::from_object(text).map(Self::Replaced)
    }
}
