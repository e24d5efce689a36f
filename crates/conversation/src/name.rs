//! Names of conversations.

use crate::workspace::is_deceptive;

/// Maximum bytes of a name.
const BYTES_MAX: usize = 512;

/// The trimmed name. `None`: nothing is left, so the conversation has no name.
///
/// # Errors
/// The text is too long or has unusable characters: report the reason, which begins after "`name`".
pub fn parse(text: &str) -> Result<Option<String>, String> {
    let name = text.trim();
    if name.len() > BYTES_MAX {
        return Err(format!("has {} bytes: at most {BYTES_MAX} are allowed", name.len()));
    }
    if name.chars().any(|letter| letter.is_control() || is_deceptive(letter)) {
        return Err(
            "is one line without control characters and marks that change the writing direction"
                .to_owned(),
        );
    }
    Ok(Some(name.to_owned()).filter(|name| !name.is_empty()))
}

/// A name that another program wrote, as it can be one here. `None`: it is empty, or has marks that
/// change the writing direction.
pub fn adapt(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.get(..text.floor_char_boundary(BYTES_MAX)).unwrap_or_default();
    parse(&text.replace(char::is_control, " ")).ok().flatten()
}
