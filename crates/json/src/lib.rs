//! JSON and text that others wrote: values that keep their digits, repair of faulty JSON, and strict
//! reading with a pointer for each error.

pub mod body_kind;
pub mod decimal;
pub mod exact;
pub mod foreign;
pub mod partial;
pub mod raw;
pub mod schema_words;
pub mod strict;
pub mod text;
