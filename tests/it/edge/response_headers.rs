//! Headers of every route for names and ids of any text. The test client asserts that they are ASCII,
//! and the service that it had none to remove.

use http::{HeaderValue, Method};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::json;
use turnwheel::testing::http::openapi::DOCUMENT;

use super::test_app::TestApp;

/// Texts of a user: of each script, and with control characters.
fn texts(count: usize) -> Vec<String> {
    let strategy = proptest::string::string_regex("[\\w\\PC\\x00-\\x1f]{1,12}").unwrap();
    let mut runner = TestRunner::deterministic();
    let any = (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current());
    any.chain(["c", "é", "日本", "a\"b\r\nx: y", "\u{202e}"].map(str::to_owned)).collect()
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Sends a request whose headers hold the text as well, if a header can.
async fn send(app: &TestApp, method: Method, path: &str, text: &str) {
    let body = json!({"id": text, "name": text, "input": text, "agent": text});
    let mut request = app.request(method, path).json(&body);
    if HeaderValue::from_str(text).is_ok() {
        for name in ["if-match", "if-none-match", "if-range", "origin", "range"] {
            request = request.header(name, text);
        }
    }
    request.send_unvalidated().await;
}

/// Paths of all operations with the text as each of their parameters.
fn requests(text: &str) -> Vec<(Method, String)> {
    let value = encode(text);
    let mut requests = Vec::new();
    for (template, item) in DOCUMENT["paths"].as_object().unwrap() {
        let path: Vec<String> = template
            .split('/')
            .map(|part| if part.starts_with('{') { value.clone() } else { part.to_owned() })
            .collect();
        for (method, operation) in item.as_object().unwrap() {
            let Ok(method) = method.to_uppercase().parse::<Method>() else { continue };
            // An event stream does not end.
            if operation["operationId"] == "streamEvents" {
                continue;
            }
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let query: Vec<String> = parameters
                .filter(|parameter| parameter["in"] == "query" && parameter["name"] != "wait")
                .map(|parameter| format!("{}={value}", parameter["name"].as_str().unwrap()))
                .collect();
            requests.push((method.clone(), path.join("/")));
            requests.push((method, format!("{}?{}", path.join("/"), query.join("&"))));
        }
    }
    requests
}

#[tokio::test]
async fn headers_of_all_routes_are_ascii() {
    let app = TestApp::new();
    app.post("/api/conversations", &json!({"id": "c"})).send().await.expect_status(201);
    for text in texts(12) {
        for (method, path) in requests(&text) {
            send(&app, method, &path, &text).await;
        }
        if HeaderValue::from_str(&text).is_ok() {
            let request = app.get("/api/conversations").user(&text, &text);
            request.header("turnwheel-tenant", &text).send_unvalidated().await;
        }
    }
}

/// Accepted names: `Location`, `Link`, `ETag` and `Content-Disposition` of what they name.
#[tokio::test]
async fn headers_of_named_resources_are_ascii() {
    let app = TestApp::new();
    for id in ["c", "d"] {
        app.post("/api/conversations", &json!({"id": id})).send().await.expect_status(201);
    }
    let mut links = 0;
    for (number, text) in texts(40).iter().enumerate() {
        let value = encode(text);
        app.patch("/api/conversations/c", &json!({"name": text})).send_unvalidated().await;
        let path = format!("/api/conversations/c/artifacts?name={value}");
        let added = app
            .request(Method::POST, &path)
            .header("content-type", "text/plain")
            .key(&format!("k-{number}"))
            .body("text")
            .send_unvalidated()
            .await;
        if added.status == 201 {
            let path = added.header("location").to_owned();
            let read = app.get(&path).send_unvalidated().await.expect_status(200);
            assert!(!read.header("etag").is_empty());
            assert!(read.header("content-disposition").starts_with("attachment"));
        }
        let list = format!("/api/conversations?limit=1&code={value}");
        for path in [list.as_str(), "/api/conversations/c"] {
            let seen = app.get(path).send_unvalidated().await;
            links += usize::from(!seen.header("link").is_empty());
        }
    }
    assert!(links > 0, "the list of two conversations has a next page");
}
