//! Clients that use the session tree during deliveries: they move the leaf, edit earlier prompts,
//! label, insert and fork. Their targets are read past the injected faults.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::clients::sender;
use super::input_clients::has_text;
use super::{TestEnv, idempotency};
use turnwheel_commands::fork::{ForkRequest, fork_conversation};
use turnwheel_commands::insert::insert_prompt;
use turnwheel_commands::label::{LabelRequest, set_label};
use turnwheel_commands::leaf::{LeafRequest, move_leaf};
use turnwheel_commands::prompt::{PromptPosition, PromptRequest, accept_prompt};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::phase::Phase;
use turnwheel_extensions::ForkPosition;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_queries::inbox::{InputState, read_input};
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{DocumentKind, Partition};

/// Attempts of a request that is refused because the conversation is busy.
const ATTEMPTS_MAX: u32 = 4;

#[derive(Clone, Debug)]
enum TreeAction {
    Move(LeafRequest),
    Edit { at: Option<String> },
    Label { entry_id: String },
    Insert,
    Fork(ForkRequest),
}

/// A request of a client, and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct TreeRequest {
    pub key: ConversationKey,
    id: InputId,
    /// Text of the user's message, for a request that adds a prompt.
    text: Option<String>,
    /// Id of the new conversation, for a fork.
    pub fork_id: Option<String>,
    /// Status of the response. `None`: refused, which says nothing about an earlier attempt.
    pub status: Option<u16>,
}

impl TestEnv {
    /// Sends one request during the next deliveries, with the configured chance.
    pub(super) fn next_tree_request(
        &mut self,
    ) -> impl Future<Output = Option<TreeRequest>> + use<> {
        let next = self.choose_tree_action();
        let client = next.as_ref().map(|_| self.new_worker(Arc::new(NoFailPoints)));
        async move {
            let ((key, number, action, after), services) = next.zip(client)?;
            tokio::time::sleep(after).await;
            Some(send(&services, key, number, action).await)
        }
    }

    fn choose_tree_action(&mut self) -> Option<(ConversationKey, usize, TreeAction, Duration)> {
        const CHANGED: &str = "a client used the tree";
        if self.tree_requests.len() >= self.tree_requests_max
            || !self.should_inject(CHANGED, "a client", 50)
        {
            return None;
        }
        let mut rng = fastrand::Rng::with_seed(self.fault_size(CHANGED, "a client", u64::MAX));
        let number = self.tree_requests.len();
        let key = self.conversations[rng.usize(0..self.conversations.len())].clone();
        let entries = self.newest_entries(&key);
        let target = entries.get(rng.usize(0..=entries.len()));
        let id = target.map(|entry| entry.base.entry_id.to_string());
        let after = Duration::from_millis(rng.u64(0..400));
        let action = match (rng.u8(0..10), id) {
            (0..4, entry_id) => TreeAction::Move(LeafRequest {
                label: (rng.bool() && entry_id.is_some()).then(|| format!("label {number}")),
                summarize: rng.bool().then_some(true),
                abort: (rng.u8(0..8) == 0).then_some(true),
                entry_id,
                ..LeafRequest::default()
            }),
            (4..7, at) => TreeAction::Edit { at },
            (7, Some(entry_id)) => TreeAction::Label { entry_id },
            (8, Some(entry_id)) => {
                let is_user = target
                    .is_some_and(|entry| matches!(entry.body.message(), Some(Message::User(_))));
                let position = if is_user { ForkPosition::Before } else { ForkPosition::At };
                TreeAction::Fork(ForkRequest {
                    entry_id,
                    position: Some(position),
                    conversation_id: Some(format!("fork-{number}")),
                })
            }
            _ => TreeAction::Insert,
        };
        Some((key, number, action, after))
    }

    /// The stored entries, past the injected faults.
    fn newest_entries(&self, key: &ConversationKey) -> Vec<Arc<Entry>> {
        let partition = Partition::Conversation(key.clone());
        let stored = self.store.select_newest(&partition, DocumentKind::Entry);
        documents::read_entries(&stored).unwrap()
    }

    pub(super) fn record_tree_request(&mut self, request: Option<TreeRequest>) {
        let Some(request) = request else { return };
        self.run_log.push(format_args!("{request:?}"));
        self.tree_requests.push(request);
    }

