//! Helpers shared by several tests, also with those of `tests/it`.

#[expect(dead_code, reason = "only `tests/it` uses some of it")]
#[path = "../support/api_response.rs"]
pub(crate) mod api_response;
#[path = "../support/azure.rs"]
pub(crate) mod azure;
#[path = "../support/azurite.rs"]
pub(crate) mod azurite;
#[expect(dead_code, reason = "only `tests/it` uses some of it")]
#[path = "../support/dev_client.rs"]
pub(crate) mod dev_client;
#[path = "../support/dev_process.rs"]
pub(crate) mod dev_process;
#[expect(dead_code, reason = "only `tests/it` uses some of it")]
#[path = "../support/fake_model.rs"]
pub(crate) mod fake_model;
#[path = "../support/normalise.rs"]
pub(crate) mod normalise;
#[path = "../support/npm.rs"]
pub(crate) mod npm;
#[expect(dead_code, reason = "only `tests/it` uses some of it")]
#[path = "../support/openapi_check.rs"]
pub(crate) mod openapi_check;
#[path = "../support/payments_model.rs"]
pub(crate) mod payments_model;
#[path = "../support/python.rs"]
pub(crate) mod python;
#[path = "../support/restarting_client.rs"]
pub(crate) mod restarting_client;
#[path = "../support/service.rs"]
pub(crate) mod service;
#[path = "../support/shared_data.rs"]
pub(crate) mod shared_data;
#[path = "../support/step_server.rs"]
pub(crate) mod step_server;
