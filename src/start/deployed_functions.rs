//! Agreement of the deployed functions with `TURNWHEEL_AUTH`: with function keys the Functions host
//! guards the API, so each function must require one. With the platform's sign-in none may. Also checks
//! that `host.json` and the app settings that override it fit the API.

use std::path::Path;

use crate::doctor::{Area, Check};
use crate::package;
use crate::start::options::ServiceOptions;
use crate::start::start_error::StartError;
use turnwheel_devhost as host;
use turnwheel_devhost::{HostError, HostOverrides, HostProblem, ScriptRoot};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::Auth;

/// The folder into which `package` writes by default.
const PACKAGE_FOLDER: &str = "dist";

/// Detail of the responses of a closed API.
const REFUSAL: &str = "The deployed functions accept requests without a key, or the app cannot read which keys they require. The app's TURNWHEEL_AUTH relies on the keys. Run `turnwheel package` with this setting, and publish the package. The log names the files.";

/// Refuses a start behind a Functions host that would not send its requests and messages as the
/// handler expects them.
///
/// # Errors
/// Names `host.json`, or the app setting that overrides it.
pub(crate) fn check_invocation_settings(
    settings: &ServiceSettings,
    options: &ServiceOptions,
) -> Result<(), StartError> {
    if !options.is_hosted {
        return Ok(());
    }
    let (root, overrides) = host_root_and_overrides(settings, &options.root);
    let problems = host::find_invocation_problems(root, &overrides);
    if problems.is_empty() { Ok(()) } else { Err(HostError::Files(problems).into()) }
}

/// Returns the folder of `host.json`, which is `root` without a Functions host, and the app settings
/// that override the file.
pub(crate) fn host_root_and_overrides<'a>(
    settings: &'a ServiceSettings,
    root: &'a Path,
) -> (&'a Path, HostOverrides) {
    (settings.app_root.as_deref().unwrap_or(root), HostOverrides::new(settings.host_settings()))
}

/// Returns the reason why the API refuses every request, and logs the files. `None` without a Functions
/// host, and in a mode without keys, in which the files are only logged.
pub(crate) fn find_refusal(settings: &ServiceSettings) -> Option<String> {
    settings.port?;
    let (dir, overrides) = host_root_and_overrides(settings, Path::new("."));
    let is_deployed = settings.app_root.is_some();
    let problems = match ScriptRoot::read_deployed(dir) {
        Ok(root) => {
            let mut problems = find_key_mismatches(settings, &root, is_deployed);
            if is_deployed {
                problems.extend(host::find_unknown_routes(&root, &overrides));
            }
            problems
        }
        Err(problem) => vec![problem],
    };
    let auth = auth_name(settings);
    let is_refused = relies_on_keys(settings) && !problems.is_empty();
    for HostProblem { file, message } in &problems {
        if is_refused {
            tracing::error!(function.file = %file, reason = %message, auth, "API refuses all requests");
        } else {
            tracing::warn!(function.file = %file, reason = %message, auth, "deployed functions have a problem");
        }
    }
    is_refused.then(|| REFUSAL.to_owned())
}

/// Returns the functions of a staged folder that require no key although the mode relies on keys, and
/// the app settings that override its `host.json` with an invalid value.
pub(crate) fn find_setting_problems(settings: &ServiceSettings, dir: &Path) -> Vec<HostProblem> {
    let overrides = HostOverrides::new(settings.host_settings());
    let mut problems = host::find_override_problems(&overrides);
    match ScriptRoot::read_deployed(dir) {
        Ok(root) => problems.extend(find_key_mismatches(settings, &root, false)),
        Err(problem) => problems.push(problem),
    }
    problems
}

/// Returns the functions whose keys do not fit the mode. `package` sets the levels, so a key that
/// refuses signed-in users is reported of a deployed folder only.
fn find_key_mismatches(
    settings: &ServiceSettings,
    root: &ScriptRoot,
    is_deployed: bool,
) -> Vec<HostProblem> {
    if relies_on_keys(settings) {
        host::find_exposure(root)
    } else if is_deployed {
        host::find_keyed_functions(root)
    } else {
        Vec::new()
    }
}

