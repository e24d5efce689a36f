//! The service: its ports, the handler and, without a Functions host, the built-in local host.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::PROGRAM_VERSION;
use crate::app::App;
use crate::start::agent_files::AgentFiles;
use crate::start::deployed_functions::check_invocation_settings;
use crate::start::fail_point::HaltingFailPoints;
use crate::start::function_handlers::STOP_TIMEOUT;
use crate::start::handler_port::HandlerPort;
use crate::start::hosted_process::{self, HostProcess};
use crate::start::instance_memory::InstanceMemory;
use crate::start::kill_switch::KillSwitch;
use crate::start::model::{create_model, require_model};
use crate::start::options::ServiceOptions;
use crate::start::ports::{self, PortContext, Ports};
use crate::start::router::{ApiParts, build_router};
use crate::start::shared_user::{has_shared_user, shared_user_note};
use crate::start::signing_keys::{create_link_maker, load_signing_keys};
use crate::start::start_error::{StartError, io_error};
use crate::start::turn_duration::turn_duration;
use crate::start::work_file::WorkFile;
use crate::start::{
    dead_processes, example_payments, hosted_start, local_turns, prices, tool_programs,
};
use turnwheel_agent_files::LoadedAgents;
use turnwheel_agent_files::payments::PaymentsServer;
use turnwheel_azure::credential::Credentials;
use turnwheel_azurite::Azurite;
use turnwheel_devhost::{HostError, HostOptions, RunningHost, ScriptRoot};
use turnwheel_model::Model;
use turnwheel_platform::clock::{Clock, SystemClock};
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_platform::ids::{Ids, SystemIds, WorkerId};
use turnwheel_platform::server::ServerLimits;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::loopback_port;
use turnwheel_platform::settings::pauses::Pauses;
use turnwheel_record::entry_cache::EntryCache;
use turnwheel_record::isolator::Isolation;
use turnwheel_record::ledger::spending_limits::SpendingLimits;
use turnwheel_record::notifications::sender::NotificationSender;
use turnwheel_record::notifications::webhook::{ApprovalLinkMaker, ConsoleSender, WebhookSender};
use turnwheel_record::services::{Limits, ServicePorts, Services};
use turnwheel_storage::queue::Queue;
use turnwheel_storage::queue::output_binding::OutputBindingQueue;
use turnwheel_storage::store::embedded::EmbeddedStore;
use turnwheel_tools::http::address_rules::OwnPorts;
use turnwheel_turn::crash_count;

#[cfg(unix)]
use crate::start::child_doctor::create_doctor;
#[cfg(unix)]
use crate::start::isolation::ChildProcessIsolator;
use turnwheel_devhost as host;

/// A started service with its TCP ports and data folder. It processes work during
/// [`RunningService::run`].
#[derive(Debug)]
pub struct RunningService {
    /// Local host. `None` if a Functions host drives the handler.
    host: Option<RunningHost>,
    handler: Handler,
    services: Arc<Services>,
    /// True if this is the only process on the store: leases of an earlier process are then void.
    is_single_process: bool,
    /// True if the previous process was killed by request.
    was_kill_requested: bool,
    host_process: HostProcess,
    /// Set behind the Functions host.
    work_file: Option<Arc<WorkFile>>,
    /// Set in `dev`: reloaded after changes.
    agent_files: Option<AgentFiles>,
    embedded: Option<Arc<EmbeddedStore>>,
    /// Payments server of the example. It and the emulator stop with the service.
    payments: Option<PaymentsServer>,
    emulator: Option<Azurite>,
}

#[derive(Debug)]
struct Handler {
    port: HandlerPort,
    router: Router,
}

fn log_pauses(pauses: &Pauses) {
    if !pauses.is_empty() {
        let targets = pauses.to_vec().join(", ");
        tracing::warn!(
            "paused by TURNWHEEL_PAUSED: {targets}; pending work is kept and not started"
        );
    }
}

/// Opens the ports of the app, then that of the handler.
async fn open_ports(
    options: &ServiceOptions,
    context: &PortContext<'_>,
) -> Result<(Ports, HandlerPort), StartError> {
    if options.is_hosted {
        return Box::pin(hosted_start::open_ports(options, context)).await;
    }
    let ports = ports::open_ports(&options.storage, context).await?;
    Ok((ports, HandlerPort::bind(options.handler_port)?))
}

impl App {
    fn check_registrations(&mut self) -> Result<(), StartError> {
        self.registrations.check_extensions();
        let mistakes = std::mem::take(&mut self.registrations.mistakes);
        if mistakes.is_empty() { Ok(()) } else { Err(StartError::Settings(mistakes)) }
    }

