//! Agent of the test environment: tools that count their calls, and a model that follows a script.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::agent::content::Content;
use crate::agent::entry::{Output, WidgetOutput};
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::phase::OnUnknown;
use crate::agent::raw::{Extra, RawJson};
use crate::agent::request::Effect;
use crate::agent::usage::Usage;
use crate::agents::{Agent, Catalog};
use crate::ids::fate::Fate;
use crate::model::{Answer, Failure, Listener, Model, ModelRecord, ModelRequest, Prices, Reply};
use crate::tools::workspace::builtin;
use crate::tools::{Arguments, Ask, RunTool, ToolContext, ToolDefinition, ToolOutcome, ToolResult};

/// Number of executions by effect id.
pub(in crate::turn::tests) type Done = Arc<Mutex<BTreeMap<String, u32>>>;

/// Time in which a `gated` call has to be decided.
pub(in crate::turn::tests) const GATE_EXPIRES: Duration = Duration::from_mins(30);

/// Time in which a `patient` call has to be decided.
pub(in crate::turn::tests) const PATIENCE: Duration = Duration::from_hours(30 * 24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    /// Requires an approval.
    Gated,
    /// Requires an approval, which may take thirty days.
    Patient,
    /// Loses half of its responses.
    Lossy,
    /// Creates more widgets than a commit holds.
    Lavish,
    /// Returns more text than a result holds.
    Bulky,
    /// Takes longer than half a turn.
    Slow,
    /// Takes the number of seconds in its argument `n`.
    Nap,
}

#[derive(Debug)]
struct CountingTool {
    definition: ToolDefinition,
    way: Way,
    done: Done,
    /// Fault plan and share of lost responses of writes; without it only `wire` loses responses.
    lost: Option<(Fate, f64)>,
}

/// More lines than a result may have.
const BULKY_LINES: usize = 2_100;

impl CountingTool {
    fn is_answer_lost(&self, effect: &str) -> bool {
        let Some((fate, share)) = &self.lost else {
            return self.way == Way::Lossy && effect.bytes().map(u32::from).sum::<u32>() % 2 == 0;
        };
        if self.definition.effect != Effect::Write {
            return false;
        }
        let share = if self.way == Way::Lossy { 0.5 } else { *share };
        // Leaves out the incarnation, which differs between runs.
        let mut parts = effect.split('_');
        let (conversation, place) = (parts.nth(1).unwrap(), parts.skip(1).collect::<Vec<_>>());
        let at = format!("{conversation} {}", place.join("."));
        fate.says("a tool's answer was lost", &at, share)
    }
}

#[async_trait]
impl RunTool for CountingTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn ask(&self, _arguments: &Arguments) -> Option<Ask> {
        let expires_after = match self.way {
            Way::Gated => GATE_EXPIRES,
            Way::Patient => PATIENCE,
            Way::Plain | Way::Lossy | Way::Lavish | Way::Bulky | Way::Slow | Way::Nap => {
                return None;
            }
        };
        Some(Ask {
            reason: "Gated".to_owned(),
            approvers: vec!["owner".to_owned()],
            not_requester: false,
            expires_after,
        })
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let effect = context.effect_id.to_string();
        // Count before the first await: a call that is polled counts as sent.
        *self.done.lock().unwrap().entry(effect.clone()).or_default() += 1;
        let span = match self.way {
            Way::Slow => 200_000,
            Way::Nap => arguments.value["n"].as_u64().unwrap() * 1_000,
            Way::Plain | Way::Gated | Way::Patient | Way::Lossy | Way::Lavish | Way::Bulky => 50,
        };
        tokio::time::sleep(Duration::from_millis(span)).await;
        if self.is_answer_lost(&effect) {
            return ToolOutcome::Unknown { reason: "cut".to_owned() };
        }
        let mut result = ToolResult::text(format!("{} done", self.definition.name));
        if self.way == Way::Nap {
            result = ToolResult::text(arguments.value["n"].to_string());
        }
        if self.way == Way::Bulky {
            result = ToolResult::text("line\n".repeat(BULKY_LINES));
        }
        if self.way == Way::Lavish {
            let widget = Output::Widget(WidgetOutput {
                widget: "w".to_owned(),
                data: RawJson::of(&json!({})),
                fallback: "w".to_owned(),
                extra: Extra::new(),
            });
            result.outputs = vec![widget; 100];
        }
        ToolOutcome::Returned(result)
    }
}

