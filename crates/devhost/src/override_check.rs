//! Checks of the app settings that override members of `host.json`, and of both together.

use std::path::Path;

use super::config::{HostConfig, INVOCATION_RULES};
use super::host_json::{FILE, HostJson, HostOverrides};
use super::problem::HostProblem;
use super::root::read_if_present;
use super::upload::member_problems;

/// Returns a problem for each app setting that overrides `host.json` with an invalid value.
pub fn find_override_problems(overrides: &HostOverrides) -> Vec<HostProblem> {
    let json = HostJson::from_overrides(overrides);
    let mut problems = HostConfig::from_members(&json, true).err().unwrap_or_default();
    problems.extend(member_problems(&json));
    problems.retain(is_of_setting);
    problems
}

/// Returns the problems that keep requests and messages of the Functions host from the handler, or
/// change their form. If `host.json` is absent or cannot be read, only the app settings are checked.
/// Two settings of one member are a problem, because the host may use either.
pub fn find_invocation_problems(root: &Path, overrides: &HostOverrides) -> Vec<HostProblem> {
    let text = read_if_present(root, FILE).ok().flatten();
    let file = text.and_then(|text| HostJson::read(&text, overrides).ok());
    let is_file_read = file.is_some();
    let json = file.unwrap_or_else(|| HostJson::from_overrides(overrides));
    let problems = INVOCATION_RULES.into_iter().filter_map(|(_, check)| check(&json));
    let problems = problems.filter(|problem| is_file_read || is_of_setting(problem));
    let members = INVOCATION_RULES.map(|(member, _)| member);
    let settings = HostJson::from_overrides(&overrides.of_members(&members));
    settings.repeated_names().into_iter().chain(problems).collect()
}

fn is_of_setting(problem: &HostProblem) -> bool {
    problem.file != FILE
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ScriptRoot;

    fn overrides(settings: &[(&str, &str)]) -> HostOverrides {
        let named = |(member, value): &(&str, &str)| {
            (format!("AzureFunctionsJobHost__{member}"), (*value).to_owned())
        };
        HostOverrides::new(settings.iter().map(named))
    }

    fn lines(problems: &[HostProblem]) -> Vec<String> {
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn override_is_checked_like_host_json() {
        for (member, value, part) in [
            ("extensions__http__routePrefix", "", "`extensions.http.routePrefix` is ``"),
            ("Extensions__Http__RoutePrefix", "v1", "`extensions.http.routePrefix` is `v1`"),
            ("customHandler__enableProxyingHttpRequest", "false", "HttpRequest` is not true"),
            ("customHandler__description__workingDirectory", "api", "leave it empty"),
            ("customHandler__http__routes__0__route", "{*path}", "`customHandler.http.routes` is"),
            ("configurationProfile", "mcp-custom-handler", "which adds routes"),
            ("extensionBundle__id", "", "`extensionBundle` is missing"),
            ("extensionBundle__version", "[3.*, 4.0.0)", "`extensionBundle.version` is"),
            ("extensions__queues__messageEncoding", "base64", "is not \"none\""),
            ("extensions__queues__batchSize", "64", "`extensions.queues.batchSize` is `64`"),
            ("extensions__queues__maxDequeueCount", "0", "is `0`: a whole number, at least 1"),
            ("extensions__queues__maxPollingInterval", "00:00:00", "less than 100 ms"),
            ("extensions__queues__visibilityTimeout", "15", "write hours:minutes:seconds"),
            ("functionTimeout", "ten minutes", "`functionTimeout` is `ten minutes`"),
        ] {
            let problems = lines(&find_override_problems(&overrides(&[(member, value)])));
            let start =
                format!("AzureFunctionsJobHost__{member}: remove or correct this app setting");
            assert!(problems.iter().all(|line| line.starts_with(&start)), "{problems:?}");
            assert!(problems.iter().any(|line| line.contains(part)), "{member}: {problems:?}");
        }
    }

    #[test]
    fn harmless_app_setting_has_no_problem() {
        let harmless = overrides(&[
            ("EXTENSIONS__HTTP__ROUTEPREFIX", "/api/"),
            ("customHandler__EnableProxyingHttpRequest", "True"),
            ("customHandler__description__workingDirectory", ""),
            ("configurationProfile", "default"),
            ("extensions__queues__messageEncoding", "None"),
            ("extensions__queues__batchSize", "8"),
            ("functionTimeout", ""),
            ("logging__logLevel__default", "Debug"),
            ("version", "3.0"),
            // docs/local.md: a build of a developer's machine.
            ("customHandler__description__defaultExecutablePath", "/src/target/debug/turnwheel"),
        ]);
        assert_eq!(lines(&find_override_problems(&harmless)), [""; 0]);
        assert_eq!(lines(&find_override_problems(&HostOverrides::default())), [""; 0]);
    }

    #[test]
    fn invocation_check_prefers_app_settings_to_file() {
        let folder = tempfile::tempdir().unwrap();
        let find = |settings: &[(&str, &str)]| {
            lines(&find_invocation_problems(folder.path(), &overrides(settings))).join("\n")
        };
        let write = |text: &str| fs::write(folder.path().join(FILE), text).unwrap();
        let prefix = "extensions__http__routePrefix";
        let refusal = "AzureFunctionsJobHost__extensions__http__routePrefix: remove";
        // Without a file that can be read, only the settings count.
        for text in [None, Some("// comment\n{}")] {
            if let Some(text) = text {
                write(text);
            }
            assert_eq!(find(&[]), "", "{text:?}");
            assert!(find(&[(prefix, "")]).starts_with(refusal), "{text:?}");
        }
        let shipped = ScriptRoot::embedded().host_json;
        write(&shipped);
        assert_eq!(find(&[]), "");
        assert!(find(&[(prefix, "")]).starts_with(refusal));
        assert!(find(&[("customHandler__enableProxyingHttpRequest", "0")]).contains("not true"));
        assert!(find(&[("extensions__queues__messageEncoding", "base64")]).contains("poison"));
        write(&shipped.replace("\"routePrefix\": \"api\"", "\"RoutePrefix\": \"\""));
        assert!(find(&[]).starts_with("host.json: `extensions.http.routePrefix` is ``"));
        assert_eq!(find(&[(prefix, "api")]), "");
        for (member, valid) in [
            (prefix, "api"),
            ("customHandler__enableProxyingHttpRequest", "true"),
            ("extensions__queues__messageEncoding", "none"),
        ] {
            let other = member.to_ascii_uppercase();
            let repeated = format!("AzureFunctionsJobHost__{other}: sets the same member");
            for [first, second] in [["", valid], [valid, ""]] {
                let found = find(&[(member, first), (other.as_str(), second)]);
                assert!(found.starts_with(&repeated), "{found}");
            }
        }
        assert_eq!(find(&[(prefix, "api"), ("functionTimeout", ""), ("FunctionTimeout", "")]), "");
    }
}
