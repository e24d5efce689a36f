//! Requests to a service: credentials, repetition after temporary failures, and problem documents.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response};
use tokio::time::Instant;
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{Ids as _, SystemIds, is_plain_text};
use turnwheel_platform::settings::environment;
use turnwheel_platform::text_encoding::{decode_utf8, trim_text};
use url::{Host, Url};

use crate::arguments::ServiceArguments;
use crate::error::{TerminalError, is_temporary_status};
use crate::members::{parse_json, text};

const KEY_VARIABLE: &str = "TURNWHEEL_KEY";
const TOKEN_VARIABLE: &str = "TURNWHEEL_TOKEN";
/// Longer than the `wait` of any request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(75);
/// Time in which a request is repeated after temporary failures.
const REPEAT_MAX: Duration = Duration::from_mins(1);
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(2);

/// A function key or an Entra token. It is never an argument, because other users of a machine see those.
pub(crate) enum ClientCredentials {
    None,
    Key(String),
    Token(String),
}

impl ClientCredentials {
    /// Reads them from the file of the arguments, or from the environment.
    pub(crate) fn read(arguments: &ServiceArguments) -> Result<Self, TerminalError> {
        if let Some(file) = &arguments.key_file {
            let invalid =
                |reason: String| TerminalError::Arguments(format!("{} {reason}", file.display()));
            let key =
                std::fs::read(file).map_err(|error| invalid(format!("cannot be read: {error}")))?;
            let key = decode_utf8(&key).map_err(|error| invalid(error.to_string()))?;
            return Ok(Self::Key(key.trim().to_owned()));
        }
        let variable = |name| {
            let value = trim_text(&environment(name)?).to_owned();
            (!value.is_empty()).then_some(value)
        };
        match (variable(KEY_VARIABLE), variable(TOKEN_VARIABLE)) {
            // A local service needs none, and another program must not get it.
            _ if arguments.url.is_none() => Ok(Self::None),
            (Some(_), Some(_)) => Err(TerminalError::Arguments(format!(
                "both {KEY_VARIABLE} and {TOKEN_VARIABLE} are set: the service accepts one of them"
            ))),
            (Some(key), None) => Ok(Self::Key(key)),
            (None, Some(token)) => Ok(Self::Token(token)),
            (None, None) => Ok(Self::None),
        }
    }
}

/// Client of one service.
pub(crate) struct Client {
    http: reqwest::Client,
    /// Without a slash at its end.
    pub(crate) address: String,
    credentials: ClientCredentials,
    tenant: Option<String>,
    user: Option<String>,
    /// True if the service is on this machine.
    is_local: bool,
    /// The arguments that select this service, for commands to copy.
    options: String,
}

/// A request with an optional body.
#[derive(Clone, Debug)]
pub(crate) struct ApiRequest {
    method: Method,
    path: String,
    body: Option<RawJson>,
    key: Option<String>,
    is_for_operators: bool,
}

impl ApiRequest {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        let path = path.into();
        Self { method: Method::GET, path, body: None, key: None, is_for_operators: false }
    }

    /// A read that needs the role of an operator. `dev` takes it from the request.
    pub(crate) fn get_as_operator(path: impl Into<String>) -> Self {
        Self { is_for_operators: true, ..Self::get(path) }
    }

    /// With a key, so that a repetition has no second effect.
    pub(crate) fn post(path: impl Into<String>, body: RawJson) -> Self {
        let key = Some(SystemIds.new_id());
        Self { method: Method::POST, body: Some(body), key, ..Self::get(path) }
    }

    pub(crate) fn patch(path: impl Into<String>, body: RawJson) -> Self {
        Self { method: Method::PATCH, ..Self::post(path, body) }
    }

    pub(crate) fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }
}

