//! Failures of the socket: each prompt is completed over HTTP.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{RESUME, TestApp, call_text, calls, done};
use crate::support::socket_model::{Reply, Transport, Upgrades, error_event};

use Transport::{Http, Socket};

/// One failure: the replies, the transport of each request, and the recorded reasons.
struct Failure {
    name: &'static str,
    upgrades: Upgrades,
    replies: Vec<Reply>,
    transports: Vec<Transport>,
    reason: &'static str,
    /// True if the failed call is retried, which is in another delivery.
    is_retried: bool,
}

impl Failure {
    /// After the first response, this reply; then two over HTTP.
    fn in_second_round(name: &'static str, reply: Reply, reason: &'static str) -> Self {
        Self {
            name,
            upgrades: Upgrades::Accepted,
            replies: vec![calls("a"), reply, calls("b"), done()],
            transports: vec![Socket, Socket, Http, Http],
            reason,
            is_retried: false,
        }
    }

    fn of_upgrade(name: &'static str, upgrades: Upgrades) -> Self {
        let replies = vec![calls("a"), calls("b"), done()];
        let transports = vec![Http, Http, Http];
        let reason = "connection_failed";
        Self { name, upgrades, replies, transports, reason, is_retried: false }
    }

    async fn check(self, mode: &str) {
        let keys = RESUME.replace("resume", mode);
        let app = TestApp::start(&keys, self.upgrades, self.replies).await;
        let run = app.run_prompt(&json!({ "input": "go" })).await;
        let (name, prompt) = (self.name, &run.prompt);
        assert_eq!(prompt["state"], "completed", "{name}: {prompt} {:?}", app.model.turns());
        assert_eq!(prompt["output"].as_array().unwrap().last().unwrap()["content"], "Done.");
        assert_eq!(app.model.transports(), self.transports, "{name}");
        let states = run.provider_states();
        if self.is_retried {
            let failed = json!({ "mode": "resume", "lastFallback": self.reason });
            assert_eq!(states[1], failed, "{name}");
        }
        let reason = if self.is_retried { "retry" } else { self.reason };
        let replay = json!({ "mode": "replay", "lastFallback": reason });
        assert_eq!(states.last().unwrap(), &replay, "{name}");
        let turns = app.model.turns();
        let last = turns.last().unwrap();
        assert_eq!(last.body["input"].as_array().unwrap().len(), 6, "{name}: the whole input");
        assert_eq!(last.body["stream"], true, "{name}");
        app.service.stop().await;
    }
}

#[tokio::test]
async fn failed_upgrade_falls_back_to_http() {
    for mode in ["resume", "auto"] {
        Failure::of_upgrade("not found", Upgrades::Rejected(404)).check(mode).await;
        Failure::of_upgrade("unauthorised", Upgrades::Rejected(401)).check(mode).await;
        Failure::of_upgrade("no upgrade", Upgrades::Rejected(200)).check(mode).await;
        Failure::of_upgrade("another key", Upgrades::Forged).check(mode).await;
    }
}

#[tokio::test]
async fn rejected_request_is_sent_over_http_in_same_round() {
    let codes = [
        ("previous_response_not_found", "previous_response_not_found"),
        ("websocket_connection_limit_reached", "connection_limit_reached"),
        ("invalid_request_error", "request_rejected"),
    ];
    for (code, reason) in codes {
        let reply = Reply::Event(error_event(400, code));
        Failure::in_second_round(code, reply, reason).check("resume").await;
    }
}

