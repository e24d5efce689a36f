//! Tools of an MCP server in an agent: which are offered, their effects, and their calls.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use globset::GlobSet;
use rmcp::model::{CallToolRequest, CallToolRequestParams, RequestMetaObject};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::approval_summary::ApprovalSummary;
use crate::destination::BoundDestination;
use crate::http::{ATTEMPTS_MAX, ApprovalRule, RETRY_DELAY, unknown_reason};
use crate::mcp::McpServer;
use crate::mcp::approval::OwnApproval;
use crate::mcp::conversation_session::ConversationSession;
use crate::mcp::definitions::{Definitions, RemoteTool};
use crate::mcp::failure::McpFailure;
pub use crate::mcp::result::McpContent;
use crate::mcp::result::convert_result;
use crate::mcp::transport::McpExchange;
use crate::mcp::unmatched_output::UnmatchedOutput;
use crate::result_limits::limit_progress;
use crate::{
    ApprovalRequirement, Arguments, CallableTool, TIMEOUT_MAX, ToolContext, ToolDefinition,
    ToolOutcome, ToolResult,
};
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_json::text::sanitize_line;

/// Member of `_meta` with the effect id of a call.
const EFFECT_ID: &str = "turnwheel/effectId";

/// The operator's rules for tools of a server, from an agent file.
#[derive(Debug)]
pub struct McpRules {
    /// Selects tools by their names; `None`: all tools.
    pub selection: Option<GlobSet>,
    /// `None`: by the hints of a trusted server, and `write` otherwise.
    pub effect: Option<Effect>,
    pub on_unknown: OnUnknown,
    pub approval: Option<ApprovalRule>,
    /// True if the rule has a reason of its own.
    pub has_reason: bool,
    /// Time-out of one attempt.
    pub timeout: Duration,
    pub content: McpContent,
    /// Hash of these rules.
    pub revision: String,
}

/// The tools of one server in an agent.
pub struct McpToolSource {
    pub server: Arc<McpServer>,
    rules: Arc<McpRules>,
    /// The tools of the last definitions.
    built: Mutex<Option<BuiltTools>>,
}

type BuiltTools = (Arc<Definitions>, Vec<Arc<dyn CallableTool>>);

impl fmt::Debug for McpToolSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpToolSource({})", self.server.name)
    }
}

impl McpToolSource {
    pub fn new(server: Arc<McpServer>, rules: McpRules) -> Self {
        Self { server, rules: Arc::new(rules), built: Mutex::default() }
    }

    /// The selected tools by the definitions that this process knows.
    pub fn tools(&self) -> Vec<Arc<dyn CallableTool>> {
        let Some(definitions) = self.server.definitions() else { return Vec::new() };
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, tools)) = &*built
            && Arc::ptr_eq(of, &definitions)
        {
            return tools.clone();
        }
        let selected = definitions.tools.iter().filter(|tool| self.selects(&tool.name));
        let tools: Vec<Arc<dyn CallableTool>> =
            selected.map(|tool| Arc::new(self.build(tool)) as _).collect();
        *built = Some((definitions, tools.clone()));
        tools
    }

    /// A sentence for the model, if the definitions of the server are not known.
    pub fn missing_text(&self) -> Option<String> {
        if self.server.definitions().is_some() {
            return None;
        }
        let name = &self.server.name;
        let reason = self.server.failure().unwrap_or_else(|| "it was not read yet".to_owned());
        let reason = sanitize_line(&reason, 300);
        Some(format!("The tools of the MCP server `{name}` are missing now: {reason}."))
    }

    fn selects(&self, name: &str) -> bool {
        self.rules.selection.as_ref().is_none_or(|globs| globs.is_match(name))
    }

    fn build(&self, tool: &RemoteTool) -> McpTool {
        let rules = &self.rules;
        let hinted = match (tool.is_read_only, tool.is_idempotent) {
            (true, _) => Effect::Read,
            (false, true) => Effect::Idempotent,
            (false, false) => Effect::Write,
        };
        let trusted = if self.server.is_trusted { hinted } else { Effect::Write };
        let effect = rules.effect.unwrap_or(trusted);
        let whole = match effect {
            Effect::Write => rules.timeout,
            Effect::Read | Effect::Idempotent => rules.timeout * ATTEMPTS_MAX + RETRY_DELAY * 3,
        };
        let name = tool_name(&self.server.name, &tool.name);
        McpTool {
            definition: ToolDefinition {
                label: tool.title.clone().unwrap_or_else(|| name.clone()),
                description: tool.description.clone(),
                parameters: tool.parameters.clone(),
                effect,
                on_unknown: rules.on_unknown,
                timeout: whole.min(TIMEOUT_MAX),
                is_strict: false,
                revision: tool.revision(&format!("{}\n{}", self.server.identity, rules.revision)),
                name,
            },
            remote_name: tool.name.clone(),
            own_approval: tool.approval.as_ref().map(OwnApproval::read),
            server: Arc::clone(&self.server),
            rules: Arc::clone(rules),
        }
    }
}