impl Client {
    /// # Errors
    /// The address is invalid, or would send the credentials without encryption: exit code 2.
    pub(crate) fn new(
        address: &str,
        credentials: ClientCredentials,
        arguments: &ServiceArguments,
    ) -> Result<Self, TerminalError> {
        let address = address.trim_end_matches('/').to_owned();
        let url = Url::parse(&address)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| {
                TerminalError::Arguments(format!(
                    "`{address}` is no address: expected a form such as https://my-app.azurewebsites.net"
                ))
            })?;
        let is_local = is_loopback(&url);
        if !is_local && url.scheme() == "http" && !matches!(credentials, ClientCredentials::None) {
            return Err(TerminalError::Arguments(format!(
                "{address} would receive the credentials without encryption: use https"
            )));
        }
        // A redirect to another host would get the function key.
        let mut builder = reqwest::Client::builder().redirect(Policy::none());
        if is_local {
            builder = builder.no_proxy();
        }
        let http = builder
            .build()
            .map_err(|source| TerminalError::Unreachable { address: address.clone(), source })?;
        let ServiceArguments { tenant, user, .. } = arguments;
        let options = arguments.to_options();
        let (tenant, user) = (tenant.clone(), user.clone());
        Ok(Self { http, address, credentials, tenant, user, is_local, options })
    }

    /// The command that continues a conversation.
    pub(crate) fn resume_command(&self, id: &str) -> String {
        format!("turnwheel chat --conversation {id}{}", self.options)
    }

    /// Downloads from a link without credentials.
    pub(crate) async fn download(&self, link: &str) -> Result<Vec<u8>, TerminalError> {
        let response = self.send_built(self.http.get(link)).await?;
        let bytes = response.bytes().await.map_err(|source| self.unreachable(source))?;
        Ok(bytes.to_vec())
    }

    /// Sends a request once, without a time limit.
    pub(crate) async fn open(&self, request: &ApiRequest) -> Result<Response, TerminalError> {
        self.send_built(self.build(request)).await
    }

    /// Sends a request until it succeeds or fails for good, and returns its JSON. `report` receives each temporary failure.
    pub(crate) async fn send_repeatedly(
        &self,
        request: &ApiRequest,
        report: &mut (dyn FnMut(&TerminalError) + Send),
    ) -> Result<ExactJson, TerminalError> {
        let deadline = Instant::now() + REPEAT_MAX;
        let mut delay = DELAY_MIN;
        loop {
            match self.send_once(request).await {
                Err(error) if error.is_temporary() && Instant::now() < deadline => {
                    report(&error);
                    tokio::time::sleep(delay).await;
                    delay = next_delay(delay);
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends a request once. A service that does not run is an error at once.
    pub(crate) async fn send_once(&self, request: &ApiRequest) -> Result<ExactJson, TerminalError> {
        let response = self.send_built(self.build(request).timeout(REQUEST_TIMEOUT)).await?;
        let body = response.bytes().await.map_err(|source| self.unreachable(source))?;
        if body.is_empty() {
            return Ok(ExactJson::Null);
        }
        parse_json(&body).ok_or_else(|| TerminalError::Foreign { address: self.address.clone() })
    }

    fn build(&self, request: &ApiRequest) -> RequestBuilder {
        let url = format!("{}{}", self.address, request.path);
        let mut builder = self.http.request(request.method.clone(), url);
        builder = match &self.credentials {
            ClientCredentials::None => builder,
            ClientCredentials::Key(key) => builder.header("x-functions-key", key),
            ClientCredentials::Token(token) => builder.bearer_auth(token),
        };
        let identity = [("turnwheel-tenant", &self.tenant), ("turnwheel-user", &self.user)];
        for (name, value) in identity {
            if let Some(value) = value {
                builder = builder.header(name, value);
            }
        }
        if request.is_for_operators && self.is_local {
            builder = builder.header("turnwheel-roles", "Turnwheel.Operator");
        }
        if let Some(key) = &request.key {
            builder = builder.header("idempotency-key", key);
        }
        match &request.body {
            Some(body) => builder.json(body),
            None => builder,
        }
    }

    async fn send_built(&self, builder: RequestBuilder) -> Result<Response, TerminalError> {
        let response = builder.send().await.map_err(|source| self.unreachable(source))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.bytes().await.unwrap_or_default();
        let problem = parse_json(&body).unwrap_or(ExactJson::Null);
        let title = text(&problem, "title");
        let title =
            if title.is_empty() { status.canonical_reason().unwrap_or("Error") } else { title };
        let detail = match text(&problem, "detail") {
            "" => missing_detail(status.as_u16()),
            detail => detail,
        };
        Err(TerminalError::Problem {
            status: status.as_u16(),
            title: title.to_owned(),
            detail: detail.to_owned(),
        })
    }

    pub(crate) fn unreachable(&self, source: reqwest::Error) -> TerminalError {
        TerminalError::Unreachable { address: self.address.clone(), source: source.without_url() }
    }
}

/// Text for a response without a problem document, such as one of the Functions host.
fn missing_detail(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            "the service refuses the credentials: set TURNWHEEL_KEY to a function key, or TURNWHEEL_TOKEN to an Entra token"
        }
        404 => "there is no Turnwheel at this address: check `--url`",
        status if is_temporary_status(status) => "the service is not available: try again later",
        _ => "the response has no detail",
    }
}

pub(crate) fn next_delay(delay: Duration) -> Duration {
    (delay * 2).min(DELAY_MAX)
}

pub(crate) const fn first_delay() -> Duration {
    DELAY_MIN
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// The path of a conversation.
///
/// # Errors
/// The id is invalid: exit code 2.
pub(crate) fn conversation_path(id: &str) -> Result<String, TerminalError> {
    check_id(id)?;
    Ok(format!("/api/conversations/{id}"))
}

pub(crate) fn check_id(id: &str) -> Result<(), TerminalError> {
    if is_plain_text(id) {
        return Ok(());
    }
    Err(TerminalError::Arguments(format!("`{id}` is no id: ids consist of A-Z a-z 0-9 _ . -")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(address: &str, credentials: ClientCredentials) -> Result<Client, TerminalError> {
        Client::new(address, credentials, &ServiceArguments::default())
    }

    #[test]
    fn credentials_are_sent_encrypted_or_to_this_machine() {
        let key = || ClientCredentials::Key("k".to_owned());
        for safe in [
            "https://a.example",
            "http://127.0.0.1:7071/",
            "http://[::1]:1",
            "http://localhost:7071",
        ] {
            assert!(open(safe, key()).is_ok(), "{safe}");
        }
        for unsafe_address in ["http://a.example", "http://localhost.evil.example"] {
            assert!(open(unsafe_address, key()).is_err(), "{unsafe_address}");
            assert!(open(unsafe_address, ClientCredentials::None).is_ok());
        }
        for wrong in ["", "a.example", "ftp://a.example", "file:///etc"] {
            assert!(open(wrong, ClientCredentials::None).is_err(), "{wrong}");
        }
        assert_eq!(open("http://127.0.0.1:1/", key()).unwrap().address, "http://127.0.0.1:1");
    }

    /// `Out-File -Encoding utf8` of Windows PowerShell writes a mark, and without the option UTF-16.
    #[test]
    fn key_file_of_powershell_has_the_plain_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.txt");
        for (bytes, expected) in [
            (&b"abc\n"[..], Ok("abc")),
            (b"\xef\xbb\xbfabc\r\n", Ok("abc")),
            (b"\xff\xfea\0b\0c\0\r\0\n\0", Err("UTF-16")),
            (b"\xef\xbb\xbf\xef\xbb\xbfabc", Err("two byte order marks")),
            (b"caf\xe9", Err("save it as UTF-8")),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let arguments =
                ServiceArguments { key_file: Some(file.clone()), ..ServiceArguments::default() };
            let found = ClientCredentials::read(&arguments).map(|credentials| match credentials {
                ClientCredentials::Key(key) => key,
                ClientCredentials::None | ClientCredentials::Token(_) => {
                    panic!("{bytes:?}: no key")
                }
            });
            let found = found.map_err(|error| error.to_string());
            match expected {
                Ok(key) => assert_eq!(found.as_deref(), Ok(key), "{bytes:?}"),
                Err(named) => {
                    let error = found.unwrap_err();
                    assert!(error.contains("key.txt") && error.contains(named), "{error}");
                }
            }
        }
    }

    #[test]
    fn delay_between_attempts_doubles_up_to_its_bound() {
        assert_eq!(next_delay(DELAY_MIN), DELAY_MIN * 2);
        assert_eq!(next_delay(DELAY_MAX), DELAY_MAX);
    }

    #[test]
    fn ids_with_other_characters_are_refused() {
        assert!(conversation_path("c_1").is_ok());
        assert!(conversation_path("../approvals").is_err());
    }
}
