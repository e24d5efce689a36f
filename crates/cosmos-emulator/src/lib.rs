//! Cosmos DB emulator of Microsoft's driver, in this process or behind a socket.
//!
//! For tests and development only. Data is in memory. Expiry and the index policy are not emulated.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use axum::routing::any;
use axum::serve::ListenerExt as _;
use azure_core::credentials::Secret;
use azure_core::hmac::hmac_sha256;
use azure_core::http::{Method, Request as CosmosRequest};
use azure_data_cosmos_driver::in_memory_emulator::{
    ConsistencyLevel, ContainerConfig, InMemoryEmulatorHttpClient, RequestObserver,
    VirtualAccountConfig, VirtualRegion,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::percent_decode_str;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use url::Url;

/// The published key of all Cosmos DB emulators. It protects nothing.
pub const KEY: &str =
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==";
/// A batch of at most 2 MB, with its envelope.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Name and partition key of a container.
pub type Container<'a> = (&'a str, &'a [&'a str]);

/// An account with one region and the containers created at its start.
#[derive(Clone, Debug)]
pub struct CosmosEmulator {
    pub core: Arc<InMemoryEmulatorHttpClient>,
    pub endpoint: Url,
    /// Throttles every second request.
    pub is_throttled: Arc<AtomicBool>,
    pub request_count: Arc<AtomicU64>,
}

impl CosmosEmulator {
    /// `partitions`: a batch copies its whole physical partition, so long tests use many. A sweep queries each one, so
    /// short tests use few.
    ///
    /// # Errors
    /// The driver refuses the account or a container.
    pub fn new(
        endpoint: Url,
        database: &str,
        containers: &[Container<'_>],
        partitions: u32,
    ) -> io::Result<Self> {
        let region = VirtualRegion::new("East US", endpoint.clone());
        let account = VirtualAccountConfig::new(vec![region]).map_err(io::Error::other)?;
        let account = account.with_consistency(ConsistencyLevel::Session);
        let core = Arc::new(InMemoryEmulatorHttpClient::new(account));
        core.store().create_database(database);
        for (name, paths) in containers {
            let kind = if paths.len() > 1 { "MultiHash" } else { "Hash" };
            let key = serde_json::json!({"paths": paths, "kind": kind, "version": 2});
            let config = ContainerConfig::new().with_partition_count(partitions);
            core.store().create_container_with_config(
                database,
                name,
                serde_json::from_value(key)?,
                config.build().map_err(io::Error::other)?,
            );
        }
        Ok(Self { core, endpoint, is_throttled: Arc::default(), request_count: Arc::default() })
    }

    /// The service's response to a throttled request, with the time to wait before a retry.
    fn throttle(&self) -> Option<Response<Body>> {
        let request_count = self.request_count.fetch_add(1, Ordering::Relaxed);
        if !self.is_throttled.load(Ordering::Relaxed) || request_count.is_multiple_of(2) {
            return None;
        }
        let mut response = error_response(StatusCode::TOO_MANY_REQUESTS, "Request rate is large.");
        for (name, value) in [("x-ms-substatus", "3200"), ("x-ms-retry-after-ms", "40")] {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Some(response)
    }

    async fn serve(self, listener: TcpListener, runtime: Handle) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        // Send responses at once: with Nagle's algorithm, two small packets delay each other.
        let listener = listener.tap_io(|socket| {
            let _ = socket.set_nodelay(true);
        });
        let router = Router::new().fallback(any(respond)).with_state((self, runtime));
        axum::serve(listener, router).await
    }
}

/// An emulator behind a socket, on its own thread. It stops when this is dropped.
#[derive(Debug)]
pub struct CosmosHost {
    pub emulator: CosmosEmulator,
    /// Completes received requests, also after the server has stopped. The emulator accepts no further requests after one
    /// was cancelled in progress.
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl CosmosHost {
    /// Starts on 127.0.0.1. Port 0 chooses a free port.
    ///
    /// # Errors
    /// The port is in use, or the driver refuses the account.
    pub fn start(
        port: u16,
        database: &str,
        containers: &[Container<'_>],
        partitions: u32,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let endpoint = format!("http://{}/", listener.local_addr()?);
        let endpoint = Url::parse(&endpoint).map_err(io::Error::other)?;
        let emulator = CosmosEmulator::new(endpoint, database, containers, partitions)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut host = Self { emulator, runtime: Some(runtime), stop: None, thread: None };
        host.serve(listener);
        Ok(host)
    }

    /// Serves at the start, and again after [`Self::stop`] on a listener of the same address.
    pub fn serve(&mut self, listener: TcpListener) {
        let (stop, stopped) = oneshot::channel();
        let serving = self.emulator.clone();
        let runtime = self.runtime.as_ref().map(|runtime| runtime.handle().clone());
        let thread = std::thread::spawn(move || {
            let runtime = runtime.ok_or_else(|| io::Error::other("the emulator has ended"))?;
            let server = Builder::new_current_thread().enable_all().build()?;
            // No graceful shutdown: it waits for connections that clients keep open.
            server.block_on(async {
                tokio::select! {
                    ended = serving.serve(listener, runtime) => ended,
                    _ = stopped => Ok(()),
                }
            })
        });
        self.stop = Some(stop);
        self.thread = Some(thread);
    }

    /// Breaks all connections and keeps the data.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        let _ = self.ended();
    }

    /// Waits until the server ends, by an error or the drop.
    ///
    /// # Errors
    /// The server ended by an error.
    pub fn ended(&mut self) -> io::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(io::Error::other("the emulator's thread died")),
            None => Ok(()),
        }
    }
}

