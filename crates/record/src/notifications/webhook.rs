//! Notification senders: webhooks by Standard Webhooks 1.0, and the console.
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::StatusCode;
use serde_json::{Map, Value, json};

use crate::notifications::chat_message::chat_message;
use crate::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_conversation::notification::Notification;
use turnwheel_conversation::request::example_decision;
use turnwheel_platform::clock::{Clock, Timestamp, parse_iso};
use turnwheel_platform::ids::{ConversationKey, RequestId};
use turnwheel_platform::settings::links::WebhookFormat;
use turnwheel_platform::telemetry::trace;
use turnwheel_platform::webhook_signature;

/// Time-out of one request to a receiver.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// Returns the address at which any holder of the link can decide the request.
pub type ApprovalLinkMaker =
    Arc<dyn Fn(&ConversationKey, &RequestId, Timestamp) -> Option<String> + Send + Sync>;

pub struct WebhookSender {
    url: reqwest::Url,
    /// Each secret adds a signature, so that a receiver can change its key without a gap.
    secrets: Vec<Vec<u8>>,
    format: WebhookFormat,
    client: reqwest::Client,
    clock: Arc<dyn Clock>,
    links: ApprovalLinkMaker,
}

impl fmt::Debug for WebhookSender {
    /// Omits the address and the keys: both may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookSender({} keys)", self.secrets.len())
    }
}

impl WebhookSender {
    /// # Errors
    /// The TLS set-up of this machine failed: check its certificates.
    pub fn new(
        url: reqwest::Url,
        secrets: Vec<Vec<u8>>,
        format: WebhookFormat,
        clock: Arc<dyn Clock>,
        links: ApprovalLinkMaker,
    ) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .user_agent(concat!("turnwheel/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self { url, secrets, format, client, clock, links })
    }
}

#[async_trait]
impl NotificationSender for WebhookSender {
    async fn send(&self, key: &ConversationKey, notification: &Notification) -> SendOutcome {
        let mut body = notification_body(key, notification, &self.links);
        if self.format != WebhookFormat::Standard {
            let Some(message) = chat_message(self.format, &body) else {
                return SendOutcome::Accepted;
            };
            body = message;
        }
        let body = body.to_string();
        let timestamp = self.clock.now().0 / 1_000;
        let signed =
            webhook_signature::sign(&self.secrets, &notification.id, timestamp, body.as_bytes());
        let mut request = self
            .client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", &notification.id)
            .header("webhook-timestamp", timestamp);
        if let Some(traceparent) = trace::current_traceparent() {
            request = request.header("traceparent", traceparent);
        }
        if !signed.is_empty() {
            request = request.header("webhook-signature", signed);
        }
        match request.body(body).send().await {
            Ok(response) if response.status().is_success() => SendOutcome::Accepted,
            Ok(response) if response.status() == StatusCode::GONE => SendOutcome::Gone,
            Ok(response) => SendOutcome::RetryLater(format!(
                "the receiver returned status {}",
                response.status().as_u16()
            )),
            Err(error) if error.is_timeout() => SendOutcome::RetryLater(format!(
                "the receiver did not respond within {} s",
                TIMEOUT.as_secs()
            )),
            Err(error) => SendOutcome::RetryLater(format!(
                "the receiver could not be reached: {}",
                error.without_url()
            )),
        }
    }
}

/// `{type, timestamp, data, text}`. An approval request that a link may decide includes the link.
pub(crate) fn notification_body(
    key: &ConversationKey,
    notification: &Notification,
    links: &ApprovalLinkMaker,
) -> Value {
    let mut data = notification.data.to_value();
    let mut text = notification.text.clone();
    if let Some(approval) = data.get_mut("approval").and_then(Value::as_object_mut)
        && let Some(url) = approval_link(key, approval, links)
    {
        text = format!("{text} {url}");
        approval.insert("url".to_owned(), Value::from(url));
    }
    json!({"type": notification.kind, "timestamp": notification.at.to_string(), "data": data, "text": text})
}

fn approval_link(
    key: &ConversationKey,
    approval: &Map<String, Value>,
    links: &ApprovalLinkMaker,
) -> Option<String> {
    let is_by_link =
        approval.get("approvers")?.as_array()?.iter().any(|approver| approver == "link");
    let request = RequestId::new(approval.get("id")?.as_str()?);
    let expires_at = approval.get("expiresAt").and_then(Value::as_str).and_then(parse_iso)?;
    if is_by_link { links(key, &request, expires_at) } else { None }
}

/// Prints approval requests. `dev` uses it if no webhook is configured.
pub struct ConsoleSender {
    links: ApprovalLinkMaker,
    /// Base URL of the API, without `/api`.
    base_url: String,
    print: Arc<dyn Fn(&str) + Send + Sync>,
    /// Ids of the printed requests: a notification may be sent twice.
    printed: Mutex<BTreeSet<String>>,
}

impl fmt::Debug for ConsoleSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConsoleSender")
    }
}

