//! HTML page of an approval link: plain, accessible, without scripts.

mod arguments;
mod remaining_time;

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY};
use http::{HeaderValue, StatusCode};
use serde_json::Value;
use sha2::Digest as _;

use crate::problem::Problem;
use arguments::pretty_print;
use remaining_time::remaining_time;
use turnwheel_conversation::request::{Decision, RequestKind, Verdict, labelled_name};
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::{LINE_CHARS_MAX, escape_html, sanitize_line, sanitize_lines};
use turnwheel_platform::clock::Timestamp;
use turnwheel_queries::approvals::ApprovalRecord;
use turnwheel_queries::tree::PathText;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}\
h1{font-size:1.5rem}dt{font-weight:600;margin-top:.75rem}dd{margin:0}pre{background:#f4f4f4;border:1px solid #767676;padding:.75rem;white-space:pre-wrap;overflow-wrap:anywhere;direction:ltr;unicode-bidi:isolate}\
label{display:block;font-weight:600;margin:1rem 0 .25rem}select{font:inherit;max-width:100%}textarea{width:100%;box-sizing:border-box;font:inherit}\
button{font:inherit;padding:.6rem 1.2rem;margin:1rem .75rem 0 0;border:2px solid #1b1b1b;background:#fff;color:#1b1b1b;border-radius:.25rem;cursor:pointer}\
button[value=approve]{background:#0b6b2e;border-color:#0b6b2e;color:#fff;font-weight:600}\
button[value=reject]{border-color:#a4161a;color:#a4161a}\
blockquote{margin:0 0 1rem;padding:.1rem 1rem;border-left:.2rem solid #767676;white-space:pre-wrap;overflow-wrap:anywhere}\
.note{border-left:.4rem solid #a4161a;padding:.25rem 1rem}\
button:focus-visible,select:focus-visible,textarea:focus-visible{outline:3px solid #0a5fd6;outline-offset:2px}\
[role=status],[role=alert]{border-left:.4rem solid #0a5fd6;padding:.5rem 1rem;background:#eef4ff}";

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

static CONTENT_SECURITY: LazyLock<String> = LazyLock::new(|| {
    let hash = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
});

/// State of the approval request that a page shows.
#[derive(Debug)]
pub(crate) enum PageState<'a> {
    Open(&'a ApprovalRecord, &'a RequestContext),
    Decided(&'a ApprovalRecord, &'a Decision),
    Expired(&'a ApprovalRecord),
    /// An invalid decision with its error. The page keeps the form.
    InvalidDecision(&'a ApprovalRecord, &'a RequestContext, &'a str),
}

/// Context of an open request, for its approver.
#[derive(Debug)]
pub(crate) struct RequestContext {
    /// The last messages of the conversation, oldest first.
    pub(crate) messages: Vec<PathText>,
    pub(crate) now: Timestamp,
}

/// Characters of a message that the page shows.
const MESSAGE_CHARS_MAX: usize = 2_000;

pub(crate) fn page_response(status: StatusCode, state: &PageState<'_>) -> Response {
    let mut response = Response::new(Body::from(render_page(state)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HTML);
    response
}

/// Sets the security headers of all responses to approval links: no caching, no referrer, no
/// scripts.
pub(crate) fn set_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    if let Ok(policy) = HeaderValue::from_str(&CONTENT_SECURITY) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn render_page(state: &PageState<'_>) -> String {
    let (approval, title) = match state {
        PageState::Open(approval, _) | PageState::InvalidDecision(approval, _, _) => {
            (approval, approval.request.title.clone())
        }
        PageState::Decided(approval, decision) => (
            approval,
            format!(
                "{}: {}",
                decision_text(approval.request.kind, decision.verdict),
                approval.request.title
            ),
        ),
        PageState::Expired(approval) => (approval, format!("Expired: {}", approval.request.title)),
    };
    let mut body = format!("<h1>{}</h1>", escape_line(&title));
    match state {
        PageState::Decided(_, decision) => write_outcome(&mut body, decision, approval),
        PageState::Expired(_) => {
            body.push_str(
                "<p role=\"status\">This approval expired. It can no longer be decided.</p>",
            );
        }
        PageState::InvalidDecision(_, _, error) => {
            let _ = write!(
                body,
                "<p role=\"alert\">The decision was not accepted: {}</p>",
                escape_line(error)
            );
        }
        PageState::Open(..) => {}
    }
    let context = match state {
        PageState::Open(_, context) | PageState::InvalidDecision(_, context, _) => Some(*context),
        PageState::Decided(..) | PageState::Expired(_) => None,
    };
    write_details(&mut body, approval, context);
    if let Some(context) = context {
        write_messages(&mut body, &context.messages);
        write_form(&mut body, approval);
    }
    render_document(&title, &body)
}

fn render_document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
<meta name=\"robots\" content=\"noindex\"><title>{}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>",
        escape_line(title)
    )
}

/// Renders a problem as a page. The status stays the same.
pub(crate) fn problem_page(problem: Problem) -> Response {
    let title = problem.kind.title;
    let body = format!(
        "<h1>{}</h1><p role=\"alert\">{}</p>",
        escape_html(title),
        escape_line(&problem.detail)
    );
    let html = render_document(title, &body);
    let mut response = problem.into_response();
    *response.body_mut() = Body::from(html);
    response.headers_mut().insert(CONTENT_TYPE, HTML);
    response
}

fn write_outcome(body: &mut String, decision: &Decision, approval: &ApprovalRecord) {
    let at = render_time(decision.decided_at);
    let text = decision_text(approval.request.kind, decision.verdict);
    let sentence = match (decision.verdict, decision.decided_by.as_str()) {
        (Verdict::Expired, _) => {
            format!("The approval expired at {at}, before a decision.")
        }
        (Verdict::Aborted, _) => format!("The prompt was aborted at {at}, before a decision."),
        (_, "link") => format!("{text} with an approval link at {at}."),
        (_, user) => format!("{text} by <bdi>{}</bdi> at {at}.", escape_line(user)),
    };
    let rest = if approval.replaced_by.is_some() {
        "The tool changed after this decision, so the call needs a new approval. Open the newer link, or list the open approvals."
    } else {
        "It can no longer be decided."
    };
    let _ = write!(body, "<p role=\"status\">{sentence} {rest}</p>");
    if let Some(reason) = &decision.reason {
        let _ = write!(body, "<dl><dt>Reason given</dt><dd>{}</dd></dl>", escape_line(reason));
    }
}

fn write_details(body: &mut String, approval: &ApprovalRecord, context: Option<&RequestContext>) {
    let request = &approval.request;
    body.push_str("<dl>");
    let mut detail = |name: &str, html: &str| {
        let _ = write!(body, "<dt>{name}</dt><dd>{html}</dd>");
    };
    let label = if request.kind == RequestKind::Question { "Question" } else { "Why" };
    detail(label, &escape_html(&sanitize_lines(&request.reason, LINE_CHARS_MAX)));
    if let Some(tool) = &request.tool {
        detail("Tool", &escape_line(&labelled_name(tool, request.label.as_deref())));
    }
    if let Some(destination) = &request.destination {
        detail("Destination", &escape_line(&destination.to_string()));
    }
    if let Some(effect) = request.effect {
        detail("Effect", effect.describe());
    }
    detail("Agent", &escape_line(&approval.agent));
    detail("Requested by", &escape_line(request.requested_by.as_str()));
    detail("Requested at", &render_time(request.requested_at));
    if let Some(at) = request.expires_at {
        let left = context.and_then(|context| remaining_time(context.now, at));
        let left = left.map(|left| format!(" ({left} left)")).unwrap_or_default();
        detail("Expires at", &format!("{}{left}", render_time(at)));
    }
    detail("Conversation", &escape_line(approval.key.conversation_id.as_str()));
    body.push_str("</dl>");
    if let Some(arguments) = &approval.arguments {
        let text = pretty_print(arguments.text());
        let _ = write!(body, "<h2>Arguments</h2><pre>{}</pre>", escape_html(&text));
    }
}

fn write_messages(body: &mut String, messages: &[PathText]) {
    if messages.is_empty() {
        return;
    }
    body.push_str("<h2>Last messages</h2>");
    for message in messages {
        let author = if message.is_of_user { "User" } else { "Agent" };
        let text = escape_html(&sanitize_lines(&message.text, MESSAGE_CHARS_MAX));
        let _ = write!(body, "<p><b>{author}</b></p><blockquote>{text}</blockquote>");
    }
}

/// Renders a time, readable and exact for programs. In UTC: without scripts the reader's time zone
/// is unknown.
fn render_time(at: Timestamp) -> String {
    let millis = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let text = millis.map(|time| time.strftime("%-d %B %Y, %H:%M UTC").to_string());
    format!("<time datetime=\"{at}\">{}</time>", text.unwrap_or_else(|| at.to_string()))
}

/// Explains the decisions about a write whose response was lost.
const OUTCOME_NOTE: &str = "<div class=\"note\"><p>The request was sent, and its response was lost. Check the other system first.</p>\
<ul><li><b>It happened</b>: the agent continues with it as done.</li>\
<li><b>It did not happen</b>: the agent reads that the call failed.</li>\
<li><b>Try it again</b>: the same request is sent once more. If the first one arrived, this may do it twice, \
unless the other system recognises its <code>Idempotency-Key</code>.</li></ul></div>";

const OUTCOME_FIELD: &str = "<label for=\"value\">Response of the tool (optional, for “It happened”)</label>\
<textarea id=\"value\" name=\"value\" rows=\"3\"></textarea>";

/// Writes the field of an answer: yes or no, a choice, or a text.
fn write_answer_field(body: &mut String, schema: Option<&RawJson>) {
    let schema = schema.map(RawJson::to_value).unwrap_or_default();
    body.push_str("<label for=\"value\">Answer</label>");
    let options: Vec<(&str, &str)> = match schema.get("enum").and_then(Value::as_array) {
        Some(options) => options.iter().filter_map(Value::as_str).map(|it| (it, it)).collect(),
        None if schema.get("type").is_some_and(|kind| kind == "boolean") => {
            vec![("true", "Yes"), ("false", "No")]
        }
        None => {
            let hint = schema.get("description").and_then(Value::as_str).unwrap_or_default();
            let limit = schema.get("maxLength").and_then(Value::as_u64);
            let limit = limit.map(|max| format!(" maxlength=\"{max}\"")).unwrap_or_default();
            let _ = write!(
                body,
                "<textarea id=\"value\" name=\"value\" rows=\"3\" placeholder=\"{}\"{limit}></textarea>",
                escape_line(hint)
            );
            return;
        }
    };
    // The first option is blank, so that no decision is sent without a choice.
    body.push_str("<select id=\"value\" name=\"value\" required><option value=\"\"></option>");
    for (value, label) in options {
        let (value, label) = (escape_html(value), escape_line(label));
        let _ = write!(body, "<option value=\"{value}\">{label}</option>");
    }
    body.push_str("</select>");
}

fn write_form(body: &mut String, approval: &ApprovalRecord) {
    let decisions = approval.request.kind.decisions();
    // Without `action` the form is sent to the page's own address.
    body.push_str("<form method=\"post\">");
    if approval.request.kind == RequestKind::Outcome {
        body.push_str(OUTCOME_NOTE);
    }
    match approval.request.kind {
        RequestKind::Question => write_answer_field(body, approval.request.schema.as_ref()),
        RequestKind::Outcome => body.push_str(OUTCOME_FIELD),
        RequestKind::Tool | RequestKind::Budget => {}
    }
    if let Some(budget) = &approval.request.budget {
        let _ = write!(
            body,
            "<label for=\"value\">New limit in {}</label><input id=\"value\" name=\"value\" type=\"number\" step=\"any\">",
            budget.unit.name()
        );
    }
    body.push_str(
        "<label for=\"reason\">Reason (optional)</label><textarea id=\"reason\" name=\"reason\" rows=\"2\" maxlength=\"4096\"></textarea>",
    );
    for verdict in decisions {
        let _ = write!(
            body,
            "<button type=\"submit\" name=\"decision\" value=\"{}\"{}>{}</button>",
            verdict.name(),
            // A blank field does not keep an approver from this decision.
            if *verdict == Verdict::Reject { " formnovalidate" } else { "" },
            button_label(approval.request.kind, *verdict)
        );
    }
    body.push_str("</form>");
}

fn button_label(kind: RequestKind, verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approve => "Approve",
        Verdict::Reject if kind == RequestKind::Question => "Decline to answer",
        Verdict::Reject => "Reject",
        Verdict::Happened => "It happened",
        Verdict::DidNotHappen => "It did not happen",
        Verdict::Again => "Try it again",
        Verdict::Answer => "Send the answer",
        Verdict::Expired => "Expire",
        Verdict::Aborted => "Abort",
    }
}

fn decision_text(kind: RequestKind, verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approve => "Approved",
        Verdict::Reject if kind == RequestKind::Question => "Declined",
        Verdict::Reject => "Rejected",
        Verdict::Happened => "Settled: it happened",
        Verdict::DidNotHappen => "Settled: it did not happen",
        Verdict::Again => "Settled: try it again",
        Verdict::Answer => "Answered",
        Verdict::Expired => "Expired",
        Verdict::Aborted => "Aborted",
    }
}

/// A text that others have written, as one line without characters that hide or reorder it.
fn escape_line(text: &str) -> String {
    escape_html(&sanitize_line(text, LINE_CHARS_MAX))
}

#[cfg(test)]
mod tests;
