//! Parts that turns, commands, queries and schedules share: the stored documents, the commits of heads, writes with a certain
//! outcome, nudges, caches, the usage ledger, notifications, and the services of a process.

pub mod abort_channel;
pub mod certain_write;
pub mod contract;
pub mod documents;
pub mod entry_cache;
pub mod error;
pub mod error_domain;
pub mod event_log;
pub mod expiry;
pub mod frame_documents;
pub mod head_commit;
pub mod idempotency;
pub mod isolator;
pub mod lease;
pub mod ledger;
pub mod load;
pub mod notifications;
pub mod nudge;
pub mod nudge_sender;
pub mod request_locks;
pub mod services;
pub mod session_file;
pub mod user_documents;
pub mod workspace_context_cache;
