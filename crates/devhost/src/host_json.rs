//! Members of `host.json` as the Functions host reads them: names without regard to case, and app
//! settings before the file.

use serde_json::Value;

use super::problem::HostProblem;
use turnwheel_platform::settings::HOST_SETTING_PREFIX;
use turnwheel_platform::text_encoding::skip_byte_order_mark;

pub(super) const FILE: &str = "host.json";
pub(super) const PROFILE: &str = "configurationProfile";
pub(super) const ROUTES: &str = "customHandler.http.routes";

/// Members whose app settings are not checked: the Functions host reads the version only from the
/// file, and a developer's machine may run another executable.
const UNCHECKED_OVERRIDES: [&str; 2] =
    ["version", "customHandler:description:defaultExecutablePath"];

/// A value without members of its own.
#[derive(Clone, Debug)]
pub(super) struct HostMember {
    /// The app setting that has the value; `None`: the file.
    setting: Option<String>,
    /// Names as they are written, with `:` between them.
    path: String,
    value: Value,
}

impl HostMember {
    fn name(&self) -> String {
        self.path.replace(':', ".")
    }

    fn is_same(&self, other: &Self) -> bool {
        self.path.eq_ignore_ascii_case(&other.path)
    }

    /// The value as text, which is empty for null. `None`: an empty array or object, which .NET
    /// configuration has no value for.
    pub(super) fn text(&self) -> Option<String> {
        match &self.value {
            Value::Null => Some(String::new()),
            Value::String(text) => Some(text.clone()),
            scalar @ (Value::Bool(_) | Value::Number(_)) => Some(scalar.to_string()),
            Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// A problem of the value, in the file or in the app setting that overrides it.
    pub(super) fn problem(&self, message: &str) -> HostProblem {
        match &self.setting {
            Some(setting) => HostProblem::new(
                setting,
                format!("remove or correct this app setting, which overrides host.json: {message}"),
            ),
            None => HostProblem::new(FILE, message),
        }
    }
}

/// App settings that override members of `host.json`.
#[derive(Clone, Debug, Default)]
pub struct HostOverrides(Vec<HostMember>);

impl HostOverrides {
    /// Takes the settings with names such as `AzureFunctionsJobHost__extensions__http__routePrefix`,
    /// case-insensitive, and also with `:` for `__`. An empty value is a value.
    pub fn new(settings: impl IntoIterator<Item = (String, String)>) -> Self {
        let member = |(setting, value): (String, String)| {
            let name = setting.replace("__", ":");
            let (first, path) = name.split_once(':')?;
            let is_unchecked =
                UNCHECKED_OVERRIDES.iter().any(|unchecked| path.eq_ignore_ascii_case(unchecked));
            (first.eq_ignore_ascii_case(HOST_SETTING_PREFIX) && !is_unchecked).then(|| HostMember {
                setting: Some(setting),
                path: path.to_owned(),
                value: Value::String(value),
            })
        };
        Self(settings.into_iter().filter_map(member).collect())
    }

    /// The settings of these members alone.
    pub(super) fn of_members(&self, paths: &[&str]) -> Self {
        let paths: Vec<String> = paths.iter().map(|path| path.replace('.', ":")).collect();
        let is_one =
            |member: &&HostMember| paths.iter().any(|path| member.path.eq_ignore_ascii_case(path));
        Self(self.0.iter().filter(is_one).cloned().collect())
    }
}

/// The members in their order, app settings last: of several with one name the last one counts.
#[derive(Debug, Default)]
pub(super) struct HostJson(Vec<HostMember>);

impl HostJson {
    /// Reads the members of the file and of the app settings.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub(super) fn read(text: &str, overrides: &HostOverrides) -> Result<Self, HostProblem> {
        let json = match serde_json::from_str::<Value>(skip_byte_order_mark(text)) {
            Ok(json @ Value::Object(_)) => json,
            Ok(_) => return Err(HostProblem::new(FILE, "is not a JSON object")),
            Err(error) => return Err(HostProblem::new(FILE, format!("is not JSON: {error}"))),
        };
        let mut members = Vec::new();
        flatten(String::new(), json, &mut members);
        members.extend_from_slice(&overrides.0);
        Ok(Self(members))
    }

    /// The members of the app settings alone.
    pub(super) fn from_overrides(overrides: &HostOverrides) -> Self {
        Self(overrides.0.clone())
    }

    /// The value as text, which is empty for null. `None`: the member is absent, an array or an object.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        self.find(path)?.text()
    }

    /// The app setting that has the value; `None`: the file, or nothing.
    pub(super) fn setting(&self, path: &str) -> Option<&str> {
        self.find(path)?.setting.as_deref()
    }

