//! Labels of entries: short names that a user gives to places in the tree.

use crate::head::Head;
use crate::workspace::is_deceptive;
use turnwheel_platform::ids::EntryId;

/// Maximum number of labelled entries.
const LABELS_MAX: usize = 100;
/// Maximum number of characters of a label.
const LABEL_CHARS_MAX: usize = 64;

impl Head {
    /// Sets the label of an entry; an empty one removes it. Returns the trimmed label.
    ///
    /// # Errors
    /// The label is not valid, or there are too many: report the text.
    pub fn set_label(
        &mut self,
        entry_id: &EntryId,
        label: Option<&str>,
    ) -> Result<Option<String>, String> {
        let label = label.unwrap_or_default().trim();
        if label.is_empty() {
            self.labels.remove(entry_id.as_str());
            return Ok(None);
        }
        let length = label.chars().count();
        if length > LABEL_CHARS_MAX {
            return Err(format!(
                "a label has at most {LABEL_CHARS_MAX} characters, this one has {length}"
            ));
        }
        if label.chars().any(|letter| letter.is_control() || is_deceptive(letter)) {
            return Err("a label is one line without control characters and marks that change the writing direction".to_owned());
        }
        if self.labels.len() >= LABELS_MAX && !self.labels.contains_key(entry_id.as_str()) {
            return Err(format!(
                "the conversation has {LABELS_MAX} labels, the maximum: remove one first"
            ));
        }
        self.labels.insert(entry_id.to_string(), label.to_owned());
        Ok(Some(label.to_owned()))
    }
}
