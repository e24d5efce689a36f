//! Reads `host.json` as the Functions host does, and rejects settings with which Azure would start
//! and then misbehave.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::problem::HostProblem;
use super::root;

const FILE: &str = "host.json";

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

/// App setting that replaces `functionTimeout` of `host.json`.
pub const FUNCTION_TIMEOUT_SETTING: &str = "AzureFunctionsJobHost__functionTimeout";

/// The time after which the Functions host kills the handler: the setting before `host.json` of a
/// folder. `None`: no limit, or that of the plan. `stream_max`: the longest time of an event stream.
/// A file that only the host can read, such as one with comments, counts as the shortest accepted time.
///
/// # Errors
/// The value is no time, so that the host does not start either, or an event stream takes as long.
pub fn find_function_timeout(
    root: &Path,
    setting: Option<&str>,
    stream_max: Duration,
) -> Result<Option<Duration>, HostProblem> {
    let (place, text) = if let Some(text) = setting {
        (FUNCTION_TIMEOUT_SETTING, Some(text.to_owned()))
    } else {
        match read_json(root) {
            Ok(json) => (FILE, find_function_timeout_text(&json)),
            Err(problem) => {
                let shortest = stream_max + Duration::from_secs(1);
                let assumed_s = shortest.as_secs();
                tracing::warn!(
                    assumed_s,
                    "functionTimeout is unknown, so turns are shorter: {problem}; write JSON without comments"
                );
                return Ok(Some(shortest));
            }
        }
    };
    let Some(text) = text.as_deref().map(str::trim).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    // The host has no limit for minus one day, which is also .NET's reading of `-1`.
    if text.strip_prefix('-').and_then(parse_dotnet_time_span) == Some(Duration::from_hours(24)) {
        return Ok(None);
    }
    let timeout = parse_dotnet_time_span(text)
        .filter(|span| !span.is_zero())
        .ok_or_else(|| HostProblem::new(place, function_timeout_problem(text)))?;
    if timeout <= stream_max {
        let (timeout, stream) = (timeout.as_secs(), stream_max.as_secs());
        let problem = format!(
            "`functionTimeout` is {timeout} s, but an event stream takes up to {stream} s: the host would kill the process; set at least 00:05:00"
        );
        return Err(HostProblem::new(place, problem));
    }
    Ok(Some(timeout))
}

/// `host.json` of the folder; `null` if there is none.
fn read_json(root: &Path) -> Result<Value, HostProblem> {
    let Some(text) = root::read_if_present(root, FILE)? else { return Ok(Value::Null) };
    serde_json::from_str(&text)
        .map_err(|error| HostProblem::new(FILE, format!("is not JSON: {error}")))
}

