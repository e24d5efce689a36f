//! Authentication, public address, signing keys, webhook and artifact links.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use url::Url;

use super::azure::{StorageAccess, StorageAccount};
use super::mistake::SettingMistake;
use super::reader::{Reader, parse_address, split_list};
use super::secret::Secret;

/// Minimum length of a signing key in bytes.
pub(crate) const SIGNING_KEY_MIN: usize = 32;
/// Minimum length of a webhook secret in bytes (Standard Webhooks 1.0).
pub(crate) const WEBHOOK_SECRET_MIN: usize = 24;

const SECRET_PREFIX: &str = "whsec_";

/// The authentication of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Auth {
    /// Function keys; all callers are the one user `default`.
    Keys,
    /// `easyauth`, the platform's sign-in.
    #[strum(serialize = "easyauth")]
    SignIn,
    /// Function keys, and the headers of a trusted gateway.
    Header,
}

impl Auth {
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.parse("TURNWHEEL_AUTH", "`keys`, `easyauth` or `header`", |text| text.parse().ok())
    }
}

pub(super) fn read_console(reader: &mut Reader<'_>) -> Option<bool> {
    reader.parse("TURNWHEEL_CONSOLE", "`on` or `off`", |text| match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    })
}

/// The download path of artifacts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArtifactLinks {
    /// Through this app.
    #[default]
    Api,
    /// `sas`: from the storage account, with a link that the app's identity signs.
    Signed,
}

impl ArtifactLinks {
    pub(super) fn read(reader: &mut Reader<'_>, storage: Option<&StorageAccount>) -> Self {
        let links = reader.parse("TURNWHEEL_ARTIFACT_LINKS", "`api` or `sas`", |text| match text {
            "api" => Some(Self::Api),
            "sas" => Some(Self::Signed),
            _ => None,
        });
        let is_identity =
            storage.is_some_and(|account| matches!(account.access, StorageAccess::Identity(_)));
        if links == Some(Self::Signed) && !is_identity {
            reader.add_mistake(SettingMistake::new(
                "TURNWHEEL_ARTIFACT_LINKS",
                "is `sas`, and only an identity signs such links: name the storage account by AzureWebJobsStorage__accountName, without a connection string, or write `api`",
            ));
        }
        links.unwrap_or_default()
    }
}

/// Decodes secrets of Standard Webhooks, separated by spaces. `None`: one of them is not usable, or
/// there is none.
pub fn parse_webhook_secrets(text: &str) -> Option<Vec<Secret<Vec<u8>>>> {
    let decode = |part: &str| decode_base64(part.strip_prefix(SECRET_PREFIX)?, WEBHOOK_SECRET_MIN);
    let secrets: Vec<_> = split_list(text).map(decode).collect::<Option<_>>()?;
    (!secrets.is_empty()).then_some(secrets)
}

/// The receiver of notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// A secret, because chat services put theirs into the path.
    pub url: Secret<Url>,
    /// Decoded, without `whsec_`; all secrets sign. Empty only for a chat service or a workflow.
    pub secrets: Vec<Secret<Vec<u8>>>,
    pub format: WebhookFormat,
}

/// Body of the requests that send notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebhookFormat {
    /// Standard Webhooks.
    #[default]
    Standard,
    /// A message with blocks, for an incoming webhook of Slack.
    Slack,
    /// A message with an Adaptive Card, for a workflow of Microsoft Teams.
    Teams,
    /// Subject, HTML and plain text, for a program that sends e-mails.
    Email,
}

