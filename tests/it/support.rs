//! What several integration tests need.

pub(crate) mod shared;
