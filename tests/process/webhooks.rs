//! Webhooks at the receiver: signed, repeated until accepted, with a link for the decision.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use turnwheel::App;

use crate::support::openapi_check::{self, SendValidated as _};
use crate::support::service::Service;

pub(crate) const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) id: String,
    pub(crate) timestamp: String,
    pub(crate) signature: String,
    user_agent: String,
    pub(crate) body: String,
}

#[derive(Clone, Default)]
pub(crate) struct Receiver {
    deliveries: Arc<Mutex<Vec<Delivery>>>,
    arrived: Arc<tokio::sync::Notify>,
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let delivery = Delivery {
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
        user_agent: header("user-agent"),
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    openapi_check::check_webhook(&serde_json::from_str(&delivery.body).unwrap());
    let mut deliveries = receiver.deliveries.lock().unwrap();
    let is_first_attempt = deliveries.iter().all(|earlier| earlier.id != delivery.id);
    deliveries.push(delivery);
    receiver.arrived.notify_waiters();
    if is_first_attempt { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::NO_CONTENT }
}

impl Receiver {
    pub(crate) async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/hook", post(receive)).with_state(self.clone());
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        format!("http://{address}/hook")
    }

    /// Waits for `count` webhooks of a type and returns them.
    pub(crate) async fn until(&self, kind: &str, count: usize) -> Vec<Delivery> {
        let wait = async {
            loop {
                let arrived = self.arrived.notified();
                let deliveries: Vec<Delivery> = self.deliveries.lock().unwrap().clone();
                let deliveries: Vec<Delivery> = deliveries
                    .into_iter()
                    .filter(|delivery| body(delivery)["type"] == kind)
                    .collect();
                if deliveries.len() >= count {
                    return deliveries;
                }
                arrived.await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_mins(1), wait).await.unwrap()
    }
}

fn body(delivery: &Delivery) -> Value {
    serde_json::from_str(&delivery.body).unwrap()
}

/// Starts a service with the agent `payments-clerk` that notifies the receiver.
async fn start(receiver: &Receiver, more: &[(&str, &str)]) -> (tempfile::TempDir, Service) {
    let folder = tempfile::tempdir().unwrap();
    let agents = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("agents");
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::copy(
        agents.join("payments-clerk.agent.md"),
        folder.path().join("agents/payments-clerk.agent.md"),
    )
    .unwrap();
    let url = receiver.start().await;
    let secret = format!("whsec_{SECRET}");
    let mut settings = vec![
        ("TURNWHEEL_WEBHOOK_URL", url.as_str()),
        ("TURNWHEEL_WEBHOOK_SECRET", secret.as_str()),
        ("TURNWHEEL_AUTH", "header"),
    ];
    settings.extend(more);
    let service = Service::start(App::new(), folder.path(), &settings).await;
    (folder, service)
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_webhook_link_decides_the_approval() {
    let receiver = Receiver::default();
    let (_folder, service) = start(&receiver, &[]).await;
    let request = json!({"conversationId": "c", "input": "Pay 250 to Ada"});
    let (status, prompt) = service.post("/api/prompts?wait=60", &request).await;
    assert_eq!((status, &prompt["state"]), (200, &json!("waiting_for_approval")), "{prompt}");
    // The receiver rejected the first attempt; the second has the same id.
    let deliveries = receiver.until("prompt.approval-requested", 2).await;
    assert_eq!(deliveries[0].id, deliveries[1].id);
    let delivery = &deliveries[1];
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&STANDARD.decode(SECRET).unwrap()).unwrap();
    mac.update(format!("{}.{}.{}", delivery.id, delivery.timestamp, delivery.body).as_bytes());
    assert_eq!(delivery.signature, format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())));
    assert_eq!(delivery.user_agent, concat!("turnwheel/", env!("CARGO_PKG_VERSION")));
    let payload = body(delivery);
    assert!(!delivery.body.contains("Pay 250 to Ada"), "no prompt text in a webhook");
    let link = payload["data"]["approval"]["url"].as_str().unwrap();
    assert_eq!(payload["data"]["approvalId"], payload["data"]["requestId"]);
    assert_eq!(payload["data"]["approval"]["toolName"], "send_payment");
    let destination = &payload["data"]["approval"]["destination"];
    let host = destination["host"].as_str().unwrap();
    assert_eq!((&destination["type"], &destination["method"]), (&json!("http"), &json!("POST")));
    let shown = format!("Destination: POST {host}. {link}");
    assert!(payload["text"].as_str().unwrap().ends_with(&shown), "{payload}");
    // A GET never decides.
    let page =
        service.client.get(link).header("accept", "text/html").send_validated().await.unwrap();
    assert!(page.status().is_success());
    let page = page.text().await.unwrap();
    assert!(page.contains(&format!("<dt>Destination</dt><dd>POST {host}</dd>")), "{page}");
    assert_eq!(service.get("/api/conversations/c").await["state"], "waiting_for_approval");
    let form = [("decision", "approve")];
    let body_text = form.map(|(name, value)| format!("{name}={value}")).join("&");
    let decided = service
        .client
        .post(link)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body_text)
        .send_validated()
        .await
        .unwrap();
    assert!(decided.status().is_success(), "{}", decided.status());
    let done = service.wait_for_prompt("c", prompt["id"].as_str().unwrap()).await;
    assert_eq!(done["state"], "completed");
    let completed = receiver.until("prompt.completed", 2).await;
    assert_eq!(body(&completed[0])["data"]["promptId"], prompt["id"]);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_reason_has_each_digit_of_arguments() {
    let receiver = Receiver::default();
    let (_folder, service) = start(&receiver, &[]).await;
    let input =
        r#"use send_payment with {"to":"Ada","amount":250.000000000000000000001} then say done"#;
    let request = json!({"conversationId": "c", "input": input});
    let (status, prompt) = service.post("/api/prompts?wait=60", &request).await;
    assert_eq!((status, &prompt["state"]), (200, &json!("waiting_for_approval")), "{prompt}");
    let deliveries = receiver.until("prompt.approval-requested", 1).await;
    let payload = body(&deliveries[0]);
    let reason = "Sending 250.000000000000000000001 to Ada requires approval.";
    assert_eq!(payload["data"]["approval"]["reason"], reason);
    assert!(payload["text"].as_str().unwrap().contains(reason), "{payload}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn budget_alert_reaches_the_webhook() {
    let receiver = Receiver::default();
    let budgets = r#"{"user": {"month": {"tokens": 1}}}"#;
    let (_folder, service) = start(&receiver, &[("TURNWHEEL_BUDGETS", budgets)]).await;
    let prompt = json!({"conversationId": "c", "input": "Pay 250 to Ada"});
    let (status, prompt) = service.post("/api/prompts?wait=60", &prompt).await;
    assert_eq!((status, &prompt["state"]), (200, &json!("waiting_for_approval")), "{prompt}");
    let deliveries = receiver.until("budget.alert", 2).await;
    assert_eq!(deliveries[0].id, deliveries[1].id, "the receiver refused the first attempt");
    let alert = body(&deliveries[1]);
    let data = &alert["data"];
    let facts = ["level", "period", "unit", "percent", "limit", "conversationId", "userId"];
    assert_eq!(
        facts.map(|name| &data[name]),
        [
            &json!("user"),
            &json!("month"),
            &json!("tokens"),
            &json!(100),
            &json!(1),
            &json!("c"),
            &json!("default")
        ]
    );
    let (used, date) = (data["used"].as_u64().unwrap(), data["date"].as_str().unwrap());
    assert!(used >= 1 && date.len() == "2026-11".len(), "{data}");
    let text =
        format!("100 % of the budget of user default for {date} is used: {used} of 1 tokens.");
    assert_eq!(alert["text"], text);
    service.stop().await;
}

impl Service {
    async fn put_queue_message(&self, text: String) {
        let url = format!("{}/admin/queues/agent-prompts/messages", self.base);
        let response = self.client.post(url).body(text).send_validated().await.unwrap();
        assert_eq!(response.status().as_u16(), 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sender_of_queue_message_learns_its_outcome() {
    let receiver = Receiver::default();
    let (_folder, service) = start(&receiver, &[]).await;
    let message = json!({
        "conversationId": "q", "idempotencyKey": "order-1", "metadata": {"order": "4711"},
        "input": "hello",
    });
    service.put_queue_message(message.to_string()).await;
    let completed = receiver.until("prompt.completed", 1).await;
    let data = &body(&completed[0])["data"];
    assert_eq!(
        (&data["conversationId"], &data["idempotencyKey"]),
        (&json!("q"), &json!("order-1"))
    );
    assert_eq!(data["metadata"]["order"], "4711");
    let id = data["metadata"]["messageId"].as_str().unwrap().to_owned();
    let conversation = service.get("/api/conversations/q").await;
    assert_eq!(conversation["metadata"], json!({"order": "4711", "messageId": id}));

    let refused = json!({
        "conversationId": "r", "idempotencyKey": "order-2", "metadata": {"order": "4712"},
        "userId": "ada", "Input": "secret words",
    });
    service.put_queue_message(refused.to_string()).await;
    let rejected = receiver.until("prompt.rejected", 2).await;
    assert_eq!(rejected[0].id, rejected[1].id, "the receiver refused the first attempt");
    assert!(!rejected[0].body.contains("secret words"), "no prompt text in a webhook");
    let rejected = body(&rejected[1]);
    let data = &rejected["data"];
    let facts = ["conversationId", "tenantId", "userId", "idempotencyKey", "metadata", "reason"];
    assert_eq!(
        facts.map(|name| &data[name]),
        [
            &json!("r"),
            &json!("default"),
            &json!("ada"),
            &json!("order-2"),
            &json!({"order": "4712"}),
            &json!("the message is invalid: unknown field `Input`: write `input` (at /Input)"),
        ]
    );
    assert!(data["messageId"].is_string() && data["messageId"] != json!(id), "{data}");
    service.stop().await;
}

/// HTTP clients find their request by the key that they sent, and never by one of the service.
#[tokio::test(flavor = "multi_thread")]
async fn webhook_repeats_the_idempotency_key_of_the_client() {
    let receiver = Receiver::default();
    let (_folder, service) = start(&receiver, &[]).await;
    let url = format!("{}/api/prompts?wait=10", service.base);
    let body_of = |id: &str| json!({"conversationId": id, "input": "hello"});
    let keyed = service.client.post(&url).header("idempotency-key", "order-3");
    assert!(keyed.json(&body_of("k")).send_validated().await.unwrap().status().is_success());
    assert!(
        service
            .client
            .post(&url)
            .json(&body_of("n"))
            .send_validated()
            .await
            .unwrap()
            .status()
            .is_success()
    );
    let completed = receiver.until("prompt.completed", 2).await;
    let data: Vec<Value> =
        completed.iter().map(|delivery| body(delivery)["data"].clone()).collect();
    for data in data {
        let expected = if data["conversationId"] == "k" { json!("order-3") } else { Value::Null };
        assert_eq!(data["idempotencyKey"], expected, "{data}");
        assert!(data.get("metadata").is_none(), "{data}");
    }
    service.stop().await;
}
