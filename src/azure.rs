//! The way into Azure: settings become credentials and clients, here and nowhere else.

pub mod bare;
pub mod cosmos;
pub mod credential;
pub mod storage;
pub mod vault;
