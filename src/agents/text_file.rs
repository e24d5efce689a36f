//! Reader of the files of a folder that become instructions of a model.

use std::io::Read as _;
use std::path::Path;

/// Reads a file of at most `bytes_max` bytes below the folder. A symbolic link may point to another file in the folder, as in mounts of
/// some platforms. A link out of the folder is an error: any file of this machine could become
/// instructions, which the model may repeat to a user.
pub(super) fn read_text_file(
    folder: &Path,
    path_in_folder: &Path,
    bytes_max: u64,
) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("the file cannot be read: {error}");
    let folder = folder.canonicalize().map_err(unreadable)?;
    let path = folder.join(path_in_folder).canonicalize().map_err(unreadable)?;
    if !path.starts_with(&folder) {
        return Err(
            "the file is a link to a target outside of the folder: copy the target".to_owned()
        );
    }
    if !path.is_file() {
        return Err("this is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("the file is larger than {bytes_max} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())
}
