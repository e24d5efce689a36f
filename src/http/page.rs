//! The page behind an approval link: plain, accessible, without a script. Looking at it decides nothing.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY};
use http::{HeaderValue, StatusCode};
use sha2::Digest as _;

use crate::agent::request::{Decision, Verdict};
use crate::turn::views::approvals::Approval;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}\
h1{font-size:1.5rem}dt{font-weight:600;margin-top:.75rem}dd{margin:0}pre{background:#f4f4f4;border:1px solid #767676;padding:.75rem;white-space:pre-wrap;overflow-wrap:anywhere}\
label{display:block;font-weight:600;margin:1rem 0 .25rem}textarea{width:100%;box-sizing:border-box;font:inherit}\
button{font:inherit;padding:.6rem 1.2rem;margin:1rem .75rem 0 0;border:2px solid #1b1b1b;background:#fff;color:#1b1b1b;border-radius:.25rem;cursor:pointer}\
button:focus-visible,textarea:focus-visible{outline:3px solid #0a5fd6;outline-offset:2px}\
[role=status],[role=alert]{border-left:.4rem solid #0a5fd6;padding:.5rem 1rem;background:#eef4ff}";

static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
});

/// What there is to show.
#[derive(Debug)]
pub(crate) enum Showing<'a> {
    Open(&'a Approval),
    Settled(&'a Approval, &'a Decision),
    Expired(&'a Approval),
    /// A decision that was refused, and why; the form stays.
    Refused(&'a Approval, &'a str),
}

pub(crate) fn page(status: StatusCode, showing: &Showing<'_>) -> Response {
    let mut response = Response::new(Body::from(html(showing)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// Whatever a link answers: nobody keeps it, nobody learns the address from it, and it runs nothing.
pub(crate) fn seal(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn html(showing: &Showing<'_>) -> String {
    let (approval, title) = match showing {
        Showing::Open(approval) | Showing::Refused(approval, _) => {
            (approval, approval.request.title.clone())
        }
        Showing::Settled(approval, decision) => {
            (approval, format!("{}: {}", said(decision.verdict), approval.request.title))
        }
        Showing::Expired(approval) => (approval, format!("Expired: {}", approval.request.title)),
    };
    let mut body = format!("<h1>{}</h1>", escaped(&title));
    match showing {
        Showing::Settled(approval, decision) => {
            outcome(&mut body, decision);
            if approval.replaced_by.is_some() {
                body.push_str("<p role=\"status\">The tool changed after this decision, so the call has not run. It waits for a new decision under a new link.</p>");
            }
        }
        Showing::Expired(_) => {
            body.push_str("<p role=\"status\">This approval expired. Nothing can be decided here any more.</p>");
        }
        Showing::Refused(_, why) => {
            let _ = write!(body, "<p role=\"alert\">This was not accepted: {}</p>", escaped(why));
        }
        Showing::Open(_) => {}
    }
    facts(&mut body, approval);
    if let Showing::Open(approval) | Showing::Refused(approval, _) = showing {
        form(&mut body, approval);
    }
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
<meta name=\"robots\" content=\"noindex\"><title>{}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>",
        escaped(&title)
    )
}

fn outcome(body: &mut String, decision: &Decision) {
    let _ = write!(
        body,
        "<p role=\"status\">{} by {} at <time>{}</time>. Nothing more can be decided here.</p>",
        said(decision.verdict),
        escaped(&decision.decided_by),
        decision.decided_at
    );
    if let Some(reason) = &decision.reason {
        let _ = write!(body, "<dl><dt>Reason given</dt><dd>{}</dd></dl>", escaped(reason));
    }
}

fn facts(body: &mut String, approval: &Approval) {
    let request = &approval.request;
    body.push_str("<dl>");
    let mut fact = |name: &str, value: &str| {
        let _ = write!(body, "<dt>{name}</dt><dd>{}</dd>", escaped(value));
    };
    fact("Why", &request.reason);
    if let Some(tool) = &request.tool {
        fact("Tool", tool);
    }
    fact("Asked at", &request.requested_at.to_string());
    if let Some(at) = request.expires_at {
        fact("Expires at", &at.to_string());
    }
    fact("Conversation", approval.key.conversation_id.as_str());
    body.push_str("</dl>");
    if let Some(arguments) = &approval.arguments {
        // Pretty-printed only where that changes no digit of what is approved.
        let text = arguments.text();
        let _ = write!(body, "<h2>Arguments</h2><pre>{}</pre>", escaped(&spread(text)));
    }
}

/// JSON text with a line per member; every other character stays as it is.
fn spread(text: &str) -> String {
    let mut spread = String::with_capacity(text.len() * 2);
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut is_escaped = false;
    for letter in text.chars() {
        if in_string {
            spread.push(letter);
            in_string = is_escaped || letter != '"';
            is_escaped = letter == '\\' && !is_escaped;
            continue;
        }
        match letter {
            '"' => {
                in_string = true;
                spread.push(letter);
            }
            '{' | '[' => {
                depth += 1;
                spread.push(letter);
                line(&mut spread, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut spread, depth);
                spread.push(letter);
            }
            ',' => {
                spread.push(letter);
                line(&mut spread, depth);
            }
            ':' => spread.push_str(": "),
            letter if letter.is_whitespace() => {}
            letter => spread.push(letter),
        }
    }
    spread
}

fn line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth.min(32)));
}

fn form(body: &mut String, approval: &Approval) {
    let decisions = approval.request.kind.decisions();
    // Without `action` the form goes to the page's own address, which nobody has to repeat here.
    body.push_str("<form method=\"post\">");
    if decisions.iter().any(|verdict| matches!(verdict, Verdict::Answer | Verdict::Happened)) {
        body.push_str(
            "<label for=\"value\">Answer</label><textarea id=\"value\" name=\"value\" rows=\"3\"></textarea>",
        );
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
            "<button type=\"submit\" name=\"decision\" value=\"{}\">{}</button>",
            verdict.name(),
            offered(*verdict)
        );
    }
    body.push_str("</form>");
}

fn offered(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approve => "Approve",
        Verdict::Reject => "Reject",
        Verdict::Happened => "It happened",
        Verdict::DidNotHappen => "It did not happen",
        Verdict::Again => "Try it again",
        Verdict::Answer => "Send the answer",
        Verdict::Expired => "Expire",
        Verdict::Aborted => "Abort",
    }
}

fn said(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approve => "Approved",
        Verdict::Reject => "Rejected",
        Verdict::Happened => "Settled: it happened",
        Verdict::DidNotHappen => "Settled: it did not happen",
        Verdict::Again => "Settled: tried again",
        Verdict::Answer => "Answered",
        Verdict::Expired => "Expired",
        Verdict::Aborted => "Stopped",
    }
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut safe, letter| {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
        safe
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::raw::RawJson;
    use crate::agent::request::{Request, RequestKind};
    use crate::clock::Timestamp;
    use crate::ids::{ConversationId, ConversationKey, PromptId, RequestId, TenantId, UserId};

    fn approval() -> Approval {
        Approval {
            key: ConversationKey {
                tenant: TenantId::new("t"),
                user: UserId::new("u"),
                conversation_id: ConversationId::new("c1"),
            },
            request: Request {
                id: RequestId::new("rq_1"),
                kind: RequestKind::Tool,
                title: "send_payment".to_owned(),
                reason: "<script>alert(1)</script>".to_owned(),
                prompt_id: PromptId::new("pr_1"),
                call: None,
                tool_call_id: None,
                tool: Some("send_payment".to_owned()),
                effect: None,
                binding: None,
                budget: None,
                schema: None,
                requested_at: Timestamp(0),
                requested_by: UserId::new("u"),
                expires_at: None,
                approvers: vec!["link".to_owned()],
                not_requester: false,
            },
            arguments: Some(
                RawJson::from_text(r#"{"to":"a, {b}\"","amount":250.00000000000000001}"#).unwrap(),
            ),
            decision: None,
            replaced_by: None,
        }
    }

    #[test]
    fn the_page_shows_what_is_asked_digit_by_digit_and_runs_nothing() {
        let html = html(&Showing::Open(&approval()));
        assert!(html.contains("250.00000000000000001"), "{html}");
        assert!(html.contains("&lt;script&gt;") && !html.contains("<script"), "{html}");
        assert!(html.contains("<form method=\"post\">") && html.contains("value=\"reject\""));
        assert!(html.contains("lang=\"en\"") && html.contains("<label for=\"reason\">"));
    }

    #[test]
    fn a_settled_or_expired_page_has_no_form() {
        let mut approval = approval();
        let decision = Decision {
            request_id: RequestId::new("rq_1"),
            verdict: Verdict::Approve,
            reason: Some("fine".to_owned()),
            value: None,
            decided_by: "link".to_owned(),
            decided_at: Timestamp(0),
        };
        let settled = html(&Showing::Settled(&approval, &decision));
        assert!(settled.contains("Approved by link at") && !settled.contains("<form"));
        assert!(!settled.contains("The tool changed"), "{settled}");
        approval.replaced_by = Some(RequestId::new("rq_2"));
        let replaced = html(&Showing::Settled(&approval, &decision));
        assert!(replaced.contains("The tool changed after this decision"), "{replaced}");
        let expired = html(&Showing::Expired(&approval));
        assert!(expired.contains("This approval expired") && !expired.contains("<form"));
    }

    #[test]
    fn spreading_json_changes_nothing_but_blanks() {
        let text = r#"{"a,b":[1.50,{"c":"\\\""},[]],"d":"}"}"#;
        let back: serde_json::Value = serde_json::from_str(&spread(text)).unwrap();
        assert_eq!(back, serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert!(spread(text).contains("1.50"));
    }
}
