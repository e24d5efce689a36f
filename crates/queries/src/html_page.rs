//! A conversation as one static HTML page: the path to the leaf, and each other branch folded where
//! it begins. All texts are untrusted input and are escaped; the page has no scripts and loads
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::schedule::zone::Zone;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::EntryId;

use self::section::{first_line, section};

mod markdown;
mod section;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

const STYLE: &str = include_str!("html_page/style.css");

/// The time zone of a page.
#[derive(Clone, Debug)]
pub struct PageZone {
    zone: Zone,
    name: String,
}

impl PageZone {
    pub fn utc() -> Self {
        Self { zone: Zone::utc(), name: "UTC".to_owned() }
    }

    /// # Errors
    /// Unknown zone: return the text to the client. It names the remedy.
    pub fn from_name(name: &str) -> Result<Self, String> {
        Ok(Self { zone: Zone::from_name(name)?, name: name.to_owned() })
    }

    fn time(&self, at: Timestamp) -> String {
        let local = self.zone.to_local(at).strftime("%-d %b %Y, %H:%M:%S");
        format!("<time datetime=\"{at}\">{local}</time>")
    }
}

#[derive(Clone, Debug)]
enum Item {
    Entry(Arc<Entry>),
    /// A branch that the path left: its first text, and the number of its entries.
    BranchStart {
        title: String,
        entries: usize,
    },
    BranchEnd,
}

/// A page, which is written part by part.
#[derive(Debug)]
pub(crate) struct HtmlPage {
    zone: PageZone,
    items: Vec<Item>,
}

impl HtmlPage {
    pub(crate) fn new(head: &Head, entries: &[Arc<Entry>], zone: PageZone) -> Self {
        let path = path_to_leaf(entries, head.leaf_id.as_ref());
        Self { zone, items: place_branches(entries, &path) }
    }

    /// The beginning of the page, with the facts of the whole conversation.
    pub(crate) fn start(&self, head: &Head, entries: &[Arc<Entry>]) -> String {
        let title = escape(head.name.as_deref().unwrap_or(head.conversation_id.as_str()));
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<dl>\n"
        );
        let mut add_fact = |name: &str, value: &str| {
            let _infallible = writeln!(page, "<div><dt>{name}</dt><dd>{value}</dd></div>");
        };
        let totals = Totals::of(entries);
        add_fact("Agent", &escape(&head.agent));
        if !totals.models.is_empty() {
            let models: Vec<&str> = totals.models.into_iter().collect();
            add_fact("Model", &escape(&models.join(", ")));
        }
        add_fact("Started", &self.zone.time(head.created_at));
        add_fact("Model calls", &totals.calls.to_string());
        add_fact("Tokens", &totals.tokens.to_string());
        add_fact("Cost", &format!("${:.4}", totals.cost));
        add_fact("Time zone", &escape(&self.zone.name));
        page.push_str("</dl>\n");
        page
    }

    /// The items from number `from`, at most `count`; empty after the last one.
    pub(crate) fn part(&self, from: usize, count: usize) -> String {
        let items = self.items.iter().skip(from).take(count);
        items.map(|item| self.item(item)).collect()
    }

    pub(crate) fn item_count(&self) -> usize {
        self.items.len()
    }

    fn item(&self, item: &Item) -> String {
        match item {
            Item::Entry(entry) => section(entry, &self.zone),
            Item::BranchStart { title, entries } => format!(
                "<details><summary>Another branch ({entries} entries): {}</summary>\n",
                escape(title)
            ),
            Item::BranchEnd => "</details>\n".to_owned(),
        }
    }
}

pub(crate) fn html_end() -> &'static str {
    "</body>\n</html>\n"
}

/// Sums over all branches.
#[derive(Default)]
struct Totals<'e> {
    models: BTreeSet<&'e str>,
    calls: usize,
    tokens: u64,
    cost: f64,
}

impl<'e> Totals<'e> {
    fn of(entries: &'e [Arc<Entry>]) -> Self {
        let mut totals = Self::default();
        for entry in entries {
            if let Some(Message::Assistant(response)) = entry.body.message()
                && response.is_from_model()
            {
                totals.models.insert(&response.model);
                totals.calls += 1;
                totals.tokens = totals.tokens.saturating_add(response.usage.total_tokens);
                totals.cost += response.usage.cost.total;
            }
        }
        totals
    }
}

/// The path, and after the entry where it begins each other branch, with its own branches in the
/// order of their entries.
fn place_branches(entries: &[Arc<Entry>], path: &[Arc<Entry>]) -> Vec<Item> {
    let on_path: BTreeSet<&EntryId> = path.iter().map(|entry| &entry.base.entry_id).collect();
    // The entry of the path at which the branch of an entry begins, and the branch's first entry.
    let mut origins: BTreeMap<&EntryId, (Option<&EntryId>, &EntryId)> = BTreeMap::new();
    let mut branches: BTreeMap<Option<&EntryId>, Branches> = BTreeMap::new();
    let mut first_seqs: BTreeMap<&EntryId, u64> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| !on_path.contains(&entry.base.entry_id)) {
        let id = &entry.base.entry_id;
        let parent = entry.base.parent_id.as_ref();
        let origin = parent.and_then(|parent| origins.get(parent)).copied();
        let (start, first) = origin.unwrap_or((parent, id));
        origins.insert(id, (start, first));
        let seq = *first_seqs.entry(first).or_insert(entry.base.seq);
        branches.entry(start).or_default().entry(seq).or_default().push(Arc::clone(entry));
    }
    let mut items = Vec::with_capacity(entries.len());
    add_branches(&mut items, branches.remove(&None));
    for entry in path {
        items.push(Item::Entry(Arc::clone(entry)));
        add_branches(&mut items, branches.remove(&Some(&entry.base.entry_id)));
    }
    items
}

/// Branches with the same beginning, by the number of their first entry.
type Branches = BTreeMap<u64, Vec<Arc<Entry>>>;

fn add_branches(items: &mut Vec<Item>, branches: Option<Branches>) {
    for branch in branches.unwrap_or_default().into_values() {
        if branch.iter().all(|entry| is_bookkeeping(&entry.body)) {
            continue;
        }
        let title = branch.iter().find_map(|entry| first_line(entry)).unwrap_or_default();
        items.push(Item::BranchStart { title, entries: branch.len() });
        items.extend(branch.into_iter().map(Item::Entry));
        items.push(Item::BranchEnd);
    }
}

/// Entries beside the path that readers do not need, such as intents of calls.
fn is_bookkeeping(body: &EntryBody) -> bool {
    !matches!(
        body,
        EntryBody::Message(_)
            | EntryBody::CustomMessage(_)
            | EntryBody::Compaction(_)
            | EntryBody::BranchSummary(_)
            | EntryBody::Output(_)
    )
}

/// Text in which no character begins or ends a tag, an attribute or a reference.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Browsers drop or replace these.
            '\0' => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}
