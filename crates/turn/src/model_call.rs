//! Model calls: the request, the live deltas, and the commit of the response.

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::future::{BoxFuture, Either, select};

use crate::abort_signal;
use crate::commit::CommitKind;
use crate::context::TurnContext;
use crate::delta_publisher::DeltaPublisher;
use crate::failed_response::{
    failed_response, failure_kind, hook_failure_response, plugin_failure_response,
};
use crate::frame::Frame;
use crate::frame_document::{find_document, store_frame_document, wait_for_document};
use crate::leased_conversation::LeasedConversation;
use crate::prepare::{PreparedCall, UnsentCall, prepare_call};
use crate::refused_input::find_refused_part;
use crate::spans::ModelCallSpan;
use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::compaction::tokens;
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::frame_entry::FrameInput;
use turnwheel_conversation::input_repair::{InputRepairs, RefusedInput};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::plugin_state::PluginStateChange;
use turnwheel_conversation::projection;
use turnwheel_conversation::settings::{LoopKind, ProtocolMode};
use turnwheel_conversation::step::{Input, ResponseInput};
use turnwheel_extensions::Hook;
use turnwheel_extensions::context::Anchor;
use turnwheel_model::protocol::ProtocolModel;
use turnwheel_model::tokens::count_tokens;
use turnwheel_model::{
    Listener, Model, ModelConnection, ModelFailure, ModelRecord, ModelRequest, ModelResponse,
    ToolOffer,
};
use turnwheel_platform::ids::{ConversationKey, EntryId, PromptId};
use turnwheel_record::error::TurnError;
use turnwheel_record::error_domain::{self, NO_MODEL};
use turnwheel_record::event_log::ModelCallLog;
use turnwheel_record::frame_documents::{FrameDocument, FrameParts};
use turnwheel_storage::live::{LiveResponse, ModelIdentity};
use turnwheel_storage::store::Freshness;

mod cut_call;
use cut_call::CutCall;

/// A finished model call: the response, and the other parts of its commit.
struct CallOutcome {
    response: ModelResponse,
    /// Revision of the agent that made the call.
    revision: String,
    frame: Option<FrameInput>,
    plugin_state: Vec<PluginStateChange>,
    error_type: &'static str,
    /// The part of the input that the service refused.
    refused: Option<RefusedInput>,
}

/// A call that can be sent.
struct ModelCall<'c, 'p> {
    agent: &'c AgentDefinition,
    record: ModelRecord,
    path: &'p [Arc<Entry>],
    messages: Vec<Cow<'p, Message>>,
    frame: Frame<'c>,
    frame_input: Option<FrameInput>,
    document: Arc<FrameDocument>,
    /// Changes by the plugins.
    plugin_state: Vec<PluginStateChange>,
}

impl ModelCall<'_, '_> {
    fn count_input_tokens(&self) -> u64 {
        let sent =
            self.messages.iter().map(|message| tokens::count_message(message, &count_tokens));
        self.frame.tokens(&count_tokens) + sent.sum::<u64>()
    }

    fn finish(
        self,
        key: &ConversationKey,
        context: &TurnContext,
        response: ModelResponse,
    ) -> CallOutcome {
        let budget = context.context_budget(self.record.context_window);
        let refused = find_refused_part(key, &response, self.path, &self.frame, &budget);
        CallOutcome {
            frame: self.frame_input,
            plugin_state: self.plugin_state,
            refused,
            ..CallOutcome::unsent(response, &self.agent.revision)
        }
    }
}

impl CallOutcome {
    /// A response without a frame of its own.
    fn unsent(response: ModelResponse, revision: &str) -> Self {
        Self {
            response,
            revision: revision.to_owned(),
            frame: None,
            plugin_state: Vec::new(),
            error_type: "model",
            refused: None,
        }
    }
}

