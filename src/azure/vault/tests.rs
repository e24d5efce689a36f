//! Tests of secret rotation, with a fake vault behind the SDK's client.

use std::sync::atomic::{AtomicUsize, Ordering};

use azure_core::credentials::{AccessToken, TokenRequestOptions};
use azure_core::http::headers::Headers;
use azure_core::http::{AsyncRawResponse, HttpClient, Request, Transport};
use url::Url;

use super::*;

/// A fake vault with one secret. Challenges requests without a token, as Azure does.
#[derive(Debug, Default)]
struct Vault {
    /// Absent if reads fail.
    value: Mutex<Option<&'static str>>,
    read: AtomicUsize,
    paths: Mutex<Vec<String>>,
}

impl Vault {
    fn holding(value: &'static str) -> Arc<Self> {
        let vault = Arc::new(Self::default());
        vault.now_holds(Some(value));
        vault
    }

    fn now_holds(&self, value: Option<&'static str>) {
        *self.value.lock().unwrap() = value;
    }

    fn times_read(&self) -> usize {
        self.read.load(Ordering::SeqCst)
    }

    fn secret(self: &Arc<Self>, version: Option<&str>) -> VaultSecret {
        let place = SecretPlace {
            vault: Url::parse("https://mine.vault.azure.net").unwrap(),
            name: "model-key".to_owned(),
            version: version.map(str::to_owned),
        };
        let transport = Some(Transport::new(Arc::clone(self) as Arc<dyn HttpClient>));
        let options = ClientOptions { transport, ..ClientOptions::default() };
        VaultSecret::with_options(place, Arc::new(Guest), options).unwrap()
    }
}

#[async_trait::async_trait]
impl HttpClient for Vault {
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
        self.read.fetch_add(1, Ordering::SeqCst);
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
struct Guest;

#[async_trait::async_trait]
impl TokenCredential for Guest {
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
async fn a_value_is_read_once_and_again_when_it_may_have_changed() {
    let vault = Vault::holding("first");
    let secret = vault.secret(None);
    assert_eq!(value(&secret).await, "first", "trimmed");
    vault.now_holds(Some("second"));
    tokio::time::advance(FRESH.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(value(&secret).await, "first");
    assert_eq!(vault.times_read(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(value(&secret).await, "second");
    assert_eq!(vault.times_read(), 2);
    assert_eq!(*vault.paths.lock().unwrap(), ["/secrets/model-key/"; 2], "the newest version");
    value(&vault.secret(Some("v7"))).await;
    assert_eq!(vault.paths.lock().unwrap().last().unwrap(), "/secrets/model-key/v7");
    assert!(!format!("{secret:?}").contains("second"));
}

#[tokio::test(start_paused = true)]
async fn a_refused_value_is_read_again_at_once_and_not_for_every_refusal() {
    let vault = Vault::holding("first");
    let secret = vault.secret(None);
    value(&secret).await;
    assert!(secret.instead_of("first").await.is_none(), "there is no other value");
    assert_eq!(vault.times_read(), 2);
    assert!(secret.instead_of("first").await.is_none());
    assert_eq!(vault.times_read(), 2, "repeated rejections cause one read");
    vault.now_holds(Some("second"));
    tokio::time::advance(PAUSE).await;
    let (one, other) = tokio::join!(secret.instead_of("first"), secret.instead_of("first"));
    assert_eq!(one.unwrap().reveal(), "second");
    assert_eq!(other.unwrap().reveal(), "second");
    assert_eq!(vault.times_read(), 3, "concurrent rejections cause one read");
    assert_eq!(value(&secret).await, "second");
}

#[tokio::test(start_paused = true)]
async fn a_vault_that_fails_takes_no_good_value_away() {
    let vault = Vault::holding("first");
    let secret = vault.secret(None);
    value(&secret).await;
    vault.now_holds(None);
    tokio::time::advance(FRESH).await;
    assert_eq!(value(&secret).await, "first");
    let asked = vault.times_read();
    assert_eq!(value(&secret).await, "first");
    assert_eq!(vault.times_read(), asked, "no read within the retry interval");
    vault.now_holds(Some("second"));
    tokio::time::advance(PAUSE).await;
    assert_eq!(value(&secret).await, "second");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_was_never_read_says_why_and_what_to_do() {
    let vault = Vault::holding("first");
    vault.now_holds(None);
    let said = vault.secret(None).value().await.unwrap_err();
    assert!(
        said.starts_with(
            "the secret https://mine.vault.azure.net/secrets/model-key could not be read: "
        ) && said.contains("give the app's identity the role `Key Vault Secrets User`"),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_begins_together_reads_once() {
    let vault = Vault::holding("first");
    let secret = vault.secret(None);
    let crowd = (0..20).map(|_| value(&secret));
    assert_eq!(futures_util::future::join_all(crowd).await, ["first"; 20]);
    assert_eq!(vault.times_read(), 1);
}
