//! The files that `azd` needs in a folder with only agents: azure.yaml and infra/, from the
//! program.

use std::fs;
use std::path::Path;

use super::{PackageError, io_error};

const INFRA: &str = "infra";

const FILES: [(&str, &str); 27] = [
    ("azure.yaml", include_str!("../../azure.yaml")),
    ("infra/main.bicep", include_str!("../../infra/main.bicep")),
    ("infra/main.parameters.json", include_str!("../../infra/main.parameters.json")),
    ("infra/modules/alerts.bicep", include_str!("../../infra/modules/alerts.bicep")),
    ("infra/modules/cosmos.bicep", include_str!("../../infra/modules/cosmos.bicep")),
    ("infra/modules/functionApp.bicep", include_str!("../../infra/modules/functionApp.bicep")),
    ("infra/modules/identity.bicep", include_str!("../../infra/modules/identity.bicep")),
    ("infra/modules/monitoring.bicep", include_str!("../../infra/modules/monitoring.bicep")),
    ("infra/modules/network.bicep", include_str!("../../infra/modules/network.bicep")),
    ("infra/modules/openAi.bicep", include_str!("../../infra/modules/openAi.bicep")),
    (
        "infra/modules/privateEndpoint.bicep",
        include_str!("../../infra/modules/privateEndpoint.bicep"),
    ),
    ("infra/modules/roles.bicep", include_str!("../../infra/modules/roles.bicep")),
    ("infra/modules/sessionPool.bicep", include_str!("../../infra/modules/sessionPool.bicep")),
    ("infra/modules/storage.bicep", include_str!("../../infra/modules/storage.bicep")),
    ("infra/modules/types.bicep", include_str!("../../infra/modules/types.bicep")),
    ("infra/modules/vault.bicep", include_str!("../../infra/modules/vault.bicep")),
    ("infra/hooks/entra-app.json", include_str!("../../infra/hooks/entra-app.json")),
    ("infra/hooks/entra-app.ps1", include_str!("../../infra/hooks/entra-app.ps1")),
    ("infra/hooks/entra-app.sh", include_str!("../../infra/hooks/entra-app.sh")),
    ("infra/hooks/package.ps1", include_str!("../../infra/hooks/package.ps1")),
    ("infra/hooks/package.sh", include_str!("../../infra/hooks/package.sh")),
    ("infra/hooks/preprovision.ps1", include_str!("../../infra/hooks/preprovision.ps1")),
    ("infra/hooks/preprovision.sh", include_str!("../../infra/hooks/preprovision.sh")),
    ("infra/hooks/providers.ps1", include_str!("../../infra/hooks/providers.ps1")),
    ("infra/hooks/providers.sh", include_str!("../../infra/hooks/providers.sh")),
    ("infra/hooks/signing-keys.ps1", include_str!("../../infra/hooks/signing-keys.ps1")),
    ("infra/hooks/signing-keys.sh", include_str!("../../infra/hooks/signing-keys.sh")),
];

/// Result of `--azd` in the project's folder, by the names of its two parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AzdFiles {
    pub written: Vec<&'static str>,
    /// Parts that existed: none of their files is changed.
    pub unchanged: Vec<&'static str>,
}

/// Writes azure.yaml and infra/, each only if the folder does not have it.
///
/// # Errors
/// The folder cannot be written to.
pub(crate) fn write_azd_files(root: &Path) -> Result<AzdFiles, PackageError> {
    let mut result = AzdFiles::default();
    for part in ["azure.yaml", INFRA] {
        if root.join(part).symlink_metadata().is_ok() {
            result.unchanged.push(part);
            continue;
        }
        for (name, text) in FILES.iter().filter(|(name, _)| name.split('/').next() == Some(part)) {
            let path = root.join(name);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(io_error("create", folder))?;
            }
            fs::write(&path, text).map_err(io_error("write", &path))?;
            if path.extension().is_some_and(|end| end == "sh") {
                super::binary::make_executable(&path)?;
            }
        }
        result.written.push(part);
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn list_files(root: &Path, below: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(root.join(below)).unwrap().flatten() {
            let path = format!("{below}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                found.extend(list_files(root, &path));
            } else {
                found.insert(path);
            }
        }
        found
    }

    #[test]
    fn embedded_azd_files_match_infra_folder() {
        let mut expected = list_files(Path::new(env!("CARGO_MANIFEST_DIR")), INFRA);
        expected.remove("infra/README.md");
        expected.insert("azure.yaml".to_owned());
        let embedded: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(embedded, expected);
    }

    #[test]
    fn azd_files_are_written_only_if_absent() {
        let dir = tempfile::tempdir().unwrap();
        let result = write_azd_files(dir.path()).unwrap();
        assert_eq!((result.written, result.unchanged), (vec!["azure.yaml", "infra"], vec![]));
        assert_eq!(list_files(dir.path(), INFRA).len() + 1, FILES.len());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let hook = dir.path().join("infra/hooks/package.sh");
            assert_eq!(fs::metadata(hook).unwrap().permissions().mode() & 0o111, 0o111);
        }
        fs::write(dir.path().join("infra/main.bicep"), "// mine").unwrap();
        fs::remove_file(dir.path().join("infra/hooks/package.sh")).unwrap();
        fs::remove_file(dir.path().join("azure.yaml")).unwrap();
        let result = write_azd_files(dir.path()).unwrap();
        assert_eq!((result.written, result.unchanged), (vec!["azure.yaml"], vec!["infra"]));
        assert_eq!(fs::read_to_string(dir.path().join("infra/main.bicep")).unwrap(), "// mine");
        assert!(
            !dir.path().join("infra/hooks/package.sh").exists(),
            "an existing infra/ must stay unchanged"
        );
    }
}
