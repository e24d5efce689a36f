//! Tests of the API over HTTP, with the complete service.

mod decisions;
mod ownership;
mod prompts;
mod reconnection;
mod schedules;
mod test_app;
