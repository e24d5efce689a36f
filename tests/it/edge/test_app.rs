//! Test service in this process: requests go to the router, and a test runs deliveries explicitly.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::ServiceExt as _;
use turnwheel::models::ScriptedModel;
use turnwheel::testing::agents::{AgentDefinition, Catalog};
use turnwheel::testing::artifacts::MemoryArtifacts;
use turnwheel::testing::clock::{Clock as _, ManualClock, Timestamp};
use turnwheel::testing::commands::contract::Owner;
use turnwheel::testing::fail_points::{FailPoints, NoFailPoints};
use turnwheel::testing::http::api::Api;
use turnwheel::testing::http::approval_token::{LinkClaims, SigningKeys};
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::ids::{ConversationKey, RequestId, SeededIds, WorkerId};
use turnwheel::testing::live::EmbeddedLive;
use turnwheel::testing::queue;
use turnwheel::testing::queue::{MemoryQueue, Queue as _, QueueFaults};
use turnwheel::testing::services::{ServicePorts, Services};
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::MemoryStore;
use turnwheel::testing::tools::workspace::builtins;
use turnwheel::testing::tools::{
    ApprovalRequirement, Arguments, CallableTool, ToolContext, ToolDefinition, ToolOutcome,
};
use turnwheel::testing::turn::delivery;
use turnwheel::testing::turn::nudge::Nudge;
use turnwheel::{Effect, OnUnknown, ToolResult};

pub(super) use crate::support::api_response::ApiResponse;
use crate::support::openapi_check::{self, Exchange};

/// Makes payments. An amount over 100 requires approval; `slowly` makes the call wait for its
/// release.
#[derive(Debug)]
pub(super) struct Pay {
    definition: ToolDefinition,
    pub(super) payments: Arc<Mutex<Vec<Value>>>,
    pub(super) has_started: Arc<Notify>,
    pub(super) can_end: Arc<Notify>,
}

impl Pay {
    fn new() -> Self {
        let definition = ToolDefinition {
            is_strict: false,
            name: "pay".to_owned(),
            label: "pay".to_owned(),
            description: "Pays.".to_owned(),
            parameters: json!({"type": "object", "properties": {"amount": {"type": "number"}, "slowly": {"type": "boolean"}}}),
            effect: Effect::Write,
            on_unknown: OnUnknown::Ask,
            timeout: Duration::from_secs(30),
            revision: "1".to_owned(),
        };
        Self {
            definition,
            payments: Arc::default(),
            has_started: Arc::default(),
            can_end: Arc::default(),
        }
    }
}

#[async_trait]
impl CallableTool for Pay {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn required_approval(&self, arguments: &Arguments) -> Option<ApprovalRequirement> {
        let amount = arguments.value["amount"].as_f64().unwrap_or(0.0);
        (amount > 100.0).then(|| ApprovalRequirement {
            reason: format!("Paying {amount} requires approval."),
            approvers: if amount > 10_000.0 {
                vec!["role:Boss".to_owned()]
            } else {
                vec!["owner".to_owned(), "link".to_owned(), "role:Boss".to_owned()]
            },
            is_requester_excluded: amount > 1_000.0,
            expires_after: Duration::from_hours(24),
        })
    }

    async fn call(&self, arguments: Arguments, _: ToolContext) -> ToolOutcome {
        if arguments.value["slowly"] == true {
            self.has_started.notify_one();
            self.can_end.notified().await;
        }
        self.payments.lock().unwrap().push(arguments.value.clone());
        ToolOutcome::Returned(ToolResult::json(&json!({"receipt": "R-1"})))
    }
}

fn clerk(tools: Vec<Arc<dyn CallableTool>>) -> AgentDefinition {
    AgentDefinition {
        name: "clerk".to_owned(),
        description: "Pays.".to_owned(),
        instructions: "Pay what you are asked to.".into(),
        mcp: Vec::new(),
        tools,
        revision: "r1".to_owned(),
        ..AgentDefinition::default()
    }
}

pub(super) struct TestApp {
    pub(super) services: Arc<Services>,
    pub(super) store: Arc<MemoryStore>,
    pub(super) queue: Arc<MemoryQueue>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) keys: SigningKeys,
    pub(super) pay: Arc<Pay>,
    pub(super) router: Router,
}

