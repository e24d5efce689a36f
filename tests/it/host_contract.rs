//! The Functions host protocol: the handler with recorded envelopes, and the local host.

mod admin;
mod handler;
mod hostile_clients;
mod outputs;
mod proxy;
mod queues;
mod recording_queue;
mod routes;
mod storage;
mod test_host;
mod timer;
