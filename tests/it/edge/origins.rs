//! Tests of requests from web pages: allowed origins, and attempts of other sites.

use http::Method;
use serde_json::json;
use turnwheel::testing::http::api::Api;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::services::Services;
use turnwheel::testing::settings::ServiceSettings;

use super::test_app::{TestApp, TestRequest};

/// Headers as Chromium sends them; each constant is one kind of page.
const HOST: (&str, &str) = ("host", "agents.example");
/// `<form method="post">` of another site.
const FOREIGN_FORM: [(&str, &str); 7] = [
    HOST,
    ("content-type", "application/x-www-form-urlencoded"),
    ("origin", "https://evil.example"),
    ("sec-fetch-site", "cross-site"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-dest", "document"),
    ("cookie", "AppServiceAuthSession=x"),
];
/// `fetch(…, {method: "POST", body: new FormData()})` of another site: no preflight.
const FOREIGN_FETCH: [(&str, &str); 6] = [
    HOST,
    ("content-type", "multipart/form-data; boundary=----WebKitFormBoundaryx"),
    ("origin", "https://evil.example"),
    ("sec-fetch-site", "cross-site"),
    ("sec-fetch-mode", "no-cors"),
    ("sec-fetch-dest", "empty"),
];
/// `fetch` of a page on another port of the same machine.
const OTHER_PORT_FETCH: [(&str, &str); 5] = [
    HOST,
    ("origin", "http://localhost:3000"),
    ("sec-fetch-site", "same-site"),
    ("sec-fetch-mode", "cors"),
    ("sec-fetch-dest", "empty"),
];
/// A browser without `Sec-Fetch-*`; all omit it for a plain-HTTP site that is not this machine.
const LEGACY_FETCH: [(&str, &str); 2] = [HOST, ("origin", "https://evil.example")];
/// The form of the approval page, which has `Referrer-Policy: no-referrer`.
const APPROVAL_FORM: [(&str, &str); 6] = [
    HOST,
    ("content-type", "application/x-www-form-urlencoded"),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("origin", "null"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "navigate"),
];
const OWN_FETCH: [(&str, &str); 4] = [
    HOST,
    ("origin", "https://agents.example"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "cors"),
];

fn with_headers<'a>(request: TestRequest<'a>, headers: &[(&str, &str)]) -> TestRequest<'a> {
    headers.iter().fold(request, |request, (name, value)| request.header(name, value))
}

/// The service with production access rules and these allowed origins.
fn app_with_origins(origins: &'static str) -> TestApp {
    let mut app = TestApp::new();
    let settings = ServiceSettings::read(move |name| match name {
        "TURNWHEEL_CORS_ORIGINS" => Some(origins.to_owned()),
        "WEBSITE_HOSTNAME" => Some("agents.example".to_owned()),
        "TURNWHEEL_PUBLIC_URL" => Some("https://public.example".to_owned()),
        _ => None,
    });
    let access = Access::from_settings(&settings.unwrap());
    let api = Api::new(Services::clone(&app.services), access, app.keys.clone());
    app.router = turnwheel::testing::http::router(std::sync::Arc::new(api));
    app
}

const CHANGING_REQUESTS: [(Method, &str); 7] = [
    (Method::POST, "/api/conversations/c/abort"),
    (Method::POST, "/api/conversations/c/compact"),
    (Method::POST, "/api/conversations/c/continue"),
    (Method::POST, "/api/conversations/c/artifacts?name=a.txt"),
    (Method::POST, "/api/prompts"),
    (Method::DELETE, "/api/conversations/c/inbox"),
    (Method::DELETE, "/api/conversations/c"),
];