/// Name of a server's tool in records, events and approvals.
pub fn tool_name(server: &str, tool: &str) -> String {
    format!("mcp__{server}__{tool}")
}

struct McpTool {
    definition: ToolDefinition,
    remote_name: String,
    /// Of the definition. A rule of the agent file takes its place.
    own_approval: Option<OwnApproval>,
    server: Arc<McpServer>,
    rules: Arc<McpRules>,
}

impl fmt::Debug for McpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpTool({})", self.definition.name)
    }
}

impl McpTool {
    /// The transport adds the arguments, which are part of the exchange.
    fn request(&self, exchange: &Arc<McpExchange>) -> CallToolRequest {
        let mut params = CallToolRequestParams::new(self.remote_name.clone());
        let mut meta = RequestMetaObject::new();
        if let Some(effect_id) = &exchange.effect_id {
            meta.0.insert(EFFECT_ID.to_owned(), json!(effect_id));
        }
        params.meta = Some(meta);
        let mut request = CallToolRequest::new(params);
        request.extensions.insert(Arc::clone(exchange));
        request
    }

    fn exchange(
        &self,
        arguments: &Arguments,
        until: Instant,
        context: &ToolContext,
    ) -> McpExchange {
        let on_progress = Arc::clone(&context.on_progress);
        let ToolDefinition { effect, on_unknown, .. } = self.definition;
        let has_approver = effect == Effect::Write && on_unknown == OnUnknown::Ask;
        McpExchange {
            effect,
            arguments: Some(arguments.text.clone()),
            effect_id: Some(context.effect_id.clone()),
            traceparent: context.traceparent.clone(),
            on_progress: Some(Arc::new(move |partial: &ToolResult| {
                on_progress(limit_progress(partial).as_ref().unwrap_or(partial));
            })),
            output: has_approver.then(UnmatchedOutput::default),
            ..McpExchange::read(until)
        }
    }

    async fn attempt(
        &self,
        arguments: &Arguments,
        until: Instant,
        context: &ToolContext,
        session: Option<&mut ConversationSession<'_>>,
    ) -> Result<ToolResult, McpFailure> {
        let exchange = Arc::new(self.exchange(arguments, until, context));
        // The request ends with this future.
        let _guard = exchange.cancellation.clone().drop_guard();
        let request = self.request(&exchange).into();
        let received = if let Some(session) = session {
            Box::pin(session.request(request, until)).await?
        } else {
            let received = Box::pin(self.server.request(request, until)).await;
            received.map_err(|failure| self.with_output(failure, &exchange))?
        };
        Ok(convert_result(&received, self.rules.content, context).await)
    }

    /// Shows an approver the output of a program that is no response. Otherwise the model would read it.
    fn with_output(&self, failure: McpFailure, exchange: &McpExchange) -> McpFailure {
        if let (Some(redactor), Some(output)) = (self.server.program_redactor(), &exchange.output) {
            return failure.with_received(&output.redacted(redactor));
        }
        failure
    }

