//! Tests of secret rotation, with a fake vault behind the SDK's client.

use std::sync::atomic::{AtomicUsize, Ordering};

use azure_core::credentials::{AccessToken, TokenRequestOptions};
use azure_core::http::headers::Headers;
use azure_core::http::{AsyncRawResponse, HttpClient, Request, Transport};
use url::Url;

use super::*;

/// A fake vault with one secret. Challenges requests without a token, as Azure does.
#[derive(Debug, Default)]
struct FakeVault {
    /// Absent if reads fail.
    value: Mutex<Option<&'static str>>,
    reads: AtomicUsize,
    paths: Mutex<Vec<String>>,
}

impl FakeVault {
    fn with_value(value: &'static str) -> Arc<Self> {
        let vault = Arc::new(Self::default());
        vault.set_value(Some(value));
        vault
    }

    fn set_value(&self, value: Option<&'static str>) {
        *self.value.lock().unwrap() = value;
    }

    fn read_count(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    fn secret(self: &Arc<Self>, version: Option<&str>) -> VaultSecret {
        let place = KeyVaultSecret {
            vault: Url::parse("https://mine.vault.azure.net").unwrap(),
            name: "model-key".to_owned(),
            version: version.map(str::to_owned),
        };
        let transport = Some(Transport::new(Arc::clone(self) as Arc<dyn HttpClient>));
        let options = ClientOptions { transport, ..ClientOptions::default() };
        VaultSecret::with_options(place, Arc::new(FakeCredential), options).unwrap()
    }
}

#[async_trait::async_trait]
impl HttpClient for FakeVault {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let answer =
            |status, headers, body: String| Ok(AsyncRawResponse::from_bytes(status, headers, body));
        let shown = request.headers().get_optional_str(&"authorization".into());
        if shown != Some("Bearer token for https://vault.azure.net/.default") {
            let mut headers = Headers::new();
            headers.insert(
                "www-authenticate",
                r#"Bearer authorization="https://login.microsoftonline.com/t", resource="https://vault.azure.net""#,
            );
            return answer(StatusCode::Unauthorized, headers, String::new());
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.paths.lock().unwrap().push(request.url().path().to_owned());
        match *self.value.lock().unwrap() {
            Some(value) => {
                answer(StatusCode::Ok, Headers::new(), format!(r#"{{"value":"{value}\n"}}"#))
            }
            None => answer(
                StatusCode::Forbidden,
                Headers::new(),
                r#"{"error":{"code":"Forbidden","message":"no role"}}"#.to_owned(),
            ),
        }
    }
}

#[derive(Debug)]
struct FakeCredential;

#[async_trait::async_trait]
impl TokenCredential for FakeCredential {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let expires_on =
            azure_core::time::OffsetDateTime::now_utc() + azure_core::time::Duration::HOUR;
        Ok(AccessToken { token: format!("token for {}", scopes.join(" ")).into(), expires_on })
    }
}

async fn value(secret: &VaultSecret) -> String {
    secret.value().await.unwrap().reveal().clone()
}

#[tokio::test(start_paused = true)]
async fn secret_is_refreshed_after_interval() {
    let vault = FakeVault::with_value("first");
    let secret = vault.secret(None);
    assert_eq!(value(&secret).await, "first", "trimmed");
    vault.set_value(Some("second"));
    tokio::time::advance(REFRESH_INTERVAL.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(value(&secret).await, "first");
    assert_eq!(vault.read_count(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(value(&secret).await, "second");
    assert_eq!(vault.read_count(), 2);
    assert_eq!(*vault.paths.lock().unwrap(), ["/secrets/model-key/"; 2], "the newest version");
    value(&vault.secret(Some("v7"))).await;
    assert_eq!(vault.paths.lock().unwrap().last().unwrap(), "/secrets/model-key/v7");
    assert!(!format!("{secret:?}").contains("second"));
}

/// As `az keyvault secret set --file` stores a file of PowerShell.
#[tokio::test(start_paused = true)]
async fn byte_order_mark_of_a_secret_is_skipped() {
    let vault = FakeVault::with_value("\u{feff}first");
    assert_eq!(value(&vault.secret(None)).await, "first");
}

#[tokio::test(start_paused = true)]
async fn rejected_secret_is_refreshed_once_per_interval() {
    let vault = FakeVault::with_value("first");
    let secret = vault.secret(None);
    value(&secret).await;
    assert!(secret.replacement_of("first").await.is_none(), "there is no other value");
    assert_eq!(vault.read_count(), 2);
    assert!(secret.replacement_of("first").await.is_none());
    assert_eq!(vault.read_count(), 2, "repeated rejections cause one read");
    vault.set_value(Some("second"));
    tokio::time::advance(RETRY_INTERVAL).await;
    let (one, other) = tokio::join!(secret.replacement_of("first"), secret.replacement_of("first"));
    assert_eq!(one.unwrap().reveal(), "second");
    assert_eq!(other.unwrap().reveal(), "second");
    assert_eq!(vault.read_count(), 3, "concurrent rejections cause one read");
    assert_eq!(value(&secret).await, "second");
}

#[tokio::test(start_paused = true)]
async fn cached_secret_is_used_when_vault_fails() {
    let vault = FakeVault::with_value("first");
    let secret = vault.secret(None);
    value(&secret).await;
    vault.set_value(None);
    tokio::time::advance(REFRESH_INTERVAL).await;
    assert_eq!(value(&secret).await, "first");
    let reads_before = vault.read_count();
    assert_eq!(value(&secret).await, "first");
    assert_eq!(vault.read_count(), reads_before, "no read within the retry interval");
    vault.set_value(Some("second"));
    tokio::time::advance(RETRY_INTERVAL).await;
    assert_eq!(value(&secret).await, "second");
}

#[tokio::test(start_paused = true)]
async fn unread_secret_error_gives_reason_and_advice() {
    let vault = FakeVault::with_value("first");
    vault.set_value(None);
    let error = vault.secret(None).value().await.unwrap_err();
    assert!(
        error.starts_with(
            "the secret https://mine.vault.azure.net/secrets/model-key could not be read: "
        ) && error.contains("give the app's identity the role `Key Vault Secrets User`"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn concurrent_first_reads_share_one_request() {
    let vault = FakeVault::with_value("first");
    let secret = vault.secret(None);
    let reads = (0..20).map(|_| value(&secret));
    assert_eq!(futures_util::future::join_all(reads).await, ["first"; 20]);
    assert_eq!(vault.read_count(), 1);
}
