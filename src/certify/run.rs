//! One run: a client that retries until accepted, instances that process the queues, a sweep each
//! minute, and one fault.

mod look;

use std::sync::Arc;
use std::time::Duration;

use crate::agent::head::Head;
use crate::agent::request::{Request, RequestKind};
use crate::agents::Agent;
use crate::certify::asking::{Asked, decider, key_of, owner, perform};
use crate::certify::conversation::{Conversation, Decide};
use crate::certify::judge::Outcome;
use crate::certify::stage::Stage;
use crate::certify::{Fault, Kept, Order};
use crate::clock::Clock as _;
use crate::ids::{ConversationKey, EffectId, RequestId};
use crate::queue::{self, Queue as _};
use crate::store::embedded::OpenError;
use crate::turn::admission::patch::patch_conversation;
use crate::turn::{Nudge, World, recount, sweep};

/// Steps of the driver after which a conversation counts as never idle.
const STEPS_MAX: u32 = 1_000;
/// How long a received message stays hidden.
const HIDE: Duration = Duration::from_secs(90);
/// Interval of the recovery sweep.
const SWEEP_EVERY: Duration = Duration::from_mins(1);
/// Longer than a lease plus the wait before a take-over.
const STANDSTILL: Duration = Duration::from_secs(70);
const CLIENT_TRIES_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The fault of a run and the fail point where it is injected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) boundary: &'static str,
    pub(super) occurrence: u32,
    pub(super) fault: Fault,
}

/// The state to wait for.
#[derive(Clone, Copy)]
enum End {
    Rest,
    NothingOwed,
}

/// A unit of work that can reach a fail point.
enum Task {
    Ask(usize),
    Decide(Box<Request>, &'static str),
    Turn(Nudge),
    Notify(Nudge),
}

struct Play<'a> {
    order: &'a Order,
    conversation: &'a Conversation,
    agent: &'a str,
    cut: Option<Cut>,
    stage: Stage,
    key: ConversationKey,
    /// The instance that processes the queues.
    worker: Arc<World>,
    /// Index of the last prompt sent.
    asked: usize,
    decided: Vec<RequestId>,
    swept_at: Duration,
    /// Nudges that arrive after everything else is done: queue and text.
    late: Vec<(&'static str, String)>,
    has_struck: bool,
    missed: Option<&'static str>,
    wrong: Vec<String>,
    story: Vec<String>,
}

/// Runs the conversation to its end and completes its pending work.
///
/// # Errors
/// There is no folder for the store.
pub(super) async fn play(
    order: &Order,
    (agent, conversation): (&Agent, &Conversation),
    (kept, cut): (Kept, Option<Cut>),
) -> Result<Outcome, OpenError> {
    let stage = Stage::set(order, (agent, conversation), (kept, cut)).await?;
    let worker = stage.instance(order);
    let mut play = Play {
        order,
        conversation,
        agent: &agent.name,
        cut,
        swept_at: stage.time.monotonic(),
        stage,
        key: owner().key("certify"),
        worker,
        asked: 0,
        decided: Vec::new(),
        late: Vec::new(),
        has_struck: false,
        missed: None,
        wrong: Vec::new(),
        story: Vec::new(),
    };
    if let Err(why) = Box::pin(play.through()).await {
        play.wrong.push(why);
    }
    Ok(play.outcome(agent).await)
}

impl Play<'_> {
    async fn through(&mut self) -> Result<(), String> {
        for number in 0..self.conversation.prompts.len() {
            self.asked = number;
            self.surely(&Task::Ask(number)).await?;
            Box::pin(self.until(End::Rest, "become idle")).await?;
        }
        Box::pin(self.until(End::NothingOwed, "complete its pending work")).await?;
        self.ring_late().await
    }

    /// Repeats a request, as a client does, until it is accepted.
    async fn surely(&mut self, task: &Task) -> Result<(), String> {
        let mut refusal = String::new();
        for _ in 0..100 {
            match self.attempt(task).await {
                Some(Ok(())) => return Ok(()),
                Some(Err(why)) => refusal = why,
                None => {}
            }
            self.stage.time.pass(CLIENT_TRIES_AGAIN_AFTER);
        }
        Err(format!("invariant 1 (accepted means kept): a request was never accepted: {refusal}"))
    }

