//! Performing a model call: what is sent, what is heard meanwhile, and the commit of the answer.

use std::borrow::Cow;

use crate::agent::event::AnswerEvent;
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::path::path;
use crate::agent::phase::Phase;
use crate::agent::projection;
use crate::agent::raw::Extra;
use crate::agent::settings::Settings;
use crate::agent::step::{Answered, Input, Setback};
use crate::agent::usage::Usage;
use crate::agents::Agent;
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, EntryId, PromptId};
use crate::live::{Live, LiveAnswer, LiveEvent};
use crate::model::{Answer, Failure, Listener, ModelRecord, ModelRequest, Reply, ToolOffer};
use crate::turn::delivery::TurnError;
use crate::turn::faults::{self, NO_MODEL};
use crate::turn::hold::Hold;
use crate::turn::spans::Asking;

/// Tells readers of this instance what the answer is made of.
struct Broadcast<'a> {
    live: &'a dyn Live,
    key: &'a ConversationKey,
    message_id: EntryId,
}

impl Listener for Broadcast<'_> {
    fn hear(&self, event: AnswerEvent) {
        self.live
            .publish(self.key, LiveEvent::Delta { message_id: self.message_id.clone(), event });
    }
}

impl Hold<'_> {
    /// Asks the model and commits its answer, with the intent of the first call.
    pub(super) async fn answer(&mut self) -> Result<(), TurnError> {
        let started_at = self.world.clock.now();
        self.world.probe.reached("model.before").await;
        let (answer, revision) = self.ask_model().await?;
        self.world.probe.reached("model.after").await;
        log_answer(&answer, &self.key);
        let fault = faults::of_answer(&answer);
        let (asked, attempt) = (self.prompt_id(), self.attempt());
        self.answers_taken += 1;
        let setback = self.setback(answer.failure.as_ref());
        let answered = Answered { message: answer.message, revision, started_at, setback };
        self.commit_done("answer", vec![Input::Answered(Box::new(answered))]).await?;
        if self.attempt() > attempt {
            if let Some(metrics) = self.world.telemetry.metrics() {
                metrics.retry("model");
            }
        } else if self.prompt_id() != asked {
            self.fault = fault;
        }
        Ok(())
    }

    async fn ask_model(&mut self) -> Result<(Answer, String), TurnError> {
        let world = self.world;
        let agent = match world.agents.find(Some(&self.head.agent)) {
            Ok(agent) => std::sync::Arc::clone(agent),
            Err(reason) => return Ok((failed(NO_MODEL, reason.to_string()), String::new())),
        };
        let settings = self.settings();
        let run = self.head.prompt.clone();
        let model =
            run.as_ref().and_then(|run| run.model.clone()).or_else(|| settings.model.clone());
        let record = match world.model.record(model.as_deref().unwrap_or("normal")) {
            Ok(record) => record,
            Err(reason) => return Ok((failed(NO_MODEL, reason), agent.revision.clone())),
        };
        let entries = self.entries().await?;
        let path = path(&entries, self.head.leaf_id.as_ref());
        let mut messages = projection::messages(&path);
        for extension in &world.extensions {
            messages = extension.transform_context(messages).await;
        }
        let messages = projection::convert(messages);
        let message_id = EntryId::of_answer(&self.head.incarnation, self.head.answers + 1);
        let begins_turn = run.as_ref().is_some_and(|run| !run.is_turn_open);
        let live_answer = LiveAnswer {
            epoch: self.epoch,
            message_id: message_id.clone(),
            prompt_id: run.as_ref().map_or_else(|| PromptId::new(""), |run| run.id.clone()),
            turn: self.head.turn + u64::from(begins_turn),
            begins_turn,
            begins_agent: run.as_ref().is_some_and(|run| run.is_between_tries),
        };
        world.live.publish(&self.key, LiveEvent::AnswerStarted(live_answer));
        let key = self.key.clone();
        let listener = Broadcast { live: &*world.live, key: &key, message_id: message_id.clone() };
        let traceparent = run.and_then(|run| run.traceparent);
        let asking = Asking::begin(self, &record, self.attempt());
        let traceparent = asking.span.traceparent().or(traceparent);
        let session = format!("{}-{}", self.key.conversation_id, self.head.incarnation);
        let tools = offers(&agent, &settings);
        let messages: Vec<&Message> = messages.iter().map(Cow::as_ref).collect();
        let request = request_of(&record, &agent, &settings, &tools, &messages);
        let request =
            ModelRequest { session_id: &session, traceparent: traceparent.as_deref(), ..request };
        asking.ask(&request);
        let answer = asking.span.run(Box::pin(self.listen(&record, request, &listener))).await;
        asking.end(answer.as_ref());
        if answer.is_err() {
            world.live.publish(&key, LiveEvent::Reset { message_id });
        }
        Ok((answer?, agent.revision.clone()))
    }

    /// What the core is told of a failure, with the chance that it has none of by itself.
    fn setback(&self, failure: Option<&Failure>) -> Setback {
        match failure {
            Some(Failure::Retryable { after }) => {
                Setback::Passing { after: *after, chance: self.world.ids.chance() }
            }
            Some(Failure::Overflow) => Setback::Overflow,
            Some(Failure::Final) | None => Setback::Final,
        }
    }

    /// Which try of the same answer this is.
    fn attempt(&self) -> u32 {
        match self.head.phase {
            Phase::Model { attempt, .. } => attempt,
            Phase::Idle | Phase::Calls { .. } | Phase::Summary { .. } | Phase::Deleted => 1,
        }
    }

    /// Waits for the answer, renewing the claim; a turn that would outlast the host's patience fails instead.
    async fn listen(
        &mut self,
        record: &ModelRecord,
        request: ModelRequest<'_>,
        listener: &Broadcast<'_>,
    ) -> Result<Answer, TurnError> {
        let world = self.world;
        let left = self.turn_ends.saturating_sub(world.clock.monotonic());
        let mut answering = std::pin::pin!(world.model.answer(request, listener));
        let mut over = std::pin::pin!(tokio::time::sleep(left));
        tokio::select! {
            biased;
            answer = &mut answering => Ok(answer),
            () = &mut over => {
                let text = format!("The model did not finish within {} s.", left.as_secs());
                let reply = Reply { error: Some("timeout".to_owned()), ..Reply::default() };
                Ok(Answer { reply, ..failed(&record.id, text) })
            }
            error = self.keep() => Err(error),
        }
    }
}