fn relies_on_keys(settings: &ServiceSettings) -> bool {
    match settings.auth.unwrap_or(Auth::Keys) {
        Auth::Keys | Auth::Header => true,
        Auth::SignIn => false,
    }
}

fn auth_name(settings: &ServiceSettings) -> &'static str {
    settings.auth.unwrap_or(Auth::Keys).into_str()
}

/// Checks `host.json`, routes and keys of the functions of `dir`, and of the package in it, and the
/// app settings that override `host.json`.
pub(crate) fn function_checks(settings: &ServiceSettings, dir: &Path) -> Vec<Check> {
    let (root, overrides) = host_root_and_overrides(settings, dir);
    let mut checks: Vec<Check> = host::find_override_problems(&overrides)
        .into_iter()
        .map(|problem| Check::fix(Area::Configuration, problem.file, problem.message))
        .collect();
    checks.push(folder_check(settings, root, "functions"));
    let package = root.join(PACKAGE_FOLDER);
    if package::is_package(&package) {
        checks.push(folder_check(settings, &package, "functions of dist"));
    }
    checks
}

fn folder_check(settings: &ServiceSettings, dir: &Path, name: &str) -> Check {
    let is_deployed = settings.app_root.as_deref() == Some(dir) || package::is_package(dir);
    let root = if is_deployed { ScriptRoot::read_deployed(dir) } else { ScriptRoot::find(dir) };
    let root = match root {
        Ok(root) => root,
        Err(problem) => return Check::fix(Area::Configuration, name, problem.to_string()),
    };
    let (mut problems, functions) = match root.read() {
        Ok((_, functions)) => (Vec::new(), functions),
        Err(problems) => (problems, Vec::new()),
    };
    problems.extend(host::host_json_problems(&root.host_json));
    problems.extend(host::route_problems(&root, &functions));
    if is_deployed {
        problems.extend(host::find_unknown_routes(&root, &HostOverrides::default()));
    }
    let auth = auth_name(settings);
    let mut lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.extend(find_key_mismatches(settings, &root, is_deployed).iter().map(|problem| {
        format!("{problem}, and TURNWHEEL_AUTH is {auth}: package again with this setting")
    }));
    if lines.is_empty() {
        let detail = format!("routes are reachable; keys fit TURNWHEEL_AUTH={auth}");
        return Check::ok(Area::Configuration, name, detail);
    }
    Check::fix(Area::Configuration, name, lines.join("; "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn settings(auth: &'static str, root: &Path) -> ServiceSettings {
        let root = root.to_str().unwrap().to_owned();
        let lookup = move |name: &str| match name {
            "TURNWHEEL_AUTH" => Some(auth.to_owned()),
            "FUNCTIONS_CUSTOMHANDLER_PORT" => Some("43211".to_owned()),
            "FUNCTIONS_APP_ROOT_PATH" => Some(root.clone()),
            _ => None,
        };
        ServiceSettings::read(lookup).unwrap()
    }

    /// A deployed folder with the levels of `auth`.
    fn deploy(auth: Auth) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut root = ScriptRoot::embedded();
        if auth == Auth::SignIn {
            let web = root.functions.get_mut("web").unwrap();
            *web = web.replace("\"function\"", "\"anonymous\"");
        }
        write_files(dir.path(), &root);
        dir
    }

    fn write_files(dir: &Path, root: &ScriptRoot) {
        for (file, text) in root.files() {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn check_text(settings: &ServiceSettings, dir: &Path) -> String {
        format!("{:?}", function_checks(settings, dir))
    }

    #[test]
    fn package_of_another_mode_closes_the_api() {
        let open = deploy(Auth::SignIn);
        let keyed = deploy(Auth::Keys);
        for mode in ["keys", "header"] {
            assert!(find_refusal(&settings(mode, open.path())).unwrap().contains("package"));
            assert_eq!(find_refusal(&settings(mode, keyed.path())), None);
            let checks = function_checks(&settings(mode, open.path()), Path::new("."));
            let text = format!("{checks:?}");
            assert!(text.contains("web/function.json: requires no key") && text.contains("Fix"));
            let checks = function_checks(&settings(mode, keyed.path()), Path::new("."));
            assert!(format!("{checks:?}").contains("routes are reachable"), "{checks:?}");
        }
        for dir in [&open, &keyed] {
            assert_eq!(find_refusal(&settings("easyauth", dir.path())), None);
        }
        let text = check_text(&settings("easyauth", open.path()), Path::new("."));
        assert!(text.contains("keys fit TURNWHEEL_AUTH=easyauth"), "{text}");
        let text = check_text(&settings("easyauth", keyed.path()), Path::new("."));
        assert!(
            text.contains("web/function.json: requires a key") && text.contains("Fix"),
            "{text}"
        );
        fs::write(keyed.path().join("turn/function.json"), "{").unwrap();
        assert!(find_refusal(&settings("keys", keyed.path())).is_some(), "unreadable");
    }

    /// The levels of a clone are those of `keys`; `package` replaces them.
    #[test]
    fn keyed_functions_are_reported_of_packages_only() {
        let clone = tempfile::tempdir().unwrap();
        let root = ScriptRoot::embedded();
        write_files(&clone.path().join("functions"), &root);
        fs::write(clone.path().join("host.json"), &root.host_json).unwrap();
        let lookup = |name: &str| (name == "TURNWHEEL_AUTH").then(|| "easyauth".to_owned());
        let settings = ServiceSettings::read(lookup).unwrap();
        let text = check_text(&settings, clone.path());
        assert!(!text.contains("Fix"), "{text}");
        let package = clone.path().join(PACKAGE_FOLDER);
        write_files(&package, &root);
        let mark = "# Staged by `turnwheel package`: the next one replaces what is here.\n";
        fs::write(package.join(".funcignore"), mark).unwrap();
        assert!(package::is_package(&package));
        let text = check_text(&settings, clone.path());
        assert_eq!(text.matches("web/function.json: requires a key").count(), 1, "{text}");
    }

    #[test]
    fn routes_without_function_json_close_the_api() {
        let dir = deploy(Auth::Keys);
        let host_json = ScriptRoot::embedded().host_json;
        let write = |text: &str| fs::write(dir.path().join("host.json"), text).unwrap();
        let refusal = |mode| find_refusal(&settings(mode, dir.path()));
        for (from, to) in [
            (
                "\"description\"",
                "\"Http\": {\"routes\": [{\"route\": \"{*path}\"}]}, \"description\"",
            ),
            ("\"version\"", "\"configurationProfile\": \"mcp-custom-handler\", \"version\""),
        ] {
            write(&host_json.replacen(from, to, 1));
            assert!(refusal("keys").is_some() && refusal("header").is_some(), "{to}");
            assert_eq!(refusal("easyauth"), None);
            let text = check_text(&settings("keys", dir.path()), Path::new("."));
            assert!(text.contains("host.json: adds routes"), "{text}");
        }
        write(&host_json);
        assert_eq!(refusal("keys"), None);
        for name in ScriptRoot::embedded().functions.keys() {
            fs::remove_file(dir.path().join(name).join("function.json")).unwrap();
        }
        assert!(refusal("keys").is_some() && refusal("header").is_some());
        assert_eq!(refusal("easyauth"), None);
        let text = check_text(&settings("keys", dir.path()), Path::new("."));
        assert!(text.contains("is not in any folder directly below the root"), "{text}");
    }

    fn with_host_setting(settings: ServiceSettings, value: &str) -> ServiceSettings {
        let name = "AzureFunctionsJobHost__Extensions__Http__RoutePrefix";
        settings.with_app_setting(name, value.to_owned())
    }

    #[test]
    fn host_json_is_checked_in_clone_and_package() {
        let dir = deploy(Auth::Keys);
        let folder = dir.path();
        let host_json = ScriptRoot::embedded().host_json;
        let lookup = |name: &str| (name == "TURNWHEEL_AUTH").then(|| "keys".to_owned());
        let clone = ServiceSettings::read(lookup).unwrap();
        for settings in [settings("keys", folder), clone] {
            fs::write(folder.join("host.json"), &host_json).unwrap();
            assert!(!check_text(&settings, folder).contains("Fix"));
            for (from, to, part) in [
                ("\"messageEncoding\": \"none\"", "\"MessageEncoding\": \"base64\"", "poison"),
                ("\"workingDirectory\": \"\"", "\"WorkingDirectory\": \"a\"", "leave it empty"),
                ("\"routePrefix\": \"api\"", "\"RoutePrefix\": \"\"", "routePrefix` is ``"),
                ("[4.*, 5.0.0)", "[3.*, 4.0.0)", "`extensionBundle.version` is `[3.*, 4.0.0)`"),
            ] {
                fs::write(folder.join("host.json"), host_json.replace(from, to)).unwrap();
                let text = check_text(&settings, folder);
                assert!(text.contains("Fix") && text.contains(part), "{to}: {text}");
            }
        }
    }

    #[test]
    fn app_setting_that_overrides_host_json_is_reported() {
        let dir = deploy(Auth::Keys);
        let folder = dir.path();
        let report = |value: &str| {
            let settings = with_host_setting(settings("keys", folder), value);
            let problems = find_setting_problems(&settings, folder);
            let found = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            (found, check_text(&settings, folder))
        };
        for value in ["", "v1"] {
            let (found, checks) = report(value);
            let start = "AzureFunctionsJobHost__Extensions__Http__RoutePrefix: remove or correct";
            assert!(found.starts_with(start) && found.lines().count() == 1, "{found}");
            assert!(checks.contains("AzureFunctionsJobHost__Extensions__Http__RoutePrefix"));
            assert_eq!(checks.matches("which overrides host.json").count(), 1, "{checks}");
        }
        let (found, checks) = report("api");
        assert!(found.is_empty() && !checks.contains("Fix"), "{found} {checks}");
    }

    #[test]
    fn start_is_refused_when_requests_miss_handler() {
        let dir = deploy(Auth::Keys);
        let check_as = |is_hosted: bool, settings: &ServiceSettings| {
            let options = ServiceOptions { is_hosted, ..ServiceOptions::default() };
            check_invocation_settings(settings, &options).map_err(|error| error.to_string())
        };
        let check = |settings: &ServiceSettings| check_as(true, settings);
        let hosted = settings("keys", dir.path());
        assert_eq!(check(&hosted), Ok(()));
        let misrouted = with_host_setting(hosted.clone(), "");
        // The built-in host reads no such setting.
        assert_eq!(check_as(false, &misrouted), Ok(()));
        let refusal = check(&misrouted).unwrap_err();
        assert!(refusal.contains("__RoutePrefix: remove or correct this app setting"), "{refusal}");
        let text =
            ScriptRoot::embedded().host_json.replace("routePrefix\": \"api", "RoutePrefix\": \"");
        fs::write(dir.path().join("host.json"), text).unwrap();
        let refusal = check(&hosted).unwrap_err();
        assert!(refusal.contains("host.json: `extensions.http.routePrefix` is ``"), "{refusal}");
        assert_eq!(check(&with_host_setting(hosted, "api")), Ok(()));
    }

    #[test]
    fn function_that_hides_another_is_reported() {
        let dir = deploy(Auth::Keys);
        fs::rename(dir.path().join("web"), dir.path().join("api")).unwrap();
        let checks = check_text(&settings("keys", dir.path()), Path::new("."));
        assert!(checks.contains("takes requests of `approve`"), "{checks}");
        // The Functions host runs it all the same.
        let file = dir.path().join("api/function.json");
        let text = fs::read_to_string(&file).unwrap().replacen('{', "{\"disabled\": true,", 1);
        fs::write(file, text).unwrap();
        let checks = check_text(&settings("keys", dir.path()), Path::new("."));
        assert!(checks.contains("`disabled` has no effect on the host"), "{checks}");
    }
}
