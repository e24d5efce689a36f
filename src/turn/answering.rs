//! Model calls: the request, the live deltas, and the commit of the response.

use std::borrow::Cow;

use crate::agent::compaction::tokens;
use crate::agent::content::Block;
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::path::path;
use crate::agent::phase::Phase;
use crate::agent::projection;
use crate::agent::raw::RawJson;
use crate::agent::settings::{LoopKind, Settings};
use crate::agent::step::{Answered, Input, Setback};
use crate::agent::usage::Usage;
use crate::agents::Agent;
use crate::extensions::Hook;
use crate::ids::{EntryId, PromptId};
use crate::live::{Author, LiveAnswer};
use crate::model::catalogue::tariff;
use crate::model::tokens::count;
use crate::model::{Answer, Failure, Listener, ModelRecord, ModelRequest, Reply, ToolOffer};
use crate::tools::validate::response::misfit_of_message;
use crate::turn::delivery::TurnError;
use crate::turn::event_log::ModelCall;
use crate::turn::faults::{self, NO_MODEL};
use crate::turn::hold::Hold;
use crate::turn::hooks::{Cause, HookFailure};
use crate::turn::spans::Asking;
use crate::turn::stopping;
use crate::turn::telling::Telling;

/// The source's text (s3 §5.7).
const STOPPED: &str = "Request was aborted";

