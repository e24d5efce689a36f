//! Fuzz target: the HTML page of a conversation. Whatever the texts of an entry, the page has only
//! the tags that the page itself writes, without attributes.

use super::html::{html_entry, html_start};
use crate::entry::Entry;
use turnwheel_test_support::fuzz::check;

/// The tags of a section.
const TAGS: [&str; 12] = [
    "<section>",
    "</section>",
    "<h2>",
    "</h2>",
    "<pre>",
    "</pre>",
    "<code>",
    "</code>",
    "<details>",
    "</details>",
    "<summary>",
    "</summary>",
];

/// Panics if the page has a tag that is not in the list, or a tag that is not closed.
fn assert_only_own_tags(html: &str) {
    for rest in html.split('<').skip(1) {
        let tag = rest.split_inclusive('>').next().unwrap_or_default();
        assert!(TAGS.contains(&format!("<{tag}").as_str()), "<{tag}");
    }
    for name in ["section", "h2", "pre", "code", "details", "summary"] {
        let count = |text: String| html.matches(text.as_str()).count();
        assert_eq!(count(format!("<{name}>")), count(format!("</{name}>")), "{name}");
    }
    let references = html.split('&').skip(1);
    let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
    for reference in references {
        assert!(known.iter().any(|name| reference.starts_with(name)), "&{reference:.12}");
    }
    assert!(!html.contains('\0') && !html.contains('"') && !html.contains('\''));
}

fn check_page(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(entry) = serde_json::from_str::<Entry>(text.trim_end()) {
        let html = html_entry(&entry);
        assert_only_own_tags(&html);
        assert!(html.len() <= 16 * text.len() + 1_024, "{} of {}", html.len(), text.len());
    }
    let title = html_start(text);
    let (_, heading) = title.split_once("<h1>").unwrap_or_default();
    let (heading, _) = heading.rsplit_once("</h1>").unwrap_or_default();
    assert!(!heading.contains(['<', '>', '"', '\'', '\0']), "{heading}");
}

#[test]
fn page_has_only_its_own_tags() {
    check("html_page", check_page);
}