pub(super) struct TestRequest<'a> {
    app: &'a TestApp,
    builder: http::request::Builder,
    body: Body,
}

impl TestRequest<'_> {
    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    pub(super) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    /// Sets another user of the tenant, with roles.
    pub(super) fn user(self, user: &str, roles: &str) -> Self {
        self.header("turnwheel-user", user).header("turnwheel-roles", roles)
    }

    pub(super) fn body(mut self, bytes: impl Into<Body>) -> Self {
        self.body = bytes.into();
        self
    }

    pub(super) fn json(self, body: &Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string())
    }

    pub(super) async fn send_streaming(self) -> http::Response<Body> {
        let request = self.builder.body(self.body).unwrap();
        self.app.router.clone().oneshot(request).await.unwrap()
    }

    /// Sends the request and validates the response against the OpenAPI document.
    pub(super) async fn send(self) -> ApiResponse {
        let method = self.builder.method_ref().cloned().unwrap_or_default();
        let uri = self.builder.uri_ref().cloned().unwrap_or_default();
        let response = self.send_unvalidated().await;
        openapi_check::check_response(&Exchange {
            method: &method,
            path: uri.path(),
            query: uri.query().unwrap_or_default(),
            status: response.status.as_u16(),
            headers: &response.headers,
            text: &response.text,
        });
        response
    }

    pub(super) async fn send_unvalidated(self) -> ApiResponse {
        let response = self.send_streaming().await;
        let (status, headers) = (response.status(), response.headers().clone());
        openapi_check::check_headers(&headers);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        ApiResponse { status, headers, text: String::from_utf8_lossy(&bytes).into_owned() }
    }
}

impl TestApp {
    pub(super) fn new() -> Self {
        Self::with(Arc::new(MemoryStore::new()), Arc::new(NoFailPoints), Auth::Header)
    }

    pub(super) fn with(
        store: Arc<MemoryStore>,
        fail_points: Arc<dyn FailPoints>,
        auth: Auth,
    ) -> Self {
        Self::with_access(store, fail_points, Access { auth, ..Access::dev() })
    }

