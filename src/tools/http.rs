//! HTTP tools: a call is a request to a service of the app. It is retried only if that is safe.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{HeaderValue, StatusCode, header};
use tokio::time::{Instant, timeout_at};

use crate::agent::raw::RawJson;
use crate::agent::request::Effect;
use crate::clock::Timestamp;
use crate::tools::cap::cap_progress;
use crate::tools::http::answer::refusal_text;
use crate::tools::http::attempt::{Answer, Attempt, attempt};
use crate::tools::http::client::HttpClient;
use crate::tools::http::request::RequestTemplate;
use crate::tools::http::stream::Progress;
use crate::tools::http::template::{Given, Redactor, Template};
use crate::tools::http::text::plain_line;
use crate::tools::{
    Arguments, Ask, RunTool, TIMEOUT_MAX, ToolContext, ToolDefinition, ToolOutcome, ToolResult,
};

pub mod address;
pub mod addresses;
mod answer;
pub mod attempt;
pub mod client;
mod full_result;
#[cfg(test)]
mod fuzz;
pub mod request;
mod stream;
pub mod template;
mod text;

/// Attempts of a repeatable call. All attempts have the same idempotency key.
const ATTEMPTS_MAX: u32 = 3;
/// Pause before the second attempt; doubled before the third.
const PAUSE: Duration = Duration::from_millis(200);
/// Characters of one argument in the reason of an approval request.
const REASON_ARGUMENT_LETTERS: usize = 200;
/// Characters of the reason of an approval request.
const REASON_LETTERS: usize = 1_000;

/// Approval rule of an HTTP tool.
#[derive(Debug)]
pub struct Approval {
    /// Calls whose arguments are valid by this schema need an approval; `None`: all calls.
    pub when: Option<jsonschema::Validator>,
    pub reason: Template,
    /// `owner`, `link`, `role:NAME`; never empty.
    pub approvers: Vec<String>,
    pub not_requester: bool,
    pub expires_after: Duration,
}

/// An HTTP tool of an agent file.
pub struct HttpTool {
    definition: ToolDefinition,
    request: RequestTemplate,
    /// Time-out of one attempt.
    timeout: Duration,
    approval: Option<Approval>,
    client: HttpClient,
    redactor: Redactor,
}

impl fmt::Debug for HttpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpTool({})", self.definition.name)
    }
}

/// A failed attempt.
struct Failure {
    /// Text for the model, or for the approver of a call with unknown outcome.
    reason: String,
    /// Text for the log, without data of the call.
    cause: String,
    status: Option<u16>,
}

impl Failure {
    fn new(reason: impl Into<String>, cause: impl Into<String>) -> Self {
        Self { reason: reason.into(), cause: cause.into(), status: None }
    }
}

/// Next step after a failed attempt.
enum Next {
    Done(Failure),
    /// The request may have had its effect.
    Unknown(Failure),
    /// Retry after that time, if the effect and the deadline allow it.
    Again(Failure, Option<Duration>),
}

impl HttpTool {
    /// `definition.timeout` is the time-out of one attempt. The tool's own definition has the
    /// time-out of all attempts together.
    pub fn new(
        definition: ToolDefinition,
        request: RequestTemplate,
        approval: Option<Approval>,
        client: HttpClient,
    ) -> Self {
        let timeout = definition.timeout;
        let whole = match definition.effect {
            Effect::Write => timeout,
            Effect::Read | Effect::Idempotent => timeout * ATTEMPTS_MAX + PAUSE * 3,
        };
        let definition = ToolDefinition { timeout: whole.min(TIMEOUT_MAX), ..definition };
        let redactor = Redactor::new(request.secrets());
        Self { definition, request, timeout, approval, client, redactor }
    }

