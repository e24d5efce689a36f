//! Start of an agent: services over a data folder, and its conversation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::agent::entry::Source;
use crate::agent::message::Message;
use crate::agent::raw::RawJson;
use crate::agent::settings::{LoopKind, Settings as Wanted};
use crate::agents::{self, Agents, Catalog};
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
use crate::ids::{ConversationKey, Ids, SystemIds, TenantId, UserId, WorkerId};
use crate::live::EmbeddedLive;
use crate::model::Model;
use crate::settings::Settings;
use crate::store::HeadQuery;
use crate::store::embedded::EmbeddedStore;
use crate::telemetry::Telemetry;
use crate::tools::{name_conflicts, sha256_hex};
use crate::turn::admission::Owner;
use crate::turn::admission::conversation::settings_faults;
use crate::turn::admission::prompt::{Sender, WhenBusy};
use crate::turn::views::load;
use crate::turn::{EntryMemory, Isolation, Limits, NoProbe, Stops, World, record, recount};

/// Name of the only agent in the catalog.
pub(super) const NAME: &str = "agent";

/// Builds the catalog with the one agent from its current configuration.
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
        session_id: config.session_id.clone(),
        revision: sha256_hex(written.as_bytes()),
    };
    Catalog {
        agents: BTreeMap::from([(NAME.to_owned(), Arc::new(agent))]),
        broken: BTreeMap::new(),
        texts: BTreeMap::new(),
        default_agent: None,
    }
}

pub(super) fn sender() -> Sender {
    Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Refuse }
}

/// Selects the agent loop by default, which has no limit of rounds.
fn agents_loop(settings: Wanted) -> Wanted {
    let loop_kind = settings.loop_kind.or(Some(LoopKind::Agent));
    Wanted { loop_kind, ..settings }
}

/// Returns one sentence for each mistake in the tools and settings.
fn mistakes(world: &World, config: &Config) -> Vec<String> {
    let mut mistakes = name_conflicts(&config.tools);
    let Ok(agent) = world.agents.find(None) else { return mistakes };
    let faults = settings_faults(world, &agent, &config.settings);
    mistakes.extend(faults.into_iter().map(|fault| fault.detail));
    mistakes
}

fn model_from_environment() -> Result<Arc<dyn Model>, AgentError> {
    let settings = Settings::of_environment().map_err(StartError::from)?;
    model_of(&settings, &Credentials::default()).map_err(AgentError::Mistakes)
}

/// Opens the services of the engine over a data folder.
pub(super) async fn world(
    data: &Path,
    model: Arc<dyn Model>,
    agents: Agents,
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
        writers: Arc::default(),
        limits: Limits::default(),
        money: Arc::default(),
        brakes: Arc::default(),
        isolation: Isolation::default(),
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
            None => Some(tempfile::tempdir().map_err(io("create a temporary folder"))?),
        };
        let own = folder.as_ref().map(|folder| folder.path().to_owned());
        let data = builder.data.or(own).unwrap_or_default();
        let config = Config {
            system_prompt: builder.system_prompt,
            settings: agents_loop(builder.settings),
            tools: builder.tools,
            session_id: builder.session_id,
        };
        let agents = Agents::from(catalog(&config));
        let world = world(&data, models, agents, builder.extensions).await?;
        let mistakes = mistakes(&world, &config);
        if !mistakes.is_empty() {
            return Err(AgentError::Mistakes(mistakes));
        }
        let owner = Owner { tenant: TenantId::new("default"), user: UserId::new("default") };
        let found = newest(&world, &owner).await?;
        let is_new = found.is_none() || !builder.messages.is_empty();
        let key = found.unwrap_or_else(|| owner.key(""));
        let inner = Arc::new(Inner {
            owner,
            config: Mutex::new(config),
            key: watch::Sender::new(key),
            seen: Mutex::new(Seen::default()),
            moving: tokio::sync::Mutex::default(),
            activity: watch::Sender::new(Activity::default()),
            listeners: Mutex::default(),
            _folder: folder,
            world,
        });
        let after = if is_new {
            lock(&inner.seen).messages = builder.messages;
            inner.begin(None).await?;
            0
        } else {
            inner.remember().await?
        };
        recount::start_up(&inner.world).await.map_err(io("read pending work"))?;
        let turning = start(driver::turn(Arc::clone(&inner)));
        let telling = start(driver::tell(Arc::clone(&inner), after));
        Ok(Self { inner, _tasks: Arc::new([turning, telling]) })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends with the agent; its work is stored in the folder and recovered later"
)]
fn start(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

/// Returns the newest conversation of the folder.
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
    /// Loads messages and run state from the folder, and completes a switch of conversations that a
    /// crash interrupted. Returns the number of the last stored event.
    async fn remember(&self) -> Result<u64, AgentError> {
        let key = self.key.borrow().clone();
        let (head, _) = load::head(&self.world, &key).await?;
        let mut moving = self.left_by(&head.metadata);
        self.bring_left(&mut moving).await?;
        *self.moving.lock().await = moving;
        let (inbox, head) = load::inbox_then_head(&self.world, &key).await?;
        let entries = load::all_entries(&self.world, &head).await?;
        let path = crate::agent::path::path(&entries, head.leaf_id.as_ref());
        let messages: Vec<Message> =
            path.iter().filter_map(|entry| entry.body.message().cloned()).collect();
        lock(&self.seen).messages = messages;
        let is_to_come = load::to_come(&head, &inbox).next().is_some();
        self.activity.send_replace(Activity::of(&head, is_to_come));
        Ok(head.event_seq)
    }
}
