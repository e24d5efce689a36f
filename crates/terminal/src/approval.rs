//! Approval requests: their text for an approver, and the decisions.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::text_encoding::skip_byte_order_mark;

use crate::error::TerminalError;
use crate::members::{json_line, member, pretty_json, text, text_at, texts};
use crate::sanitize::{clean_line, clean_text};
use crate::style::Style;
use crate::wrap::{Layout, wrap_text, wrap_verbatim};

const INDENT: &str = "  ";

/// Renders a request with all its arguments, whose numbers have each digit.
pub(crate) fn render_request(layout: Layout, approval: &ExactJson) -> Vec<String> {
    let title =
        format!("? {} [{}]", clean_line(text(approval, "title")), clean_line(text(approval, "id")));
    let mut rows = wrap_text(layout, "", &title, Style::ALERT);
    let mut add = |line: &str, style: Style| rows.extend(wrap_text(layout, INDENT, line, style));
    let reason = clean_text(text(approval, "reason"));
    if !reason.is_empty() {
        add(&reason, Style::PLAIN);
    }
    if text(approval, "kind") == "outcome" {
        let sent = text_at(approval, &["sent", "sentAt"]).unwrap_or_default();
        add(
            &format!(
                "The request was sent at {}. The process stopped before the response arrived.",
                local_time(sent)
            ),
            Style::PLAIN,
        );
    }
    if let Some(destination) = member(approval, "destination") {
        add(&format!("to: {}", describe_destination(destination)), Style::PLAIN);
    }
    if let Some(budget) = member(approval, "budget") {
        add(&clean_line(&json_line(budget)), Style::PLAIN);
    }
    if let Some(arguments) = member(approval, "arguments") {
        let pretty = clean_text(&pretty_json(arguments));
        rows.extend(wrap_verbatim(layout, INDENT, &pretty, Style::CODE));
    }
    let mut add = |line: &str, style: Style| rows.extend(wrap_text(layout, INDENT, line, style));
    let mut facts = Vec::new();
    match text(approval, "effect") {
        "" => {}
        "write" => facts.push("effect: write, cannot be undone".to_owned()),
        effect => facts.push(format!("effect: {}", clean_line(effect))),
    }
    match text(approval, "expiresAt") {
        "" => {}
        at => facts.push(format!("expires {}", local_time(at))),
    }
    let approvers = texts(approval, "approvers");
    if !approvers.is_empty() {
        facts.push(clean_line(&format!("by {}", approvers.join(" or "))));
    }
    if !facts.is_empty() {
        add(&facts.join(" · "), Style::DIM);
    }
    rows
}

fn describe_destination(destination: &ExactJson) -> String {
    let parts = ["method", "host", "server"].map(|name| text(destination, name));
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    clean_line(&parts.join(" "))
}

/// A time in the zone of this machine, without fractions.
pub(crate) fn local_time(time: &str) -> String {
    let Ok(time) = time.parse::<Timestamp>() else { return clean_line(time) };
    time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Time of day in the zone of this machine.
pub(crate) fn local_clock(time: &str) -> String {
    let Ok(time) = time.parse::<Timestamp>() else { return String::new() };
    time.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// One row about a decided request. `decision` has `decision`, `decidedBy`, and the reason under `reason_member`.
pub(crate) fn describe_decision(title: &str, decision: &ExactJson, reason_member: &str) -> String {
    let name = text(decision, "decision").replace('_', " ");
    let by = clean_line(text(decision, "decidedBy"));
    let reason = clean_line(text(decision, reason_member));
    let suffix = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    format!("{} {}, decided by `{by}`{suffix}", clean_line(title), clean_line(&name))
}

/// A decision of an approver.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TerminalDecision {
    pub(crate) name: String,
    pub(crate) value: Option<RawJson>,
    pub(crate) reason: Option<String>,
}

impl TerminalDecision {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), value: None, reason: None }
    }

    pub(crate) fn body(&self) -> RawJson {
        let mut body = vec![("decision".to_owned(), RawJson::from_value(&self.name))];
        body.extend(self.value.clone().map(|value| ("value".to_owned(), value)));
        let reason = self.reason.as_ref().map(RawJson::from_value);
        body.extend(reason.map(|reason| ("reason".to_owned(), reason)));
        RawJson::from_members(body)
    }

    /// # Errors
    /// The request has no such decision: the text lists those that it has.
    pub(crate) fn check(&self, approval: &ExactJson) -> Result<(), TerminalError> {
        let allowed = texts(approval, "decisions");
        if allowed.contains(&self.name.as_str()) {
            return Ok(());
        }
        let allowed: Vec<String> = allowed.iter().map(|name| format!("`{name}`")).collect();
        Err(TerminalError::Arguments(format!(
            "the request {} has no decision `{}`: use {}",
            text(approval, "id"),
            self.name,
            allowed.join(", ")
        )))
    }
}

