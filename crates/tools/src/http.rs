//! HTTP tools: a call is a request to a service of the app. It is retried only if that is safe.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::approval_summary::ApprovalSummary;
use crate::destination::BoundDestination;
use crate::http::attempt::{AttemptOutcome, send_once};
use crate::http::client::HttpClient;
use crate::http::redactor::Redactor;
use crate::http::request::RequestTemplate;
use crate::http::response::error_text;
use crate::http::stream::ProgressCallback;
use crate::http::template::{CallArguments, Template};
use crate::http::text::byte_prefix;
use crate::http::tool_response::ToolResponse;
use crate::result_limits::limit_progress;
use crate::validate::bounded_schema::{BoundedSchema, SchemaVerdict};
use crate::{
    ApprovalRequirement, Arguments, CallableTool, CheckContext, TIMEOUT_MAX, ToolContext,
    ToolDefinition, ToolOutcome, ToolResult,
};
use turnwheel_conversation::request::Effect;
use turnwheel_json::foreign::map_strings;
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::sanitize_line;
use turnwheel_platform::clock::{Timestamp, millis};

pub mod address_rules;
pub mod attempt;
pub mod client;
pub(crate) mod full_result;
#[cfg(test)]
mod fuzz;
pub mod redactor;
pub mod request;
mod response;
pub mod scrape;
pub(crate) mod stream;
pub mod template;
pub mod text;
pub(crate) mod tool_response;
pub mod url_template;

/// Attempts of a repeatable call. All attempts have the same idempotency key.
pub const ATTEMPTS_MAX: u32 = 3;
/// Pause before the second attempt; doubled before the third.
pub const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Characters of one argument in the reason of an approval request.
pub(crate) const REASON_ARGUMENT_CHARS_MAX: usize = 200;
/// Characters of the reason of an approval request.
pub const REASON_CHARS_MAX: usize = 1_000;

/// Bytes of the reason of an unknown outcome, which shows what the server sent. Open requests are
/// stored in the head.
const UNKNOWN_BYTES_MAX: usize = 2_300;

/// The reason of an unknown outcome, as one line for an approver.
pub(crate) fn unknown_reason(text: &str) -> String {
    let line = sanitize_line(text, UNKNOWN_BYTES_MAX);
    let start = byte_prefix(&line, UNKNOWN_BYTES_MAX);
    if start.len() < line.len() { format!("{start}…") } else { line }
}

/// Approval rule of an HTTP tool.
#[derive(Debug)]
pub struct ApprovalRule {
    /// Calls whose arguments are valid by this schema need an approval; `None`: all calls.
    pub condition: Option<BoundedSchema>,
    pub reason: Template,
    /// `owner`, `link`, `role:NAME`; never empty.
    pub approvers: Vec<String>,
    pub is_requester_excluded: bool,
    pub expires_after: Duration,
}

impl ApprovalRule {
    /// The rule as JSON. Arguments in its reason are given by their names.
    pub(crate) fn to_json(&self) -> Value {
        let name = |name: &str| Ok::<_, std::convert::Infallible>(format!("{{{name}}}"));
        json!({
            "when": self.condition.as_ref().map(BoundedSchema::schema),
            "reason": self.reason.render(name).unwrap_or_default(),
            "approvers": self.approvers,
            "notRequester": self.is_requester_excluded,
            "expiresAfterMs": millis(self.expires_after),
        })
    }

    /// The calls that need an approval by a rule, or without one.
    pub(crate) fn summarise(rule: Option<&Self>) -> ApprovalSummary {
        let Some(Self { condition, approvers, .. }) = rule else { return ApprovalSummary::Never };
        let approvers = approvers.clone();
        match condition {
            None => ApprovalSummary::Always { approvers },
            Some(condition) => {
                ApprovalSummary::When { when: condition.schema().clone(), approvers }
            }
        }
    }