    /// The text of a member whose name has the case of `path`, for readers that find no other.
    pub(super) fn exact_text(&self, path: &str) -> Option<&str> {
        let path = path.replace('.', ":");
        self.0.iter().find(|member| member.path == path)?.value.as_str()
    }

    /// True if the member has a value other than null, or members of its own.
    pub(super) fn has(&self, path: &str) -> bool {
        self.find_below(path).is_some()
    }

    /// The profile that changes other members; each of several spellings counts.
    pub(super) fn custom_profile(&self) -> Option<&HostMember> {
        let is_custom = |profile: &str| {
            !["", "default"].iter().any(|plain| profile.eq_ignore_ascii_case(plain))
        };
        let mut profiles = self.0.iter().filter(|member| member.path.eq_ignore_ascii_case(PROFILE));
        profiles.find(|member| member.value.as_str().is_some_and(is_custom))
    }

    /// The member that adds routes: one of `customHandler.http.routes`, or a profile.
    pub(super) fn find_added_routes(&self) -> Option<&HostMember> {
        self.find_below(ROUTES).or_else(|| self.custom_profile())
    }

    /// A problem of a member's value, in the file or in the app setting that overrides it.
    pub(super) fn problem(&self, path: &str, message: &str) -> HostProblem {
        let member = self.find(path).or_else(|| self.find_below(path));
        member.map_or_else(|| HostProblem::new(FILE, message), |member| member.problem(message))
    }

    /// Returns a problem for each name that occurs before in another case, or as another app setting.
    pub(super) fn repeated_names(&self) -> Vec<HostProblem> {
        let problem = |(index, member): (usize, &HostMember)| {
            let mut earlier = self.0.iter().take(index);
            let first = earlier.find(|earlier| {
                earlier.is_same(member) && earlier.setting.is_some() == member.setting.is_some()
            })?;
            Some(match (&first.setting, &member.setting) {
                (Some(first), Some(second)) => HostProblem::new(
                    second,
                    format!("sets the same member of host.json as {first}: remove one of the two"),
                ),
                _ => HostProblem::new(
                    FILE,
                    format!(
                        "has `{}` and `{}`: the Functions host ignores the case of names, and the last value counts; remove one of the two",
                        first.name(),
                        member.name()
                    ),
                ),
            })
        };
        self.0.iter().enumerate().filter_map(problem).collect()
    }

    /// The last value. Empty arrays and objects are none, so they override no other spelling.
    fn find(&self, path: &str) -> Option<&HostMember> {
        let path = path.replace('.', ":");
        let mut values =
            self.0.iter().rev().filter(|it| !it.value.is_array() && !it.value.is_object());
        values.find(|member| member.path.eq_ignore_ascii_case(&path))
    }

