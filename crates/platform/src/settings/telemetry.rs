//! Telemetry export: OpenTelemetry's standard variables, and Application Insights.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use super::azure::AzureIdentity;
use super::mistake::SettingMistake;
use super::reader::{Reader, parse_address};
use super::secret::Secret;

/// Telemetry settings. Nothing is exported if all four destinations are absent.
#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    pub traces: Option<Collector>,
    pub metrics: Option<Collector>,
    pub logs: Option<Collector>,
    pub insights: Option<ApplicationInsights>,
    pub service_name: String,
    pub resource: Vec<(String, String)>,
    pub sampler: Sampler,
    /// True to record prompts, responses, arguments and results on spans.
    pub should_capture_content: bool,
    /// Time between two exports.
    pub span_delay: Duration,
    pub log_delay: Duration,
    pub metric_interval: Duration,
}

/// The OTLP collector of one signal, over HTTP with protobuf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// The complete URL, with the signal's path.
    pub endpoint: Url,
    pub headers: Secret<Vec<(String, String)>>,
    /// Time limit of one export, including retries.
    pub timeout: Duration,
    pub is_gzipped: bool,
}

/// The Application Insights resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationInsights {
    pub connection_string: Secret<String>,
    /// True if its endpoint is a plain `http` one on this machine. Any other is reached by `https`,
    /// whatever its scheme.
    pub is_local: bool,
    /// Absent: the key in the connection string is the credential.
    pub identity: Option<AzureIdentity>,
}

/// The sampling of traces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// From 0 to 1, by trace id.
    pub ratio: f64,
    /// True if the caller's sampling decision has precedence.
    pub is_parent_based: bool,
}

const TIMEOUT: Duration = Duration::from_secs(10);
const SPAN_DELAY: Duration = Duration::from_secs(5);
const LOG_DELAY: Duration = Duration::from_secs(1);
const METRIC_INTERVAL: Duration = Duration::from_mins(1);

/// The names of one signal's variables.
struct Signal {
    exporter: &'static str,
    endpoint: &'static str,
    headers: &'static str,
    protocol: &'static str,
    timeout: &'static str,
    compression: &'static str,
    path: &'static str,
}

macro_rules! signal {
    ($name:literal, $path:literal) => {
        Signal {
            exporter: concat!("OTEL_", $name, "_EXPORTER"),
            endpoint: concat!("OTEL_EXPORTER_OTLP_", $name, "_ENDPOINT"),
            headers: concat!("OTEL_EXPORTER_OTLP_", $name, "_HEADERS"),
            protocol: concat!("OTEL_EXPORTER_OTLP_", $name, "_PROTOCOL"),
            timeout: concat!("OTEL_EXPORTER_OTLP_", $name, "_TIMEOUT"),
            compression: concat!("OTEL_EXPORTER_OTLP_", $name, "_COMPRESSION"),
            path: $path,
        }
    };
}

const TRACES: Signal = signal!("TRACES", "v1/traces");
const METRICS: Signal = signal!("METRICS", "v1/metrics");
const LOGS: Signal = signal!("LOGS", "v1/logs");

/// Settings that apply to all signals.
struct CommonSettings {
    endpoint: Option<Url>,
    headers: Option<Vec<(String, String)>>,
    timeout: Option<Duration>,
    is_gzipped: Option<bool>,
}

impl TelemetrySettings {
    pub(super) fn read(reader: &mut Reader<'_>, own: &AzureIdentity) -> Self {
        let is_disabled = read_bool(reader, "OTEL_SDK_DISABLED").unwrap_or(false);
        check_protocol(reader, "OTEL_EXPORTER_OTLP_PROTOCOL");
        let general = CommonSettings {
            endpoint: reader.read_address("OTEL_EXPORTER_OTLP_ENDPOINT"),
            headers: read_headers(reader, "OTEL_EXPORTER_OTLP_HEADERS"),
            timeout: read_milliseconds(reader, "OTEL_EXPORTER_OTLP_TIMEOUT"),
            is_gzipped: read_compression(reader, "OTEL_EXPORTER_OTLP_COMPRESSION"),
        };
        let [traces, metrics, logs] =
            [TRACES, METRICS, LOGS].map(|signal| read_collector(reader, &signal, &general));
        let expected = "pairs such as `key=value,other=value`";
        let resource =
            reader.parse("OTEL_RESOURCE_ATTRIBUTES", expected, parse_pairs).unwrap_or_default();
        let settings = Self {
            traces,
            metrics,
            logs,
            insights: read_insights(reader, own),
            service_name: read_service_name(reader, &resource),
            resource,
            sampler: read_sampler(reader),
            should_capture_content: read_capture_content(reader),
            span_delay: read_milliseconds(reader, "OTEL_BSP_SCHEDULE_DELAY").unwrap_or(SPAN_DELAY),
            log_delay: read_milliseconds(reader, "OTEL_BLRP_SCHEDULE_DELAY").unwrap_or(LOG_DELAY),
            metric_interval: read_milliseconds(reader, "OTEL_METRIC_EXPORT_INTERVAL")
                .unwrap_or(METRIC_INTERVAL),
        };
        if is_disabled {
            return Self { traces: None, metrics: None, logs: None, insights: None, ..settings };
        }
        settings
    }
}