    pub(super) fn with_access(
        store: Arc<MemoryStore>,
        fail_points: Arc<dyn FailPoints>,
        access: Access,
    ) -> Self {
        let pay = Arc::new(Pay::new());
        let agent = clerk(vec![Arc::clone(&pay) as Arc<dyn CallableTool>]);
        let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000)));
        let ids = Arc::new(SeededIds::new(7));
        let queue = Arc::new(MemoryQueue::new(Arc::clone(&clock) as _, 7, QueueFaults::default()));
        let ports = ServicePorts {
            store: Arc::clone(&store) as _,
            queue: Arc::clone(&queue) as _,
            artifacts: Arc::new(MemoryArtifacts::new(7, 0)),
            live: Arc::new(EmbeddedLive::default()),
            model: Arc::new(ScriptedModel),
            clock: Arc::clone(&clock) as _,
            ids,
        };
        let agents = Catalog {
            agents: BTreeMap::from([("clerk".to_owned(), Arc::new(agent))]),
            ..Catalog::default()
        };
        let services = Arc::new(Services {
            agents: agents.into(),
            fail_points,
            ..Services::new(WorkerId::new("w1"), ports)
        });
        let keys = SigningKeys::new(vec![vec![7; 32]]).unwrap();
        let router = turnwheel::testing::http::router(Arc::new(Api::new(
            Services::clone(&services),
            access,
            keys.clone(),
        )));
        Self { services, store, queue, clock, keys, pay, router }
    }

    /// Another process of the same service; it shares only the store.
    pub(super) fn second_instance(&self) -> Self {
        let mut other = Self::with(Arc::clone(&self.store), Arc::new(NoFailPoints), Auth::Header);
        other.clock.advance(
            self.services.clock.now().0.saturating_sub(other.clock.now().0).into_duration(),
        );
        other.services =
            Arc::new(Services { worker: WorkerId::new("w2"), ..Services::clone(&other.services) });
        other
    }

    /// The same service with changed dependencies.
    pub(super) fn with_services(mut self, change: impl FnOnce(&mut Services)) -> Self {
        let mut services = Services::clone(&self.services);
        // Those of a request that never ends stay locked.
        services.request_locks = Arc::default();
        change(&mut services);
        let api = Api::new(services.clone(), Access::dev(), self.keys.clone());
        self.router = turnwheel::testing::http::router(Arc::new(api));
        self.services = Arc::new(services);
        self
    }

    /// The same agent with the built-in file tools.
    pub(super) fn with_file_tools(self) -> Self {
        self.with_agent(|agent| agent.tools.extend(builtins()))
    }

    /// The same service with a changed agent.
    pub(super) fn with_agent(self, change: impl FnOnce(&mut AgentDefinition)) -> Self {
        let mut agent = clerk(vec![Arc::clone(&self.pay) as Arc<dyn CallableTool>]);
        change(&mut agent);
        self.with_services(|services| {
            let agents = BTreeMap::from([("clerk".to_owned(), Arc::new(agent))]);
            services.agents = Catalog { agents, ..Catalog::default() }.into();
        })
    }

    pub(super) fn request(&self, method: Method, path: &str) -> TestRequest<'_> {
        let builder = Request::builder().method(method).uri(path);
        TestRequest { app: self, builder, body: Body::empty() }
    }

    pub(super) fn get(&self, path: &str) -> TestRequest<'_> {
        self.request(Method::GET, path)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> TestRequest<'_> {
        self.request(Method::POST, path).json(body)
    }

    pub(super) fn patch(&self, path: &str, body: &Value) -> TestRequest<'_> {
        self.request(Method::PATCH, path).json(body)
    }

    pub(super) fn delete(&self, path: &str) -> TestRequest<'_> {
        self.request(Method::DELETE, path)
    }

    /// Prompts conversation `c` and creates it if needed; returns the prompt's id.
    pub(super) async fn prompt(&self, text: &str) -> String {
        let exists = self.get("/api/conversations/c").send().await.status == StatusCode::OK;
        let response = if exists {
            self.post("/api/conversations/c/prompts", &json!({"input": text})).send().await
        } else {
            self.post("/api/prompts", &json!({"conversationId": "c", "input": text})).send().await
        };
        response.expect_status(202).json()["promptId"].as_str().unwrap().to_owned()
    }

    /// Processes deliveries until the queue is empty.
    pub(super) async fn work(&self) {
        for _ in 0..50 {
            let received =
                self.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
            let Some(message) = received.into_iter().next() else { return };
            let nudge: Nudge = serde_json::from_str(&message.text).unwrap();
            Box::pin(delivery::handle(&self.services, &nudge)).await.unwrap();
            self.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
        }
        panic!("the queue did not become empty");
    }

    /// Sends a prompt and processes its deliveries.
    pub(super) async fn run(&self, text: &str) -> String {
        let id = self.prompt(text).await;
        self.work().await;
        id
    }

    pub(super) async fn get_json(&self, path: &str) -> Value {
        self.get(path).send().await.expect_status(200).json()
    }

    pub(super) fn conversation_key() -> ConversationKey {
        Owner {
            tenant: turnwheel::testing::ids::TenantId::new("default"),
            user: turnwheel::testing::ids::UserId::new("default"),
        }
        .conversation_key("c")
    }

    /// The path of an approval link for the first open approval.
    pub(super) async fn approval_link(&self) -> String {
        let seen = self.get_json("/api/conversations/c").await;
        let approval = &seen["pendingApprovals"][0];
        let id = RequestId::new(approval["id"].as_str().unwrap());
        let expires_at =
            turnwheel::testing::clock::parse_iso(approval["expiresAt"].as_str().unwrap()).unwrap();
        self.keys
            .approval_url(
                "",
                &LinkClaims { key: Self::conversation_key(), request_id: id, expires_at },
            )
            .unwrap()
    }
}

trait IntoDuration {
    fn into_duration(self) -> Duration;
}

impl IntoDuration for u64 {
    fn into_duration(self) -> Duration {
        Duration::from_millis(self)
    }
}
