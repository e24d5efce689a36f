//! Schedules whose conversation or agent is missing or busy, and the problems that they report.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Bench, answers, asks_first, bell, live, order, order_in_c, ordered, owner, schedule, stage,
    ticks,
};
use crate::agent::head::State;
use crate::agent::schedule::Mode;
use crate::agents::Agents;
use crate::turn::NoProbe;
use crate::turn::admission::delete::{TOMBSTONE, delete_conversation};
use crate::turn::delivery::{Handled, handle};
use crate::turn::schedules::create::NewSchedule;

#[tokio::test(start_paused = true)]
async fn a_schedule_of_its_own_begins_a_conversation_each_time() {
    let mut bench = Bench::with(1, answers);
    let world = bench.worker(Arc::new(NoProbe));
    let metadata = Some([("topic".to_owned(), "news".to_owned())].into());
    ordered(&world, NewSchedule { metadata, ..order("", "PT10M") }).await;
    live(&mut bench, Duration::from_mins(11)).await;
    let first = schedule(&world).await.last_fired.unwrap();
    live(&mut bench, Duration::from_mins(10)).await;
    let second = schedule(&world).await.last_fired.unwrap();
    assert_ne!(first.conversation_id, second.conversation_id);
    for fired in [first, second] {
        let key = owner().key(fired.conversation_id.as_str());
        let head = bench.head_of(&key).await.unwrap();
        assert_eq!((head.prompts.len(), head.agent.as_str()), (1, "clerk"));
        assert_eq!(head.prompts[0].id, fired.prompt_id);
        assert_eq!(head.metadata["topic"], "news");
        assert_eq!(ticks(&bench, &key).await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_schedule_of_a_deleted_conversation_ends_and_says_so() {
    let (mut bench, world) = stage(1, answers).await;
    let made = ordered(&world, order_in_c("", "P3D")).await;
    delete_conversation(&world, &Bench::key()).await.unwrap();
    tokio::time::sleep(Duration::from_hours(3 * 24)).await;
    live(&mut bench, Duration::from_mins(2)).await;
    let over = schedule(&world).await;
    assert_eq!((over.due(), over.last_fired), (None, None));
    let problem = over.last_problem.unwrap();
    assert_eq!(problem.detail, "the conversation `c` is gone");
    assert!(problem.at >= made.next_at.unwrap());
}

#[tokio::test(start_paused = true)]
async fn another_conversation_under_the_old_id_is_not_prompted() {
    let (mut bench, world) = stage(1, answers).await;
    ordered(&world, order_in_c("P30D", "")).await;
    delete_conversation(&world, &Bench::key()).await.unwrap();
    tokio::time::sleep(TOMBSTONE + Duration::from_mins(2)).await;
    bench.sweep().await;
    while bench.deliver().await {}
    bench.ask_in(&world, "c", "a fresh start").await;
    while bench.deliver().await {}
    tokio::time::sleep(Duration::from_hours(23 * 24)).await;
    live(&mut bench, Duration::from_mins(2)).await;
    assert_eq!(bench.head().await.unwrap().prompts.len(), 1);
    assert!(schedule(&world).await.last_problem.unwrap().detail.contains("is gone"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_missing_for_a_while_is_waited_for() {
    let mut bench = Bench::with(1, answers);
    let world = bench.worker(Arc::new(NoProbe));
    let made = ordered(&world, order("PT1M", "")).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let mut without = bench.worker(Arc::new(NoProbe));
    without.agents = Agents::default();
    assert_eq!(handle(&without, &bell(&made)).await.unwrap(), Handled::Worked);
    let waits = schedule(&world).await;
    assert!(waits.last_problem.unwrap().detail.contains("there is no agent `clerk`"));
    assert_eq!((waits.next_at, waits.last_fired), (made.next_at, None), "the firing is still due");
    live(&mut bench, Duration::from_mins(7)).await;
    let fired = schedule(&world).await;
    assert_eq!(fired.due(), None);
    let key = owner().key(fired.last_fired.unwrap().conversation_id.as_str());
    assert_eq!(bench.head_of(&key).await.unwrap().prompts.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_waits_takes_one_prompt_and_not_one_for_each_time() {
    let (mut bench, world) = stage(1, asks_first).await;
    assert_eq!(bench.head().await.unwrap().state(), State::WaitingForApproval);
    ordered(&world, order_in_c("", "PT5M")).await;
    live(&mut bench, Duration::from_mins(42)).await;
    assert_eq!(bench.head().await.unwrap().waiting, 1);
    let left_out = schedule(&world).await;
    assert!(left_out.last_problem.unwrap().detail.contains("has not begun yet"));
    assert!(left_out.next_at.unwrap() > world.clock.now(), "the schedule continues");
    bench.decide().await;
    live(&mut bench, Duration::from_mins(5)).await;
    assert_eq!(ticks(&bench, &Bench::key()).await.len(), 2, "the queued prompt and the next one");
}

#[tokio::test(start_paused = true)]
async fn a_firing_that_is_not_to_wait_is_left_out_where_the_conversation_is_busy() {
    let (mut bench, world) = stage(1, asks_first).await;
    let mode = Some(Mode::Prompt);
    ordered(&world, NewSchedule { mode, ..order_in_c("", "PT5M") }).await;
    live(&mut bench, Duration::from_mins(6)).await;
    let left_out = schedule(&world).await;
    assert!(left_out.last_problem.unwrap().detail.contains("already running"));
    assert_eq!((left_out.last_fired, bench.head().await.unwrap().waiting), (None, 0));
    bench.decide().await;
    live(&mut bench, Duration::from_mins(5)).await;
    assert_eq!(ticks(&bench, &Bench::key()).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_made_anew_under_its_old_id_fires_anew() {
    let (mut bench, world) = stage(1, answers).await;
    let at = world.clock.now().plus(Duration::from_mins(5)).to_string();
    let first = ordered(&world, order_in_c(&at, "")).await;
    tokio::time::sleep(Duration::from_mins(4)).await;
    crate::turn::schedules::cancel(&world, &owner(), "s").await.unwrap();
    let second = ordered(&world, order_in_c(&at, "")).await;
    assert_ne!((first.incarnation, world.ids.fresh()), (second.incarnation, String::new()));
    live(&mut bench, Duration::from_mins(2)).await;
    assert_eq!(ticks(&bench, &Bench::key()).await.len(), 1);
}
