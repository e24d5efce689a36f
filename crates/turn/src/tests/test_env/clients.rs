//! Clients of the test environment: they send prompts, steers, decisions and patches, and retry
//! until accepted.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{TestEnv, idempotency, owner};
use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_commands::prompt::{
    FirstPromptRequest, Mode, PromptRequest, Sender, WhenBusy, accept_prompt, begin_conversation,
};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::request::RequestKind;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationKey, EffectId, TenantId, UserId};
use turnwheel_record::contract::{CommandError, CommandResponse, Decider};
use turnwheel_record::services::Services;

impl TestEnv {
    /// Sends the prompt until it is accepted.
    pub(crate) async fn send_prompt(&mut self, services: &Services) {
        self.send_prompt_to(services, "c", "go").await;
    }

    pub(crate) async fn send_prompt_to(&mut self, services: &Services, id: &str, text: &str) {
        for _ in 0..100 {
            let request = FirstPromptRequest {
                conversation_id: Some(id.to_owned()),
                settings: Some(self.settings.clone()),
                input: Some(Content::Text(text.to_owned())),
                ..FirstPromptRequest::default()
            };
            let key = idempotency(&format!("{id} {}", key_prefix(text)));
            match Box::pin(begin_conversation(services, &owner(), request, &key, &sender())).await {
                Ok(_) => return,
                Err(error) => self.run_log.push(format!("prompt not accepted: {error}")),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("the prompt was never accepted: {:#?}", self.run_log);
    }

    /// Sends a prompt as from a queue: if the conversation is busy, the prompt waits.
    pub(crate) async fn queue_prompt(
        &self,
        services: &Services,
        key: &ConversationKey,
        text: &str,
    ) -> Result<CommandResponse, CommandError> {
        let request = PromptRequest {
            input: Some(Content::Text(text.to_owned())),
            ..PromptRequest::default()
        };
        let own = idempotency(key_prefix(text));
        Box::pin(accept_prompt(services, key, request, &own, &sender())).await
    }

    /// Steers the running prompt.
    pub(crate) async fn steer(
        &self,
        services: &Services,
        text: &str,
    ) -> Result<CommandResponse, CommandError> {
        let request = PromptRequest {
            input: Some(Content::Text(text.to_owned())),
            mode: Some(Mode::Steer),
            ..PromptRequest::default()
        };
        let own = idempotency(text);
        Box::pin(accept_prompt(services, &Self::key(), request, &own, &sender())).await
    }

    /// Decides all open requests; unknown outcomes according to the actual executions. Returns
    /// false if a decision has to be repeated.
    pub(crate) async fn decide_requests(&mut self) -> bool {
        let mut are_all_decided = true;
        for key in self.conversations.clone() {
            are_all_decided &= self.decide_requests_of(&key).await;
        }
        are_all_decided
    }

    /// Makes the same decision on all open requests.
    pub(crate) async fn decide_all(&mut self, decision: &str) {
        self.decide_all_with(decision, None).await;
    }

    /// Gives the same answer to all open questions.
    pub(crate) async fn answer_all(&mut self, answer: &Value) {
        self.decide_all_with("answer", Some(RawJson::from_value(answer))).await;
    }

    async fn decide_all_with(&mut self, decision: &str, value: Option<RawJson>) {
        let services = self.new_worker(Arc::new(NoFailPoints));
        for key in self.conversations.clone() {
            for request in self.head_of(&key).await.unwrap().requests {
                let (decision, value) = (decision.to_owned(), value.clone());
                let request_body = DecisionRequest { decision, reason: None, value };
                decide(&services, &key, request.id.as_str(), request_body, &owner_decider())
                    .await
                    .unwrap();
            }
        }
    }

    /// Decides the open requests of one conversation.
    pub(crate) async fn decide_conversation(&mut self, id: &str) {
        self.decide_requests_of(&owner().conversation_key(id)).await;
    }

    async fn decide_requests_of(&mut self, key: &ConversationKey) -> bool {
        let Some(head) = self.head_of(key).await else { return false };
        if head.requests.is_empty() {
            return true;
        }
        let mut are_all_decided = true;
        let services = self.new_worker(Arc::new(NoFailPoints));
        for request in &head.requests {
            let decision = if request.kind == RequestKind::Outcome {
                self.has_outcome_request = true;
                let call = request.call.unwrap();
                let effect = EffectId::from_call(
                    &head.conversation_id,
                    &head.incarnation,
                    call.response_seq,
                    call.index,
                );
                let has_run = self.executions.lock().unwrap().contains_key(effect.as_str());
                if has_run { "happened" } else { "did_not_happen" }
            } else if self.is_undecided(request.id.as_str()) {
                continue;
            } else if request.kind == RequestKind::Question {
                "answer"
            } else {
                "approve"
            };
            let value = (decision == "answer").then(|| RawJson::from_value(&true));
            let request_body =
                DecisionRequest { decision: decision.to_owned(), reason: None, value };
            let outcome =
                decide(&services, key, request.id.as_str(), request_body, &owner_decider()).await;
            are_all_decided &= outcome.is_ok();
            self.run_log.push(format!(
                "decided {}: {decision}: {:?}",
                request.id,
                outcome.map(|answer| answer.status)
            ));
        }
        are_all_decided
    }

    /// True if the request is never decided.
    fn is_undecided(&mut self, id: &str) -> bool {
        if let Some(known) = self.undecided_requests.get(id) {
            return *known;
        }
        let percent = self.undecided_percent;
        let is_undecided = match &self.fault_plan {
            Some(fault_plan) => fault_plan.should_inject(
                "a request stayed undecided",
                id,
                f64::from(percent) / 100.0,
            ),
            None => id.bytes().map(u32::from).sum::<u32>() * 37 % 100 < u32::from(percent),
        };
        self.undecided_requests.insert(id.to_owned(), is_undecided);
        is_undecided
    }

    /// Patches a conversation, with the configured chance.
    pub(super) async fn patch_at_random(&mut self) {
        const PATCHED: &str = "a client patched the conversation";
        if !self.should_inject(PATCHED, "a client", self.patch_percent) {
            return;
        }
        let services = self.new_worker(Arc::new(NoFailPoints));
        let count = self.conversations.len() as u64;
        let key = usize::try_from(self.fault_size(PATCHED, "a client", count)).unwrap();
        let key = self.conversations[key].clone();
        let number = self.ids.new_id();
        let patch = json!({"name": format!("name {number}")});
        let idempotency = idempotency(&format!("patch {number}"));
        let patched =
            patch_conversation(&services, &key, patch.as_object().unwrap(), &idempotency, |_| true);
        let status = patched.await.map(|answer| answer.status);
        self.run_log.push(format!("patched {key}: {status:?}"));
    }
}

/// A prefix that distinguishes the prompts of a test.
fn key_prefix(text: &str) -> &str {
    text.get(..40).unwrap_or(text)
}

pub(crate) fn owner_decider() -> Decider {
    Decider::User { tenant: TenantId::new("t"), user: UserId::new("u"), roles: Vec::new() }
}

pub(super) fn sender() -> Sender {
    let traceparent = turnwheel_platform::telemetry::trace::current_traceparent();
    Sender { source: Source::User, traceparent, when_busy: WhenBusy::Queue, clients: None }
}

/// A sender whose prompt is rejected if the conversation is busy.
pub(crate) fn rejecting_sender() -> Sender {
    Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Reject, clients: None }
}