    fn after(&self, attempt: Attempt, now: Timestamp) -> Next {
        let is_write = self.definition.effect == Effect::Write;
        let again = |reason: String, cause: String| {
            Next::Again(Failure { reason, cause, status: None }, None)
        };
        match attempt {
            Attempt::Refused => Next::Done(Failure::new(
                "The tool's server may not be reached: its address is private or local, and the operator has not listed it.",
                "its address is private or local and not listed in TURNWHEEL_HTTP_TOOLS_ALLOW",
            )),
            Attempt::NeverSent(cause) => again(
                format!("The tool's server could not be reached: {cause}. Nothing was sent."),
                cause,
            ),
            Attempt::NoToken(cause) => again(
                "The tool's service needs a token of the app's identity, and there is none. Nothing was sent.".to_owned(),
                cause,
            ),
            Attempt::Lost(cause) if is_write => {
                Next::Unknown(Failure::new(cause.clone(), cause))
            }
            Attempt::Lost(cause) => again(format!("The tool did not respond: {cause}."), cause),
            Attempt::Answered(answer) => self.judge(&answer, now),
        }
    }

    /// Chooses the next step after a response with a status other than 2xx.
    fn judge(&self, answer: &Answer, now: Timestamp) -> Next {
        let status = answer.status;
        let text = self.redactor.hide(&refusal_text(answer));
        let said = if text.is_empty() { ".".to_owned() } else { format!(":\n{text}") };
        let is_write = self.definition.effect == Effect::Write;
        let failure = |reason: String| Failure {
            reason,
            cause: format!("the server responded {status}"),
            status: Some(status.as_u16()),
        };
        if status.is_redirection() {
            let text = format!(
                "The tool responded {status}, a redirect, which is not followed: its url must be the final one."
            );
            // Many servers send a redirect after they have done the work.
            return if is_write { Next::Unknown(failure(text)) } else { Next::Done(failure(text)) };
        }
        let failure = failure(format!("The tool responded {status}{said}"));
        let after = retry_after(answer.header(&header::RETRY_AFTER), now);
        if status == StatusCode::TOO_MANY_REQUESTS {
            return Next::Again(failure, after);
        }
        // A gateway sends 408 for an upstream server that may still process the request.
        let is_lost = status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT;
        match self.definition.effect {
            // The reason becomes part of an approval request, which needs one short line.
            Effect::Write if is_lost => {
                let reason = plain_line(&failure.reason, REASON_LETTERS);
                Next::Unknown(Failure { reason, ..failure })
            }
            Effect::Read | Effect::Idempotent if status.is_server_error() => {
                Next::Again(failure, after)
            }
            Effect::Read | Effect::Idempotent | Effect::Write => Next::Done(failure),
        }
    }

    async fn one(
        &self,
        request: request::Request,
        time: Duration,
        context: &ToolContext,
    ) -> Attempt {
        let progress = |text: &str| {
            let hidden = self.redactor.hide_keys(text);
            let partial = stream::partial_result(hidden.as_deref().unwrap_or(text));
            (context.progress)(cap_progress(&partial).as_ref().unwrap_or(&partial));
        };
        let mut attempt = Box::pin(self.sent(request, time, &progress)).await;
        if let Attempt::Answered(answer) = &mut attempt {
            answer.rewrite(|text| self.redactor.hide_keys(text));
        }
        attempt
    }

    async fn sent(
        &self,
        mut request: request::Request,
        time: Duration,
        progress: Progress<'_>,
    ) -> Attempt {
        let Ok(client) = self.client.of(&request.url, self.definition.effect) else {
            return Attempt::Refused;
        };
        let Some(scope) = &self.request.entra else {
            return attempt(client, request, time, progress).await;
        };
        let until = Instant::now() + time;
        let token = match timeout_at(until, self.client.token(scope)).await {
            Ok(Ok(token)) => token,
            Ok(Err(reason)) => return Attempt::NoToken(reason),
            Err(_) => return Attempt::NoToken(format!("the Entra token for {scope} timed out")),
        };
        let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", token.reveal())) else {
            return Attempt::NoToken(format!("the Entra token for {scope} is not a header value"));
        };
        value.set_sensitive(true);
        request.headers.insert(header::AUTHORIZATION, value);
        let left = until.saturating_duration_since(Instant::now());
        let progress = |text: &str| progress(&text.replace(token.reveal(), "[token]"));
        let mut attempt = attempt(client, request, left, &progress).await;
        if let Attempt::Answered(answer) = &mut attempt {
            answer.hide(token.reveal());
        }
        attempt
    }

    /// Logs a failed attempt without data of the call.
    fn log_failure(
        &self,
        failure: &Failure,
        (number, max): (u32, u32),
        retry_in: Option<Duration>,
        context: &ToolContext,
    ) {
        let Failure { cause, status, .. } = failure;
        let retry_in = retry_in.map(|pause| format!("{}ms", pause.as_millis()));
        tracing::warn!(
            tool = %self.definition.name,
            status,
            attempt = %format_args!("{number}/{max}"),
            retry_in,
            cause,
            conversation.id = %context.shelf.key.conversation_id,
            effect.id = %context.effect_id,
            "tool call failed"
        );
    }
}

