//! Markdown of models as HTML with a fixed set of tags. Raw HTML is shown as text, images as links,
//! and links lead to web and mail addresses only.

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd, html};

/// Schemes of links.
const SCHEMES: [&str; 3] = ["https://", "http://", "mailto:"];

pub(super) fn to_html(text: &str) -> String {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    // A null character would become another one in the browser.
    let text = text.replace('\0', "\u{fffd}");
    let mut links = Vec::new();
    let events = Parser::new_ext(&text, options).filter_map(|event| own_event(event, &mut links));
    let mut page = String::with_capacity(text.len() * 5 / 4);
    html::push_html(&mut page, events);
    page
}

/// The event without attributes that its author could choose. `links`: for each open link, true
/// if it is kept.
#[expect(clippy::wildcard_enum_match_arm, reason = "all other events are kept")]
fn own_event<'t>(event: Event<'t>, links: &mut Vec<bool>) -> Option<Event<'t>> {
    match event {
        Event::Html(text) | Event::InlineHtml(text) => Some(Event::Text(text)),
        Event::Start(Tag::CodeBlock(_)) => {
            Some(Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)))
        }
        Event::Start(Tag::Table(columns)) => {
            let plain = vec![pulldown_cmark::Alignment::None; columns.len()];
            Some(Event::Start(Tag::Table(plain)))
        }
        Event::Start(Tag::Heading { level, .. }) => {
            let (id, classes, attrs) = (None, Vec::new(), Vec::new());
            Some(Event::Start(Tag::Heading { level, id, classes, attrs }))
        }
        Event::Start(Tag::Link { dest_url, id, .. } | Tag::Image { dest_url, id, .. }) => {
            let is_kept = SCHEMES.iter().any(|scheme| {
                dest_url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
            });
            links.push(is_kept);
            let (link_type, title) = (LinkType::Inline, "".into());
            is_kept.then_some(Event::Start(Tag::Link { link_type, dest_url, title, id }))
        }
        Event::End(TagEnd::Link | TagEnd::Image) => {
            links.pop().unwrap_or_default().then_some(Event::End(TagEnd::Link))
        }
        Event::Start(Tag::List(first)) => Some(Event::Start(Tag::List(first.map(|_| 1)))),
        event => Some(event),
    }
}
