//! Spans and trace context. The current span follows the task: [`Span::run`] sets it.

use std::borrow::Cow;
use std::future::Future;
use std::time::SystemTime;

use opentelemetry::trace::{
    FutureExt as _, Link, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _,
    TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SdkTracer;

use crate::telemetry::error_class::ErrorClass;

/// The kind of operation that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanRole {
    /// An operation within the service.
    Internal,
    /// A request that the service receives.
    Server,
    /// A request that the service sends.
    Client,
    /// A message received from a queue.
    Consumer,
}

/// A span that has not started.
#[derive(Debug)]
#[must_use]
pub struct PendingSpan {
    tracer: Option<SdkTracer>,
    builder: SpanBuilder,
    attributes: Vec<KeyValue>,
    links: Vec<SpanContext>,
    parent: Parent,
}

#[derive(Debug)]
enum Parent {
    /// The current span.
    Current,
    /// No parent: the span starts a trace.
    Root,
    Remote(SpanContext),
}

impl PendingSpan {
    pub(super) fn new(tracer: Option<SdkTracer>, name: Cow<'static, str>) -> Self {
        Self {
            tracer,
            builder: SpanBuilder::from_name(name),
            attributes: Vec::new(),
            links: Vec::new(),
            parent: Parent::Current,
        }
    }

    pub fn with_role(mut self, role: SpanRole) -> Self {
        self.builder.span_kind = Some(match role {
            SpanRole::Internal => SpanKind::Internal,
            SpanRole::Server => SpanKind::Server,
            SpanRole::Client => SpanKind::Client,
            SpanRole::Consumer => SpanKind::Consumer,
        });
        self
    }

    /// Sets `traceparent` as the parent instead of the current span. Without a valid one the span
    /// starts a trace.
    pub fn with_parent(mut self, traceparent: Option<&str>) -> Self {
        self.parent = traceparent.and_then(parse_traceparent).map_or(Parent::Root, Parent::Remote);
        self
    }

    /// Links to the span of a `traceparent` if it is valid and not the parent.
    pub fn with_link(mut self, traceparent: Option<&str>) -> Self {
        self.links.extend(traceparent.and_then(parse_traceparent));
        self
    }

    /// Sets an earlier start time.
    pub fn with_start_time(mut self, at: SystemTime) -> Self {
        self.builder.start_time = Some(at);
        self
    }

    pub fn with_attribute(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        if self.tracer.is_some() {
            self.attributes.push(KeyValue::new(name, value));
        }
        self
    }

    pub fn start(self) -> Span {
        let Self { tracer, mut builder, attributes, links, parent } = self;
        let is_caller = matches!(parent, Parent::Remote(_));
        let parent_context = match parent {
            Parent::Current => Context::current(),
            Parent::Root => Context::new(),
            Parent::Remote(caller) => Context::new().with_remote_span_context(caller),
        };
        let Some(tracer) = tracer else {
            let context = is_caller.then_some(parent_context);
            return Span { context, known_ids: Vec::new() };
        };
        let mut known_ids = vec![parent_context.span().span_context().span_id()];
        let new_links = links.into_iter().filter(|link| add_new_id(&mut known_ids, link));
        builder.links = Some(new_links.map(Link::with_context).collect());
        builder.attributes = Some(attributes);
        let span = builder.start_with_context(&tracer, &parent_context);
        Span { context: Some(parent_context.with_span(span)), known_ids }
    }
}

/// Adds the span's id. Returns false if it is known.
fn add_new_id(known_ids: &mut Vec<SpanId>, span: &SpanContext) -> bool {
    let is_new = !known_ids.contains(&span.span_id());
    if is_new {
        known_ids.push(span.span_id());
    }
    is_new
}

/// A started span. It ends when it is dropped.
#[derive(Debug)]
pub struct Span {
    /// `None` if nothing is recorded and there is no caller to propagate.
    context: Option<Context>,
    /// The parent and the linked spans.
    known_ids: Vec<SpanId>,
}

impl Span {
    /// True if the span is recorded, so that attributes are worth computing.
    pub fn is_recording(&self) -> bool {
        self.context.as_ref().is_some_and(|context| context.span().is_recording())
    }

    pub fn set_attribute(&self, name: &'static str, value: impl Into<Value>) {
        if let Some(context) = self.context.as_ref().filter(|_| self.is_recording()) {
            context.span().set_attribute(KeyValue::new(name, value));
        }
    }

    /// Links to the span of a `traceparent` if it is valid, not the parent, and not linked yet.
    pub fn add_link(&mut self, traceparent: &str) {
        let (Some(context), Some(link)) = (&self.context, parse_traceparent(traceparent)) else {
            return;
        };
        if add_new_id(&mut self.known_ids, &link) {
            context.span().add_link(link, Vec::new());
        }
    }

    pub fn set_list_attribute(&self, name: &'static str, values: &[&str]) {
        let values: Vec<StringValue> =
            values.iter().map(|text| (*text).to_owned().into()).collect();
        self.set_attribute(name, Value::Array(Array::String(values)));
    }

