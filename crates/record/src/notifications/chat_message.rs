//! Notifications as messages for people: Slack (Block Kit), Microsoft Teams (Adaptive Cards) and
//! e-mail (HTML). Every text of others is plain text: none becomes a link, a mention or markup.
//! <https://docs.slack.dev/reference/block-kit/blocks>,
//! <https://learn.microsoft.com/en-us/microsoftteams/platform/webhooks-and-connectors/how-to/connectors-using>

mod email;

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use turnwheel_conversation::destination::Destination;
use turnwheel_conversation::request::Effect;
use turnwheel_json::text::{sanitize_line, sanitize_lines};
use turnwheel_platform::clock::{Timestamp, parse_iso};
use turnwheel_platform::settings::links::WebhookFormat;

/// Slack refuses a header of more than 150 characters; a cut adds one.
const TITLE_CHARS_MAX: usize = 149;
/// Slack refuses a text of more than 3,000 characters, and Teams a message of more than 28 KB.
const REASON_CHARS_MAX: usize = 2_000;
const LINE_CHARS_MAX: usize = 300;
const OPEN_REQUEST: &str = "Open the request";

/// Notifications that people of a channel act on. The others are too many for a channel.
const KINDS: [&str; 4] =
    ["prompt.approval-requested", "prompt.error", "prompt.rejected", "budget.alert"];

/// Body of the request that shows a notification in a channel, made from its Standard Webhooks
/// body. `None`: a channel does not get this kind.
pub(crate) fn chat_message(format: WebhookFormat, notification: &Value) -> Option<Value> {
    let kind = notification.get("type").and_then(Value::as_str)?;
    if !KINDS.contains(&kind) {
        return None;
    }
    let message = Message::read(notification);
    match format {
        WebhookFormat::Standard => None,
        WebhookFormat::Slack => Some(message.slack()),
        WebhookFormat::Teams => Some(message.teams()),
        WebhookFormat::Email => Some(message.email()),
    }
}

/// Content of a message, in plain text.
struct Message {
    title: String,
    /// The notification as one text: for lists and for devices without blocks.
    summary: String,
    reason: Option<String>,
    facts: Vec<Fact>,
    expires_at: Option<Timestamp>,
    /// The approval link.
    url: Option<String>,
}

struct Fact {
    name: &'static str,
    value: String,
}

impl Message {
    fn read(notification: &Value) -> Self {
        let none = Map::new();
        let object = |value: Option<&Value>| value.and_then(Value::as_object).cloned();
        let data = object(notification.get("data")).unwrap_or_else(|| none.clone());
        let approval = object(data.get("approval")).unwrap_or(none);
        let line = |members: &Map<String, Value>, name: &str| {
            members
                .get(name)
                .and_then(Value::as_str)
                .map(|text| sanitize_line(text, LINE_CHARS_MAX))
        };
        let text = notification.get("text").and_then(Value::as_str).unwrap_or_default();
        let destination = approval
            .get("destination")
            .and_then(|destination| Destination::deserialize(destination).ok())
            .map(|destination| sanitize_line(&destination.to_string(), LINE_CHARS_MAX));
        let effect = approval.get("effect").and_then(|effect| Effect::deserialize(effect).ok());
        let facts = [
            ("Agent", line(&data, "agent")),
            ("Requested by", line(&data, "userId")),
            ("Tool", line(&approval, "toolLabel").or_else(|| line(&approval, "toolName"))),
            ("Destination", destination),
            ("Effect", effect.map(|effect| effect.describe().to_owned())),
            ("Error", line(&data, "error")),
            ("Conversation", line(&data, "conversationId")),
        ];
        let reason = approval.get("reason").or_else(|| data.get("reason")).and_then(Value::as_str);
        let expires_at = approval.get("expiresAt").and_then(Value::as_str).and_then(parse_iso);
        let title = approval.get("title").and_then(Value::as_str).unwrap_or(text);
        Self {
            title: sanitize_line(title, TITLE_CHARS_MAX),
            summary: sanitize_line(text, LINE_CHARS_MAX),
            reason: reason.map(|text| sanitize_lines(text, REASON_CHARS_MAX)),
            facts: facts
                .into_iter()
                .filter_map(|(name, value)| Some(Fact { name, value: value? }))
                .collect(),
            expires_at,
            url: approval.get("url").and_then(Value::as_str).map(str::to_owned),
        }
    }

