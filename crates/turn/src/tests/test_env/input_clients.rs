//! Simulated clients that steer, follow up, edit and clear inputs during deliveries, and retry
//! until they get a response.

use std::sync::Arc;
use std::time::Duration;

use super::clients::sender;
use super::{TestEnv, idempotency};
use turnwheel_commands::inbox_clear::clear_input;
use turnwheel_commands::inbox_edit::{InputChange, InputEdit, edit_input};
use turnwheel_commands::prompt::{Mode, PromptAccepted, PromptRequest, accept_prompt};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::inbox::WhenIdle;
use turnwheel_conversation::message::Message;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationKey, InputId, PromptId};
use turnwheel_queries::inbox::{InputState, InputView, read_input};
use turnwheel_record::contract::CommandError;
use turnwheel_record::services::Services;

/// An input sent by a client, and its changes while it was queued.
#[derive(Clone, Debug)]
pub(crate) struct ClientInput {
    key: ConversationKey,
    id: InputId,
    /// Text after the last edit.
    text: String,
    is_held: bool,
    is_cleared: bool,
}

/// The next action of a client.
#[derive(Debug)]
enum ClientAction {
    Send { key: ConversationKey, number: usize, mode: Mode, when_idle: WhenIdle },
    Edit { index: usize, input: ClientInput, number: u32 },
    Clear { index: usize, input: ClientInput },
}

/// The state of the input after the action, with its number; `None` if nothing changed.
pub(super) type ActionOutcome = Option<(usize, ClientInput)>;

/// Repeats a request with the same key until the response is final.
async fn retry_until_final<T>(
    attempt: impl AsyncFn() -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    loop {
        match attempt().await {
            Err(
                CommandError::Unavailable { .. }
                | CommandError::Conflict { retry_after: Some(_), .. },
            ) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            done => return done,
        }
    }
}

async fn perform_action(services: &Services, action: ClientAction) -> ActionOutcome {
    match action {
        ClientAction::Send { key, number, mode, when_idle } => {
            let text = format!("said {number}");
            let request = PromptRequest {
                input: Some(Content::Text(text.clone())),
                mode: Some(mode),
                when_idle: Some(when_idle),
                ..PromptRequest::default()
            };
            let own = idempotency(&text);
            let send =
                async || accept_prompt(services, &key, request.clone(), &own, &sender()).await;
            let answer = retry_until_final(send).await.unwrap();
            let accepted: PromptAccepted = answer.body.unwrap().read().unwrap();
            let is_held = when_idle == WhenIdle::Hold;
            let input =
                ClientInput { key, id: accepted.input_id, text, is_held, is_cleared: false };
            Some((number, input))
        }
        ClientAction::Edit { index, input, number } => {
            let text = format!("edited {number}");
            let change =
                InputChange { input: Some(Content::Text(text.clone())), ..InputChange::default() };
            let own = idempotency(&text);
            let (key, id) = (input.key.clone(), input.id.clone());
            let edit = async || {
                let edit = InputEdit { id: id.as_str(), change: &change };
                edit_input(services, &key, edit, &own, |_: &str| true).await
            };
            match retry_until_final(edit).await {
                Ok(_) => Some((index, ClientInput { text, ..input })),
                // An input that does not exist is found at the end.
                Err(CommandError::AlreadyApplied { .. } | CommandError::NotFound(_)) => None,
                Err(error) => panic!("{error}"),
            }
        }
        ClientAction::Clear { index, input } => {
            let clear = async || clear_input(services, &input.key, input.id.as_str()).await;
            match retry_until_final(clear).await {
                Ok(()) => Some((index, ClientInput { is_cleared: true, ..input })),
                Err(CommandError::AlreadyApplied { .. } | CommandError::NotFound(_)) => None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl TestEnv {
    /// Performs one action of a client during the next deliveries.
    pub(super) fn next_client_action(&mut self) -> impl Future<Output = ActionOutcome> + use<> {
        let next = self.choose_action();
        let client = next.as_ref().map(|_| self.new_worker(Arc::new(NoFailPoints)));
        async move {
            let ((action, after), services) = next.zip(client)?;
            tokio::time::sleep(after).await;
            perform_action(&services, action).await
        }
    }

    fn choose_action(&mut self) -> Option<(ClientAction, Duration)> {
        const SPOKE: &str = "a client sent an input";
        if self.client_inputs_max == 0
            || !self.should_inject(SPOKE, "a client", self.client_input_percent)
        {
            return None;
        }
        let mut rng = fastrand::Rng::with_seed(self.fault_size(SPOKE, "a client", u64::MAX));
        let after = Duration::from_millis(rng.u64(0..400));
        let number = self.client_inputs.len();
        let index = rng.usize(0..number.max(1));
        let known = self.client_inputs.get(index).cloned().filter(|input| !input.is_cleared);
        let action = match (rng.u8(0..4), known) {
            (2, Some(input)) => ClientAction::Edit { index, input, number: rng.u32(..) },
            (3, Some(input)) => ClientAction::Clear { index, input },
            _ if number < self.client_inputs_max => ClientAction::Send {
                key: self.conversations[rng.usize(0..self.conversations.len())].clone(),
                number,
                mode: if rng.bool() { Mode::Steer } else { Mode::FollowUp },
                when_idle: if rng.u8(0..4) == 0 { WhenIdle::Hold } else { WhenIdle::Start },
            },
            _ => return None,
        };
        Some((action, after))
    }

    pub(super) fn record_action(&mut self, outcome: ActionOutcome) {
        let Some((number, input)) = outcome else { return };
        self.run_log.push(format_args!("{input:?}"));
        if number < self.client_inputs.len() {
            self.client_inputs[number] = input;
        } else {
            self.client_inputs.push(input);
        }
    }

    /// Returns violations concerning the clients' inputs of a conversation, the number of prompts
    /// they started, and the number of inputs still held.
    pub(crate) async fn find_input_violations(
        &self,
        services: &Services,
        key: &ConversationKey,
    ) -> (Vec<String>, usize, usize) {
        let (mut violations, mut started, mut held) = (Vec::new(), 0, 0);
        let entries = self.entries_of(key).await;
        for sent in self.client_inputs.iter().filter(|sent| sent.key == *key) {
            let (view, _) = match read_input(services, key, sent.id.as_str()).await {
                Ok(found) => found,
                Err(error) => {
                    violations.push(format!("{key}: invariant 1: {sent:?}: {error}"));
                    continue;
                }
            };
            let times = entries.iter().filter(|entry| has_text(entry, &sent.text)).count();
            started += usize::from(view.prompt_id == Some(PromptId::from_input(&sent.id)));
            held += usize::from(view.state == InputState::Queued);
            if !is_consistent(sent, &view, times) {
                violations
                    .push(format!("{key}: {sent:?} is in the record {times} times: {view:?}"));
            }
        }
        (violations, started, held)
    }
}

/// True if the input is neither lost nor duplicated, and a confirmed edit or removal is in effect.
fn is_consistent(input: &ClientInput, view: &InputView, times: usize) -> bool {
    match view.state {
        InputState::Applied => !input.is_cleared && times == 1 && view.prompt_id.is_some(),
        InputState::Cleared => input.is_cleared && times == 0,
        InputState::Queued => input.is_held && times == 0,
        InputState::Ignored => false,
    }
}

pub(super) fn has_text(entry: &Entry, text: &str) -> bool {
    match entry.body.message() {
        Some(Message::User(user)) => user.content == Content::Text(text.to_owned()),
        _ => false,
    }
}