    /// Marks the span as failed, with the error class. It records no text, which could quote
    /// content.
    pub fn record_error(&self, error_class: &ErrorClass) {
        let Some(context) = &self.context else { return };
        let span = context.span();
        span.set_attributes([
            KeyValue::new("turnwheel.fault_domain", error_class.domain.name()),
            KeyValue::new("error.type", error_class.kind.clone()),
        ]);
        span.set_status(Status::error(error_class.kind.clone()));
    }

    /// Returns the `traceparent` of this span if it is recorded, else of the propagated caller.
    pub fn traceparent(&self) -> Option<String> {
        format_traceparent(self.context.as_ref()?.span().span_context())
    }

    /// Runs the work with this span as the current one.
    pub async fn run<F: Future>(&self, work: F) -> F::Output {
        match &self.context {
            Some(context) => work.with_context(context.clone()).await,
            None => work.await,
        }
    }

    /// Like [`Span::run`], for synchronous work.
    #[cfg(test)]
    pub(crate) fn run_sync<T>(&self, work: impl FnOnce() -> T) -> T {
        let _current = self.context.as_ref().map(|context| context.clone().attach());
        work()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(context) = &self.context {
            context.span().end();
        }
    }
}

/// Returns the `traceparent` of the current span, for outgoing requests and stored documents.
pub fn current_traceparent() -> Option<String> {
    Context::map_current(|context| format_traceparent(context.span().span_context()))
}

/// Returns the trace id and span id of the current span, as hex.
pub fn current_ids() -> Option<(String, String)> {
    Context::map_current(|context| {
        let span = context.span();
        let ids = span.span_context();
        ids.is_valid().then(|| (ids.trace_id().to_string(), ids.span_id().to_string()))
    })
}

/// Runs the work with a caller's `traceparent` as the current context. Starts no span.
pub async fn run_with_caller<F: Future>(traceparent: Option<&str>, work: F) -> F::Output {
    match traceparent.and_then(parse_traceparent) {
        Some(caller) => work.with_context(Context::new().with_remote_span_context(caller)).await,
        None => work.await,
    }
}

/// Returns the current time in the clock of spans.
pub fn now() -> SystemTime {
    opentelemetry::time::now()
}

fn format_traceparent(ids: &SpanContext) -> Option<String> {
    ids.is_valid().then(|| {
        let flags = ids.trace_flags() & TraceFlags::SAMPLED;
        format!("00-{}-{}-{:02x}", ids.trace_id(), ids.span_id(), flags.to_u8())
    })
}

/// Parses W3C Trace Context: `00-<32 hex>-<16 hex>-<2 hex>`. Later versions may append parts.
fn parse_traceparent(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, len: usize| {
        part.len() == len
            && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let is_valid = is_hex(version, 2)
        && version != "ff"
        && (version != "00" || parts.next().is_none())
        && is_hex(trace, 32)
        && is_hex(span, 16)
        && is_hex(flags, 2);
    if !is_valid {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let ids = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    ids.is_valid().then_some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Telemetry;
    use crate::telemetry::testing::Recorder;

    const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn traceparent_parser_rejects_malformed_values() {
        assert_eq!(format_traceparent(&parse_traceparent(CALLER).unwrap()).unwrap(), CALLER);
        assert!(
            parse_traceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more")
                .is_some()
        );
        for bad in [
            "",
            "00",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            assert!(parse_traceparent(bad).is_none(), "{bad}");
        }
    }

    #[tokio::test]
    async fn span_propagates_caller_without_collector() {
        let off = Telemetry::default();
        let span = off.span("turn").with_parent(Some(CALLER)).start();
        assert!(!span.is_recording());
        assert_eq!(span.run(async { current_traceparent() }).await.as_deref(), Some(CALLER));
        assert_eq!(off.span("turn").with_parent(None).start().traceparent(), None);
        assert_eq!(current_traceparent(), None);
        let inner = async { off.span("inner").start().run(async { current_traceparent() }).await };
        assert_eq!(run_with_caller(Some(CALLER), inner).await.as_deref(), Some(CALLER));
    }

    #[tokio::test]
    async fn spans_nest_and_deduplicate_links() {
        let recorder = Recorder::new();
        let telemetry = recorder.telemetry();
        let mut outer = telemetry.span("outer").with_parent(Some(CALLER)).start();
        let other = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
        for link in [CALLER, other, "malformed", other] {
            outer.add_link(link);
        }
        outer
            .run(async {
                let inner =
                    telemetry.span("inner").with_link(Some(other)).with_link(Some(other)).start();
                inner.record_error(&ErrorClass::new(
                    crate::telemetry::error_class::ErrorDomain::Tool,
                    "timeout",
                ));
            })
            .await;
        drop(outer);
        let [inner, outer] = recorder.spans().try_into().unwrap();
        assert_eq!(inner.parent, outer.id);
        assert_eq!(inner.links, ["00f067aa0ba902b7"]);
        assert_eq!(inner.error_class(), Some(("tool", "timeout")));
        assert_eq!(outer.links, ["00f067aa0ba902b7"]);
        assert_eq!(outer.parent, "b7ad6b7169203331");
        assert_eq!(outer.trace, "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(outer.error_class(), None);
    }
}