/// The tools `look`, `pay`, `gated`, `patient`, `put`, `wire` (loses responses), `mail` (its
/// unknown outcome creates no request), `make` (creates more than a commit holds), `dump` (returns
/// more than a result holds), `brew` and `study` (take long), `nap` (takes the given time), and the
/// built-ins `read`, `write`, `edit` and `schedule`.
pub(super) fn catalog(done: &Done, lost: Option<&(Fate, f64)>) -> Catalog {
    let tool = |name: &str, effect: Effect, way: Way| -> Arc<dyn RunTool> {
        let definition = ToolDefinition {
            strict: false,
            name: name.to_owned(),
            label: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            effect,
            on_unknown: if name == "mail" { OnUnknown::Tell } else { OnUnknown::Ask },
            timeout: Duration::from_secs(match way {
                Way::Slow | Way::Nap => 240,
                Way::Plain | Way::Gated | Way::Patient | Way::Lossy | Way::Lavish | Way::Bulky => {
                    30
                }
            }),
            revision: "1".to_owned(),
        };
        Arc::new(CountingTool { definition, way, done: Arc::clone(done), lost: lost.cloned() })
    };
    let mut tools = vec![
        tool("look", Effect::Read, Way::Plain),
        tool("pay", Effect::Write, Way::Plain),
        tool("gated", Effect::Write, Way::Gated),
        tool("patient", Effect::Write, Way::Patient),
        tool("put", Effect::Idempotent, Way::Plain),
        tool("wire", Effect::Write, Way::Lossy),
        tool("mail", Effect::Write, Way::Plain),
        tool("make", Effect::Write, Way::Lavish),
        tool("dump", Effect::Write, Way::Bulky),
        tool("brew", Effect::Write, Way::Slow),
        tool("study", Effect::Read, Way::Slow),
        tool("nap", Effect::Read, Way::Nap),
        builtin("read").unwrap(),
        builtin("write").unwrap(),
        builtin("edit").unwrap(),
    ];
    tools.extend(crate::tools::schedule::builtin());
    let agent = Agent {
        name: "clerk".to_owned(),
        description: String::new(),
        settings: crate::agent::settings::Settings::default(),
        instructions: "Be good.".to_owned(),
        tools,
        response_schema: None,
        session_id: None,
        revision: "r".to_owned(),
    };
    Catalog {
        agents: BTreeMap::from([("clerk".to_owned(), Arc::new(agent))]),
        ..Catalog::default()
    }
}

impl super::Bench {
    /// Responses of the agent must match `schema` from now on.
    pub(in crate::turn::tests) fn set_response_schema(&mut self, schema: &Value) {
        let mut catalog = catalog(&self.done, None);
        for agent in catalog.agents.values_mut() {
            Arc::get_mut(agent).unwrap().response_schema = Some(schema.clone());
        }
        self.agents = catalog.into();
    }
}

/// Content of the next model response, computed from the number of results since the last user
/// message and from that message.
pub(in crate::turn::tests) type Script = fn(results: usize, said: &str) -> Vec<Value>;

pub(in crate::turn::tests) fn text(said: &str) -> Value {
    json!({"type": "text", "text": said})
}

pub(in crate::turn::tests) fn call(id: &str, name: &str, n: usize) -> Value {
    json!({"type": "toolCall", "id": id, "name": name, "arguments": {"n": n}})
}

