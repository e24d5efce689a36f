//! `functionTimeout` as the Functions host reads it: more forms than a project should write.

use std::path::Path;
use std::time::Duration;

use super::config::{function_timeout_problem, parse_time_span};
use super::host_json::{FILE, HostJson, HostOverrides};
use super::problem::HostProblem;
use super::root;

const MEMBER: &str = "functionTimeout";

/// The time after which the Functions host kills the handler: the setting before `host.json` of a
/// folder. `None`: no limit, or that of the plan. `stream_max`: the longest time of an event stream.
/// A file that only the host can read, such as one with comments, counts as the shortest accepted time.
///
/// # Errors
/// The value is no time, so that the host does not start either, or an event stream takes as long.
pub fn find_function_timeout(
    root: &Path,
    overrides: &HostOverrides,
    stream_max: Duration,
) -> Result<Option<Duration>, HostProblem> {
    let settings = HostJson::from_overrides(overrides);
    let text = settings.text(MEMBER).filter(|text| !text.trim().is_empty());
    let (place, text) = if let (Some(text), Some(setting)) = (text, settings.setting(MEMBER)) {
        (setting, Some(text))
    } else {
        match read_file(root) {
            Ok(json) => (FILE, json.text(MEMBER)),
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

/// `host.json` of the folder; without members if there is none.
fn read_file(root: &Path) -> Result<HostJson, HostProblem> {
    let Some(text) = root::read_if_present(root, FILE)? else { return Ok(HostJson::default()) };
    HostJson::read(&text, &HostOverrides::default())
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

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM_MAX: Duration = Duration::from_secs(200);
    /// The host ignores the case of the name.
    const SETTING: &str = "AzureFunctionsJobHost__FunctionTimeout";

    fn overrides(setting: Option<&str>) -> HostOverrides {
        HostOverrides::new(setting.map(|it| (SETTING.to_owned(), it.to_owned())))
    }

    #[test]
    fn function_timeout_of_the_environment_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let find = |file: Option<&str>, setting: Option<&str>| {
            let path = folder.path().join("host.json");
            match file {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            find_function_timeout(folder.path(), &overrides(setting), STREAM_MAX)
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
        assert!(find(None, Some("soon")).unwrap_err().starts_with(SETTING));
        for (text, place) in [("00:03:20", "host.json: "), ("00:00:00", "host.json: ")] {
            let file = format!(r#"{{"functionTimeout":"{text}"}}"#);
            assert!(find(Some(&file), None).unwrap_err().starts_with(place), "{text}");
            let refused = find(None, Some(text)).unwrap_err();
            assert!(refused.starts_with(SETTING), "{refused}");
        }
    }

    #[test]
    fn function_timeout_is_read_as_the_host_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let find = |setting: &str| {
            find_function_timeout(folder.path(), &overrides(Some(setting)), STREAM_MAX)
        };
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
            find_function_timeout(folder.path(), &overrides(None), STREAM_MAX).unwrap()
        };
        let minutes = |count| Some(Duration::from_mins(count));
        assert_eq!(find(br#"{"FunctionTimeout":"00:07:00"}"#), minutes(7));
        let twice = br#"{"functionTimeout":"-1","FunctionTimeout":"00:07:00"}"#;
        assert_eq!(find(twice), minutes(7));
        assert_eq!(find("\u{feff}{\"functionTimeout\":\"00:07\"}".as_bytes()), minutes(7));
        assert_eq!(find(br#"{"functionTimeout":2}"#), minutes(2 * 24 * 60));
        assert_eq!(find(br#"{"functionTimeout":-1}"#), None);
        assert_eq!(find(br#"{"functionTimeout":null}"#), None);
        for unreadable in [
            &b"// ours\n{\"functionTimeout\":\"00:07:00\"}"[..],
            b"{'version':'2.0'}",
            b"[]",
            b"\xff\xfe{\0",
        ] {
            assert_eq!(find(unreadable), Some(STREAM_MAX + Duration::from_secs(1)));
        }
    }
}
