//! The app's managed identity in the real program, from the platform's endpoint to the requests.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Json, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use turnwheel::testing::azure::cosmos::CONTAINERS;
use turnwheel::testing::azurite::{Azurite, AzuriteOptions, Tls};

use crate::support::dev_process::DevProcess;
use crate::support::openapi_check::{self, SendValidated as _};
use turnwheel_cosmos_emulator::CosmosHost;

const SECRET: &str = "the-platforms-own-header";
const CLIENT_ID: &str = "11111111-2222-3333-4444-555555555555";

/// Requests of one server: path with query, and the relevant header.
type RequestLog = Arc<Mutex<Vec<(String, String)>>>;

/// App Service's identity endpoint (`/msi/token`), and a service that requires its tokens
/// (`/look`).
struct IdentityServer {
    url: String,
    requests: RequestLog,
    task: JoinHandle<()>,
}

impl IdentityServer {
    async fn start() -> Self {
        let requests = RequestLog::default();
        let router = Router::new().fallback(handle_request).with_state(Arc::clone(&requests));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, requests, task }
    }

    fn requests_to(&self, path: &str) -> Vec<(String, String)> {
        let recorded = self.requests.lock().unwrap();
        recorded.iter().filter(|(recorded, _)| recorded.starts_with(path)).cloned().collect()
    }
}

impl Drop for IdentityServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a token for a resource, so that a token sent elsewhere is visible. The emulators check
/// the resource and no signature.
fn token_for(resource: &str) -> String {
    let tenant = "11111111-2222-3333-4444-555555555555";
    let claims = json!({
        "aud": resource, "iss": format!("https://sts.windows.net/{tenant}/"), "tid": tenant,
        "nbf": 1_600_000_000, "iat": 1_600_000_000, "exp": 4_000_000_000_u64,
    });
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
    format!("{header}.{}.", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

async fn handle_request(State(log): State<RequestLog>, request: Request) -> Response {
    let is_identity = request.uri().path() == "/msi/token";
    let header = if is_identity { "x-identity-header" } else { "authorization" };
    let token = request.headers().get(header).and_then(|value| value.to_str().ok());
    let token = token.unwrap_or_default().to_owned();
    log.lock().unwrap().push((request.uri().to_string(), token.clone()));
    if !is_identity {
        return "fine".into_response();
    }
    if token != SECRET {
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
        "expires_on": "4000000000",
        "resource": resource,
        "token_type": "Bearer",
    }))
    .into_response()
}

/// Writes an agent with one tool, which signs in.
fn write_agent(folder: &Path) {
    std::fs::create_dir(folder.join("agents")).unwrap();
    std::fs::write(
        folder.join("agents/clerk.agent.md"),
        "---\ntools:\n  - http:\n      name: look\n      url: ${SERVICE_URL}/look\n      auth: { entra: api://payments/.default }\n---\nLook.",
    )
    .unwrap();
}

async fn run_prompt(dev: &DevProcess, input: &str) -> Value {
    let request = reqwest::Client::new()
        .post(dev.url("/api/prompts?wait=60"))
        .json(&json!({"conversationId": "mine", "input": input}))
        .timeout(Duration::from_mins(2));
    let prompt = openapi_check::send(request).await.unwrap().json();
    assert_eq!(prompt["state"], "completed", "{prompt} {}", dev.log());
    prompt
}

#[tokio::test]
async fn tool_token_is_requested_once_and_never_logged() {
    let server = IdentityServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    write_agent(folder.path());
    let mut dev = DevProcess::start_in(
        folder.path(),
        &folder.path().join("data"),
        &[
            ("SERVICE_URL", server.url.clone()),
            ("IDENTITY_ENDPOINT", format!("{}/msi/token", server.url)),
            ("IDENTITY_HEADER", SECRET.to_owned()),
            ("AZURE_CLIENT_ID", CLIENT_ID.to_owned()),
            ("RUST_LOG", "debug".to_owned()),
        ],
    );
    let prompt = run_prompt(&dev, "use look with {} then use look with {} then say done").await;

    let token = token_for("api://payments");
    let bearer = format!("Bearer {token}");
    assert_eq!(server.requests_to("/look"), vec![("/look".to_owned(), bearer); 2]);
    let identity = format!(
        "/msi/token?api-version=2019-08-01&resource=api%3A%2F%2Fpayments&client_id={CLIENT_ID}"
    );
    assert_eq!(
        server.requests_to("/msi"),
        [(identity, SECRET.to_owned())],
        "one token request for both calls"
    );
    let log = dev.whole_log();
    assert!(log.contains("Turnwheel is at"), "{log}");
    assert!(!log.contains(&token) && !log.contains(SECRET), "{log}");
    assert!(!prompt.to_string().contains(&token), "{prompt}");
}