impl Hold<'_> {
    /// Calls the model and commits its response, with the intent of the first call.
    pub(super) async fn answer(&mut self) -> Result<(), TurnError> {
        let started_at = self.world.clock.now();
        self.world.probe.reached("model.before").await;
        let (answer, revision) = Box::pin(self.ask_model()).await?;
        self.unbooked = Some((answer.message.usage, 1));
        self.world.probe.reached("model.after").await;
        let retry = self.settings().retry.unwrap_or_default();
        let attempts_max = if retry.enabled { retry.max_retries.saturating_add(1) } else { 1 };
        let attempts = (self.attempt(), attempts_max);
        self.model_call = Some(Box::new(ModelCall::new(&self.head.agent, &answer, attempts)));
        let fault = faults::of_answer(&answer);
        let (asked, attempt) = (self.prompt_id(), self.attempt());
        self.answers_taken += 1;
        self.is_admitted = false;
        let setback = self.setback(answer.failure.as_ref());
        let misfit = self.misfit(&answer.message);
        let answered = Answered { message: answer.message, revision, started_at, setback, misfit };
        let committed = self.commit_done("answer", vec![Input::Answered(Box::new(answered))]).await;
        // A successful commit has logged it.
        if let Some(call) = self.model_call.take() {
            call.log(&self.key, None, self.world.clock.now());
        }
        committed?;
        self.unbooked = None;
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
            Ok(agent) => agent,
            Err(reason) => return Ok((failed(NO_MODEL, reason.to_string()), String::new())),
        };
        let settings = self.settings();
        let run = self.head.prompt.clone();
        let record = match self.model(&settings) {
            Ok(record) => record,
            Err(reason) => return Ok((failed(NO_MODEL, reason), agent.revision.clone())),
        };
        let entries = self.entries().await?;
        let path = path(&entries, self.head.leaf_id.as_ref());
        let messages = match Box::pin(self.transformed(projection::messages(&path))).await? {
            Ok(messages) => sent_messages(messages, &settings),
            Err(failure) => return Ok((uncalled(&failure), agent.revision.clone())),
        };
        let message_id = EntryId::of_answer(&self.head.incarnation, self.head.answers + 1);
        let begins_turn = run.as_ref().is_some_and(|run| !run.is_turn_open);
        let live_answer = LiveAnswer {
            epoch: self.epoch,
            message_id,
            prompt_id: run.as_ref().map_or_else(|| PromptId::new(""), |run| run.id.clone()),
            turn: self.head.turn + u64::from(begins_turn),
            begins_turn,
            begins_agent: run.as_ref().is_some_and(|run| run.is_between_tries),
            author: Author {
                api: record.api.clone(),
                provider: record.provider.clone(),
                model: record.id.clone(),
            },
        };
        let key = self.key.clone();
        let telling = Telling::begin(&*world.live, &key, live_answer);
        let traceparent = run.and_then(|run| run.traceparent);
        let asking = Asking::begin(self, &record, self.attempt());
        let traceparent = asking.span.traceparent().or(traceparent);
        let session = self.session();
        let tools = offers(&agent, &settings);
        let messages: Vec<&Message> = messages.iter().map(Cow::as_ref).collect();
        let request = request_of(&record, &agent, &settings, &tools, &messages);
        let payloads = self.payloads();
        let request = ModelRequest {
            session_id: &session,
            traceparent: traceparent.as_deref(),
            payload: payloads.as_ref().map(|hooks| hooks as _),
            ..request
        };
        asking.ask(&request);
        let heard = asking.span.run(Box::pin(self.listen(&record, request, &telling))).await;
        let answer = heard.map(|answer| {
            answer.unwrap_or_else(|| {
                let sent = messages.iter().map(|message| tokens::of_message(message, &count));
                let input = self.frame_tokens(&count) + sent.sum::<u64>();
                cut(&record, telling.cut(), input)
            })
        });
        asking.end(answer.as_ref());
        if answer.is_err() {
            telling.reset();
        }
        Ok((answer?, agent.revision.clone()))
    }

    /// The messages after all `transform_context` hooks.
    async fn transformed<'a>(
        &mut self,
        mut messages: Vec<Cow<'a, Message>>,
    ) -> Result<Result<Vec<Cow<'a, Message>>, HookFailure>, TurnError> {
        let world = self.world;
        for extension in &world.extensions {
            let work = async { extension.transform_context(messages).await };
            match self.run_hook(&**extension, Hook::TransformContext, work).await? {
                Ok(transformed) => messages = transformed,
                Err(failure) => return Ok(Err(failure)),
            }
        }
        Ok(Ok(messages))
    }

    /// Why a final response does not fit the agent's response schema.
    fn misfit(&self, message: &AssistantMessage) -> Option<String> {
        let agent = self.world.agents.find(Some(&self.head.agent)).ok()?;
        misfit_of_message(agent.response_schema.as_ref()?, message)
    }

    /// Groups calls for the provider's prompt cache.
    pub(super) fn session(&self) -> String {
        let agent = self.world.agents.find(Some(&self.head.agent)).ok();
        let of_conversation = || format!("{}-{}", self.key.conversation_id, self.head.incarnation);
        agent.and_then(|agent| agent.session_id.clone()).unwrap_or_else(of_conversation)
    }

    /// The failure class for the state machine. It adds the random number for the back-off.
    pub(super) fn setback(&self, failure: Option<&Failure>) -> Setback {
        match failure {
            Some(Failure::Retryable { after }) => {
                Setback::Passing { after: *after, chance: self.world.ids.chance() }
            }
            Some(Failure::Overflow) => Setback::Overflow,
            Some(Failure::Final) | None => Setback::Final,
        }
    }

    /// Number of this attempt at the same response.
    pub(super) fn attempt(&self) -> u32 {
        match self.head.phase {
            Phase::Model { attempt, .. } | Phase::Summary { attempt, .. } => attempt,
            Phase::Idle | Phase::Calls { .. } | Phase::Deleted => 1,
        }
    }

    /// Waits for the response and renews the lease. Returns `None` if the prompt was aborted. At
    /// the turn deadline returns a time-out failure, retryable if the model had less than half of
    /// the turn (the worker was stalled).
    pub(super) async fn listen(
        &mut self,
        record: &ModelRecord,
        request: ModelRequest<'_>,
        listener: &dyn Listener,
    ) -> Result<Option<Answer>, TurnError> {
        let world = self.world;
        let mut stopped = std::pin::pin!(stopping::comes(world, &self.key, self.prompt_id()));
        let left = self.turn_ends.saturating_sub(world.clock.monotonic());
        let mut answering = std::pin::pin!(world.model.answer(request, listener));
        let mut over = std::pin::pin!(tokio::time::sleep(left));
        tokio::select! {
            biased;
            answer = &mut answering => Ok(Some(answer)),
            () = &mut over => {
                let text = format!("The model did not finish within {} s.", left.as_secs());
                let reply = Reply { error: Some("timeout".to_owned()), ..Reply::default() };
                let failure = if left < world.limits.turn / 2 {
                    Failure::Retryable { after: None }
                } else {
                    Failure::Final
                };
                let failure = Some(failure);
                Ok(Some(Answer { failure, reply, ..failed(&record.id, text) }))
            }
            () = &mut stopped => Ok(None),
            error = self.keep() => match stopping::is_deleted(world, &self.key).await {
                Ok(true) => Ok(None),
                Ok(false) | Err(_) => Err(error),
            },
        }
    }
}

