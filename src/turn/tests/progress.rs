//! Progress of tool calls: each call reports under its own id, and nothing after its end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::bench::{Bench, call, text};
use crate::agent::phase::OnUnknown;
use crate::agent::request::Effect;
use crate::agents::{Agent, Catalog};
use crate::live::LiveEvent;
use crate::tools::{Arguments, Ask, RunTool, ToolContext, ToolDefinition, ToolOutcome, ToolResult};
use crate::turn::NoProbe;
use crate::turn::delivery::handle;

type Progress = Arc<dyn Fn(&ToolResult) + Send + Sync>;

/// Reports progress, and keeps the callback, as a tool does that works in another task.
struct Chatty {
    definition: ToolDefinition,
    handed_out: Mutex<Vec<Progress>>,
}

impl fmt::Debug for Chatty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chatty")
    }
}

#[async_trait]
impl RunTool for Chatty {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn ask(&self, _arguments: &Arguments) -> Option<Ask> {
        None
    }

    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome {
        let seconds = arguments.value["n"].as_u64().unwrap();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        (context.progress)(&ToolResult::text("half"));
        self.handed_out.lock().unwrap().push(Arc::clone(&context.progress));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        ToolOutcome::Returned(ToolResult::text("whole"))
    }
}

fn two_chats(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 {
        vec![call("c0", "chat", 3), call("c1", "chat", 1)]
    } else {
        vec![text("done")]
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_tells_its_own_progress_and_none_after_its_end() {
    let mut bench = Bench::with(1, two_chats);
    bench.run_calls_at_once(8);
    let mut world = bench.worker(Arc::new(NoProbe));
    let chatty = Arc::new(Chatty {
        definition: ToolDefinition {
            strict: false,
            name: "chat".to_owned(),
            label: "chat".to_owned(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            effect: Effect::Read,
            on_unknown: OnUnknown::Ask,
            timeout: Duration::from_secs(30),
            revision: "1".to_owned(),
        },
        handed_out: Mutex::default(),
    });
    let agent = Agent {
        name: "clerk".to_owned(),
        description: String::new(),
        settings: crate::agent::settings::Settings::default(),
        instructions: String::new(),
        tools: vec![chatty.clone()],
        response_schema: None,
        session_id: None,
        revision: "r".to_owned(),
    };
    let agents = BTreeMap::from([("clerk".to_owned(), Arc::new(agent))]);
    world.agents = Catalog { agents, ..Catalog::default() }.into();
    bench.ask(&world).await;
    let (_, mut reader) = world.live.subscribe(&Bench::key());
    handle(&world, &Bench::nudge()).await.unwrap();
    let handed_out = chatty.handed_out.lock().unwrap().clone();
    assert_eq!(handed_out.len(), 2);
    for progress in handed_out {
        progress(&ToolResult::text("too late"));
    }
    let told = std::iter::from_fn(|| reader.next().now_or_never());
    let of: Vec<(String, bool)> = told
        .filter_map(|event| match event {
            LiveEvent::ToolUpdate(update) => {
                Some((update.tool_call_id, update.partial_result.text().contains("half")))
            }
            _ => None,
        })
        .collect();
    assert_eq!(of, [("c1".to_owned(), true), ("c0".to_owned(), true)]);
}