/// Three rounds of tools, then a text.
pub(in crate::turn::tests) fn three_rounds(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![text("first"), call("c1", "look", 0), call("c2", "pay", 0)],
        1 | 2 => {
            vec![
                call("c1", "nope", results),
                call("c2", "gated", results),
                call("c3", "put", results),
            ]
        }
        _ => vec![text("done")],
    }
}

#[derive(Debug)]
pub(in crate::turn::tests) struct ScriptedAnswers {
    /// Number of calls, including those whose response was never committed.
    pub(in crate::turn::tests) answers: Mutex<u32>,
    pub(in crate::turn::tests) script: Mutex<Script>,
    /// Time that a response takes.
    pub(in crate::turn::tests) span: Mutex<Duration>,
    /// Error code of the provider for the next response.
    pub(in crate::turn::tests) refusal: Mutex<Option<&'static str>>,
    /// Usage of each response.
    pub(in crate::turn::tests) usage: Mutex<Usage>,
    /// Number of next responses that fail with a retryable error.
    pub(in crate::turn::tests) failures: Mutex<u32>,
    /// The `traceparent` of each request.
    pub(in crate::turn::tests) callers: Mutex<Vec<Option<String>>>,
}

impl Default for ScriptedAnswers {
    fn default() -> Self {
        Self {
            answers: Mutex::new(0),
            script: Mutex::new(three_rounds),
            span: Mutex::new(Duration::from_millis(100)),
            refusal: Mutex::default(),
            usage: Mutex::default(),
            failures: Mutex::default(),
            callers: Mutex::default(),
        }
    }
}

#[async_trait]
impl Model for ScriptedAnswers {
    async fn answer(&self, request: ModelRequest<'_>, _listener: &dyn Listener) -> Answer {
        *self.answers.lock().unwrap() += 1;
        self.callers.lock().unwrap().push(request.traceparent.map(ToOwned::to_owned));
        let span = *self.span.lock().unwrap();
        tokio::time::sleep(span).await;
        let (mut results, mut said) = (0, String::new());
        for message in request.messages {
            match message {
                Message::User(user) => {
                    results = 0;
                    if let Content::Text(text) = &user.content {
                        said.clone_from(text);
                    }
                }
                Message::ToolResult(_) => results += 1,
                _ => {}
            }
        }
        let content = self.script.lock().unwrap()(results, &said);
        let is_call = content.iter().any(|block| block["type"] == "toolCall");
        let stop = if is_call { "toolUse" } else { "stop" };
        let message: AssistantMessage = serde_json::from_str(
            &json!({"content": content, "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0}).to_string(),
        )
        .unwrap();
        let message = AssistantMessage { usage: *self.usage.lock().unwrap(), ..message };
        let is_failing = {
            let mut failures = self.failures.lock().unwrap();
            let left = failures.checked_sub(1);
            *failures = left.unwrap_or_default();
            left.is_some()
        };
        let refusal = self.refusal.lock().unwrap().take();
        let Some(code) = refusal.or(is_failing.then_some("server_error")) else {
            return Answer { message, failure: None, reply: Reply::default() };
        };
        Answer {
            message: AssistantMessage { stop_reason: StopReason::Error, ..message },
            failure: Some(Failure::Retryable { after: None }),
            reply: Reply { error: Some(code.to_owned()), ..Reply::default() },
        }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        Ok(ModelRecord {
            id: model.to_owned(),
            name: model.to_owned(),
            api: "a".to_owned(),
            provider: "p".to_owned(),
            base_url: String::new(),
            reasoning: false,
            images: false,
            cost: Prices::default(),
            context_window: 1_000_000,
            max_tokens: 100,
            deployment_name: model.to_owned(),
            headers: crate::model::responses::headers::ModelHeaders::default(),
            compat: crate::model::compat::Compat::default(),
        })
    }
}