/// The text of `functionTimeout`, whose name the host compares without case.
fn find_function_timeout_text(json: &Value) -> Option<String> {
    let mut members = json.as_object()?.iter();
    match members.find(|(name, _)| name.eq_ignore_ascii_case("functionTimeout"))?.1 {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn parse_function_timeout(text: &str) -> Option<Duration> {
    parse_time_span(text).filter(|span| !span.is_zero())
}

fn function_timeout_problem(text: &str) -> String {
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
        let json = match serde_json::from_str::<Value>(text) {
            Ok(json @ Value::Object(_)) => json,
            Ok(_) => return Err(vec![HostProblem::new(FILE, "is not a JSON object")]),
            Err(error) => {
                return Err(vec![HostProblem::new(FILE, format!("is not JSON: {error}"))]);
            }
        };
        let mut reader = Reader { json: &json, problems: Vec::new() };
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

struct Reader<'a> {
    json: &'a Value,
    problems: Vec<HostProblem>,
}

impl Reader<'_> {
    fn add_problem(&mut self, message: impl Into<String>) {
        self.problems.push(HostProblem::new(FILE, message));
    }

    fn value_at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(self.json, |value, name| value.get(name)).filter(|v| !v.is_null())
    }

    fn text_at(&mut self, path: &str) -> Option<String> {
        match self.value_at(path) {
            None => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                self.add_problem(format!("`{path}` is not a string"));
                None
            }
        }
    }

    fn number_at(&mut self, path: &str, default: u32, range: std::ops::RangeInclusive<u32>) -> u32 {
        let Some(value) = self.value_at(path).cloned() else { return default };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| range.contains(number)).unwrap_or_else(|| {
            let (from, to) = (range.start(), range.end());
            let bound = if *to == u32::MAX { String::new() } else { format!(" and at most {to}") };
            self.add_problem(format!(
                "`{path}` is {value}: a whole number, at least {from}{bound}"
            ));
            default
        })
    }

    fn duration_at(&mut self, path: &str, default: Duration) -> Duration {
        let Some(text) = self.text_at(path) else { return default };
        parse_time_span(&text).unwrap_or_else(|| {
            self.add_problem(format!(
                "`{path}` is `{text}`: write hours:minutes:seconds, `00:00:02`"
            ));
            default
        })
    }

    fn check_version(&mut self) {
        if self.value_at("version").and_then(Value::as_str) != Some("2.0") {
            self.add_problem("`version` is not \"2.0\": the host refuses to start");
        }
    }

    fn check_bundle(&mut self) {
        if self.value_at("extensionBundle.id").is_none() {
            self.add_problem(
                "`extensionBundle` is missing: without it Azure has no queue triggers; write \
                 {\"id\": \"Microsoft.Azure.Functions.ExtensionBundle\", \"version\": \"[4.*, 5.0.0)\"}",
            );
        }
    }

    fn read_executable(&mut self) -> String {
        let path = "customHandler.description.defaultExecutablePath";
        let executable = self.text_at(path).unwrap_or_default();
        if executable.is_empty() {
            self.add_problem(format!("`{path}` is missing: write the handler's file name"));
        } else if executable.starts_with("./") || executable.starts_with(".\\") {
            self.add_problem(format!(
                "`{path}` is `{executable}`: leave `./` away, or the upload loses the execute bit"
            ));
        }
        if self.value_at("customHandler.enableProxyingHttpRequest") != Some(&Value::Bool(true)) {
            self.add_problem(
                "`customHandler.enableProxyingHttpRequest` is not true: Azure would buffer every \
                 stream until its end",
            );
        }
        executable
    }

    fn read_route_prefix(&mut self) -> String {
        let path = "extensions.http.routePrefix";
        let prefix = self.text_at(path).unwrap_or_else(|| "api".to_owned());
        let prefix = prefix.trim_matches('/');
        if !prefix.eq_ignore_ascii_case("api") {
            self.add_problem(format!(
                "`{path}` is `{prefix}`: the handler serves its API below `api`, and with another prefix requests could call functions by their names; write \"api\""
            ));
        }
        prefix.to_owned()
    }

    fn read_function_timeout(&mut self) -> Option<Duration> {
        let default = Some(Duration::from_mins(30));
        let Some(text) = self.text_at("functionTimeout") else { return default };
        if text == "-1" {
            return None;
        }
        let timeout = parse_function_timeout(&text);
        if timeout.is_none() {
            self.add_problem(function_timeout_problem(&text));
        }
        timeout.or(default)
    }

    fn read_queues(&mut self) -> QueueConfig {
        let at = |name: &str| format!("extensions.queues.{name}");
        let batch_size = self.number_at(&at("batchSize"), 16, 1..=32);
        // The host's default is half a batch per processor; this is the value on plans with one.
        let threshold = self.number_at(&at("newBatchThreshold"), batch_size / 2, 0..=u32::MAX);
        let polling_interval_max =
            self.duration_at(&at("maxPollingInterval"), Duration::from_mins(1));
        if polling_interval_max < Duration::from_millis(100) {
            self.add_problem(format!(
                "`{}` is less than 100 ms: the host refuses it",
                at("maxPollingInterval")
            ));
        }
        let encoding = self.text_at(&at("messageEncoding")).unwrap_or_else(|| "base64".to_owned());
        if encoding != "base64" && encoding != "none" {
            self.add_problem(format!(
                "`{}` is `{encoding}`: write \"none\" or \"base64\"",
                at("messageEncoding")
            ));
        }
        QueueConfig {
            batch_size: batch_size as usize,
            new_batch_threshold: threshold as usize,
            polling_interval_max,
            visibility_timeout: self.duration_at(&at("visibilityTimeout"), Duration::ZERO),
            dequeue_count_max: self.number_at(&at("maxDequeueCount"), 5, 1..=u32::MAX),
            is_base64: encoding == "base64",
        }
    }
}

