//! Routes and keys: the local host finds the function for a request, and asks for its key, as the
//! Functions host does.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::Request;
use axum::routing::any;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use turnwheel::testing::host::{Function, HostKeys, HttpTrigger, ScriptRoot, Trigger};

use super::test_host::{TestHost, TestHostConfig};
use crate::support::shared_data::find_shared_data;

const FUNCTION_KEY: &str = "FUNCTION-KEY";
const REACHED: &str = "x-reached";

/// A handler whose responses have the path that it sees, in a header: one to HEAD has no body.
fn echo_path() -> Router {
    Router::new()
        .fallback(any(async |request: Request| [(REACHED, request.uri().path().to_owned())]))
}

pub(super) fn keys(function: &str) -> HostKeys {
    HostKeys {
        functions: BTreeMap::from([(function.to_owned(), FUNCTION_KEY.to_owned())]),
        host: "HOST-KEY".to_owned(),
        master: "MASTER-KEY".to_owned(),
    }
}

/// A host with these HTTP functions, each as `{"route", "authLevel", "methods"}`.
pub(super) fn routes_config(functions: &Value, keys: HostKeys) -> TestHostConfig {
    let mut config = TestHostConfig { keys: Some(keys), ..TestHostConfig::default() };
    config.root = ScriptRoot { functions: BTreeMap::new(), ..config.root };
    for (name, members) in functions.as_object().unwrap() {
        let mut trigger = members.clone();
        trigger["type"] = json!("httpTrigger");
        trigger["name"] = json!("req");
        let output = json!({"type": "http", "direction": "out", "name": "res"});
        let text = json!({"bindings": [trigger, output]}).to_string();
        config.root.functions.insert(name.clone(), text);
    }
    config
}

