//! Routes of the handler: the functions and the API.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;

use crate::start::deployed_functions::find_refusal;
use crate::start::function_handlers::FunctionHandlers;
use crate::start::local_turns::LocalTurns;
use crate::start::owner_turns::OwnerTurns;
use crate::start::read_check::ReadCheck;
use crate::start::work_file::WorkFile;
use turnwheel_commands::waiting_client::WaitingClients;
use turnwheel_http::Api;
use turnwheel_http::api::ProcessIdentity;
use turnwheel_http::approval_token::SigningKeys;
use turnwheel_http::auth::Access;
use turnwheel_http::doctor::Doctor;
use turnwheel_http::functions::functions_router;
use turnwheel_http::host_names::check_host_name;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_record::services::Services;
use turnwheel_turn::clock_change::ClockWatch;

/// Parts of the API beside the services.
pub(crate) struct ApiParts {
    pub(crate) keys: SigningKeys,
    pub(crate) process: Option<ProcessIdentity>,
    pub(crate) doctor: Option<Arc<dyn Doctor>>,
}

/// Routes of the functions and the API.
pub(crate) fn build_router(
    services: &Arc<Services>,
    settings: &ServiceSettings,
    parts: ApiParts,
    work_file: Option<Arc<WorkFile>>,
) -> Router {
    let access = Access { refusal: find_refusal(settings), ..Access::from_settings(settings) };
    let ApiParts { keys, process, doctor } = parts;
    let functions = Arc::new(FunctionHandlers {
        services: Arc::clone(services),
        work_file,
        read_check: ReadCheck::new(settings),
        clock_watch: ClockWatch::new(&*services.clock),
        owner_turns: OwnerTurns::new(settings.owner_turns_max),
    });
    let turns = Arc::new(LocalTurns::new(Arc::clone(&functions)));
    let waiting_clients = Some(Arc::new(WaitingClients::new(turns)));
    let api = Api::new(Services::clone(services), access, keys);
    let api = Api { process, doctor, waiting_clients, ..api };
    let (shutdown, api) = (services.shutdown.clone(), Arc::new(api));
    let check_host_name = from_fn_with_state(Arc::clone(&api), check_host_name);
    functions_router(functions, shutdown, services.limits.turn_duration)
        .layer(check_host_name)
        .merge(turnwheel_http::router(api))
}
