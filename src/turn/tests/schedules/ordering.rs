//! Creating schedules: keys, bounds, owners, and the agent's schedule tool.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Bench, answers, idempotency, live, order, order_in_c, ordered, owner, ticks};
use crate::agent::message::Message;
use crate::agent::raw::RawJson;
use crate::ids::UserId;
use crate::store::memory::Faults;
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::admission::{Owner, Refusal};
use crate::turn::schedules::create::{NewSchedule, create};
use crate::turn::schedules::{SCHEDULES_MAX, cancel, of_tenant, of_user, read};
use crate::turn::{NoProbe, World};

fn named(id: &str, at: &str) -> NewSchedule {
    NewSchedule { id: Some(id.to_owned()), ..order(at, "") }
}

async fn detail(world: &World, request: NewSchedule, key: &str) -> String {
    create(world, &owner(), request, &idempotency(key), None).await.unwrap_err().to_string()
}

#[tokio::test(start_paused = true)]
async fn the_same_key_is_the_same_schedule_and_another_body_is_refused() {
    let mut bench = Bench::with(1, answers);
    let world = bench.worker(Arc::new(NoProbe));
    let request = NewSchedule { id: None, ..order("", "P1D") };
    let first = create(&world, &owner(), request.clone(), &idempotency("k"), None).await.unwrap();
    let again = create(&world, &owner(), request.clone(), &idempotency("k"), None).await.unwrap();
    assert_eq!((first.body.as_ref(), first.status), (again.body.as_ref(), 201));
    assert!(again.is_replayed && !first.is_replayed);
    assert_eq!(of_user(&world, &owner()).await.unwrap().len(), 1);
    let other = Idempotency { body_hash: "other".to_owned(), ..idempotency("k") };
    let reused = create(&world, &owner(), request.clone(), &other, None).await;
    assert!(matches!(reused, Err(Refusal::KeyReused)), "{reused:?}");
    // The key is valid as long as the schedule exists.
    let id = first.body.unwrap().string_member("id").unwrap();
    cancel(&world, &owner(), &id).await.unwrap();
    assert!(create(&world, &owner(), request, &other, None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_answer_was_lost_made_one_schedule() {
    for fault in 0..2 {
        let mut bench = Bench::with(3, answers);
        let world = bench.worker(Arc::new(NoProbe));
        let chance = 0.6;
        bench.store.set_faults(match fault {
            0 => Faults { unavailable_after: chance, ..Default::default() },
            _ => Faults { conflict_after: chance, ..Default::default() },
        });
        let request = named("s", "P1D");
        while create(&world, &owner(), request.clone(), &idempotency("k"), None).await.is_err() {}
        bench.store.set_faults(Faults::default());
        assert_eq!(of_user(&world, &owner()).await.unwrap().len(), 1);
        bench.store.set_faults(Faults {
            unavailable_after: chance,
            conflict_after: chance / 2.0,
            ..Default::default()
        });
        while !matches!(
            cancel(&world, &owner(), "s").await,
            Ok(()) | Err(Refusal::NotFound("schedule"))
        ) {}
        bench.store.set_faults(Faults::default());
        assert!(
            bench.store.documents(&crate::turn::schedules::partition(&owner().tenant)).is_empty()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn mistakes_are_told_all_at_once_and_keep_nothing() {
    let mut bench = Bench::with(1, answers);
    let world = bench.worker(Arc::new(NoProbe));
    let request = NewSchedule {
        id: Some("a/b".to_owned()),
        agent: Some("nobody".to_owned()),
        every: Some("never".to_owned()),
        time_zone: Some("Nowhere".to_owned()),
        input: Some(crate::agent::content::Content::Text(String::new())),
        ..NewSchedule::default()
    };
    let told = create(&world, &owner(), request, &idempotency("k"), None).await.unwrap_err();
    let Refusal::Invalid(faults) = told else { panic!("{told}") };
    let pointers: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
    assert_eq!(pointers, ["/id", "/input", "/timeZone", "/every", "/agent"]);
    for (request, told) in [
        (
            named("s", "2020-01-01T00:00:00Z"),
            "`at` is past; it is now 2027-01-15T08:00:00+00:00[UTC]",
        ),
        (order("", "0 0 30 2 *"), "`every` never fires"),
        (
            NewSchedule { until: Some("PT1M".to_owned()), ..order("", "P1D") },
            "nothing fires up to `until`",
        ),
        (order_in_c("PT1M", ""), "there is no conversation `c`: create it first, or leave it out"),
        (
            NewSchedule {
                input: Some(crate::agent::content::Content::Text("x".repeat(33 * 1024))),
                ..order("PT1M", "")
            },
            "32 KB",
        ),
    ] {
        let detail = detail(&world, request, "k").await;
        assert!(detail.contains(told), "{detail}");
    }
    assert!(bench.store.documents(&crate::turn::schedules::partition(&owner().tenant)).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hundred_wait_at_most_and_ended_ones_make_room() {
    let mut bench = Bench::with(1, answers);
    let world = bench.worker(Arc::new(NoProbe));
    for number in 0..SCHEDULES_MAX {
        let at = if number == 7 { "PT1M" } else { "P9D" };
        ordered(&world, named(&format!("s{number}"), at)).await;
    }
    let refused = detail(&world, named("more", "P1D"), "more").await;
    assert!(refused.contains("100 active schedules") && refused.contains("cancel one"), "{refused}");
    assert!(detail(&world, named("s3", "P1D"), "else").await.contains("100 active schedules"));
    live(&mut bench, std::time::Duration::from_mins(2)).await;
    ordered(&world, named("more", "P1D")).await;
    assert!(read(&world, &owner(), "s7").await.is_err(), "the schedule had fired and ended");
    assert_eq!(of_user(&world, &owner()).await.unwrap().len(), SCHEDULES_MAX);
    cancel(&world, &owner(), "s3").await.unwrap();
    assert!(detail(&world, named("s4", "P1D"), "else").await.contains("`s4` exists"));
}

#[tokio::test(start_paused = true)]
async fn a_schedule_is_there_for_its_owner_alone() {
    let mut bench = Bench::with(1, answers);
    let world = bench.worker(Arc::new(NoProbe));
    ordered(&world, named("s", "P1D")).await;
    let tenant = owner().tenant;
    // The ids have a common prefix, and one contains the other.
    for user in ["u-s", "v"] {
        let other = Owner { tenant: tenant.clone(), user: UserId::new(user) };
        assert!(matches!(read(&world, &other, "s").await, Err(Refusal::NotFound("schedule"))));
        assert!(cancel(&world, &other, "s").await.is_err());
        assert!(of_user(&world, &other).await.unwrap().is_empty());
        let request = named("s", "P2D");
        create(&world, &other, request, &idempotency("s"), None).await.unwrap();
    }
    assert_eq!(of_user(&world, &owner()).await.unwrap().len(), 1);
    let mut listed = Vec::new();
    let mut from = None;
    loop {
        let page = of_tenant(&world, &tenant, 1, from).await.unwrap();
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

fn orders(results: usize, said: &str) -> Vec<Value> {
    let schedule = |id: &str, arguments: Value| json!({"type": "toolCall", "id": id, "name": "schedule", "arguments": arguments});
    match (said, results) {
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
        _ => vec![super::text(said)],
    }
}

/// Texts of all results, in order.
async fn results(bench: &Bench) -> Vec<String> {
    let entries = bench.entries().await;
    let messages = entries.iter().filter_map(|entry| entry.body.message());
    let results = messages.filter_map(|message| match message {
        Message::ToolResult(result) => Some(crate::agent::content::joined_text(&result.content)),
        _ => None,
    });
    results.collect()
}

#[tokio::test(start_paused = true)]
async fn an_agent_schedules_lists_and_cancels_what_is_of_its_conversation() {
    let mut bench = Bench::with(1, orders);
    let world = bench.worker(Arc::new(NoProbe));
    ordered(&world, named("theirs", "P1D")).await;
    bench.ask(&world).await;
    while bench.deliver().await {}
    let told = results(&bench).await;
    let value =
        |position: usize| -> Value { RawJson::from_text(told[position].clone()).unwrap().value() };
    assert_eq!(value(0)["schedule"]["input"], "tick", "{told:#?}");
    assert_eq!(
        value(1)["schedule"]["next"],
        "2027-01-15T09:00:00+01:00[Europe/Berlin]".replace("01-15", "01-16")
    );
    assert_eq!(value(2)["schedules"].as_array().unwrap().len(), 2, "other conversations' schedules are not listed");
    assert!(value(2)["now"].as_str().unwrap().starts_with("2027-01-15T08:00"));
    assert!(told[3].contains("give `input`"), "{}", told[3]);
    assert!(told[4].contains("`at` is past; it is now 2027"), "{}", told[4]);
    assert!(told[5].contains("no schedule `theirs`"), "{}", told[5]);
    let all = of_user(&world, &owner()).await.unwrap();
    assert_eq!(all.len(), 3);
    let of_c = all.iter().find(|it| it.conversation.is_some()).unwrap();
    assert_eq!(of_c.made_in.as_ref().unwrap().as_str(), "c");
    live(&mut bench, std::time::Duration::from_mins(11)).await;
    assert_eq!(ticks(&bench, &Bench::key()).await.len(), 1, "it fires into its own conversation");
    let request = NewSchedule { id: Some("mine".to_owned()), ..order_in_c("P1D", "") };
    ordered(&world, request).await;
    bench.queue_up(&world, &Bench::key(), "stop").await.unwrap();
    live(&mut bench, std::time::Duration::from_secs(5)).await;
    assert!(read(&world, &owner(), "mine").await.is_err());
    assert!(results(&bench).await.last().unwrap().contains("\"cancelled\":\"mine\""));
    assert!(bench.head().await.unwrap().requests.is_empty(), "no approval was requested");
}

fn orders_once(results: usize, _said: &str) -> Vec<Value> {
    let arguments = json!({"action": "create", "input": "tick", "every": "P1D"});
    match results {
        0 => vec![
            json!({"type": "toolCall", "id": "c1", "name": "schedule", "arguments": arguments}),
        ],
        _ => vec![super::text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_runs_again_after_a_crash_makes_one_schedule() {
    let mut bench = Bench::with(1, orders_once);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let pause = Arc::new(super::PauseProbe::new("tool.after"));
    let doomed = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    tokio::select! {
        _ = super::handle(&doomed, &nudge) => panic!("the worker was not killed"),
        () = pause.reached.notified() => {}
    }
    let made = of_user(&world, &owner()).await.unwrap();
    bench.run().await;
    assert_eq!(of_user(&world, &owner()).await.unwrap(), made);
    assert_eq!((made.len(), results(&bench).await.len()), (1, 1));
    assert!(made[0].created_at <= world.clock.now());
}
