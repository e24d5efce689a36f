//! Every route of a conversation, called by another user and by another tenant: for them the
//! conversation does not exist, and nothing changes. Routes are those of the OpenAPI document.

use http::Method;
use serde_json::{Value, json};

use super::commands::{WAITING_PROMPT, desk_app};
use super::test_app::{TestApp, TestRequest, TestResponse};

const CONVERSATION: &str = "/api/conversations/{id}";

/// Ids of a conversation that waits for an approval and has an artifact and a queued input.
struct Target {
    app: TestApp,
    ids: Vec<(&'static str, String)>,
}

fn string(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

async fn new_target() -> Target {
    let (app, _) = desk_app();
    let prompt = app.run(WAITING_PROMPT).await;
    let artifacts = app.request(Method::POST, "/api/conversations/c/artifacts").body("hello");
    let artifact = artifacts.send().await.expect_status(201).json();
    let later = json!({"input": "later", "mode": "followUp"});
    let queued = app.post("/api/conversations/c/prompts", &later).send().await.expect_status(202);
    let seen = app.get_json("/api/conversations/c").await;
    let ids = vec![
        ("{id}", "c".to_owned()),
        ("{name}", "greet".to_owned()),
        ("{promptId}", prompt),
        ("{entryId}", app.message_id(WAITING_PROMPT).await),
        ("{artifactId}", string(&artifact["id"])),
        ("{approvalId}", string(&seen["pendingApprovals"][0]["id"])),
        ("{inputId}", string(&queued.json()["inputId"])),
    ];
    Target { app, ids }
}

/// A valid body of an operation that needs one.
fn valid_body(operation: &str, entry: &str) -> Value {
    match operation {
        "POST /approvals/{approvalId}" => json!({"decision": "approve"}),
        "POST /artifacts" => json!("hello"),
        "POST /bash" => json!({"command": "ls", "output": ""}),
        "POST /commands/{name}" => json!({"args": "you"}),
        "POST /fork" | "POST /leaf" => json!({"entryId": entry}),
        "POST /messages" => json!({"customType": "x/y", "content": "x", "display": true}),
        "POST /prompts" | "PATCH /inbox/{inputId}" => json!({"input": "x"}),
        "POST /prompts/import" => json!({"input": "x", "source": "user"}),
        "PUT /entries/{entryId}/label" => json!({"label": "x"}),
        "PATCH " => json!({"name": "x"}),
        "POST /abort" | "POST /compact" | "POST /continue" => json!({}),
        other => panic!("add a valid body of {other} to this test"),
    }
}

impl Target {
    fn request(&self, method: &Method, template: &str) -> TestRequest<'_> {
        let path =
            self.ids.iter().fold(template.to_owned(), |path, (name, id)| path.replace(name, id));
        assert!(!path.contains('{'), "add the id to this test: {path}");
        let query = if template.ends_with("/history") { "?format=protocol" } else { "" };
        let request = self.app.request(method.clone(), &format!("{path}{query}"));
        if *method == Method::GET || *method == Method::DELETE {
            return request;
        }
        let route = template.strip_prefix(CONVERSATION).unwrap();
        let (_, entry) = self.ids.iter().find(|(name, _)| *name == "{entryId}").unwrap();
        request.json(&valid_body(&format!("{method} {route}"), entry))
    }

    async fn state(&self) -> (Value, Value, Value) {
        let get = |path: &'static str| self.app.get_json(path);
        (
            get("/api/conversations/c").await,
            get("/api/conversations/c/entries?limit=100").await,
            get("/api/conversations/c/inbox").await,
        )
    }
}

fn operations(document: &Value) -> Vec<(Method, String)> {
    let routes = document["paths"].as_object().unwrap().iter();
    let routes = routes.filter(|(template, _)| template.starts_with(CONVERSATION));
    let operations = routes.flat_map(|(template, item)| {
        let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        let methods =
            methods.into_iter().filter(|method| item.get(method.to_lowercase()).is_some());
        methods.map(|method| (method.parse().unwrap(), template.clone()))
    });
    operations.collect()
}

fn expect_absent(response: TestResponse) {
    response.expect_problem(404, "not-found");
}

#[tokio::test]
async fn conversation_of_another_user_or_tenant_does_not_exist() {
    let target = new_target().await;
    let operations = operations(&target.app.get_json("/api/openapi.json").await);
    assert!(operations.len() > 30, "{operations:?}");
    let before = target.state().await;
    for (method, template) in &operations {
        let foreign = || target.request(method, template);
        expect_absent(foreign().user("eve", "").send().await);
        expect_absent(foreign().header("turnwheel-tenant", "other").send().await);
    }
    assert_eq!(target.state().await, before);
    // Control: the same requests of the owner find the conversation.
    for (method, template) in &operations {
        let own = new_target().await;
        let status = if template.ends_with("/events") {
            own.request(method, template).send_streaming().await.status()
        } else {
            own.request(method, template).send().await.status
        };
        assert!(![404, 405, 400].contains(&status.as_u16()), "{method} {template}: {status}");
    }
}
