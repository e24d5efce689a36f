//! Helpers shared by several integration tests.

pub(crate) mod api_response;
pub(crate) mod azure;
pub(crate) mod azurite;
pub(crate) mod call_blocker;
pub(crate) mod dev_client;
pub(crate) mod dev_process;
pub(crate) mod event_stream;
pub(crate) mod fake_model;
pub(crate) mod model_calls;
pub(crate) mod normalise;
pub(crate) mod npm;
pub(crate) mod openapi_check;
pub(crate) mod payments_model;
pub(crate) mod python;
pub(crate) mod restarting_client;
pub(crate) mod service;
pub(crate) mod shared_data;
pub(crate) mod socket_model;
pub(crate) mod step_server;
pub(crate) mod tools;
