//! The managed identity of an app, from the platform's endpoint to the wire, in the real program.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Json, Response};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::process::Dev;

const SECRET: &str = "the-platforms-own-header";
const CLIENT_ID: &str = "11111111-2222-3333-4444-555555555555";

/// What one server was asked: path with query, and the header that matters there.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// App Service's identity endpoint (`/msi/token`), and beside it a service that wants its tokens (`/look`).
struct Place {
    url: String,
    asked: Asked,
    task: JoinHandle<()>,
}

impl Place {
    async fn start() -> Self {
        let asked = Asked::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&asked));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, asked, task }
    }

    fn asked(&self, path: &str) -> Vec<(String, String)> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(asked, _)| asked.starts_with(path)).cloned().collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A token names what it is for, so that one sent to the wrong place shows.
fn token_for(resource: &str) -> String {
    format!("hush.{}.token", resource.replace(['/', ':'], "-"))
}

async fn answer(State(asked): State<Asked>, request: Request) -> Response {
    let is_identity = request.uri().path() == "/msi/token";
    let header = if is_identity { "x-identity-header" } else { "authorization" };
    let shown = request.headers().get(header).and_then(|value| value.to_str().ok());
    let shown = shown.unwrap_or_default().to_owned();
    asked.lock().unwrap().push((request.uri().to_string(), shown.clone()));
    if !is_identity {
        return "fine".into_response();
    }
    if shown != SECRET {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let query: Vec<(String, String)> =
        url::form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let resource = query.iter().find(|(name, _)| name == "resource").map(|(_, value)| value);
    let resource = resource.cloned().unwrap_or_default();
    Json(json!({
        "access_token": token_for(&resource),
        "expires_on": "4102444800",
        "resource": resource,
        "token_type": "Bearer",
    }))
    .into_response()
}

#[tokio::test]
async fn a_tools_token_comes_from_the_platforms_endpoint_once_and_stands_in_no_log() {
    let place = Place::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(
        folder.path().join("agents/clerk.agent.md"),
        "---\ntools:\n  - http:\n      name: look\n      url: ${SERVICE_URL}/look\n      auth: { entra: api://payments/.default }\n---\nLook.",
    )
    .unwrap();
    let mut dev = Dev::start_in(
        folder.path(),
        &folder.path().join("data"),
        &[
            ("SERVICE_URL", place.url.clone()),
            ("IDENTITY_ENDPOINT", format!("{}/msi/token", place.url)),
            ("IDENTITY_HEADER", SECRET.to_owned()),
            ("AZURE_CLIENT_ID", CLIENT_ID.to_owned()),
            ("RUST_LOG", "debug".to_owned()),
        ],
    );
    let prompt = json!({"input": "use look with {} then use look with {} then say done"});
    let answer = reqwest::Client::new()
        .post(dev.url("/api/prompts?wait=30"))
        .json(&prompt)
        .timeout(Duration::from_secs(40))
        .send()
        .await
        .unwrap();
    let prompt: Value = answer.json().await.unwrap();
    assert_eq!(prompt["state"], "completed", "{prompt} {}", dev.log());

    let token = token_for("api://payments");
    let shown = format!("Bearer {token}");
    assert_eq!(place.asked("/look"), vec![("/look".to_owned(), shown); 2]);
    let identity = format!(
        "/msi/token?api-version=2019-08-01&resource=api%3A%2F%2Fpayments&client_id={CLIENT_ID}"
    );
    assert_eq!(place.asked("/msi"), [(identity, SECRET.to_owned())], "once, for both calls");
    dev.kill();
    let log = dev.log();
    assert!(log.contains("Turnwheel is at"), "{log}");
    assert!(!log.contains(&token) && !log.contains(SECRET), "{log}");
    assert!(!prompt.to_string().contains(&token), "{prompt}");
}
