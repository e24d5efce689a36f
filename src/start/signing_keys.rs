//! Signing keys of approval links.

use std::path::Path;
use std::sync::Arc;

use crate::start::start_error::{StartError, io_error};
use turnwheel_http::approval_token::{KEY_BYTES_MIN, LinkClaims, SigningKeys};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, RequestId};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_record::notifications::webhook::ApprovalLinkMaker;

/// Returns the keys of the settings. Without any, creates one key and stores it in the data folder.
pub(crate) fn load_signing_keys(
    settings: &ServiceSettings,
    data: &Path,
) -> Result<SigningKeys, StartError> {
    let keys: Vec<Vec<u8>> = settings.signing_keys.iter().map(|key| key.reveal().clone()).collect();
    let keys = if keys.is_empty() { vec![load_or_create_key(data)?] } else { keys };
    SigningKeys::new(keys).map_err(io_error("use the signing keys"))
}

fn load_or_create_key(data: &Path) -> Result<Vec<u8>, StartError> {
    let file = data.join("signing.key");
    match std::fs::read(&file) {
        Ok(key) if key.len() >= KEY_BYTES_MIN => Ok(key),
        _ => {
            let key = turnwheel_platform::ids::secret_bytes(KEY_BYTES_MIN)
                .map_err(io_error("create a signing key"))?;
            std::fs::create_dir_all(data).map_err(io_error("create the data folder"))?;
            write_secret(&file, &key).map_err(io_error("write the signing key"))?;
            Ok(key)
        }
    }
}

#[cfg(unix)]
fn write_secret(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(not(unix))]
fn write_secret(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::write(file, bytes)
}

/// Creates the function that builds approval links, with which an approver decides without an
/// account.
pub(crate) fn create_link_maker(keys: SigningKeys, public_url: String) -> ApprovalLinkMaker {
    Arc::new(move |key: &ConversationKey, request: &RequestId, expires_at: Timestamp| {
        let claims = LinkClaims { key: key.clone(), request_id: request.clone(), expires_at };
        keys.approval_url(&public_url, &claims)
    })
}
