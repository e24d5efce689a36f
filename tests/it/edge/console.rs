//! The page of the web console: its headers, its caching, and the switch.

use std::sync::Arc;

use http::Method;
use turnwheel::testing::fail_points::NoFailPoints;
use turnwheel::testing::http::auth::Access;
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::MemoryStore;

use super::test_app::TestApp;

const INDEX: &str = "/api/console/";

fn app(access: Access) -> TestApp {
    TestApp::with_access(Arc::new(MemoryStore::new()), Arc::new(NoFailPoints), access)
}

/// The path of the first file that the page names.
fn first_file(page: &str) -> String {
    let (_, rest) = page.split_once("src=\"").expect("the page has a script");
    format!("{INDEX}{}", rest.split('"').next().unwrap())
}

#[tokio::test]
async fn console_needs_no_credential_and_has_strict_policy() {
    // Everything else is 401: the platform's sign-in is off.
    let app = app(Access { auth: Auth::SignIn, ..Access::dev() });
    app.get("/api/agents").send().await.expect_problem(401, "unauthorized");
    let page = app.get(INDEX).send_unvalidated().await.expect_status(200);
    let file = app.get(&first_file(&page.text)).send_unvalidated().await.expect_status(200);
    for response in [&page, &file] {
        let policy = response.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        for rule in ["frame-ancestors 'none'", "trusted-types 'none'", "base-uri 'none'"] {
            assert!(policy.contains(rule), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(response.header("x-content-type-options"), "nosniff");
        assert_eq!(response.header("referrer-policy"), "same-origin");
        assert_eq!(response.header("cross-origin-opener-policy"), "same-origin");
        assert_eq!(response.header("cross-origin-resource-policy"), "same-origin");
    }
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(file.header("content-type").starts_with("text/javascript"));
    let head = app.request(Method::HEAD, INDEX).send_unvalidated().await.expect_status(200);
    assert_eq!(head.text, "");
    let bare = app.get("/api/console").send_unvalidated().await;
    assert_eq!((bare.status.as_u16(), bare.header("location")), (308, INDEX));
    app.post(INDEX, &serde_json::json!({}))
        .send_unvalidated()
        .await
        .expect_problem(405, "method-not-allowed");
}

#[tokio::test]
async fn console_files_are_kept_and_the_page_is_checked() {
    let app = TestApp::new();
    let page = app.get(INDEX).send_unvalidated().await.expect_status(200);
    let etag = page.header("etag").to_owned();
    assert_eq!(page.header("cache-control"), "no-cache");
    let known = app.get(INDEX).header("if-none-match", &etag).send_unvalidated().await;
    assert_eq!((known.status.as_u16(), known.text.as_str()), (304, ""));
    let path = first_file(&page.text);
    assert!(path.contains(etag.trim_matches('"')), "{path} has the hash {etag}");
    let file = app.get(&path).send_unvalidated().await.expect_status(200);
    assert_eq!(file.header("cache-control"), "public, max-age=31536000, immutable");
    assert_eq!(file.header("content-encoding"), "");
    let packed = app.get(&path).header("accept-encoding", "br, gzip").send_streaming().await;
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    let older = path.replace(etag.trim_matches('"'), "0123456789abcdef");
    app.get(&older).send_unvalidated().await.expect_problem(404, "not-found");
    for hidden in ["tests/journeys.mjs", "../Cargo.toml", "%2e%2e/Cargo.toml", "nothing.mjs"] {
        let path = format!("{INDEX}{}/{hidden}", etag.trim_matches('"'));
        app.get(&path).send_unvalidated().await.expect_problem(404, "not-found");
    }
}

#[tokio::test]
async fn console_that_is_off_is_not_found() {
    let app = app(Access { has_console: false, ..Access::dev() });
    for path in [INDEX, "/api/console", "/api/console/0/app.mjs"] {
        app.get(path).send_unvalidated().await.expect_problem(404, "not-found");
    }
}
