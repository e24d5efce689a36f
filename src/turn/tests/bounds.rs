//! Bounds (invariant 11): too large or too slow output ends in a clear error, and no prompt gets
//! stuck.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, call, text};
use crate::agent::content::joined_text;
use crate::agent::entry::PromptState;
use crate::agent::message::Message;
use crate::agent::step::CALLS_MAX;
use crate::turn::{Limits, NoProbe, views};

async fn results(bench: &Bench) -> Vec<String> {
    let entries = bench.entries().await;
    let texts = entries.iter().filter_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => Some(joined_text(&result.content)),
        _ => None,
    });
    texts.collect()
}

async fn runs(script: super::bench::Script) -> Bench {
    let mut bench = Bench::with(1, script);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    bench
}

fn as_many_as_there_may_be(results: usize, _said: &str) -> Vec<Value> {
    let name = |number| if number % 2 == 0 { "nope" } else { "look" };
    match results {
        0 => (0..CALLS_MAX).map(|number| call("c", name(number), number)).collect(),
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_calls_as_an_answer_may_have_each_get_their_result() {
    let bench = runs(as_many_as_there_may_be).await;
    let results = results(&bench).await;
    assert_eq!(results.len(), CALLS_MAX);
    assert!(results.iter().step_by(2).all(|text| text.contains("not found")), "{results:?}");
    assert!(results.iter().skip(1).step_by(2).all(|text| text == "look done"), "{results:?}");
    assert_eq!(bench.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

fn refused_and_refused(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => (0..CALLS_MAX).map(|number| call("c", "nope", number)).collect(),
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_calls_that_are_all_refused_fits_its_commits() {
    let bench = runs(refused_and_refused).await;
    assert_eq!(results(&bench).await.len(), CALLS_MAX);
    assert_eq!(bench.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

fn makes_too_much(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c", "make", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_made_more_than_a_commit_holds_is_not_said_to_have_failed() {
    let bench = runs(makes_too_much).await;
    let results = results(&bench).await;
    assert!(
        results[0].starts_with("make done") && results[0].contains("were returned"),
        "{results:?}"
    );
    assert_eq!(bench.head().await.unwrap().prompts[0].state, PromptState::Completed);
    assert!(bench.done.lock().unwrap().values().eq([&1]));
}

fn says_too_much(_results: usize, _said: &str) -> Vec<Value> {
    vec![text(&"x".repeat(1_600_000))]
}

#[tokio::test(start_paused = true)]
async fn an_answer_larger_than_a_commit_fails_with_the_reason_and_is_asked_for_once() {
    let bench = runs(says_too_much).await;
    let head = bench.head().await.unwrap();
    assert_eq!(head.prompts[0].state, PromptState::Failed);
    assert_eq!(*bench.model.answers.lock().unwrap(), 1);
    let world = { bench }.worker(Arc::new(NoProbe));
    let view = views::prompts::prompt(&world, &head, &head.prompts[0].id).await.unwrap();
    let message = view.error.unwrap().message;
    assert!(message.contains("larger than one commit can hold"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_tool_whose_time_out_never_fits_a_turn_is_refused_and_not_put_off_for_ever() {
    let mut bench =
        Bench::with(
            2,
            |results, _| {
                if results == 0 { vec![call("c", "pay", 0)] } else { vec![text("done")] }
            },
        );
    let mut world = bench.worker(Arc::new(NoProbe));
    world.limits = Limits { turn: Duration::from_secs(40), ..Limits::default() };
    bench.ask(&world).await;
    for _ in 0..5 {
        crate::turn::delivery::handle(&world, &Bench::nudge()).await.unwrap();
    }
    let results = results(&bench).await;
    assert!(results[0].contains("longer than a turn"), "{results:?}");
    assert_eq!(bench.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_no_longer_fits_this_turn_starts_in_the_next() {
    let mut bench =
        Bench::with(
            3,
            |results, _| {
                if results == 0 { vec![call("c", "pay", 0)] } else { vec![text("done")] }
            },
        );
    // 300 s of a turn minus 260 s for the response: 30 s of time-out and 20 s of margin do not fit.
    *bench.model.span.lock().unwrap() = Duration::from_secs(260);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.deliver().await;
    assert!(bench.done.lock().unwrap().is_empty(), "the call must not start in this turn");
    bench.deliver().await;
    assert_eq!(bench.done.lock().unwrap().len(), 1, "the call starts in the next turn");
    bench.run().await;
    assert_eq!(*bench.model.answers.lock().unwrap(), 2, "no response is billed twice");
}

#[tokio::test(start_paused = true)]
async fn a_model_has_its_time_after_tools_that_took_long() {
    let mut bench = Bench::with(4, |results, _| {
        if results == 0 {
            vec![call("c1", "brew", 1), call("c2", "brew", 2)]
        } else {
            vec![text("done")]
        }
    });
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.deliver().await;
    // The second `brew` starts in the next turn, of which 100 s remain when it is done.
    *bench.model.span.lock().unwrap() = Duration::from_mins(2);
    bench.run().await;
    assert_eq!(bench.head().await.unwrap().prompts[0].state, PromptState::Completed);
    assert_eq!(*bench.model.answers.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_result_of_an_agent_with_a_schema_is_its_last_text_as_json() {
    let script: super::bench::Script =
        |_, _| vec![text("thinking aloud"), text(r#"{"total": 12.50}"#)];
    let mut bench = Bench::with(1, script);
    bench.set_response_schema(&json!({"type": "object"}));
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    let head = bench.head().await.unwrap();
    let world = { bench }.worker(Arc::new(NoProbe));
    let view = views::prompts::prompt(&world, &head, &head.prompts[0].id).await.unwrap();
    let view = serde_json::to_value(&view).unwrap();
    assert_eq!(view["result"], json!({"total": 12.5}));
    let (listed, _) = views::prompts::prompts(&world, &head, 0, 20).await.unwrap();
    assert_eq!(listed[0].result.as_ref().unwrap().text(), r#"{"total": 12.50}"#);
}