    /// The approval that a call with these arguments needs.
    pub fn requirement(&self, arguments: &Arguments) -> Option<ApprovalRequirement> {
        // Arguments that cannot be checked need an approval.
        let is_other = |when: &BoundedSchema| {
            when.check_written(&arguments.text, &arguments.value) == SchemaVerdict::Invalid
        };
        if self.condition.as_ref().is_some_and(is_other) {
            return None;
        }
        let given = CallArguments::from_arguments(arguments).ok();
        let shown = |name: &str| {
            let raw = given.as_ref().and_then(|given| given.get(name));
            let text = raw.map_or_else(
                || "(not given)".to_owned(),
                |raw| raw.read::<String>().unwrap_or_else(|_| RawJson::text(raw).to_owned()),
            );
            Ok::<_, std::convert::Infallible>(sanitize_line(&text, REASON_ARGUMENT_CHARS_MAX))
        };
        let reason = self.reason.render(shown).unwrap_or_default();
        Some(ApprovalRequirement {
            reason: sanitize_line(&reason, REASON_CHARS_MAX),
            approvers: self.approvers.clone(),
            is_requester_excluded: self.is_requester_excluded,
            expires_after: self.expires_after,
        })
    }
}

/// An HTTP tool of an agent file.
pub struct HttpTool {
    definition: ToolDefinition,
    request: RequestTemplate,
    /// Time-out of one attempt.
    timeout: Duration,
    approval: Option<ApprovalRule>,
    client: HttpClient,
    redactor: Redactor,
    destination: BoundDestination,
}

impl fmt::Debug for HttpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpTool({})", self.definition.name)
    }
}

/// A failed attempt.
struct AttemptFailure {
    /// Text for the model, or for the approver of a call with unknown outcome.
    reason: String,
    /// Text for the log, without data of the call.
    cause: String,
    status: Option<u16>,
}

impl AttemptFailure {
    fn new(reason: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { reason: reason.into(), cause: cause.into(), status: None }
    }
}

/// Next step after a failed attempt.
enum NextStep {
    Fail(AttemptFailure),
    /// The request may have had its effect.
    OutcomeUnknown(AttemptFailure),
    /// Retry after that time, if the effect and the deadline allow it.
    Retry(AttemptFailure, Option<Duration>),
}

impl HttpTool {
    /// `definition.timeout` is the time-out of one attempt. The tool's own definition has the
    /// time-out of all attempts together.
    pub fn new(
        definition: ToolDefinition,
        request: RequestTemplate,
        approval: Option<ApprovalRule>,
        client: HttpClient,
    ) -> Self {
        let timeout = definition.timeout;
        let whole = match definition.effect {
            Effect::Write => timeout,
            Effect::Read | Effect::Idempotent => timeout * ATTEMPTS_MAX + RETRY_DELAY * 3,
        };
        let definition = ToolDefinition { timeout: whole.min(TIMEOUT_MAX), ..definition };
        let redactor = Redactor::new(request.secrets());
        let destination = request.destination();
        Self { definition, request, timeout, approval, client, redactor, destination }
    }

    fn next_step(&self, attempt: AttemptOutcome, now: Timestamp) -> NextStep {
        let is_write = self.definition.effect == Effect::Write;
        let again = |reason: String, cause: String| {
            NextStep::Retry(AttemptFailure { reason, cause, status: None }, None)
        };
        match attempt {
            AttemptOutcome::AddressRejected => NextStep::Fail(AttemptFailure::new(
                "The tool's server may not be reached: its address is private or local, and the operator has not listed it.",
                "its address is private or local and not listed in TURNWHEEL_HTTP_TOOLS_ALLOW",
            )),
            AttemptOutcome::NotSent(cause) => again(
                format!("The tool's server could not be reached: {cause}. Nothing was sent."),
                cause,
            ),
            AttemptOutcome::NoToken(cause) => again(
                "The tool's service needs a token of the app's identity, and there is none. Nothing was sent.".to_owned(),
                cause,
            ),
            AttemptOutcome::ResponseLost { cause, received } if is_write => {
                let text = received.map(|it| self.shown_text(&it)).unwrap_or_default();
                let text = if text.is_empty() { text } else { format!(": {text}") };
                let reason = unknown_reason(&format!("{cause}{text}"));
                NextStep::OutcomeUnknown(AttemptFailure::new(reason, cause))
            }
            AttemptOutcome::ResponseLost { cause, .. } => {
                again(format!("The tool did not respond: {cause}."), cause)
            }
            AttemptOutcome::Responded(answer) => self.next_step_for_response(&answer, now),
        }
    }

    /// The beginning of a response that is no result, without secrets.
    fn shown_text(&self, response: &ToolResponse) -> String {
        self.redactor.redact_truncated(&error_text(response))
    }

