//! Recorded streams and errors of real services: each becomes a message or a classified failure,
//! and the next request equals that of the recorded client.

mod chat;
mod replay;
mod streams;