    /// A message of an incoming webhook of Slack. Slack shows times in the reader's time zone.
    fn slack(&self) -> Value {
        let plain = |text: String| json!({"type": "plain_text", "text": text, "emoji": false});
        let mut blocks = vec![json!({"type": "header", "text": plain(self.title.clone())})];
        if let Some(reason) = &self.reason {
            blocks.push(json!({"type": "section", "text": plain(reason.clone())}));
        }
        if !self.facts.is_empty() {
            let field = |fact: &Fact| plain(format!("{}\n{}", fact.name, fact.value));
            let fields: Vec<Value> = self.facts.iter().map(field).collect();
            blocks.push(json!({"type": "section", "fields": fields}));
        }
        if let Some(at) = self.expires_at {
            let text = format!(
                "Expires <!date^{}^{{date_short_pretty}} at {{time}}|at {at}>",
                at.0 / 1_000
            );
            let element = json!({"type": "mrkdwn", "text": text});
            blocks.push(json!({"type": "context", "elements": [element]}));
        }
        if let Some(url) = &self.url {
            // A link and no button: a button would also call the Slack app, which has no address.
            let text = format!("<{}|{OPEN_REQUEST}>", escape_slack(url));
            blocks.push(json!({"type": "section", "text": {"type": "mrkdwn", "text": text}}));
        }
        json!({"text": escape_slack(&self.summary), "blocks": blocks})
    }

    /// A message of a workflow of Microsoft Teams. Teams shows times in the reader's time zone.
    /// A text block would read Markdown; a text run does not.
    fn teams(&self) -> Value {
        let run = |text: &str| json!({"type": "TextRun", "text": text});
        let title =
            json!({"type": "TextRun", "text": self.title, "size": "Medium", "weight": "Bolder"});
        let mut body = vec![json!({"type": "RichTextBlock", "inlines": [title]})];
        if let Some(reason) = &self.reason {
            body.push(json!({"type": "RichTextBlock", "inlines": [run(reason)]}));
        }
        for fact in &self.facts {
            let name = format!("{}: ", fact.name);
            let name = json!({"type": "TextRun", "text": name, "weight": "Bolder"});
            let inlines = json!([name, run(&fact.value)]);
            body.push(json!({"type": "RichTextBlock", "inlines": inlines, "spacing": "Small"}));
        }
        if let Some(at) = self.expires_at {
            // Whole seconds: Teams shows a time with a fraction as it is.
            let at = Timestamp(at.0 / 1_000 * 1_000).to_string().replace(".000Z", "Z");
            let text = format!("Expires {{{{DATE({at},SHORT)}}}} at {{{{TIME({at})}}}}");
            body.push(json!({"type": "TextBlock", "text": text, "wrap": true, "isSubtle": true}));
        }
        let action =
            |url: &String| json!({"type": "Action.OpenUrl", "title": OPEN_REQUEST, "url": url});
        let actions: Vec<Value> = self.url.iter().map(action).collect();
        let card = json!({
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard", "version": "1.4", "body": body, "actions": actions,
            "fallbackText": self.summary,
        });
        let attachment = json!({
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": null, "content": card,
        });
        json!({"type": "message", "attachments": [attachment]})
    }
}

