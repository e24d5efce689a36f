//! HTTP client of tools: no proxies, no redirects, no hidden retries, and only allowed addresses.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Url;

use crate::http::address_rules::{AddressNotAllowed, AddressRules, AddressScope};
use turnwheel_azure::credential::IdentityTokenSource;
use turnwheel_conversation::request::Effect;
use turnwheel_platform::settings::secret::Secret;

/// Time limit of a connection, including name resolution and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Resolver of host names. The client filters the addresses that it returns.
#[async_trait]
pub trait HostResolver: Send + Sync + fmt::Debug {
    /// # Errors
    /// The name is unknown, or the resolver failed. The request was not sent and can be retried.
    async fn resolve_host(&self, name: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
#[derive(Debug)]
pub(crate) struct SystemResolver;

#[async_trait]
impl HostResolver for SystemResolver {
    async fn resolve_host(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client could not be built: check that the system's certificates are readable")]
pub struct HttpClientError(#[source] reqwest::Error);

/// The client of all HTTP tools. Clones are cheap.
#[derive(Clone, Debug)]
pub struct HttpClient {
    rules: Arc<AddressRules>,
    public: ClientPair,
    /// For host names in the operator's list.
    listed: ClientPair,
    /// Tokens of the app's identity, for tools with `auth`.
    tokens: Option<IdentityTokenSource>,
}

#[derive(Clone, Debug)]
struct ClientPair {
    /// Reuses connections: a stale one costs another attempt.
    repeatable: reqwest::Client,
    /// Opens a new connection for each request. On a reused connection, a stale connection could
    /// not be distinguished from a lost response, which needs an approver. Uses HTTP/1.1, where an
    /// unpolled body means that nothing was sent.
    write: reqwest::Client,
}

impl HttpClient {
    /// # Errors
    /// The system's certificates are unreadable, see [`HttpClientError`]. Report it at start-up.
    pub fn new(rules: AddressRules) -> Result<Self, HttpClientError> {
        let system: Arc<dyn HostResolver> = Arc::new(SystemResolver);
        Self::with_resolver(rules, &system)
    }

    /// # Errors
    /// The system's certificates are unreadable, see [`HttpClientError`]. Report it at start-up.
    pub fn with_resolver(
        rules: AddressRules,
        resolver: &Arc<dyn HostResolver>,
    ) -> Result<Self, HttpClientError> {
        let rules = Arc::new(rules);
        let pair = |reach| {
            let names = || AllowedAddressResolver {
                rules: Arc::clone(&rules),
                scope: reach,
                resolver: Arc::clone(resolver),
            };
            let write = client_builder(names()).pool_max_idle_per_host(0).http1_only();
            let (repeatable, write) = build_both(client_builder(names()), write);
            Ok(ClientPair {
                repeatable: repeatable.map_err(HttpClientError)?,
                write: write.map_err(HttpClientError)?,
            })
        };
        let public = pair(AddressScope::Public)?;
        // Each client reads the system's certificates, so a cold start builds only the needed ones.
        let listed =
            if rules.has_host_names() { pair(AddressScope::Listed)? } else { public.clone() };
        Ok(Self { rules, public, listed, tokens: None })
    }

    /// Adds the tokens of the app's identity, for tools with `auth`.
    #[must_use]
    pub fn with_identity(self, tokens: IdentityTokenSource) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    /// Returns a token of the app's Entra identity.
    ///
    /// # Errors
    /// The identity is unavailable; the text says why.
    pub async fn token(&self, scope: &str) -> Result<Secret<String>, String> {
        match &self.tokens {
            Some(tokens) => tokens.fetch_token(scope).await,
            None => Err("the app has no identity here".to_owned()),
        }
    }

    /// Checks the URL of a tool. A host name is checked only when it is resolved.
    ///
    /// # Errors
    /// The URL has a literal address that tools may not reach. Report it as a mistake of the URL.
    pub fn check_url(&self, url: &Url) -> Result<(), AddressNotAllowed> {
        self.rules.check_url(url).map(|_| ())
    }

    /// # Errors
    /// The address is not allowed: send nothing.
    pub fn client_for(
        &self,
        url: &Url,
        effect: Effect,
    ) -> Result<&reqwest::Client, AddressNotAllowed> {
        let pair = match self.rules.check_url(url)? {
            AddressScope::Public => &self.public,
            AddressScope::Listed => &self.listed,
        };
        Ok(match effect {
            Effect::Read | Effect::Idempotent => &pair.repeatable,
            Effect::Write => &pair.write,
        })
    }
}

/// Builds two clients in parallel. Each reads all certificates of the system, which takes most of
/// the time of a cold start.
fn build_both(
    one: reqwest::ClientBuilder,
    other: reqwest::ClientBuilder,
) -> (reqwest::Result<reqwest::Client>, reqwest::Result<reqwest::Client>) {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| other.build());
        let one = one.build();
        (one, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn client_builder(names: AllowedAddressResolver) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("turnwheel/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .gzip(true)
        // Behind a proxy, the address of the connection could not be checked.
        .no_proxy()
        .dns_resolver(Arc::new(names))
}

/// Resolver that returns only allowed addresses. It runs for every connection, so that a changed
/// DNS record after an earlier check (DNS rebinding) has no effect.
struct AllowedAddressResolver {
    rules: Arc<AddressRules>,
    scope: AddressScope,
    resolver: Arc<dyn HostResolver>,
}

impl Resolve for AllowedAddressResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (rules, reach, look_up) =
            (Arc::clone(&self.rules), self.scope, Arc::clone(&self.resolver));
        Box::pin(async move {
            let addresses = look_up.resolve_host(name.as_str()).await?;
            let has_addresses = !addresses.is_empty();
            let reachable: Vec<SocketAddr> = addresses
                .into_iter()
                .filter(|ip| rules.is_allowed(*ip, reach))
                .map(|ip| SocketAddr::new(ip, 0))
                .collect();
            if reachable.is_empty() && has_addresses {
                return Err(AddressNotAllowed::Private.into());
            }
            Ok(Box::new(reachable.into_iter()) as Addrs)
        })
    }
}
