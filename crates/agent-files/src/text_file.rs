//! Reader of the files of a folder that become instructions of a model.

use std::path::Path;

use turnwheel_platform::text_encoding::{EncodingError, decode_utf8};
use turnwheel_tools::workspace::read_file_below;

/// Reads a text file of at most `bytes_max` bytes below the folder. A link out of the folder is an
/// error: any file of this machine could become instructions, which the model may repeat to a user.
pub(super) fn read_text_file(
    folder: &Path,
    path_in_folder: &Path,
    bytes_max: u64,
) -> Result<String, String> {
    let bytes = read_file_below(folder, path_in_folder, bytes_max)?;
    // Readers of the text remove the byte order mark themselves: some need the position of a line.
    decode_utf8(&bytes).map_err(|error| format!("the file {error}"))?;
    String::from_utf8(bytes).map_err(|_| EncodingError::NotUtf8.to_string())
}
