//! The workspace: files that tools wrote and files sent by users and tools, each under the one path
//! that the file tools use.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::content::{Block, Content, FileBlock};
use crate::entry::{CarriedWorkspace, Entry, EntryBody, FileOutput, Output};
use crate::message::{Message, ToolResultMessage, WorkspaceFile};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::ArtifactId;

/// Files that users sent; read-only.
const INPUTS: &str = ".turnwheel/inputs";
/// Files that tools sent to the user; read-only.
const OUTPUTS: &str = ".turnwheel/outputs";
/// Digits of the content hash that distinguish files of the same name.
const HASH_DIGITS: usize = 8;
const NAME_BYTES_MAX: usize = 200;
/// Maximum bytes of the workspace that a compaction carries.
const CARRIED_BYTES_MAX: usize = 256 * 1024;

impl CarriedWorkspace {
    /// The workspace at the end of the path. `None`: it is too large for an entry.
    pub fn from_path(path: &[Arc<Entry>]) -> Option<Self> {
        let at = path.last()?.base.entry_id.clone();
        let carried = Self { at, files: collect_files(path) };
        (RawJson::from_value(&carried).text().len() <= CARRIED_BYTES_MAX).then_some(carried)
    }
}

/// Every file that a tool call at the end of the path can read. The entries alone determine it, so
/// a repeated delivery, a compaction and another branch each find the files of their own path. The
/// entries before a carried workspace are not needed.
pub fn collect_files(path: &[Arc<Entry>]) -> BTreeMap<String, WorkspaceFile> {
    let carried = path.iter().rev().find_map(|entry| {
        let carried = entry.body.compaction()?.workspace.as_ref()?;
        let at = path.iter().rposition(|entry| entry.base.entry_id == carried.at)?;
        Some((carried.files.clone(), path.get(at + 1..)?))
    });
    let (mut files, rest) = carried.unwrap_or((BTreeMap::new(), path));
    for entry in rest {
        if let EntryBody::Output(output) = &entry.body {
            if let Output::File(file) = &output.output {
                let content =
                    WorkspaceFile { artifact_id: file.artifact_id.clone(), size: file.size };
                files.insert(output_path(file), content);
            }
        } else if let EntryBody::CustomMessage(custom) = &entry.body {
            add_inputs(&mut files, &custom.content);
        } else if let Some(Message::ToolResult(result)) = entry.body.message() {
            apply_result(&mut files, result);
        } else if let Some(Message::User(user)) = entry.body.message() {
            add_inputs(&mut files, &user.content);
        }
    }
    files
}

/// Applies the changes of one tool result.
pub fn apply_result(files: &mut BTreeMap<String, WorkspaceFile>, result: &ToolResultMessage) {
    for (path, file) in &result.workspace {
        match file {
            Some(file) => files.insert(path.clone(), file.clone()),
            None => files.remove(path),
        };
    }
}

fn add_inputs(files: &mut BTreeMap<String, WorkspaceFile>, content: &Content) {
    let Content::Blocks(blocks) = content else { return };
    for block in blocks {
        if let Block::File(file) = block {
            // A block of an older version has no size. Tools learn it when they read the file.
            let size = file.size.unwrap_or_default();
            let content = WorkspaceFile { artifact_id: file.artifact_id.clone(), size };
            files.insert(input_path(file), content);
        }
    }
}

/// Path of a file that a user sent: `.turnwheel/inputs/3f9a1c02/report.pdf`.
pub fn input_path(file: &FileBlock) -> String {
    scoped_path(INPUTS, &file.artifact_id, file.path.as_deref().unwrap_or_default())
}

/// Path of a file that a tool sent to the user.
pub fn output_path(file: &FileOutput) -> String {
    scoped_path(OUTPUTS, &file.artifact_id, &file.path)
}

/// Equal content under one name has one path. Everything else has a path of its own.
fn scoped_path(folder: &str, artifact: &ArtifactId, name: &str) -> String {
    let hash = artifact.parts().and_then(|(_, sha256)| sha256.get(..HASH_DIGITS));
    format!("{folder}/{}/{}", hash.unwrap_or("unknown"), file_name(name))
}

/// The last segment of a name, valid in a path. `file` if nothing is left.
fn file_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or_default();
    let mut usable: String =
        last.chars().filter(|letter| !letter.is_control() && !is_deceptive(*letter)).collect();
    usable.truncate(usable.floor_char_boundary(NAME_BYTES_MAX));
    match usable.trim() {
        "" | "." | ".." => "file".to_owned(),
        name => name.to_owned(),
    }
}

/// Invisible marks by which a name seems to be another one.
pub fn is_deceptive(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unknown_members::Extra;
    use turnwheel_platform::ids::EffectId;

    fn block(hash: &str, name: Option<&str>) -> FileBlock {
        FileBlock {
            artifact_id: ArtifactId::from_hash(&EffectId::new("up_1"), &hash.repeat(8)),
            path: name.map(ToOwned::to_owned),
            mime_type: None,
            size: None,
            extra: Extra::new(),
        }
    }

    #[test]
    fn input_path_keeps_name_and_separates_contents() {
        let path = |hash, name| input_path(&block(hash, name));
        assert_eq!(path("0123abcd", Some("a b.txt")), ".turnwheel/inputs/0123abcd/a b.txt");
        assert_eq!(path("ffff0000", Some("a b.txt")), ".turnwheel/inputs/ffff0000/a b.txt");
        assert_eq!(path("0123abcd", None), ".turnwheel/inputs/0123abcd/file");
    }
}
