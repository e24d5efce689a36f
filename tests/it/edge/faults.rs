//! Tests of the API on a faulty store: every response to a client stays true.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use turnwheel::settings::links::Auth;
use turnwheel::store::memory::{Faults, MemoryStore};
use turnwheel::turn::NoProbe;

use super::rig::{Answer, Rig};

const ROUGH: Faults = Faults {
    throttled: 0.0,
    conflict: 0.1,
    conflict_after: 0.1,
    unavailable_before: 0.15,
    unavailable_after: 0.15,
    unavailable_late: 0.1,
    unavailable_reads: 0.1,
    stale_reads: 0.2,
    short_pages: 0.0,
    step_aside: 0.3,
};

/// Repeats a request while the service is unavailable.
async fn insist<F: Future<Output = Answer>>(ask: impl Fn() -> F) -> Answer {
    for _ in 0..40 {
        let answer = ask().await;
        let is_passing = answer.status == StatusCode::SERVICE_UNAVAILABLE
            || (answer.status == StatusCode::CONFLICT && !answer.header("retry-after").is_empty());
        if !is_passing {
            return answer;
        }
        assert!(!answer.header("retry-after").is_empty(), "{}", answer.text);
    }
    panic!("the service stayed unavailable");
}

#[tokio::test(start_paused = true)]
async fn with_a_key_a_request_happens_once_whatever_the_store_does() {
    for seed in 0..60 {
        let rig = Rig::with(
            Arc::new(MemoryStore::with_faults(seed, ROUGH)),
            Arc::new(NoProbe),
            Auth::Header,
        );
        let begun = insist(|| {
            rig.post("/api/prompts", &json!({"conversationId": "c", "input": "say hello"}))
                .key("k")
                .send()
        });
        let accepted = begun.await.is(202).json();
        let patch = json!({"name": "Bills"});
        let named =
            insist(|| rig.patch("/api/conversations/c", &patch).key("n").send()).await.is(200);
        assert_eq!(named.json()["name"], "Bills");
        let again = insist(|| {
            rig.post("/api/prompts", &json!({"conversationId": "c", "input": "say hello"}))
                .key("k")
                .send()
        });
        assert_eq!(again.await.is(202).json(), accepted, "seed {seed}");
        rig.store.set_faults(Faults::default());
        rig.work().await;
        rig.store.set_faults(ROUGH);
        let more = json!({"input": "say more"});
        let path = "/api/conversations/c/prompts";
        insist(|| rig.post(path, &more).key("more").send()).await.is(202);
        rig.store.set_faults(Faults::default());
        rig.work().await;
        let seen = rig.seen("/api/conversations/c/prompts").await;
        assert_eq!(seen["items"].as_array().unwrap().len(), 2, "seed {seed}");
        assert_eq!(seen["items"][1]["output"][0]["content"], "more", "seed {seed}");
        assert_eq!(seen["items"][0]["output"][0]["content"], "hello", "seed {seed}");
        let entries = rig.seen("/api/conversations/c/entries?limit=100").await;
        let named = entries["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["type"] == "session_info")
            .count();
        assert_eq!(named, 1, "seed {seed}: the name must change once");
    }
}

#[tokio::test(start_paused = true)]
async fn an_import_is_whole_or_absent_whatever_the_store_does() {
    let messages: Vec<_> = (0..250)
        .map(|number| json!({"role": "user", "content": number.to_string(), "timestamp": number}))
        .collect();
    for seed in 0..40 {
        let rig = Rig::with(
            Arc::new(MemoryStore::with_faults(seed, ROUGH)),
            Arc::new(NoProbe),
            Auth::Header,
        );
        let body = json!({"id": "c", "messages": messages});
        insist(|| rig.post("/api/conversations", &body).key("k").send()).await.is(201);
        rig.store.set_faults(Faults::default());
        let tail = rig.seen("/api/conversations/c/entries?afterSeq=200&limit=100").await;
        let contents: Vec<_> = tail["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["message"]["content"].clone())
            .collect();
        let expected: Vec<_> = (200..250).map(|number| json!(number.to_string())).collect();
        assert_eq!(contents, expected, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_decisions_one_wins_and_the_other_is_told() {
    for seed in 0..40 {
        let rig = Rig::with(
            Arc::new(MemoryStore::with_faults(seed, Faults::default())),
            Arc::new(NoProbe),
            Auth::Header,
        );
        rig.run("use pay with {\"amount\": 500} then say done").await;
        let id = rig.seen("/api/approvals").await["items"][0]["id"].as_str().unwrap().to_owned();
        let path = format!("/api/conversations/c/approvals/{id}");
        rig.store.set_faults(ROUGH);
        let decide = |decision: &'static str| {
            let (rig, path) = (&rig, &path);
            insist(move || rig.post(path, &json!({"decision": decision})).send())
        };
        let (yes, no) = tokio::join!(decide("approve"), decide("reject"));
        let mut statuses = [yes.status.as_u16(), no.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "seed {seed}: {} {}", yes.text, no.text);
        rig.store.set_faults(Faults::default());
        rig.work().await;
        let paid = rig.pay.made.lock().unwrap().len();
        assert_eq!(paid, usize::from(yes.status == StatusCode::OK), "seed {seed}");
    }
}