/// A value as typed: JSON with its text, or else a string.
pub(crate) fn parse_value(text: &str) -> RawJson {
    let text = skip_byte_order_mark(text);
    RawJson::from_text(text).unwrap_or_else(|_| RawJson::from_value(&text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::members::{exact, parse_json};

    #[test]
    fn request_shows_all_arguments_without_escape_sequences() {
        let approval = exact(&json!({
            "id": "rq_1", "title": "May send_payment run?\u{1b}[2J", "kind": "tool", "effect": "write",
            "reason": "Sending 250", "arguments": {"to": "Ada\u{202e}\u{1b}[8m", "note": "x".repeat(100)},
            "destination": {"type": "http", "method": "POST", "host": "pay.example"},
            "approvers": ["owner", "link"],
        }));
        let layout = Layout { width: 40, is_coloured: false };
        let rows = render_request(layout, &approval);
        assert_eq!(rows[0], "? May send_payment run? [rq_1]");
        let text = rows.join("\n");
        assert!(
            text.contains("to: POST pay.example") && text.contains("cannot be undone"),
            "{text}"
        );
        assert!(text.contains("Ada⟦U+202E⟧"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!(
            text.matches('x').count(),
            101,
            "nothing is cut, and one x is of `example`: {text}"
        );
    }

    #[test]
    fn decisions_outside_the_request_are_refused() {
        let decisions = ["happened", "did_not_happen", "again"];
        let approval = exact(&json!({"id": "rq_1", "decisions": decisions}));
        assert!(TerminalDecision::new("again").check(&approval).is_ok());
        let error = TerminalDecision::new("approve").check(&approval).unwrap_err().to_string();
        assert!(error.ends_with("use `happened`, `did_not_happen`, `again`"), "{error}");
        let decision =
            TerminalDecision { reason: Some("late".to_owned()), ..TerminalDecision::new("reject") };
        assert_eq!(decision.body().text(), r#"{"decision":"reject","reason":"late"}"#);
    }

    #[test]
    fn request_shows_each_digit_of_its_arguments() {
        let written = r#"{"id":"rq_1","title":"May pay run?","arguments":{"account":25122920421210000012345,"amount":100.00000000000000000001,"rates":[1.10,1e400]},"budget":{"limit":12345678901234567890}}"#;
        let approval = parse_json(written.as_bytes()).unwrap();
        let rows = render_request(Layout { width: 60, is_coloured: false }, &approval);
        let expected = [
            "? May pay run? [rq_1]",
            r#"  {"limit":12345678901234567890}"#,
            "  {",
            r#"    "account": 25122920421210000012345,"#,
            r#"    "amount": 100.00000000000000000001,"#,
            r#"    "rates": ["#,
            "      1.10,",
            "      1e400",
            "    ]",
            "  }",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn typed_value_is_sent_with_its_text() {
        for (typed, sent) in [
            ("25122920421210000012345", "25122920421210000012345"),
            ("100.00000000000000000001", "100.00000000000000000001"),
            ("1e400", "1e400"),
            (" {\"a\": 1.10}\n", r#"{"a": 1.10}"#),
            ("\u{feff}{\"a\": 1.10}", r#"{"a": 1.10}"#),
            ("yes, please", r#""yes, please""#),
            ("007", r#""007""#),
            ("\"7\"", r#""7""#),
        ] {
            let value = Some(parse_value(typed));
            let decision = TerminalDecision { value, ..TerminalDecision::new("happened") };
            let expected = format!(r#"{{"decision":"happened","value":{sent}}}"#);
            assert_eq!(decision.body().text(), expected);
        }
    }
}
