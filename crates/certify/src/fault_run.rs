//! One run: a client that retries until accepted, instances that process the queues, a sweep each
//! minute, and one fault.

mod final_state;
mod late_nudges;

use std::sync::Arc;
use std::time::Duration;

use crate::client::{PromptTask, Task, find_decider, idempotency_key, owner, run_task};
use crate::conversation::{ApprovalDecision, Conversation};
use crate::environment::Environment;
use crate::oracle::Outcome;
use crate::{CertifyOptions, Fault, StoreKind};
use turnwheel_agent_files::AgentDefinition;
use turnwheel_commands::patch::patch_conversation;
use turnwheel_commands::prompt::PromptPosition;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::request::{Request, RequestKind};
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::ids::{ConversationKey, EffectId, RequestId};
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::embedded::OpenError;
use turnwheel_turn::{crash_count, sweep};

/// Steps of the driver after which a conversation counts as never idle.
const STEPS_MAX: u32 = 1_000;
/// Interval of the recovery sweep.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// Longer than a lease plus the wait before a take-over.
const STALL_DURATION: Duration = Duration::from_secs(70);
const CLIENT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The fault of a run and the fail point where it is injected.
#[derive(Clone, Copy, Debug)]
pub(super) struct InjectionPoint {
    pub(super) fail_point: &'static str,
    pub(super) occurrence: u32,
    pub(super) fault: Fault,
}

/// The state to wait for.
#[derive(Clone, Copy)]
enum WaitGoal {
    Idle,
    NoPendingWork,
}

struct FaultRun<'a> {
    options: &'a CertifyOptions,
    conversation: &'a Conversation,
    agent: &'a str,
    injection: Option<InjectionPoint>,
    environment: Environment,
    key: ConversationKey,
    /// The instance that processes the queues.
    worker: Arc<Services>,
    /// Index of the last prompt sent.
    prompt_index: usize,
    decided_requests: Vec<RequestId>,
    last_sweep: Duration,
    /// Nudges that arrive after everything else is done: queue and text.
    late_nudges: Vec<(&'static str, String)>,
    is_injected: bool,
    skip_reason: Option<&'static str>,
    problems: Vec<String>,
    log: Vec<String>,
}

/// Runs the conversation to its end and completes its pending work.
///
/// # Errors
/// There is no folder for the store.
pub(super) async fn run_conversation(
    options: &CertifyOptions,
    agent: &AgentDefinition,
    conversation: &Conversation,
    store_kind: StoreKind,
    injection: Option<InjectionPoint>,
) -> Result<Outcome, OpenError> {
    let environment = Environment::new(options, agent, conversation, store_kind, injection).await?;
    let worker = environment.instance(options);
    let mut run = FaultRun {
        options,
        conversation,
        agent: &agent.name,
        injection,
        last_sweep: environment.clock.monotonic(),
        environment,
        key: owner().conversation_key("certify"),
        worker,
        prompt_index: 0,
        decided_requests: Vec::new(),
        late_nudges: Vec::new(),
        is_injected: false,
        skip_reason: None,
        problems: Vec::new(),
        log: Vec::new(),
    };
    if let Err(reason) = Box::pin(run.run()).await {
        run.problems.push(reason);
    }
    Ok(run.into_outcome(agent).await)
}

