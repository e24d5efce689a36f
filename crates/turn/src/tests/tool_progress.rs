//! Progress of tool calls: each call reports under its own id, and nothing after its end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::test_env::{TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_agent_files::{AgentDefinition, Catalog};
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_storage::live::LiveEvent;
use turnwheel_tools::{
    ApprovalRequirement, Arguments, CallableTool, ToolContext, ToolDefinition, ToolOutcome,
    ToolResult,
};

type Progress = Arc<dyn Fn(&ToolResult) + Send + Sync>;

/// Reports progress, and keeps the callback, as a tool does that works in another task.
struct ProgressTool {
    definition: ToolDefinition,
    callbacks: Mutex<Vec<Progress>>,
}

impl fmt::Debug for ProgressTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chatty")
    }
}

#[async_trait]
impl CallableTool for ProgressTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn required_approval(&self, _arguments: &Arguments) -> Option<ApprovalRequirement> {
        None
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let seconds = arguments.value["n"].as_u64().unwrap();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        (context.on_progress)(&ToolResult::text("half"));
        self.callbacks.lock().unwrap().push(Arc::clone(&context.on_progress));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        ToolOutcome::Returned(ToolResult::text("whole"))
    }
}

fn calls_chat_twice(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 {
        vec![call("c0", "chat", 3), call("c1", "chat", 1)]
    } else {
        vec![text("done")]
    }
}

#[tokio::test(start_paused = true)]
async fn tool_call_reports_progress_only_until_its_end() {
    let mut env = TestEnv::with_script(1, calls_chat_twice);
    env.enable_parallel_calls(8);
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    let tool = Arc::new(ProgressTool {
        definition: ToolDefinition {
            is_strict: false,
            name: "chat".to_owned(),
            label: "chat".to_owned(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            effect: Effect::Read,
            on_unknown: OnUnknown::Ask,
            timeout: Duration::from_secs(30),
            revision: "1".to_owned(),
        },
        callbacks: Mutex::default(),
    });
    let agent = AgentDefinition {
        name: "clerk".to_owned(),
        tools: vec![tool.clone()],
        revision: "r".to_owned(),
        ..AgentDefinition::default()
    };
    let agents = BTreeMap::from([("clerk".to_owned(), Arc::new(agent))]);
    services.agents = Catalog { agents, ..Catalog::default() }.into();
    env.send_prompt(&services).await;
    let (_, mut reader) = services.live.subscribe(&TestEnv::key());
    handle(&services, &TestEnv::nudge()).await.unwrap();
    let callbacks = tool.callbacks.lock().unwrap().clone();
    assert_eq!(callbacks.len(), 2);
    for progress in callbacks {
        progress(&ToolResult::text("too late"));
    }
    let events = std::iter::from_fn(|| reader.next_event().now_or_never());
    let of: Vec<(String, bool)> = events
        .filter_map(|event| match event {
            LiveEvent::ToolUpdate(update) => {
                Some((update.tool_call_id, update.partial_result.text().contains("half")))
            }
            _ => None,
        })
        .collect();
    assert_eq!(of, [("c1".to_owned(), true), ("c0".to_owned(), true)]);
}