fn failed(text: &str) -> ToolOutcome {
    ToolOutcome::Returned(ToolResult::error(text))
}

/// Parses a `Retry-After` header: seconds or an HTTP date.
fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(value).ok()?.timestamp().as_millisecond();
    Some(Duration::from_millis(u64::try_from(at).ok()?.saturating_sub(now.0)))
}

#[async_trait]
impl RunTool for HttpTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn ask(&self, arguments: &Arguments) -> Option<Ask> {
        let approval = self.approval.as_ref()?;
        if approval.when.as_ref().is_some_and(|when| !when.is_valid(&arguments.value)) {
            return None;
        }
        let given = Given::of(arguments).ok();
        let shown = |name: &str| {
            let raw = given.as_ref().and_then(|given| given.get(name));
            let text = raw.map_or_else(
                || "(not given)".to_owned(),
                |raw| raw.read::<String>().unwrap_or_else(|_| RawJson::text(raw).to_owned()),
            );
            Ok::<_, std::convert::Infallible>(plain_line(&text, REASON_ARGUMENT_LETTERS))
        };
        let reason = approval.reason.render(shown).unwrap_or_default();
        Some(Ask {
            reason: plain_line(&reason, REASON_LETTERS),
            approvers: approval.approvers.clone(),
            not_requester: approval.not_requester,
            expires_after: approval.expires_after,
        })
    }

    fn logs_failures(&self) -> bool {
        true
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let max = if self.definition.effect == Effect::Write { 1 } else { ATTEMPTS_MAX };
        let request =
            match Given::of(&arguments).and_then(|given| self.request.fill(&given, &context)) {
                Ok(request) => request,
                Err(reason) => {
                    let failure = Failure::new(reason, "its arguments do not fit the request");
                    self.log_failure(&failure, (1, max), None, &context);
                    return failed(&failure.reason);
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
                Box::pin(self.one(request.clone(), self.timeout.min(left), &context)).await;
            if let Attempt::Answered(answer) = &attempt
                && answer.status.is_success()
            {
                let result = answer::read(answer, &self.definition, &context).await;
                if result.is_error {
                    let status = Some(answer.status.as_u16());
                    let cause = "its result is an error, or could not be read";
                    let failure = Failure { status, ..Failure::new("", cause) };
                    self.log_failure(&failure, (number, max), None, &context);
                }
                return ToolOutcome::Returned(result);
            }
            let (failure, after) = match self.after(attempt, context.clock.now()) {
                Next::Done(failure) => {
                    self.log_failure(&failure, (number, max), None, &context);
                    return failed(&failure.reason);
                }
                Next::Unknown(failure) => {
                    self.log_failure(&failure, (number, max), None, &context);
                    return ToolOutcome::Unknown { reason: failure.reason };
                }
                Next::Again(failure, after) => (failure, after),
            };
            let pause = after.unwrap_or(PAUSE * 2_u32.pow(number - 1));
            let left = end.saturating_duration_since(Instant::now());
            if number >= max || pause >= left {
                self.log_failure(&failure, (number, max), None, &context);
                let tried =
                    if number > 1 { format!(" (Tried {number} times.)") } else { String::new() };
                return failed(&format!("{}{tried}", failure.reason));
            }
            self.log_failure(&failure, (number, max), Some(pause), &context);
            tokio::time::sleep(pause).await;
            number += 1;
        }
    }
}
