//! Requests with one idempotency key at the same moment: their hooks run once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::test_env::{TestEnv, idempotency};
use turnwheel_commands::extension_command::{CommandRequest, NamedCommand, run_extension_command};
use turnwheel_extensions::{
    CommandCall, CommandOutcome, CommandSpec, Extension, HookContext, HookError,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;

/// Counts the runs of its command, which takes 0.3 s.
#[derive(Debug, Default)]
struct SlowCommand {
    runs: AtomicU32,
}

#[async_trait]
impl Extension for SlowCommand {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn commands(&self) -> Vec<CommandSpec> {
        vec![CommandSpec::new("count", "Counts.")]
    }

    async fn run_command(
        &self,
        _cx: &HookContext,
        _call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(CommandOutcome { output: Some(format!("run {run}")) })
    }
}

/// Two processes over one store whose extension has the command.
async fn two_processes() -> (TestEnv, [Services; 2], Arc<SlowCommand>) {
    let mut env = TestEnv::new(1);
    let first = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&first).await;
    env.run_until_idle().await;
    let slow = Arc::new(SlowCommand::default());
    let second = env.new_worker(Arc::new(NoFailPoints));
    let with_command = |services| Services { extensions: vec![slow.clone()], ..services };
    let processes = [first, second].map(with_command);
    (env, processes, slow)
}

async fn run_count(services: &Services, key: &str) -> String {
    let request = NamedCommand { name: "count", request: CommandRequest::default() };
    let conversation = TestEnv::key();
    let key = idempotency(key);
    let run = run_extension_command(services, &conversation, request, &key, None);
    run.await.unwrap().body.unwrap().string_member("output").unwrap()
}

#[tokio::test(start_paused = true)]
async fn command_with_one_key_runs_once_in_all_processes() {
    let (_env, [first, second], slow) = two_processes().await;
    let both = [&first, &second, &first, &second];
    let outputs = join_all(both.map(|services| run_count(services, "one"))).await;
    assert_eq!((outputs, slow.runs.load(Ordering::Relaxed)), (vec!["run 1".to_owned(); 4], 1));
    // Another key is another request, and runs beside it.
    let outputs = tokio::join!(run_count(&first, "two"), run_count(&second, "three"));
    assert_ne!(outputs.0, outputs.1);
    assert_eq!(run_count(&second, "two").await, outputs.0);
    assert_eq!(slow.runs.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn command_runs_again_after_its_process_died() {
    let (_env, [first, second], slow) = two_processes().await;
    let killed = tokio::time::timeout(Duration::from_millis(100), run_count(&first, "one")).await;
    assert!(killed.is_err());
    let began = tokio::time::Instant::now();
    assert_eq!(run_count(&second, "one").await, "run 2");
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    // A request of the same process need not wait.
    let killed = tokio::time::timeout(Duration::from_millis(100), run_count(&first, "two")).await;
    assert!(killed.is_err());
    let began = tokio::time::Instant::now();
    assert_eq!(run_count(&first, "two").await, "run 4");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(slow.runs.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn concurrent_command_with_one_key_runs_once() {
    let mut env = TestEnv::new(1);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let slow = Arc::new(SlowCommand::default());
    let services = Services { extensions: vec![slow.clone()], ..services };
    let key = TestEnv::key();
    let run = |name: &'static str| {
        let (services, key) = (&services, &key);
        async move {
            let request = NamedCommand { name: "count", request: CommandRequest::default() };
            let response =
                run_extension_command(services, key, request, &idempotency(name), None).await;
            response.unwrap().body.unwrap().string_member("output").unwrap()
        }
    };
    let outputs = join_all((0..8).map(|_| run("one"))).await;
    assert_eq!((outputs, slow.runs.load(Ordering::Relaxed)), (vec!["run 1".to_owned(); 8], 1));
    // Another key is another request, and runs beside it.
    let began = tokio::time::Instant::now();
    let outputs = join_all(["two", "three", "one"].into_iter().map(run)).await;
    assert_eq!((slow.runs.load(Ordering::Relaxed), outputs[2].as_str()), (3, "run 1"));
    assert!(began.elapsed() < Duration::from_millis(400));
}