/// The name of the service; in Azure by default the app's name, from the Functions host.
fn read_service_name(reader: &Reader<'_>, resource: &[(String, String)]) -> String {
    let (named, site) = (reader.get("OTEL_SERVICE_NAME"), reader.get("WEBSITE_SITE_NAME"));
    let attribute = resource.iter().find(|(key, _)| key == "service.name");
    let attribute = attribute.map(|(_, value)| value.clone());
    named.or(attribute).or(site).unwrap_or_else(|| "turnwheel".to_owned())
}

/// Returns `None` if the signal is not exported. An endpoint or the exporter `otlp` enables it.
fn read_collector(
    reader: &mut Reader<'_>,
    signal: &Signal,
    general: &CommonSettings,
) -> Option<Collector> {
    let exporter = reader.parse(signal.exporter, "`otlp` or `none`", |text| match text {
        "otlp" => Some(true),
        "none" => Some(false),
        _ => None,
    });
    let own_endpoint = reader.read_address(signal.endpoint);
    let own_headers = read_headers(reader, signal.headers);
    check_protocol(reader, signal.protocol);
    let timeout = read_milliseconds(reader, signal.timeout).or(general.timeout);
    let is_gzipped = read_compression(reader, signal.compression).or(general.is_gzipped);
    let common_endpoint = general.endpoint.as_ref().and_then(|base| append_path(base, signal.path));
    let default_endpoint = || append_path(&Url::parse("http://localhost:4318").ok()?, signal.path);
    let endpoint = match exporter {
        Some(false) => None,
        Some(true) => own_endpoint.or(common_endpoint).or_else(default_endpoint),
        None => own_endpoint.or(common_endpoint),
    };
    Some(Collector {
        endpoint: endpoint?,
        headers: Secret::new(own_headers.or_else(|| general.headers.clone()).unwrap_or_default()),
        timeout: timeout.unwrap_or(TIMEOUT),
        is_gzipped: is_gzipped.unwrap_or(false),
    })
}

fn append_path(base: &Url, path: &str) -> Option<Url> {
    Url::parse(&format!("{}/{path}", base.as_str().trim_end_matches('/'))).ok()
}

/// Rejects every protocol but the supported one, because nothing would be exported.
fn check_protocol(reader: &mut Reader<'_>, name: &'static str) {
    let expected =
        "`http/protobuf`, the only supported protocol (collectors accept it on port 4318)";
    reader.parse(name, expected, |text| (text == "http/protobuf").then_some(()));
}

fn read_compression(reader: &mut Reader<'_>, name: &'static str) -> Option<bool> {
    reader.parse(name, "`gzip` or `none`", |text| match text {
        "gzip" => Some(true),
        "none" => Some(false),
        _ => None,
    })
}

fn read_milliseconds(reader: &mut Reader<'_>, name: &'static str) -> Option<Duration> {
    reader.parse(name, "milliseconds from 1 to 3600000", |text| {
        let amount = text.parse().ok().filter(|amount| (1..=3_600_000_u64).contains(amount));
        amount.map(Duration::from_millis)
    })
}

fn read_bool(reader: &mut Reader<'_>, name: &'static str) -> Option<bool> {
    reader.parse(name, "`true` or `false`", |text| text.to_ascii_lowercase().parse().ok())
}

fn read_headers(reader: &mut Reader<'_>, name: &'static str) -> Option<Vec<(String, String)>> {
    reader.parse(name, "headers such as `name=value,other=value`", |text| {
        let pairs = parse_pairs(text)?;
        let are_headers = pairs.iter().all(|(name, value)| {
            http::HeaderName::try_from(name.as_str()).is_ok()
                && http::HeaderValue::try_from(value.as_str()).is_ok()
        });
        are_headers.then_some(pairs)
    })
}