    /// Violations concerning the requests of these clients, and the number of prompts that they
    /// added to the conversation.
    pub(crate) async fn find_tree_violations(
        &self,
        services: &Services,
        key: &ConversationKey,
    ) -> (Vec<String>, usize) {
        let (mut violations, mut added) = (Vec::new(), 0);
        let entries = self.entries_of(key).await;
        for request in self.tree_requests.iter().filter(|it| it.key == *key) {
            if request.fork_id.is_some() {
                continue;
            }
            let found = read_input(services, key, request.id.as_str()).await;
            let state = match found {
                Ok((view, _)) => Some(view.state),
                Err(CommandError::NotFound(_)) => None,
                Err(error) => panic!("{error}"),
            };
            let is_applied = state == Some(InputState::Applied);
            let is_kept = is_applied || (state.is_none() && request.status.is_none());
            let times = request
                .text
                .as_ref()
                .map(|text| entries.iter().filter(|entry| has_text(entry, text)).count());
            added += usize::from(is_applied && times.is_some());
            if !is_kept || times.is_some_and(|times| times != usize::from(is_applied)) {
                violations.push(format!("{key}: {request:?} is {state:?}, {times:?} times"));
            }
        }
        (violations, added)
    }

    /// Forks that exist, with the number of their prompts.
    pub(crate) async fn forks(&self) -> Vec<(ConversationKey, usize)> {
        let mut forks = Vec::new();
        for request in &self.tree_requests {
            let Some(id) = &request.fork_id else { continue };
            let key = super::owner().conversation_key(id);
            let exists = self.head_of(&key).await.is_some_and(|head| head.phase != Phase::Deleted);
            assert!(exists || request.status.is_none(), "{request:?} is lost");
            let entries = self.newest_entries(&key);
            let prompts = entries.iter().filter(|it| matches!(it.body, EntryBody::Prompt(_)));
            let prompts = prompts.count();
            if exists {
                forks.push((key, prompts));
            }
        }
        forks
    }
}

async fn send(
    services: &Services,
    key: ConversationKey,
    number: usize,
    action: TreeAction,
) -> TreeRequest {
    let own = idempotency(&format!("tree {number}"));
    let text = match &action {
        TreeAction::Edit { .. } => {
            Some(format!("{} {number}", ["go", "wire", "files"][number % 3]))
        }
        TreeAction::Insert => Some(format!("inserted {number}")),
        TreeAction::Move(_) | TreeAction::Label { .. } | TreeAction::Fork(_) => None,
    };
    let attempt = async || -> Result<CommandResponse, CommandError> {
        let input = text.clone().map(Content::Text);
        match action.clone() {
            TreeAction::Move(request) => move_leaf(services, &key, &request, &own).await,
            TreeAction::Edit { at } => {
                let at = PromptPosition::Entry(at);
                let request = PromptRequest { input, at, ..PromptRequest::default() };
                accept_prompt(services, &key, request, &own, &sender()).await
            }
            TreeAction::Label { entry_id } => {
                let request = LabelRequest { label: format!("label {number}") };
                set_label(services, &key, &entry_id, &request, &own).await
            }
            TreeAction::Insert => {
                let result = json!({"type": "success", "output": {"n": number}});
                let output = json!([
                    {"type": "text", "content": "elsewhere"},
                    {"type": "tool", "function": "pay", "input": {"n": 0}, "result": result},
                ]);
                let request = json!({"input": text, "output": output, "source": "schedule"});
                let request = RawJson::from_value(&request).read().unwrap();
                insert_prompt(services, &key, request, &own).await
            }
            TreeAction::Fork(request) => fork_conversation(services, &key, request, &own).await,
        }
    };
    let mut status = None;
    let mut refusals = 0;
    while refusals < ATTEMPTS_MAX {
        match attempt().await {
            Ok(response) => {
                status = Some(response.status);
                break;
            }
            Err(CommandError::Unavailable { .. }) => {}
            Err(CommandError::Conflict { .. } | CommandError::AlreadyProcessing { .. }) => {
                refusals += 1;
            }
            Err(error) => panic!("{action:?}: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let fork_id = match &action {
        TreeAction::Fork(request) => request.conversation_id.clone(),
        TreeAction::Move(_)
        | TreeAction::Edit { .. }
        | TreeAction::Label { .. }
        | TreeAction::Insert => None,
    };
    let id = own.input_id(&key);
    TreeRequest { key, id, text, fork_id, status }
}
