//! Audit lines of tool results: one for each committed result.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::delivery_cost::Log;
use super::test_env::{TestEnv, three_rounds, usual_store_faults};
use crate::agent::entry::EntryBody;
use crate::fail_points::NoFailPoints;
use crate::ids::EffectId;
use crate::ids::fault_plan::FaultPlan;

const SEEDS: u64 = 20;

/// Effect ids of the calls, each with the message of its line.
type Lines = BTreeMap<String, String>;

/// The lines that the stored results require.
async fn expected_lines(env: &TestEnv) -> Lines {
    let head = env.head().await.unwrap();
    let entries = env.entries().await;
    let results = entries.iter().filter_map(|entry| {
        let EntryBody::Message(message) = &entry.body else { return None };
        let (result, call) = (entry.body.tool_result()?, message.call?);
        let (id, incarnation) = (&head.conversation_id, &head.incarnation);
        let effect = EffectId::from_call(id, incarnation, call.response_seq, call.index);
        let (level, end) = if result.is_error { ("WARN", "FAILED") } else { ("INFO", "OK") };
        Some((effect.to_string(), format!("{level} [AUDIT] {}: {end}", result.tool_name)))
    });
    results.collect()
}

/// The lines of a log, as in [`expected_lines`]. No call may have two.
fn logged_lines(text: &str) -> Lines {
    let mut lines = Lines::new();
    for line in text.lines().filter(|line| line.contains("[AUDIT]")) {
        let level = line.split_whitespace().next().unwrap();
        let (_, message) = line.split_once("[AUDIT]").unwrap();
        let (message, fields) = message.split_once(" conversation.id=c ").unwrap();
        let (_, effect) = fields.split_once("effect.id=").unwrap();
        let earlier = lines.insert(effect.to_owned(), format!("{level} [AUDIT]{message}"));
        assert_eq!(earlier, None, "{text}");
    }
    lines
}

/// Runs a prompt of the audited agent. Returns the logged and the expected lines.
async fn run_prompt(mut env: TestEnv) -> (Lines, Lines) {
    env.enable_parallel_calls(3);
    let (log, guard) = Log::start();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    assert!(env.try_run_until_idle().await);
    drop(guard);
    env.store.set_faults(crate::store::memory::StoreFaults::default());
    (logged_lines(&log.text()), expected_lines(&env).await)
}

#[tokio::test(start_paused = true)]
async fn audit_line_is_logged_once_per_committed_result() {
    let (logged, expected) = run_prompt(TestEnv::with_script(1, three_rounds)).await;
    assert_eq!(logged, expected);
    assert!(expected.values().any(|line| line == "INFO [AUDIT] pay: OK"), "{expected:?}");
    assert!(expected.values().any(|line| line == "WARN [AUDIT] nope: FAILED"), "{expected:?}");
}

#[tokio::test(start_paused = true)]
async fn lost_commits_and_crashes_repeat_no_audit_line() {
    for seed in 0..SEEDS {
        let plan = FaultPlan::new(seed);
        let mut env = TestEnv::with_fault_plan(seed, &plan, three_rounds, 0.0);
        env.store.set_faults(usual_store_faults());
        env.crash_percent = 4;
        let (logged, expected) = run_prompt(env).await;
        for (effect, line) in logged {
            assert_eq!(expected.get(&effect), Some(&line), "seed {seed}");
        }
    }
}
