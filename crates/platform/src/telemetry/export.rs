//! Exporters of spans, metrics and logs: bounded queues, batches, and a bounded stop.
//!
//! The SDK's own batch threads wait for responses, and the requests run on the service's runtime. A
//! full queue drops new items: a turn never waits for a collector.

mod http_transport;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Meter, MeterProvider as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{Compression, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{
    BatchLogProcessor, LogExporter, LoggerProviderBuilder, SdkLoggerProvider,
};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, ShouldSample, SpanExporter,
    TracerProviderBuilder,
};
use tracing_subscriber::Layer as _;

use crate::ids::{Ids as _, SystemIds};
use crate::settings::telemetry::{self as settings, Collector, TelemetrySettings};
use crate::telemetry::format::LogLayer;
use crate::telemetry::{TelemetryConfig, TelemetryError};
use http_transport::HttpTransport;

/// Maximum number of spans or log lines that wait to be sent. Further ones are dropped.
const QUEUE_MAX: usize = 2_048;
const BATCH_MAX: usize = 512;
/// Time limit of one attempt. The exporter retries for half a minute.
const INSIGHTS_TIMEOUT: Duration = Duration::from_secs(10);
/// The schema URL of the attribute names.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.41.0";
const SCOPE: &str = "turnwheel";

/// Providers of the exported signals. An absent signal is not exported.
pub(super) struct Providers {
    tracer: Option<SdkTracerProvider>,
    meter: Option<SdkMeterProvider>,
    logger: Option<SdkLoggerProvider>,
}

impl Providers {
    pub(super) fn new(
        tracer: Option<SdkTracerProvider>,
        meter: Option<SdkMeterProvider>,
        logger: Option<SdkLoggerProvider>,
    ) -> Self {
        Self { tracer, meter, logger }
    }

    pub(super) fn tracer(&self) -> Option<SdkTracer> {
        self.tracer.as_ref().map(|provider| provider.tracer_with_scope(instrumentation_scope()))
    }

    pub(super) fn meter(&self) -> Option<Meter> {
        self.meter.as_ref().map(|provider| provider.meter_with_scope(instrumentation_scope()))
    }

    pub(super) fn has_logs(&self) -> bool {
        self.logger.is_some()
    }

    /// Shuts all providers down concurrently, each in a blocking thread. After `within` the threads
    /// are abandoned.
    pub(super) async fn shut_down(&self, within: Duration) {
        let (tracer, meter, logger) =
            (self.tracer.clone(), self.meter.clone(), self.logger.clone());
        // Failed exports are logged where they happen. During shutdown there is nothing left to do.
        let stops = [
            tokio::task::spawn_blocking(move || {
                tracer.map(|provider| provider.shutdown_with_timeout(within))
            }),
            tokio::task::spawn_blocking(move || {
                meter.map(|provider| provider.shutdown_with_timeout(within))
            }),
            tokio::task::spawn_blocking(move || {
                logger.map(|provider| provider.shutdown_with_timeout(within))
            }),
        ];
        let _ = tokio::time::timeout(within, futures_util::future::join_all(stops)).await;
    }
}

fn instrumentation_scope() -> opentelemetry::InstrumentationScope {
    opentelemetry::InstrumentationScope::builder(SCOPE)
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(SCHEMA)
        .build()
}

/// Creates the exporters of every destination, and the layer that exports log lines.
pub(super) fn build_providers(
    config: &TelemetryConfig<'_>,
) -> Result<(Providers, Option<LogLayer>), TelemetryError> {
    let settings = config.settings;
    let insights = match &settings.insights {
        Some(insights) => Some(build_insights_exporter(config, insights)?),
        None => None,
    };
    let has_any = insights.is_some()
        || [&settings.traces, &settings.metrics, &settings.logs].iter().any(|one| one.is_some());
    if !has_any {
        return Ok((Providers::new(None, None, None), None));
    }
    let resource = build_resource(settings);
    let tracer = build_tracer(settings, insights.clone(), &resource)?;
    let meter = build_meter(settings, insights.clone(), &resource)?;
    let logger =
        build_logger(settings, insights.filter(|_| !config.is_forwarded_by_host), &resource)?;
    let log_layer = logger.as_ref().map(log_export_layer);
    Ok((Providers::new(tracer, meter, logger), log_layer))
}

type InsightsExporter = opentelemetry_application_insights::Exporter<HttpTransport>;

fn build_insights_exporter(
    config: &TelemetryConfig<'_>,
    insights: &settings::ApplicationInsights,
) -> Result<InsightsExporter, TelemetryError> {
    let transport =
        HttpTransport::new("Application Insights", INSIGHTS_TIMEOUT, config.token_source.clone())?;
    let transport = if insights.is_local { transport.with_plain_http() } else { transport };
    let exporter = InsightsExporter::new_from_connection_string(
        insights.connection_string.reveal(),
        transport,
    );
    let sampler = config.settings.sampler;
    exporter
        .map(|exporter| exporter.with_sample_rate(insights_sample_rate(sampler)))
        .map_err(TelemetryError::Export)
}

/// Application Insights scales the count of each item by this rate.
fn insights_sample_rate(sampler: settings::Sampler) -> f64 {
    if sampler.ratio > 0.0 { sampler.ratio } else { 1.0 }
}

