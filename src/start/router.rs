//! Routes of the handler: the functions and the API.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;

use crate::start::deployed_functions::find_refusal;
use crate::start::function_handlers::FunctionHandlers;
use crate::start::owner_turns::OwnerTurns;
use crate::start::read_check::ReadCheck;
use crate::start::work_file::WorkFile;
use turnwheel_http::Api;
use turnwheel_http::api::ProcessIdentity;
use turnwheel_http::approval_token::SigningKeys;
use turnwheel_http::auth::Access;
use turnwheel_http::functions::functions_router;
use turnwheel_http::host_names::check_host_name;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_record::services::Services;
use turnwheel_turn::clock_change::ClockWatch;

/// Routes of the functions and the API.
pub(crate) fn build_router(
    services: &Arc<Services>,
    settings: &ServiceSettings,
    keys: SigningKeys,
    work_file: Option<Arc<WorkFile>>,
    process: Option<ProcessIdentity>,
) -> Router {
    let access = Access { refusal: find_refusal(settings), ..Access::from_settings(settings) };
    let api = Api { process, ..Api::new(Services::clone(services), access, keys) };
    let functions = Arc::new(FunctionHandlers {
        services: Arc::clone(services),
        work_file,
        read_check: ReadCheck::new(settings),
        clock_watch: ClockWatch::new(&*services.clock),
        owner_turns: OwnerTurns::new(settings.owner_turns_max),
    });
    let (shutdown, api) = (services.shutdown.clone(), Arc::new(api));
    let check_host_name = from_fn_with_state(Arc::clone(&api), check_host_name);
    functions_router(functions, shutdown, services.limits.turn_duration)
        .layer(check_host_name)
        .merge(turnwheel_http::router(api))
}
