//! Tests of the actions of commands and input hooks.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};
use turnwheel::testing::fail_points::{FailPoints, NoFailPoints};
use turnwheel::testing::settings::links::Auth;
use turnwheel::testing::store::memory::{MemoryStore, StoreFaults};

use super::commands::{PROMPTS, SharedDesk, desk_app};
use super::test_app::TestApp;

impl TestApp {
    /// Data of the entries that commands append.
    async fn notes(&self) -> Vec<Value> {
        let entries = self.get_json("/api/conversations/c/entries?limit=100").await;
        let items = entries["items"].as_array().unwrap().clone();
        let notes = items.into_iter().filter(|entry| entry["customType"] == "desk/note");
        notes.map(|entry| entry["data"].clone()).collect()
    }
}

#[tokio::test]
async fn actions_of_a_command_are_applied_once() {
    let (app, _) = desk_app();
    app.run("say hi").await;
    for _ in 0..2 {
        let noted = app.run_command("note", &json!({"args": "Bills"}), "k").await;
        let noted = noted.expect_status(200).json();
        app.work().await;
        let path = format!("/api/conversations/c/inbox/{}", noted["inputId"].as_str().unwrap());
        assert_eq!(app.get_json(&path).await["state"], "landed");
        assert_eq!(app.notes().await, ["Bills"]);
    }
    let conversation = app.get_json("/api/conversations/c").await;
    assert_eq!((&conversation["name"], &conversation["state"]), (&json!("Bills"), &json!("idle")));
    let events = app.get("/api/conversations/c/events?follow=false").send().await.text;
    assert_eq!(events.matches("\"notify\"").count(), 1, "{events}");
}

#[tokio::test]
async fn message_of_a_command_starts_a_prompt() {
    let (app, _) = desk_app();
    app.run("say hi").await;
    app.run_command("ask", &json!({"args": "say asked"}), "k").await.expect_status(200);
    app.work().await;
    assert_eq!(app.user_texts().await, ["say hi", "say asked"]);
}

#[tokio::test]
async fn abort_of_a_command_ends_the_running_prompt() {
    let (app, _) = desk_app();
    app.run_command("halt", &json!({}), "early").await.expect_problem(404, "not-found");
    let id = app.prompt("say hi").await;
    app.run_command("halt", &json!({}), "k").await.expect_status(200);
    app.work().await;
    let prompt = app.get_json(&format!("{PROMPTS}/{id}")).await;
    assert_eq!(prompt["state"], "aborted");
    assert_eq!(app.notes().await, ["halted"]);
    app.run_command("halt", &json!({}), "idle").await.expect_status(200);
    app.run("say more").await;
    assert_eq!(app.user_texts().await.last().unwrap(), "say more", "no later prompt is aborted");
}

#[tokio::test]
async fn actions_of_an_input_hook_are_applied() {
    let (app, _) = desk_app();
    app.run("name it").await;
    assert_eq!(app.get_json("/api/conversations/c").await["name"], "named");
    assert_eq!(app.user_texts().await, ["name it"]);
}

/// Panics once at a fail point.
#[derive(Debug)]
struct DiesAt(Mutex<Option<&'static str>>);

#[async_trait]
impl FailPoints for DiesAt {
    async fn hit(&self, name: &'static str) {
        let mut at = self.0.lock().unwrap();
        if *at == Some(name) {
            *at = None;
            drop(at);
            panic!("a test of a crash");
        }
    }
}

#[tokio::test]
async fn crash_around_the_receipt_applies_actions_once() {
    for (point, runs) in
        [("admission.accept", 2), ("admission.accepted", 1), ("admission.nudge", 1)]
    {
        let (app, desk) = desk_app();
        app.run("say hi").await;
        let dies = Arc::new(DiesAt(Mutex::new(Some(point))));
        let app = app.with_services(|services| services.fail_points = dies);
        let args = json!({"args": "Bills"});
        app.run_command("note", &args, "k").await.expect_problem(500, "internal");
        app.run_command("note", &args, "k").await.expect_status(200);
        app.work().await;
        assert_eq!(
            (desk.calls().len(), app.notes().await),
            (runs, vec![json!("Bills")]),
            "{point}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn actions_are_applied_once_despite_store_faults() {
    const FAULTS: StoreFaults = StoreFaults {
        throttled: 0.0,
        conflict: 0.1,
        conflict_after: 0.1,
        unavailable_before: 0.1,
        unavailable_after: 0.15,
        unavailable_late: 0.1,
        unavailable_reads: 0.05,
        stale_reads: 0.2,
        short_pages: 0.0,
        yield_to_others: 0.3,
    };
    for seed in 0..30 {
        let store = Arc::new(MemoryStore::with_faults(seed, StoreFaults::default()));
        let app = TestApp::with(Arc::clone(&store), Arc::new(NoFailPoints), Auth::Header);
        let desk = SharedDesk::default();
        let app = app.with_services(|services| services.extensions.push(Arc::new(desk)));
        app.run("say hi").await;
        store.set_faults(FAULTS);
        let mut statuses = Vec::new();
        while statuses.len() < 40 && statuses.last() != Some(&200) {
            let sent = app.run_command("note", &json!({"args": "Bills"}), "k").await;
            statuses.push(sent.status.as_u16());
        }
        assert_eq!(statuses.pop(), Some(200), "seed {seed}");
        assert!(statuses.iter().all(|status| [503, 409].contains(status)), "{statuses:?}");
        store.set_faults(StoreFaults::default());
        app.work().await;
        assert_eq!(app.notes().await, ["Bills"], "seed {seed}");
    }
}
