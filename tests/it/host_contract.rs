//! The Functions host protocol: the handler with recorded envelopes, and the local host.

mod admin;
mod handler;
mod outputs;
mod proxy;
mod queues;
mod rig;
mod shelf;
mod storage;
mod strangers;
mod timer;
