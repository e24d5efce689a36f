//! Tools of the conformance cases.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use turnwheel::{Approval, Effect, Tool, ToolContext, ToolError, ToolResult};

/// Executed calls in order; a test checks with it that each tool ran exactly once.
pub(crate) type Runs = Arc<Mutex<Vec<String>>>;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Value {
    value: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Nothing {}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Slowly {
    ms: f64,
    value: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Summands {
    a: f64,
    b: f64,
}

macro_rules! tool {
    ($name:ident($runs:ident) $text:literal $args:ty, $effect:ident, |$given:ident, $cx:ident| $body:expr) => {
        pub(crate) struct $name(pub(crate) Runs);

        impl Tool for $name {
            type Args = $args;

            fn name(&self) -> &'static str {
                $text
            }

            fn description(&self) -> &'static str {
                "A tool of the conformance cases."
            }

            fn effect(&self) -> Effect {
                Effect::$effect
            }

            async fn call(&self, $given: $args, $cx: ToolContext) -> Result<ToolResult, ToolError> {
                let $runs = &self.0;
                $body
            }
        }
    };
}

tool!(Echo(runs) "echo" Value, Read, |args, _cx| {
    runs.lock().unwrap().push(format!("echo {}", args.value));
    Ok(ToolResult::text(format!("echo:{}", args.value)))
});
tool!(Boom(runs) "boom" Nothing, Read, |_args, _cx| {
    runs.lock().unwrap().push("boom".to_owned());
    Err(ToolError::failed("kaboom"))
});
tool!(Add(runs) "add" Summands, Read, |args, _cx| {
    runs.lock().unwrap().push("add".to_owned());
    Ok(ToolResult::text((args.a + args.b).to_string()))
});
tool!(Slow(runs) "slow" Slowly, Read, |args, _cx| {
    runs.lock().unwrap().push(format!("slow-start {}", args.value));
    tokio::time::sleep(Duration::from_secs_f64(args.ms / 1_000.0)).await;
    runs.lock().unwrap().push(format!("slow-end {}", args.value));
    Ok(ToolResult::text(format!("slow:{}", args.value)))
});
tool!(Prog(runs) "prog" Nothing, Read, |_args, cx| {
    runs.lock().unwrap().push("prog".to_owned());
    cx.progress(&ToolResult::text("50%"));
    cx.progress(&ToolResult::text("90%"));
    Ok(ToolResult::text("100%"))
});
tool!(Finish(runs) "finish" Value, Read, |args, _cx| {
    runs.lock().unwrap().push(format!("finish {}", args.value));
    Ok(ToolResult { terminate: true, ..ToolResult::text(format!("finished:{}", args.value)) })
});

pub(crate) struct Gated(pub(crate) Runs);

impl Tool for Gated {
    type Args = Value;

    fn name(&self) -> &'static str {
        "test.gated"
    }

    fn description(&self) -> &'static str {
        "Runs only after a person agreed."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, _args: &Value) -> Option<Approval> {
        Some(Approval::because("Gated"))
    }

    async fn call(&self, args: Value, _cx: ToolContext) -> Result<ToolResult, ToolError> {
        self.0.lock().unwrap().push(format!("gated {}", args.value));
        Ok(ToolResult::json(&json!({"result": args.value})))
    }
}
