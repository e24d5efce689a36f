//! Writes of skills of a user: kills, lost responses and concurrent writes leave one skill each.

use std::sync::Arc;

use super::parallel_calls::result_texts;
use super::test_env::{PauseFailPoint, TestEnv, kill_at, owner};
use super::user_skills::{creates_and_loads, handle_nudges, names, put};
use turnwheel_commands::knowledge::Knowledge;
use turnwheel_commands::user_skills::{SkillChange, SkillTarget, put_skill};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::{ConversationKey, EffectId};
use turnwheel_record::contract::CommandError;
use turnwheel_storage::store::memory::StoreFaults;
use turnwheel_tools::user_skills::{NewSkill, UserSkillStore};

fn new_skill<'a>(effect: &'a EffectId, name: &'a str) -> NewSkill<'a> {
    NewSkill { effect, name, description: "d", instructions: "i", tools: &[] }
}

fn effect(key: &ConversationKey, number: usize) -> EffectId {
    EffectId::from_call(&key.conversation_id, "0a1b2c3d", 9, number)
}

#[tokio::test(start_paused = true)]
async fn kill_around_create_leaves_one_skill() {
    for fail_point in ["tool.before", "user.write", "user.written", "result.before"] {
        let mut env = TestEnv::with_script(33, creates_and_loads);
        env.set_user_skills();
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        handle_nudges(&env, &services).await;
        env.decide_all("approve").await;
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        kill_at(victim, &pause).await;
        env.run_until_idle().await;
        assert_eq!(names(&services, &owner()).await, ["closing"], "{fail_point}");
        let results = result_texts(&env).await;
        assert_eq!(results[0], "Created the skill `closing`.", "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_response_of_the_write_leaves_one_skill() {
    for faults in [
        StoreFaults { unavailable_after: 0.5, ..Default::default() },
        StoreFaults { conflict_after: 0.5, ..Default::default() },
    ] {
        let mut env = TestEnv::with_script(7, creates_and_loads);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.store.set_faults(faults);
        let key = TestEnv::key();
        for number in 0..20 {
            let (effect, name) = (effect(&key, number), format!("s{number}"));
            while let Err(reason) =
                UserSkillStore::create(&Knowledge::new(&services), &key, new_skill(&effect, &name))
                    .await
            {
                assert!(!reason.contains("The user has a skill"), "{reason}");
            }
        }
        env.store.set_faults(StoreFaults::default());
        assert_eq!(names(&services, &owner()).await.len(), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_writes_of_two_conversations_keep_both_skills() {
    let mut env = TestEnv::with_script(1, creates_and_loads);
    let pause = Arc::new(PauseFailPoint::new("user.write"));
    let (slow, quick) = (env.new_worker(pause.clone()), env.new_worker(Arc::new(NoFailPoints)));
    let (key, other) = (TestEnv::key(), owner().conversation_key("other"));
    let (of_slow, of_quick) = (effect(&key, 0), effect(&other, 0));
    let (slow_skills, quick_skills) = (Knowledge::new(&slow), Knowledge::new(&quick));
    let (slow_result, ()) = tokio::join!(
        UserSkillStore::create(&slow_skills, &key, new_skill(&of_slow, "slow")),
        async {
            pause.reached.notified().await;
            let created =
                UserSkillStore::create(&quick_skills, &other, new_skill(&of_quick, "quick"));
            created.await.unwrap();
            pause.resume.notify_one();
        }
    );
    slow_result.unwrap();
    assert_eq!(names(&quick, &owner()).await, ["quick", "slow"]);
    // The second skill of a name is an error, and the first stays.
    let repeated =
        UserSkillStore::create(&Knowledge::new(&quick), &other, new_skill(&of_quick, "quick"))
            .await;
    assert_eq!(repeated, Ok(()), "the same call");
    let second =
        UserSkillStore::create(&Knowledge::new(&quick), &other, new_skill(&of_slow, "quick")).await;
    assert!(second.unwrap_err().contains("The user has a skill `quick`"));
}

#[tokio::test(start_paused = true)]
async fn bounds_of_skills_are_errors_that_keep_everything() {
    let mut env = TestEnv::with_script(1, creates_and_loads);
    let services = env.new_worker(Arc::new(NoFailPoints));
    for number in 0..200 {
        put(&services, &format!("s{number}"), &[]).await;
    }
    let owner = owner();
    let change = |description: &str| SkillChange {
        description: description.to_owned(),
        instructions: "i".to_owned(),
        tools: Vec::new(),
    };
    let target = SkillTarget { owner: &owner, name: "one-more", is_wanted: &|_| true };
    let refused = put_skill(&services, &target, change("d")).await;
    assert!(matches!(refused, Err(CommandError::TooLarge(_))), "{refused:?}");
    assert_eq!(names(&services, &owner).await.len(), 200);
    let long = "d".repeat(1_024);
    let mut refused = None;
    for number in 0..200 {
        let name = format!("s{number}");
        let target = SkillTarget { name: &name, ..target };
        refused = put_skill(&services, &target, change(&long)).await.err();
        if refused.is_some() {
            break;
        }
    }
    let Some(CommandError::TooLarge(reason)) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("at most 65536 are allowed"), "{reason}");
    assert_eq!(names(&services, &owner).await.len(), 200);
}