    fn outcome_of_failure(&self, failure: &McpFailure, tries: u32) -> ToolOutcome {
        let server = &self.server.name;
        let is_write = self.definition.effect == Effect::Write;
        if is_write && failure.may_have_had_effect() {
            let reason = format!("the MCP server `{server}` gave no usable response: {failure}");
            return ToolOutcome::Unknown { reason: unknown_reason(&reason) };
        }
        if is_write && matches!(failure, McpFailure::TooLarge(_)) {
            let text = format!("The server responded, but {failure}: it was not read.");
            return ToolOutcome::Returned(ToolResult::text(text));
        }
        let tries = if tries > 1 { format!(" (Tried {tries} times.)") } else { String::new() };
        let warning = if is_write && failure.is_internal_error() {
            " The call may have had its effect: check before you call it again."
        } else {
            ""
        };
        let text =
            format!("The MCP server `{server}` could not run the tool: {failure}.{tries}{warning}");
        ToolOutcome::Returned(ToolResult::error(text))
    }

    fn log_failure(&self, failure: &McpFailure, attempt: u32, context: &ToolContext) {
        let cause = failure.log_text();
        tracing::warn!(
            tool = %self.definition.name, server = %self.server.name, attempt, cause,
            conversation.id = %context.artifact_scope.key.conversation_id,
            effect.id = %context.effect_id, "tool call failed"
        );
    }
}

impl McpTool {
    /// The rule, and whether it has a reason of its own.
    fn effective_rule(&self) -> Option<(&ApprovalRule, bool)> {
        let own = self.own_approval.as_ref().map(|own| (&own.rule, own.has_reason));
        let ruled = self.rules.approval.as_ref().map(|rule| (rule, self.rules.has_reason));
        ruled.or(own)
    }
}

#[async_trait]
impl CallableTool for McpTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn destination(&self) -> BoundDestination {
        self.server.destination(&self.remote_name)
    }

    fn mcp_server(&self) -> Option<&Arc<McpServer>> {
        Some(&self.server)
    }

    fn required_approval(&self, arguments: &Arguments) -> Option<ApprovalRequirement> {
        let (rule, has_reason) = self.effective_rule()?;
        let mut approval = rule.requirement(arguments)?;
        if !has_reason {
            approval.reason = format!("Calling {} requires approval.", self.definition.name);
        }
        Some(approval)
    }

    fn approval_rule(&self) -> Value {
        self.effective_rule().map_or(Value::Null, |(rule, _)| rule.to_json())
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalRule::summarise(self.effective_rule().map(|(rule, _)| rule))
    }

    fn has_own_failure_log(&self) -> bool {
        true
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let max = if self.definition.effect == Effect::Write { 1 } else { ATTEMPTS_MAX };
        let time = context.clock.now().until(context.deadline);
        // Attempts end shortly before the deadline, when the caller drops this future: only here is
        // it known whether the request was sent.
        let end = Instant::now() + time.saturating_sub((time / 20).min(Duration::from_millis(100)));
        let mut session = ConversationSession::load(&self.server, &context);
        let mut number = 1;
        loop {
            let until = end.min(Instant::now() + self.rules.timeout);
            let attempt = self.attempt(&arguments, until, &context, session.as_mut());
            let failure = match Box::pin(attempt).await {
                Ok(mut result) => {
                    if let Some(session) = &session {
                        session.report_loss(&mut result);
                    }
                    return ToolOutcome::Returned(result);
                }
                Err(failure) => failure,
            };
            self.log_failure(&failure, number, &context);
            let delay = RETRY_DELAY * 2_u32.pow(number - 1);
            let left = end.saturating_duration_since(Instant::now());
            if number >= max || !failure.is_retryable() || delay >= left {
                return self.outcome_of_failure(&failure, number);
            }
            tokio::time::sleep(delay).await;
            number += 1;
        }
    }
}
