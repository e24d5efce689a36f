//! Reader that parses settings from a lookup and collects their errors.

use std::cell::RefCell;
use std::collections::BTreeSet;

use url::Url;

use super::mistake::SettingMistake;
use super::table::{self, SetBy};
use crate::text_encoding::trim_text;

const KEY_VAULT_REFERENCE: &str = "@Microsoft.KeyVault(";
/// A clause that follows the setting's name.
pub const UNRESOLVED: &str = r#"is a Key Vault reference that is not resolved: in Azure give the app's identity the role `Key Vault Secrets User`, wait some minutes, or have App Service resolve it again (`az rest --method POST --uri "https://management.azure.com$(az functionapp show -g GROUP -n APP --query id -o tsv)/config/configreferences/appsettings/refresh?api-version=2022-03-01"`); elsewhere set the value itself"#;

/// The default of `RUST_LOG`.
const LOG_DEFAULT: &str = "info";

pub(super) struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    mistakes: Vec<SettingMistake>,
    /// Settings whose value is an unresolved Key Vault reference.
    unresolved: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup, mistakes: Vec::new(), unresolved: RefCell::default() }
    }

    /// The value without leading and trailing white space, and without the byte order mark that a
    /// shell copies with the text of a file. `None` if it is empty.
    pub(super) fn get(&self, name: &'static str) -> Option<String> {
        let value = (self.lookup)(name)?;
        let value = trim_text(&value);
        if is_unresolved(value) {
            self.unresolved.borrow_mut().insert(name);
            return None;
        }
        (!value.is_empty()).then(|| value.to_owned())
    }

    pub(super) fn add_mistake(&mut self, mistake: SettingMistake) {
        self.mistakes.push(mistake);
    }

    /// Returns `None` if the setting is absent, or if `parse` rejects it; then records the error.
    pub(super) fn parse<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.get(name)?;
        let value = parse(&text);
        if value.is_none() {
            self.add_mistake(SettingMistake::invalid(name, &text, expected));
        }
        value
    }

    pub(super) fn read_port(&mut self) -> Option<u16> {
        self.parse("FUNCTIONS_CUSTOMHANDLER_PORT", "a port from 1 to 65535", |text| {
            text.parse().ok().filter(|port| *port != 0)
        })
    }

    /// A flag of the platform: every value except `true` and `1` is false.
    pub(super) fn read_flag(&self, name: &'static str) -> bool {
        self.get(name).is_some_and(|text| text.eq_ignore_ascii_case("true") || text == "1")
    }

    /// Reads an http or https address without user, query or fragment.
    pub(super) fn read_address(&mut self, name: &'static str) -> Option<Url> {
        self.parse(name, "an address such as https://host/path", parse_address)
    }

    pub(super) fn read_agent_name(&mut self, name: &'static str) -> Option<String> {
        self.parse(name, "the name of an agent file: 1 to 64 of a-z, 0-9 and -", |text| {
            let is_name = text.len() <= 64
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            is_name.then(|| text.to_owned())
        })
    }

    pub(super) fn read_hosts(&mut self, name: &'static str) -> Vec<String> {
        let expected = "hosts, host:port, addresses or ranges such as 10.1.0.0/16, separated by commas, without http://";
        self.parse(name, expected, |text| {
            let hosts: Vec<String> = split_list(text).map(str::to_owned).collect();
            hosts.iter().all(|host| is_host_or_range(host)).then_some(hosts)
        })
        .unwrap_or_default()
    }

    pub(super) fn read_list(&mut self, name: &'static str) -> Vec<String> {
        let text = self.get(name).unwrap_or_default();
        split_list(&text).map(str::to_owned).collect()
    }

    pub(super) fn read_log_filter(&mut self) -> String {
        let expected = "directives such as `info` or `info,turnwheel=debug`";
        self.parse("RUST_LOG", expected, |text| {
            tracing_subscriber::EnvFilter::try_new(text).ok().map(|_| text.to_owned())
        })
        .unwrap_or(LOG_DEFAULT.to_owned())
    }

    /// True in Azure. No single variable shows it: Flex Consumption has no `WEBSITE_INSTANCE_ID`,
    /// and the local host sets `WEBSITE_HOSTNAME`.
    pub(super) fn is_in_azure(&self) -> bool {
        // Reads all three, so that a test can compare the table with the settings that are read.
        let indicators = ["WEBSITE_INSTANCE_ID", "WEBSITE_SKU", "LEGION_SERVICE_HOST"]
            .map(|name| self.get(name).is_some());
        indicators.contains(&true)
    }

    /// All errors, including those of settings that have no effect yet: an operator must not rely
    /// on them.
    pub(super) fn into_mistakes(mut self) -> Vec<SettingMistake> {
        for row in table::ROWS.iter().filter(|row| row.set_by == SetBy::FutureRelease) {
            if self.get(row.name).is_some() {
                self.add_mistake(SettingMistake::new(
                    row.name,
                    "is set, but comes with a later release and would do nothing: remove it",
                ));
            }
        }
        let unresolved = self.unresolved.take();
        // An unresolved reference causes other errors of that setting; report it only once.
        self.mistakes.retain(|mistake| !unresolved.contains(mistake.name.as_str()));
        self.mistakes
            .extend(unresolved.into_iter().map(|name| SettingMistake::new(name, UNRESOLVED)));
        self.mistakes
    }
}

/// True if the value is a Key Vault reference, which the platform failed to replace with the
/// secret.
pub fn is_unresolved(value: &str) -> bool {
    let start = value.trim_start().get(..KEY_VAULT_REFERENCE.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(KEY_VAULT_REFERENCE))
}

/// The parts of a list, separated by commas or white space, without empty ones.
pub(super) fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty())
}

pub(super) fn parse_address(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_plain = matches!(url.scheme(), "http" | "https")
        && url.host_str().is_some_and(|host| !host.is_empty())
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    is_plain.then_some(url)
}

fn is_host_or_range(text: &str) -> bool {
    if let Some((address, bits)) = text.split_once('/') {
        let bits_max = match address.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(_)) => 32,
            Ok(std::net::IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        return bits.parse::<u8>().is_ok_and(|bits| bits <= bits_max);
    }
    if text.parse::<std::net::IpAddr>().is_ok() {
        return true;
    }
    let is_bare = !text.contains(['/', '@', '?', '#', '\\', '*']);
    is_bare
        && Url::parse(&format!("http://{text}/")).is_ok_and(|url| {
            url.host_str().is_some_and(|host| !host.is_empty()) && url.port() != Some(0)
        })
}
