//! Profiles by the scripted model: it records the newest messages as they are.

use serde::Deserialize;
use serde_json::{Value, json};

/// Messages that the profile names.
const MESSAGES_MAX: usize = 3;
/// Characters of one of them.
const TEXT_CHARS: usize = 100;

#[derive(Deserialize)]
struct MessageOfUser {
    text: String,
}

/// The response to a request for a profile. `None`: this is no such request.
pub(super) fn respond(prompt: &str) -> Option<String> {
    let rest = prompt.strip_prefix("<profile>\n")?;
    let (profile, messages) = rest.split_once("\n</profile>")?;
    let mut profile: Value = serde_json::from_str(profile).ok()?;
    let messages = messages.strip_prefix("\n<messages>\n");
    // Without messages the profile is to be shortened.
    if let Some(messages) = messages.and_then(|rest| rest.strip_suffix("\n</messages>")) {
        let messages: Vec<MessageOfUser> = serde_json::from_str(messages).ok()?;
        let newest = messages.iter().rev().take(MESSAGES_MAX);
        let texts: Vec<String> =
            newest.map(|message| message.text.chars().take(TEXT_CHARS).collect()).collect();
        profile.as_object_mut()?.insert("misc".to_owned(), json!(texts.join("; ")));
    }
    Some(profile.to_string())
}
