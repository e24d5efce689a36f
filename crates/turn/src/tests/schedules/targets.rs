//! Schedules whose conversation or agent is missing or busy, and the problems that they report.

use std::sync::Arc;
use std::time::Duration;

use super::{
    TestEnv, calls_patient_first, create_schedule, echoes_input, firing_times, new_env,
    new_schedule, new_schedule_in_c, owner, pass_time, read_schedule, schedule_nudge,
};
use crate::delivery::handle;
use turnwheel_agent_files::SharedCatalog;
use turnwheel_commands::delete::{TOMBSTONE_RETENTION, delete_conversation};
use turnwheel_commands::schedules::create::NewSchedule;
use turnwheel_conversation::head::State;
use turnwheel_conversation::schedule::ScheduleMode;
use turnwheel_extensions::{Extension, HookContext, HookError, InputDecision, PromptText};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::error::DeliveryOutcome;

#[tokio::test(start_paused = true)]
async fn schedule_without_conversation_creates_one_each_time() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let metadata = Some([("topic".to_owned(), "news".to_owned())].into());
    create_schedule(&services, NewSchedule { metadata, ..new_schedule("", "PT10M") }).await;
    pass_time(&mut env, Duration::from_mins(11)).await;
    let first = read_schedule(&services).await.last_firing.unwrap();
    pass_time(&mut env, Duration::from_mins(10)).await;
    let second = read_schedule(&services).await.last_firing.unwrap();
    assert_ne!(first.conversation_id, second.conversation_id);
    for fired in [first, second] {
        let key = owner().conversation_key(fired.conversation_id.as_str());
        let head = env.head_of(&key).await.unwrap();
        assert_eq!((head.prompts.len(), head.agent.as_str()), (1, "clerk"));
        assert_eq!(head.prompts[0].id, fired.prompt_id);
        assert_eq!(head.metadata["topic"], "news");
        assert_eq!(firing_times(&env, &key).await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn schedule_ends_with_problem_when_conversation_is_deleted() {
    let (mut env, services) = new_env(1, echoes_input).await;
    let made = create_schedule(&services, new_schedule_in_c("", "P3D")).await;
    delete_conversation(&services, &TestEnv::key()).await.unwrap();
    tokio::time::sleep(Duration::from_hours(3 * 24)).await;
    pass_time(&mut env, Duration::from_mins(2)).await;
    let over = read_schedule(&services).await;
    assert_eq!((over.due(), over.last_firing), (None, None));
    let problem = over.last_problem.unwrap();
    assert_eq!(problem.detail, "the conversation `c` is gone");
    assert!(problem.at >= made.next_at.unwrap());
}

#[tokio::test(start_paused = true)]
async fn schedule_ignores_new_conversation_with_same_id() {
    let (mut env, services) = new_env(1, echoes_input).await;
    create_schedule(&services, new_schedule_in_c("P30D", "")).await;
    delete_conversation(&services, &TestEnv::key()).await.unwrap();
    tokio::time::sleep(TOMBSTONE_RETENTION + Duration::from_mins(2)).await;
    env.run_sweep().await;
    while env.deliver().await {}
    env.send_prompt_to(&services, "c", "a fresh start").await;
    while env.deliver().await {}
    tokio::time::sleep(Duration::from_hours(23 * 24)).await;
    pass_time(&mut env, Duration::from_mins(2)).await;
    assert_eq!(env.head().await.unwrap().prompts.len(), 1);
    assert!(read_schedule(&services).await.last_problem.unwrap().detail.contains("is gone"));
}

#[tokio::test(start_paused = true)]
async fn schedule_waits_while_its_agent_is_missing() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let made = create_schedule(&services, new_schedule("PT1M", "")).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let mut without = env.new_worker(Arc::new(NoFailPoints));
    without.agents = SharedCatalog::default();
    assert_eq!(handle(&without, &schedule_nudge(&made)).await.unwrap(), DeliveryOutcome::Worked);
    let waits = read_schedule(&services).await;
    assert!(waits.last_problem.unwrap().detail.contains("there is no agent `clerk`"));
    assert_eq!((waits.next_at, waits.last_firing), (made.next_at, None), "the firing is still due");
    pass_time(&mut env, Duration::from_mins(7)).await;
    let fired = read_schedule(&services).await;
    assert_eq!(fired.due(), None);
    let key = owner().conversation_key(fired.last_firing.unwrap().conversation_id.as_str());
    assert_eq!(env.head_of(&key).await.unwrap().prompts.len(), 1);
}

/// Fails at each input, which it must check.
#[derive(Debug)]
struct FailingModerator;

#[async_trait::async_trait]
impl Extension for FailingModerator {
    fn name(&self) -> &'static str {
        "moderator"
    }

    fn is_input_required(&self) -> bool {
        true
    }

    async fn transform_input(
        &self,
        _cx: &HookContext,
        _input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        Err(HookError::new("it is down"))
    }
}

