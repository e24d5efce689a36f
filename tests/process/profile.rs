//! Profile through the built binary with the fake model: five messages are learnt from, and a kill at
//! any of its fail points loses none.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_client::DevClient;
use crate::support::dev_process::DevProcess;
use crate::support::restarting_client::RestartingClient;

const TIMEOUT: Duration = Duration::from_mins(2);
const PATH: &str = "/api/me/profile";

const FAIL_POINTS: [&str; 5] =
    ["profile.before", "profile.posted", "profile.responded", "profile.recorded", "profile.after"];

fn agents_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    let agent = "---\nprofile: true\n---\nHelp.";
    std::fs::write(folder.path().join("agents/clerk.agent.md"), agent).unwrap();
    folder
}

fn unseen(view: &Value) -> Vec<String> {
    let messages = view["unseenMessages"].as_array().unwrap().iter();
    messages.map(|message| message["text"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn agent_learns_from_five_messages() {
    let folder = agents_folder();
    let mut app = DevClient::start(folder.path(), &[]);
    for number in 1..=5 {
        app.prompt(&format!("c{number}"), &format!("say {number}")).await;
        // The message arrives after the response.
        let has_arrived =
            |view: &Value| unseen(view).len() == number || view["profile"].is_object();
        app.poll_until(PATH, has_arrived).await;
    }
    let profile = app.poll_until(PATH, |view| view["profile"].is_object()).await;
    assert_eq!(profile["profile"], json!({"misc": "say 5; say 4; say 3"}));
    assert_eq!(unseen(&profile), [""; 0]);
    app.prompt("c6", "say 6").await;
    let entries = app.get("/api/conversations/c6/entries?limit=100").await.to_string();
    assert!(
        entries.contains(r#"USER PROFILE:\n{\n  \"misc\": \"say 5; say 4; say 3\""#),
        "{entries}"
    );
    let log = app.dev.whole_log();
    assert!(!log.contains("say 4"), "no text of a message is logged: {log}");
}

/// Kills the process of the fifth message at the fail point. Returns the profile after the sixth.
async fn kill_at(fail_point: &'static str) -> Value {
    let folder = agents_folder();
    let start = move |data: &Path, settings: &[(&str, String)]| {
        DevProcess::start_in(folder.path(), data, settings)
    };
    // Each message passes `profile.before` and `profile.posted` once; the others only follow a claim,
    // or come last.
    let hit = if fail_point == "profile.responded" { 1 } else { 5 };
    let mut client = RestartingClient::new(start, Some(format!("{fail_point}#{hit}")));
    for number in 1..=6 {
        let body = json!({"input": format!("say {number}")});
        let (path, body) = match number {
            1 => ("/api/prompts", json!({"conversationId": "c", "input": "say 1"})),
            _ => ("/api/conversations/c/prompts", body),
        };
        let (accepted, _) = client.post(path, &number.to_string(), &body).await;
        client.wait_for(&accepted, "completed").await;
        let deadline = Instant::now() + TIMEOUT;
        // Each message arrives before the next one is sent.
        loop {
            let view = client.get(PATH).await;
            let text = format!("say {number}");
            let is_learnt = view["profile"]["misc"].as_str().is_some_and(|it| it.contains(&text));
            let is_killed = !client.hits.is_empty();
            if is_learnt || unseen(&view).contains(&text) || (is_killed && number == 5) {
                // Without a claim of the killed process, the sixth message claims at once.
                let is_complete = fail_point != "profile.before" || is_learnt;
                if number == 6 && is_complete {
                    assert!(is_killed, "{fail_point} is not reached");
                    return view;
                }
                if number < 5 || (number == 5 && is_killed) {
                    break;
                }
            }
            assert!(Instant::now() < deadline, "{number}: {view}\n{}", client.dev.log());
        }
    }
    unreachable!("the loop returns at the sixth message")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_fail_point_loses_no_message() {
    let views = futures_util::future::join_all(FAIL_POINTS.map(kill_at)).await;
    for (fail_point, view) in FAIL_POINTS.iter().zip(views) {
        let texts = unseen(&view);
        match *fail_point {
            // The claim of the killed process has not expired.
            "profile.posted" | "profile.responded" => {
                let all: Vec<String> = (1..=6).map(|number| format!("say {number}")).collect();
                assert_eq!((texts, view["profile"].is_null()), (all, true), "{fail_point}");
            }
            // The sixth message brings the fifth.
            "profile.before" => {
                assert_eq!(view["profile"]["misc"], "say 6; say 5; say 4", "{view}");
                assert_eq!(texts, [""; 0]);
            }
            _ => {
                assert_eq!(view["profile"]["misc"], "say 5; say 4; say 3", "{fail_point}");
                assert_eq!(texts, ["say 6"], "{fail_point}");
            }
        }
    }
}
