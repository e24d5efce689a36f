//! Hooks that are ready, hang, panic or fail, and the ids of hooks.

use std::sync::Mutex;

use async_trait::async_trait;
use tokio::time::Instant;

use super::*;
use crate::context::{Anchor, HookAccess, HookFacts, HookSite, HookSubject};
use crate::http_access::HookClient;
use crate::{Events, Extension};
use turnwheel_conversation::settings::ThinkingLevel;
use turnwheel_model::scripted::ScriptedModel;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};

#[derive(Debug, Default)]
struct Named(Option<Duration>);

#[async_trait]
impl Extension for Named {
    fn name(&self) -> &'static str {
        "named"
    }

    fn timeout(&self) -> Option<Duration> {
        self.0
    }
}

/// Records what its listener receives.
struct Failures {
    listeners: ErrorListeners,
    received: Arc<Mutex<Vec<ExtensionError>>>,
    telemetry: Telemetry,
}

impl Failures {
    fn new() -> Self {
        let received = Arc::<Mutex<Vec<ExtensionError>>>::default();
        let mut listeners = ErrorListeners::default();
        listeners.add(|error| assert_ne!(error.text, "the first listener panics"));
        let to = Arc::clone(&received);
        listeners.add(move |error| to.lock().unwrap().push(error.clone()));
        Self { listeners, received, telemetry: Telemetry::default() }
    }

    fn runner(&self) -> HookRunner<'_> {
        HookRunner {
            timeout: Duration::from_secs(5),
            time_left: None,
            telemetry: &self.telemetry,
            listeners: &self.listeners,
        }
    }

    fn texts(&self) -> Vec<String> {
        let received = self.received.lock().unwrap();
        received
            .iter()
            .map(|error| format!("{} {} {}", error.extension, error.event, error.text))
            .collect()
    }
}

pub(crate) fn new_site(
    conversation: &str,
    incarnation: &str,
    hook: Hook,
    anchor: Anchor,
) -> HookSite {
    HookSite {
        hook,
        subject: Arc::new(HookSubject {
            conversation: ConversationKey {
                tenant: TenantId::new("t"),
                user: UserId::new("u"),
                conversation_id: ConversationId::new(conversation),
            },
            incarnation: incarnation.to_owned(),
            agent: "clerk".to_owned(),
        }),
        prompt_id: None,
        anchor,
        facts: HookFacts {
            has_waiting_messages: false,
            name: None,
            model: "normal".to_owned(),
            thinking_level: ThinkingLevel::Off,
            tools: Vec::new().into(),
            system_prompt: "".into(),
            context_tokens: None,
        },
        access: HookAccess {
            model: Arc::new(ScriptedModel),
            client: HookClient::default(),
            extension_settings: None,
        },
    }
}

pub(crate) fn new_context(extension: impl Extension + 'static) -> HookContext {
    let anchor = Anchor::ToolCall { response: 1, index: 0 };
    HookContext::new(Arc::new(new_site("c", "i", Hook::ToolCall, anchor)), Arc::new(extension))
}

#[test]
fn ready_hook_arms_no_timer() {
    let failures = Failures::new();
    let cx = new_context(Named::default());
    let runner = failures.runner();
    let work = runner.run(&cx, async { Ok(7) });
    // A timer outside a runtime panics.
    assert_eq!(work.now_or_never(), Some(Ok(7)));
}

#[tokio::test(start_paused = true)]
async fn panic_error_and_timeout_reach_the_listener() {
    let failures = Failures::new();
    let cx = new_context(Named::default());
    let runner = failures.runner();
    let _ = runner.run::<()>(&cx, async { panic!("a secret of the conversation") }).await;
    let _ = runner.run::<()>(&cx, async { Err(HookError::new("the directory is away")) }).await;
    let late = runner.run::<()>(&cx, std::future::pending()).await.unwrap_err();
    assert_eq!(late.to_string(), "extension \"named\" failed in tool_call: no result within 5s");
    assert_eq!(
        failures.texts(),
        [
            "named tool_call it panicked",
            "named tool_call the directory is away",
            "named tool_call no result within 5s",
        ]
    );
}