#[tokio::test]
async fn cross_site_pages_cannot_change_anything() {
    let app = app_with_origins("");
    app.run("say hello").await;
    let before = app.get_json("/api/conversations/c").await;
    for page in [&FOREIGN_FORM[..], &FOREIGN_FETCH, &OTHER_PORT_FETCH, &LEGACY_FETCH] {
        for (method, path) in CHANGING_REQUESTS {
            let refused = with_headers(app.request(method, path), page).send().await;
            assert_eq!(refused.header("access-control-allow-origin"), "");
            let problem = refused.expect_problem(403, "forbidden");
            assert!(
                problem["detail"].as_str().unwrap().contains("TURNWHEEL_CORS_ORIGINS"),
                "{problem}"
            );
        }
    }
    let hidden = with_headers(
        app.request(Method::POST, "/api/conversations/c/abort"),
        &[HOST, ("origin", "null")],
    );
    hidden.send().await.expect_problem(403, "forbidden");
    assert_eq!(app.get_json("/api/conversations/c").await, before);
    assert_eq!(app.get_json("/api/conversations/c/artifacts").await["items"], json!([]));
}

#[tokio::test]
async fn same_origin_pages_and_programs_are_allowed() {
    let app = app_with_origins("");
    app.run("say hello").await;
    let abort = || app.request(Method::POST, "/api/conversations/c/abort");
    abort().send().await.expect_status(202);
    with_headers(abort(), &OWN_FETCH).send().await.expect_status(202);
    let behind_gateway = [("host", "10.0.0.4"), ("origin", "https://public.example")];
    with_headers(abort(), &behind_gateway).send().await.expect_status(202);
    // Typed into the address bar, or opened from a bookmark.
    with_headers(abort(), &[HOST, ("sec-fetch-site", "none")]).send().await.expect_status(202);
}