    /// Starts the service with validated settings.
    ///
    /// # Errors
    /// Print the error and exit; each names the fix.
    #[expect(clippy::too_many_lines, reason = "the parts start in this order")]
    pub(crate) async fn start(
        mut self,
        settings: ServiceSettings,
        options: ServiceOptions,
    ) -> Result<RunningService, StartError> {
        let port = example_payments::port_of(&options.data);
        let prepared = example_payments::start(settings, port).await?;
        let settings = &prepared.settings;
        self.check_registrations()?;
        let credentials = Credentials::default();
        let (files, loaded, model) =
            load_agents_and_model(&self, settings, &options, &credentials)?;
        require_model(&*model, &loaded.catalog, options.is_dev)?;
        log_pauses(&settings.pauses);
        check_invocation_settings(settings, &options)?;
        let turn_duration = turn_duration(settings, &options.root)?;
        if let Some(note) = shared_user_note(settings, &loaded.catalog) {
            tracing::warn!("{note}");
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let ids: Arc<dyn Ids> = Arc::new(SystemIds);
        let worker = WorkerId::new(ids.new_id());
        let context = PortContext {
            settings,
            credentials: &credentials,
            data: &options.data,
            clock: &clock,
            ids: &ids,
            worker: &worker,
        };
        let (ports, port) = open_ports(&options, &context).await?;
        let handler = port.address().map_err(io_error("read the port of the handler"))?;
        let host = start_local_host(&options, &context, handler, &ports.queue).await?;
        let host_port = host.as_ref().map(|host| host.address().port());
        let functions_host = settings.app_setting("WEBSITE_HOSTNAME");
        let functions_port = functions_host.as_deref().and_then(loopback_port);
        let own_ports = [Some(handler.port()), host_port, functions_port];
        files.own_ports().set(own_ports.into_iter().flatten().collect());
        let address = host.as_ref().map(|host| format!("http://{}", host.address()));
        if let (Some(store), Some(address)) = (&ports.embedded, &address) {
            store.set_lock_note(address).map_err(io_error("write into the data folder"))?;
        }
        let keys = load_signing_keys(settings, &options.data)?;
        let public_url = settings.public_url.clone().or(address).unwrap_or_default();
        let links = create_link_maker(keys.clone(), public_url.clone());
        let notification_sender = create_notification_sender(settings, &clock, links, public_url)?;
        let kill_switch = options.supervision.as_ref().map(|_| {
            let (clock, shutdown) = (Arc::clone(&clock), options.shutdown.clone());
            KillSwitch::new(&options.data, ids.new_id(), clock, shutdown)
        });
        let live = match &kill_switch {
            Some(switch) => switch.live(ports.live),
            None => ports.live,
        };
        let service_ports = ServicePorts {
            store: ports.store,
            queue: OutputBindingQueue::wrap(ports.queue),
            artifacts: ports.artifacts,
            live,
            model,
            clock,
            ids,
        };
        let services = Arc::new(Services {
            agents: loaded.catalog.into(),
            isolation: turn_isolation(&self, settings, &options, files.own_ports()),
            extensions: self.registrations.extensions,
            extension_error_listeners: self.registrations.error_listeners,
            hook_client: files.hook_client(),
            entry_cache: Arc::new(create_entry_cache(ports.embedded.is_some())),
            notification_sender,
            fail_points: create_fail_points(settings, &options.data, kill_switch.as_ref()),
            limits: Limits { turn_duration, ..turn_limits(settings, ports.embedded.is_some()) },
            spending_limits: Arc::new(spending_limits(settings)),
            pauses: Arc::new(settings.pauses.clone()),
            telemetry: options.telemetry,
            shutdown: options.shutdown,
            build: PROGRAM_VERSION,
            ..Services::new(worker, service_ports)
        });
        let work_file = options
            .is_hosted
            .then(|| dead_processes::create_work_file(settings, &services))
            .flatten();
        let process = kill_switch.as_ref().map(|switch| switch.process());
        #[cfg(unix)]
        let doctor =
            self.child_settings.map(|_| create_doctor(&options.data, options.agents.as_deref()));
        #[cfg(not(unix))]
        let doctor = None;
        let parts = ApiParts { keys, process, doctor };
        let router = build_router(&services, settings, parts, work_file.clone());
        let own_routes = kill_switch.as_ref().map(KillSwitch::router).unwrap_or_default();
        let replaced = options.supervision.and_then(|it| it.replaced);
        let was_kill_requested = kill_switch
            .zip(replaced)
            .is_some_and(|(switch, replaced)| switch.was_requested(replaced.id));
        Ok(RunningService {
            host: host
                .map(|host| host.with_local_handler(router.clone()).with_own_routes(own_routes)),
            handler: Handler { port, router },
            services,
            is_single_process: ports.embedded.is_some(),
            was_kill_requested,
            host_process: options.host_process,
            work_file,
            agent_files: Some(files).filter(|_| options.is_dev),
            embedded: ports.embedded,
            payments: prepared.payments,
            emulator: ports.emulator,
        })
    }
}

impl RunningService {
    /// Address of the HTTP API: that of the local host, else of the handler.
    ///
    /// # Errors
    /// The operating system cannot return the address of the handler: print the error and exit.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.host.as_ref().map_or_else(|| self.handler.port.address(), |host| Ok(host.address()))
    }

