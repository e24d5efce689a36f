//! Names that select an approval request: the ids of tool calls are texts of the model.

use std::sync::Arc;

use serde_json::Value;

use super::test_env::{TestEnv, call, owner, text};
use crate::delivery::handle;
use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::contract::{CommandError, Decider};

fn calls_with_slashes(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("call/1/a", "gated", 0)] } else { vec![text("done")] }
}

async fn approve(name: &str) -> Result<(), CommandError> {
    let mut env = TestEnv::with_script(1, calls_with_slashes);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle(&services, &TestEnv::nudge()).await.unwrap();
    let request = DecisionRequest { decision: "approve".to_owned(), reason: None, value: None };
    let approver = Decider::User { tenant: owner().tenant, user: owner().user, roles: Vec::new() };
    decide(&services, &TestEnv::key(), name, request, &approver).await.map(|_| ())
}

/// `%2F` of a path arrives from the Functions host as `%252F`, which a handler decodes to `%2F`.
#[tokio::test(start_paused = true)]
async fn slash_in_tool_call_id_selects_approval_in_both_forms() {
    for name in ["call/1/a", "call%2F1%2Fa", "call%2f1%2fa"] {
        approve(name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for name in ["call%2F1", "call%252F1%252Fa", "call1a"] {
        assert!(matches!(approve(name).await, Err(CommandError::NotFound(_))), "{name}");
    }
}
