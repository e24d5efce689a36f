//! Tests of requests that the Functions host forwards without a key: they leave the slots of the API
//! free.

use http::{Method, StatusCode};
use turnwheel::testing::host::{Function, ScriptRoot, Trigger};

use super::test_app::TestApp;

/// A request of each method to each function that requires no key.
fn anonymous_requests() -> Vec<(Method, String)> {
    let parameter = regex::Regex::new(r"\{\*?\w+\}").unwrap();
    let mut requests = Vec::new();
    for (name, text) in &ScriptRoot::embedded().functions {
        let function = Function::read(name, name, text).unwrap();
        if let Trigger::Http(http) = &function.trigger
            && function.json["bindings"][0]["authLevel"] == "anonymous"
        {
            assert!(!http.methods.is_empty(), "{name} accepts every method");
            let path = format!("/api/{}", parameter.replace(http.route.text(), "x"));
            let methods = http.methods.iter().map(|method| method.parse::<Method>().unwrap());
            requests.extend(methods.map(|method| (method, path.clone())));
        }
    }
    requests
}

#[tokio::test]
async fn requests_without_a_key_take_no_keyed_slots() {
    let app = TestApp::new();
    // A slot is taken as long as its response exists.
    let mut responses = Vec::new();
    loop {
        let response = app.get("/api/agents").send_streaming().await;
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            break;
        }
        assert_eq!(response.status(), StatusCode::OK);
        responses.push(response);
        assert!(responses.len() < 2_000, "requests have a bound");
    }
    assert!(responses.len() > 1_000, "streams and waits fit: {}", responses.len());
    for path in ["/api/approvals", "/api/conversations"] {
        let response = app.get(path).send_streaming().await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    let requests = anonymous_requests();
    assert!(requests.len() > 10, "{requests:?}");
    for (method, path) in requests {
        let response = app.request(method.clone(), &path).send_streaming().await;
        assert_ne!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{method} {path}");
    }
}

/// The function `preflight` has every path, so its response must not depend on the route.
#[tokio::test]
async fn preflights_of_any_path_have_no_body() {
    let app = TestApp::new();
    for path in [
        "/api",
        "/api/conversations/c/prompts",
        "/api/approvals/x",
        "/api/x//y",
        "/api/x/..%252f..%252fturn",
        "/turn",
    ] {
        let response = app.request(Method::OPTIONS, path).send_unvalidated().await;
        assert_eq!(
            (response.status, response.text.as_str()),
            (StatusCode::NO_CONTENT, ""),
            "{path}"
        );
    }
}
