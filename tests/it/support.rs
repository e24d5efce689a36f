//! What several integration tests need.

pub(crate) mod fake_model;
pub(crate) mod shared;
