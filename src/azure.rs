//! Azure credentials and clients, built from settings here and nowhere else.

pub mod cosmos;
pub mod credential;
pub mod storage;
pub mod vault;