impl Drop for CosmosHost {
    fn drop(&mut self) {
        self.stop();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Passes a request to the emulator after the checks of the account's gateway: the key, and two forms that other SDKs
/// send.
async fn respond(
    State((emulator, runtime)): State<(CosmosEmulator, Handle)>,
    request: Request,
) -> Response<Body> {
    if let Some(refused) = emulator.throttle() {
        return refused;
    }
    let (parts, body) = request.into_parts();
    let Ok(bytes) = to_bytes(body, REQUEST_BYTES_MAX).await else {
        return error_response(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large");
    };
    // All SDKs sign also the request for the account.
    if let Err(why) = check_access(parts.method.as_str(), parts.uri.path(), &parts.headers) {
        return error_response(StatusCode::UNAUTHORIZED, &why);
    }
    let Ok(method) = parts.method.as_str().parse::<Method>() else {
        return error_response(StatusCode::METHOD_NOT_ALLOWED, "there is no such method");
    };
    let path = parts.uri.path().trim_matches('/');
    let relative = match parts.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let Ok(url) = emulator.endpoint.join(&relative) else {
        return error_response(StatusCode::BAD_REQUEST, "the path is no URL");
    };
    let mut request_count = CosmosRequest::new(url, method);
    for (name, value) in &parts.headers {
        if let Ok(value) = value.to_str() {
            request_count.headers_mut().insert(name.as_str().to_owned(), value.to_owned());
        }
    }
    let is_bare_patch = parts.method == "PATCH" && bytes.first() == Some(&b'[');
    if is_bare_patch {
        request_count.set_body([b"{\"operations\":".as_slice(), &bytes, b"}"].concat());
    } else if !bytes.is_empty() {
        request_count.set_body(bytes.to_vec());
    }
    let done = runtime.spawn(async move { forward(&emulator, &request_count).await }).await;
    done.unwrap_or_else(|died| Err(died.to_string()))
        .unwrap_or_else(|why| error_response(StatusCode::INTERNAL_SERVER_ERROR, &why))
}

async fn forward(
    emulator: &CosmosEmulator,
    request_count: &CosmosRequest,
) -> Result<Response<Body>, String> {
    let answer =
        emulator.core.execute_request(request_count).await.map_err(|error| error.to_string())?;
    let answer = answer.try_into_raw_response().await.map_err(|error| error.to_string())?;
    let mut response = Response::builder().status(u16::from(answer.status()));
    for (name, value) in answer.headers().iter() {
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value.as_str())) {
            response = response.header(name, value);
        }
    }
    response.body(Body::from(answer.body().as_ref().to_vec())).map_err(|error| error.to_string())
}

fn error_response(status: StatusCode, why: &str) -> Response<Body> {
    let code = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::json!({"code": code, "message": why}).to_string();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    response
}

/// The signature of a key as Cosmos's REST documentation defines it, or an Entra token.
fn check_access(method: &str, path: &str, headers: &HeaderMap) -> Result<(), String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let given = decoded(text("authorization").ok_or("there is no authorization header")?);
    if let Some(token) = given.strip_prefix("type=aad&ver=1.0&sig=") {
        return check_token(token);
    }
    let signature = given
        .strip_prefix("type=master&ver=1.0&sig=")
        .ok_or("the authorization is not of an account key")?;
    let date = text("x-ms-date").or(text("date")).ok_or("there is no date")?.to_lowercase();
    let path = decoded(path.trim_matches('/'));
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let (kind, link) = match parts.split_last() {
        None => (String::new(), String::new()),
        Some((last, rest)) if parts.len() % 2 == 1 => ((*last).to_owned(), rest.join("/")),
        Some((_, rest)) => (rest.last().copied().unwrap_or_default().to_owned(), path.clone()),
    };
    let link = if kind == "offers" { parts.last().unwrap_or(&"").to_lowercase() } else { link };
    let signed = format!("{}\n{}\n{link}\n{date}\n\n", method.to_lowercase(), kind.to_lowercase());
    let wanted = hmac_sha256(&signed, &Secret::new(KEY)).map_err(|error| error.to_string())?;
    if wanted == signature { Ok(()) } else { Err("the key is not this account's".to_owned()) }
}

/// Checks the audience of a token. Its signature is not checked, as in the storage emulator.
fn check_token(token: &str) -> Result<(), String> {
    let claims = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    let claims: serde_json::Value = claims
        .and_then(|claims| serde_json::from_slice(&claims).ok())
        .ok_or("the authorization holds no token")?;
    if claims.get("aud").is_some_and(|audience| audience == "https://cosmos.azure.com") {
        Ok(())
    } else {
        Err("the token is for another service".to_owned())
    }
}

impl CosmosEmulator {
    /// Starts an emulator for clients in this process, without a socket.
    pub fn in_process(database: &str, containers: &[Container<'_>], partitions: u32) -> Self {
        let endpoint = "https://eastus.emulator.local".parse().unwrap();
        Self::new(endpoint, database, containers, partitions).unwrap()
    }

    /// Adds an observer of all requests. Call it before any client connects.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn RequestObserver>) -> Self {
        let core = Arc::into_inner(self.core).unwrap().with_request_observer(observer);
        Self { core: Arc::new(core), ..self }
    }
}
