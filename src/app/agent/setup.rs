//! What an agent is made of: the engine's ports over a folder, and a conversation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::agent::content::Content;
use crate::agent::entry::Source;
use crate::agent::inbox::{InboxBody, WhenIdle};
use crate::agent::message::Message;
use crate::agent::raw::RawJson;
use crate::agents::{self, Catalog};
use crate::app::agent::driver;
use crate::app::agent::state::Seen;
use crate::app::agent::{Activity, Agent, AgentBuilder, AgentError, Config, Inner, lock};
use crate::app::model::model_of;
use crate::app::ports::embedded_queue;
use crate::app::service::{StartError, io};
use crate::artifacts::EmbeddedArtifacts;
use crate::azure::credential::Credentials;
use crate::clock::{Clock, SystemClock};
use crate::extensions::Extension;
use crate::ids::{ConversationKey, Ids, PromptId, SystemIds, TenantId, UserId, WorkerId};
use crate::live::EmbeddedLive;
use crate::model::Model;
use crate::settings::{self, Settings};
use crate::store::HeadQuery;
use crate::store::embedded::EmbeddedStore;
use crate::telemetry::Telemetry;
use crate::tools::sha256_hex;
use crate::turn::admission::Owner;
use crate::turn::admission::conversation::{NewConversation, create_conversation};
use crate::turn::admission::prompt::{Mode, PromptRequest, Sender, WhenBusy, accept_prompt};
use crate::turn::admission::waiting::clear_all;
use crate::turn::views::load;
use crate::turn::{EntryMemory, Limits, NoProbe, Stops, World, record, recount};

/// The only agent there is.
const NAME: &str = "agent";

/// The one agent, as it is set now.
pub(super) fn catalog(config: &Config) -> Catalog {
    let names: Vec<&str> =
        config.tools.iter().map(|tool| tool.definition().revision.as_str()).collect();
    let settings = RawJson::of(&config.settings);
    let written = format!("{:?}", (&config.system_prompt, names, settings.text()));
    let agent = agents::Agent {
        name: NAME.to_owned(),
        description: String::new(),
        settings: config.settings.clone(),
        instructions: config.system_prompt.clone(),
        tools: config.tools.clone(),
        response_schema: None,
        revision: sha256_hex(written.as_bytes()),
    };
    Catalog {
        agents: BTreeMap::from([(NAME.to_owned(), Arc::new(agent))]),
        broken: BTreeMap::new(),
        default_agent: None,
    }
}

/// What waits for the next run, when none is under way.
pub(super) fn held(mode: Mode, input: Option<Content>) -> PromptRequest {
    PromptRequest {
        input,
        mode: Some(mode),
        when_idle: Some(WhenIdle::Hold),
        ..PromptRequest::default()
    }
}

pub(super) fn sender() -> Sender {
    Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Refuse }
}

fn model_from_environment() -> Result<Arc<dyn Model>, AgentError> {
    let settings = Settings::read(settings::environment).map_err(StartError::from)?;
    model_of(&settings, &Credentials::default()).map_err(AgentError::Mistakes)
}

/// The engine over a folder.
async fn world(
    data: &Path,
    model: Arc<dyn Model>,
    agents: Arc<Catalog>,
    extensions: Vec<Arc<dyn Extension>>,
) -> Result<World, AgentError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let ids: Arc<dyn Ids> = Arc::new(SystemIds);
    Ok(World {
        store: Arc::new(EmbeddedStore::open(data).map_err(StartError::from)?),
        queue: Arc::new(embedded_queue(data, &clock, &ids).await?),
        artifacts: Arc::new(
            EmbeddedArtifacts::open(&data.join("artifacts"))
                .await
                .map_err(io("open the artifacts"))?,
        ),
        live: Arc::new(EmbeddedLive::default()),
        model,
        agents,
        extensions,
        entries: Arc::new(EntryMemory::default()),
        herald: None,
        worker: WorkerId::new(ids.fresh()),
        clock,
        ids,
        probe: Arc::new(NoProbe),
        stops: Stops::default(),
        limits: Limits::default(),
        money: Arc::default(),
        brakes: Arc::default(),
        telemetry: Telemetry::default(),
    })
}

