//! Recall: an agent finds what its user wrote in other conversations, and nothing of other users.

use std::sync::Arc;

use serde_json::{Value, json};

use super::parallel_calls::result_texts;
use super::protocol::protocol_env;
use super::store_requests::handle_next_nudge;
use super::test_env::{LoggedRequests as _, RequestLogStore, TestEnv, owner, text};
use super::user_skills::handle_nudges;
use turnwheel_agent_files::AgentMemory;
use turnwheel_commands::knowledge::Knowledge;
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::person_messages::PersonMessages;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};
use turnwheel_platform::telemetry::cost_meter::{CostMeter, with_meter};
use turnwheel_record::documents::entry_document;
use turnwheel_record::services::Services;
use turnwheel_storage::store::cosmos::testing::{connect_store, start_in_process};
use turnwheel_storage::store::{Document, DocumentKind, HEAD_ID, Partition, Write};
use turnwheel_tools::recall::{PastMessages as _, recall_tool};

fn recalls_oslo(results: usize, said: &str) -> Vec<Value> {
    if results == 0 && said == "go" {
        let arguments = json!({"query": "Oslo"});
        return vec![
            json!({"type": "toolCall", "id": "c1", "name": "recall", "arguments": arguments}),
        ];
    }
    vec![text("I booked Oslo.")]
}

/// An environment whose agent has the tool, and a worker.
fn recall_env() -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(1, recalls_oslo);
    env.set_only_tool(&recall_tool().unwrap());
    let services = env.new_worker(Arc::new(NoFailPoints));
    (env, services)
}