    async fn until(&mut self, end: End, what: &str) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            let is_busy = self.deliver_next().await;
            let head = self.head().await;
            if let Some(head) = &head {
                self.decide_all(head).await?;
            }
            let is_over = match end {
                End::Rest => self.is_at_rest(head.as_ref()).await,
                End::NothingOwed => self.next_due().await.is_none(),
            };
            if is_over {
                return Ok(());
            }
            if !is_busy {
                self.wait().await;
            }
        }
        Err(format!("invariant 2 (queues are disposable): it did not {what}"))
    }

    /// Advances the clock to the next pending work; runs the sweep each minute.
    async fn wait(&mut self) {
        let now = self.stage.time.now();
        let until_due = self.next_due().await.map_or(SWEEP_EVERY, |due| now.until(due));
        let visible = self.stage.queue.next_visible_in();
        let span = match visible {
            Some(span) if span <= SWEEP_EVERY => span,
            Some(_) | None => until_due.max(SWEEP_EVERY),
        };
        self.stage.time.pass(span + Duration::from_millis(1));
        if self.stage.time.monotonic() >= self.swept_at + SWEEP_EVERY {
            self.swept_at = self.stage.time.monotonic();
            let swept = sweep::sweep(&self.worker, sweep::GRACE).await;
            self.story.push(match swept {
                Ok(rung) => format!("the sweep enqueued {rung} nudges"),
                Err(error) => format!("the sweep failed: {error}"),
            });
        }
    }

    /// Processes one message of the queues; a killed worker leaves it on the queue.
    async fn deliver_next(&mut self) -> bool {
        for name in [queue::TURNS, queue::NOTIFY] {
            let received = self.stage.queue.receive(name, 1, HIDE).await.unwrap_or_default();
            let Some(message) = received.into_iter().next() else { continue };
            let Ok(nudge) = serde_json::from_str(&message.text) else { continue };
            let task = if name == queue::TURNS { Task::Turn(nudge) } else { Task::Notify(nudge) };
            if matches!(self.attempt(&task).await, Some(Ok(()))) {
                let _ = self.stage.queue.delete(name, &message.id, &message.pop_receipt).await;
            }
            return true;
        }
        false
    }

    /// Decides the pending requests as an approver who knows the calls that really ran.
    async fn decide_all(&mut self, head: &Head) -> Result<(), String> {
        for request in &head.requests {
            // An accepted decision is stored: it need not be sent again before it is applied.
            if self.decided.contains(&request.id) {
                continue;
            }
            if let Some(decision) = self.decision(head, request) {
                self.surely(&Task::Decide(Box::new(request.clone()), decision)).await?;
                self.decided.push(request.id.clone());
            }
        }
        Ok(())
    }

    /// `None`: no approver may decide it, so it expires.
    fn decision(&self, head: &Head, request: &Request) -> Option<&'static str> {
        decider(&self.key, request)?;
        Some(match request.kind {
            RequestKind::Outcome => {
                let effect = request.call.map(|call| {
                    let (id, incarnation) = (&head.conversation_id, &head.incarnation);
                    EffectId::of_call(id, incarnation, call.answer, call.index)
                });
                let is_done = effect.is_some_and(|effect| self.stage.ledger.has(effect.as_str()));
                if is_done { "happened" } else { "did_not_happen" }
            }
            RequestKind::Question => "answer",
            RequestKind::Budget => "approve",
            RequestKind::Tool => {
                match self.conversation.prompts.get(self.asked).map(|prompt| prompt.decide) {
                    Some(Decide::Reject) => "reject",
                    Some(Decide::Approve) | None => "approve",
                }
            }
        })
    }

    /// Performs the task. Returns `None` if the fault kills the process: then there is no response.
    async fn attempt(&mut self, task: &Task) -> Option<Result<(), String>> {
        let trap = Arc::clone(&self.stage.trap);
        let mut work = Box::pin(perform(Arc::clone(&self.worker), self.request(task)));
        tokio::select! {
            biased;
            done = &mut work => return Some(self.note(task, done)),
            () = trap.reached.notified() => {}
        }
        let fault = self.cut.map(|cut| cut.fault);
        self.has_struck = true;
        self.story.push(format!("{} hit the fail point", self.told(task)));
        match fault {
            None | Some(Fault::Late) => {}
            Some(Fault::Kill | Fault::TakeOver) => {
                drop(work);
                self.begin_anew().await;
                return None;
            }
            Some(Fault::TimeOut) => self.stage.ledger.make_next_late(),
            Some(Fault::Duplicate) => self.elsewhere(task).await,
            Some(Fault::TwoWorkers) => {
                self.stage.time.pass(STANDSTILL);
                self.elsewhere(task).await;
                self.drain_elsewhere().await;
            }
            Some(Fault::Conflict) => self.patch().await,
            Some(Fault::LostAnswer) => {
                self.stage.store.lose_answers(true);
            }
        }
        trap.go.notify_one();
        let done = work.await;
        self.stage.store.lose_answers(false);
        if fault == Some(Fault::Late) {
            self.hold_back(task).await;
        }
        Some(self.note(task, done))
    }

    /// Kills the working process. Another starts with its folder and runs its start-up work.
    async fn begin_anew(&mut self) {
        self.story.push("the process was killed".to_owned());
        let is_alone = self.stage.kill().await;
        self.worker = self.stage.instance(self.order);
        let started = match is_alone {
            Ok(false) => return,
            Ok(true) => recount::start_up(&self.worker).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match started {
            Ok(rung) => self.story.push(format!("another process started and enqueued {rung} nudges")),
            Err(why) => self.wrong.push(format!("the next process could not start: {why}")),
        }
    }

    fn note(&mut self, task: &Task, done: Result<(), String>) -> Result<(), String> {
        self.story.push(match &done {
            Ok(()) => format!("{} is done", self.told(task)),
            Err(why) => format!("{} failed: {why}", self.told(task)),
        });
        done
    }

    fn told(&self, task: &Task) -> String {
        match task {
            Task::Ask(number) => format!("prompt {}", number + 1),
            Task::Decide(request, decision) => format!("the decision {decision} on {}", request.id),
            Task::Turn(_) => format!("a turn of {}", self.worker.worker),
            Task::Notify(_) => format!("a notification of {}", self.worker.worker),
        }
    }

    /// Sends the same message or request to another instance.
    async fn elsewhere(&mut self, task: &Task) {
        let other = self.stage.instance(self.order);
        let done = Box::pin(perform(other, self.request(task))).await;
        self.story.push(format!("the same task at another instance: {done:?}"));
    }

    async fn drain_elsewhere(&mut self) {
        let other = self.stage.instance(self.order);
        for name in [queue::TURNS, queue::NOTIFY].repeat(20) {
            let received = self.stage.queue.receive(name, 1, HIDE).await.unwrap_or_default();
            for message in received {
                let Ok(nudge) = serde_json::from_str(&message.text) else { continue };
                let task =
                    if name == queue::TURNS { Task::Turn(nudge) } else { Task::Notify(nudge) };
                let done = Box::pin(perform(Arc::clone(&other), self.request(&task))).await;
                self.story.push(format!("another instance continued: {done:?}"));
                let _ = self.stage.queue.delete(name, &message.id, &message.pop_receipt).await;
            }
        }
    }

    /// Commits as another writer: a client changes metadata that the model does not see.
    async fn patch(&mut self) {
        if self.head().await.is_none() {
            self.missed = Some("there is no conversation yet");
            return;
        }
        let other = self.stage.instance(self.order);
        let patch = serde_json::json!({"metadata": {"certify": "conflict"}});
        let Some(patch) = patch.as_object() else { return };
        let patched =
            patch_conversation(&other, &self.key, patch, &key_of("patch"), |_| true).await;
        match patched {
            Ok(_) => self.story.push("another writer has committed".to_owned()),
            Err(error) => self.wrong.push(format!("the other writer was rejected: {error}")),
        }
    }

    /// Removes all nudges from the queues, and keeps the one of the current delivery.
    async fn hold_back(&mut self, task: &Task) {
        match task {
            Task::Turn(nudge) => self.late.push((queue::TURNS, text_of(nudge))),
            Task::Notify(nudge) => self.late.push((queue::NOTIFY, text_of(nudge))),
            Task::Ask(_) | Task::Decide(..) => {}
        }
        for name in [queue::TURNS, queue::NOTIFY] {
            self.stage.time.pass(AHEAD_OF_DELAYS);
            for message in self.stage.queue.receive(name, 32, HIDE).await.unwrap_or_default() {
                let _ = self.stage.queue.delete(name, &message.id, &message.pop_receipt).await;
                self.late.push((name, message.text));
            }
        }
        self.story.push(format!("{} nudges are delayed", self.late.len()));
    }

    /// Sends the delayed nudges after everything else is done: they must find no pending work.
    async fn ring_late(&mut self) -> Result<(), String> {
        if self.late.is_empty() {
            return Ok(());
        }
        let before = self.stage.store.commits();
        for (name, text) in std::mem::take(&mut self.late) {
            let _ = self.stage.queue.send(name, text, Duration::ZERO).await;
        }
        while self.deliver_next().await {}
        if self.stage.store.commits() == before {
            Ok(())
        } else {
            Err("invariant 2 (queues are disposable): a late nudge changed the state".to_owned())
        }
    }

    /// Builds the request of a task.
    fn request(&self, task: &Task) -> Asked {
        match task {
            Task::Ask(number) => Asked::Prompt {
                agent: self.agent.to_owned(),
                key: self.key.clone(),
                number: *number,
                text: self.conversation.prompts.get(*number).map(|prompt| prompt.prompt.clone()),
            },
            Task::Decide(request, decision) => {
                Asked::Decision { key: self.key.clone(), request: request.clone(), decision }
            }
            Task::Turn(nudge) => Asked::Turn(nudge.clone()),
            Task::Notify(nudge) => Asked::Notify(nudge.clone()),
        }
    }
}

/// The longest delay of a nudge.
const AHEAD_OF_DELAYS: Duration = Duration::from_secs(1);

fn text_of(nudge: &Nudge) -> String {
    serde_json::to_string(nudge).unwrap_or_default()
}
