//! Lists of active conversations: stuck, waiting for approvers, or paused.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::test_env::{TestEnv, call, owner, text};
use crate::delivery::handle;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::TenantId;
use turnwheel_platform::settings::pauses::parse;
use turnwheel_queries::backlog::{BacklogQuery, BacklogReport, report_backlog};
use turnwheel_queries::why::ServiceStatus;
use turnwheel_record::nudge::Nudge;
use turnwheel_storage::queue;
use turnwheel_storage::store::{
    ConversationStore as _, Document, DocumentKind, HEAD_ID, Partition, Write,
};

fn calls_gated_or_replies(results: usize, input: &str) -> Vec<Value> {
    match (input, results) {
        ("ask", 0) => vec![call("c1", "gated", 0)],
        _ => vec![text("done")],
    }
}

async fn list_backlog(env: &TestEnv, query: BacklogQuery) -> BacklogReport {
    report_backlog(&*env.worker_store, &query, ServiceStatus::Remote, env.clock.now())
        .await
        .unwrap()
}

fn summarise(report: &BacklogReport) -> Vec<String> {
    let line =
        |view: &turnwheel_queries::why::WhyView| format!("{} {}", view.id, json!(view.waits_for));
    report.items.iter().map(line).collect()
}

fn stuck_query() -> BacklogQuery {
    BacklogQuery { stuck: Some(Duration::from_mins(10)), ..BacklogQuery::default() }
}

#[tokio::test(start_paused = true)]
async fn backlog_distinguishes_stuck_waiting_and_paused() {
    let mut env = TestEnv::with_script(1, calls_gated_or_replies);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let nudge = |id: &str| Nudge::for_conversation(owner().conversation_key(id), None);
    env.send_prompt_to(&services, "idle", "go").await;
    handle(&services, &nudge("idle")).await.unwrap();
    env.send_prompt_to(&services, "person", "ask").await;
    handle(&services, &nudge("person")).await.unwrap();
    env.pauses = Arc::new(parse("*").unwrap());
    let paused_worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt_to(&services, "paused", "go").await;
    handle(&paused_worker, &nudge("paused")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    env.send_prompt_to(&services, "new", "go").await;
    env.queue.drop_queue(queue::TURNS);

    let all = list_backlog(&env, BacklogQuery::default()).await;
    assert_eq!(summarise(&all), ["new \"nudge\"", "paused \"paused\"", "person \"approval\""]);
    assert!(!all.is_cut && all.unreadable.is_empty());
    let waiting = BacklogQuery { is_waiting_for_approver: true, ..BacklogQuery::default() };
    assert_eq!(summarise(&list_backlog(&env, waiting).await), ["person \"approval\""]);
    assert_eq!(summarise(&list_backlog(&env, stuck_query()).await), Vec::<String>::new());

    tokio::time::sleep(Duration::from_mins(11)).await;
    let late = list_backlog(&env, stuck_query()).await;
    assert_eq!(summarise(&late), ["new \"nudge\""], "a paused conversation is not stuck");
    assert!(late.items[0].why.ends_with("That is overdue."), "{}", late.items[0].why);
    let others = BacklogQuery { tenant: Some(TenantId::new("other")), ..stuck_query() };
    assert_eq!(summarise(&list_backlog(&env, others).await), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn unreadable_head_is_listed_beside_readable_ones() {
    let mut env = TestEnv::with_script(1, calls_gated_or_replies);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt_to(&services, "new", "go").await;
    let body = json!({"phase": "unheard of"});
    let head = Document {
        created_at: Some(env.clock.now()),
        state: Some("running".to_owned()),
        ..Document::new(HEAD_ID, DocumentKind::Head, &body, Some(env.clock.now()))
    };
    let broken = Partition::Conversation(owner().conversation_key("broken"));
    env.store.write(&broken, vec![Write::Create(head)]).await.unwrap();
    tokio::time::sleep(Duration::from_mins(11)).await;
    let report = list_backlog(&env, stuck_query()).await;
    assert_eq!(summarise(&report), ["new \"nudge\""]);
    assert_eq!(report.unreadable, ["t/u/broken"]);
}
