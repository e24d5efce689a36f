//! The one Azurite that all tests of this process share.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::time::OffsetDateTime;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::sync::OnceCell;

use super::{Azurite, AzuriteError, AzuriteOptions, Tls};

/// The folder of the tests' installation.
pub(crate) fn install_folder() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("target/azurite")
}

/// Writes past the capture of test output, so that a developer sees why the tests wait.
pub(crate) fn print_to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Ends with this process: no destructor of a static runs, but the pipe closes. A test may advance
/// its clock by minutes: hide a message for an hour if it must stay hidden.
pub async fn shared_azurite() -> &'static Azurite {
    static SHARED: OnceCell<Azurite> = OnceCell::const_new();
    let options = AzuriteOptions { install: install_folder(), ..AzuriteOptions::default() };
    SHARED.get_or_try_init(|| Azurite::start(options, print_to_stderr)).await.unwrap()
}

/// Returns an Azurite that accepts tokens, and the certificate to trust.
pub async fn shared_https_azurite() -> (&'static Azurite, Vec<u8>) {
    static SECURE: OnceCell<(Azurite, Vec<u8>)> = OnceCell::const_new();
    let (azurite, certificate) = SECURE.get_or_try_init(start_https_azurite).await.unwrap();
    (azurite, certificate.clone())
}

async fn start_https_azurite() -> Result<(Azurite, Vec<u8>), AzuriteError> {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let tls = Some(Tls { certificate, key });
    let options = AzuriteOptions { install: install_folder(), tls, ..AzuriteOptions::default() };
    let azurite = Azurite::start(options, print_to_stderr).await?;
    Ok((azurite, certified.cert.pem().into_bytes()))
}

/// Issues an unsigned token that Azurite accepts: it checks the claims, not the signature.
#[derive(Debug)]
pub struct UnsignedCredential;

#[async_trait::async_trait]
impl TokenCredential for UnsignedCredential {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        assert_eq!(scopes, ["https://storage.azure.com/.default"]);
        let tenant = "11111111-2222-3333-4444-555555555555";
        let claims = serde_json::json!({
            "aud": "https://storage.azure.com", "iss": format!("https://sts.windows.net/{tenant}/"),
            "tid": tenant, "oid": "66666666-7777-8888-9999-000000000000",
            "nbf": 1_600_000_000, "iat": 1_600_000_000, "exp": 4_000_000_000_u64,
        });
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
        let token = format!("{header}.{}.", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let expires_on = OffsetDateTime::from_unix_timestamp(4_000_000_000).unwrap();
        Ok(AccessToken::new(token, expires_on))
    }
}