impl ConsoleSender {
    pub fn new(
        links: ApprovalLinkMaker,
        base_url: String,
        print: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Self {
        Self { links, base_url, print, printed: Mutex::default() }
    }
}

#[async_trait]
impl NotificationSender for ConsoleSender {
    async fn send(&self, key: &ConversationKey, notification: &Notification) -> SendOutcome {
        let body = notification_body(key, notification, &self.links);
        if let Some(approval) = body.get("data").and_then(|data| data.get("approval")) {
            self.print_approval(key, &notification.text, approval);
        }
        SendOutcome::Accepted
    }

    fn show_open(&self, key: &ConversationKey, title: &str, mut approval: Value) {
        if let Some(members) = approval.as_object_mut()
            && let Some(url) = approval_link(key, members, &self.links)
        {
            members.insert("url".to_owned(), Value::from(url));
        }
        self.print_approval(key, title, &approval);
    }
}

impl ConsoleSender {
    /// Prints a request once.
    fn print_approval(&self, key: &ConversationKey, title: &str, approval: &Value) {
        let id = approval.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        if self.printed.lock().unwrap_or_else(PoisonError::into_inner).insert(id) {
            (self.print)(&self.render_approval(key, title, approval));
        }
    }

    /// The title, the link if there is one, and the request that decides it.
    fn render_approval(&self, key: &ConversationKey, title: &str, approval: &Value) -> String {
        let member = |name: &str| approval.get(name).and_then(Value::as_str);
        let list = |name: &str| -> Vec<&str> {
            let items = approval.get(name).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).collect()
        };
        let mut text = format!("\n  {title}\n");
        if let Some(url) = member("url") {
            let _ = writeln!(text, "  Decide here: {url}");
        }
        let decisions = list("decisions");
        let mut headers = "-H 'content-type: application/json'".to_owned();
        for (name, value) in [("tenant", key.tenant.as_str()), ("user", key.user.as_str())] {
            if value != "default" {
                let _ = write!(headers, " -H 'turnwheel-{name}: {value}'");
            }
        }
        if let Some(role) = list("approvers").iter().find_map(|one| one.strip_prefix("role:")) {
            let _ = write!(headers, " -H 'turnwheel-roles: {role}'");
        }
        let url = format!(
            "{}/api/conversations/{}/approvals/{}",
            self.base_url,
            key.conversation_id,
            member("id").unwrap_or_default()
        );
        // A first example would suggest how an unknown outcome was.
        let is_outcome = member("kind") == Some("outcome");
        let shown = if is_outcome { decisions.len() } else { 1 };
        let _ = writeln!(text, "  Decide by request ({}):", decisions.join(", "));
        for decision in decisions.iter().take(shown) {
            let body = example_decision(decision, approval.get("budget"), approval.get("schema"));
            let _ = writeln!(text, "    curl -s '{url}' {headers} -d {}", shell_quote(&body));
        }
        text
    }
}

