//! Reads `host.json` as the Functions host does, and rejects settings with which Azure would start
//! and then misbehave.

use std::time::Duration;

use super::host_json::{HostJson, HostOverrides};
use super::problem::HostProblem;

const ROUTE_PREFIX: &str = "extensions.http.routePrefix";
const PROXYING: &str = "customHandler.enableProxyingHttpRequest";
const ENCODING: &str = "extensions.queues.messageEncoding";
type HostCheck = fn(&HostJson) -> Option<HostProblem>;

/// Members that decide how requests and messages reach the handler, with their checks.
pub(super) const INVOCATION_RULES: [(&str, HostCheck); 3] = [
    (ROUTE_PREFIX, route_prefix_problem),
    (PROXYING, proxying_problem),
    (ENCODING, encoding_problem),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// Without slashes at its ends; never empty.
    pub route_prefix: String,
    /// `None`: unlimited.
    pub function_timeout: Option<Duration>,
    pub queues: QueueConfig,
    /// `customHandler.description.defaultExecutablePath`: relative, without `./`.
    pub executable: String,
}

fn parse_function_timeout(text: &str) -> Option<Duration> {
    parse_time_span(text).filter(|span| !span.is_zero())
}

pub(super) fn function_timeout_problem(text: &str) -> String {
    format!(
        "`functionTimeout` is `{text}`: write hours:minutes:seconds, `00:10:00`, or `-1` for no limit"
    )
}

/// `extensions.queues`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Messages per receive: 1 to 32.
    pub batch_size: usize,
    /// The next receive waits until at most this many messages are running.
    pub new_batch_threshold: usize,
    pub polling_interval_max: Duration,
    /// How long a failed message stays hidden.
    pub visibility_timeout: Duration,
    pub dequeue_count_max: u32,
    /// Messages are base64; a message that is not goes to the poison queue.
    pub is_base64: bool,
}

impl HostConfig {
    /// # Errors
    /// All problems of the file.
    pub fn read(text: &str, has_queues: bool) -> Result<Self, Vec<HostProblem>> {
        let json = HostJson::read(text, &HostOverrides::default());
        Self::from_members(&json.map_err(|problem| vec![problem])?, has_queues)
    }

    /// # Errors
    /// All problems of the members.
    pub(super) fn from_members(
        json: &HostJson,
        has_queues: bool,
    ) -> Result<Self, Vec<HostProblem>> {
        let mut reader = Reader { json, problems: json.repeated_names() };
        reader.check_version();
        if has_queues {
            reader.check_bundle();
        }
        let config = Self {
            route_prefix: reader.read_route_prefix(),
            function_timeout: reader.read_function_timeout(),
            queues: reader.read_queues(),
            executable: reader.read_executable(),
        };
        if reader.problems.is_empty() { Ok(config) } else { Err(reader.problems) }
    }
}

/// Reports a prefix with which requests miss the API, or reach functions by their names.
fn route_prefix_problem(json: &HostJson) -> Option<HostProblem> {
    let prefix = route_prefix(json);
    (!prefix.eq_ignore_ascii_case("api")).then(|| {
        let message = format!(
            "`{ROUTE_PREFIX}` is `{prefix}`: the handler serves its API below `api`, and with another prefix requests could call functions by their names; write \"api\""
        );
        json.problem(ROUTE_PREFIX, &message)
    })
}

fn route_prefix(json: &HostJson) -> String {
    let prefix = json.text(ROUTE_PREFIX).unwrap_or_else(|| "api".to_owned());
    prefix.trim_matches('/').to_owned()
}

/// Reports requests that the handler does not get as the client sent them.
fn proxying_problem(json: &HostJson) -> Option<HostProblem> {
    let is_on = json.text(PROXYING).is_some_and(|text| text.trim().eq_ignore_ascii_case("true"));
    (!is_on).then(|| {
        let message = format!(
            "`{PROXYING}` is not true: Azure would buffer every stream until its end; write true"
        );
        json.problem(PROXYING, &message)
    })
}

/// Reports an encoding in which the messages of the queues are not written.
pub(super) fn encoding_problem(json: &HostJson) -> Option<HostProblem> {
    let is_plain = json.text(ENCODING).is_some_and(|text| text.eq_ignore_ascii_case("none"));
    (!is_plain).then(|| {
        let message = format!(
            "`{ENCODING}` is not \"none\": messages are plain JSON, and Azure would move each one to the poison queue"
        );
        json.problem(ENCODING, &message)
    })
}

struct Reader<'a> {
    json: &'a HostJson,
    problems: Vec<HostProblem>,
}