/// Sends a request with its target unchanged, and returns the status and the body.
async fn send(host: &TestHost, method: &str, request: (&str, Option<&str>)) -> (u16, String) {
    let answer = exchange(host, method, request).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The path of a request without a key that the handler sees; `None` if it sees none.
async fn reached_path(host: &TestHost, method: &str, target: &str) -> Option<String> {
    let answer = exchange(host, method, (target, None)).await;
    let header = format!("{REACHED}: ");
    answer.lines().find_map(|line| line.strip_prefix(&header)).map(str::to_owned)
}

async fn exchange(host: &TestHost, method: &str, (target, key): (&str, Option<&str>)) -> String {
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let key = key.map(|key| format!("x-functions-key: {key}\r\n")).unwrap_or_default();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{key}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The statuses show the order: requests without a key, and with the key of the catch-all only.
#[tokio::test]
async fn recorded_routes_are_tried_in_the_order_of_names() {
    let Some(path) = find_shared_data("recordings/functions-host/routes.jsonl") else { return };
    let mut requests = 0;
    let mut unsupported = Vec::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let functions = &case["functions"];
        let catch_all = functions.as_object().unwrap().iter().find_map(|(name, members)| {
            members["route"].as_str().unwrap().starts_with("{*").then_some(name)
        });
        // Route constraints are refused by the local host and by `package`.
        if functions.to_string().contains("{*path:") {
            unsupported.push(case["case"].as_str().unwrap().to_owned());
            continue;
        }
        let config = routes_config(functions, keys(catch_all.unwrap()));
        let host = TestHost::start_with(echo_path(), config).await;
        for request in case["requests"].as_array().unwrap() {
            let text = |name: &str| request[name].as_str();
            let key = text("key").map(|key| match key {
                "host key" => "HOST-KEY",
                "master key" => "MASTER-KEY",
                key => {
                    assert_eq!(key, "function key of the catch-all");
                    FUNCTION_KEY
                }
            });
            let (method, target) = (text("method").unwrap(), text("target").unwrap());
            let (status, _) = send(&host, method, (target, key)).await;
            assert_eq!(
                u64::from(status),
                request["status"].as_u64().unwrap(),
                "{} {request}",
                case["case"]
            );
            requests += 1;
        }
    }
    assert!(requests > 140, "{requests}");
    assert_eq!(
        unsupported,
        ["constraint-methods-only", "constraint-regex-exact", "constraint-regex"]
    );
}

/// The shipped functions, behind a host that asks for keys: what needs no key is reached without
/// one, and nothing else.
#[tokio::test]
async fn public_routes_are_reached_without_key() {
    let config = TestHostConfig { keys: Some(keys("web")), ..TestHostConfig::default() };
    let host = TestHost::start_with(echo_path(), config).await;
    for (method, path) in [
        ("GET", "/api/health"),
        ("HEAD", "/api/health"),
        ("GET", "/api/openapi.json"),
        ("GET", "/api/openapi-3.0.json"),
        ("GET", "/api/approvals/token"),
        ("HEAD", "/api/approvals/token"),
        ("POST", "/api/approvals/token"),
        ("OPTIONS", "/api/conversations/c/prompts"),
        ("OPTIONS", "/api"),
    ] {
        assert_eq!(send(&host, method, (path, None)).await.0, 200, "{method} {path}");
    }
    for (method, path) in [
        ("POST", "/api/health"),
        ("POST", "/api/openapi.json"),
        ("GET", "/api/openapi"),
        ("DELETE", "/api/approvals/token"),
        ("GET", "/api/approvals"),
        ("GET", "/api/conversations"),
        ("GET", "/api"),
        ("GET", "/api/"),
    ] {
        assert_eq!(
            send(&host, method, (path, None)).await,
            (401, String::new()),
            "{method} {path}"
        );
        for key in [FUNCTION_KEY, "HOST-KEY", "MASTER-KEY"] {
            assert_eq!(send(&host, method, (path, Some(key))).await.0, 200, "{method} {path}");
        }
        assert_eq!(send(&host, method, (path, Some("wrong"))).await.0, 401, "{method} {path}");
        // The header decides, also against a right key in the query.
        let with_query = format!("{path}?Code={FUNCTION_KEY}");
        assert_eq!(send(&host, method, (&with_query, None)).await.0, 200, "{method} {path}");
        assert_eq!(send(&host, method, (&with_query, Some("wrong"))).await.0, 401);
    }
}

/// Odd spellings of a path: dots, encodings, double slashes, other cases, line ends.
fn odd_targets() -> Vec<String> {
    let separators = [
        "/",
        "//",
        "%2F",
        "%2f",
        "\\",
        "%5C",
        "/./",
        "/%2e/",
        "/x/../",
        "/x/%2e%2e/",
        ";/",
        "/;",
        "%00/",
        "%0A/",
        "%20/",
        "/%2F",
    ];
    let public = [
        "health",
        "approvals/t",
        "HEALTH",
        "%68ealth",
        "approvals%2Ft",
        "approvals/%2e%2e",
        "approvals/..",
        "approvals/t%2F..%2F..",
        "console",
        "console/x",
        "openapi.json",
    ];
    let keyed = [
        "conversations",
        "prompts",
        "../conversations",
        "%2e%2e/conversations",
        "conversations%2Fc",
    ];
    let background = ["../turn", "%2e%2e/turn", "..%2Fturn", "../../sweep", "..\\turn"];
    let mut targets = Vec::new();
    for first in public {
        for separator in separators {
            for second in keyed.iter().chain(&background) {
                targets.push(format!("/api/{first}{separator}{second}"));
                targets.push(format!("/api{separator}{first}{separator}{second}"));
                if first == "health" {
                    targets.push(format!("/api/{first}{separator}{second}?x=/api/health"));
                }
            }
        }
    }
    targets
}

/// The HTTP functions that require no key.
fn public_functions() -> Vec<HttpTrigger> {
    let functions = ScriptRoot::embedded().functions;
    let triggers = functions.iter().filter_map(|(name, text)| {
        let function = Function::read(name, name, text).unwrap();
        let is_anonymous = function.json["bindings"][0]["authLevel"] == "anonymous";
        match function.trigger {
            Trigger::Http(http) => is_anonymous.then_some(http),
            Trigger::Queue { .. } | Trigger::Timer { .. } => None,
        }
    });
    triggers.collect()
}

/// A request without a key reaches the handler only at the routes of public functions, of which only
/// `preflight` accepts OPTIONS: never a keyed route, never a background function.
#[tokio::test]
async fn odd_paths_reach_no_keyed_route() {
    let config = TestHostConfig { keys: Some(keys("web")), ..TestHostConfig::default() };
    let host = TestHost::start_with(echo_path(), config).await;
    let public = public_functions();
    let preflights = public.iter().filter(|http| http.methods == ["OPTIONS"]);
    assert_eq!(preflights.map(|http| http.route.text()).collect::<Vec<_>>(), ["{*preflight}"]);
    let targets = odd_targets();
    assert!(targets.len() > 3_000, "{}", targets.len());
    for method in ["GET", "HEAD", "POST", "OPTIONS"] {
        let accepting: Vec<&HttpTrigger> =
            public.iter().filter(|http| http.methods.iter().any(|one| one == method)).collect();
        let mut reached = 0;
        for target in &targets {
            let Some(path) = reached_path(&host, method, target).await else { continue };
            reached += 1;
            let decoded = percent_decode_str(&path).decode_utf8_lossy();
            let segments = decoded.strip_suffix('/').unwrap_or(&decoded).split('/');
            let segments: Vec<&str> = segments.skip(1).collect();
            let (prefix, route) = segments.split_first().unwrap();
            assert!(prefix.eq_ignore_ascii_case("api"), "{method} {target} reached {path}");
            let is_dot = |segment: &&str| [".", ".."].contains(segment);
            assert!(!route.iter().any(is_dot), "{method} {target} reached {path}");
            let is_public = accepting.iter().any(|http| http.route.matches(route));
            assert!(is_public, "{method} {target} reached {path}");
        }
        assert!(reached > 0, "{method}: some spellings are public routes");
    }
}
