//! Child process of an isolated turn: one delivery, with the model, tools and settings of its
//! parent.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::protocol::{
    ChildInit, ChildMessage, IpcFrame, PREFIX_BYTES, ParentMessage, WireTurnError, decode_lengths,
};
use super::remote_ports::ParentConnection;
use crate::PROGRAM_VERSION;
use crate::app::{App, SettingsSource};
use crate::start::agent_files::AgentFiles;
use crate::start::options::ServiceOptions;
use crate::start::start_error::{StartError, io_error};
use crate::start::{service, telemetry_setup};
use turnwheel_azure::credential::Credentials;
use turnwheel_conversation::notification::Notification;
use turnwheel_platform::clock::SystemClock;
use turnwheel_platform::ids::{ConversationKey, SystemIds};
use turnwheel_platform::settings::{self, ServiceSettings};
use turnwheel_platform::telemetry::{LogStyle, Telemetry};
use turnwheel_record::isolator::Isolation;
use turnwheel_record::ledger::spending_limits::SpendingLimits;
use turnwheel_record::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_record::services::{Limits, ServicePorts, Services};
use turnwheel_turn::delivery::handle;

/// Runs the turn that the parent assigns.
///
/// # Errors
/// No parent started this process, or its set-up failed: print the error to standard error and
/// exit. The operator sees it in the output of the parent.
pub(crate) async fn run(app: App) -> Result<(), StartError> {
    let (parent, init) = connect_parent().map_err(io_error("connect to the parent process"))?;
    raise_oom_score();
    let _ignored = ignore_stop_signals().map_err(io_error("handle signals"))?;
    let settings = read_settings(&init)?;
    let style = match init.settings {
        SettingsSource::Local => LogStyle::dev(),
        SettingsSource::Environment => LogStyle::for_handler(settings.is_in_azure),
    };
    let is_forwarded = matches!(init.settings, SettingsSource::Environment);
    let telemetry = telemetry_setup::start_telemetry(&settings, style, is_forwarded)
        .map_err(io_error("start telemetry"))?;
    let nudge = init.nudge.clone();
    let services = build_services(app, &settings, init, &parent, telemetry.clone())?;
    let outcome = Box::pin(handle(&services, &nudge)).await;
    parent.send(&ChildMessage::Ended(outcome.map_err(WireTurnError::from)), b"");
    telemetry.stop().await;
    Ok(())
}

/// Connects to the parent, reads the first frame and starts the thread that reads its messages.
fn connect_parent() -> std::io::Result<(Arc<ParentConnection>, ChildInit)> {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let init = read_frame(&mut socket)?.parse()?;
    let parent = ParentConnection::new(socket.try_clone()?);
    let messages = Arc::clone(&parent);
    std::thread::Builder::new()
        .name("parent".to_owned())
        .spawn(move || serve_until_exit(socket, &messages))?;
    Ok((parent, init))
}

/// Reads messages until the socket closes, then exits the process. Without its parent, this process
/// cannot commit any result.
#[expect(clippy::exit, reason = "no tool call may continue after the end of the parent")]
fn serve_until_exit(socket: UnixStream, parent: &ParentConnection) {
    read_messages(socket, parent);
    std::process::exit(1)
}

fn read_messages(mut socket: UnixStream, parent: &ParentConnection) {
    while let Ok(frame) = read_frame(&mut socket) {
        match frame.parse() {
            Ok(ParentMessage::Reply(reply)) => parent.deliver_reply(reply, frame.bytes),
            Ok(ParentMessage::Stop(times)) => parent.shutdown.begin(times),
            Err(_) => break,
        }
    }
}

fn read_frame(socket: &mut UnixStream) -> std::io::Result<IpcFrame> {
    let mut prefix = [0; PREFIX_BYTES];
    socket.read_exact(&mut prefix)?;
    let (json, bytes) = decode_lengths(prefix);
    let mut part = |length: usize| {
        let mut part = vec![0; length];
        socket.read_exact(&mut part).map(|()| Bytes::from(part))
    };
    Ok(IpcFrame { json: part(json)?, bytes: part(bytes)? })
}

impl IpcFrame {
    fn parse<T: DeserializeOwned>(&self) -> std::io::Result<T> {
        Ok(serde_json::from_slice(&self.json)?)
    }
}

/// Makes Linux kill this process before its parent when memory runs out.
fn raise_oom_score() {
    if cfg!(target_os = "linux") {
        // Ignoring an error is safe: Linux otherwise kills the largest process, which is probably
        // this one.
        let _ = std::fs::write("/proc/self/oom_score_adj", "800");
    }
}

/// Ignores stop signals. The parent handles them: it sends the times that are left, and its exit ends
/// this process.
fn ignore_stop_signals() -> std::io::Result<[Signal; 2]> {
    Ok([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?])
}

fn read_settings(init: &ChildInit) -> Result<ServiceSettings, StartError> {
    let settings = match init.settings {
        SettingsSource::Environment => ServiceSettings::read(settings::environment),
        SettingsSource::Local => crate::start::options::read_settings(),
    };
    let settings = settings.map_err(StartError::from)?;
    Ok(match &init.payments_url {
        Some(url) => settings.with_app_setting("PAYMENTS_URL", url.clone()),
        None => settings,
    })
}