    /// Chooses the next step after a response with a status other than 2xx.
    fn next_step_for_response(&self, response: &ToolResponse, now: Timestamp) -> NextStep {
        let status = response.status;
        let text = self.shown_text(response);
        let body_text = if text.is_empty() { ".".to_owned() } else { format!(":\n{text}") };
        let is_write = self.definition.effect == Effect::Write;
        let failure = |reason: String| AttemptFailure {
            reason,
            cause: format!("the server responded {status}"),
            status: Some(status.as_u16()),
        };
        if status.is_redirection() {
            let text = format!(
                "The tool responded {status}, a redirect, which is not followed: its url must be the final one{body_text}"
            );
            // Many servers send a redirect after they have done the work.
            return if is_write {
                NextStep::OutcomeUnknown(failure(unknown_reason(&text)))
            } else {
                NextStep::Fail(failure(text))
            };
        }
        let failure = failure(format!("The tool responded {status}{body_text}"));
        let after = retry_after(response.header(&header::RETRY_AFTER), now);
        if status == StatusCode::TOO_MANY_REQUESTS {
            return NextStep::Retry(failure, after);
        }
        // A gateway sends 408 for an upstream server that may still process the request.
        let is_lost = status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT;
        match self.definition.effect {
            // The reason becomes part of an approval request, which needs one short line.
            Effect::Write if is_lost => {
                let reason = unknown_reason(&failure.reason);
                NextStep::OutcomeUnknown(AttemptFailure { reason, ..failure })
            }
            Effect::Read | Effect::Idempotent if status.is_server_error() => {
                NextStep::Retry(failure, after)
            }
            Effect::Read | Effect::Idempotent | Effect::Write => NextStep::Fail(failure),
        }
    }

    async fn attempt_once(
        &self,
        request: request::ToolRequest,
        time: Duration,
        context: &ToolContext,
    ) -> AttemptOutcome {
        let progress = |text: &str| {
            let redact = |text: &str| self.redactor.redact_non_urls(text);
            let partial = match RawJson::from_text(text) {
                Ok(json) => stream::partial_result(map_strings(json, &redact).text()),
                Err(_) => stream::partial_result(redact(text).as_deref().unwrap_or(text)),
            };
            (context.on_progress)(limit_progress(&partial).as_ref().unwrap_or(&partial));
        };
        let mut attempt = Box::pin(self.send_request(request, time, &progress)).await;
        if let Some(response) = attempt.response_mut() {
            response.rewrite_text(&|text| self.redactor.redact_non_urls(text));
        }
        attempt
    }

    async fn send_request(
        &self,
        mut request: request::ToolRequest,
        time: Duration,
        progress: ProgressCallback<'_>,
    ) -> AttemptOutcome {
        let Ok(client) = self.client.client_for(&request.url, self.definition.effect) else {
            return AttemptOutcome::AddressRejected;
        };
        let Some(scope) = &self.request.entra else {
            return send_once(client, request, time, progress).await;
        };
        let until = Instant::now() + time;
        let token = match timeout_at(until, self.client.token(scope)).await {
            Ok(Ok(token)) => token,
            Ok(Err(reason)) => return AttemptOutcome::NoToken(reason),
            Err(_) => {
                return AttemptOutcome::NoToken(format!("the Entra token for {scope} timed out"));
            }
        };
        let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", token.reveal())) else {
            return AttemptOutcome::NoToken(format!(
                "the Entra token for {scope} is not a header value"
            ));
        };
        value.set_sensitive(true);
        request.headers.insert(header::AUTHORIZATION, value);
        let left = until.saturating_duration_since(Instant::now());
        let progress = |text: &str| progress(&text.replace(token.reveal(), "[token]"));
        let mut attempt = send_once(client, request, left, &progress).await;
        let is_result = matches!(&attempt, AttemptOutcome::Responded(it) if it.status.is_success());
        if let Some(response) = attempt.response_mut() {
            response.redact(token.reveal());
            if !is_result {
                response.redact_shown(token.reveal());
            }
        }
        attempt
    }

    /// Logs a failed attempt without data of the call.
    fn log_failure(
        &self,
        failure: &AttemptFailure,
        attempt: AttemptNumber,
        retry_in: Option<Duration>,
        context: &ToolContext,
    ) {
        let AttemptFailure { cause, status, .. } = failure;
        let AttemptNumber { number, max } = attempt;
        let retry_in = retry_in.map(|pause| format!("{}ms", pause.as_millis()));
        tracing::warn!(
            tool = %self.definition.name,
            status,
            attempt = %format_args!("{number}/{max}"),
            retry_in,
            cause,
            conversation.id = %context.artifact_scope.key.conversation_id,
            effect.id = %context.effect_id,
            "tool call failed"
        );
    }
}

