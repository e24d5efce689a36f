//! Azure credentials and clients, built from settings here and nowhere else.

pub(crate) mod cosmos;
pub(crate) mod credential;
pub(crate) mod storage;
pub(crate) mod vault;