#[tokio::test(start_paused = true)]
async fn agent_finds_messages_of_other_conversations() {
    let (mut env, services) = recall_env();
    for (id, said) in [("c1", "I fly to OSLO on Monday"), ("c2", "Bergen"), ("c3", "Is Oslo cold?")]
    {
        env.send_prompt_to(&services, id, said).await;
        while env.deliver().await {}
    }
    env.send_prompt(&services).await;
    while env.deliver().await {}
    let results = result_texts(&env).await;
    let found: Vec<&str> =
        results[0].lines().map(|line| line.split_once(" ago: ").unwrap().1).collect();
    // Responses of the model are not found.
    assert_eq!(found, ["Is Oslo cold?", "I fly to OSLO on Monday"]);
    // A second prompt of the conversation does not find the first.
    env.queue_prompt(&services, &TestEnv::key(), "I fly to Oslo too").await.unwrap();
    while env.deliver().await {}
    env.queue_prompt(&services, &TestEnv::key(), "go").await.unwrap();
    while env.deliver().await {}
    assert_eq!(result_texts(&env).await[1].lines().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn agent_finds_nothing_of_other_users() {
    let (mut env, services) = recall_env();
    let own = owner();
    for (tenant, user) in
        [(own.tenant.clone(), UserId::new("eve")), (TenantId::new("other"), own.user.clone())]
    {
        let conversation_id = ConversationId::new("c1");
        let key = ConversationKey { tenant, user, conversation_id };
        add_conversation(&services, key, vec![message_document(1, "Oslo")]).await;
    }
    env.send_prompt(&services).await;
    while env.deliver().await {}
    assert_eq!(
        result_texts(&env).await[0],
        "No past references found outside current conversation"
    );
}

#[tokio::test(start_paused = true)]
async fn recall_is_off_when_all_callers_are_one_user() {
    for (shares_memory, result) in [
        (false, "Error in tool \"recall\": User ID required for memory recall"),
        (true, "No past references found outside current conversation"),
    ] {
        let mut env = TestEnv::with_script(1, recalls_oslo);
        env.change_agent(|agent| {
            agent.tools = vec![recall_tool().unwrap()];
            agent.memory = Some(AgentMemory { allows_shared_user: shares_memory });
        });
        let mut services = env.new_worker(Arc::new(NoFailPoints));
        services.limits.has_shared_user = true;
        env.send_prompt(&services).await;
        handle_nudges(&env, &services).await;
        assert_eq!(result_texts(&env).await, [result]);
    }
}

/// In protocol mode the model reads the content of a success, and the text of a failure as it is.
#[tokio::test(start_paused = true)]
async fn protocol_mode_has_the_texts_of_the_source() {
    for (has_message, has_shared_user, status, content) in [
        (true, false, "success", "<1min ago: I fly to OSLO"),
        (false, false, "success", "No past references found outside current conversation"),
        (true, true, "failure", "User ID required for memory recall"),
    ] {
        let (mut env, model) = protocol_env(1);
        *env.model.script.lock().unwrap() = recalls_oslo;
        env.set_only_tool(&recall_tool().unwrap());
        let mut services = env.new_worker(Arc::new(NoFailPoints));
        services.limits.has_shared_user = has_shared_user;
        if has_message {
            let message = document_of(&message_entry(1, "I fly to OSLO", services.clock.now()));
            add_conversation(&services, owner().conversation_key("c1"), vec![message]).await;
        }
        env.send_prompt(&services).await;
        handle_nudges(&env, &services).await;
        let body = model.bodies().pop().unwrap();
        let sent = &body["input"].as_array().unwrap().last().unwrap()["content"][0]["text"];
        let result = format!(r#""tool": "recall", "status": "{status}", "content": "{content}""#);
        assert_eq!(*sent, format!("<results>\n[{{{result}}}]\n</results>"));
    }
}

/// Stores an idle conversation with these entries.
async fn add_conversation(services: &Services, key: ConversationKey, entries: Vec<Document>) {
    add_conversation_in(services, key, "idle", entries).await;
}

async fn add_conversation_in(
    services: &Services,
    key: ConversationKey,
    state: &str,
    entries: Vec<Document>,
) {
    let head = Document::new(HEAD_ID, DocumentKind::Head, &json!({}), None);
    let (created_at, state) = (Some(Timestamp(1)), Some(state.to_owned()));
    let documents = entries.into_iter().chain([Document { created_at, state, ..head }]);
    let writes = documents.map(Write::Create).collect();
    services.store.write(&Partition::Conversation(key), writes).await.unwrap();
}

fn document_of(entry: &Entry) -> Document {
    entry_document(entry, &mut PersonMessages::default())
}

fn message_document(seq: u64, said: &str) -> Document {
    document_of(&message_entry(seq, said, Timestamp(1_000 + seq)))
}

fn message_entry(seq: u64, said: &str, at: Timestamp) -> Entry {
    let entry = json!({
        "entryId": format!("e{seq}"), "parentId": null, "seq": seq, "type": "message",
        "timestamp": "2026-11-01T00:00:00.000Z",
        "message": {"role": "user", "content": said, "timestamp": at},
    });
    serde_json::from_value(entry).unwrap()
}

#[tokio::test(start_paused = true)]
async fn copies_of_a_message_count_once() {
    let (_env, services) = recall_env();
    for id in ["c1", "fork1", "fork2", "import"] {
        let copies = vec![message_document(1, "Oslo first"), message_document(2, "Oslo second")];
        add_conversation(&services, owner().conversation_key(id), copies).await;
    }
    let found = Knowledge::new(&services).find(&TestEnv::key(), "oslo", 3).await.unwrap();
    let texts: Vec<&str> = found.messages.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["Oslo second", "Oslo first"]);
    assert!(found.is_complete);
}

#[tokio::test(start_paused = true)]
async fn deleted_conversations_are_not_shown() {
    let (_env, services) = recall_env();
    // Deletions and unfinished imports: the head says so before the entries are removed.
    for (id, state, seq) in [("c1", "deleted", 3), ("c2", "idle", 2), ("c3", "deleted", 1)] {
        let entries = vec![message_document(seq, &format!("Oslo of {id}"))];
        add_conversation_in(&services, owner().conversation_key(id), state, entries).await;
    }
    let without_head = Partition::Conversation(owner().conversation_key("c4"));
    let entry = Write::Create(message_document(4, "Oslo of c4"));
    services.store.write(&without_head, vec![entry]).await.unwrap();
    let found = Knowledge::new(&services).find(&TestEnv::key(), "oslo", 3).await.unwrap();
    let texts: Vec<&str> = found.messages.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["Oslo of c2"]);
}

#[tokio::test(start_paused = true)]
async fn recall_adds_one_request() {
    let mut env = TestEnv::with_script(1, recalls_oslo);
    env.set_only_tool(&recall_tool().unwrap());
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let requests = handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(result_texts(&env).await, ["No past references found outside current conversation"]);
    insta::assert_snapshot!(requests, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    search
    write head, commit
    ");
}

#[tokio::test(start_paused = true)]
async fn cosmos_recall_sends_one_query_and_one_read_for_each_conversation() {
    let emulator = start_in_process(4);
    let mut env = TestEnv::with_script(1, recalls_oslo);
    let counting = RequestLogStore::wrap(Arc::new(connect_store(&emulator, Vec::new()).await));
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    for id in 1..=20 {
        let message = message_document(id, &format!("Oslo {id}"));
        let key = owner().conversation_key(&format!("c{id}"));
        add_conversation(&services, key, vec![message]).await;
    }
    let meter = Arc::new(CostMeter::default());
    let knowledge = Knowledge::new(&services);
    let found = with_meter(Arc::clone(&meter), knowledge.find(&TestEnv::key(), "oslo", 3)).await;
    let sent: Vec<_> =
        meter.costs().iter().map(|(operation, cost)| (*operation, cost.requests)).collect();
    assert_eq!(sent, [("cosmos.read", 3), ("cosmos.search", 1)]);
    assert_eq!(found.unwrap().messages.len(), 3);
}
