//! An agent in your own process: the same engine as the service, without HTTP in front of it.

mod activity;
mod builder;
mod driver;
mod event;
mod moving;
mod setters;
mod setup;
mod state;
mod stream;
mod subscription;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::agent::content::Content;
use crate::agent::settings::Settings;
use crate::agent::view::PromptView;
use crate::app::service::StartError;
use crate::ids::{ConversationKey, PromptId};
use crate::tools::RunTool;
use crate::turn::World;
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::go_on::go_on;
use crate::turn::admission::idempotency::{Idempotency, canonical_hash};
use crate::turn::admission::prompt::{Mode, PromptRequest};
use crate::turn::admission::stop::{AbortRequest, abort};
use crate::turn::admission::waiting::clear_all;
use crate::turn::admission::{Intent, Owner, Refusal};
use crate::turn::views::approvals::ApprovalView;
use crate::turn::views::{conversation, load, prompts};

pub use builder::AgentBuilder;
pub use event::AgentEvent;
pub use state::AgentState;
pub use stream::{AgentEvents, EventStream};
pub use subscription::Subscription;

use activity::{Activity, Claim};
use moving::{Moving, held};
use state::Seen;

/// A model with tools, a memory of what was said, and a loop that goes on until there is nothing left to do.
///
/// It is the service's own engine over a folder: every turn is committed before the next begins, and an agent that is made
/// again on the same folder goes on where it stopped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), turnwheel::app::AgentError> {
/// use turnwheel::Agent;
/// use turnwheel::app::AgentEvent;
/// use turnwheel::model::scripted::ScriptedModel;
///
/// let agent = Agent::builder()
///     .system_prompt("You are a helpful assistant.")
///     .models(std::sync::Arc::new(ScriptedModel))
///     .start()
///     .await?;
/// let told = agent.subscribe(|event| {
///     if let AgentEvent::MessageUpdate { event, .. } = event {
///         println!("{}", serde_json::to_string(event).unwrap_or_default());
///     }
/// });
/// let prompt = agent.prompt("Hello!").await?;
/// assert_eq!(prompt.output.len(), 1);
/// assert_eq!(agent.state().messages.len(), 2);
/// told.unsubscribe();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Agent {
    inner: Arc<Inner>,
    /// They end with the last handle.
    _tasks: Arc<[AbortOnDropHandle<()>; 2]>,
}

/// Why an agent did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("{0}")]
    Busy(&'static str),
    #[error("No model configured: {0}")]
    NoModel(String),
    /// A tool or a setting is wrong: every mistake, each a sentence.
    #[error("{}", .0.join("; "))]
    Mistakes(Vec<String>),
    /// The folder cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Refused(Refusal),
}

impl From<Refusal> for AgentError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other refusal is passed on as it is")]
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::AlreadyProcessing { intent: Intent::Prompt, .. } => Self::Busy(BUSY_PROMPT),
            Refusal::AlreadyProcessing { intent: Intent::Continue, .. } => {
                Self::Busy(BUSY_CONTINUE)
            }
            refusal => Self::Refused(refusal),
        }
    }
}

/// The texts of the source (s3 §1.3, §1.5).
const BUSY_PROMPT: &str = "Agent is already processing a prompt. Use steer() or followUp() to queue messages, or wait for completion.";
const BUSY_CONTINUE: &str = "Agent is already processing. Wait for completion before continuing.";

/// What the next run is made with.
#[derive(Clone)]
struct Config {
    system_prompt: String,
    settings: Settings,
    tools: Vec<Arc<dyn RunTool>>,
    session_id: Option<String>,
}

type Listener = Arc<dyn Fn(&AgentEvent) + Send + Sync>;

struct Inner {
    world: World,
    owner: Owner,
    config: Mutex<Config>,
    /// The conversation that is followed.
    key: watch::Sender<ConversationKey>,
    seen: Mutex<Seen>,
    moving: tokio::sync::Mutex<Moving>,
    activity: watch::Sender<Activity>,
    listeners: Mutex<Vec<(u64, Listener)>>,
    /// What the agent was made in, when nobody named a folder.
    _folder: Option<tempfile::TempDir>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.inner.key.borrow().clone();
        f.debug_struct("Agent").field("conversation", &key.conversation_id).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    pub fn builder() -> AgentBuilder {
        AgentBuilder::default()
    }

    /// Asks, and waits until nothing runs any more or a person is asked: see [`Agent::approvals`].
    ///
    /// # Errors
    /// [`AgentError::Busy`] while a prompt runs; a model that failed is no error, but the prompt's `error`.
    pub async fn prompt(&self, input: impl Into<Content>) -> Result<PromptView, AgentError> {
        let request = PromptRequest {
            input: Some(input.into()),
            mode: Some(Mode::Prompt),
            ..PromptRequest::default()
        };
        // On the heap: the caller's own future stays small.
        let id = Box::pin(self.accept(request)).await?;
        self.wait().await;
        self.view(&id).await
    }

