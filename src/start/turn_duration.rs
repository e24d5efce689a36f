//! The longest time of a turn. The Functions host kills a process whose invocation takes as long as
//! `functionTimeout`.

use std::path::Path;
use std::time::Duration;

use crate::start::deployed_functions::host_root_and_overrides;
use crate::start::start_error::StartError;
use turnwheel_devhost as host;
use turnwheel_devhost::HostError;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_queries::event_stream::STREAM_DURATION_MAX;
use turnwheel_record::services::Limits;

/// Time of a turn: half of the host's `functionTimeout`, at most the default.
pub(crate) fn turn_duration(
    settings: &ServiceSettings,
    root: &Path,
) -> Result<Duration, StartError> {
    let (root, overrides) = host_root_and_overrides(settings, root);
    let timeout = host::find_function_timeout(root, &overrides, STREAM_DURATION_MAX)
        .map_err(|problem| HostError::Files(vec![problem]))?;
    let default = Limits::default().turn_duration;
    Ok(timeout.map_or(default, |timeout| default.min(timeout / 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: &str = "AzureFunctionsJobHost__functionTimeout";

    /// Seconds of a turn, or the error, with this `functionTimeout` in host.json and this override.
    fn seconds(file: Option<&str>, environment: Option<&str>) -> Result<u64, String> {
        let root = tempfile::tempdir().unwrap();
        let member = file.map(|text| format!(r#", "functionTimeout": "{text}""#));
        let host_json = format!(r#"{{"version": "2.0"{}}}"#, member.unwrap_or_default());
        std::fs::write(root.path().join("host.json"), host_json).unwrap();
        let mut settings = ServiceSettings::read(|_| None).unwrap();
        if let Some(text) = environment {
            settings = settings.with_app_setting(SETTING, text.to_owned());
        }
        let duration = turn_duration(&settings, root.path());
        duration.map(|duration| duration.as_secs()).map_err(|error| error.to_string())
    }

    #[test]
    fn turn_takes_half_of_function_timeout_at_most() {
        let default = Limits::default().turn_duration.as_secs();
        assert_eq!(seconds(None, None), Ok(default));
        assert_eq!(seconds(Some("-1"), None), Ok(default));
        assert_eq!(seconds(Some("02:00:00"), None), Ok(default));
        assert_eq!(seconds(Some("00:05:00"), None), Ok(150));
        assert_eq!(seconds(Some("00:03:21"), None), Ok(100));
        // The environment comes first.
        assert_eq!(seconds(Some("00:03:20"), Some("00:05:00")), Ok(150));
        assert_eq!(seconds(Some("00:03:20"), Some("-1")), Ok(default));
    }

    #[test]
    fn function_timeout_below_an_event_stream_is_refused() {
        for (file, environment, place) in [
            (Some("00:03:20"), None, "host.json: "),
            (None, Some("00:03:20"), SETTING),
            (Some("00:05:00"), Some("00:03:20"), SETTING),
        ] {
            let refused = seconds(file, environment).unwrap_err();
            let (_, reason) = refused.split_once(place).unwrap_or_else(|| panic!("{refused}"));
            assert!(
                reason.contains("is 200 s") && reason.contains("takes up to 200 s"),
                "{refused}"
            );
        }
    }
}
