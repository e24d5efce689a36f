//! Fuzz target: the HTML page of a conversation. Whatever the texts of an entry, the page has only
//! the tags that the page itself writes.

use super::tests::assert_only_own_tags;
use super::{PageZone, escape, section};
use turnwheel_conversation::entry::Entry;
use turnwheel_test_support::fuzz::check;

fn check_page(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(entry) = serde_json::from_str::<Entry>(text.trim_end()) {
        let html = section(&entry, &PageZone::utc());
        assert_only_own_tags(&html);
        assert!(html.len() <= 32 * text.len() + 1_024, "{} of {}", html.len(), text.len());
    }
    let title = escape(text);
    assert!(!title.contains(['<', '>', '"', '\'', '\0']), "{title}");
}

#[test]
fn page_has_only_its_own_tags() {
    check("html_page", check_page);
}
