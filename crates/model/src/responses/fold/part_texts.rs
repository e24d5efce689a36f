//! Texts of the parts of one item while they are received.

use std::collections::BTreeMap;

/// Texts by the index of their part.
#[derive(Default)]
pub(super) struct PartTexts(BTreeMap<u64, String>);

impl PartTexts {
    pub(super) fn from_text(text: String) -> Self {
        Self(BTreeMap::from([(0, text)]))
    }

    /// Appends to a part. Without an index, to the last part.
    pub(super) fn append(&mut self, index: Option<u64>, delta: &str) {
        self.part(index).push_str(delta);
    }

    /// Merges the whole text of a part with its deltas. Returns the text that no delta had.
    pub(super) fn merge(&mut self, index: Option<u64>, whole: &str) -> String {
        let received = self.part(index);
        if received.trim_end() == whole.trim_end() {
            return String::new();
        }
        let rest = whole.strip_prefix(received.as_str()).unwrap_or_default().to_owned();
        merge_text(received, whole);
        rest
    }

    /// Merges the whole text of the item with its parts.
    pub(super) fn merge_whole(&mut self, whole: &str) {
        let mut text = self.joined();
        merge_text(&mut text, whole);
        *self = Self::from_text(text);
    }

    pub(super) fn joined(&self) -> String {
        self.0.values().map(String::as_str).collect()
    }

    /// The parts as paragraphs.
    pub(super) fn paragraphs(&self) -> String {
        let texts = self.0.values().map(|text| text.trim_end());
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
    }

    pub(super) fn len(&self) -> usize {
        self.0.values().map(String::len).sum()
    }

    fn part(&mut self, index: Option<u64>) -> &mut String {
        let last = self.0.keys().next_back().copied();
        self.0.entry(index.or(last).unwrap_or(0)).or_default()
    }
}

/// The whole text replaces the deltas, unless it is blank.
fn merge_text(received: &mut String, whole: &str) {
    if !whole.trim().is_empty() || received.is_empty() {
        whole.clone_into(received);
    }
}
