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

use crate::telemetry::fault::Fault;

/// The kind of operation that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An operation within the service.
    Inside,
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
pub struct Beginning {
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
    Nobody,
    Caller(SpanContext),
}

impl Beginning {
    pub(super) fn new(tracer: Option<SdkTracer>, name: Cow<'static, str>) -> Self {
        Self {
            tracer,
            builder: SpanBuilder::from_name(name),
            attributes: Vec::new(),
            links: Vec::new(),
            parent: Parent::Current,
        }
    }

    pub fn role(mut self, role: Role) -> Self {
        self.builder.span_kind = Some(match role {
            Role::Inside => SpanKind::Internal,
            Role::Server => SpanKind::Server,
            Role::Client => SpanKind::Client,
            Role::Consumer => SpanKind::Consumer,
        });
        self
    }

    /// Sets `traceparent` as the parent instead of the current span. Without a valid one the span
    /// starts a trace.
    pub fn under(mut self, traceparent: Option<&str>) -> Self {
        self.parent = traceparent.and_then(read).map_or(Parent::Nobody, Parent::Caller);
        self
    }

    /// Links to the span of a `traceparent` if it is valid and not the parent.
    pub fn link(mut self, traceparent: Option<&str>) -> Self {
        self.links.extend(traceparent.and_then(read));
        self
    }

    /// Sets an earlier start time.
    pub fn began(mut self, at: SystemTime) -> Self {
        self.builder.start_time = Some(at);
        self
    }

    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        if self.tracer.is_some() {
            self.attributes.push(KeyValue::new(name, value));
        }
        self
    }

    pub fn start(self) -> Span {
        let Self { tracer, mut builder, attributes, links, parent } = self;
        let is_caller = matches!(parent, Parent::Caller(_));
        let around = match parent {
            Parent::Current => Context::current(),
            Parent::Nobody => Context::new(),
            Parent::Caller(caller) => Context::new().with_remote_span_context(caller),
        };
        let Some(tracer) = tracer else {
            return Span { context: is_caller.then_some(around) };
        };
        let under = around.span().span_context().span_id();
        let mut linked: Vec<Link> = Vec::with_capacity(links.len());
        for link in links {
            let is_known =
                linked.iter().any(|known| known.span_context.span_id() == link.span_id());
            if !is_known && link.span_id() != under {
                linked.push(Link::with_context(link));
            }
        }
        builder.links = Some(linked);
        builder.attributes = Some(attributes);
        let span = builder.start_with_context(&tracer, &around);
        Span { context: Some(around.with_span(span)) }
    }
}

/// A started span. It ends when it is dropped.
#[derive(Debug)]
pub struct Span {
    /// `None` if nothing is recorded and there is no caller to propagate.
    context: Option<Context>,
}