fn build_tracer(
    settings: &TelemetrySettings,
    insights: Option<InsightsExporter>,
    resource: &Resource,
) -> Result<Option<SdkTracerProvider>, TelemetryError> {
    if settings.traces.is_none() && insights.is_none() {
        return Ok(None);
    }
    let mut builder = SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_sampler(build_sampler(settings.sampler));
    if let Some(collector) = &settings.traces {
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_http();
        builder = add_span_exporter(
            builder,
            configure_otlp(exporter, collector)?.build().map_err(build_error)?,
            settings,
        );
    }
    if let Some(exporter) = insights {
        builder = add_span_exporter(builder, exporter, settings);
    }
    Ok(Some(builder.build()))
}

fn add_span_exporter(
    builder: TracerProviderBuilder,
    exporter: impl SpanExporter + 'static,
    settings: &TelemetrySettings,
) -> TracerProviderBuilder {
    let config = opentelemetry_sdk::trace::BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE_MAX)
        .with_max_export_batch_size(BATCH_MAX)
        .with_scheduled_delay(settings.span_delay)
        .build();
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    builder.with_span_processor(processor)
}

fn build_sampler(sampler: settings::Sampler) -> Box<dyn ShouldSample> {
    let root = if sampler.ratio >= 1.0 {
        Sampler::AlwaysOn
    } else if sampler.ratio <= 0.0 {
        Sampler::AlwaysOff
    } else {
        Sampler::TraceIdRatioBased(sampler.ratio)
    };
    if sampler.is_parent_based {
        Box::new(Sampler::ParentBased(Box::new(root)))
    } else {
        Box::new(root)
    }
}

fn build_meter(
    settings: &TelemetrySettings,
    insights: Option<InsightsExporter>,
    resource: &Resource,
) -> Result<Option<SdkMeterProvider>, TelemetryError> {
    fn reader<E: PushMetricExporter>(exporter: E, every: Duration) -> PeriodicReader<E> {
        PeriodicReader::builder(exporter).with_interval(every).build()
    }
    if settings.metrics.is_none() && insights.is_none() {
        return Ok(None);
    }
    let mut builder = SdkMeterProvider::builder().with_resource(resource.clone());
    if let Some(collector) = &settings.metrics {
        let exporter = opentelemetry_otlp::MetricExporter::builder().with_http();
        let exporter = configure_otlp(exporter, collector)?.build().map_err(build_error)?;
        builder = builder.with_reader(reader(exporter, settings.metric_interval));
    }
    if let Some(exporter) = insights {
        builder = builder.with_reader(reader(exporter, settings.metric_interval));
    }
    Ok(Some(builder.build()))
}

fn build_logger(
    settings: &TelemetrySettings,
    insights: Option<InsightsExporter>,
    resource: &Resource,
) -> Result<Option<SdkLoggerProvider>, TelemetryError> {
    if settings.logs.is_none() && insights.is_none() {
        return Ok(None);
    }
    let mut builder = SdkLoggerProvider::builder().with_resource(resource.clone());
    if let Some(collector) = &settings.logs {
        let exporter = opentelemetry_otlp::LogExporter::builder().with_http();
        builder = add_log_exporter(
            builder,
            configure_otlp(exporter, collector)?.build().map_err(build_error)?,
            settings,
        );
    }
    if let Some(exporter) = insights {
        builder = add_log_exporter(builder, exporter, settings);
    }
    Ok(Some(builder.build()))
}

fn add_log_exporter(
    builder: LoggerProviderBuilder,
    exporter: impl LogExporter + 'static,
    settings: &TelemetrySettings,
) -> LoggerProviderBuilder {
    let config = opentelemetry_sdk::logs::BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE_MAX)
        .with_max_export_batch_size(BATCH_MAX)
        .with_scheduled_delay(settings.log_delay)
        .build();
    let processor = BatchLogProcessor::builder(exporter).with_batch_config(config).build();
    builder.with_log_processor(processor)
}

/// Exports lines at `info` and above, whatever `RUST_LOG` is: lines below may hold content. Lines
/// of the export libraries, and of `rmcp`, which may hold content too, are not exported.
fn log_export_layer(logger: &SdkLoggerProvider) -> LogLayer {
    let is_exported = |line: &tracing::Metadata<'_>| {
        let (is_content, target) = (line.level() > &tracing::Level::INFO, line.target());
        !is_content
            && !["opentelemetry", "hyper", "reqwest", "h2", "rmcp"]
                .iter()
                .any(|own| target.starts_with(own))
    };
    let bridge = OpenTelemetryTracingBridge::new(logger);
    Box::new(bridge.with_filter(tracing_subscriber::filter::filter_fn(is_exported)))
}

/// Sets every option of an OTLP exporter, so that it reads none from the environment.
fn configure_otlp<B: WithExportConfig + WithHttpConfig>(
    builder: B,
    collector: &Collector,
) -> Result<B, TelemetryError> {
    let transport = HttpTransport::new("collector", collector.timeout, None)?;
    let headers: HashMap<String, String> = collector.headers.reveal().iter().cloned().collect();
    let builder = builder
        .with_endpoint(collector.endpoint.as_str())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(collector.timeout)
        .with_http_client(transport)
        .with_headers(headers);
    Ok(if collector.is_gzipped { builder.with_compression(Compression::Gzip) } else { builder })
}

fn build_error(error: opentelemetry_otlp::ExporterBuildError) -> TelemetryError {
    TelemetryError::Export(Box::new(error))
}

/// Returns the resource that describes this process. Settings override the defaults.
fn build_resource(settings: &TelemetrySettings) -> Resource {
    let mut attributes = BTreeMap::from([
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id".to_owned(), SystemIds.new_id()),
    ]);
    attributes.extend(settings.resource.iter().cloned());
    attributes.insert("service.name".to_owned(), settings.service_name.clone());
    let pairs = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
    Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes(pairs)
        .build()
}