fn request_of<'a>(
    record: &'a ModelRecord,
    agent: &'a Agent,
    settings: &Settings,
    tools: &'a [ToolOffer],
    messages: &'a [&'a Message],
) -> ModelRequest<'a> {
    ModelRequest {
        model: record,
        system: Some(agent.instructions.as_str()).filter(|text| !text.is_empty()),
        messages,
        tools,
        thinking: settings.thinking_level.unwrap_or_default(),
        temperature: settings.temperature,
        max_output_tokens: settings.max_output_tokens,
        response_schema: agent.response_schema.as_ref(),
        session_id: "",
        traceparent: None,
    }
}

/// The tools that are offered: the agent's, less those that the settings leave out. Unknown names are passed over.
fn offers(agent: &Agent, settings: &Settings) -> Vec<ToolOffer> {
    let is_active = |name: &str| {
        settings.active_tools.as_ref().is_none_or(|active| active.iter().any(|tool| tool == name))
    };
    let tools = agent
        .tools
        .iter()
        .map(|tool| tool.definition())
        .filter(|definition| is_active(&definition.name));
    tools
        .map(|definition| ToolOffer {
            name: definition.name.clone(),
            description: definition.description.clone(),
            parameters: definition.parameters.clone(),
            strict: false,
        })
        .collect()
}

/// What the record has of a call that could not be made.
fn failed(model: &str, reason: String) -> Answer {
    Answer {
        message: AssistantMessage {
            content: Vec::new(),
            api: "turnwheel".to_owned(),
            provider: "turnwheel".to_owned(),
            model: model.to_owned(),
            usage: Usage::default(),
            stop_reason: StopReason::Error,
            error_message: Some(reason),
            timestamp: Timestamp(0),
            extra: Extra::new(),
        },
        failure: Some(Failure::Final),
        reply: Reply::default(),
    }
}

fn log_answer(answer: &Answer, key: &ConversationKey) {
    let usage = answer.message.usage;
    tracing::info!(
        conversation.id = %key.conversation_id,
        gen_ai.request.model = %answer.message.model,
        gen_ai.usage.input_tokens = usage.input,
        gen_ai.usage.output_tokens = usage.output,
        "the model answered {}: {}",
        key.conversation_id,
        stop_name(answer.message.stop_reason),
    );
}

fn stop_name(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Stop => "done",
        StopReason::Length => "cut by the output limit",
        StopReason::ToolUse => "it calls tools",
        StopReason::Error => "an error",
        StopReason::Aborted => "stopped",
    }
}