/// Starts Azurite with token authentication, over https with a new certificate in this file.
async fn start_azurite(certificate: &Path) -> Azurite {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = certificate.with_extension("key");
    std::fs::write(certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let options = AzuriteOptions {
        install: Path::new(env!("CARGO_MANIFEST_DIR")).join("target/azurite"),
        tls: Some(Tls { certificate: certificate.to_owned(), key }),
        ..AzuriteOptions::default()
    };
    Azurite::start(options, |line| drop(writeln!(std::io::stderr(), "{line}"))).await.unwrap()
}

/// The lines of `turnwheel doctor` about identities.
fn doctor_identity_lines(folder: &Path, settings: &[(&str, String)]) -> Vec<String> {
    let ran = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .arg("doctor")
        .current_dir(folder)
        .env_clear()
        .env("TURNWHEEL_MODEL", "scripted")
        .envs(settings.iter().map(|(name, value)| (*name, value.as_str())))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output = String::from_utf8(ran.stdout).unwrap();
    let lines = output.lines().filter(|line| line.starts_with("identity"));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Without keys and connection strings: queues, artifacts, conversations and a tool use one
/// identity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_works_with_managed_identity_alone() {
    let server = IdentityServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    write_agent(folder.path());
    let certificate = folder.path().join("azurite.pem");
    let azurite = start_azurite(&certificate).await;
    let containers: Vec<_> = CONTAINERS.iter().map(|shape| (shape.name, shape.key_paths)).collect();
    let cosmos = CosmosHost::start(0, "turnwheel", &containers, 1).unwrap();
    let account = azurite.account();
    let mut settings = vec![
        ("SERVICE_URL", server.url.clone()),
        ("IDENTITY_ENDPOINT", format!("{}/msi/token", server.url)),
        ("IDENTITY_HEADER", SECRET.to_owned()),
        ("SSL_CERT_FILE", certificate.to_string_lossy().into_owned()),
        ("AzureWebJobsStorage__queueServiceUri", account.queue.to_string()),
        ("AzureWebJobsStorage__blobServiceUri", account.blob.to_string()),
        ("AzureWebJobsStorage__credential", "managedidentity".to_owned()),
        ("COSMOS__accountEndpoint", cosmos.emulator.endpoint.to_string()),
    ];
    let arguments = ["--storage", "azure", "--queue-prefix", "mine"];
    let data = folder.path().join("data");
    let mut dev = DevProcess::start_with(folder.path(), &data, &arguments, &settings);
    run_prompt(&dev, "use look with {} then say done").await;
    let artifacts = dev.url("/api/conversations/mine/artifacts");
    let client = reqwest::Client::new();
    let uploaded =
        client.post(format!("{artifacts}?name=a.txt")).body("kept").send_validated().await.unwrap();
    let uploaded: Value = uploaded.json().await.unwrap();
    let id = uploaded["id"]
        .as_str()
        .or(uploaded["artifactId"].as_str())
        .unwrap_or_else(|| panic!("{uploaded}"));
    let read = client.get(format!("{artifacts}/{id}")).send_validated().await.unwrap();
    assert_eq!(read.text().await.unwrap(), "kept", "{}", dev.log());
    let log = dev.whole_log();

    let payments = format!("Bearer {}", token_for("api://payments"));
    assert_eq!(server.requests_to("/look"), [("/look".to_owned(), payments)]);
    let mut token_paths: Vec<String> =
        server.requests_to("/msi").into_iter().map(|(path, _)| path).collect();
    token_paths.sort();
    let expected = [
        "api%3A%2F%2Fpayments",
        "https%3A%2F%2Fcosmos.azure.com",
        "https%3A%2F%2Fstorage.azure.com",
    ]
    .map(|resource| format!("/msi/token?api-version=2019-08-01&resource={resource}"));
    assert_eq!(token_paths, expected, "one credential for all uses of the identity");
    for resource in ["api://payments", "https://cosmos.azure.com", "https://storage.azure.com"] {
        assert!(!log.contains(&token_for(resource)), "{log}");
    }

    assert_eq!(
        doctor_identity_lines(folder.path(), &settings),
        [
            "identity ok storage: the app's managed identity gets tokens for https://storage.azure.com/.default",
            "identity ok cosmos: the app's managed identity gets tokens for https://cosmos.azure.com/.default",
        ]
    );
    settings.retain(|(name, _)| *name != "IDENTITY_HEADER");
    settings.push(("IDENTITY_HEADER", "another".to_owned()));
    let refused = doctor_identity_lines(folder.path(), &settings);
    assert_eq!(refused.len(), 2, "{refused:?}");
    for line in refused {
        assert!(
            line.starts_with("identity fix")
                && line.contains("Turn on the app's system-assigned identity"),
            "{line}"
        );
    }
}
