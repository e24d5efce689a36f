//! Simulated clients that steer, follow up, edit and clear inputs during deliveries, and retry
//! until they get a response.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::content::Content;
use crate::agent::entry::Entry;
use crate::agent::inbox::WhenIdle;
use crate::agent::message::Message;
use crate::ids::{ConversationKey, InputId, PromptId};
use crate::turn::admission::Refusal;
use crate::turn::admission::prompt::{Accepted, Mode, PromptRequest, accept_prompt};
use crate::turn::admission::waiting::{InputChange, clear, edit};
use crate::turn::views::inbox::{InputState, InputView, input};
use crate::turn::{NoProbe, World};

use super::clients::sender;
use super::{Bench, idempotency};

/// An input sent by a client, and its changes while it was queued.
#[derive(Clone, Debug)]
pub(in crate::turn::tests) struct Said {
    key: ConversationKey,
    id: InputId,
    /// Text after the last edit.
    text: String,
    is_held: bool,
    is_cleared: bool,
}

/// The next action of a client.
#[derive(Debug)]
enum Act {
    Say { key: ConversationKey, number: usize, mode: Mode, when_idle: WhenIdle },
    Edit { of: usize, said: Said, number: u32 },
    Clear { of: usize, said: Said },
}

/// The state of the input after the action, with its number; `None` if nothing changed.
pub(super) type Done = Option<(usize, Said)>;

/// Repeats a request with the same key until the response is final.
async fn surely<T>(attempt: impl AsyncFn() -> Result<T, Refusal>) -> Result<T, Refusal> {
    loop {
        match attempt().await {
            Err(Refusal::Unavailable { .. } | Refusal::Conflict { retry_after: Some(_), .. }) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            done => return done,
        }
    }
}

async fn perform(world: &World, act: Act) -> Done {
    match act {
        Act::Say { key, number, mode, when_idle } => {
            let text = format!("said {number}");
            let request = PromptRequest {
                input: Some(Content::Text(text.clone())),
                mode: Some(mode),
                when_idle: Some(when_idle),
                ..PromptRequest::default()
            };
            let own = idempotency(&text);
            let say = async || accept_prompt(world, &key, request.clone(), &own, &sender()).await;
            let answer = surely(say).await.unwrap();
            let accepted: Accepted = answer.body.unwrap().read().unwrap();
            let is_held = when_idle == WhenIdle::Hold;
            let said = Said { key, id: accepted.input_id, text, is_held, is_cleared: false };
            Some((number, said))
        }
        Act::Edit { of, said, number } => {
            let text = format!("edited {number}");
            let change =
                InputChange { input: Some(Content::Text(text.clone())), ..InputChange::default() };
            let own = idempotency(&text);
            let (key, id) = (said.key.clone(), said.id.clone());
            let edit =
                async || edit(world, &key, id.as_str(), &change, (&own, |_: &str| true)).await;
            match surely(edit).await {
                Ok(_) => Some((of, Said { text, ..said })),
                Err(Refusal::Landed { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        }
        Act::Clear { of, said } => {
            let clear = async || clear(world, &said.key, said.id.as_str()).await;
            match surely(clear).await {
                Ok(()) => Some((of, Said { is_cleared: true, ..said })),
                Err(Refusal::Landed { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Bench {
    /// Performs one action of a client during the next deliveries.
    pub(super) fn next_chat(&mut self) -> impl Future<Output = Done> + use<> {
        let next = self.next_act();
        let client = next.as_ref().map(|_| self.worker(Arc::new(NoProbe)));
        async move {
            let ((act, after), world) = next.zip(client)?;
            tokio::time::sleep(after).await;
            perform(&world, act).await
        }
    }

    fn next_act(&mut self) -> Option<(Act, Duration)> {
        const SPOKE: &str = "somebody spoke up";
        if self.chats_max == 0 || !self.happens(SPOKE, "a client", self.chats_in_a_hundred) {
            return None;
        }
        let mut dice = fastrand::Rng::with_seed(self.size(SPOKE, "a client", u64::MAX));
        let after = Duration::from_millis(dice.u64(0..400));
        let number = self.said.len();
        let of = dice.usize(0..number.max(1));
        let known = self.said.get(of).cloned().filter(|said| !said.is_cleared);
        let act = match (dice.u8(0..4), known) {
            (2, Some(said)) => Act::Edit { of, said, number: dice.u32(..) },
            (3, Some(said)) => Act::Clear { of, said },
            _ if number < self.chats_max => Act::Say {
                key: self.conversations[dice.usize(0..self.conversations.len())].clone(),
                number,
                mode: if dice.bool() { Mode::Steer } else { Mode::FollowUp },
                when_idle: if dice.u8(0..4) == 0 { WhenIdle::Hold } else { WhenIdle::Start },
            },
            _ => return None,
        };
        Some((act, after))
    }

    pub(super) fn note_act(&mut self, done: Done) {
        let Some((number, said)) = done else { return };
        self.story.push(format_args!("{said:?}"));
        if number < self.said.len() {
            self.said[number] = said;
        } else {
            self.said.push(said);
        }
    }

    /// Returns violations concerning the clients' inputs of a conversation, the number of prompts
    /// they started, and the number of inputs still held.
    pub(in crate::turn::tests) async fn chat_faults(
        &self,
        world: &World,
        key: &ConversationKey,
    ) -> (Vec<String>, usize, usize) {
        let (mut faults, mut begun, mut held) = (Vec::new(), 0, 0);
        let entries = self.entries_of(key).await;
        for said in self.said.iter().filter(|said| said.key == *key) {
            let (view, _) = input(world, key, said.id.as_str()).await.unwrap();
            let times = entries.iter().filter(|entry| says(entry, &said.text)).count();
            begun += usize::from(view.prompt_id == Some(PromptId::of(&said.id)));
            held += usize::from(view.state == InputState::Queued);
            if !is_right(said, &view, times) {
                faults.push(format!("{key}: {said:?} is in the record {times} times: {view:?}"));
            }
        }
        (faults, begun, held)
    }
}

/// True if the input is neither lost nor duplicated, and a confirmed edit or removal is in effect.
fn is_right(said: &Said, view: &InputView, times: usize) -> bool {
    match view.state {
        InputState::Landed => !said.is_cleared && times == 1 && view.prompt_id.is_some(),
        InputState::Cleared => said.is_cleared && times == 0,
        InputState::Queued => said.is_held && times == 0,
        InputState::Ignored => false,
    }
}

fn says(entry: &Entry, text: &str) -> bool {
    match entry.body.message() {
        Some(Message::User(user)) => user.content == Content::Text(text.to_owned()),
        _ => false,
    }
}
