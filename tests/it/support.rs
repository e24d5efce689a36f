//! Helpers shared by several integration tests.

pub(crate) mod azure;
pub(crate) mod azurite;
pub(crate) mod clerk;
#[path = "../support/cosmos_emulator.rs"]
pub(crate) mod cosmos_emulator;
pub(crate) mod fake_model;
pub(crate) mod gate;
pub(crate) mod normal;
pub(crate) mod process;
pub(crate) mod service;
pub(crate) mod shared;
pub(crate) mod steps;
pub(crate) mod stream;
pub(crate) mod tools;
