//! The Functions host protocol: the handler with recorded envelopes, and the local host.

mod admin;
mod handler;
mod hostile_clients;
mod lenient_json;
mod outputs;
mod proxy;
mod queues;
mod raw_handler;
mod recorded_answers;
mod recorded_cases;
mod recorded_http;
mod recorded_invocations;
mod recorded_outputs;
#[cfg(unix)]
mod recorded_process;
mod recording_queue;
mod routes;
mod storage;
#[cfg(unix)]
mod supervisor;
mod test_host;
mod timer;
