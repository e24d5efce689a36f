//! Helpers shared by several tests, also with those of `tests/process`.

#[path = "../support/api_response.rs"]
pub(crate) mod api_response;
#[path = "../support/call_blocker.rs"]
pub(crate) mod call_blocker;
#[path = "../support/dev_client.rs"]
pub(crate) mod dev_client;
#[expect(dead_code, reason = "only `tests/process` uses some of it")]
#[path = "../support/dev_process.rs"]
pub(crate) mod dev_process;
#[path = "../support/event_stream.rs"]
pub(crate) mod event_stream;
#[path = "../support/fake_model.rs"]
pub(crate) mod fake_model;
#[path = "../support/model_calls.rs"]
pub(crate) mod model_calls;
#[path = "../support/normalise.rs"]
pub(crate) mod normalise;
#[path = "../support/npm.rs"]
pub(crate) mod npm;
#[expect(dead_code, reason = "only `tests/process` uses some of it")]
#[path = "../support/openapi_check.rs"]
pub(crate) mod openapi_check;
#[path = "../support/python.rs"]
pub(crate) mod python;
#[path = "../support/restarting_client.rs"]
pub(crate) mod restarting_client;
#[path = "../support/service.rs"]
pub(crate) mod service;
#[path = "../support/shared_data.rs"]
pub(crate) mod shared_data;
#[path = "../support/socket_model.rs"]
pub(crate) mod socket_model;
#[path = "../support/tool_rounds.rs"]
pub(crate) mod tool_rounds;
#[path = "../support/tools.rs"]
pub(crate) mod tools;
