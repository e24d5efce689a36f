//! Clients of the test environment: they send prompts, steers, decisions and patches, and retry
//! until accepted.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{Bench, idempotency, owner};
use crate::agent::content::Content;
use crate::agent::entry::Source;
use crate::agent::request::RequestKind;
use crate::ids::{ConversationKey, EffectId, TenantId, UserId};
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::patch::patch_conversation;
use crate::turn::admission::prompt::{
    FirstPromptRequest, Mode, PromptRequest, Sender, WhenBusy, accept_prompt, begin_conversation,
};
use crate::turn::admission::{Answer, Refusal};
use crate::turn::{NoProbe, World};

impl Bench {
    /// Sends the prompt until it is accepted.
    pub(in crate::turn::tests) async fn ask(&mut self, world: &World) {
        self.ask_in(world, "c", "go").await;
    }

    pub(in crate::turn::tests) async fn ask_in(&mut self, world: &World, id: &str, said: &str) {
        for _ in 0..100 {
            let request = FirstPromptRequest {
                conversation_id: Some(id.to_owned()),
                settings: Some(self.settings.clone()),
                input: Some(Content::Text(said.to_owned())),
                ..FirstPromptRequest::default()
            };
            let key = idempotency(&format!("{id} {}", beginning(said)));
            match begin_conversation(world, &owner(), request, &key, &sender()).await {
                Ok(_) => return,
                Err(error) => self.story.push(format!("prompt not accepted: {error}")),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("the prompt was never accepted: {:#?}", self.story);
    }

    /// Sends a prompt as from a queue: if the conversation is busy, the prompt waits.
    pub(in crate::turn::tests) async fn queue_up(
        &self,
        world: &World,
        key: &ConversationKey,
        said: &str,
    ) -> Result<Answer, Refusal> {
        let request = PromptRequest {
            input: Some(Content::Text(said.to_owned())),
            ..PromptRequest::default()
        };
        accept_prompt(world, key, request, &idempotency(beginning(said)), &sender()).await
    }

    /// Steers the running prompt.
    pub(in crate::turn::tests) async fn steer(
        &self,
        world: &World,
        said: &str,
    ) -> Result<Answer, Refusal> {
        let request = PromptRequest {
            input: Some(Content::Text(said.to_owned())),
            mode: Some(Mode::Steer),
            ..PromptRequest::default()
        };
        accept_prompt(world, &Self::key(), request, &idempotency(said), &sender()).await
    }

    /// Decides all open requests; unknown outcomes according to the actual executions. Returns
    /// false if a decision has to be repeated.
    pub(in crate::turn::tests) async fn decide(&mut self) -> bool {
        let mut are_all_decided = true;
        for key in self.conversations.clone() {
            are_all_decided &= self.decide_in(&key).await;
        }
        are_all_decided
    }

    /// Makes the same decision on all open requests.
    pub(in crate::turn::tests) async fn decide_all(&mut self, decision: &str) {
        let world = self.worker(Arc::new(NoProbe));
        for key in self.conversations.clone() {
            for request in self.head_of(&key).await.unwrap().requests {
                let said = Said { decision: decision.to_owned(), reason: None, value: None };
                decide(&world, &key, request.id.as_str(), said, &person()).await.unwrap();
            }
        }
    }

    /// Decides the open requests of one conversation.
    pub(in crate::turn::tests) async fn decide_one(&mut self, id: &str) {
        self.decide_in(&owner().key(id)).await;
    }

    async fn decide_in(&mut self, key: &ConversationKey) -> bool {
        let Some(head) = self.head_of(key).await else { return false };
        if head.requests.is_empty() {
            return true;
        }
        let mut are_all_decided = true;
        let world = self.worker(Arc::new(NoProbe));
        for request in &head.requests {
            let decision = if request.kind == RequestKind::Outcome {
                self.was_asked_for_outcome = true;
                let call = request.call.unwrap();
                let effect = EffectId::of_call(
                    &head.conversation_id,
                    &head.incarnation,
                    call.answer,
                    call.index,
                );
                let happened = self.done.lock().unwrap().contains_key(effect.as_str());
                if happened { "happened" } else { "did_not_happen" }
            } else if self.is_ignored(request.id.as_str()) {
                continue;
            } else {
                "approve"
            };
            let said = Said { decision: decision.to_owned(), reason: None, value: None };
            let outcome = decide(&world, key, request.id.as_str(), said, &person()).await;
            are_all_decided &= outcome.is_ok();
            self.story.push(format!(
                "decided {}: {decision}: {:?}",
                request.id,
                outcome.map(|answer| answer.status)
            ));
        }
        are_all_decided
    }

    /// True if the request is never decided.
    fn is_ignored(&mut self, id: &str) -> bool {
        if let Some(known) = self.ignored.get(id) {
            return *known;
        }
        let in_a_hundred = self.ignored_in_a_hundred;
        let is_ignored = match &self.fate {
            Some(fate) => fate.says("nobody ever answered", id, f64::from(in_a_hundred) / 100.0),
            None => id.bytes().map(u32::from).sum::<u32>() * 37 % 100 < u32::from(in_a_hundred),
        };
        self.ignored.insert(id.to_owned(), is_ignored);
        is_ignored
    }

    /// Patches a conversation, with the configured chance.
    pub(super) async fn patch(&mut self) {
        const PATCHED: &str = "somebody changed the conversation";
        if !self.happens(PATCHED, "a client", self.patched_in_a_hundred) {
            return;
        }
        let world = self.worker(Arc::new(NoProbe));
        let count = self.conversations.len() as u64;
        let key = usize::try_from(self.size(PATCHED, "a client", count)).unwrap();
        let key = self.conversations[key].clone();
        let number = self.ids.fresh();
        let patch = json!({"name": format!("name {number}")});
        let idempotency = idempotency(&format!("patch {number}"));
        let patched =
            patch_conversation(&world, &key, patch.as_object().unwrap(), &idempotency, |_| true);
        let status = patched.await.map(|answer| answer.status);
        self.story.push(format!("patched {key}: {status:?}"));
    }
}

/// A prefix that distinguishes the prompts of a test.
fn beginning(said: &str) -> &str {
    said.get(..40).unwrap_or(said)
}

fn person() -> Decider {
    Decider::Person { tenant: TenantId::new("t"), user: UserId::new("u"), roles: Vec::new() }
}

pub(super) fn sender() -> Sender {
    let traceparent = crate::telemetry::trace::traceparent();
    Sender { source: Source::User, traceparent, when_busy: WhenBusy::WaitItsTurn }
}
