//! Tests of the page of an approval link.

use super::*;
use turnwheel_conversation::request::{Effect, Request};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{
    ConversationId, ConversationKey, PromptId, RequestId, TenantId, UserId,
};

fn approval() -> ApprovalRecord {
    ApprovalRecord {
        key: ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new("c1"),
        },
        agent: "clerk".to_owned(),
        replaced_by: None,
        sent: None,
        request: Request {
            id: RequestId::new("rq_1"),
            kind: RequestKind::Tool,
            title: "send_payment".to_owned(),
            reason: "<script>alert(1)</script>".to_owned(),
            prompt_id: PromptId::new("pr_1"),
            input_id: None,
            call: None,
            tool_call_id: None,
            tool: Some("send_payment".to_owned()),
            label: Some("Send <money>".to_owned()),
            effect: Some(Effect::Write),
            arguments: None,
            binding: None,
            destination: None,
            budget: None,
            schema: None,
            asker: None,
            requested_at: Timestamp(0),
            requested_by: UserId::new("u"),
            expires_at: None,
            approvers: vec!["link".to_owned()],
            is_requester_excluded: false,
            refusal: None,
        },
        arguments: Some(
            RawJson::from_text(r#"{"to":"a, {b}\"","amount":250.00000000000000001}"#).unwrap(),
        ),
        decision: None,
    }
}

#[test]
fn approval_page_shows_exact_arguments_and_no_script() {
    let html = render_page(&PageState::Open(&approval(), &context()));
    assert!(html.contains("250.00000000000000001"), "{html}");
    assert!(html.contains("&lt;script&gt;") && !html.contains("<script"), "{html}");
    assert!(html.contains("<form method=\"post\">") && html.contains("value=\"reject\""));
    assert!(html.contains("lang=\"en\"") && html.contains("<label for=\"reason\">"));
}

#[test]
fn approval_page_shows_characters_that_reorder_text() {
    let mut approval = approval();
    let arguments = RawJson::from_text("{\"account\":\"\u{202e}987654<\u{200b}\"}").unwrap();
    approval.arguments = Some(arguments);
    approval.agent = "cle\u{202e}rk".to_owned();
    let html = render_page(&PageState::Open(&approval, &context()));
    let shown = "<pre>{\n  &quot;account&quot;: &quot;\\u202E987654&lt;\\u200B&quot;\n}</pre>";
    assert!(html.contains(shown), "{html}");
    assert!(html.contains("<dt>Agent</dt><dd>clerk</dd>"), "{html}");
    assert!(html.contains("direction:ltr;unicode-bidi:isolate"), "{html}");
    assert!(!html.contains(['\u{202e}', '\u{200b}']), "{html}");
}

#[test]
fn approval_page_shows_agent_requester_effect_and_times() {
    let html = render_page(&PageState::Open(&approval(), &context()));
    for part in [
        "<dt>Agent</dt><dd>clerk</dd>",
        "<dt>Requested by</dt><dd>u</dd>",
        "cannot be undone",
        "<time datetime=\"1970-01-01T00:00:00.000Z\">1 January 1970, 00:00 UTC</time>",
    ] {
        assert!(html.contains(part), "{part} is missing in {html}");
    }
}

#[test]
fn outcome_page_warns_of_repeated_effect() {
    let mut approval = approval();
    approval.request.kind = RequestKind::Outcome;
    let html = render_page(&PageState::Open(&approval, &context()));
    assert!(html.contains("this may do it twice"), "{html}");
    assert!(html.contains("Response of the tool (optional"), "{html}");
}

#[test]
fn decided_page_shows_decision() {
    let mut approval = approval();
    let decision = |verdict, by: &str| Decision {
        request_id: RequestId::new("rq_1"),
        verdict,
        reason: None,
        value: None,
        decided_by: by.to_owned(),
        decided_at: Timestamp(0),
    };
    let expired = decision(Verdict::Expired, "expiry");
    let page = render_page(&PageState::Decided(&approval, &expired));
    assert!(page.contains("before a decision") && !page.contains("by expiry"), "{page}");
    let approved = decision(Verdict::Approve, "ann");
    let page = render_page(&PageState::Decided(&approval, &approved));
    assert!(page.contains("Approved by <bdi>ann</bdi> at") && page.contains("no longer"), "{page}");
    approval.replaced_by = Some(RequestId::new("rq_2"));
    let page = render_page(&PageState::Decided(&approval, &approved));
    assert!(page.contains("The tool changed after this decision"), "{page}");
}

#[test]
fn decided_or_expired_page_has_no_form() {
    let approval = approval();
    let decision = Decision {
        request_id: RequestId::new("rq_1"),
        verdict: Verdict::Approve,
        reason: Some("fine".to_owned()),
        value: None,
        decided_by: "link".to_owned(),
        decided_at: Timestamp(0),
    };
    let settled = render_page(&PageState::Decided(&approval, &decision));
    assert!(settled.contains("Approved with an approval link at") && !settled.contains("<form"));
    let expired = render_page(&PageState::Expired(&approval));
    assert!(expired.contains("This approval expired") && !expired.contains("<form"));
}

fn context() -> RequestContext {
    let message = |is_of_user, text: &str| PathText { is_of_user, text: text.to_owned() };
    let messages =
        vec![message(true, "Pay <b>Ada</b> 250."), message(false, "I ask first.\u{202e}")];
    RequestContext { messages, now: Timestamp(0) }
}

#[test]
fn open_page_shows_the_last_messages_and_the_time_left() {
    let mut approval = approval();
    approval.request.expires_at = Some(Timestamp(7 * 86_400_000 - 1));
    let html = render_page(&PageState::Open(&approval, &context()));
    for part in [
        "<p><b>User</b></p><blockquote>Pay &lt;b&gt;Ada&lt;/b&gt; 250.</blockquote>",
        "<p><b>Agent</b></p><blockquote>I ask first.</blockquote>",
        "</time> (6 days 23 hours left)</dd>",
    ] {
        assert!(html.contains(part), "{part} is missing in {html}");
    }
    let expired = render_page(&PageState::Expired(&approval));
    assert!(!expired.contains("Last messages") && !expired.contains("left)"), "{expired}");
    let silent = RequestContext { messages: Vec::new(), now: Timestamp(0) };
    let html = render_page(&PageState::Open(&approval, &silent));
    assert!(!html.contains("Last messages"), "{html}");
}
