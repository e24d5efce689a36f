//! Agreement of the deployed functions with `TURNWHEEL_AUTH`: with function keys the Functions host
//! guards the API, so each function must require one.

use std::path::Path;

use crate::doctor::{Area, Check};
use crate::package;
use turnwheel_devhost as host;
use turnwheel_devhost::{HostProblem, ScriptRoot};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::Auth;

/// The folder into which `package` writes by default.
const PACKAGE_FOLDER: &str = "dist";

/// Detail of the responses of a closed API.
const REFUSAL: &str = "The deployed functions accept requests without a key, which fits TURNWHEEL_AUTH=easyauth only, and the app runs with another mode. Run `turnwheel package` with the app's TURNWHEEL_AUTH, and publish the package. The log names the functions.";

/// Returns the reason why the API refuses every request, and logs the functions. `None` without a
/// Functions host.
pub(crate) fn find_refusal(settings: &ServiceSettings) -> Option<String> {
    settings.port?;
    let root = settings.app_root.as_deref().unwrap_or(Path::new("."));
    let problems = find_exposed_functions(settings, root);
    for problem in &problems {
        tracing::error!(function.file = %problem.file, reason = %problem.message, auth = auth_name(settings), "API refuses all requests");
    }
    (!problems.is_empty()).then(|| REFUSAL.to_owned())
}

/// Returns the functions of a deployed folder that require no key although the mode relies on keys.
pub(crate) fn find_exposed_functions(settings: &ServiceSettings, dir: &Path) -> Vec<HostProblem> {
    if relies_on_keys(settings) { host::find_deployed_exposure(dir) } else { Vec::new() }
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

/// Checks the routes and keys of the functions of `dir`, and of the package in it.
pub(crate) fn function_checks(settings: &ServiceSettings, dir: &Path) -> Vec<Check> {
    let root = settings.app_root.as_deref().unwrap_or(dir);
    let mut checks = vec![folder_check(settings, root, "functions")];
    let package = root.join(PACKAGE_FOLDER);
    if package::is_package(&package) {
        checks.push(folder_check(settings, &package, "functions of dist"));
    }
    checks
}

fn folder_check(settings: &ServiceSettings, dir: &Path, name: &str) -> Check {
    let root = match ScriptRoot::find(dir) {
        Ok(root) => root,
        Err(problem) => return Check::fix(Area::Configuration, name, problem.to_string()),
    };
    let (mut problems, functions) = match root.read() {
        Ok((_, functions)) => (Vec::new(), functions),
        Err(problems) => (problems, Vec::new()),
    };
    problems.extend(host::route_problems(&root, &functions));
    let exposed = if relies_on_keys(settings) { host::find_exposure(&root) } else { Vec::new() };
    let auth = auth_name(settings);
    let mut lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.extend(exposed.iter().map(|problem| {
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
        for (file, text) in root.files() {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
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
        fs::write(keyed.path().join("turn/function.json"), "{").unwrap();
        assert!(find_refusal(&settings("keys", keyed.path())).is_some(), "unreadable");
    }

    #[test]
    fn function_that_hides_another_is_reported() {
        let dir = deploy(Auth::Keys);
        fs::rename(dir.path().join("web"), dir.path().join("api")).unwrap();
        let checks =
            format!("{:?}", function_checks(&settings("keys", dir.path()), Path::new(".")));
        assert!(checks.contains("takes requests of `approve`"), "{checks}");
    }
}