#[tokio::test]
async fn listed_origins_may_call_and_read() {
    let app = app_with_origins("https://app.example,https://admin.example");
    app.run("say hello").await;
    let page = [HOST, ("origin", "https://app.example"), ("sec-fetch-site", "cross-site")];
    let done = with_headers(app.request(Method::POST, "/api/conversations/c/abort"), &page)
        .send()
        .await
        .expect_status(202);
    assert_eq!(done.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(done.header("vary"), "origin");
    assert!(done.header("access-control-expose-headers").contains("location"));
    let read = with_headers(app.get("/api/conversations/nowhere"), &page).send().await;
    assert_eq!(read.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(read.header("access-control-allow-credentials"), "");
    read.expect_problem(404, "not-found");
    let other = with_headers(app.get("/api/conversations/c"), &LEGACY_FETCH)
        .send()
        .await
        .expect_status(200);
    assert!(other.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
    with_headers(app.request(Method::POST, "/api/conversations/c/abort"), &FOREIGN_FORM)
        .send()
        .await
        .expect_problem(403, "forbidden");
}

#[tokio::test]
async fn wildcard_origin_may_call_without_cookies() {
    let app = app_with_origins("*");
    app.run("say hello").await;
    let abort = || app.request(Method::POST, "/api/conversations/c/abort");
    let done = with_headers(abort(), &FOREIGN_FETCH).send().await;
    assert_eq!(done.header("access-control-allow-origin"), "*");
    with_headers(abort(), &OTHER_PORT_FETCH).send().await.expect_status(202);
    with_headers(abort(), &FOREIGN_FORM).send().await.expect_problem(403, "forbidden");
}

#[tokio::test]
async fn preflights_need_no_authentication() {
    let app = app_with_origins("https://app.example");
    let preflight = |origin: &'static str, path: &str| {
        let request = app.request(Method::OPTIONS, path).header("host", "agents.example");
        request
            .header("origin", origin)
            .header("access-control-request-method", "PATCH")
            .header("access-control-request-headers", "authorization,content-type")
            .header("sec-fetch-mode", "cors")
    };
    let allowed =
        preflight("https://app.example", "/api/conversations/c").send().await.expect_status(204);
    assert_eq!(allowed.header("access-control-allow-origin"), "https://app.example");
    assert!(allowed.header("access-control-allow-methods").contains("PATCH"));
    for name in ["authorization", "idempotency-key", "last-event-id", "if-match"] {
        assert!(allowed.header("access-control-allow-headers").contains(name), "{name}");
    }
    for (origin, path) in [
        ("https://evil.example", "/api/conversations/c"),
        ("https://app.example", "/api/approvals/abc.def"),
    ] {
        let refused = preflight(origin, path).send().await.expect_status(204);
        let is_open = |name: &http::HeaderName| name.as_str().starts_with("access-control");
        assert!(!refused.headers.keys().any(is_open), "{:?}", refused.headers);
    }
}

/// A page of an allowed origin may call each route with the headers that its libraries add.
#[tokio::test]
async fn preflight_allows_every_method_and_requested_header() {
    let app = app_with_origins("https://app.example");
    let document = app.get_json("/api/openapi.json").await;
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        if path.starts_with("/api/approvals/") {
            continue;
        }
        for method in methods.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            let path = path.replace(['{', '}'], "");
            let preflight = app.request(Method::OPTIONS, &path);
            let allowed = preflight
                .header("origin", "https://app.example")
                .header("access-control-request-method", &method)
                .header("access-control-request-headers", "baggage, x-requested-with,sentry-trace")
                .send()
                .await
                .expect_status(204);
            let methods: Vec<&str> =
                allowed.header("access-control-allow-methods").split(", ").collect();
            assert!(methods.contains(&method.as_str()), "{method} {path}: {methods:?}");
            let headers: Vec<&str> =
                allowed.header("access-control-allow-headers").split(", ").collect();
            for name in ["baggage", "x-requested-with", "sentry-trace", "authorization"] {
                assert!(headers.contains(&name), "{name}: {headers:?}");
            }
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

#[tokio::test]
async fn preflight_allows_no_header_of_proxies() {
    let app = app_with_origins("https://app.example");
    let names = "X-MS-CLIENT-PRINCIPAL, x-ms-client-principal-id, X-Forwarded-For, forwarded, a b, range, é";
    let preflight = app.request(Method::OPTIONS, "/api/prompts");
    let preflight = preflight
        .header("origin", "https://app.example")
        .header("access-control-request-headers", names);
    let allowed = preflight.send().await.expect_status(204);
    let plain = app.request(Method::OPTIONS, "/api/prompts");
    let plain = plain.header("origin", "https://app.example").send().await;
    let name = "access-control-allow-headers";
    assert_eq!(allowed.header(name), plain.header(name));
}

#[tokio::test]
async fn dev_allows_only_loopback_pages() {
    let app = TestApp::new();
    app.run("say hello").await;
    let abort = || app.request(Method::POST, "/api/conversations/c/abort");
    let local = |headers: &[(&'static str, &'static str)]| {
        let mut headers = headers.to_vec();
        headers.retain(|header| *header != HOST);
        headers.push(("host", "127.0.0.1:7071"));
        headers
    };
    let done = with_headers(abort(), &local(&OTHER_PORT_FETCH)).send().await.expect_status(202);
    assert_eq!(done.header("access-control-allow-origin"), "http://localhost:3000");
    with_headers(abort(), &local(&FOREIGN_FETCH)).send().await.expect_problem(403, "forbidden");
    // A page that resolves its own name to this machine reads nothing.
    let rebound = app.get("/api/conversations").header("host", "evil.example:7071");
    rebound.send().await.expect_problem(421, "misdirected-request");
}

#[tokio::test]
async fn approval_page_submits_its_form() {
    let app = app_with_origins("https://app.example");
    app.run("use pay with {\"amount\": 500} then say done").await;
    let link = app.approval_link().await;
    let form = |headers: &[(&str, &str)]| {
        with_headers(app.request(Method::POST, &link), headers).body("decision=approve")
    };
    let foreign = form(&FOREIGN_FORM).send().await;
    assert_eq!(foreign.header("access-control-allow-origin"), "");
    foreign.expect_problem(403, "forbidden");
    form(&APPROVAL_FORM).send().await.expect_status(200);
    assert_eq!(app.get_json("/api/conversations/c").await["pendingApprovals"], json!([]));
}