#[tokio::test(start_paused = true)]
async fn schedule_waits_while_a_required_input_hook_fails() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let made = create_schedule(&services, new_schedule("PT1M", "")).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let mut failing = env.new_worker(Arc::new(NoFailPoints));
    failing.extensions.push(Arc::new(FailingModerator));
    assert_eq!(handle(&failing, &schedule_nudge(&made)).await.unwrap(), DeliveryOutcome::Worked);
    let waits = read_schedule(&services).await;
    let problem = waits.last_problem.unwrap().detail;
    assert!(problem.contains("extension \"moderator\" failed in input: it is down"), "{problem}");
    assert_eq!((waits.next_at, waits.last_firing), (made.next_at, None), "the firing is still due");
    pass_time(&mut env, Duration::from_mins(7)).await;
    assert!(read_schedule(&services).await.last_firing.is_some());
}

#[tokio::test(start_paused = true)]
async fn waiting_conversation_queues_only_one_scheduled_prompt() {
    let (mut env, services) = new_env(1, calls_patient_first).await;
    assert_eq!(env.head().await.unwrap().state(), State::WaitingForApproval);
    create_schedule(&services, new_schedule_in_c("", "PT5M")).await;
    pass_time(&mut env, Duration::from_mins(42)).await;
    assert_eq!(env.head().await.unwrap().waiting_items, 1);
    let skipped = read_schedule(&services).await;
    assert!(skipped.last_problem.unwrap().detail.contains("has not begun yet"));
    assert!(skipped.next_at.unwrap() > services.clock.now(), "the schedule continues");
    env.decide_requests().await;
    pass_time(&mut env, Duration::from_mins(5)).await;
    assert_eq!(
        firing_times(&env, &TestEnv::key()).await.len(),
        2,
        "the queued prompt and the next one"
    );
}

#[tokio::test(start_paused = true)]
async fn schedule_in_prompt_mode_skips_busy_conversation() {
    let (mut env, services) = new_env(1, calls_patient_first).await;
    let mode = Some(ScheduleMode::Prompt);
    create_schedule(&services, NewSchedule { mode, ..new_schedule_in_c("", "PT5M") }).await;
    pass_time(&mut env, Duration::from_mins(6)).await;
    let skipped = read_schedule(&services).await;
    let detail = skipped.last_problem.unwrap().detail;
    assert!(detail.contains("waits for"), "{detail}");
    assert_eq!((skipped.last_firing, env.head().await.unwrap().waiting_items), (None, 0));
    env.decide_requests().await;
    pass_time(&mut env, Duration::from_mins(5)).await;
    assert_eq!(firing_times(&env, &TestEnv::key()).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn recreated_schedule_with_same_id_fires() {
    let (mut env, services) = new_env(1, echoes_input).await;
    let at = services.clock.now().plus(Duration::from_mins(5)).to_string();
    let first = create_schedule(&services, new_schedule_in_c(&at, "")).await;
    tokio::time::sleep(Duration::from_mins(4)).await;
    turnwheel_commands::schedules::cancel_schedule(&services, &owner(), "s").await.unwrap();
    let second = create_schedule(&services, new_schedule_in_c(&at, "")).await;
    assert_ne!(first.incarnation, second.incarnation);
    pass_time(&mut env, Duration::from_mins(2)).await;
    assert_eq!(firing_times(&env, &TestEnv::key()).await.len(), 1);
}