impl Span {
    /// True if the span is recorded, so that attributes are worth computing.
    pub fn is_recording(&self) -> bool {
        self.context.as_ref().is_some_and(|context| context.span().is_recording())
    }

    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        if let Some(context) = self.context.as_ref().filter(|_| self.is_recording()) {
            context.span().set_attribute(KeyValue::new(name, value));
        }
    }

    pub fn set_list(&self, name: &'static str, values: &[&str]) {
        let values: Vec<StringValue> =
            values.iter().map(|text| (*text).to_owned().into()).collect();
        self.set(name, Value::Array(Array::String(values)));
    }

    /// Marks the span as failed, with the error class. It records no text, which could quote
    /// content.
    pub fn fail(&self, fault: &Fault) {
        let Some(context) = &self.context else { return };
        let span = context.span();
        span.set_attributes([
            KeyValue::new("turnwheel.fault_domain", fault.domain.name()),
            KeyValue::new("error.type", fault.kind.clone()),
        ]);
        span.set_status(Status::error(fault.kind.clone()));
    }

    /// Returns the `traceparent` of this span if it is recorded, else of the propagated caller.
    pub fn traceparent(&self) -> Option<String> {
        written(self.context.as_ref()?.span().span_context())
    }

    /// Runs the work with this span as the current one.
    pub async fn run<F: Future>(&self, work: F) -> F::Output {
        match &self.context {
            Some(context) => work.with_context(context.clone()).await,
            None => work.await,
        }
    }

    /// Like [`Span::run`], for synchronous work.
    pub fn run_now<T>(&self, work: impl FnOnce() -> T) -> T {
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
pub fn traceparent() -> Option<String> {
    Context::map_current(|context| written(context.span().span_context()))
}

/// Returns the trace id and span id of the current span, as hex.
pub fn ids() -> Option<(String, String)> {
    Context::map_current(|context| {
        let span = context.span();
        let ids = span.span_context();
        ids.is_valid().then(|| (ids.trace_id().to_string(), ids.span_id().to_string()))
    })
}

/// Runs the work with a caller's `traceparent` as the current context. Starts no span.
pub async fn called_by<F: Future>(traceparent: Option<&str>, work: F) -> F::Output {
    match traceparent.and_then(read) {
        Some(caller) => work.with_context(Context::new().with_remote_span_context(caller)).await,
        None => work.await,
    }
}

/// Returns the current time in the clock of spans.
pub fn now() -> SystemTime {
    opentelemetry::time::now()
}

fn written(ids: &SpanContext) -> Option<String> {
    ids.is_valid().then(|| {
        let flags = ids.trace_flags() & TraceFlags::SAMPLED;
        format!("00-{}-{}-{:02x}", ids.trace_id(), ids.span_id(), flags.to_u8())
    })
}

/// Parses W3C Trace Context: `00-<32 hex>-<16 hex>-<2 hex>`. Later versions may append parts.
fn read(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, len: usize| {
        part.len() == len
            && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let is_good = is_hex(version, 2)
        && version != "ff"
        && (version != "00" || parts.next().is_none())
        && is_hex(trace, 32)
        && is_hex(span, 16)
        && is_hex(flags, 2);
    if !is_good {
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
    fn only_a_well_formed_traceparent_is_one() {
        assert_eq!(written(&read(CALLER).unwrap()).unwrap(), CALLER);
        assert!(read("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").is_some());
        for bad in [
            "",
            "00",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            assert!(read(bad).is_none(), "{bad}");
        }
    }

    #[tokio::test]
    async fn without_a_collector_the_caller_is_passed_on_and_nothing_else_is() {
        let off = Telemetry::default();
        let span = off.span("turn").under(Some(CALLER)).start();
        assert!(!span.is_recording());
        assert_eq!(span.run(async { traceparent() }).await.as_deref(), Some(CALLER));
        assert_eq!(off.span("turn").under(None).start().traceparent(), None);
        assert_eq!(traceparent(), None);
        let inner = async { off.span("inner").start().run(async { traceparent() }).await };
        assert_eq!(called_by(Some(CALLER), inner).await.as_deref(), Some(CALLER));
    }

    #[tokio::test]
    async fn spans_nest_where_work_does_and_link_to_each_once() {
        let recorder = Recorder::new();
        let telemetry = recorder.telemetry();
        let outer = telemetry.span("outer").under(Some(CALLER)).start();
        let other = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
        outer
            .run(async {
                let inner = telemetry.span("inner").link(Some(other)).link(Some(other)).start();
                inner.fail(&Fault::new(crate::telemetry::fault::FaultDomain::Tool, "timeout"));
            })
            .await;
        drop(outer);
        let [inner, outer] = recorder.spans().try_into().unwrap();
        assert_eq!(inner.parent, outer.id);
        assert_eq!(inner.links, ["00f067aa0ba902b7"]);
        assert_eq!(inner.fault(), Some(("tool", "timeout")));
        assert_eq!(outer.parent, "b7ad6b7169203331");
        assert_eq!(outer.trace, "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(outer.fault(), None);
    }
}
