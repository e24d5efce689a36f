//! Tests of requests from web pages: allowed origins, and attempts of other sites.

use http::Method;
use serde_json::json;
use turnwheel::http::api::{Access, Api};
use turnwheel::settings::Settings;
use turnwheel::turn::World;

use super::rig::{Asking, Rig};

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
const NEIGHBOUR_FETCH: [(&str, &str); 5] = [
    HOST,
    ("origin", "http://localhost:3000"),
    ("sec-fetch-site", "same-site"),
    ("sec-fetch-mode", "cors"),
    ("sec-fetch-dest", "empty"),
];
/// A browser without `Sec-Fetch-*`; all omit it for a plain-HTTP site that is not this machine.
const OLD_FETCH: [(&str, &str); 2] = [HOST, ("origin", "https://evil.example")];
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

fn with<'a>(asking: Asking<'a>, headers: &[(&str, &str)]) -> Asking<'a> {
    headers.iter().fold(asking, |asking, (name, value)| asking.header(name, value))
}

/// The service with production access rules and these allowed origins.
fn served(origins: &'static str) -> Rig {
    let mut rig = Rig::new();
    let settings = Settings::read(move |name| match name {
        "TURNWHEEL_CORS_ORIGINS" => Some(origins.to_owned()),
        "TURNWHEEL_PUBLIC_URL" => Some("https://public.example".to_owned()),
        _ => None,
    });
    let access = Access::of(&settings.unwrap());
    let api = Api::new(World::clone(&rig.world), access, rig.keys.clone());
    rig.router = turnwheel::http::router(std::sync::Arc::new(api));
    rig
}

const CHANGES: [(Method, &str); 7] = [
    (Method::POST, "/api/conversations/c/abort"),
    (Method::POST, "/api/conversations/c/compact"),
    (Method::POST, "/api/conversations/c/continue"),
    (Method::POST, "/api/conversations/c/artifacts?name=a.txt"),
    (Method::POST, "/api/prompts"),
    (Method::DELETE, "/api/conversations/c/inbox"),
    (Method::DELETE, "/api/conversations/c"),
];

#[tokio::test]
async fn pages_of_other_sites_change_nothing() {
    let rig = served("");
    rig.run("say hello").await;
    let before = rig.seen("/api/conversations/c").await;
    for page in [&FOREIGN_FORM[..], &FOREIGN_FETCH, &NEIGHBOUR_FETCH, &OLD_FETCH] {
        for (method, path) in CHANGES {
            let refused = with(rig.ask(method, path), page).send().await;
            assert_eq!(refused.header("access-control-allow-origin"), "");
            let told = refused.fails(403, "forbidden");
            assert!(told["detail"].as_str().unwrap().contains("TURNWHEEL_CORS_ORIGINS"), "{told}");
        }
    }
    let hidden =
        with(rig.ask(Method::POST, "/api/conversations/c/abort"), &[HOST, ("origin", "null")]);
    hidden.send().await.fails(403, "forbidden");
    assert_eq!(rig.seen("/api/conversations/c").await, before);
    assert_eq!(rig.seen("/api/conversations/c/artifacts").await["items"], json!([]));
}

#[tokio::test]
async fn own_pages_and_programs_change_what_they_may() {
    let rig = served("");
    rig.run("say hello").await;
    let abort = || rig.ask(Method::POST, "/api/conversations/c/abort");
    abort().send().await.is(202);
    with(abort(), &OWN_FETCH).send().await.is(202);
    let behind_gateway = [("host", "10.0.0.4"), ("origin", "https://public.example")];
    with(abort(), &behind_gateway).send().await.is(202);
    // Typed into the address bar, or opened from a bookmark.
    with(abort(), &[HOST, ("sec-fetch-site", "none")]).send().await.is(202);
}

#[tokio::test]
async fn named_origins_may_call_and_read() {
    let rig = served("https://app.example,https://admin.example");
    rig.run("say hello").await;
    let page = [HOST, ("origin", "https://app.example"), ("sec-fetch-site", "cross-site")];
    let done =
        with(rig.ask(Method::POST, "/api/conversations/c/abort"), &page).send().await.is(202);
    assert_eq!(done.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(done.header("vary"), "origin");
    assert!(done.header("access-control-expose-headers").contains("location"));
    let read = with(rig.get("/api/conversations/nowhere"), &page).send().await;
    assert_eq!(read.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(read.header("access-control-allow-credentials"), "");
    read.fails(404, "not-found");
    let other = with(rig.get("/api/conversations/c"), &OLD_FETCH).send().await.is(200);
    assert!(other.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
    with(rig.ask(Method::POST, "/api/conversations/c/abort"), &FOREIGN_FORM)
        .send()
        .await
        .fails(403, "forbidden");
}

#[tokio::test]
async fn any_origin_may_call_without_cookies() {
    let rig = served("*");
    rig.run("say hello").await;
    let abort = || rig.ask(Method::POST, "/api/conversations/c/abort");
    let done = with(abort(), &FOREIGN_FETCH).send().await;
    assert_eq!(done.header("access-control-allow-origin"), "*");
    with(abort(), &NEIGHBOUR_FETCH).send().await.is(202);
    with(abort(), &FOREIGN_FORM).send().await.fails(403, "forbidden");
}

#[tokio::test]
async fn preflights_need_no_authentication() {
    let rig = served("https://app.example");
    let ask = |origin: &'static str, path: &str| {
        let asking = rig.ask(Method::OPTIONS, path).header("host", "agents.example");
        asking
            .header("origin", origin)
            .header("access-control-request-method", "PATCH")
            .header("access-control-request-headers", "authorization,content-type")
            .header("sec-fetch-mode", "cors")
    };
    let allowed = ask("https://app.example", "/api/conversations/c").send().await.is(204);
    assert_eq!(allowed.header("access-control-allow-origin"), "https://app.example");
    assert!(allowed.header("access-control-allow-methods").contains("PATCH"));
    for name in ["authorization", "idempotency-key", "last-event-id", "if-match"] {
        assert!(allowed.header("access-control-allow-headers").contains(name), "{name}");
    }
    for (origin, path) in [
        ("https://evil.example", "/api/conversations/c"),
        ("https://app.example", "/api/approvals/abc.def"),
    ] {
        let refused = ask(origin, path).send().await.is(204);
        let is_open = |name: &http::HeaderName| name.as_str().starts_with("access-control");
        assert!(!refused.headers.keys().any(is_open), "{:?}", refused.headers);
    }
}

#[tokio::test]
async fn dev_allows_pages_of_this_machine_alone() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let abort = || rig.ask(Method::POST, "/api/conversations/c/abort");
    let done = with(abort(), &NEIGHBOUR_FETCH).send().await.is(202);
    assert_eq!(done.header("access-control-allow-origin"), "http://localhost:3000");
    with(abort(), &FOREIGN_FETCH).send().await.fails(403, "forbidden");
}

#[tokio::test]
async fn approval_page_submits_its_form() {
    let rig = served("https://app.example");
    rig.run("use pay with {\"amount\": 500} then say done").await;
    let link = rig.link().await;
    let form = |headers: &[(&str, &str)]| {
        with(rig.ask(Method::POST, &link), headers).body("decision=approve")
    };
    let foreign = form(&FOREIGN_FORM).send().await;
    assert_eq!(foreign.header("access-control-allow-origin"), "");
    foreign.fails(403, "forbidden");
    form(&APPROVAL_FORM).send().await.is(200);
    assert_eq!(rig.seen("/api/conversations/c").await["pendingApprovals"], json!([]));
}