impl FaultRun<'_> {
    async fn run(&mut self) -> Result<(), String> {
        for number in 0..self.conversation.prompts.len() {
            self.prompt_index = number;
            let prompt = self.conversation.prompts.get(number);
            let at = match prompt.and_then(|prompt| prompt.replaces) {
                Some(replaced) => {
                    let input = self.find_prompt_input(replaced).await;
                    PromptPosition::Entry(input.map(|entry_id| entry_id.to_string()))
                }
                None => PromptPosition::Leaf,
            };
            let task = Task::Prompt(Box::new(PromptTask {
                agent: self.agent.to_owned(),
                key: self.key.clone(),
                number,
                text: prompt.map(|prompt| prompt.prompt.clone()),
                at,
            }));
            self.complete(&task).await?;
        }
        self.fork_and_move().await?;
        Box::pin(self.run_until(WaitGoal::NoPendingWork, "complete its pending work")).await?;
        self.send_late_nudges().await
    }

    /// Copies the conversation, then moves its leaf before the last prompt.
    async fn fork_and_move(&mut self) -> Result<(), String> {
        let key = self.key.clone();
        let Some(head) = self.read_head().await else { return Ok(()) };
        if let Some(entry_id) = head.leaf_id {
            self.complete(&Task::Fork { key: key.clone(), entry_id }).await?;
        }
        if let Some(entry_id) = self.find_prompt_input(self.conversation.prompts.len()).await {
            self.complete(&Task::Move { key, entry_id }).await?;
        }
        Ok(())
    }

    /// Sends a request, and waits until the conversation is idle.
    async fn complete(&mut self, task: &Task) -> Result<(), String> {
        self.retry_until_accepted(task).await?;
        Box::pin(self.run_until(WaitGoal::Idle, "become idle")).await
    }

    /// Repeats a request, as a client does, until it is accepted.
    async fn retry_until_accepted(&mut self, task: &Task) -> Result<(), String> {
        let mut rejection = String::new();
        for _ in 0..100 {
            match self.attempt_task(task).await {
                Some(Ok(())) => return Ok(()),
                Some(Err(reason)) => rejection = reason,
                None => {}
            }
            self.environment.clock.skip(CLIENT_RETRY_DELAY);
        }
        Err(format!("invariant 1 (accepted means kept): a request was never accepted: {rejection}"))
    }

    async fn run_until(&mut self, end: WaitGoal, goal_text: &str) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            let is_busy = self.deliver_next().await;
            let head = self.read_head().await;
            if let Some(head) = &head {
                self.decide_all(head).await?;
            }
            let is_reached = match end {
                WaitGoal::Idle => self.is_idle(head.as_ref()).await,
                WaitGoal::NoPendingWork => self.next_due().await.is_none(),
            };
            if is_reached {
                return Ok(());
            }
            if !is_busy {
                self.advance_clock().await;
            }
        }
        Err(format!("invariant 2 (queues are disposable): it did not {goal_text}"))
    }

    /// Advances the clock to the next pending work; runs the sweep each minute.
    async fn advance_clock(&mut self) {
        let now = self.environment.clock.now();
        let time_to_due = self.next_due().await.map_or(SWEEP_INTERVAL, |due| now.until(due));
        let visible = self.environment.queue.next_visible_in();
        let span = match visible {
            Some(span) if span <= SWEEP_INTERVAL => span,
            Some(_) | None => time_to_due.max(SWEEP_INTERVAL),
        };
        self.environment.clock.skip(span + Duration::from_millis(1));
        if self.environment.clock.monotonic() >= self.last_sweep + SWEEP_INTERVAL {
            self.last_sweep = self.environment.clock.monotonic();
            let result = sweep::sweep(&*self.worker, sweep::GRACE_PERIOD).await;
            self.log.push(match result {
                Ok(enqueued) => format!("the sweep enqueued {enqueued} nudges"),
                Err(error) => format!("the sweep failed: {error}"),
            });
        }
    }

    /// Processes one message of the queues; a killed worker leaves it on the queue.
    async fn deliver_next(&mut self) -> bool {
        for name in [queue::TURNS, queue::NOTIFY] {
            let Some(message) = self.environment.receive(name, 1).await.pop() else { continue };
            let Some(task) = Task::from_message(name, &message.text) else { continue };
            if matches!(self.attempt_task(&task).await, Some(Ok(()))) {
                self.environment.delete(name, &message).await;
            }
            return true;
        }
        false
    }

    /// Decides the pending requests as an approver who knows the calls that really ran.
    async fn decide_all(&mut self, head: &Head) -> Result<(), String> {
        for request in &head.requests {
            // An accepted decision is stored: it need not be sent again before it is applied.
            if self.decided_requests.contains(&request.id) {
                continue;
            }
            if let Some(decision) = self.choose_decision(head, request) {
                let (key, boxed) = (self.key.clone(), Box::new(request.clone()));
                let task = Task::Decision { key, request: boxed, decision };
                self.retry_until_accepted(&task).await?;
                self.decided_requests.push(request.id.clone());
            }
        }
        Ok(())
    }

    /// `None`: no approver may decide it, so it expires.
    fn choose_decision(&self, head: &Head, request: &Request) -> Option<&'static str> {
        find_decider(&self.key, request)?;
        Some(match request.kind {
            RequestKind::Outcome => {
                let effect = request.call.map(|call| {
                    let (id, incarnation) = (&head.conversation_id, &head.incarnation);
                    EffectId::from_call(id, incarnation, call.response_seq, call.index)
                });
                let is_done = effect
                    .is_some_and(|effect| self.environment.call_log.has_call(effect.as_str()));
                if is_done { "happened" } else { "did_not_happen" }
            }
            RequestKind::Question => "answer",
            RequestKind::Budget => "approve",
            RequestKind::Tool => {
                match self.conversation.prompts.get(self.prompt_index).map(|prompt| prompt.decision)
                {
                    Some(ApprovalDecision::Reject) => "reject",
                    Some(ApprovalDecision::Approve) | None => "approve",
                }
            }
        })
    }

    /// Performs the task. Returns `None` if the fault kills the process: then there is no response.
    async fn attempt_task(&mut self, task: &Task) -> Option<Result<(), String>> {
        let trap = Arc::clone(&self.environment.trap);
        let mut work = Box::pin(run_task(Arc::clone(&self.worker), task.clone()));
        tokio::select! {
            biased;
            result = &mut work => return Some(self.log_result(task, result)),
            () = trap.reached.notified() => {}
        }
        let fault = self.injection.map(|cut| cut.fault);
        self.is_injected = true;
        self.log.push(format!("{} hit the fail point", self.describe_task(task)));
        match fault {
            None | Some(Fault::LateNudges) => {}
            Some(Fault::Kill | Fault::TakeOver) => {
                drop(work);
                self.restart_process().await;
                return None;
            }
            Some(Fault::TimeOut) => self.environment.call_log.make_next_late(),
            Some(Fault::Duplicate) => self.repeat_elsewhere(task).await,
            Some(Fault::StalledWorker) => {
                self.environment.clock.skip(STALL_DURATION);
                self.repeat_elsewhere(task).await;
                self.drain_elsewhere().await;
            }
            Some(Fault::Conflict) => self.commit_conflict().await,
            Some(Fault::LostResponse) => {
                self.environment.store.set_losing_responses(true);
            }
        }
        trap.resume.notify_one();
        let result = work.await;
        self.environment.store.set_losing_responses(false);
        if fault == Some(Fault::LateNudges) {
            self.withhold_nudges(task).await;
        }
        Some(self.log_result(task, result))
    }

    /// Kills the working process. Another starts with its folder and runs its start-up work.
    async fn restart_process(&mut self) {
        self.log.push("the process was killed".to_owned());
        let has_own_store = self.environment.kill().await;
        self.worker = self.environment.instance(self.options);
        let started = match has_own_store {
            Ok(false) => return,
            Ok(true) => crash_count::recover_at_start_up(&self.worker)
                .await
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match started {
            Ok(enqueued) => {
                self.log.push(format!("another process started and enqueued {enqueued} nudges"));
            }
            Err(reason) => {
                self.problems.push(format!("the next process could not start: {reason}"));
            }
        }
    }

    fn log_result(&mut self, task: &Task, result: Result<(), String>) -> Result<(), String> {
        self.log.push(match &result {
            Ok(()) => format!("{} is done", self.describe_task(task)),
            Err(reason) => format!("{} failed: {reason}", self.describe_task(task)),
        });
        result
    }

    fn describe_task(&self, task: &Task) -> String {
        match task {
            Task::Prompt(prompt) => format!("prompt {}", prompt.number + 1),
            Task::Fork { .. } => "the fork".to_owned(),
            Task::Move { .. } => "the move of the leaf".to_owned(),
            Task::Decision { request, decision, .. } => {
                format!("the decision {decision} on {}", request.id)
            }
            Task::Turn(_) => format!("a turn of {}", self.worker.worker),
            Task::Notify(_) => format!("a notification of {}", self.worker.worker),
        }
    }

    /// Sends the same message or request to another instance.
    async fn repeat_elsewhere(&mut self, task: &Task) {
        let other = self.environment.instance(self.options);
        let result = Box::pin(run_task(other, task.clone())).await;
        self.log.push(format!("the same task at another instance: {result:?}"));
    }

    async fn drain_elsewhere(&mut self) {
        let other = self.environment.instance(self.options);
        for name in [queue::TURNS, queue::NOTIFY].repeat(20) {
            for message in self.environment.receive(name, 1).await {
                let Some(task) = Task::from_message(name, &message.text) else { continue };
                let result = Box::pin(run_task(Arc::clone(&other), task)).await;
                self.log.push(format!("another instance continued: {result:?}"));
                self.environment.delete(name, &message).await;
            }
        }
    }

    /// Commits as another writer: a client changes metadata that the model does not see.
    async fn commit_conflict(&mut self) {
        if self.read_head().await.is_none() {
            self.skip_reason = Some("there is no conversation yet");
            return;
        }
        let other = self.environment.instance(self.options);
        let patch = serde_json::json!({"metadata": {"certify": "conflict"}});
        let Some(patch) = patch.as_object() else { return };
        let patched =
            patch_conversation(&other, &self.key, patch, &idempotency_key("patch"), |_| true).await;
        match patched {
            Ok(_) => self.log.push("another writer has committed".to_owned()),
            Err(error) => self.problems.push(format!("the other writer was rejected: {error}")),
        }
    }
}