/// Parses .NET's `[days.]hours:minutes:seconds[.fraction]`. Rejects a bare number, which .NET reads
/// as days and nobody means.
fn parse_time_span(text: &str) -> Option<Duration> {
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

/// Parses a time span as .NET: also hours and minutes alone, days alone, and a colon after the days.
fn parse_dotnet_time_span(text: &str) -> Option<Duration> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [days] => parse_time_span(&format!("{days}.00:00:00")),
        [hours, minutes] => parse_time_span(&format!("{hours}:{minutes}:00")),
        // .NET reads `24:00:00` as 24 days.
        [first, second, third] => parse_time_span(text)
            .or_else(|| parse_time_span(&format!("{first}.{second}:{third}:00"))),
        [days, hours, minutes, seconds] => {
            parse_time_span(&format!("{days}.{hours}:{minutes}:{seconds}"))
        }
        _ => None,
    }
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

    const STREAM_MAX: Duration = Duration::from_secs(200);

    #[test]
    fn function_timeout_of_the_environment_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let find = |file: Option<&str>, setting: Option<&str>| {
            let path = folder.path().join("host.json");
            match file {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            find_function_timeout(folder.path(), setting, STREAM_MAX)
                .map_err(|problem| problem.to_string())
        };
        let minutes = |count| Ok(Some(Duration::from_mins(count)));
        let file = r#"{"version":"2.0","functionTimeout":"00:10:00"}"#;
        assert_eq!(find(Some(file), None), minutes(10));
        assert_eq!(find(Some(file), Some("00:04:00")), minutes(4));
        assert_eq!(find(Some(file), Some("-1")), Ok(None));
        assert_eq!(find(Some(r#"{"functionTimeout":"-1"}"#), None), Ok(None));
        assert_eq!(find(Some("{}"), None), Ok(None));
        assert_eq!(find(None, None), Ok(None));
        assert!(find(None, Some("soon")).unwrap_err().starts_with("AzureFunctionsJobHost__"));
        for (text, place) in [("00:03:20", "host.json: "), ("00:00:00", "host.json: ")] {
            let file = format!(r#"{{"functionTimeout":"{text}"}}"#);
            assert!(find(Some(&file), None).unwrap_err().starts_with(place), "{text}");
            let refused = find(None, Some(text)).unwrap_err();
            assert!(refused.starts_with(FUNCTION_TIMEOUT_SETTING), "{refused}");
        }
    }

    #[test]
    fn function_timeout_is_read_as_the_host_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let find = |setting: &str| find_function_timeout(folder.path(), Some(setting), STREAM_MAX);
        let minutes = |count| Ok(Some(Duration::from_mins(count)));
        for (text, found) in [
            ("00:10", minutes(10)),
            (" 00:10:00 ", minutes(10)),
            ("1.00:05", minutes(24 * 60 + 5)),
            ("0:01:00:00", minutes(60)),
            ("2", minutes(2 * 24 * 60)),
            ("24:00:00", minutes(24 * 24 * 60)),
            (" ", Ok(None)),
            ("-1 ", Ok(None)),
            ("-1.00:00", Ok(None)),
            ("-1.00:00:00", Ok(None)),
            ("-1:00:00:00", Ok(None)),
        ] {
            assert_eq!(find(text), found, "{text}");
        }
        // With these the host does not start.
        for text in ["-00:10:00", "-2", "--1", "00:60", "24:00", "1:2:3:4:5", "1.5", "0"] {
            assert!(find(text).is_err(), "{text}");
        }
    }

    #[test]
    fn function_timeout_of_a_lenient_file_is_never_unlimited() {
        let folder = tempfile::tempdir().unwrap();
        let find = |file: &[u8]| {
            std::fs::write(folder.path().join("host.json"), file).unwrap();
            find_function_timeout(folder.path(), None, STREAM_MAX).unwrap()
        };
        let minutes = |count| Some(Duration::from_mins(count));
        assert_eq!(find(br#"{"FunctionTimeout":"00:07:00"}"#), minutes(7));
        assert_eq!(find("\u{feff}{\"functionTimeout\":\"00:07\"}".as_bytes()), minutes(7));
        assert_eq!(find(br#"{"functionTimeout":2}"#), minutes(2 * 24 * 60));
        assert_eq!(find(br#"{"functionTimeout":-1}"#), None);
        assert_eq!(find(br#"{"functionTimeout":null}"#), None);
        for unreadable in [
            &b"// ours\n{\"functionTimeout\":\"00:07:00\"}"[..],
            b"{'version':'2.0'}",
            b"\xff\xfe{\0",
        ] {
            assert_eq!(find(unreadable), Some(STREAM_MAX + Duration::from_secs(1)));
        }
    }

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
