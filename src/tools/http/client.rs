//! HTTP client of tools: no proxies, no redirects, no hidden retries, and only allowed addresses.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Url;

use crate::agent::request::Effect;
use crate::azure::credential::Tokens;
use crate::settings::secret::Secret;
use crate::tools::http::addresses::{AddressRules, Reach, Refused};

/// Time limit of a connection, including name resolution and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Resolver of host names. The client filters the addresses that it returns.
#[async_trait]
pub trait LookUp: Send + Sync + fmt::Debug {
    /// # Errors
    /// The name is unknown, or the resolver failed. The request was not sent and can be retried.
    async fn addresses(&self, name: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
#[derive(Debug)]
pub struct SystemLookUp;

#[async_trait]
impl LookUp for SystemLookUp {
    async fn addresses(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
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
    public: Pair,
    /// For host names in the operator's list.
    listed: Pair,
    /// Tokens of the app's identity, for tools with `auth`.
    tokens: Option<Tokens>,
}

#[derive(Clone, Debug)]
struct Pair {
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
        let system: Arc<dyn LookUp> = Arc::new(SystemLookUp);
        Self::with_look_up(rules, &system)
    }

    /// # Errors
    /// The system's certificates are unreadable, see [`HttpClientError`]. Report it at start-up.
    pub fn with_look_up(
        rules: AddressRules,
        look_up: &Arc<dyn LookUp>,
    ) -> Result<Self, HttpClientError> {
        let rules = Arc::new(rules);
        let pair = |reach| {
            let names =
                || Guarded { rules: Arc::clone(&rules), reach, look_up: Arc::clone(look_up) };
            let write = builder(names()).pool_max_idle_per_host(0).http1_only();
            let (repeatable, write) = both(builder(names()), write);
            Ok(Pair {
                repeatable: repeatable.map_err(HttpClientError)?,
                write: write.map_err(HttpClientError)?,
            })
        };
        let public = pair(Reach::Public)?;
        // Each client reads the system's certificates, so a cold start builds only the needed ones.
        let listed = if rules.has_names() { pair(Reach::Listed)? } else { public.clone() };
        Ok(Self { rules, public, listed, tokens: None })
    }

    /// Adds the tokens of the app's identity, for tools with `auth`.
    #[must_use]
    pub fn with_identity(self, tokens: Tokens) -> Self {
        Self { tokens: Some(tokens), ..self }
    }

    pub(super) async fn token(&self, scope: &str) -> Result<Secret<String>, String> {
        match &self.tokens {
            Some(tokens) => tokens.token(scope).await,
            None => Err("the app has no identity here".to_owned()),
        }
    }

    /// Checks the URL of a tool. A host name is checked only when it is resolved.
    ///
    /// # Errors
    /// The URL has a literal address that tools may not reach. Report it as a mistake of the URL.
    pub fn check(&self, url: &Url) -> Result<(), Refused> {
        self.rules.reach(url).map(|_| ())
    }

    pub(super) fn of(&self, url: &Url, effect: Effect) -> Result<&reqwest::Client, Refused> {
        let pair = match self.rules.reach(url)? {
            Reach::Public => &self.public,
            Reach::Listed => &self.listed,
        };
        Ok(match effect {
            Effect::Read | Effect::Idempotent => &pair.repeatable,
            Effect::Write => &pair.write,
        })
    }
}

/// Builds two clients in parallel. Each reads all certificates of the system, which takes most of
/// the time of a cold start.
fn both(
    one: reqwest::ClientBuilder,
    other: reqwest::ClientBuilder,
) -> (reqwest::Result<reqwest::Client>, reqwest::Result<reqwest::Client>) {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| other.build());
        let one = one.build();
        (one, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn builder(names: Guarded) -> reqwest::ClientBuilder {
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
struct Guarded {
    rules: Arc<AddressRules>,
    reach: Reach,
    look_up: Arc<dyn LookUp>,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let (rules, reach, look_up) =
            (Arc::clone(&self.rules), self.reach, Arc::clone(&self.look_up));
        Box::pin(async move {
            let found = look_up.addresses(name.as_str()).await?;
            let was_found = !found.is_empty();
            let reachable: Vec<SocketAddr> = found
                .into_iter()
                .filter(|ip| rules.allows(*ip, reach))
                .map(|ip| SocketAddr::new(ip, 0))
                .collect();
            if reachable.is_empty() && was_found {
                return Err(Refused.into());
            }
            Ok(Box::new(reachable.into_iter()) as Addrs)
        })
    }
}
