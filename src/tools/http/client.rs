//! The connections of HTTP tools: no proxies, no redirects, no hidden repeats, and only addresses that may be reached.

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

/// Name and TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Turns names into addresses; what it answers is filtered.
#[async_trait]
pub trait LookUp: Send + Sync + fmt::Debug {
    /// # Errors
    /// The name is not known, or could not be asked for.
    async fn addresses(&self, name: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// The operating system's.
#[derive(Debug)]
pub struct SystemLookUp;

#[async_trait]
impl LookUp for SystemLookUp {
    async fn addresses(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// No connection can be made at all.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client could not be made: are the system's certificates readable?")]
pub struct HttpClientError(#[source] reqwest::Error);

/// Shared by all HTTP tools; cloning it is cheap.
#[derive(Clone, Debug)]
pub struct HttpClient {
    rules: Arc<AddressRules>,
    public: Pair,
    /// For names that the operator listed.
    listed: Pair,
    /// Of the app's identity, for tools that ask for it.
    tokens: Option<Tokens>,
}

#[derive(Clone, Debug)]
struct Pair {
    /// Keeps connections: a stale one costs another attempt.
    repeatable: reqwest::Client,
    /// A fresh connection each time: on a kept one, nobody could tell a stale connection from a lost answer, and a
    /// person would be asked. HTTP/1.1, where a body that was not begun means that nothing was sent.
    write: reqwest::Client,
}

impl HttpClient {
    /// # Errors
    /// See [`HttpClientError`].
    pub fn new(rules: AddressRules) -> Result<Self, HttpClientError> {
        let system: Arc<dyn LookUp> = Arc::new(SystemLookUp);
        Self::with_look_up(rules, &system)
    }

    /// # Errors
    /// See [`HttpClientError`].
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
        // Each client reads the system's certificates: a cold start waits for no more of them than needed.
        let listed = if rules.has_names() { pair(Reach::Listed)? } else { public.clone() };
        Ok(Self { rules, public, listed, tokens: None })
    }

    /// With the identity whose tokens tools may show.
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

    /// Whether a tool may have this URL; a name is judged only when it is resolved.
    ///
    /// # Errors
    /// The address is literal and may not be reached.
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

/// At the same time: each reads all certificates of the system, which takes most of a cold start.
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
        // Behind a proxy nobody here knows which address is connected to.
        .no_proxy()
        .dns_resolver(Arc::new(names))
}

/// Looks names up at every connection and lets only reachable addresses through: a name whose answer changes between
/// a check and the connection gains nothing.
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