impl Agent {
    pub(super) async fn start(builder: AgentBuilder) -> Result<Self, AgentError> {
        if !builder.mistakes.is_empty() {
            return Err(AgentError::Mistakes(builder.mistakes));
        }
        let models = match builder.models {
            Some(models) => models,
            None => model_from_environment()?,
        };
        let folder = match builder.data {
            Some(_) => None,
            None => Some(tempfile::tempdir().map_err(io("make a folder"))?),
        };
        let own = folder.as_ref().map(|folder| folder.path().to_owned());
        let data = builder.data.or(own).unwrap_or_default();
        let config = Config {
            system_prompt: builder.system_prompt,
            settings: builder.settings,
            tools: builder.tools,
        };
        let catalog = Arc::new(catalog(&config));
        let world = world(&data, models, Arc::clone(&catalog), builder.extensions).await?;
        let owner = Owner { tenant: TenantId::new("default"), user: UserId::new("default") };
        let found = newest(&world, &owner).await?;
        let id = builder.session_id.unwrap_or_else(|| world.ids.fresh());
        let is_new = found.is_none() || !builder.messages.is_empty();
        let key = found.unwrap_or_else(|| owner.key(&id));
        let inner = Arc::new(Inner {
            owner,
            config: Mutex::new(config),
            catalog: RwLock::new(catalog),
            key: watch::Sender::new(key),
            seen: Mutex::new(Seen::default()),
            is_rewritten: Mutex::new(false),
            activity: watch::Sender::new(Activity::Idle),
            listeners: Mutex::default(),
            _folder: folder,
            world,
        });
        let after = if is_new {
            lock(&inner.seen).messages = builder.messages;
            inner.begin(&id).await?;
            0
        } else {
            inner.remember().await?
        };
        recount::start_up(&inner.world).await.map_err(io("read what is owed"))?;
        let turning = start(driver::turn(Arc::clone(&inner)));
        let telling = start(driver::tell(Arc::clone(&inner), after));
        Ok(Self { inner, _tasks: Arc::new([turning, telling]) })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends with the agent; what it was at stands in the folder and is taken up again"
)]
fn start(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

/// The conversation that was begun last in this folder.
async fn newest(world: &World, owner: &Owner) -> Result<Option<ConversationKey>, AgentError> {
    let query = HeadQuery {
        tenant: owner.tenant.clone(),
        user: Some(owner.user.clone()),
        state: None,
        limit: 1,
        continuation: None,
    };
    let page = world.store.heads(&query).await.map_err(crate::turn::admission::Refusal::from)?;
    let Some(stored) = page.items.first() else { return Ok(None) };
    let head = record::read_head(stored).map_err(crate::turn::admission::Refusal::from)?;
    Ok(Some(head.key()))
}

impl Inner {
    /// A conversation with the messages as they are now, which is followed from here.
    async fn begin(&self, id: &str) -> Result<(), AgentError> {
        let messages = lock(&self.seen).messages.iter().map(RawJson::of).collect();
        let request = NewConversation {
            id: Some(id.to_owned()),
            agent: Some(NAME.to_owned()),
            messages: Some(messages),
            ..NewConversation::default()
        };
        create_conversation(&self.world(), &self.owner, request, &self.fresh()).await?;
        self.key.send_replace(self.owner.key(id));
        Ok(())
    }

    /// Another conversation, when the messages were changed since the last began. What waits goes with it.
    pub(super) async fn begin_anew(&self) -> Result<(), AgentError> {
        if !std::mem::take(&mut *lock(&self.is_rewritten)) {
            return Ok(());
        }
        let before = self.key.borrow().clone();
        let id = self.world.ids.fresh();
        if let Err(error) = self.begin(&id).await {
            *lock(&self.is_rewritten) = true;
            return Err(error);
        }
        for item in load::inbox(&self.world, &before).await? {
            let (mode, waiting) = match item.body {
                InboxBody::Steer(waiting) => (Mode::Steer, waiting),
                InboxBody::FollowUp(waiting) => (Mode::FollowUp, waiting),
                InboxBody::Prompt(_)
                | InboxBody::Decision(_)
                | InboxBody::Abort(_)
                | InboxBody::Continue(_)
                | InboxBody::Custom(_)
                | InboxBody::LateResult(_)
                | InboxBody::Command(_) => continue,
            };
            self.keep(held(mode, waiting.input)).await?;
        }
        clear_all(&self.world, &before, None).await?;
        Ok(())
    }

    /// Keeps a request in the conversation that is followed.
    pub(super) async fn keep(&self, request: PromptRequest) -> Result<PromptId, AgentError> {
        let world = self.world();
        let key = self.key.borrow().clone();
        let name = self.fresh();
        accept_prompt(&world, &key, request, &name, &sender()).await?;
        Ok(PromptId::of(&name.input_id(&key)))
    }

    /// What a folder holds from before: its messages; and behind which event to listen.
    async fn remember(&self) -> Result<u64, AgentError> {
        let key = self.key.borrow().clone();
        let (head, _) = load::head(&self.world, &key).await?;
        let entries = load::all_entries(&self.world, &head).await?;
        let path = crate::agent::path::path(&entries, head.leaf_id.as_ref());
        let messages: Vec<Message> =
            path.iter().filter_map(|entry| entry.body.message().cloned()).collect();
        lock(&self.seen).messages = messages;
        if head.prompt.is_some() {
            let activity =
                if head.requests.is_empty() { Activity::Running } else { Activity::Waiting };
            self.activity.send_replace(activity);
        }
        Ok(head.event_seq)
    }
}