impl Reader<'_> {
    fn add_problem(&mut self, path: &str, message: &str) {
        self.problems.push(self.json.problem(path, message));
    }

    fn number_at(&mut self, path: &str, default: u32, range: std::ops::RangeInclusive<u32>) -> u32 {
        let Some(text) = self.json.text(path) else { return default };
        let number = text.trim().parse::<u32>().ok();
        number.filter(|number| range.contains(number)).unwrap_or_else(|| {
            let (from, to) = (range.start(), range.end());
            let bound = if *to == u32::MAX { String::new() } else { format!(" and at most {to}") };
            self.add_problem(
                path,
                &format!("`{path}` is `{text}`: a whole number, at least {from}{bound}"),
            );
            default
        })
    }

    fn duration_at(&mut self, path: &str, default: Duration) -> Duration {
        let Some(text) = self.json.text(path) else { return default };
        parse_time_span(&text).unwrap_or_else(|| {
            self.add_problem(
                path,
                &format!("`{path}` is `{text}`: write hours:minutes:seconds, `00:00:02`"),
            );
            default
        })
    }

    /// The Functions host reads the version before it ignores the case of names.
    fn check_version(&mut self) {
        if self.json.exact_text("version") != Some("2.0") {
            self.add_problem("version", "`version` is not \"2.0\": the host refuses to start");
        }
    }

    fn check_bundle(&mut self) {
        let path = "extensionBundle.id";
        if self.json.text(path).is_none_or(|id| id.is_empty()) {
            self.add_problem(
                path,
                "`extensionBundle` is missing: without it Azure has no queue triggers; write \
                 {\"id\": \"Microsoft.Azure.Functions.ExtensionBundle\", \"version\": \"[4.*, 5.0.0)\"}",
            );
        }
    }

    fn read_executable(&mut self) -> String {
        let path = "customHandler.description.defaultExecutablePath";
        let executable = self.json.text(path).unwrap_or_default();
        if executable.is_empty() {
            self.add_problem(path, &format!("`{path}` is missing: write the handler's file name"));
        } else if executable.starts_with("./") || executable.starts_with(".\\") {
            self.add_problem(
                path,
                &format!(
                    "`{path}` is `{executable}`: leave `./` away, or the upload loses the execute bit"
                ),
            );
        }
        self.problems.extend(proxying_problem(self.json));
        executable
    }

    fn read_route_prefix(&mut self) -> String {
        self.problems.extend(route_prefix_problem(self.json));
        route_prefix(self.json)
    }

    fn read_function_timeout(&mut self) -> Option<Duration> {
        let path = "functionTimeout";
        let default = Some(Duration::from_mins(30));
        let text = self.json.text(path).filter(|text| !text.trim().is_empty());
        let Some(text) = text else { return default };
        if text == "-1" {
            return None;
        }
        let timeout = parse_function_timeout(&text);
        if timeout.is_none() {
            self.add_problem(path, &function_timeout_problem(&text));
        }
        timeout.or(default)
    }

    fn read_queues(&mut self) -> QueueConfig {
        let at = |name: &str| format!("extensions.queues.{name}");
        let batch_size = self.number_at(&at("batchSize"), 16, 1..=32);
        // The host's default is half a batch per processor; this is the value on plans with one.
        let threshold = self.number_at(&at("newBatchThreshold"), batch_size / 2, 0..=u32::MAX);
        let interval = at("maxPollingInterval");
        let polling_interval_max = self.duration_at(&interval, Duration::from_mins(1));
        if polling_interval_max < Duration::from_millis(100) {
            self.add_problem(
                &interval,
                &format!("`{interval}` is less than 100 ms: the host refuses it"),
            );
        }
        let encoding = self.json.text(ENCODING).unwrap_or_else(|| "base64".to_owned());
        let is_base64 = encoding.eq_ignore_ascii_case("base64");
        if !is_base64 && !encoding.eq_ignore_ascii_case("none") {
            self.add_problem(
                ENCODING,
                &format!("`{ENCODING}` is `{encoding}`: write \"none\" or \"base64\""),
            );
        }
        QueueConfig {
            batch_size: batch_size as usize,
            new_batch_threshold: threshold as usize,
            polling_interval_max,
            visibility_timeout: self.duration_at(&at("visibilityTimeout"), Duration::ZERO),
            dequeue_count_max: self.number_at(&at("maxDequeueCount"), 5, 1..=u32::MAX),
            is_base64,
        }
    }
}