impl LeasedConversation<'_> {
    /// Calls the model and commits its response, with the intent of the first call.
    pub async fn call_model(&mut self) -> Result<(), TurnError> {
        let started_at = self.services.clock.now();
        self.services.fail_points.hit("model.before").await;
        tokio::select! {
            biased;
            () = self.services.shutdown.wait_for_deadline(false) => {
                self.drop_reservation();
                return Err(TurnError::Stopped { key: self.state.key.clone() });
            }
            () = Box::pin(self.state.refresh_remote_tools(self.services)) => {}
        }
        let context = self.state.context(self.services);
        self.observe_turn_of_call(&context).await;
        let CallOutcome { response, revision, frame, plugin_state, error_type, refused } =
            Box::pin(self.request_response(&context)).await?;
        self.costs.record_calls(*response.message.usage, 1);
        self.services.fail_points.hit("model.after").await;
        let retry = context.settings.retry.clone().unwrap_or_default();
        let attempts_max = if retry.enabled { retry.max_retries.saturating_add(1) } else { 1 };
        let agent = &self.state.head.agent;
        let log = ModelCallLog::new(agent, &response, self.state.attempt(), attempts_max);
        self.telemetry.model_call_log = Some(Box::new(log));
        let fault = error_domain::classify_response(&response);
        let (prompt_id, attempt) = (self.state.prompt_id(), self.state.attempt());
        self.progress.record_response(self.services.clock.monotonic());
        let failure_kind = failure_kind(&*self.services.ids, &response);
        let schema_error = context.find_response_mismatch(&response.message);
        let answered = ResponseInput {
            message: response.message,
            revision,
            started_at,
            failure_kind,
            schema_error,
            error_type,
            refused,
            frame,
            plugin_state,
        };
        let committed = self
            .commit_with_inbox(
                CommitKind::Response,
                vec![Input::ResponseReceived(Box::new(answered))],
            )
            .await;
        // A successful commit has logged it.
        if let Some(call) = self.telemetry.model_call_log.take() {
            call.log(&self.state.key, None, self.services.clock.now());
        }
        committed?;
        self.progress.record_commit();
        self.costs.mark_committed();
        if self.state.attempt() > attempt {
            if let Some(metrics) = self.services.telemetry.metrics() {
                metrics.record_retry("model");
            }
        } else if self.state.prompt_id() != prompt_id {
            self.telemetry.fault = fault;
        }
        Ok(())
    }

    /// Ends the reservation of a call that is not sent, because the turn ends. The commit that gives the
    /// conversation back stores it.
    fn drop_reservation(&mut self) {
        let head = &mut self.state.head;
        if head.reservation.take().is_some() {
            // The accounts may include the reservation, so they are settled now.
            head.metering.settle_at.get_or_insert(self.services.clock.now());
        }
    }

    async fn request_response(&mut self, context: &TurnContext) -> Result<CallOutcome, TurnError> {
        let agent = match &context.agent {
            Ok(agent) => agent,
            Err(reason) => {
                let response = failed_response(NO_MODEL, reason.to_string());
                return Ok(CallOutcome::unsent(response, ""));
            }
        };
        let record = match context.model_record(&*self.services.model, &self.state.head) {
            Ok(record) => record,
            Err(reason) => {
                return Ok(CallOutcome::unsent(failed_response(NO_MODEL, reason), &agent.revision));
            }
        };
        let entries = self.state.load_context(self.services).await?;
        let path = path_to_leaf(&entries, self.state.head.leaf_id.as_ref());
        let mut call = match Box::pin(self.prepare(context, agent, record, &path)).await {
            Ok(call) => call,
            Err(UnsentCall::Stopped(error)) => {
                self.drop_reservation();
                return Err(error);
            }
            Err(UnsentCall::Plugin(failure)) => {
                let response = plugin_failure_response(&failure);
                let unsent = CallOutcome::unsent(response, &agent.revision);
                return Ok(CallOutcome { error_type: "plugin", ..unsent });
            }
            Err(UnsentCall::Extension(failure)) => {
                let response = hook_failure_response(&failure);
                return Ok(CallOutcome::unsent(response, &agent.revision));
            }
        };
        let current = self.state.head.frame.as_ref().and_then(|frame| frame.document.as_ref());
        let is_new = call.frame_input.is_some() && current != Some(&call.document.sha256);
        let document = is_new.then(|| Arc::clone(&call.document));
        let services = self.services;
        let storing = store_frame_document(services, self.state.artifact_scope(), document);
        let mut storing = std::pin::pin!(storing);
        // A trait object, as the stages are.
        let sending: BoxFuture<'_, _> = Box::pin(self.send(context, &call));
        let (response, is_stored) = match select(sending, storing.as_mut()).await {
            Either::Left((response, _)) => (response?, None),
            Either::Right((is_stored, sending)) => (sending.await?, Some(is_stored)),
        };
        let is_stored = match is_stored {
            Some(is_stored) => is_stored,
            // Only a complete response names its frame.
            None if response.message.is_failed() => false,
            None => {
                let time = self.lease.time_left(&*services.clock);
                wait_for_document(services, storing, time).await
            }
        };
        if let Some(frame) = call.frame_input.as_mut().filter(|_| !is_stored) {
            frame.entry.document = None;
        }
        Ok(call.finish(&self.state.key, context, response))
    }

    /// The next call: its frame, and its messages after all hooks.
    async fn prepare<'c, 'p>(
        &mut self,
        context: &'c TurnContext,
        agent: &'c Arc<AgentDefinition>,
        record: ModelRecord,
        path: &'p [Arc<Entry>],
    ) -> Result<ModelCall<'c, 'p>, UnsentCall> {
        let projected = projection::project_messages(path);
        let PreparedCall { mut frame, changes } =
            Box::pin(prepare_call(self, context, &projected)).await?;
        frame.leave_out(&InputRepairs::of(path));
        if self.is_final_iteration(context) {
            frame.add_final_iteration();
        }
        let messages = Box::pin(self.transform_messages(context, projected)).await?;
        let parts = FrameParts {
            agent,
            tools: context.tools(),
            settings: &context.settings,
            model: &record,
        };
        let document = find_document(self.services, parts);
        let mut frame_input = frame.to_input(&self.state.head, &agent.revision, &document);
        self.state.list_changed_tools(self.services, context, frame_input.as_mut()).await?;
        Ok(ModelCall {
            agent,
            record,
            path,
            messages: model_messages(messages, context.loop_kind()),
            frame,
            frame_input,
            document,
            plugin_state: changes,
        })
    }

    /// Sends the call and publishes the deltas of its response.
    async fn send(
        &mut self,
        context: &TurnContext,
        call: &ModelCall<'_, '_>,
    ) -> Result<ModelResponse, TurnError> {
        let (services, record, key) = (self.services, &call.record, self.state.key.clone());
        let publisher = DeltaPublisher::start(&*services.live, &key, self.live_response(record));
        let call_span =
            ModelCallSpan::start(services, &self.state.head, record, self.state.attempt());
        let of_prompt = self.state.head.prompt.as_ref().and_then(|run| run.traceparent.clone());
        let traceparent = call_span.span.traceparent().or(of_prompt);
        let session_id = context.session_id(&self.state.head);
        let system = call.frame.system();
        let tools: Vec<ToolOffer<'_>> = call.frame.offers().collect();
        let messages: Vec<&Message> = call.messages.iter().map(Cow::as_ref).collect();
        let payload_hooks = self.hook_set(Hook::OnPayload, context, self.response_anchor());
        let settings = &context.settings;
        let request = ModelRequest {
            model: record,
            system: system.as_deref(),
            messages: &messages,
            tools: &tools,
            thinking: settings.thinking_level.unwrap_or_default(),
            temperature: settings.temperature,
            max_output_tokens: settings.max_output_tokens,
            response_schema: call.frame.response_schema(),
            session_id: &session_id,
            traceparent: traceparent.as_deref(),
            payload: payload_hooks.as_ref().map(|hooks| hooks as _),
        };
        call_span.set_request(&request);
        let received =
            call_span.span.run(Box::pin(self.await_model(context, request, &publisher))).await;
        let response = received.map(|response| {
            response.unwrap_or_else(|cut| {
                cut.into_response(record, publisher.close(), call.count_input_tokens())
            })
        });
        call_span.end(response.as_ref());
        if response.is_err() {
            publisher.publish_reset();
        }
        response
    }

    /// True if the next response is the last one that the prompt may have, in the loop `protocol`.
    fn is_final_iteration(&self, context: &TurnContext) -> bool {
        let settings = &context.settings;
        let max = settings.rounds_max().unwrap_or(u32::MAX).min(settings.hard_rounds_limit());
        let run = self.state.head.prompt.as_ref();
        context.loop_kind() == LoopKind::Protocol && run.is_some_and(|run| run.rounds + 1 >= max)
    }

    /// The next response as readers of the delta stream see it.
    fn live_response(&self, record: &ModelRecord) -> LiveResponse {
        let run = self.state.head.prompt.as_ref();
        let begins_turn = run.is_some_and(|run| !run.is_turn_open);
        let number = self.state.head.response_count + 1;
        LiveResponse {
            epoch: self.lease.epoch,
            event_seq: self.state.head.event_seq,
            message_id: EntryId::from_call_number(&self.state.head.incarnation, number),
            number,
            prompt_id: run.map_or_else(|| PromptId::new(""), |run| run.id.clone()),
            turn: self.state.head.turn + u64::from(begins_turn),
            is_turn_start: begins_turn,
            is_agent_start: run.is_some_and(|run| run.is_between_attempts),
            identity: ModelIdentity {
                api: record.api.clone(),
                provider: record.provider.clone(),
                model: record.id.clone(),
            },
        }
    }

    /// The messages after all `transform_context` hooks.
    async fn transform_messages<'a>(
        &mut self,
        context: &TurnContext,
        mut messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, UnsentCall> {
        for cx in self.hook_contexts(Hook::Context, context, self.response_anchor()) {
            let work = async { cx.extension().transform_context(&cx, messages).await };
            match self.run_hook(&cx, work).await? {
                Ok(transformed) => messages = transformed,
                Err(failure) => return Err(UnsentCall::Extension(failure)),
            }
        }
        Ok(messages)
    }

    /// The next response.
    pub(crate) fn response_anchor(&self) -> Anchor {
        Anchor::Response(self.state.head.response_count + 1)
    }

    /// The connection that the rounds of this delivery share. `None`: each request has the whole
    /// input.
    fn model_connection(&mut self, context: &TurnContext) -> Option<Arc<ModelConnection>> {
        let mode = context.settings.effective_protocol_mode();
        if mode == ProtocolMode::Replay {
            return None;
        }
        let new = || Arc::new(ModelConnection::new(mode));
        let connection = Arc::clone(self.model_connection.get_or_insert_with(new));
        if self.state.attempt() > 1 {
            connection.fall_back_for_retry();
        }
        Some(connection)
    }

    /// Waits for the response to a request of the loop, in protocol mode through the codec.
    async fn await_model(
        &mut self,
        context: &TurnContext,
        request: ModelRequest<'_>,
        listener: &dyn Listener,
    ) -> Result<Result<ModelResponse, CutCall>, TurnError> {
        let model = &*self.services.model;
        let connection = self.model_connection(context);
        let codec = ProtocolModel::new(model, context.settings.history_window)
            .with_connection(connection.as_deref());
        let model: &dyn Model = match context.loop_kind() {
            LoopKind::Protocol => &codec,
            LoopKind::Prompt | LoopKind::Agent => model,
        };
        Box::pin(self.await_call(model, request, listener)).await
    }

    /// Waits for the response and renews the lease. A time-out is retryable if the model had less
    /// than half of the turn (the worker was stalled).
    pub(crate) async fn await_call(
        &mut self,
        model: &dyn Model,
        request: ModelRequest<'_>,
        listener: &dyn Listener,
    ) -> Result<Result<ModelResponse, CutCall>, TurnError> {
        let services = self.services;
        let mut stopped = std::pin::pin!(abort_signal::wait_for_abort(
            services,
            &self.state.key,
            self.state.prompt_id()
        ));
        let left = self.progress.time_left(&*services.clock);
        let mut answering = std::pin::pin!(model.respond(request, listener));
        let mut over = std::pin::pin!(tokio::time::sleep(left));
        tokio::select! {
            biased;
            answer = &mut answering => Ok(Ok(answer)),
            () = &mut over => {
                let failure = if left < services.limits.turn_duration / 2 {
                    ModelFailure::Retryable { after: None }
                } else {
                    ModelFailure::Permanent
                };
                Ok(Err(CutCall::TimedOut { time: left, failure }))
            }
            () = &mut stopped => Ok(Err(CutCall::Aborted)),
            error = self.renew_until_lost() => match abort_signal::is_conversation_deleted(services, &self.state.key, Freshness::Latest).await {
                Ok(true) => Ok(Err(CutCall::Aborted)),
                Ok(false) | Err(_) => Err(error),
            },
        }
    }
}

/// The messages as the provider receives them.
fn model_messages(messages: Vec<Cow<'_, Message>>, loop_kind: LoopKind) -> Vec<Cow<'_, Message>> {
    let mut messages = projection::to_model_messages(messages);
    if loop_kind == LoopKind::Prompt {
        projection::encode_errors_as_json(&mut messages);
    }
    messages
}
