//! Tests of the session tree.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn entry(seq: usize, parent: Option<&str>, body: &Value) -> Arc<Entry> {
    let mut entry = json!({
        "entryId": format!("i{seq}"), "parentId": parent, "seq": seq,
        "timestamp": format!("2026-01-01T00:00:{:02}.000Z", seq % 60),
    });
    entry.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    Arc::new(serde_json::from_value(entry).unwrap())
}

fn user(seq: usize, parent: Option<&str>, text: &str) -> Arc<Entry> {
    let message = json!({"role": "user", "content": text, "timestamp": 1});
    entry(seq, parent, &json!({"type": "message", "message": message}))
}

/// The tree of case S05: each entry with its children.
#[test]
fn children_are_ordered_and_orphans_are_roots() {
    let entries = [
        user(1, None, "1"),
        user(2, Some("i1"), "2"),
        user(3, Some("i2"), "3"),
        user(4, Some("i2"), "4"),
        user(5, Some("gone"), "5"),
    ];
    let tree = SessionTree::new(&entries);
    let order: Vec<usize> = tree.walk(None).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
    assert_eq!(tree.walk(Some(1)).collect::<Vec<_>>(), [1, 2, 3]);
    let structural: Vec<bool> = (0..5).map(|at| tree.is_structural(at)).collect();
    assert_eq!(structural, [true, true, true, true, true]);
    assert_eq!(tree.find("i4"), Some(3));
    let selected = BTreeSet::from([0, 2, 3]);
    let links = tree.with_ancestors(None, &selected);
    assert_eq!(links, [(0, None), (2, Some(0)), (3, Some(0))]);
    assert_eq!(tree.with_ancestors(Some(1), &selected), [(2, None), (3, None)]);
}

#[test]
fn preview_is_one_short_line() {
    let text = format!("  a\n\tb\u{7}c {}", "é".repeat(200));
    let found = preview(&user(1, None, &text)).unwrap();
    assert!(found.starts_with("a b c é"), "{found}");
    assert_eq!(found.chars().count(), 120);
    assert_eq!(preview(&user(1, None, " \n")), None);
}

proptest! {
    /// Every entry is reached once, whatever the parents are.
    #[test]
    fn walk_reaches_every_entry_once(parents in prop::collection::vec(0_usize..40, 1..40)) {
        let entries: Vec<Arc<Entry>> = parents.iter().enumerate().map(|(at, parent)| {
            let parent = format!("i{parent}");
            user(at + 1, Some(&parent), "x")
        }).collect();
        let tree = SessionTree::new(&entries);
        let mut reached: Vec<usize> = tree.walk(None).collect();
        reached.sort_unstable();
        prop_assert_eq!(reached, (0..entries.len()).collect::<Vec<_>>());
    }
}
