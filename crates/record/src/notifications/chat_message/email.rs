//! Notifications as e-mails: a subject, HTML of tables and inline styles, and the same as plain text.
//! Mail clients drop style sheets and scripts, and some of them all but tables.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Message, OPEN_REQUEST};
use turnwheel_json::text::escape_html;
use turnwheel_platform::clock::Timestamp;

const FONT: &str = "font-family:Segoe UI,Helvetica,Arial,sans-serif";
/// Characters of `2026-11-24T12:34`.
const MINUTE_CHARS: usize = 16;

impl Message {
    /// `{subject, html, text}`: the program behind the webhook adds the recipients and sends it.
    pub(super) fn email(&self) -> Value {
        json!({"subject": self.title, "html": self.html(), "text": self.plain_text()})
    }

    fn html(&self) -> String {
        let title = escape_html(&self.title);
        let mut rows = format!(
            "<tr><td style=\"{FONT};font-size:20px;font-weight:bold;color:#1a1a1a;padding:24px 24px 8px\">{title}</td></tr>"
        );
        let mut add_row = |style: &str, content: &str| {
            let _ = write!(
                rows,
                "<tr><td style=\"{FONT};font-size:15px;line-height:22px;color:#1a1a1a;{style}\">{content}</td></tr>"
            );
        };
        if let Some(reason) = &self.reason {
            add_row("padding:8px 24px", &escape_html(reason).replace('\n', "<br>"));
        }
        if !self.facts.is_empty() {
            let facts: String =
                self.facts.iter().map(|fact| fact_row(fact.name, &fact.value)).collect();
            let table = format!(
                "<table role=\"presentation\" cellpadding=\"0\" cellspacing=\"0\" border=\"0\">{facts}</table>"
            );
            add_row("padding:8px 24px", &table);
        }
        if let Some(at) = self.expires_at {
            add_row("padding:8px 24px", &format!("Expires {}", minute_of(at)));
        }
        if let Some(url) = &self.url {
            let link = format!(
                "<a href=\"{}\" style=\"{FONT};display:inline-block;padding:12px 20px;background-color:#0b57d0;color:#ffffff;text-decoration:none;border-radius:4px\">{OPEN_REQUEST}</a>",
                escape_html(url)
            );
            add_row("padding:16px 24px", &link);
        }
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title></head>\
<body style=\"margin:0;padding:0;background-color:#f3f3f3\"><table role=\"presentation\" width=\"100%\" cellpadding=\"0\" cellspacing=\"0\" border=\"0\" style=\"background-color:#f3f3f3\"><tr><td align=\"center\" style=\"padding:16px\">\
<table role=\"presentation\" width=\"600\" cellpadding=\"0\" cellspacing=\"0\" border=\"0\" style=\"width:100%;max-width:600px;background-color:#ffffff\">{rows}</table></td></tr></table></body></html>"
        )
    }

    fn plain_text(&self) -> String {
        let mut parts = vec![self.title.clone()];
        parts.extend(self.reason.clone());
        let facts: Vec<String> =
            self.facts.iter().map(|fact| format!("{}: {}", fact.name, fact.value)).collect();
        parts.extend((!facts.is_empty()).then(|| facts.join("\n")));
        parts.extend(self.expires_at.map(|at| format!("Expires {}", minute_of(at))));
        parts.extend(self.url.as_ref().map(|url| format!("{OPEN_REQUEST}: {url}")));
        parts.join("\n\n")
    }
}

fn fact_row(name: &str, value: &str) -> String {
    format!(
        "<tr><td valign=\"top\" style=\"{FONT};font-size:14px;line-height:20px;color:#5f5f5f;padding:2px 16px 2px 0\">{}</td>\
<td valign=\"top\" style=\"{FONT};font-size:14px;line-height:20px;color:#1a1a1a;padding:2px 0\">{}</td></tr>",
        escape_html(name),
        escape_html(value)
    )
}

/// In UTC: an e-mail cannot show the reader's time zone.
fn minute_of(at: Timestamp) -> String {
    let minute: String = at.to_string().chars().take(MINUTE_CHARS).collect();
    format!("{} UTC", minute.replace('T', " "))
}

#[cfg(test)]
mod tests {
    use super::super::chat_message;
    use super::super::tests::approval;
    use super::*;
    use turnwheel_platform::settings::links::WebhookFormat;

    const HOSTILE: &str = "</td></table><script>alert(1)</script><img src=x onerror=alert(1)>\" style=\"x' \u{202e}\u{1b}[31m\r\nBcc: all@evil.example";

    /// Names of the elements in HTML, each once.
    fn elements(html: &str) -> std::collections::BTreeSet<&str> {
        let names = html.split('<').skip(1).map(|rest| {
            let end = rest.find([' ', '>']).unwrap();
            rest.split_at(end).0.trim_start_matches('/')
        });
        names.collect()
    }

    #[test]
    fn email_shows_the_request_and_its_link() {
        let email = chat_message(WebhookFormat::Email, &approval("Sending 250 to Ada.\nToday."));
        let email = email.unwrap();
        assert_eq!(email["subject"], "May send_payment run?");
        assert_eq!(
            email["text"],
            "May send_payment run?\n\nSending 250 to Ada.\nToday.\n\nAgent: clerk\nRequested by: ada\n\
             Tool: send_payment\nDestination: POST payments.example\n\
             Effect: Changes something. This cannot be undone here.\nConversation: c1\n\n\
             Expires 2026-11-24 12:34 UTC\n\nOpen the request: https://agents.example.com/api/approvals/T?a=1&b=2"
        );
        let html = email["html"].as_str().unwrap();
        for part in [
            "Sending 250 to Ada.<br>Today.",
            "POST payments.example",
            "Expires 2026-11-24 12:34 UTC",
            "<a href=\"https://agents.example.com/api/approvals/T?a=1&amp;b=2\"",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }

    #[test]
    fn texts_of_others_add_no_elements_or_headers() {
        let plain = chat_message(WebhookFormat::Email, &approval("x\ny")).unwrap();
        let known = elements(plain["html"].as_str().unwrap());
        assert!(!known.contains("script") && !known.contains("style"), "{known:?}");
        let mut notification = approval(HOSTILE);
        for pointer in
            ["/data/agent", "/data/userId", "/data/approval/title", "/data/approval/toolName"]
        {
            *notification.pointer_mut(pointer).unwrap() = json!(HOSTILE);
        }
        let hostile = chat_message(WebhookFormat::Email, &notification).unwrap();
        let html = hostile["html"].as_str().unwrap();
        assert_eq!(elements(html), known, "{html}");
        assert!(!html.contains("\" style=\"x") && !html.contains("style=\"x"), "{html}");
        let subject = hostile["subject"].as_str().unwrap();
        assert!(!subject.contains(['\r', '\n']), "{subject:?}");
        let all = hostile.to_string();
        assert!(!all.contains('\u{202e}') && !all.contains("\\u001b"), "{all}");
    }
}
