//! Session files: JSON Lines with a header and one entry in each line. Files of Pi, versions 1 to
//! 3, and the loss-free form of Turnwheel.

mod entries;
mod lines;
mod migration;
mod object;
mod places;
mod reader;
mod records;
mod repair;
mod times;
mod tree;
mod writer;

pub use self::lines::{Line, LineSplitter};
pub use self::reader::{BLANK, FileError, FileHeader, ParsedLine, SessionReader};
pub use self::tree::ImportedTree;
pub use self::writer::{
    ConversationHeader, FileFormat, frame_document_line, leaf_line, pi_header, pi_line,
    pi_line_with_document, turnwheel_header, turnwheel_line,
};

/// Version of Pi's files that is written, and the newest that is read.
const PI_VERSION: u64 = 3;
/// Version of Turnwheel's files.
const TURNWHEEL_VERSION: u64 = 1;
/// Member of an imported entry with its line, if the entry differs from it.
const AS_IMPORTED: &str = "asImported";
/// Type of a line with a frame document, in Turnwheel's files.
const FRAME_DOCUMENT: &str = "frame_document";
/// Custom types of the service itself. An imported entry of such a type gets a prefix: a file must
/// not set the state of plugins.
const OWN_TYPES: &str = "turnwheel/";
const IMPORTED_TYPES: &str = "imported/turnwheel/";

#[cfg(test)]
mod tests;