/// Number of an attempt, and that of the last one.
#[derive(Clone, Copy)]
struct AttemptNumber {
    number: u32,
    max: u32,
}

fn error_result(text: &str) -> ToolOutcome {
    ToolOutcome::Returned(ToolResult::error(text))
}

/// Parses a `Retry-After` header: seconds or an HTTP date.
pub fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(value).ok()?.timestamp().as_millisecond();
    Some(Duration::from_millis(u64::try_from(at).ok()?.saturating_sub(now.0)))
}

#[async_trait]
impl CallableTool for HttpTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn check_arguments(
        &self,
        arguments: &Arguments,
        _context: &CheckContext<'_>,
    ) -> Result<(), String> {
        self.request.check(&CallArguments::from_arguments(arguments)?)
    }

    fn required_approval(&self, arguments: &Arguments) -> Option<ApprovalRequirement> {
        self.approval.as_ref()?.requirement(arguments)
    }

    fn approval_rule(&self) -> Value {
        self.approval.as_ref().map_or(Value::Null, ApprovalRule::to_json)
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalRule::summarise(self.approval.as_ref())
    }

    fn destination(&self) -> BoundDestination {
        self.destination.clone()
    }

    fn has_own_failure_log(&self) -> bool {
        true
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let max = if self.definition.effect == Effect::Write { 1 } else { ATTEMPTS_MAX };
        let request = match CallArguments::from_arguments(&arguments)
            .and_then(|call_arguments| self.request.build_request(&call_arguments, &context))
        {
            Ok(request) => request,
            Err(reason) => {
                let failure = AttemptFailure::new(reason, "its arguments do not fit the request");
                self.log_failure(&failure, AttemptNumber { number: 1, max }, None, &context);
                return error_result(&failure.reason);
            }
        };
        let time = context.clock.now().until(context.deadline);
        // Attempts end shortly before the deadline, when the caller drops this future: only here is
        // it known whether the request was sent.
        let end = Instant::now() + time.saturating_sub((time / 20).min(Duration::from_millis(100)));
        let mut number = 1;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let attempt =
                Box::pin(self.attempt_once(request.clone(), self.timeout.min(left), &context))
                    .await;
            if let AttemptOutcome::Responded(response) = &attempt
                && response.status.is_success()
            {
                let result = response::convert_response(response, &self.definition, &context).await;
                if result.is_error {
                    let status = Some(response.status.as_u16());
                    let cause = "its result is an error, or could not be read";
                    let failure = AttemptFailure { status, ..AttemptFailure::new("", cause) };
                    self.log_failure(&failure, AttemptNumber { number, max }, None, &context);
                }
                return ToolOutcome::Returned(result);
            }
            let (failure, after) = match self.next_step(attempt, context.clock.now()) {
                NextStep::Fail(failure) => {
                    self.log_failure(&failure, AttemptNumber { number, max }, None, &context);
                    return error_result(&failure.reason);
                }
                NextStep::OutcomeUnknown(failure) => {
                    self.log_failure(&failure, AttemptNumber { number, max }, None, &context);
                    return ToolOutcome::Unknown { reason: failure.reason };
                }
                NextStep::Retry(failure, after) => (failure, after),
            };
            let retry_delay = after.unwrap_or(RETRY_DELAY * 2_u32.pow(number - 1));
            let left = end.saturating_duration_since(Instant::now());
            if number >= max || retry_delay >= left {
                self.log_failure(&failure, AttemptNumber { number, max }, None, &context);
                let attempts_note =
                    if number > 1 { format!(" (Tried {number} times.)") } else { String::new() };
                return error_result(&format!("{}{attempts_note}", failure.reason));
            }
            self.log_failure(&failure, AttemptNumber { number, max }, Some(retry_delay), &context);
            tokio::time::sleep(retry_delay).await;
            number += 1;
        }
    }
}
