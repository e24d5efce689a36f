//! Kills, faults, other workers and deletions while messages go to the profile.

use std::sync::Arc;
use std::time::Duration;

use super::super::budgets::pass_minutes;
use super::super::test_env::{
    PauseFailPoint, TestEnv, idempotency, owner, rejecting_sender, usual_store_faults,
};
use super::{accept, calls, document, learns, profile_env, who, write};
use crate::delivery::handle;
use turnwheel_commands::delete_user::delete_user_data;
use turnwheel_commands::profile::clear_profile;
use turnwheel_commands::prompt::{Mode, PromptRequest, accept_prompt};
use turnwheel_conversation::inbox::WhenIdle;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::user_documents::user_partition;
use turnwheel_storage::store::memory::StoreFaults;
use turnwheel_storage::store::{DocumentKind, Freshness, Selection};

/// Kills the worker of the next message of `c1` at a fail point.
pub(super) async fn kill_at(env: &mut TestEnv, fail_point: &'static str, said: &str) {
    accept(env, "c1", said).await;
    let pause = Arc::new(PauseFailPoint::new(fail_point));
    let victim = env.new_worker(pause.clone());
    let nudge = Nudge::for_conversation(owner().conversation_key("c1"), None);
    pause.kill(handle(&victim, &nudge)).await;
}