/// The characters that begin links, mentions and times in a text of Slack.
fn escape_slack(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn approval(reason: &str) -> Value {
        json!({
            "type": "prompt.approval-requested", "timestamp": "2026-11-23T12:34:03.512Z",
            "data": {
                "conversationId": "c1", "tenantId": "default", "userId": "ada", "agent": "clerk",
                "approval": {
                    "id": "rq_1", "kind": "tool", "title": "May send_payment run?", "reason": reason,
                    "toolName": "send_payment", "effect": "write",
                    "destination": {"type": "http", "method": "POST", "host": "payments.example"},
                    "expiresAt": "2026-11-24T12:34:03.512Z",
                    "url": "https://agents.example.com/api/approvals/T?a=1&b=2",
                },
            },
            "text": format!("May send_payment run? {reason}"),
        })
    }

    /// The texts of a message, in the order of the message.
    fn texts(message: &Value) -> Vec<&str> {
        match message {
            Value::Array(items) => items.iter().flat_map(texts).collect(),
            Value::Object(members) => members
                .iter()
                .flat_map(|(name, value)| {
                    let text = value.as_str().filter(|_| name == "text" || name == "url");
                    text.map_or_else(|| texts(value), |text| vec![text])
                })
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        }
    }

    #[test]
    fn messages_show_the_request_and_its_link() {
        let approval = approval("Sending 250 to Ada.");
        let slack = chat_message(WebhookFormat::Slack, &approval).unwrap();
        assert_eq!(
            texts(&slack),
            [
                "May send_payment run? Sending 250 to Ada.",
                "May send_payment run?",
                "Sending 250 to Ada.",
                "Agent\nclerk",
                "Requested by\nada",
                "Tool\nsend_payment",
                "Destination\nPOST payments.example",
                "Effect\nChanges something. This cannot be undone here.",
                "Conversation\nc1",
                "Expires <!date^1795523643^{date_short_pretty} at {time}|at 2026-11-24T12:34:03.512Z>",
                "<https://agents.example.com/api/approvals/T?a=1&amp;b=2|Open the request>",
            ]
        );
        let teams = chat_message(WebhookFormat::Teams, &approval).unwrap();
        let shown = texts(&teams).join("|").replace(": |", ": ");
        assert_eq!(
            shown.split('|').collect::<Vec<_>>(),
            [
                "May send_payment run?",
                "Sending 250 to Ada.",
                "Agent: clerk",
                "Requested by: ada",
                "Tool: send_payment",
                "Destination: POST payments.example",
                "Effect: Changes something. This cannot be undone here.",
                "Conversation: c1",
                "Expires {{DATE(2026-11-24T12:34:03Z,SHORT)}} at {{TIME(2026-11-24T12:34:03Z)}}",
                "https://agents.example.com/api/approvals/T?a=1&b=2",
            ]
        );
    }

    /// Texts of others: mentions, links, markup, control characters, and more than a service takes.
    #[test]
    fn texts_of_others_stay_plain_text() {
        let hostile = "<!channel> <https://evil.example|Approve> [a](https://evil.example) {{DATE(x)}} \u{202e}\u{1b}[31m";
        for reason in [hostile.to_owned(), "x".repeat(100_000)] {
            let mut notification = approval(&reason);
            notification["data"]["agent"] = json!(reason);
            let slack = chat_message(WebhookFormat::Slack, &notification).unwrap();
            assert!(!slack["text"].as_str().unwrap().contains('<'), "{slack}");
            for block in slack["blocks"].as_array().unwrap() {
                let texts = [&block["text"], &block["elements"][0]];
                let markup = texts.iter().find(|text| text["type"] == "mrkdwn");
                assert!(markup.is_none_or(|text| !text.to_string().contains("evil")), "{block}");
            }
            let teams = chat_message(WebhookFormat::Teams, &notification).unwrap();
            let card = &teams["attachments"][0]["content"];
            let blocks = card["body"].as_array().unwrap();
            let texts = blocks.iter().filter(|block| block["type"] == "TextBlock");
            assert!(texts.into_iter().all(|block| !block.to_string().contains("evil")), "{card}");
            for text in [slack.to_string(), teams.to_string()] {
                assert!(!text.contains('\u{202e}') && !text.contains("\\u001b"), "{text}");
                assert!(text.len() < 28_000, "{} bytes", text.len());
            }
        }
    }

    #[test]
    fn channel_gets_notifications_that_need_a_person() {
        let notification =
            |kind: &str| json!({"type": kind, "data": {"agent": "ops"}, "text": "x"});
        for (kind, is_sent) in [
            ("prompt.error", true),
            ("budget.alert", true),
            ("prompt.rejected", true),
            ("prompt.completed", false),
            ("tool.result", false),
        ] {
            let message = chat_message(WebhookFormat::Slack, &notification(kind));
            assert_eq!(message.is_some(), is_sent, "{kind}");
            assert_eq!(chat_message(WebhookFormat::Standard, &notification(kind)), None);
        }
    }
}
