//! What several integration tests need.

pub(crate) mod azurite;
pub(crate) mod fake_model;
pub(crate) mod normal;
pub(crate) mod process;
pub(crate) mod service;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod tools;
