//! Inbox items that no commit has drained when the process of an embedded store ends. The lease is
//! outside the head.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::command_questions::run;
use super::super::test_env::DeterministicStore;
use super::*;
use turnwheel_extensions::{CommandCall, CommandOutcome, CommandSpec};

/// Its command has a question. The first run by a worker does not end.
#[derive(Debug, Default)]
struct HangingCommand {
    runs: AtomicUsize,
}

#[async_trait]
impl Extension for HangingCommand {
    fn name(&self) -> &'static str {
        "hangs"
    }

    fn commands(&self) -> Vec<CommandSpec> {
        vec![CommandSpec::new("note", "")]
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        _call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        // The request has run it before.
        if self.runs.fetch_add(1, Ordering::SeqCst) == 1 {
            return std::future::pending().await;
        }
        cx.confirm("sure", "Sure?")?;
        Ok(CommandOutcome::text("noted"))
    }
}

/// The environment, and the folder of its embedded store.
fn env_with_embedded_store() -> (TestEnv, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut env = TestEnv::with_script(41, replies);
    env.use_embedded_store(DeterministicStore::open(folder.path().to_owned()));
    (env, folder)
}

/// Ends the process while a hook runs before the first commit. The next process handles all nudges.
async fn end_and_restart(env: &mut TestEnv, worker: Services) {
    env.queue.drop_queue(queue::TURNS);
    // Before the time-out of the hook.
    let times = StopTimes { repeatable: Duration::from_secs(2), ..TIMES };
    assert_eq!(handle_while_process_ends(&worker, times).await, times.repeatable);
    assert_given_back(env).await;
    // The store is closed and opened again.
    drop(worker);
    env.restart_process().await;
    let next = env.new_worker(Arc::new(NoFailPoints));
    handle_nudges(env, &next).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_command_runs_in_the_next_process() {
    let (mut env, _folder) = env_with_embedded_store();
    env.extensions = vec![Arc::<HangingCommand>::default()];
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    handle_nudges(&env, &worker).await;
    assert_eq!(run(&worker, "note", "k").await.status, 202);
    end_and_restart(&mut env, worker).await;
    assert_eq!(only_request(&env).await.reason, "Sure?");
}

#[tokio::test(start_paused = true)]
async fn hooked_prompt_runs_in_the_next_process() {
    let (mut env, _folder) = env_with_embedded_store();
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.extensions = vec![Arc::new(HangingStart)];
    env.send_prompt(&worker).await;
    end_and_restart(&mut env, worker).await;
    assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
}
