//! The Functions host's protocol: the handler against recorded envelopes, and the local host against a handler under test.

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