/// The messages as the provider receives them.
fn sent_messages<'a>(
    messages: Vec<Cow<'a, Message>>,
    settings: &Settings,
) -> Vec<Cow<'a, Message>> {
    let mut messages = projection::convert(messages);
    if settings.loop_kind.unwrap_or_default() == LoopKind::Prompt {
        projection::errors_as_json(&mut messages);
    }
    messages
}

fn request_of<'a>(
    record: &'a ModelRecord,
    agent: &'a Agent,
    settings: &Settings,
    tools: &'a [ToolOffer<'a>],
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
        payload: None,
    }
}

/// The tools offered to the model: the agent's tools without those that the settings deactivate.
/// Unknown names are ignored.
pub(super) fn offers<'a>(agent: &'a Agent, settings: &Settings) -> Vec<ToolOffer<'a>> {
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
            name: &definition.name,
            description: &definition.description,
            parameters: &definition.parameters,
            strict: definition.strict,
        })
        .collect()
}

/// The recorded response of a call that could not be made.
fn failed(model: &str, reason: String) -> Answer {
    Answer {
        message: AssistantMessage {
            model: model.to_owned(),
            error_message: Some(reason),
            ..AssistantMessage::of_ours("turnwheel", Vec::new(), StopReason::Error)
        },
        failure: Some(Failure::Final),
        reply: Reply::default(),
    }
}

/// The recorded response of a call prevented by a failed hook. A retry may find what the hook
/// needs, but not after a panic.
fn uncalled(failure: &HookFailure) -> Answer {
    let reply = Reply { error: Some("hook_failed".to_owned()), ..Reply::default() };
    let is_final = failure.cause == Cause::Panic;
    let setback = if is_final { Failure::Final } else { Failure::Retryable { after: None } };
    let reason = format!("The model was not called: {failure}");
    Answer { failure: Some(setback), reply, ..failed(NO_MODEL, reason) }
}

/// The response of an aborted call. The service bills the tokens read and written, but reports no
/// usage to a client that disconnects. The usage is therefore an estimate from the tokens sent and
/// received.
pub(super) fn cut(record: &ModelRecord, content: Vec<Block>, input: u64) -> Answer {
    let unmade = failed(&record.id, STOPPED.to_owned());
    let output = if content.is_empty() { 0 } else { count(RawJson::of(&content).text()) };
    let mut usage = Usage { input, output, total_tokens: input + output, ..Usage::default() };
    usage.cost = tariff(record).cost(&usage);
    let message = AssistantMessage {
        content,
        api: record.api.clone(),
        provider: record.provider.clone(),
        usage,
        stop_reason: StopReason::Aborted,
        ..unmade.message
    };
    Answer { message, failure: None, reply: Reply::default() }
}