    /// Taken in as soon as the call under way has ended; when nothing runs, with the next prompt.
    ///
    /// # Errors
    /// It was not kept.
    pub async fn steer(&self, input: impl Into<Content>) -> Result<(), AgentError> {
        self.queue(Mode::Steer, input.into()).await
    }

    /// Taken in when the agent would stop; when nothing runs, after the next prompt.
    ///
    /// # Errors
    /// It was not kept.
    pub async fn follow_up(&self, input: impl Into<Content>) -> Result<(), AgentError> {
        self.queue(Mode::FollowUp, input.into()).await
    }

    async fn queue(&self, mode: Mode, input: Content) -> Result<(), AgentError> {
        let inner = &self.inner;
        // Where messages were changed, it goes along when the next run begins: one under way must still hear it.
        let _moving = inner.moving.lock().await;
        inner.keep(held(mode, Some(input)), &inner.fresh()).await?;
        Ok(())
    }

    /// Goes on from where the conversation stands: from an input or a result that nobody has answered, or from an answer
    /// with what is queued.
    ///
    /// # Errors
    /// [`AgentError::Busy`] while a prompt runs; [`AgentError::Refused`]: there is nothing to go on from.
    pub async fn continue_(&self) -> Result<PromptView, AgentError> {
        let inner = &self.inner;
        let claim = Claim::take(&inner.activity, BUSY_CONTINUE)?;
        let id = {
            let mut moving = inner.moving.lock().await;
            inner.begin_anew(&mut moving).await?;
            let (world, key, name) = (&inner.world, inner.key.borrow().clone(), inner.fresh());
            go_on(world, &key, &name, &setup::sender()).await?;
            PromptId::of(&name.input_id(&key))
        };
        claim.keep();
        self.wait().await;
        self.view(&id).await
    }

    /// Ends what runs; the answer so far stays on record, and nothing new begins. Harmless when nothing runs.
    ///
    /// # Errors
    /// It was not kept.
    pub async fn abort(&self) -> Result<(), AgentError> {
        let (world, key) = (&self.inner.world, self.inner.key.borrow().clone());
        abort(world, &key, AbortRequest::default(), &self.inner.fresh()).await?;
        Ok(())
    }

    /// Takes back what was queued to steer with.
    ///
    /// # Errors
    /// The record did not answer.
    pub async fn clear_steering_queue(&self) -> Result<(), AgentError> {
        self.clear(Some(Mode::Steer)).await
    }

    /// Takes back what was queued to follow.
    ///
    /// # Errors
    /// The record did not answer.
    pub async fn clear_follow_up_queue(&self) -> Result<(), AgentError> {
        self.clear(Some(Mode::FollowUp)).await
    }

    /// # Errors
    /// The record did not answer.
    pub async fn clear_all_queues(&self) -> Result<(), AgentError> {
        self.clear(None).await
    }

    async fn clear(&self, queue: Option<Mode>) -> Result<(), AgentError> {
        let mut moving = self.inner.moving.lock().await;
        self.inner.bring_left(&mut moving).await?;
        let (world, key) = (&self.inner.world, self.inner.key.borrow().clone());
        clear_all(world, &key, queue).await?;
        Ok(())
    }

    /// Forgets what was said and what is queued; what the agent is set to stays.
    ///
    /// # Errors
    /// [`AgentError::Busy`] while a prompt runs.
    pub async fn reset(&self) -> Result<(), AgentError> {
        let _claim = Claim::take(&self.inner.activity, BUSY_PROMPT)?;
        self.clear_all_queues().await?;
        lock(&self.inner.seen).forget();
        Ok(())
    }

    /// Resolves at once when nothing runs. A prompt that waits for a person does not run.
    pub async fn wait_for_idle(&self) {
        self.wait().await;
    }

    /// Tells every event from now on, in order. The listener must not block.
    pub fn subscribe(
        &self,
        listener: impl Fn(&AgentEvent) + Send + Sync + 'static,
    ) -> Subscription {
        let mut listeners = lock(&self.inner.listeners);
        let number = listeners.last().map_or(0, |(number, _)| number + 1);
        listeners.push((number, Arc::new(listener)));
        Subscription { inner: Arc::clone(&self.inner), number }
    }