    /// The store, if it is in the data folder.
    pub(crate) fn embedded_store(&self) -> Option<Arc<EmbeddedStore>> {
        self.embedded.clone()
    }

    /// Names of the available agents.
    pub fn agents(&self) -> Vec<String> {
        self.services.agents.current().agents.keys().cloned().collect()
    }

    pub(crate) fn services(&self) -> &Services {
        &self.services
    }

    /// Runs until `stop` is cancelled, then lets active turns finish within a time limit. Behind the
    /// Functions host it runs until [`hosted_process::wait_for_end`].
    ///
    /// # Errors
    /// A part of the service failed: print the error and exit.
    pub async fn run(self, stop: CancellationToken) -> Result<(), StartError> {
        let Self {
            host,
            handler,
            services,
            is_single_process,
            was_kill_requested,
            host_process,
            work_file,
            agent_files,
            embedded,
            payments,
            emulator,
        } = self;
        let handler_stop = CancellationToken::new();
        // Dropping the set at the end of this function aborts its task.
        let mut watch_tasks = JoinSet::new();
        if let Some(files) = agent_files {
            let (agents, stop) = (services.agents.clone(), handler_stop.clone());
            watch_tasks.spawn(tool_programs::watch(agents, stop));
            watch_tasks.spawn(files.watch(services.agents.clone(), handler_stop.clone()));
        }
        let mut tasks = handler.port.serve(handler.router, handler_stop.clone());
        if is_single_process {
            let recovered = if was_kill_requested {
                crash_count::recover_after_requested_kill(&services).await
            } else {
                crash_count::recover_at_start_up(&services).await
            };
            recovered.map_err(io_error("read pending work"))?;
        }
        if let Some(work_file) = work_file {
            let services = Arc::clone(&services);
            watch_tasks.spawn(dead_processes::recover_dead_processes(services, work_file));
        }
        let outcome = if let Some(host) = host {
            let outcome = local_turns::run_host(host, &stop, &services.shutdown).await;
            handler_stop.cancel();
            let _ = tokio::time::timeout(STOP_TIMEOUT, tasks.join_next()).await;
            outcome
        } else {
            hosted_process::wait_for_end(host_process, &services.shutdown, stop).await;
            Ok(())
        };
        if let Some(store) = &embedded {
            store.discard_leases();
        }
        drop((payments, emulator));
        outcome.map_err(StartError::Host)
    }
}

/// Isolation of suspect turns: in child processes if this program runs the commands of
/// [`App::main`].
#[cfg(unix)]
fn turn_isolation(
    app: &App,
    settings: &ServiceSettings,
    options: &ServiceOptions,
    own_ports: &OwnPorts,
) -> Isolation {
    let payments_url = settings.app_setting("PAYMENTS_URL");
    app.child_settings.map_or_else(Isolation::default, |source| {
        let isolator = ChildProcessIsolator::new(source, payments_url, options);
        Isolation::Isolator(Arc::new(isolator.with_own_ports(own_ports.clone())))
    })
}

#[cfg(not(unix))]
fn turn_isolation(
    _app: &App,
    _settings: &ServiceSettings,
    _options: &ServiceOptions,
    _own_ports: &OwnPorts,
) -> Isolation {
    Isolation::default()
}

/// Limits of turns. With the embedded store, usage is posted to the ledger after 1 s: a delivery
/// costs nothing there, and developers expect to see usage at once.
pub(crate) fn turn_limits(settings: &ServiceSettings, is_single_process: bool) -> Limits {
    let limits = Limits::default();
    Limits {
        settle_after: if is_single_process { Duration::from_secs(1) } else { limits.settle_after },
        hook_timeout: settings.hook_timeout.unwrap_or(limits.hook_timeout),
        has_shared_user: has_shared_user(settings),
        extension_prompts_max: settings
            .extension_prompts_max
            .unwrap_or(limits.extension_prompts_max),
        ..limits
    }
}

fn spending_limits(settings: &ServiceSettings) -> SpendingLimits {
    SpendingLimits::new(&settings.budgets, &settings.rate_limits)
}