#[tokio::test]
async fn panicking_listener_changes_nothing() {
    let failures = Failures::new();
    let cx = new_context(Named::default());
    let runner = failures.runner();
    let failed = async { Err::<(), _>(HookError::new("the first listener panics")) };
    let failure = runner.run(&cx, failed).await.unwrap_err();
    assert_eq!(failure.cause, FailureCause::Error("the first listener panics".to_owned()));
    assert_eq!(failures.texts(), ["named tool_call the first listener panics"]);
}

#[tokio::test(start_paused = true)]
async fn timeout_is_at_most_thirty_seconds() {
    let failures = Failures::new();
    let runner = failures.runner();
    for (own, expected) in [(None, 5), (Some(2), 2), (Some(30), 30), (Some(3_600), 30)] {
        let cx = new_context(Named(own.map(Duration::from_secs)));
        let began = Instant::now();
        let failure = runner.run::<()>(&cx, std::future::pending()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), expected, "{own:?}");
        assert_eq!(failure.cause, FailureCause::Timeout(Duration::from_secs(expected)));
    }
}

#[tokio::test(start_paused = true)]
async fn commit_limit_ends_or_prevents_a_hook() {
    let failures = Failures::new();
    let cx = new_context(Named::default());
    for left in [Duration::ZERO, Duration::from_secs(2)] {
        let runner = HookRunner { time_left: Some(left), ..failures.runner() };
        let began = Instant::now();
        let mut has_run = false;
        let work = async {
            has_run = true;
            std::future::pending::<Result<(), HookError>>().await
        };
        let failure = runner.run(&cx, work).await.unwrap_err();
        assert_eq!(
            (failure.cause, began.elapsed().as_secs()),
            (FailureCause::CommitTimeout, left.as_secs())
        );
        assert_eq!(has_run, !left.is_zero());
    }
}

#[test]
fn hook_id_is_equal_for_a_repetition_and_different_otherwise() {
    let id =
        |site: HookSite| HookContext::new(Arc::new(site), Arc::new(Named::default())).hook_id();
    let call = |response, index| Anchor::ToolCall { response, index };
    let summary = |attempt, earlier_calls| Anchor::Summary { after: 3, attempt, earlier_calls };
    let sites = || {
        [
            new_site("c", "i", Hook::ToolCall, call(1, 0)),
            new_site("c", "i", Hook::ToolCall, call(1, 1)),
            new_site("c", "i", Hook::ToolCall, call(2, 0)),
            new_site("c", "j", Hook::ToolCall, call(1, 0)),
            new_site("d", "i", Hook::ToolCall, call(1, 0)),
            new_site("c", "i", Hook::TurnEnd, Anchor::Response(1)),
            new_site("c", "i", Hook::Context, Anchor::Response(1)),
            new_site("c", "i", Hook::OnPayload, summary(1, 0)),
            new_site("c", "i", Hook::OnPayload, summary(1, 1)),
            new_site("c", "i", Hook::OnPayload, summary(2, 0)),
            new_site("c", "i", Hook::SessionCompact, Anchor::Entry(4)),
        ]
    };
    let ids = sites().map(id);
    assert_eq!(ids, sites().map(id));
    let distinct: std::collections::BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
}

#[test]
fn events_hold_the_source_names() {
    let hooks = [
        (Hook::Context, "context"),
        (Hook::OnPayload, "on_payload"),
        (Hook::ToolCall, "tool_call"),
        (Hook::TurnEnd, "turn_end"),
        (Hook::SessionBeforeCompact, "session_before_compact"),
        (Hook::SessionBeforeFork, "session_before_fork"),
        (Hook::SessionFork, "session_fork"),
        (Hook::SessionBeforeTree, "session_before_tree"),
        (Hook::SessionTree, "session_tree"),
        (Hook::SessionCompact, "session_compact"),
    ];
    let some = Events::from([Hook::ToolCall, Hook::SessionCompact]);
    for (hook, name) in hooks {
        assert_eq!(hook.name(), name);
        assert!(Events::ALL.contains(hook));
        let is_in = matches!(hook, Hook::ToolCall | Hook::SessionCompact);
        assert_eq!(some.contains(hook), is_in, "{name}");
    }
}
