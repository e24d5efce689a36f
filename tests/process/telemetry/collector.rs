//! A local collector for OTLP and Application Insights, which stores its requests.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A collector that ends with the test.
pub(super) struct Collector {
    address: SocketAddr,
    log: Arc<ExportLog>,
    changed: watch::Receiver<()>,
    _server: JoinSet<()>,
}

struct ExportLog {
    exports: Mutex<Exports>,
    change: watch::Sender<()>,
}

/// Exports received so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Exports {
    pub(super) spans: Vec<Span>,
    pub(super) metrics: BTreeSet<String>,
    /// Text and trace id.
    pub(super) logs: Vec<(String, String)>,
    /// Items of Application Insights.
    pub(super) insights: Vec<Value>,
    /// Values of the header that the settings name.
    pub(super) keys: BTreeSet<String>,
    /// Every request as text.
    pub(super) raw_requests: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) name: String,
    pub(super) trace: String,
    pub(super) id: String,
    pub(super) parent: String,
    pub(super) links: Vec<String>,
    pub(super) service: String,
    pub(super) instance: String,
    /// True if it names the prompt that it belongs to.
    pub(super) has_prompt: bool,
}

impl Exports {
    pub(super) fn spans_named(&self, name: &str) -> Vec<Span> {
        self.spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    pub(super) fn has_span(&self, name: &str) -> bool {
        self.spans.iter().any(|span| span.name == name)
    }

    pub(super) fn span_names(&self) -> BTreeSet<&str> {
        self.spans.iter().map(|span| span.name.as_str()).collect()
    }
}

impl Collector {
    pub(super) async fn start() -> Self {
        let routes = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/metrics", post(metrics))
            .route("/v1/logs", post(logs))
            .route("/v2/track", post(track))
            .layer(DefaultBodyLimit::disable());
        Self::serve(routes).await
    }

    /// Starts a collector that accepts connections and never responds.
    pub(super) async fn hanging() -> Self {
        let never = || async {
            std::future::pending::<()>().await;
        };
        Self::serve(Router::new().fallback(never)).await
    }

    async fn serve(routes: Router<Arc<ExportLog>>) -> Self {
        let (change, changed) = watch::channel(());
        let log = Arc::new(ExportLog { exports: Mutex::default(), change });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = routes.with_state(Arc::clone(&log));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, log, changed, _server: server }
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn connection_string(&self) -> String {
        format!("InstrumentationKey=0-0-0;IngestionEndpoint=http://{}/", self.address)
    }

    pub(super) fn exports(&self) -> Exports {
        self.log.exports.lock().unwrap().clone()
    }

    /// Waits until the received exports satisfy the condition.
    pub(super) async fn until(&self, within: Duration, is_enough: impl Fn(&Exports) -> bool) {
        let mut changed = self.changed.clone();
        let waiting = async {
            while !is_enough(&self.exports()) {
                changed.changed().await.unwrap();
            }
        };
        let received = tokio::time::timeout(within, waiting).await;
        let exports = self.exports();
        let (names, turns) = (exports.span_names(), exports.spans_named("turn"));
        assert!(received.is_ok(), "received only: {names:?}, {turns:?}");
    }
}

impl ExportLog {
    fn update(&self, apply: impl FnOnce(&mut Exports)) {
        apply(&mut self.exports.lock().unwrap());
        self.change.send_replace(());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn text_of(pairs: &[KeyValue], key: &str) -> String {
    let value = pairs.iter().find(|pair| pair.key == key).and_then(|pair| pair.value.clone());
    match value.and_then(|value| value.value) {
        Some(Any::StringValue(text)) => text,
        _ => String::new(),
    }
}

fn attribute(resource: Option<&Resource>, key: &str) -> String {
    resource.map(|resource| text_of(&resource.attributes, key)).unwrap_or_default()
}

async fn traces(State(kept): State<Arc<ExportLog>>, headers: HeaderMap, body: Bytes) {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    kept.update(|exports| {
        exports.keys.extend(headers.get("x-key").map(|key| key.to_str().unwrap().to_owned()));
        exports.raw_requests.push(format!("{request:?}"));
        for group in request.resource_spans {
            let (service, instance) = (
                attribute(group.resource.as_ref(), "service.name"),
                attribute(group.resource.as_ref(), "service.instance.id"),
            );
            for span in group.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                exports.spans.push(Span {
                    name: span.name,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
                    service: service.clone(),
                    instance: instance.clone(),
                    has_prompt: span.attributes.iter().any(|it| it.key == "prompt.id"),
                });
            }
        }
    });
}

async fn metrics(State(kept): State<Arc<ExportLog>>, body: Bytes) {
    let request = ExportMetricsServiceRequest::decode(body).unwrap();
    kept.update(|exports| {
        exports.raw_requests.push(format!("{request:?}"));
        let scopes = request.resource_metrics.into_iter().flat_map(|group| group.scope_metrics);
        exports.metrics.extend(scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name));
    });
}

async fn logs(State(kept): State<Arc<ExportLog>>, body: Bytes) {
    let request = ExportLogsServiceRequest::decode(body).unwrap();
    kept.update(|exports| {
        exports.raw_requests.push(format!("{request:?}"));
        let scopes = request.resource_logs.into_iter().flat_map(|group| group.scope_logs);
        for record in scopes.flat_map(|scope| scope.log_records) {
            let text = match record.body.and_then(|body| body.value) {
                Some(Any::StringValue(text)) => text,
                _ => String::new(),
            };
            exports.logs.push((text, hex(&record.trace_id)));
        }
    });
}

async fn track(State(kept): State<Arc<ExportLog>>, body: Bytes) -> (StatusCode, String) {
    let mut text = String::new();
    flate2::read::GzDecoder::new(&*body).read_to_string(&mut text).unwrap();
    let items: Vec<Value> = serde_json::from_str(&text).unwrap();
    let count = items.len();
    kept.update(|exports| {
        exports.raw_requests.push(text);
        exports.insights.extend(items);
    });
    let answer = format!(r#"{{"itemsReceived":{count},"itemsAccepted":{count},"errors":[]}}"#);
    (StatusCode::OK, answer)
}