fn build_services(
    app: App,
    settings: &ServiceSettings,
    init: ChildInit,
    parent: &Arc<ParentConnection>,
    telemetry: Telemetry,
) -> Result<Services, StartError> {
    let options = ServiceOptions {
        root: init.root,
        agents: init.agents,
        is_hosted: true,
        telemetry: telemetry.clone(),
        ..ServiceOptions::default()
    };
    let credentials = Credentials::default();
    let (files, loaded, model) = service::load_with_model(settings, &credentials, || {
        let mut files = AgentFiles::new(&app, settings, &options, &credentials)?;
        files.own_ports().set(init.own_ports);
        let loaded = files.load_active(init.active_agents);
        Ok((files, loaded))
    })?;
    let notification_sender = init
        .stores_notifications
        .then(|| Arc::new(ParentNotificationSender) as Arc<dyn NotificationSender>);
    let limits = Limits {
        turn_duration: Duration::from_millis(init.turn_ms),
        settle_after: Duration::from_millis(init.settle_after_ms),
        ..service::turn_limits(settings, false)
    };
    let ports = ServicePorts {
        store: Arc::clone(parent) as _,
        queue: Arc::clone(parent) as _,
        artifacts: Arc::clone(parent) as _,
        live: Arc::clone(parent) as _,
        model,
        clock: Arc::new(SystemClock::default()),
        ids: Arc::new(SystemIds),
    };
    Ok(Services {
        agents: loaded.catalog.into(),
        extensions: app.registrations.extensions,
        extension_error_listeners: app.registrations.error_listeners,
        hook_client: files.hook_client(),
        notification_sender,
        limits,
        spending_limits: Arc::new(SpendingLimits::new(&settings.budgets, &settings.rate_limits)),
        pauses: Arc::new(settings.pauses.clone()),
        isolation: Isolation::InIsolatedProcess,
        shutdown: parent.shutdown.clone(),
        telemetry,
        build: PROGRAM_VERSION,
        ..Services::new(init.worker, ports)
    })
}

/// Marks notifications as enabled. This process only stores notifications; the parent receives
/// their nudges and sends them.
#[derive(Debug)]
struct ParentNotificationSender;

#[async_trait]
impl NotificationSender for ParentNotificationSender {
    async fn send(&self, _key: &ConversationKey, _notice: &Notification) -> SendOutcome {
        SendOutcome::RetryLater("an isolated process sends no notifications".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::ChildProcessIsolator;
    use super::super::protocol::encode_frame;
    use super::*;
    use crate::start::test_services::TestServices;
    use turnwheel_json::raw::RawJson;
    use turnwheel_platform::clock::Timestamp;
    use turnwheel_platform::ids::{ConversationId, EffectId, TenantId, UserId, WorkerId};
    use turnwheel_platform::shutdown::StopTimes;
    use turnwheel_record::nudge::Nudge;
    use turnwheel_tools::{Arguments, CheckContext};

    /// The port reaches the address rules by way of the isolator, the first frame and the agent files.
    #[tokio::test]
    async fn tools_of_child_reach_no_port_of_the_parent() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("agents")).unwrap();
        let text = "---\ntools:\n  - scrape\n---\nYou help.\n";
        std::fs::write(root.path().join("agents/ops.agent.md"), text).unwrap();
        let options = ServiceOptions { root: root.path().to_owned(), ..ServiceOptions::default() };
        let lookup = |name: &str| (name == "TURNWHEEL_MODEL").then(|| "scripted".to_owned());
        let settings = ServiceSettings::read(lookup).unwrap();
        let mut files =
            AgentFiles::new(&App::new(), &settings, &options, &Credentials::default()).unwrap();
        let loaded = files.load().unwrap();
        files.own_ports().set(vec![7071]);
        let isolator = ChildProcessIsolator::new(SettingsSource::Environment, None, &options)
            .with_own_ports(files.own_ports().clone());
        let services = TestServices::new(Timestamp(0)).services;
        let services = Services { agents: loaded.catalog.into(), ..services };
        let key = ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new("c"),
        };
        let nudge = Nudge::for_conversation(key.clone(), None);
        let init = isolator.build_init(&services, &nudge, &WorkerId::new("w"));
        let (_parent_socket, child_socket) = UnixStream::pair().unwrap();
        let parent = ParentConnection::new(child_socket);
        let child =
            build_services(App::new(), &settings, init, &parent, Telemetry::default()).unwrap();
        let agent = child.agents.find(Some("ops")).unwrap();
        let context = CheckContext {
            effect_id: &EffectId::new("tw_c_0a1b2c3d_1_0"),
            attempts: 0,
            now: Timestamp(0),
            conversation: &key,
            memory: None,
            user_skills: None,
        };
        for (port, is_allowed) in [(7071, false), (7072, true)] {
            let url = format!("http://127.0.0.1:{port}/api/conversations");
            let arguments = RawJson::from_value(&serde_json::json!({"url": url}));
            let arguments = Arguments::from_text(arguments);
            let checked = agent.tools[0].check_arguments(&arguments, &context).await;
            assert_eq!(checked.is_ok(), is_allowed, "{port}: {checked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stop_of_the_parent_begins_the_end() {
        let (mut parent_socket, child_socket) = UnixStream::pair().unwrap();
        let parent = ParentConnection::new(child_socket.try_clone().unwrap());
        let times =
            StopTimes { repeatable: Duration::from_secs(4), writes: Duration::from_secs(9) };
        let stop = encode_frame(&ParentMessage::Stop(times), b"").unwrap();
        parent_socket.write_all(&stop).unwrap();
        drop(parent_socket);
        assert!(!parent.shutdown.is_begun());
        read_messages(child_socket, &parent);
        assert_eq!(parent.shutdown.times_left(), Some(times));
    }
}