    /// Events from now on as a stream, until the run that they belong to ends; its result are that run's new messages.
    ///
    /// ```
    /// # use turnwheel::model::scripted::ScriptedModel;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), turnwheel::app::AgentError> {
    /// # let agent = turnwheel::Agent::builder().models(std::sync::Arc::new(ScriptedModel)).start().await?;
    /// let mut events = agent.events();
    /// let (prompt, count) = tokio::join!(agent.prompt("Hello!"), async {
    ///     let mut count = 0;
    ///     while let Some(_event) = events.next().await {
    ///         count += 1;
    ///     }
    ///     count
    /// });
    /// assert!(prompt.is_ok() && count > 4);
    /// assert_eq!(events.result().await.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(&self) -> AgentEvents {
        let stream = EventStream::new(stream::messages_at_end);
        let pushed = stream.clone();
        let subscription = self.subscribe(move |event| pushed.push(event.clone()));
        AgentEvents { stream, _subscription: subscription }
    }

    /// As of the events that subscribers have been told.
    pub fn state(&self) -> AgentState {
        let key = self.inner.key.borrow().clone();
        let is_streaming = self.inner.activity.borrow().is_at_work();
        let so_far = is_streaming.then(|| self.inner.world.live.subscribe(&key).0).flatten();
        let config = lock(&self.inner.config).clone();
        let seen = lock(&self.inner.seen).clone();
        AgentState {
            system_prompt: config.system_prompt,
            model: config.settings.model,
            thinking_level: config.settings.thinking_level.unwrap_or_default(),
            tools: config.tools.iter().map(|tool| tool.definition().name.clone()).collect(),
            messages: seen.messages,
            is_streaming,
            stream_message: so_far.map(|so_far| so_far.content),
            pending_tool_calls: seen.pending_tool_calls,
            error: seen.error,
        }
    }

    /// What a person is asked.
    ///
    /// # Errors
    /// The record was not read.
    pub async fn approvals(&self) -> Result<Vec<ApprovalView>, AgentError> {
        let world = &self.inner.world;
        let key = self.inner.key.borrow().clone();
        let (view, _) = conversation::current_view(world, &key).await?;
        Ok(view.pending_approvals)
    }

    /// Decides what a person is asked, and waits as [`Agent::prompt`] does.
    ///
    /// # Errors
    /// It is not asked any more, or this is no decision of it.
    pub async fn decide(&self, id: &str, said: Said) -> Result<(), AgentError> {
        let world = &self.inner.world;
        let key = self.inner.key.borrow().clone();
        let owner = &self.inner.owner;
        let who = Decider::Person {
            tenant: owner.tenant.clone(),
            user: owner.user.clone(),
            roles: Vec::new(),
        };
        let settled = decide(world, &key, id, said, &who).await?;
        let id = settled.body.and_then(|settled| settled.string_member("id")).unwrap_or_default();
        let mut activity = self.inner.activity.subscribe();
        let is_over = |activity: &Activity| !activity.is_open(&id) && !activity.is_at_work();
        let _ = activity.wait_for(is_over).await;
        Ok(())
    }

    /// Keeps a prompt, and says that something runs.
    async fn accept(&self, request: PromptRequest) -> Result<PromptId, AgentError> {
        let inner = &self.inner;
        let claim = Claim::take(&inner.activity, BUSY_PROMPT)?;
        let model = lock(&inner.config).settings.model.clone();
        let named = model.as_deref().unwrap_or("normal");
        inner.world.model.record(named).map_err(AgentError::NoModel)?;
        let mut moving = inner.moving.lock().await;
        inner.begin_anew(&mut moving).await?;
        let id = inner.keep(request, &inner.fresh()).await?;
        claim.keep();
        Ok(id)
    }

    async fn wait(&self) {
        let mut activity = self.inner.activity.subscribe();
        let _ = activity.wait_for(|activity| !activity.is_at_work()).await;
    }

    async fn view(&self, id: &PromptId) -> Result<PromptView, AgentError> {
        let world = &self.inner.world;
        let key = self.inner.key.borrow().clone();
        let (head, _) = load::head(world, &key).await?;
        Ok(prompts::prompt(world, &head, id).await?)
    }
}

impl Inner {
    /// A request that nobody repeats.
    fn fresh(&self) -> Idempotency {
        Idempotency {
            key: self.world.ids.fresh(),
            is_repeatable: false,
            route: "agent",
            body_hash: canonical_hash(&serde_json::Value::Null),
        }
    }

    fn hear(&self, event: &AgentEvent) {
        lock(&self.seen).take_in(event);
        let listeners: Vec<Listener> =
            lock(&self.listeners).iter().map(|(_, listener)| Arc::clone(listener)).collect();
        for listener in listeners {
            listener(event);
        }
        self.activity.send_if_modified(|activity| activity.take_in(event));
    }
}
