//! Random moves, labels, prompts and edits against a model of the source's session manager.

use std::collections::BTreeMap;

use super::super::test_env::rejecting_sender;
use super::*;
use crate::invariants::Violation;
use turnwheel_commands::prompt::{PromptPosition, PromptRequest, accept_prompt};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::event::{Event, EventBody};
use turnwheel_conversation::head::Head;
use turnwheel_platform::ids::EntryId;

/// The source's session: entries with parents, a leaf, and labels.
#[derive(Default)]
struct SourceSession {
    entries: Vec<(Option<usize>, Kind)>,
    leaf: Option<usize>,
    labels: BTreeMap<usize, String>,
    /// True if the last response on this path named its frame. The source has none.
    has_frame: bool,
}

#[derive(Clone, PartialEq)]
enum Kind {
    User(String),
    Assistant(String),
    Summary(String),
    /// Start or end of a prompt, a frame, or a label.
    Silent {
        starts_prompt: bool,
    },
}

impl SourceSession {
    fn append(&mut self, kind: Kind) -> usize {
        self.entries.push((self.leaf, kind));
        self.leaf = Some(self.entries.len() - 1);
        self.entries.len() - 1
    }

    fn set_label(&mut self, target: usize, label: &str) {
        self.append(Kind::Silent { starts_prompt: false });
        self.labels.insert(target, label.to_owned());
    }

    /// A message of a user stands for the position before it.
    fn position(&self, target: Option<usize>) -> Option<usize> {
        let (parent, kind) = &self.entries[target?];
        if !matches!(kind, Kind::User(_)) {
            return target;
        }
        match parent.map(|parent| &self.entries[parent]) {
            Some((before, Kind::Silent { starts_prompt: true })) => *before,
            _ => *parent,
        }
    }

    fn navigate(&mut self, target: Option<usize>, summary: Option<&str>, label: Option<&str>) {
        let position = self.position(target);
        if target == self.leaf || position == self.leaf {
            return;
        }
        self.leaf = position;
        self.has_frame = false;
        let summarised = summary.map(|text| self.append(Kind::Summary(text.to_owned())));
        if let (Some(target), Some(label)) = (summarised.or(target), label) {
            self.set_label(target, label);
        }
    }

    fn prompt_at(&mut self, target: Option<usize>, input: &str, response: &str) {
        let position = self.position(target);
        self.has_frame &= position == self.leaf;
        self.leaf = position;
        self.prompt(input, response);
    }

    fn prompt(&mut self, input: &str, response: &str) {
        self.append(Kind::Silent { starts_prompt: true });
        self.append(Kind::User(input.to_owned()));
        if !std::mem::replace(&mut self.has_frame, true) {
            self.append(Kind::Silent { starts_prompt: false });
        }
        self.append(Kind::Assistant(response.to_owned()));
        self.append(Kind::Silent { starts_prompt: false });
    }

    fn context(&self) -> Vec<String> {
        let path = std::iter::successors(self.leaf, |at| self.entries[*at].0);
        let spoken = path.filter_map(|at| match &self.entries[at].1 {
            Kind::User(text) => Some(format!("user:{text}")),
            Kind::Assistant(text) => Some(format!("assistant:{text}")),
            Kind::Summary(text) => Some(format!("branchSummary:{text}")),
            Kind::Silent { .. } => None,
        });
        let mut context: Vec<String> = spoken.collect();
        context.reverse();
        context
    }
}

/// Index in the model and id of a random entry; sometimes the position before the first.
fn pick(rng: &mut fastrand::Rng, entries: &[Entry]) -> Option<(usize, String)> {
    let at = rng.usize(..=entries.len().max(1));
    entries.get(at).map(|entry| (at, entry.base.entry_id.to_string()))
}

async fn send(services: &Services, input: &str, at: PromptPosition) {
    let request = PromptRequest {
        input: Some(Content::Text(input.to_owned())),
        at,
        ..PromptRequest::default()
    };
    let key = idempotency(&services.ids.new_id());
    accept_prompt(services, &TestEnv::key(), request, &key, &rejecting_sender()).await.unwrap();
}

fn respond(_results: usize, input: &str) -> Vec<serde_json::Value> {
    vec![super::super::test_env::text(&format!("to {input}"))]
}