/// JSON as one word of a POSIX shell.
fn shell_quote(body: &Value) -> String {
    format!("'{}'", body.to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use crate::notifications::webhook::*;

    #[test]
    fn console_shows_approval_that_only_the_owner_decides() {
        let console = ConsoleSender::new(
            Arc::new(|_, _, _| Some("https://never".to_owned())),
            "http://127.0.0.1:7071".to_owned(),
            Arc::new(|_| {}),
        );
        let key = |user: &str| {
            let id = turnwheel_platform::ids::ConversationId::new("c1");
            crate::contract::Owner {
                tenant: turnwheel_platform::ids::TenantId::new("default"),
                user: turnwheel_platform::ids::UserId::new(user),
            }
            .conversation_key(id.as_str())
        };
        let approval =
            json!({"id": "rq_1", "decisions": ["approve", "reject"], "approvers": ["owner"]});
        insta::assert_snapshot!(console.render_approval(&key("default"), "Restart web?", &approval), @r#"
        Restart web?
        Decide by request (approve, reject):
          curl -s 'http://127.0.0.1:7071/api/conversations/c1/approvals/rq_1' -H 'content-type: application/json' -d '{"decision":"approve"}'
        "#);
        let text = console.render_approval(&key("ada"), "Restart web?", &approval);
        assert!(text.contains("-H 'turnwheel-user: ada'"), "{text}");
        let commands = |approval: &Value| -> Vec<String> {
            let text = console.render_approval(&key("default"), "x", approval);
            let bodies = text.lines().filter_map(|line| line.split_once(" -d "));
            bodies.map(|(_, body)| body.to_owned()).collect()
        };
        let budget = json!({"id": "rq_1", "kind": "budget", "decisions": ["approve", "reject"],
            "budget": {"unit": "usd", "limit": 0.25, "used": 0.3}});
        assert_eq!(commands(&budget), [r#"'{"decision":"approve","value":0.6}'"#]);
        let tokens = json!({"id": "rq_1", "kind": "budget", "decisions": ["approve", "reject"],
            "budget": {"unit": "tokens", "limit": 1000, "used": 10}});
        assert_eq!(commands(&tokens), [r#"'{"decision":"approve","value":2000}'"#]);
        let question = json!({"id": "rq_1", "kind": "question", "decisions": ["answer", "reject"],
            "schema": {"type": "string", "enum": ["it's fine", "no"]}});
        assert_eq!(commands(&question), [r#"'{"decision":"answer","value":"it'\''s fine"}'"#]);
        // No default claims that the call happened.
        let outcome = json!({"id": "rq_1", "kind": "outcome", "decisions": ["happened", "did_not_happen", "again"]});
        assert_eq!(
            commands(&outcome),
            [
                r#"'{"decision":"happened"}'"#,
                r#"'{"decision":"did_not_happen"}'"#,
                r#"'{"decision":"again"}'"#
            ]
        );
    }

    #[test]
    fn console_prints_a_request_once() {
        let printed = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&printed);
        let console = ConsoleSender::new(
            Arc::new(|_, _, _| Some("https://link".to_owned())),
            "http://127.0.0.1:7071".to_owned(),
            Arc::new(move |text: &str| kept.lock().unwrap().push(text.to_owned())),
        );
        let owner = crate::contract::Owner {
            tenant: turnwheel_platform::ids::TenantId::new("default"),
            user: turnwheel_platform::ids::UserId::new("default"),
        };
        let key = owner.conversation_key("c1");
        let approval = json!({"id": "rq_1", "decisions": ["approve"], "approvers": ["link"],
            "expiresAt": "2027-01-01T00:00:00.000Z"});
        console.show_open(&key, "Restart web?", approval.clone());
        console.show_open(&key, "Restart web?", approval);
        let printed = printed.lock().unwrap();
        assert_eq!(printed.len(), 1, "{printed:?}");
        assert!(printed[0].contains("Decide here: https://link"), "{printed:?}");
    }
}