/// W3C Baggage without properties: `key=value`, separated by commas, values percent-encoded.
fn parse_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pairs = parts.map(|part| {
        let (key, value) = part.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), value.into_owned()))
    });
    pairs.collect()
}

fn read_sampler(reader: &mut Reader<'_>) -> Sampler {
    let ratio = reader.parse("OTEL_TRACES_SAMPLER_ARG", "a ratio from 0 to 1", |text| {
        text.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
    });
    let expected =
        "`always_on`, `always_off`, `traceidratio`, or one of these after `parentbased_`";
    let named = reader.parse("OTEL_TRACES_SAMPLER", expected, |text| {
        let (is_parent_based, root) =
            text.strip_prefix("parentbased_").map_or((false, text), |root| (true, root));
        let ratio = match root {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => ratio.unwrap_or(1.0),
            _ => return None,
        };
        Some(Sampler { ratio, is_parent_based })
    });
    named.unwrap_or(Sampler { ratio: 1.0, is_parent_based: true })
}

/// Accepts the values of OpenTelemetry's own instrumentations that concern content on spans.
fn read_capture_content(reader: &mut Reader<'_>) -> bool {
    let name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
    let expected = "`SPAN_ONLY` or `true`, or `NO_CONTENT` or `false`: content is put on spans and never on events";
    reader
        .parse(name, expected, |text| match text.to_ascii_lowercase().as_str() {
            "true" | "span_only" => Some(true),
            "false" | "no_content" => Some(false),
            _ => None,
        })
        .unwrap_or(false)
}

fn read_insights(reader: &mut Reader<'_>, own: &AzureIdentity) -> Option<ApplicationInsights> {
    let expected =
        "the connection string that the portal shows: `InstrumentationKey=…;IngestionEndpoint=…`";
    let connection_string =
        reader.parse("APPLICATIONINSIGHTS_CONNECTION_STRING", expected, |text| {
            is_connection_string(text).then(|| text.to_owned())
        });
    let expected = "`Authorization=AAD`, or `Authorization=AAD;ClientId=…` with a user-assigned identity's client id";
    let identity = reader.parse("APPLICATIONINSIGHTS_AUTHENTICATION_STRING", expected, |text| {
        parse_identity(text, own)
    });
    let is_alone = connection_string.is_none() && identity.is_some();
    if is_alone && reader.get("APPLICATIONINSIGHTS_CONNECTION_STRING").is_none() {
        reader.add_mistake(SettingMistake::new(
            "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
            "is set, but APPLICATIONINSIGHTS_CONNECTION_STRING is not: set both or neither",
        ));
    }
    let connection_string = connection_string?.trim_end_matches([';', ' ']).to_owned();
    let is_local = find_value(&connection_string, "IngestionEndpoint")
        .and_then(parse_address)
        .is_some_and(|endpoint| endpoint.scheme() == "http" && is_loopback(&endpoint));
    Some(ApplicationInsights {
        connection_string: Secret::new(connection_string),
        is_local,
        identity,
    })
}

fn is_connection_string(text: &str) -> bool {
    let has_key = find_value(text, "InstrumentationKey").is_some_and(|key| !key.is_empty());
    let are_pairs =
        text.trim_end_matches([';', ' ']).split(';').all(|part| part.matches('=').count() == 1);
    let endpoint = find_value(text, "IngestionEndpoint");
    has_key && are_pairs && endpoint.is_none_or(|endpoint| parse_address(endpoint).is_some())
}

/// The value of a key; the last occurrence counts.
fn find_value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let parts = text.split(';').filter_map(|part| part.split_once('='));
    let mut values = parts.filter(|(key, _)| key.trim().eq_ignore_ascii_case(name));
    values.next_back().map(|(_, value)| value.trim())
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// The app's own identity, unless the text names a user-assigned one.
fn parse_identity(text: &str, own: &AzureIdentity) -> Option<AzureIdentity> {
    let mut is_entra = false;
    let mut client_id = None;
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=')?;
        match (key.trim().to_ascii_lowercase().as_str(), value.trim()) {
            ("authorization", value) if value.eq_ignore_ascii_case("aad") => is_entra = true,
            ("clientid", value) if !value.is_empty() => client_id = Some(value.to_owned()),
            _ => return None,
        }
    }
    let identity = match client_id {
        Some(client_id) => AzureIdentity::Managed { client_id: Some(client_id) },
        None => own.clone(),
    };
    is_entra.then_some(identity)
}

#[cfg(test)]
mod tests;
