//! Compactions that cannot help: they are not paid for, and their reason is shown.

use super::*;
use turnwheel_platform::clock::Clock as _;
use turnwheel_queries::prompts::read_prompt;
use turnwheel_test_support::captured_log::CapturedLog;

/// A conversation with a large fixed part, in a window of 24,000 tokens with the default reserve.
async fn env_with_fixed_part(tokens: usize) -> (TestEnv, Services, Arc<SmallWindowModel>) {
    let mut env = TestEnv::new(1);
    env.set_instructions(&"rule ".repeat(tokens));
    let model = Arc::new(SmallWindowModel::new(24_000));
    env.model_override = Some(model.clone());
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt_to(&services, "c", "begin").await;
    let compaction = json!({"enabled": true, "reserveTokens": 16_384, "keepRecentTokens": 200});
    let patch = json!({"settings": {"compaction": compaction, "activeTools": ["look"]}});
    let key = idempotency("settings");
    patch_conversation(&services, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
    handle_until_idle(&env, &services).await;
    (env, services, model)
}

#[tokio::test(start_paused = true)]
async fn short_prompts_beside_large_fixed_part_cost_two_summaries() {
    for tokens in [7_000, 7_500, 9_000, 13_000] {
        let (env, services, model) = env_with_fixed_part(tokens).await;
        for number in 0..16 {
            send_and_settle(&env, &services, &format!("{number}: {}", "word ".repeat(200))).await;
        }
        let head = env.head().await.unwrap();
        assert!(head.prompts.iter().all(|prompt| prompt.state == PromptState::Completed));
        assert!(model.summary_count() <= 2, "{tokens}: {}", model.summary_count());
        assert_eq!(*model.rejected.lock().unwrap(), 0, "{tokens}");
        let note = head.compaction_note.filter(|note| note.is_fixed_part);
        assert_eq!(note.is_some(), tokens > 7_616, "{tokens}");
        let Some(note) = note else { continue };
        assert!(
            note.text.contains("instructions (") && note.text.contains("`look`"),
            "{}",
            note.text
        );
        let (store, now) = (&*env.worker_store, env.clock.now());
        let why = explain_conversation(store, &TestEnv::key(), ServiceStatus::Remote, now).await;
        assert!(why.unwrap().why.contains("A summary cannot shorten them"));
    }
}

#[tokio::test(start_paused = true)]
async fn compaction_waits_for_growth_after_a_failure() {
    // The service accepts more than the record says: no request is refused.
    let mut model = SmallWindowModel::new(2 * WINDOW);
    model.declared_window = WINDOW;
    let (env, services, model) = env_with_full_window(model).await;
    *model.summary_failures.lock().unwrap() = vec!["no such deployment"; 9];
    handle_until_idle(&env, &services).await;
    // The prompt has grown the path by more than an eighth of the window since the first one.
    assert_eq!(model.summary_count(), 2);
    send_and_settle(&env, &services, "short").await;
    // A new worker remembers the failure.
    let mut env = env;
    let services = Services { entry_cache: Arc::default(), ..services };
    send_and_settle(&env, &services, "short again").await;
    assert_eq!(model.summary_count(), 2, "not again before it has grown");
    model.summary_failures.lock().unwrap().clear();
    send_and_settle(&env, &services, &"grown ".repeat(300)).await;
    assert_eq!(model.summary_count(), 3);
    assert_eq!(env.head().await.unwrap().compaction_note, None);
    env.run_until_idle().await;
}

#[tokio::test(start_paused = true)]
async fn refused_summary_does_not_end_the_conversation() {
    let mut model = SmallWindowModel::new(WINDOW);
    model.declared_window = 100_000;
    let (env, services, model) = new_env(model).await;
    handle_until_idle(&env, &services).await;
    let refusal = "HTTP 400: content_filter: The content management policy was triggered.";
    *model.summary_failures.lock().unwrap() = vec![refusal; 99];
    for number in 0..6 {
        send_and_settle(&env, &services, &format!("{number}: {}", "words ".repeat(200))).await;
    }
    let head = env.head().await.unwrap();
    assert!(head.prompts.iter().all(|prompt| prompt.state == PromptState::Completed));
    let stored = serde_json::to_string(&env.entries().await).unwrap();
    let left_out = stored.matches("the model service refused to summarise them").count();
    assert!(left_out >= 1 && model.summary_count() <= 2 * left_out, "{left_out}");
}

#[tokio::test(start_paused = true)]
async fn message_larger_than_window_names_size_and_remedy() {
    let mut model = SmallWindowModel::new(WINDOW);
    model.declared_window = 1_900;
    let text = "word ".repeat(3_000);
    let (env, services, model) = new_env_with_budgets(model, Arc::default(), &text).await;
    handle_until_idle(&env, &services).await;
    let error = env.entries().await.iter().find_map(|entry| match &entry.body {
        EntryBody::PromptEnd(end) => end.error.clone(),
        _ => None,
    });
    let error = error.unwrap().message.clone();
    let names_both =
        error.contains("the largest message has 3") && error.contains("as a file that tools read");
    assert!(names_both, "{error}");
    assert_eq!(model.summary_count(), 0, "nothing is paid for");
    // A note replaces the message in the next request, so that no summary is needed.
    send_and_settle(&env, &services, "short").await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed);
    assert_eq!(model.summary_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn later_message_larger_than_window_costs_no_summary() {
    let (env, services, model) = env_with_fixed_part(100).await;
    for text in ["one", "two"] {
        send_and_settle(&env, &services, text).await;
    }
    send_and_settle(&env, &services, &"word ".repeat(30_000)).await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Failed);
    assert_eq!(model.summary_count(), 0, "nothing is paid for");
    send_and_settle(&env, &services, "short").await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts.last().unwrap().state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn log_and_prompt_name_fixed_part_once() {
    let log = CapturedLog::start();
    let (env, services, _model) = env_with_fixed_part(9_000).await;
    for number in 0..4 {
        send_and_settle(&env, &services, &format!("{number}: {}", "word ".repeat(200))).await;
    }
    let text = log.text();
    let named = "fixed part of the model input exceeds the compaction threshold";
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(named)).collect();
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(line.contains("WARN") && line.contains("A summary cannot shorten them"), "{line}");
    let head = env.head().await.unwrap();
    let mut notes = Vec::new();
    for prompt in &head.prompts {
        notes.extend(read_prompt(&services, &head, &prompt.id).await.unwrap().notes);
    }
    assert_eq!(notes, [head.compaction_note.unwrap().text]);
}

/// The failure is still remembered: no summary is paid for before the path has grown.
#[tokio::test(start_paused = true)]
async fn fixed_part_is_noted_after_failed_compaction() {
    let mut model = SmallWindowModel::new(20 * WINDOW);
    model.declared_window = WINDOW;
    let (mut env, services, model) = env_with_full_window(model).await;
    *model.summary_failures.lock().unwrap() = vec!["no such deployment"; 99];
    handle_until_idle(&env, &services).await;
    let note = env.head().await.unwrap().compaction_note.unwrap();
    assert!(!note.is_fixed_part && note.text.contains("no such deployment"), "{}", note.text);
    let paid = model.summary_count();
    env.set_instructions(&"rule ".repeat(1_800));
    let services = env.new_worker(Arc::new(NoFailPoints));
    for input in ["1: short", "2: short"] {
        send_and_settle(&env, &services, input).await;
        let note = env.head().await.unwrap().compaction_note.unwrap();
        assert!(note.is_fixed_part && note.text.contains("A summary cannot shorten them"));
        assert_eq!(model.summary_count(), paid);
    }
    send_and_settle(&env, &services, &"grown ".repeat(300)).await;
    assert!(model.summary_count() > paid, "it has grown");
    let note = env.head().await.unwrap().compaction_note.unwrap();
    assert!(note.is_fixed_part, "another failure does not replace it: {}", note.text);
    // Short instructions: the failure is what remains, though the conversation is still too long.
    env.set_instructions("short");
    let services = env.new_worker(Arc::new(NoFailPoints));
    send_and_settle(&env, &services, "3: short").await;
    let note = env.head().await.unwrap().compaction_note.unwrap();
    assert!(!note.is_fixed_part && note.text.contains("no such deployment"), "{}", note.text);
}
