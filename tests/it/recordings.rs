//! Streams and errors as services really sent them: each comes to a message or a judged failure, and what is sent next is
//! what the recorded client sent next.

mod replay;
mod streams;
