//! Tests of the HTTP API: the real router and driver on in-memory ports, with the scripted model.

mod aborts;
mod admission;
mod artifacts;
mod budgets;
mod custom_messages;
mod decisions;
mod deletion;
mod error_texts;
mod event_streams;
mod hostile_clients;
mod inbox;
mod input_files;
mod models;
mod openapi;
mod openapi_check;
mod origins;
mod ownership;
mod problems;
mod prompt_queue;
mod read_models;
mod response_schemas;
mod source_methods;
mod store_faults;
mod test_app;
mod two_instances;
mod why;
