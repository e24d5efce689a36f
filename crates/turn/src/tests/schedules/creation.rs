//! Creating schedules: keys, bounds, owners, and the agent's schedule tool.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    TestEnv, create_schedule, echoes_input, firing_times, idempotency, new_schedule,
    new_schedule_in_c, owner, pass_time,
};
use turnwheel_commands::schedules::create::{NewSchedule, accept_schedule};
use turnwheel_commands::schedules::{
    SCHEDULES_MAX, cancel_schedule, list_tenant_schedules, list_user_schedules, load_schedule,
};
use turnwheel_conversation::message::Message;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::UserId;
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;
use turnwheel_storage::store::memory::StoreFaults;

fn new_named_schedule(id: &str, at: &str) -> NewSchedule {
    NewSchedule { id: Some(id.to_owned()), ..new_schedule(at, "") }
}

async fn create_error(services: &Services, request: NewSchedule, key: &str) -> String {
    accept_schedule(services, &owner(), request, &idempotency(key), None)
        .await
        .unwrap_err()
        .to_string()
}

#[tokio::test(start_paused = true)]
async fn idempotency_key_identifies_schedule_and_body() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let request = NewSchedule { id: None, ..new_schedule("", "P1D") };
    let first = accept_schedule(&services, &owner(), request.clone(), &idempotency("k"), None)
        .await
        .unwrap();
    let again = accept_schedule(&services, &owner(), request.clone(), &idempotency("k"), None)
        .await
        .unwrap();
    assert_eq!((first.body.as_ref(), first.status), (again.body.as_ref(), 201));
    assert!(again.is_replayed && !first.is_replayed);
    assert_eq!(list_user_schedules(&services, &owner()).await.unwrap().len(), 1);
    let other = Idempotency { body_hash: "other".to_owned(), ..idempotency("k") };
    let reused = accept_schedule(&services, &owner(), request.clone(), &other, None).await;
    assert!(matches!(reused, Err(CommandError::KeyReused)), "{reused:?}");
    // The key is valid as long as the schedule exists.
    let id = first.body.unwrap().string_member("id").unwrap();
    cancel_schedule(&services, &owner(), &id).await.unwrap();
    assert!(accept_schedule(&services, &owner(), request, &other, None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn create_with_lost_response_makes_one_schedule() {
    for fault in 0..2 {
        let mut env = TestEnv::with_script(3, echoes_input);
        let services = env.new_worker(Arc::new(NoFailPoints));
        let chance = 0.6;
        env.store.set_faults(match fault {
            0 => StoreFaults { unavailable_after: chance, ..Default::default() },
            _ => StoreFaults { conflict_after: chance, ..Default::default() },
        });
        let request = new_named_schedule("s", "P1D");
        while accept_schedule(&services, &owner(), request.clone(), &idempotency("k"), None)
            .await
            .is_err()
        {}
        env.store.set_faults(StoreFaults::default());
        assert_eq!(list_user_schedules(&services, &owner()).await.unwrap().len(), 1);
        env.store.set_faults(StoreFaults {
            unavailable_after: chance,
            conflict_after: chance / 2.0,
            ..Default::default()
        });
        while !matches!(
            cancel_schedule(&services, &owner(), "s").await,
            Ok(()) | Err(CommandError::NotFound("schedule"))
        ) {}
        env.store.set_faults(StoreFaults::default());
        assert!(
            env.store
                .documents(&turnwheel_commands::schedules::scope_partition(&owner().tenant))
                .is_empty()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_schedule_reports_all_errors_and_stores_nothing() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let request = NewSchedule {
        id: Some("a/b".to_owned()),
        agent: Some("nobody".to_owned()),
        every: Some("never".to_owned()),
        time_zone: Some("Nowhere".to_owned()),
        input: Some(turnwheel_conversation::content::Content::Text(String::new())),
        ..NewSchedule::default()
    };
    let expected =
        accept_schedule(&services, &owner(), request, &idempotency("k"), None).await.unwrap_err();
    let CommandError::Invalid(errors) = expected else { panic!("{expected}") };
    let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
    assert_eq!(pointers, ["/id", "/input", "/timeZone", "/every", "/agent"]);
    for (request, expected) in [
        (
            new_named_schedule("s", "2020-01-01T00:00:00Z"),
            "`at` is past; it is now 2027-01-15T08:00:00+00:00[UTC]",
        ),
        (new_schedule("", "0 0 30 2 *"), "`every` never fires"),
        (
            NewSchedule { until: Some("PT1M".to_owned()), ..new_schedule("", "P1D") },
            "nothing fires up to `until`",
        ),
        (
            new_schedule_in_c("PT1M", ""),
            "there is no conversation `c`: create it first, or leave it out",
        ),
        (
            NewSchedule {
                input: Some(turnwheel_conversation::content::Content::Text("x".repeat(33 * 1024))),
                ..new_schedule("PT1M", "")
            },
            "32 KB",
        ),
    ] {
        let detail = create_error(&services, request, "k").await;
        assert!(detail.contains(expected), "{detail}");
    }
    assert!(
        env.store
            .documents(&turnwheel_commands::schedules::scope_partition(&owner().tenant))
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn schedules_are_limited_and_ended_ones_are_replaced() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let services = env.new_worker(Arc::new(NoFailPoints));
    for number in 0..SCHEDULES_MAX {
        let at = if number == 7 { "PT1M" } else { "P9D" };
        create_schedule(&services, new_named_schedule(&format!("s{number}"), at)).await;
    }
    let refused = create_error(&services, new_named_schedule("more", "P1D"), "more").await;
    assert!(
        refused.contains("100 active schedules") && refused.contains("cancel one"),
        "{refused}"
    );
    assert!(
        create_error(&services, new_named_schedule("s3", "P1D"), "else")
            .await
            .contains("100 active schedules")
    );
    pass_time(&mut env, std::time::Duration::from_mins(2)).await;
    create_schedule(&services, new_named_schedule("more", "P1D")).await;
    assert!(
        load_schedule(&services, &owner(), "s7").await.is_err(),
        "the schedule had fired and ended"
    );
    assert_eq!(list_user_schedules(&services, &owner()).await.unwrap().len(), SCHEDULES_MAX);
    cancel_schedule(&services, &owner(), "s3").await.unwrap();
    assert!(
        create_error(&services, new_named_schedule("s4", "P1D"), "else")
            .await
            .contains("`s4` exists")
    );
}

#[tokio::test(start_paused = true)]
async fn schedule_is_visible_only_to_its_owner() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let services = env.new_worker(Arc::new(NoFailPoints));
    create_schedule(&services, new_named_schedule("s", "P1D")).await;
    let tenant = owner().tenant;
    // The ids have a common prefix, and one contains the other.
    for user in ["u-s", "v"] {
        let other = Owner { tenant: tenant.clone(), user: UserId::new(user) };
        assert!(matches!(
            load_schedule(&services, &other, "s").await,
            Err(CommandError::NotFound("schedule"))
        ));
        assert!(cancel_schedule(&services, &other, "s").await.is_err());
        assert!(list_user_schedules(&services, &other).await.unwrap().is_empty());
        let request = new_named_schedule("s", "P2D");
        accept_schedule(&services, &other, request, &idempotency("s"), None).await.unwrap();
    }
    assert_eq!(list_user_schedules(&services, &owner()).await.unwrap().len(), 1);
    let mut listed = Vec::new();
    let mut from = None;
    loop {
        let page = list_tenant_schedules(&services, &tenant, 1, from).await.unwrap();
        assert!(page.items.len() <= 1);
        listed.extend(page.items.into_iter().map(|schedule| schedule.user.to_string()));
        from = page.continuation;
        if from.is_none() {
            break;
        }
    }
    listed.sort();
    assert_eq!(listed, ["u", "u-s", "v"]);
}

fn uses_schedule_tool(results: usize, input: &str) -> Vec<Value> {
    let schedule = |id: &str, arguments: Value| json!({"type": "toolCall", "id": id, "name": "schedule", "arguments": arguments});
    match (input, results) {
        ("go", 0) => vec![
            schedule("c1", json!({"action": "create", "input": "tick", "at": "PT10M"})),
            schedule(
                "c2",
                json!({"action": "create", "input": "tock", "every": "0 9 * * *", "timeZone": "europe/berlin", "newConversation": true}),
            ),
            schedule("c3", json!({"action": "list"})),
            schedule("c4", json!({"action": "create", "at": "PT10M"})),
            schedule("c5", json!({"action": "create", "input": "x", "at": "2020-01-01T00:00:00Z"})),
            schedule("c6", json!({"action": "cancel", "id": "theirs"})),
        ],
        ("stop", 0) => vec![schedule("c7", json!({"action": "cancel", "id": "mine"}))],
        _ => vec![super::text(input)],
    }
}

/// Texts of all results, in order.
async fn result_texts(env: &TestEnv) -> Vec<String> {
    let entries = env.entries().await;
    let messages = entries.iter().filter_map(|entry| entry.body.message());
    let results = messages.filter_map(|message| match message {
        Message::ToolResult(result) => {
            Some(turnwheel_conversation::content::joined_text(&result.content))
        }
        _ => None,
    });
    results.collect()
}

#[tokio::test(start_paused = true)]
async fn schedule_tool_manages_only_its_own_conversation() {
    let mut env = TestEnv::with_script(1, uses_schedule_tool);
    let services = env.new_worker(Arc::new(NoFailPoints));
    create_schedule(&services, new_named_schedule("theirs", "P1D")).await;
    env.send_prompt(&services).await;
    while env.deliver().await {}
    let texts = result_texts(&env).await;
    let value = |position: usize| -> Value {
        RawJson::from_text(texts[position].clone()).unwrap().to_value()
    };
    assert_eq!(value(0)["schedule"]["input"], "tick", "{texts:#?}");
    assert_eq!(
        value(1)["schedule"]["next"],
        "2027-01-15T09:00:00+01:00[Europe/Berlin]".replace("01-15", "01-16")
    );
    assert_eq!(
        value(2)["schedules"].as_array().unwrap().len(),
        2,
        "other conversations' schedules are not listed"
    );
    assert!(value(2)["now"].as_str().unwrap().starts_with("2027-01-15T08:00"));
    assert!(texts[3].contains("give `input`"), "{}", texts[3]);
    assert!(texts[4].contains("`at` is past; it is now 2027"), "{}", texts[4]);
    assert!(texts[5].contains("no schedule `theirs`"), "{}", texts[5]);
    let all = list_user_schedules(&services, &owner()).await.unwrap();
    assert_eq!(all.len(), 3);
    let of_c = all.iter().find(|it| it.conversation.is_some()).unwrap();
    assert_eq!(of_c.created_in.as_ref().unwrap().as_str(), "c");
    pass_time(&mut env, std::time::Duration::from_mins(11)).await;
    assert_eq!(
        firing_times(&env, &TestEnv::key()).await.len(),
        1,
        "it fires into its own conversation"
    );
    let request = NewSchedule { id: Some("mine".to_owned()), ..new_schedule_in_c("P1D", "") };
    create_schedule(&services, request).await;
    env.queue_prompt(&services, &TestEnv::key(), "stop").await.unwrap();
    pass_time(&mut env, std::time::Duration::from_secs(5)).await;
    assert!(load_schedule(&services, &owner(), "mine").await.is_err());
    assert!(result_texts(&env).await.last().unwrap().contains("\"cancelled\":\"mine\""));
    assert!(env.head().await.unwrap().requests.is_empty(), "no approval was requested");
}

fn creates_schedule_once(results: usize, _input: &str) -> Vec<Value> {
    let arguments = json!({"action": "create", "input": "tick", "every": "P1D"});
    match results {
        0 => vec![
            json!({"type": "toolCall", "id": "c1", "name": "schedule", "arguments": arguments}),
        ],
        _ => vec![super::text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_schedule_call_after_crash_creates_one_schedule() {
    let mut env = TestEnv::with_script(1, creates_schedule_once);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let pause = Arc::new(super::PauseFailPoint::new("tool.after"));
    let victim = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(super::handle(&victim, &nudge)).await;
    let made = list_user_schedules(&services, &owner()).await.unwrap();
    env.run_until_idle().await;
    assert_eq!(list_user_schedules(&services, &owner()).await.unwrap(), made);
    assert_eq!((made.len(), result_texts(&env).await.len()), (1, 1));
    assert!(made[0].created_at <= services.clock.now());
}