/// Entry cache. With the embedded store, a second read of entries only reads a file.
fn create_entry_cache(is_single_process: bool) -> EntryCache {
    if is_single_process {
        return EntryCache::for_active_conversations();
    }
    EntryCache::with_capacity(InstanceMemory::read().entry_cache_bytes())
}

/// Starts the local host, which drives the handler. Behind the Functions host there is none.
async fn start_local_host(
    options: &ServiceOptions,
    context: &PortContext<'_>,
    handler: SocketAddr,
    queue: &Arc<dyn Queue>,
) -> Result<Option<RunningHost>, StartError> {
    if options.is_hosted {
        return Ok(None);
    }
    let mut root =
        ScriptRoot::find(&options.root).map_err(|problem| HostError::Files(vec![problem]))?;
    if !context.settings.has_console() {
        root.functions.remove(host::CONSOLE_FUNCTION);
    }
    let (_, functions) = root.read().map_err(HostError::Files)?;
    let problems = host::route_problems(&root, &functions);
    if !problems.is_empty() {
        return Err(HostError::Files(problems).into());
    }
    let host = host::start(HostOptions {
        port: options.port,
        port_wait: options.port_wait(),
        root,
        handler: handler
            .to_string()
            .parse()
            .map_err(io_error("parse the address of the handler"))?,
        queues: Arc::clone(queue),
        clock: Arc::clone(context.clock),
        ids: Arc::clone(context.ids),
        keys: None,
        timers: host::TimerStatuses::default(),
        json: host::JsonReader::default(),
        host_names: context.settings.public_host().into_iter().collect(),
        allowed_origins: context.settings.allowed_origins.clone(),
        lease: host::LEASE,
        idle_max: host::IDLE_MAX,
        grace: crate::start::function_handlers::DEV_STOP_TIMEOUT,
        bounds: ServerLimits::LOCAL_HOST,
    });
    Ok(Some(host.await?))
}

fn load_agents_and_model(
    app: &App,
    settings: &ServiceSettings,
    options: &ServiceOptions,
    credentials: &Credentials,
) -> Result<(AgentFiles, LoadedAgents, Arc<dyn Model>), StartError> {
    load_with_model(settings, credentials, || {
        let mut files = AgentFiles::new(app, settings, options, credentials)?;
        files.load().map(|loaded| (files, loaded))
    })
}

/// Loads agents and creates the model in parallel. Both read the system's certificates, which takes
/// most of a cold start.
pub(crate) fn load_with_model(
    settings: &ServiceSettings,
    credentials: &Credentials,
    load: impl FnOnce() -> Result<(AgentFiles, LoadedAgents), StartError>,
) -> Result<(AgentFiles, LoadedAgents, Arc<dyn Model>), StartError> {
    let (loaded, model) = std::thread::scope(|scope| {
        let model = scope.spawn(|| create_model(settings, credentials));
        let loaded = load();
        (loaded, model.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let ((files, loaded), model) = (loaded?, model.map_err(StartError::Settings)?);
    prices::log_unpriced_models(&settings.budgets, &*model, &loaded.catalog);
    Ok((files, loaded, model))
}

/// Notification sender: the webhook of the settings. Without one, the console outside Azure, where
/// a developer needs the approval links.
fn create_notification_sender(
    settings: &ServiceSettings,
    clock: &Arc<dyn Clock>,
    links: ApprovalLinkMaker,
    base_url: String,
) -> Result<Option<Arc<dyn NotificationSender>>, StartError> {
    let Some(webhook) = &settings.webhook else {
        let console: Arc<dyn NotificationSender> = Arc::new(ConsoleSender::new(
            links,
            base_url,
            Arc::new(crate::start::console::print_line),
        ));
        return Ok(Some(console).filter(|_| !settings.is_in_azure));
    };
    let secrets = webhook.secrets.iter().map(|secret| secret.reveal().clone()).collect();
    let url = webhook.url.reveal().clone();
    let webhook = WebhookSender::new(url, secrets, webhook.format, Arc::clone(clock), links);
    Ok(Some(Arc::new(webhook.map_err(io_error("set up TLS"))?)))
}

fn create_fail_points(
    settings: &ServiceSettings,
    data: &Path,
    kill_switch: Option<&Arc<KillSwitch>>,
) -> Arc<dyn FailPoints> {
    match (&settings.armed_fail_point, kill_switch) {
        (Some(at), _) => Arc::new(HaltingFailPoints::new(at.clone(), data)),
        (None, Some(switch)) => switch.fail_points(),
        (None, None) => Arc::new(NoFailPoints),
    }
}
