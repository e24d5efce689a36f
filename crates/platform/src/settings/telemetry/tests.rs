//! Tests of OpenTelemetry's variables.

use super::*;
use crate::settings::ServiceSettings;

fn read(pairs: &[(&'static str, &str)]) -> Result<TelemetrySettings, String> {
    let pairs: Vec<(&'static str, String)> =
        pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let settings = ServiceSettings::read(move |requested| {
        pairs.iter().find(|(name, _)| *name == requested).map(|(_, value)| value.clone())
    });
    settings
        .map(|settings| settings.telemetry)
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn endpoint(collector: Option<&Collector>) -> &str {
    collector.map_or("", |collector| collector.endpoint.as_str())
}

#[test]
fn telemetry_exports_nothing_by_default() {
    let read = read(&[]).unwrap();
    assert_eq!((read.traces, read.metrics, read.logs, read.insights), (None, None, None, None));
    assert!(!read.should_capture_content);
    assert_eq!(read.sampler, Sampler { ratio: 1.0, is_parent_based: true });
}

#[test]
fn signal_endpoint_overrides_common_endpoint() {
    let read = read(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/base/"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x=1"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://metrics.example.com/exact"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "other=2"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "250"),
        ("OTEL_LOGS_EXPORTER", "none"),
    ])
    .unwrap();
    let traces = read.traces.unwrap();
    assert_eq!(traces.endpoint.as_str(), "http://collector:4318/base/v1/traces");
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(*traces.headers.reveal(), [pair("api-key", "a b"), pair("x", "1")]);
    assert!(traces.is_gzipped);
    let metrics = read.metrics.unwrap();
    assert_eq!(metrics.endpoint.as_str(), "https://metrics.example.com/exact");
    assert_eq!(*metrics.headers.reveal(), [pair("other", "2")]);
    assert_eq!(metrics.timeout, Duration::from_millis(250));
    assert_eq!(read.logs, None);
}

#[test]
fn otlp_exporter_uses_default_collector_address() {
    let read = read(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap();
    assert_eq!(endpoint(read.traces.as_ref()), "http://localhost:4318/v1/traces");
    assert_eq!(endpoint(read.logs.as_ref()), "");
}

#[test]
fn disabled_sdk_exports_nothing() {
    let read = read(&[
        ("OTEL_SDK_DISABLED", "True"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
        ("APPLICATIONINSIGHTS_CONNECTION_STRING", "InstrumentationKey=k"),
    ])
    .unwrap();
    assert_eq!((read.traces, read.metrics, read.logs, read.insights), (None, None, None, None));
}

#[test]
fn sampler_follows_opentelemetry_specification() {
    let read_sampler = |name: &str, argument: &str| {
        read(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)])
            .unwrap()
            .sampler
    };
    assert_eq!(read_sampler("always_off", ""), Sampler { ratio: 0.0, is_parent_based: false });
    assert_eq!(
        read_sampler("traceidratio", "0.25"),
        Sampler { ratio: 0.25, is_parent_based: false }
    );
    assert_eq!(
        read_sampler("parentbased_traceidratio", "0.5"),
        Sampler { ratio: 0.5, is_parent_based: true }
    );
}

#[test]
fn application_insights_uses_key_or_identity() {
    let string = (
        "APPLICATIONINSIGHTS_CONNECTION_STRING",
        "InstrumentationKey=hush;IngestionEndpoint=https://x.in.applicationinsights.azure.com/",
    );
    let by_key = read(&[string]).unwrap();
    assert_eq!(by_key.insights.as_ref().unwrap().identity, None);
    assert!(!format!("{by_key:?}").contains("hush"));
    let is_local = |endpoint: &str| {
        let text = format!("InstrumentationKey=k;IngestionEndpoint={endpoint};");
        let name = "APPLICATIONINSIGHTS_CONNECTION_STRING";
        read(&[(name, &text)]).unwrap().insights.unwrap().is_local
    };
    assert!(is_local("http://127.0.0.1:8080/") && !is_local("http://collector/"));
    let read_identity = |text: &str| {
        let name = "APPLICATIONINSIGHTS_AUTHENTICATION_STRING";
        read(&[string, (name, text)]).unwrap().insights.unwrap().identity.unwrap()
    };
    assert_eq!(read_identity("Authorization=AAD"), AzureIdentity::DeveloperTools);
    let mine = AzureIdentity::Managed { client_id: Some("c-1".to_owned()) };
    assert_eq!(read_identity("Authorization=AAD;ClientId=c-1"), mine);
}

#[test]
fn invalid_telemetry_settings_are_reported() {
    let text = read(&[
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hush"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zip"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_SDK_DISABLED", "perhaps"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "EVENT_ONLY"),
        ("APPLICATIONINSIGHTS_CONNECTION_STRING", "IngestionEndpoint=hush"),
    ])
    .unwrap_err();
    assert_eq!(text.lines().count(), 11, "{text}");
    assert!(!text.contains("hush"), "{text}");
    assert!(text.contains("OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`: expected `http/protobuf`"));
    let alone = read(&[("APPLICATIONINSIGHTS_AUTHENTICATION_STRING", "Authorization=AAD")]);
    assert!(alone.unwrap_err().contains("set both or neither"));
}