/// Parses .NET's `[days.]hours:minutes:seconds[.fraction]`. Rejects a bare number, which .NET reads
/// as days and nobody means.
pub(super) fn parse_time_span(text: &str) -> Option<Duration> {
    let mut parts = text.split(':');
    let (days_hours, minutes, seconds) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let (days, hours) = days_hours.split_once('.').unwrap_or(("0", days_hours));
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    if fraction.is_empty() || fraction.len() > 7 {
        return None;
    }
    let below = |text: &str, bound: u64| parse_digits(text).filter(|number| *number < bound);
    let whole = parse_digits(days)?.checked_mul(86_400)?
        + below(hours, 24)? * 3_600
        + below(minutes, 60)? * 60
        + below(seconds, 60)?;
    let nanos = parse_digits(&format!("{fraction:0<9}"))?;
    Some(Duration::new(whole, u32::try_from(nanos).ok()?))
}

fn parse_digits(text: &str) -> Option<u64> {
    let is_short = (1..=9).contains(&text.len());
    (is_short && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScriptRoot;

    #[test]
    fn shipped_host_json_has_expected_settings() {
        let config = HostConfig::read(&ScriptRoot::embedded().host_json, true).unwrap();
        assert_eq!(
            config,
            HostConfig {
                route_prefix: "api".into(),
                function_timeout: Some(Duration::from_mins(10)),
                queues: QueueConfig {
                    batch_size: 32,
                    new_batch_threshold: 96,
                    polling_interval_max: Duration::from_secs(2),
                    visibility_timeout: Duration::from_secs(15),
                    dequeue_count_max: 5,
                    is_base64: false,
                },
                executable: "turnwheel".into(),
            }
        );
    }

    #[test]
    fn host_json_problems_are_reported_together() {
        let text = r#"{
            "version": "3.0",
            "functionTimeout": "ten minutes",
            "customHandler": { "description": { "defaultExecutablePath": "./turnwheel" } },
            "extensions": {
                "http": { "routePrefix": "" },
                "queues": { "batchSize": 33, "maxDequeueCount": 0, "maxPollingInterval": "00:00:00.05",
                            "messageEncoding": "utf8", "visibilityTimeout": 7 }
            }
        }"#;
        let problems = HostConfig::read(text, true).unwrap_err();
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn host_json_names_in_any_case_are_equal() {
        let shipped = ScriptRoot::embedded().host_json;
        let mut text = shipped.clone();
        for (name, other) in [
            ("functionTimeout", "FunctionTimeout"),
            ("customHandler", "CustomHandler"),
            ("description", "DESCRIPTION"),
            ("defaultExecutablePath", "DefaultExecutablePath"),
            ("enableProxyingHttpRequest", "EnableProxyingHttpRequest"),
            ("extensionBundle", "ExtensionBundle"),
            ("extensions", "Extensions"),
            ("http", "Http"),
            ("routePrefix", "RoutePrefix"),
            ("queues", "Queues"),
            ("messageEncoding", "MessageEncoding"),
            ("batchSize", "BatchSize"),
            ("newBatchThreshold", "NewBatchThreshold"),
            ("maxDequeueCount", "MaxDequeueCount"),
            ("visibilityTimeout", "VisibilityTimeout"),
            ("maxPollingInterval", "MaxPollingInterval"),
        ] {
            let [name, other] = [name, other].map(|name| format!("\"{name}\":"));
            assert!(text.contains(&name), "{name}");
            text = text.replace(&name, &other);
        }
        assert_eq!(HostConfig::read(&text, true), HostConfig::read(&shipped, true));
        let problems = |from: &str, to: &str| {
            let problems = HostConfig::read(&text.replace(from, to), true).unwrap_err();
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert!(problems("\"api\"", "null").contains("routePrefix` is ``"), "null is no default");
        assert!(problems("\"version\"", "\"Version\"").contains("the host refuses to start"));
    }

    #[test]
    fn time_span_parses_dotnet_format() {
        for (text, span) in [
            ("00:10:00", Some(Duration::from_mins(10))),
            ("1.02:03:04", Some(Duration::from_secs(93_784))),
            ("00:00:00.25", Some(Duration::from_millis(250))),
            ("10", None),
            ("00:10", None),
            ("24:00:00", None),
            ("00:60:00", None),
            ("00:00:+1", None),
            ("00:00:00.", None),
            ("", None),
        ] {
            assert_eq!(parse_time_span(text), span, "{text}");
        }
    }

    #[test]
    fn host_json_without_object_is_rejected() {
        for text in ["", "[]", "// comment\n{}"] {
            assert_eq!(HostConfig::read(text, false).unwrap_err().len(), 1, "{text}");
        }
    }
}
