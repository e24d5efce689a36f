//! HTTP tools: a call is a request to a service of the user's, tried again only where that is safe.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{HeaderValue, StatusCode, header};
use tokio::time::{Instant, timeout_at};

use crate::agent::raw::RawJson;
use crate::agent::request::Effect;
use crate::clock::Timestamp;
use crate::tools::http::answer::refusal_text;
use crate::tools::http::attempt::{Answer, Attempt, attempt};
use crate::tools::http::client::HttpClient;
use crate::tools::http::request::RequestTemplate;
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
pub mod template;
mod text;

/// Of calls that may be repeated; the key is the same each time.
const ATTEMPTS_MAX: u32 = 3;
/// Before the second attempt; doubled before the third.
const PAUSE: Duration = Duration::from_millis(200);
/// Letters of an argument in the reason of an approval.
const REASON_ARGUMENT_LETTERS: usize = 200;
/// Letters of such a reason.
const REASON_LETTERS: usize = 1_000;

/// When a person is asked, and what.
#[derive(Debug)]
pub struct Approval {
    /// Arguments that fit are asked about; absent: all.
    pub when: Option<jsonschema::Validator>,
    pub reason: Template,
    /// `owner`, `link`, `role:NAME`; never empty.
    pub approvers: Vec<String>,
    pub not_requester: bool,
    pub expires_after: Duration,
}

/// A tool as an agent file describes it.
pub struct HttpTool {
    definition: ToolDefinition,
    request: RequestTemplate,
    /// Of one attempt.
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

/// What to do after an attempt.
enum Next {
    Done(ToolOutcome),
    /// If the effect and the time allow it; else this is the answer.
    Again {
        reason: String,
        after: Option<Duration>,
    },
}

impl HttpTool {
    /// `definition.timeout` is that of one attempt; the tool's own definition has the time of all of them.
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
        let again = |reason: String| Next::Again { reason, after: None };
        match attempt {
            Attempt::Refused => Next::Done(failed(
                "The tool's server may not be reached: its address is private or local, and the operator has not listed it.",
            )),
            Attempt::NeverSent(reason) => again(format!(
                "The tool's server could not be reached: {reason}. Nothing was sent."
            )),
            Attempt::NoToken(reason) => {
                let tool = &self.definition.name;
                tracing::warn!(tool.name = %tool, error = %reason,
                    "the tool {tool} could not sign in");
                again("The tool's service wants a token of the app's identity, and there is none. Nothing was sent.".to_owned())
            }
            Attempt::Lost(reason) if is_write => Next::Done(ToolOutcome::Unknown { reason }),
            Attempt::Lost(reason) => again(format!("The tool did not answer: {reason}.")),
            Attempt::Answered(answer) => self.judge(&answer, now),
        }
    }

    /// An answer other than 2xx.
    fn judge(&self, answer: &Answer, now: Timestamp) -> Next {
        let status = answer.status;
        let text = self.redactor.hide(&refusal_text(answer));
        let said = if text.is_empty() { ".".to_owned() } else { format!(":\n{text}") };
        if status.is_redirection() {
            return Next::Done(failed(&format!(
                "The tool answered {status}, a redirect, which is not followed: its url must be the final one."
            )));
        }
        let reason = format!("The tool answered {status}{said}");
        let after = retry_after(answer.header(&header::RETRY_AFTER), now);
        if status == StatusCode::TOO_MANY_REQUESTS {
            return Next::Again { reason, after };
        }
        if status.is_server_error() {
            return match self.definition.effect {
                // It stands in a request for a person, which is small and one line.
                Effect::Write => {
                    Next::Done(ToolOutcome::Unknown { reason: plain_line(&reason, REASON_LETTERS) })
                }
                Effect::Read | Effect::Idempotent => Next::Again { reason, after },
            };
        }
        Next::Done(failed(&reason))
    }

    async fn one(&self, request: request::Request, time: Duration) -> Attempt {
        let mut attempt = Box::pin(self.sent(request, time)).await;
        if let Attempt::Answered(answer) = &mut attempt {
            answer.rewrite(|text| self.redactor.hide_keys(text));
        }
        attempt
    }

    async fn sent(&self, mut request: request::Request, time: Duration) -> Attempt {
        let Ok(client) = self.client.of(&request.url, self.definition.effect) else {
            return Attempt::Refused;
        };
        let Some(scope) = &self.request.entra else {
            return attempt(client, request, time).await;
        };
        let until = Instant::now() + time;
        let token = match timeout_at(until, self.client.token(scope)).await {
            Ok(Ok(token)) => token,
            Ok(Err(reason)) => return Attempt::NoToken(reason),
            Err(_) => return Attempt::NoToken(format!("no Entra token for {scope} came in time")),
        };
        let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", token.reveal())) else {
            return Attempt::NoToken(format!("the Entra token for {scope} is no legal header"));
        };
        value.set_sensitive(true);
        request.headers.insert(header::AUTHORIZATION, value);
        let left = until.saturating_duration_since(Instant::now());
        let mut attempt = attempt(client, request, left).await;
        if let Attempt::Answered(answer) = &mut attempt {
            answer.hide(token.reveal());
        }
        attempt
    }
}

fn failed(text: &str) -> ToolOutcome {
    ToolOutcome::Returned(ToolResult::error(text))
}

/// Seconds or an HTTP date.
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

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let request =
            match Given::of(&arguments).and_then(|given| self.request.fill(&given, &context)) {
                Ok(request) => request,
                Err(reason) => return failed(&reason),
            };
        let time = context.clock.now().until(context.deadline);
        // A little before the deadline, where the caller lets go: here it is still known whether anything was sent.
        let end = Instant::now() + time.saturating_sub((time / 20).min(Duration::from_millis(100)));
        let mut number = 1;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let attempt = Box::pin(self.one(request.clone(), self.timeout.min(left))).await;
            if let Attempt::Answered(answer) = &attempt
                && answer.status.is_success()
            {
                let result = answer::read(answer, &self.definition, &context).await;
                return ToolOutcome::Returned(result);
            }
            let (reason, after) = match self.after(attempt, context.clock.now()) {
                Next::Done(outcome) => return outcome,
                Next::Again { reason, after } => (reason, after),
            };
            let pause = after.unwrap_or(PAUSE * 2_u32.pow(number - 1));
            let left = end.saturating_duration_since(Instant::now());
            let is_last = number >= ATTEMPTS_MAX || self.definition.effect == Effect::Write;
            if is_last || pause >= left {
                let tried =
                    if number > 1 { format!(" (Tried {number} times.)") } else { String::new() };
                return failed(&format!("{reason}{tried}"));
            }
            let (tool, effect) = (&self.definition.name, &context.effect_id);
            tracing::warn!(tool.name = %tool, effect.id = %effect, attempt = number,
                "call {effect} of the tool {tool} failed on attempt {number} and is tried again");
            tokio::time::sleep(pause).await;
            number += 1;
        }
    }
}
