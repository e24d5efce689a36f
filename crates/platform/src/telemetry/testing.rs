//! In-memory telemetry for tests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeMap;

use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ScopeMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};

use crate::telemetry::Telemetry;
use crate::telemetry::export::Providers;

/// Records spans and metrics in memory.
#[derive(Debug)]
pub struct Recorder {
    spans: InMemorySpanExporter,
    metrics: InMemoryMetricExporter,
    telemetry: Telemetry,
    meter: SdkMeterProvider,
}

/// A recorded span, with its values as text.
#[derive(Debug)]
pub struct RecordedSpan {
    pub name: String,
    pub kind: String,
    pub trace: String,
    pub id: String,
    pub parent: String,
    /// Ids of the linked spans.
    pub links: Vec<String>,
    pub attributes: BTreeMap<String, String>,
    pub is_error: bool,
    /// Debug text of the whole span, for tests that search it for forbidden content.
    pub debug_text: String,
}

impl RecordedSpan {
    pub fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    /// Returns the domain and `error.type` of a failed span.
    pub fn error_class(&self) -> Option<(&str, &str)> {
        self.is_error.then(|| (self.get("turnwheel.fault_domain"), self.get("error.type")))
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    pub fn new() -> Self {
        Self::with_content(false)
    }

    pub fn with_content(captures_content: bool) -> Self {
        let spans = InMemorySpanExporter::default();
        let metrics = InMemoryMetricExporter::default();
        let tracer = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let reader = PeriodicReader::builder(metrics.clone()).build();
        let meter = SdkMeterProvider::builder().with_reader(reader).build();
        let providers = Providers::new(Some(tracer), Some(meter.clone()), None);
        let telemetry = Telemetry::from_providers(providers, captures_content);
        Self { spans, metrics, telemetry, meter }
    }

    pub fn telemetry(&self) -> Telemetry {
        self.telemetry.clone()
    }

    /// Returns the spans in the order in which they ended.
    pub fn spans(&self) -> Vec<RecordedSpan> {
        let spans = self.spans.get_finished_spans().unwrap();
        spans
            .into_iter()
            .map(|span| RecordedSpan {
                debug_text: format!("{span:?}"),
                name: span.name.to_string(),
                kind: format!("{:?}", span.span_kind),
                trace: span.span_context.trace_id().to_string(),
                id: span.span_context.span_id().to_string(),
                parent: span.parent_span_id.to_string(),
                links: span
                    .links
                    .iter()
                    .map(|link| link.span_context.span_id().to_string())
                    .collect(),
                attributes: span
                    .attributes
                    .iter()
                    .map(|pair| (pair.key.to_string(), pair.value.to_string()))
                    .collect(),
                is_error: matches!(span.status, opentelemetry::trace::Status::Error { .. }),
            })
            .collect()
    }

    /// Returns sums or counts by name and attributes: `turnwheel.commits{outcome=won,…}`.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        self.meter.force_flush().unwrap();
        let mut sums = BTreeMap::new();
        // Temporality is cumulative: the last export has all values.
        let exports = self.metrics.get_finished_metrics().unwrap();
        let Some(last) = exports.last() else { return sums };
        for metric in last.scope_metrics().flat_map(ScopeMetrics::metrics) {
            for (attributes, value) in data_points(metric.data()) {
                sums.insert(format!("{}{{{attributes}}}", metric.name()), value);
            }
        }
        sums
    }
}

fn data_points(data: &AggregatedMetrics) -> Vec<(String, f64)> {
    fn of<T: Copy>(data: &MetricData<T>, number: impl Fn(T) -> f64) -> Vec<(String, f64)> {
        match data {
            MetricData::Sum(sum) => sum
                .data_points()
                .map(|at| (format_attributes(at.attributes()), number(at.value())))
                .collect(),
            MetricData::Gauge(gauge) => gauge
                .data_points()
                .map(|at| (format_attributes(at.attributes()), number(at.value())))
                .collect(),
            #[expect(clippy::cast_precision_loss, reason = "counts in tests are small")]
            MetricData::Histogram(histogram) => histogram
                .data_points()
                .map(|at| (format_attributes(at.attributes()), at.count() as f64))
                .collect(),
            MetricData::ExponentialHistogram(_) => Vec::new(),
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "counts in tests are small")]
    match data {
        AggregatedMetrics::F64(data) => of(data, |value| value),
        AggregatedMetrics::U64(data) => of(data, |value| value as f64),
        AggregatedMetrics::I64(data) => of(data, |value| value as f64),
    }
}

fn format_attributes<'a>(pairs: impl Iterator<Item = &'a opentelemetry::KeyValue>) -> String {
    let mut pairs: Vec<String> = pairs.map(|pair| format!("{}={}", pair.key, pair.value)).collect();
    pairs.sort();
    pairs.join(",")
}