impl Webhook {
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let url = reader.parse(
            "TURNWHEEL_WEBHOOK_URL",
            "an address that begins with https:// or http://",
            |text| {
                let url = Url::parse(text).ok()?;
                let is_web = matches!(url.scheme(), "http" | "https")
                    && url.username().is_empty()
                    && url.password().is_none();
                is_web.then_some(url)
            },
        );
        let secrets = reader
            .parse(
                "TURNWHEEL_WEBHOOK_SECRET",
                "`whsec_` and base64 of at least 24 bytes; several separated by spaces",
                parse_webhook_secrets,
            )
            .unwrap_or_default();
        let format = reader.parse(
            "TURNWHEEL_WEBHOOK_FORMAT",
            "`standard`, `slack`, `teams` or `email`",
            |text| match text {
                "standard" => Some(WebhookFormat::Standard),
                "slack" => Some(WebhookFormat::Slack),
                "teams" => Some(WebhookFormat::Teams),
                "email" => Some(WebhookFormat::Email),
                _ => None,
            },
        );
        let format = format.unwrap_or_default();
        let url = Secret::new(url?);
        // A chat service or a workflow checks no signature: its address is the secret.
        let needs_secret = format == WebhookFormat::Standard;
        if needs_secret && secrets.is_empty() && reader.get("TURNWHEEL_WEBHOOK_SECRET").is_none() {
            reader.add_mistake(SettingMistake::missing(
                "TURNWHEEL_WEBHOOK_SECRET",
                "a secret, since TURNWHEEL_WEBHOOK_URL is set: `whsec_` and base64 of at least 24 random bytes; receivers verify notifications with it",
            ));
        }
        Some(Self { url, secrets, format })
    }
}

pub(super) fn read_public_url(reader: &mut Reader<'_>) -> Option<String> {
    let configured =
        reader.read_address("TURNWHEEL_PUBLIC_URL").map(|url| trim_trailing_slash(url.as_str()));
    let host = reader.parse("WEBSITE_HOSTNAME", "a host name, or host:port", |text| {
        let scheme = if is_loopback(text) { "http" } else { "https" };
        parse_address(&format!("{scheme}://{text}")).map(|url| trim_trailing_slash(url.as_str()))
    });
    configured.or(host)
}

/// The host names of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNames {
    /// Every name: the platform routes only the app's own names to it.
    Any,
    /// Names of this machine, and that of the public address. A web page that resolves its own name
    /// to 127.0.0.1 must not read anything.
    Loopback,
}

impl HostNames {
    /// `WEBSITE_HOSTNAME` is absent or names this machine outside Azure.
    pub(super) fn read(reader: &Reader<'_>) -> Self {
        let is_local = reader.get("WEBSITE_HOSTNAME").is_none_or(|name| is_loopback(&name));
        if is_local { Self::Loopback } else { Self::Any }
    }
}

/// True if an address (`host`, `host:port` or a whole URL) is this machine, as it is for the local
/// Functions host.
pub fn is_loopback(text: &str) -> bool {
    let url =
        if text.contains("://") { Url::parse(text) } else { Url::parse(&format!("http://{text}")) };
    url.is_ok_and(|url| match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback() || address.is_unspecified(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    })
}

/// The port of `WEBSITE_HOSTNAME` (`host` or `host:port`) if it names this machine, as `func start` sets
/// it.
pub fn loopback_port(host: &str) -> Option<u16> {
    let url = Url::parse(&format!("http://{host}")).ok().filter(|_| is_loopback(host))?;
    url.port_or_known_default()
}

pub(super) fn read_signing_keys(reader: &mut Reader<'_>) -> Vec<Secret<Vec<u8>>> {
    reader
        .parse(
            "TURNWHEEL_SIGNING_KEYS",
            "base64 of at least 32 bytes each, separated by spaces (`head -c 32 /dev/urandom | base64` makes one)",
            |text| {
                split_list(text).map(|part| decode_base64(part, SIGNING_KEY_MIN)).collect::<Option<Vec<_>>>()
            },
        )
        .unwrap_or_default()
}

fn trim_trailing_slash(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}

/// Decodes standard and URL-safe base64, with or without padding, because tools differ in their
/// output.
fn decode_base64(text: &str, bytes_min: usize) -> Option<Secret<Vec<u8>>> {
    let lenient = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let is_url_safe = text.contains(['-', '_']);
    let alphabet = if is_url_safe { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    let bytes = GeneralPurpose::new(alphabet, lenient).decode(text).ok()?;
    (bytes.len() >= bytes_min).then(|| Secret::new(bytes))
}
