//! Views of the session tree: its shape, the messages that a fork can start from, statistics of the
//! path, and the last answer.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_conversation::content::{Block, joined_text};
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::{Message, StopReason};
use turnwheel_conversation::path::{path_from_leaf, path_to_leaf};
use turnwheel_conversation::tagged::HasKind as _;
use turnwheel_conversation::tree::{SessionTree, is_user_message, preview, role, user_text};
use turnwheel_conversation::usage::Usage;
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::ids::{EntryId, PromptId};
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_record::services::Services;

/// Bytes of the nodes of one tree.
const TREE_BYTES_MAX: usize = 960 * 1024;

/// The shape of the session tree.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TreeView {
    #[schema(value_type = Option<String>, required = true)]
    pub leaf_id: Option<EntryId>,
    /// Number of entries of all branches.
    pub entries: usize,
    /// Each node before its children, and siblings by time. With `all` in the order of `seq`.
    pub items: Vec<TreeNode>,
    /// True if nodes are left out because the tree is too large: messages of users first, and of
    /// those the oldest first.
    pub is_cut: bool,
    /// With `all`, if another page follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation: Option<String>,
}

/// An entry of the tree.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TreeNode {
    #[schema(value_type = String)]
    pub id: EntryId,
    /// The nearest node above. `null`: none.
    #[schema(value_type = Option<String>, required = true)]
    pub parent_id: Option<EntryId>,
    /// Kind of the entry.
    #[serde(rename = "type")]
    pub kind: String,
    /// Role of its message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The beginning of its text, at most 120 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub timestamp: Timestamp,
    /// True for the entries from the root to the leaf.
    pub on_path: bool,
    /// The nearest nodes below, by time.
    #[schema(value_type = Vec<String>)]
    pub children: Vec<EntryId>,
}

/// A message of a user, from which a fork can start.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForkPoint {
    #[schema(value_type = String)]
    pub entry_id: EntryId,
    pub text: String,
    pub on_path: bool,
}

/// Numbers of the path from the root to the leaf.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStats {
    pub user_messages: usize,
    pub assistant_messages: usize,
    pub tool_calls: usize,
    pub tool_results: usize,
    /// Messages of all roles.
    pub total_messages: usize,
    /// Tokens and cost of the model responses of the path.
    #[schema(value_type = Object)]
    pub usage: Usage,
    /// Entries of all branches.
    pub entries: usize,
    /// Ends of branches.
    pub branches: usize,
}

/// The last text of the model on the path.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastAnswer {
    /// `null`: the model has not answered.
    #[schema(required = true)]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub entry_id: Option<EntryId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub prompt_id: Option<PromptId>,
}

/// Part of the tree that a request selects.
#[derive(Debug, Default)]
pub struct TreeSelection<'q> {
    /// The root of the part. `None`: the whole tree.
    pub from: Option<&'q str>,
    /// Levels of nodes below the first ones.
    pub depth: Option<u64>,
}

/// The skeleton of the tree: its shape, the messages of users, labels and summaries.
///
/// # Errors
/// Returns [`CommandError::EntryNotFound`] for an unknown entry, or `Unavailable` if the store does
/// not respond: repeat the request.
pub async fn read_tree(
    services: &Services,
    head: &Head,
    selection: &TreeSelection<'_>,
) -> Result<TreeView, CommandError> {
    let entries = load::all_entries(services, head).await?;
    let tree = SessionTree::new(&entries);
    let from = match selection.from {
        None => None,
        Some(id) => Some(tree.find(id).ok_or_else(|| CommandError::EntryNotFound(id.to_owned()))?),
    };
    let on_path = path_ids(&entries, head);
    let is_labelled = |entry: &Entry| head.labels.contains_key(entry.base.entry_id.as_str());
    let is_leaf = |entry: &Entry| head.leaf_id.as_ref() == Some(&entry.base.entry_id);
    let (mut shape, mut messages) = (Vec::new(), Vec::new());
    for at in tree.walk(from) {
        let Some(entry) = tree.entry(at) else { continue };
        let is_required = Some(at) == from || is_leaf(entry) || is_labelled(entry);
        if is_required || tree.is_structural(at) {
            shape.push(at);
        } else if is_user_message(entry) {
            messages.push(at);
        }
    }
    // The newest first: they remain if the tree is too large.
    shape.sort_unstable_by(|one, other| other.cmp(one));
    messages.sort_unstable_by(|one, other| other.cmp(one));
    let mut nodes: HashMap<usize, TreeNode> = HashMap::new();
    let mut bytes_left = TREE_BYTES_MAX;
    let mut is_cut = false;
    let mut json = Vec::new();
    for at in shape.into_iter().chain(messages) {
        let Some(entry) = tree.entry(at) else { continue };
        let node = build_node(head, entry, on_path.contains(&entry.base.entry_id));
        // Each id is also that of a parent and of a child.
        let id_bytes = entry.base.entry_id.as_str().len() + "\"\",".len();
        json.clear();
        let _never_fails = serde_json::to_writer(&mut json, &node);
        let bytes = json.len() + 2 * id_bytes;
        let Some(left) = bytes_left.checked_sub(bytes) else {
            is_cut = true;
            break;
        };
        bytes_left = left;
        nodes.insert(at, node);
    }
    let selected: BTreeSet<usize> = nodes.keys().copied().collect();
    let links = tree.with_ancestors(from, &selected);
    for (at, above) in &links {
        let child = tree.entry(*at).map(|entry| entry.base.entry_id.clone());
        if let Some(parent) = above.and_then(|above| nodes.get_mut(&above)) {
            parent.children.extend(child);
        }
    }
    let mut depths: HashMap<usize, u64> = HashMap::new();
    let mut items = Vec::with_capacity(selected.len());
    for (at, above) in links {
        let depth = above.and_then(|above| depths.get(&above)).map_or(0, |depth| depth + 1);
        depths.insert(at, depth);
        if selection.depth.is_some_and(|max| depth > max) {
            continue;
        }
        let Some(mut node) = nodes.remove(&at) else { continue };
        let parent = above.and_then(|above| tree.entry(above));
        node.parent_id = parent.map(|parent| parent.base.entry_id.clone());
        items.push(node);
    }
    let (leaf_id, entries) = (head.leaf_id.clone(), entries.len());
    Ok(TreeView { leaf_id, entries, items, is_cut, continuation: None })
}