#[tokio::test(start_paused = true)]
async fn random_changes_of_the_tree_follow_the_source() {
    for seed in 1..=25 {
        let mut env = TestEnv::with_script(seed, respond);
        let services = env.empty_conversation().await;
        let (mut rng, mut session) = (fastrand::Rng::with_seed(seed), SourceSession::default());
        let mut prompts = 0;
        for step in 0..20 {
            let entries = env.entries().await;
            let target = pick(&mut rng, &entries);
            let (index, id) = target.unzip();
            let text = format!("{step}");
            match rng.u8(..6) {
                0 => {
                    append(&env, &services, "assistant", &text).await;
                    session.append(Kind::Assistant(text));
                }
                1 => {
                    let has_leaf = session.leaf.is_some();
                    let summary = (rng.bool() && has_leaf).then_some(text.as_str());
                    move_to(&services, id.as_deref(), summary).await.unwrap();
                    session.navigate(index, summary, None);
                }
                2 => {
                    if let (Some(index), Some(id)) = (index, &id)
                        && session.labels.get(&index) != Some(&text)
                    {
                        label(&services, id, &text).await.unwrap();
                        session.set_label(index, &text);
                    }
                }
                3 => {
                    send(&services, &text, PromptPosition::Leaf).await;
                    session.prompt(&text, &format!("to {text}"));
                    prompts += 1;
                }
                _ => {
                    send(&services, &text, PromptPosition::Entry(id)).await;
                    session.prompt_at(index, &text, &format!("to {text}"));
                    prompts += 1;
                }
            }
            if prompts > 0 {
                env.run_until_idle().await;
            }
            let head = env.head().await.unwrap();
            let entries = env.entries().await;
            let leaf = session.leaf.map(|at| entries[at].base.entry_id.clone());
            assert_eq!(env.context().await, session.context(), "seed {seed}, step {step}");
            assert_eq!((head.leaf_id, entries.len()), (leaf, session.entries.len()));
            let labels = session.labels.iter();
            let labels: BTreeMap<String, String> = labels
                .map(|(at, label)| (entries[*at].base.entry_id.to_string(), label.clone()))
                .collect();
            assert_eq!(head.labels, labels, "seed {seed}, step {step}");
        }
        let (head, entries, events) =
            (env.head().await.unwrap(), env.entries().await, env.events().await);
        assert_eq!(find_violations((&head, &entries, &events), prompts), [], "seed {seed}");
        assert_altered_records_are_noticed((&head, &entries, &events), prompts);
    }
}

type Record<'a> = (&'a Head, &'a [Entry], &'a [Event]);

fn find_violations((head, entries, events): Record<'_>, accepted: usize) -> Vec<Violation> {
    invariants::find_violations(&IdleConversation {
        head,
        entries,
        events,
        inbox: (0, 0),
        accepted,
        sent_effects: &BTreeMap::new(),
        is_write: &|_| false,
    })
}

/// The checks notice a lost event, a move without an event, and a lost move.
fn assert_altered_records_are_noticed((head, entries, events): Record<'_>, prompts: usize) {
    let is_noticed = |record: Record<'_>| {
        let found = find_violations(record, prompts);
        found.iter().any(|violation| violation.description.contains("the leaf moved"))
    };
    let is_move = |event: &Event| matches!(event.body, EventBody::SessionTree(_));
    for index in (0..events.len()).filter(|index| is_move(&events[*index])) {
        let mut fewer = events.to_vec();
        fewer.remove(index);
        assert!(is_noticed((head, entries, &fewer)), "event {index} is missing");
        let mut changed = events.to_vec();
        if let EventBody::SessionTree(moved) = &mut changed[index].body {
            moved.old_leaf_id = Some(EntryId::new("ffffffff"));
        }
        assert!(is_noticed((head, entries, &changed)), "event {index} has another origin");
    }
    let elsewhere = Head { leaf_id: Some(EntryId::new("ffffffff")), ..head.clone() };
    assert!(is_noticed((&elsewhere, entries, events)));
    if let [first, _, rest @ ..] = entries
        && let Some(last) = rest.last()
    {
        let mut moved = entries.to_vec();
        let parent = Some(first.base.entry_id.clone());
        // The event of a move with a summary does not name the entry above the summary.
        let is_summary = matches!(last.body, EntryBody::BranchSummary(_));
        if !is_summary && last.base.parent_id != parent {
            moved.last_mut().unwrap().base.parent_id = parent;
            assert!(is_noticed((head, &moved, events)), "an entry has another parent");
        }
    }
}