/// Runs `during` while the worker of the next message of `c1` waits at a fail point.
async fn interrupt_at<T>(
    env: &mut TestEnv,
    (fail_point, said): (&'static str, &str),
    during: impl AsyncFnOnce(&mut TestEnv) -> T,
) -> T {
    accept(env, "c1", said).await;
    let pause = Arc::new(PauseFailPoint::new(fail_point));
    let services = env.new_worker(pause.clone());
    let nudge = Nudge::for_conversation(owner().conversation_key("c1"), None);
    let delivery = async { handle(&services, &nudge).await.unwrap() };
    let meanwhile = async {
        pause.reached.notified().await;
        env.queue.drop_queue(turnwheel_storage::queue::TURNS);
        let result = during(env).await;
        pause.resume.notify_one();
        result
    };
    tokio::join!(delivery, meanwhile).1
}

#[tokio::test(start_paused = true)]
async fn killed_worker_loses_no_message() {
    for fail_point in [
        "response.after",
        "release.before",
        "release.after",
        "profile.before",
        "user.write",
        "user.written",
        "profile.posted",
        "profile.responded",
        "profile.recorded",
        "profile.after",
    ] {
        let mut env = profile_env(learns);
        write(&mut env, 1..=4).await;
        kill_at(&mut env, fail_point, "message 5").await;
        pass_minutes(&mut env, 6).await;
        let learnt = document(&mut env).await;
        assert_eq!((who(&learnt), learnt.unseen.len()), (Some("a pilot"), 0), "{fail_point}");
        let learning_calls = calls(&env) - 5;
        let is_repeated = fail_point == "profile.responded";
        assert_eq!(learning_calls, 1 + u32::from(is_repeated), "{fail_point}");
        for id in ["c1", "c2"] {
            let head = env.head_of(&owner().conversation_key(id)).await.unwrap();
            assert_eq!((head.profile_messages, head.lease), (None, None), "{fail_point}");
            assert_eq!(head.due, head.metering.settle_at, "{fail_point}");
        }
        // A repeated post has not counted a message twice.
        write(&mut env, 6..=9).await;
        assert_eq!(document(&mut env).await.unseen.len(), 4, "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_survive_faults_and_count_once() {
    for seed in 0..20 {
        let mut env = TestEnv::with_script(seed, learns);
        env.set_profile(false);
        env.conversations = ["c1", "c2"].map(|id| owner().conversation_key(id)).to_vec();
        for number in 1..=4 {
            accept(&mut env, &format!("c{}", 2 - number % 2), &format!("message {number}")).await;
            env.store.set_faults(usual_store_faults());
            env.crash_percent = 4;
            if number > 1 {
                env.run_until_idle().await;
            }
            env.store.set_faults(StoreFaults::default());
            env.crash_percent = 0;
        }
        pass_minutes(&mut env, 8).await;
        let unseen = document(&mut env).await.unseen;
        let texts: Vec<&str> = unseen.iter().map(|message| message.text.as_str()).collect();
        assert_eq!(texts.len(), 4, "seed {seed}: {texts:?}");
        for number in 1..=4 {
            assert!(texts.contains(&format!("message {number}").as_str()), "seed {seed}");
        }
        for key in &env.conversations {
            assert_eq!(env.head_of(key).await.unwrap().profile_messages, None, "seed {seed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_workers_at_once_learn_once() {
    for fail_point in ["profile.posted", "profile.responded"] {
        let mut env = profile_env(learns);
        write(&mut env, 1..=4).await;
        interrupt_at(&mut env, (fail_point, "message 5"), async |env| {
            // The user writes on in two conversations.
            write(env, 6..=7).await;
            let claimed = document(env).await;
            assert_eq!((who(&claimed), claimed.unseen.len()), (None, 7));
            assert!(claimed.learning.is_some());
        })
        .await;
        let learnt = document(&mut env).await;
        assert_eq!((who(&learnt), learnt.unseen.len()), (Some("a pilot"), 2), "{fail_point}");
        assert_eq!(calls(&env), 8, "{fail_point}");
        let head = env.head_of(&owner().conversation_key("c1")).await.unwrap();
        assert_eq!((head.profile_messages, head.usage.total_tokens), (None, 50));
    }
}

#[tokio::test(start_paused = true)]
async fn result_of_an_expired_claim_is_dropped() {
    let mut env = profile_env(learns);
    write(&mut env, 1..=4).await;
    interrupt_at(&mut env, ("profile.responded", "message 5"), async |env| {
        tokio::time::sleep(Duration::from_mins(2)).await;
        write(env, 6..=6).await;
        assert_eq!(document(env).await.unseen.len(), 0, "the second worker has learnt");
        write(env, 7..=8).await;
    })
    .await;
    let learnt = document(&mut env).await;
    assert_eq!((learnt.unseen.len(), learnt.attempts), (2, 0));
    assert_eq!(calls(&env), 10);
}

#[tokio::test(start_paused = true)]
async fn deleted_user_leaves_no_profile() {
    for fail_point in
        ["profile.before", "user.write", "user.written", "profile.posted", "profile.responded"]
    {
        for earlier in [0, 4] {
            if earlier == 0 && fail_point == "profile.responded" {
                continue;
            }
            let mut env = profile_env(learns);
            if earlier > 0 {
                write(&mut env, 1..=earlier).await;
            }
            interrupt_at(&mut env, (fail_point, "message 5"), async |env| {
                let services = env.new_worker(Arc::new(NoFailPoints));
                let deletion = delete_user_data(&services, &owner()).await.unwrap();
                assert!(deletion.is_complete);
            })
            .await;
            let partition = user_partition(&owner().tenant, &owner().user);
            let all = Selection::all(DocumentKind::Scope);
            let left = env.worker_store.select(&partition, &all, Freshness::Latest).await;
            assert_eq!(left.unwrap().len(), 0, "{fail_point} after {earlier} messages");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_profile_is_not_written_back() {
    for fail_point in ["profile.posted", "profile.responded"] {
        let mut env = profile_env(learns);
        write(&mut env, 1..=4).await;
        interrupt_at(&mut env, (fail_point, "message 5"), async |env| {
            let services = env.new_worker(Arc::new(NoFailPoints));
            clear_profile(&services, &owner(), &|_| true).await.unwrap();
            assert!(document(env).await.is_blank(), "{fail_point}");
            // The next message makes another document.
            write(env, 6..=6).await;
        })
        .await;
        let left = document(&mut env).await;
        assert_eq!((who(&left), left.unseen.len()), (None, 1), "{fail_point}");
        assert_eq!(calls(&env), 7, "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_accepted_before_profile_write_stays_due() {
    for fail_point in ["profile.before", "profile.recorded"] {
        let mut env = profile_env(learns);
        interrupt_at(&mut env, (fail_point, "message 1"), async |env| {
            accept(env, "c1", "message 2").await;
            // Its nudge is lost.
            env.queue.drop_queue(turnwheel_storage::queue::TURNS);
        })
        .await;
        let key = owner().conversation_key("c1");
        let head = env.head_of(&key).await.unwrap();
        assert_eq!((head.prompts.len(), head.profile_messages), (1, None), "{fail_point}");
        pass_minutes(&mut env, 2).await;
        let head = env.head_of(&key).await.unwrap();
        assert_eq!((head.prompts.len(), head.prompt), (2, None), "{fail_point}");
    }
}

#[tokio::test(start_paused = true)]
async fn next_prompt_does_not_wait_for_the_profile() {
    for fail_point in ["profile.before", "profile.posted", "profile.responded", "profile.recorded"]
    {
        let mut env = profile_env(learns);
        write(&mut env, 1..=4).await;
        interrupt_at(&mut env, (fail_point, "message 5"), async |env| {
            accept(env, "c1", "message 6").await;
            while env.deliver().await {}
            let head = env.head_of(&owner().conversation_key("c1")).await.unwrap();
            assert_eq!((head.prompts.len(), head.prompt), (4, None), "{fail_point}");
        })
        .await;
        pass_minutes(&mut env, 5).await;
        let head = env.head_of(&owner().conversation_key("c1")).await.unwrap();
        assert_eq!(head.profile_messages, None, "{fail_point}");
        let learnt = document(&mut env).await;
        assert_eq!(who(&learnt), Some("a pilot"), "{fail_point}");
    }
}

/// Accepts an input for `c1` that waits for the next prompt.
async fn accept_held(env: &mut TestEnv) {
    let services = env.new_worker(Arc::new(NoFailPoints));
    let key = owner().conversation_key("c1");
    let request = PromptRequest {
        input: Some("later".into()),
        mode: Some(Mode::FollowUp),
        when_idle: Some(WhenIdle::Hold),
        ..PromptRequest::default()
    };
    let own = idempotency("later");
    Box::pin(accept_prompt(&services, &key, request, &own, &rejecting_sender())).await.unwrap();
}

/// The head counts the input, which is no pending work.
#[tokio::test(start_paused = true)]
async fn held_input_before_profile_write_costs_one_delivery() {
    let mut deliveries = Vec::new();
    for is_held in [false, true] {
        let mut env = profile_env(learns);
        interrupt_at(&mut env, ("profile.recorded", "message 1"), async |env| {
            if is_held {
                accept_held(env).await;
            }
        })
        .await;
        let mut count = 0;
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_mins(1)).await;
            env.run_sweep().await;
            while env.deliver().await {
                count += 1;
            }
        }
        deliveries.push(count);
        let head = env.head_of(&owner().conversation_key("c1")).await.unwrap();
        assert_eq!((head.profile_messages, head.due), (None, head.metering.settle_at));
    }
    assert_eq!(deliveries[1], deliveries[0] + 1);
}