    fn find_below(&self, path: &str) -> Option<&HostMember> {
        let path = path.replace('.', ":").to_ascii_lowercase();
        let is_below = |member: &&HostMember| {
            let name = member.path.to_ascii_lowercase();
            let rest = name.strip_prefix(&*path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        self.0.iter().filter(|member| !member.value.is_null()).find(is_below)
    }
}

/// Adds the members of a value by their paths, as .NET configuration does.
fn flatten(path: String, value: Value, members: &mut Vec<HostMember>) {
    let path_of = |name: &str| {
        if path.is_empty() { name.to_owned() } else { format!("{path}:{name}") }
    };
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (name, value) in object {
                flatten(path_of(&name), value, members);
            }
        }
        Value::Array(elements) if !elements.is_empty() => {
            for (index, value) in elements.into_iter().enumerate() {
                flatten(path_of(&index.to_string()), value, members);
            }
        }
        value @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => members.push(HostMember { setting: None, path, value }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, settings: &[(&str, &str)]) -> HostJson {
        HostJson::read(text, &overrides(settings)).unwrap()
    }

    fn overrides(settings: &[(&str, &str)]) -> HostOverrides {
        HostOverrides::new(settings.iter().map(|(name, it)| ((*name).to_owned(), (*it).to_owned())))
    }

    #[test]
    fn host_json_names_are_read_in_any_case() {
        let prefix = |text: &str| read(text, &[]).text("extensions.http.routePrefix");
        for text in [
            r#"{"extensions": {"http": {"routePrefix": "v1"}}}"#,
            r#"{"Extensions": {"HTTP": {"ROUTEPREFIX": "v1"}}}"#,
            r#"{"extensions": {"queues": {}}, "Extensions": {"Http": {"RoutePrefix": "v1"}}}"#,
            r#"{"extensions": {"http": {"routePrefix": "api", "RoutePrefix": "v1"}}}"#,
            r#"{"extensions:http": {"routePrefix": "v1"}}"#,
            // Empty arrays and objects are no values.
            r#"{"extensions": {"http": {"routePrefix": "v1", "RoutePrefix": [], "ROUTEPREFIX": {}}}}"#,
        ] {
            assert_eq!(prefix(text).as_deref(), Some("v1"), "{text}");
        }
        for text in ["{}", r#"{"extensions.http.routePrefix": "v1"}"#, r#"{"extensions": "v1"}"#] {
            assert_eq!(prefix(text), None, "{text}");
        }
        let json = read(r#"{"A": null, "b": true, "c": 3}"#, &[]);
        assert_eq!(["a", "B", "C"].map(|name| json.text(name).unwrap()), ["", "true", "3"]);
        let json = read(r#"{"Version": "2.0"}"#, &[]);
        assert_eq!((json.exact_text("version"), json.exact_text("Version")), (None, Some("2.0")));
    }

    #[test]
    fn names_that_differ_in_case_are_reported() {
        let problems = |text: &str, settings: &[(&str, &str)]| {
            let problems = read(text, settings).repeated_names();
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let text = r#"{"a": {"b": 1, "B": 2}, "A": {"c": 3}}"#;
        insta::assert_snapshot!(problems(text, &[("AzureFunctionsJobHost__a__b", "4")]), @"host.json: has `a.b` and `a.B`: the Functions host ignores the case of names, and the last value counts; remove one of the two");
        let settings = [("AzureFunctionsJobHost__a__b", "1"), ("azurefunctionsjobhost:A:B", "2")];
        insta::assert_snapshot!(problems("{}", &settings), @"azurefunctionsjobhost:A:B: sets the same member of host.json as AzureFunctionsJobHost__a__b: remove one of the two");
        assert_eq!(problems(r#"{"a": {"b": 1}, "A": {"c": [1, 1]}}"#, &[]), "");
    }

    #[test]
    fn app_setting_overrides_host_json() {
        let text = r#"{"version": "2.0", "extensions": {"http": {"routePrefix": "api"}}}"#;
        for setting in [
            "AzureFunctionsJobHost__extensions__http__routePrefix",
            "AzureFunctionsJobHost:extensions:http:routePrefix",
            "AZUREFUNCTIONSJOBHOST__Extensions:HTTP__RoutePrefix",
        ] {
            let json = read(text, &[(setting, "")]);
            assert_eq!(json.text("extensions.http.routePrefix").as_deref(), Some(""), "{setting}");
            let problem = json.problem("extensions.http.routePrefix", "is empty");
            assert_eq!(
                problem.to_string(),
                format!(
                    "{setting}: remove or correct this app setting, which overrides host.json: is empty"
                )
            );
            assert_eq!(json.problem("version", "is old").to_string(), "host.json: is old");
        }
        for other in [
            "AzureFunctionsJobHost_extensions_http_routePrefix",
            "AzureFunctionsWebHost__extensions__http__routePrefix",
            "extensions__http__routePrefix",
        ] {
            let json = read(text, &[(other, "")]);
            assert_eq!(json.text("extensions.http.routePrefix").as_deref(), Some("api"), "{other}");
        }
        let json = read(text, &[("AzureFunctionsJobHost__version", "3")]);
        assert_eq!(json.text("version").as_deref(), Some("2.0"));
    }

    #[test]
    fn member_exists_with_value_or_members() {
        let json = read(
            r#"{"a": {"b": null}, "c": [], "d": {"e": 1}, "de": null}"#,
            &[("AzureFunctionsJobHost__customHandler__http__routes__0__route", "{*path}")],
        );
        let found = ["a", "a.b", "c", "d", "d.e", "de", "f"].map(|path| json.has(path));
        assert_eq!(found, [false, false, true, true, true, false, false]);
        let added = json.find_added_routes().unwrap();
        assert_eq!(added.path, "customHandler:http:routes:0:route");
    }

    #[test]
    fn profile_problem_names_file_or_app_setting() {
        let problem = |file: &str, setting: &str| {
            let text = format!(r#"{{"configurationProfile": "{file}"}}"#);
            let json = read(&text, &[("AzureFunctionsJobHost__ConfigurationProfile", setting)]);
            json.find_added_routes().map(|member| member.problem("adds routes").file)
        };
        let custom = "mcp-custom-handler";
        assert_eq!(problem(custom, "default").as_deref(), Some(FILE));
        let setting = Some("AzureFunctionsJobHost__ConfigurationProfile");
        assert_eq!(problem("default", custom).as_deref(), setting);
        assert_eq!(problem("default", ""), None);
    }
}
