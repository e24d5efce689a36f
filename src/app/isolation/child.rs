//! Child process of an isolated turn: one delivery, with the model, tools and settings of its
//! parent.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ports::Parent;
use super::wire::{Beginning, Frame, FromChild, PREFIX, SettingsSource, TurnFault, lengths};
use crate::agent::notice::Notice;
use crate::app::App;
use crate::app::agent_files::AgentFiles;
use crate::app::ports::Storage;
use crate::app::service::{self, ServiceOptions, StartError, io};
use crate::app::voice;
use crate::azure::credential::Credentials;
use crate::clock::{Clock, SystemClock};
use crate::ids::{ConversationKey, Ids, SystemIds};
use crate::settings::{self, Settings};
use crate::telemetry::{Style, Telemetry};
use crate::turn::delivery::handle;
use crate::turn::money::Money;
use crate::turn::notify::{Herald, Told};
use crate::turn::{EntryMemory, Isolation, Limits, NoProbe, Stops, World};

/// Runs the turn that the parent assigns.
///
/// # Errors
/// No parent started this process, or its set-up failed: print the error to standard error and
/// exit. The operator sees it in the output of the parent.
pub(in crate::app) async fn run(app: App) -> Result<(), StartError> {
    let (parent, beginning) =
        connect().map_err(io("connect to the parent process"))?;
    volunteer();
    let _ignored = ignore_stops().map_err(io("handle signals"))?;
    let settings = read_settings(&beginning)?;
    let style = match beginning.settings {
        SettingsSource::Local => Style::dev(),
        SettingsSource::Environment => Style::served(settings.is_in_azure),
    };
    let is_carried = matches!(beginning.settings, SettingsSource::Environment);
    let telemetry = voice::start(&settings, style, is_carried).map_err(io("start telemetry"))?;
    let nudge = beginning.nudge.clone();
    let world = world(app, &settings, beginning, (&parent, telemetry.clone()))?;
    let outcome = Box::pin(handle(&world, &nudge)).await;
    parent.send(&FromChild::Ended(outcome.map_err(TurnFault::from)), b"");
    telemetry.stop().await;
    Ok(())
}

/// Connects to the parent, reads the first frame and starts the thread that reads replies.
fn connect() -> std::io::Result<(Arc<Parent>, Beginning)> {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let beginning = read(&mut socket)?.message()?;
    let parent = Parent::over(socket.try_clone()?);
    let replies = Arc::clone(&parent);
    std::thread::Builder::new()
        .name("parent".to_owned())
        .spawn(move || listen(socket, &replies))?;
    Ok((parent, beginning))
}

/// Reads replies until the socket closes, then exits the process. Without its parent, this process
/// cannot commit any result.
#[expect(clippy::exit, reason = "no tool call may continue after the end of the parent")]
fn listen(mut socket: UnixStream, parent: &Parent) {
    while let Ok(frame) = read(&mut socket) {
        let bytes = frame.bytes.clone();
        match frame.message() {
            Ok(reply) => parent.take(reply, bytes),
            Err(_) => break,
        }
    }
    std::process::exit(1)
}

fn read(socket: &mut UnixStream) -> std::io::Result<Frame> {
    let mut prefix = [0; PREFIX];
    socket.read_exact(&mut prefix)?;
    let (json, bytes) = lengths(prefix);
    let mut part = |length: usize| {
        let mut part = vec![0; length];
        socket.read_exact(&mut part).map(|()| Bytes::from(part))
    };
    Ok(Frame { json: part(json)?, bytes: part(bytes)? })
}

impl Frame {
    fn message<T: DeserializeOwned>(&self) -> std::io::Result<T> {
        Ok(serde_json::from_slice(&self.json)?)
    }
}

/// Makes Linux kill this process before its parent when memory runs out.
fn volunteer() {
    if cfg!(target_os = "linux") {
        // Ignoring an error is safe: Linux otherwise kills the largest process, which is probably
        // this one.
        let _ = std::fs::write("/proc/self/oom_score_adj", "800");
    }
}

/// Ignores stop signals. The parent handles a stop: it lets the turn finish, or its exit ends this
/// process.
fn ignore_stops() -> std::io::Result<[Signal; 2]> {
    Ok([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?])
}

fn read_settings(beginning: &Beginning) -> Result<Settings, StartError> {
    let settings = match beginning.settings {
        SettingsSource::Environment => Settings::read(settings::environment),
        SettingsSource::Local => crate::app::commands::read_settings(),
    };
    let settings = settings.map_err(StartError::from)?;
    Ok(match &beginning.payments_url {
        Some(url) => settings.with_app_setting("PAYMENTS_URL", url.clone()),
        None => settings,
    })
}

fn world(
    app: App,
    settings: &Settings,
    beginning: Beginning,
    (parent, telemetry): (&Arc<Parent>, Telemetry),
) -> Result<World, StartError> {
    let options = ServiceOptions {
        root: beginning.root,
        data: PathBuf::new(),
        agents: beginning.agents,
        port: 0,
        handler_port: 0,
        storage: Storage::Embedded,
        is_hosted: true,
        is_dev: false,
        telemetry: telemetry.clone(),
    };
    let credentials = Credentials::default();
    let (_, loaded, model) = service::with_model(settings, &credentials, || {
        let files = AgentFiles::new(&app, settings, &options, &credentials)?;
        let loaded = files.load_in_force(beginning.agents_in_force);
        Ok((files, loaded))
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let ids: Arc<dyn Ids> = Arc::new(SystemIds);
    let herald = beginning.writes_notices.then(|| Arc::new(SentByParent) as Arc<dyn Herald>);
    let limits = Limits {
        turn: Duration::from_millis(beginning.turn_ms),
        settle_after: Duration::from_millis(beginning.settle_after_ms),
        ..service::limits(settings, false)
    };
    Ok(World {
        store: Arc::clone(parent) as _,
        queue: Arc::clone(parent) as _,
        artifacts: Arc::clone(parent) as _,
        live: Arc::clone(parent) as _,
        model,
        agents: loaded.catalog.into(),
        extensions: app.extensions,
        entries: Arc::new(EntryMemory::default()),
        stops: Stops::default(),
        writers: Arc::default(),
        herald,
        clock,
        ids,
        probe: Arc::new(NoProbe),
        worker: beginning.worker,
        limits,
        money: Arc::new(Money::new(&settings.budgets, &settings.rate_limits)),
        brakes: Arc::new(settings.brakes.clone()),
        isolation: Isolation::Inside,
        telemetry,
    })
}

/// Marks notifications as enabled. This process only stores notifications; the parent receives
/// their nudges and sends them.
#[derive(Debug)]
struct SentByParent;

#[async_trait]
impl Herald for SentByParent {
    async fn tell(&self, _key: &ConversationKey, _notice: &Notice) -> Told {
        Told::NotNow("an isolated process sends no notifications".to_owned())
    }
}