#[tokio::test]
async fn failed_response_is_retried_over_http() {
    let text = call_text("lost");
    let failures = [
        ("no event", Reply::CutAfter(0, text.clone()), "connection_lost"),
        ("cut in the middle", Reply::CutAfter(3, text.clone()), "connection_lost"),
        ("invalid UTF-8", Reply::Bytes(vec![0x81, 2, 0xff, 0xfe]), "connection_lost"),
        ("reserved bits", Reply::Bytes(vec![0xff, 0]), "connection_lost"),
        ("rate limit", Reply::Event(error_event(429, "slow_down")), "response_failed"),
        ("server error", Reply::Event(error_event(500, "server_error")), "response_failed"),
        ("malformed end", Reply::Frames(vec![begun(), malformed_end()], text), "connection_lost"),
    ];
    for (name, reply, reason) in failures {
        let failure = Failure::in_second_round(name, reply, reason);
        Failure { is_retried: true, ..failure }.check("resume").await;
    }
}

fn begun() -> Message {
    let response = json!({ "id": "resp_new", "status": "in_progress" });
    Message::text(json!({ "type": "response.created", "response": response }).to_string())
}

fn malformed_end() -> Message {
    Message::text(r#"{"type":"response.completed","response":"#)
}

#[tokio::test]
async fn socket_closed_between_rounds_falls_back_to_http() {
    let failure = Failure {
        name: "closed",
        upgrades: Upgrades::Accepted,
        replies: vec![Reply::ThenClose(call_text("a")), calls("b"), done()],
        transports: vec![Socket, Http, Http],
        reason: "connection_lost",
        is_retried: false,
    };
    failure.check("auto").await;
}

/// The service would return as much again: the failure is final, as over HTTP.
#[tokio::test]
async fn oversized_frame_fails_prompt() {
    let mut header = vec![0x81, 127];
    header.extend_from_slice(&(9u64 << 20).to_be_bytes());
    let app = TestApp::start(RESUME, Upgrades::Accepted, vec![Reply::Bytes(header)]).await;
    let run = app.run_prompt(&json!({ "input": "go" })).await;
    assert_eq!(run.prompt["state"], "failed");
    let text = run.prompt["error"]["message"].as_str().unwrap();
    assert!(text.contains("exceeds 8388608 bytes"), "{text}");
    app.service.stop().await;
}

#[tokio::test]
async fn other_frames_do_not_change_response() {
    let stale = json!({ "type": "response.completed", "response": { "id": "resp_of_socket_1", "status": "completed", "output": [] } });
    let frames = vec![
        Message::Ping(b"x".as_slice().into()),
        Message::Pong(b"y".as_slice().into()),
        Message::binary(b"\x00\xff".as_slice()),
        Message::text("no JSON"),
        Message::text("{}"),
        Message::text(json!({ "type": "codex.rate_limits", "limits": {} }).to_string()),
        Message::text(
            json!({ "type": "response.output_text.delta", "delta": "stale" }).to_string(),
        ),
        Message::text(stale.to_string()),
    ];
    let replies = vec![calls("a"), Reply::Frames(frames, "Done.".to_owned())];
    let app = TestApp::start(RESUME, Upgrades::Accepted, replies).await;
    let run = app.run_prompt(&json!({ "input": "go" })).await;
    assert_eq!(run.prompt["output"].as_array().unwrap().last().unwrap()["content"], "Done.");
    assert_eq!(app.model.transports(), [Socket, Socket]);
    app.service.stop().await;
}

#[tokio::test]
async fn auto_remembers_failed_connection_and_resume_does_not() {
    for (mode, attempts) in [("auto", 1), ("resume", 2)] {
        let keys = RESUME.replace("resume", mode);
        let replies = vec![calls("a"), done(), done()];
        let app = TestApp::start(&keys, Upgrades::Rejected(404), replies).await;
        app.run_prompt(&json!({ "input": "go" })).await;
        let run = app.run_prompt(&json!({ "input": "again" })).await;
        assert_eq!(run.prompt["state"], "completed");
        assert_eq!(app.model.upgrades().len(), attempts, "{mode}");
        let reasons: Vec<Value> = run.provider_states();
        assert_eq!(reasons[0]["lastFallback"], "connection_failed", "{mode}");
        app.service.stop().await;
    }
}