/// A page of all entries as nodes, each with its own parent and children. `continuation` is the
/// `seq` of its last entry, if another page follows.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn read_all_nodes(
    services: &Services,
    head: &Head,
    after: u64,
    limit: usize,
) -> Result<TreeView, CommandError> {
    let all = load::all_entries(services, head).await?;
    let (tree, on_path) = (SessionTree::new(&all), path_ids(&all, head));
    let mut rest = all.iter().enumerate().filter(|(_, entry)| entry.base.seq > after);
    let node = |(at, entry): (usize, &Arc<Entry>)| {
        let mut node = build_node(head, entry, on_path.contains(&entry.base.entry_id));
        node.parent_id.clone_from(&entry.base.parent_id);
        let children = tree.children(at).iter().filter_map(|child| tree.entry(*child));
        node.children = children.map(|child| child.base.entry_id.clone()).collect();
        (entry.base.seq, node)
    };
    let (seqs, items): (Vec<u64>, Vec<TreeNode>) = rest.by_ref().take(limit).map(node).unzip();
    let last = seqs.last().map(ToString::to_string);
    let (leaf_id, entries) = (head.leaf_id.clone(), all.len());
    let continuation = last.filter(|_| rest.next().is_some());
    Ok(TreeView { leaf_id, entries, items, is_cut: false, continuation })
}

fn build_node(head: &Head, entry: &Entry, on_path: bool) -> TreeNode {
    TreeNode {
        id: entry.base.entry_id.clone(),
        parent_id: None,
        kind: entry.body.kind().into_owned(),
        role: role(entry),
        preview: preview(entry),
        label: head.labels.get(entry.base.entry_id.as_str()).cloned(),
        timestamp: entry.base.timestamp,
        on_path,
        children: Vec::new(),
    }
}

fn path_ids(entries: &[Arc<Entry>], head: &Head) -> HashSet<EntryId> {
    let path = path_to_leaf(entries, head.leaf_id.as_ref());
    path.iter().map(|entry| entry.base.entry_id.clone()).collect()
}

/// A page of the messages of users of all branches, oldest first. If another page follows, also
/// returns the `seq` of the last one.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn read_fork_points(
    services: &Services,
    head: &Head,
    after: u64,
    limit: usize,
) -> Result<(Vec<ForkPoint>, Option<String>), CommandError> {
    let entries = load::all_entries(services, head).await?;
    let on_path = path_ids(&entries, head);
    let mut rest = entries.iter().filter(|entry| entry.base.seq > after && is_user_message(entry));
    let page: Vec<&Arc<Entry>> = rest.by_ref().take(limit).collect();
    let next = page.last().map(|entry| entry.base.seq.to_string());
    let next = next.filter(|_| rest.next().is_some());
    let point = |entry: &&Arc<Entry>| ForkPoint {
        entry_id: entry.base.entry_id.clone(),
        text: user_text(entry).unwrap_or_default(),
        on_path: on_path.contains(&entry.base.entry_id),
    };
    Ok((page.iter().map(point).collect(), next))
}

/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn read_stats(services: &Services, head: &Head) -> Result<SessionStats, CommandError> {
    let entries = load::all_entries(services, head).await?;
    let tree = SessionTree::new(&entries);
    let mut stats = SessionStats {
        entries: entries.len(),
        branches: tree.walk(None).filter(|at| tree.is_end(*at)).count(),
        ..SessionStats::default()
    };
    for entry in path_to_leaf(&entries, head.leaf_id.as_ref()) {
        let Some(message) = entry.body.message() else { continue };
        stats.total_messages += 1;
        match message {
            Message::User(_) => stats.user_messages += 1,
            Message::ToolResult(_) => stats.tool_results += 1,
            Message::Assistant(response) => {
                stats.assistant_messages += 1;
                stats.tool_calls += response.tool_calls().count();
                stats.usage += *response.usage;
            }
            Message::BashExecution(_)
            | Message::Custom(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_)
            | Message::Other(_) => {}
        }
    }
    Ok(stats)
}

/// The text of the last model response on the path. A response that was aborted before its first
/// text does not count.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn read_last_answer(
    services: &Services,
    head: &Head,
) -> Result<LastAnswer, CommandError> {
    let entries = load::all_entries(services, head).await?;
    let mut path = path_from_leaf(entries.iter(), head.leaf_id.as_ref());
    let answer = path.find_map(|entry| {
        let Some(Message::Assistant(response)) = entry.body.message() else { return None };
        let is_empty = response.stop_reason == StopReason::Aborted && response.content.is_empty();
        (!is_empty).then_some((entry, &response.content))
    });
    let Some((entry, content)) = answer else { return Ok(LastAnswer::default()) };
    let has_text = content.iter().any(|block| matches!(block, Block::Text(_)));
    Ok(LastAnswer {
        text: has_text.then(|| joined_text(content)),
        entry_id: Some(entry.base.entry_id.clone()),
        prompt_id: entry.base.prompt_id.clone(),
    })
}
