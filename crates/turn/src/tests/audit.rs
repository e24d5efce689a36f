//! Audit lines of tool results: one for each committed result.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::test_env::{TestEnv, three_rounds, usual_store_faults};
use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::notification::Notification;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_platform::ids::{ConversationKey, EffectId};
use turnwheel_record::documents;
use turnwheel_record::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_storage::store::{DocumentKind, Partition};
use turnwheel_test_support::captured_log::CapturedLog;

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
    let log = CapturedLog::start();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    assert!(env.try_run_until_idle().await);
    env.store.set_faults(turnwheel_storage::store::memory::StoreFaults::default());
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

/// Discards what it is sent: the stored notifications are compared.
#[derive(Debug)]
struct Receiver;

#[async_trait]
impl NotificationSender for Receiver {
    async fn send(&self, _key: &ConversationKey, _notice: &Notification) -> SendOutcome {
        SendOutcome::Accepted
    }
}

/// Effect ids of the results that notifications report. No result may be in two.
fn notified_results(env: &TestEnv) -> BTreeMap<String, bool> {
    let partition = Partition::Conversation(TestEnv::key());
    let mut results = BTreeMap::new();
    for stored in env.store.select_newest(&partition, DocumentKind::Notification) {
        let notice: Notification = documents::read(&stored.document).unwrap();
        if notice.kind != "tool.result" {
            continue;
        }
        let data = notice.data.to_value();
        assert!(data["promptId"].as_str().is_some(), "{data}");
        for result in data["results"].as_array().unwrap() {
            let id = result["effectId"].as_str().unwrap().to_owned();
            let earlier = results.insert(id, result["isError"].as_bool().unwrap());
            assert_eq!(earlier, None, "{data}");
        }
    }
    results
}

#[tokio::test(start_paused = true)]
async fn each_result_is_notified_once() {
    for seed in 0..SEEDS {
        let plan = FaultPlan::new(seed);
        let mut env = TestEnv::with_fault_plan(seed, &plan, three_rounds, 0.0);
        env.enable_parallel_calls(3);
        env.notifier = Some(Arc::new(Receiver));
        let notify = |agent: &mut AgentDefinition| agent.audit.is_notified = true;
        env.agents = env.changed_agents(notify).into();
        env.store.set_faults(usual_store_faults());
        env.crash_percent = 4;
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        assert!(env.try_run_until_idle().await);
        env.store.set_faults(turnwheel_storage::store::memory::StoreFaults::default());
        let expected = expected_lines(&env).await.into_iter();
        let expected: BTreeMap<String, bool> =
            expected.map(|(id, line)| (id, line.ends_with("FAILED"))).collect();
        assert!(!expected.is_empty());
        assert_eq!(notified_results(&env), expected, "seed {seed}");
    }
}
