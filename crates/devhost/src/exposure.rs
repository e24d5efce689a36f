//! Requests that the Functions host lets through: functions that take another function's requests,
//! and functions whose keys do not fit the authentication mode.

use serde_json::{Map, Value};

use super::Function;
use super::function::{HttpTrigger, PREFLIGHT_METHOD};
use super::host_json::{HostJson, HostOverrides};
use super::problem::HostProblem;
use super::root::ScriptRoot;
use super::routes::{Overlap, RouteTemplate};
use turnwheel_platform::text_encoding::skip_byte_order_mark;

/// Routes that need no key: the health probe, the console's page and the OpenAPI documents show no data, and an approval
/// link carries its own proof. Preflight requests need none either: browsers send them without credentials.
const PUBLIC_ROUTES: [&str; 5] =
    ["health", "approvals/{token}", "console/{*path}", "openapi.json", "openapi-3.0.json"];

/// Returns a problem for each HTTP function that takes requests of a later one. The Functions host
/// tries functions in the order of their names; the first whose route and methods match decides,
/// also about the key.
pub fn route_problems(root: &ScriptRoot, functions: &[Function]) -> Vec<HostProblem> {
    let mut ordered: Vec<(&Function, &HttpTrigger)> =
        functions.iter().filter_map(|function| Some((function, function.http()?))).collect();
    ordered.sort_by_key(|(function, _)| function.order());
    let mut problems = Vec::new();
    let mut rest = ordered.as_slice();
    while let Some((first, later)) = rest.split_first() {
        let (first, one) = *first;
        problems.extend(later.iter().filter_map(|(second, two)| {
            let message = conflict(first, one, second, two)?;
            Some(HostProblem::new(root.function_file(&first.name), message))
        }));
        rest = later;
    }
    problems
}

fn conflict(
    first: &Function,
    one: &HttpTrigger,
    second: &Function,
    two: &HttpTrigger,
) -> Option<String> {
    if one.route.has_text_of(&two.route) {
        return Some(format!(
            "has the same route as `{}`: the Functions host accepts it in one function only; remove one of the two, or change its route",
            second.name
        ));
    }
    let is_taken = match one.route.overlap(&two.route) {
        Overlap::None | Overlap::First => false,
        Overlap::Second => one.shares_method(two),
        // Preflight requests have a function of their own, whose route may be that of a catch-all.
        Overlap::Same => one.shares_method(two) && !one.is_preflight(),
    };
    is_taken.then(|| {
        format!(
            "its route `{}` takes requests of `{}` (`{}`): the Functions host tries functions in the order of their names, and the first that matches decides; rename the folder `{}` so that it sorts after `{}`, such as `web`",
            one.route.text(), second.name, two.route.text(), first.name, second.name
        )
    })
}

/// Returns a problem for each function that requires no key although its requests need one. Reads
/// the files as leniently as the Functions host: what cannot be understood counts as open.
pub fn find_exposure(root: &ScriptRoot) -> Vec<HostProblem> {
    find_problems(root, exposure)
}

/// Returns a problem for each function that requires a key although the platform signs its callers
/// in. One that requires the master key was closed on purpose.
pub fn find_keyed_functions(root: &ScriptRoot) -> Vec<HostProblem> {
    find_problems(root, keyed_reason)
}

fn find_problems(
    root: &ScriptRoot,
    reason: fn(&str, &str) -> Option<&'static str>,
) -> Vec<HostProblem> {
    let problem = |(name, text): (&String, &String)| {
        Some(HostProblem::new(root.function_file(name), reason(name, text)?))
    };
    root.functions.iter().filter_map(problem).collect()
}

/// Returns the problems of a deployed folder whose routes are not those of its `function.json` files,
/// so that the keys of the routes are unknown. A `host.json` that cannot be read here adds none: the
/// Functions host refuses added routes beside `function.json` files.
pub fn find_unknown_routes(root: &ScriptRoot, overrides: &HostOverrides) -> Vec<HostProblem> {
    let json = HostJson::read(&root.host_json, overrides)
        .unwrap_or_else(|_| HostJson::from_overrides(overrides));
    let added = json.find_added_routes().map(|member| {
        member.problem(
            "adds routes whose keys no function.json states: remove `customHandler.http` and `configurationProfile`",
        )
    });
    let missing = root.functions.is_empty().then(|| {
        HostProblem::new(
            "<name>/function.json",
            "is not in any folder directly below the root, so the keys that the routes require are unknown",
        )
    });
    added.into_iter().chain(missing).collect()
}

/// True if requests to a function with this trigger need no key in any mode. Of several spellings of
/// a member each has to allow it.
pub fn is_public(name: &str, trigger: &Map<String, Value>) -> bool {
    let is_preflight = |method: &Value| {
        method.as_str().is_some_and(|method| method.eq_ignore_ascii_case(PREFLIGHT_METHOD))
    };
    let has_only_preflights = |methods: &Value| {
        methods
            .as_array()
            .is_some_and(|methods| !methods.is_empty() && methods.iter().all(is_preflight))
    };
    let mut methods = members(trigger, "methods").peekable();
    if methods.peek().is_some() && methods.all(has_only_preflights) {
        return true;
    }
    let mut routes = members(trigger, "route").peekable();
    if routes.peek().is_none() {
        return is_public_route(name);
    }
    routes.all(|route| match route {
        // Null counts as absent.
        Value::Null => is_public_route(name),
        Value::String(route) => is_public_route(route),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
    })
}

fn is_public_route(route: &str) -> bool {
    let Ok(route) = RouteTemplate::read(route) else { return false };
    PUBLIC_ROUTES
        .iter()
        .filter_map(|public| RouteTemplate::read(public).ok())
        .any(|public| route.is_within(&public))
}

fn exposure(name: &str, text: &str) -> Option<&'static str> {
    let Some(triggers) = read_http_triggers(text) else {
        return Some("is not a JSON object, so the key that it requires is unknown");
    };
    let is_open = |trigger: &Map<String, Value>| {
        !members(trigger, "authLevel").all(requires_key) && !is_public(name, trigger)
    };
    triggers.iter().any(is_open).then_some("requires no key (`authLevel` anonymous)")
}

fn keyed_reason(name: &str, text: &str) -> Option<&'static str> {
    let is_keyed = |trigger: &Map<String, Value>| {
        let mut levels = members(trigger, "authLevel").peekable();
        let has_key_level = levels.peek().is_none() || levels.any(requires_function_key);
        has_key_level && !is_public(name, trigger)
    };
    read_http_triggers(text)?.iter().any(is_keyed).then_some(
        "requires a key (`authLevel` function), so the Functions host responds 401 to signed-in users",
    )
}

/// Returns the HTTP triggers of a `function.json`, in any spelling of its members. `None`: it is not
/// a JSON object.
fn read_http_triggers(text: &str) -> Option<Vec<Map<String, Value>>> {
    let json: Map<String, Value> = serde_json::from_str(skip_byte_order_mark(text)).ok()?;
    let is_http =
        |kind: &Value| kind.as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("httpTrigger"));
    let bindings = members(&json, "bindings").filter_map(Value::as_array).flatten();
    let triggers = bindings
        .filter_map(Value::as_object)
        .filter(|binding| members(binding, "type").any(is_http));
    Some(triggers.cloned().collect())
}

fn requires_key(level: &Value) -> bool {
    requires_function_key(level) || is_level(level, &["admin"])
}

/// Null counts as absent, and an absent level is `function`.
fn requires_function_key(level: &Value) -> bool {
    level.is_null() || is_level(level, &["function", "system"])
}

/// False also for a number of the host's enumeration, in which 0 is anonymous; nobody writes it.
fn is_level(level: &Value, names: &[&str]) -> bool {
    level.as_str().is_some_and(|level| names.iter().any(|name| level.eq_ignore_ascii_case(name)))
}

/// The host finds members without regard to case, so an object may have several of one name.
fn members<'a>(object: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a Value> {
    object.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn script(functions: &[(&str, &str, &[&str], &str)]) -> ScriptRoot {
        let text = |(name, route, methods, level): &(&str, &str, &[&str], &str)| {
            let methods = if methods.is_empty() { Value::Null } else { json!(methods) };
            let json = json!({"bindings": [
                {"type": "httpTrigger", "name": "req", "authLevel": level, "methods": methods, "route": route},
                {"type": "http", "direction": "out", "name": "res"},
            ]});
            ((*name).to_owned(), json.to_string())
        };
        let functions = functions.iter().map(text).collect();
        ScriptRoot { functions, ..ScriptRoot::embedded() }
    }

    fn lines(problems: &[HostProblem]) -> String {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    fn conflicts(functions: &[(&str, &str, &[&str])]) -> String {
        let functions: Vec<_> = functions
            .iter()
            .map(|(name, route, methods)| (*name, *route, *methods, "function"))
            .collect();
        let root = script(&functions);
        lines(&route_problems(&root, &root.read().unwrap().1))
    }

    #[test]
    fn shipped_functions_have_no_conflict_and_no_exposure() {
        let root = ScriptRoot::embedded();
        assert_eq!(lines(&route_problems(&root, &root.read().unwrap().1)), "");
        assert_eq!(lines(&find_exposure(&root)), "");
    }

    #[test]
    fn function_that_takes_later_requests_is_named() {
        let approve = ("approve", "approvals/{token}", &["get", "head", "post"][..]);
        insta::assert_snapshot!(conflicts(&[("api", "{*path}", &[]), approve]), @"functions/api/function.json: its route `{*path}` takes requests of `approve` (`approvals/{token}`): the Functions host tries functions in the order of their names, and the first that matches decides; rename the folder `api` so that it sorts after `approve`, such as `web`");
        insta::assert_snapshot!(conflicts(&[("Aa", "{a}/{b}", &["get"]), approve]), @"functions/Aa/function.json: its route `{a}/{b}` takes requests of `approve` (`approvals/{token}`): the Functions host tries functions in the order of their names, and the first that matches decides; rename the folder `Aa` so that it sorts after `approve`, such as `web`");
        insta::assert_snapshot!(conflicts(&[("Aa", "APPROVALS/{x}", &["get"]), approve]), @"functions/Aa/function.json: its route `APPROVALS/{x}` takes requests of `approve` (`approvals/{token}`): the Functions host tries functions in the order of their names, and the first that matches decides; rename the folder `Aa` so that it sorts after `approve`, such as `web`");
        insta::assert_snapshot!(conflicts(&[("a", "x/{y}", &["get"]), ("b", "x/{y}", &["post"])]), @"functions/a/function.json: has the same route as `b`: the Functions host accepts it in one function only; remove one of the two, or change its route");
        for harmless in [
            [("web", "{*path}", &[][..]), approve],
            [("Web", "{*path}", &[][..]), approve],
            // Ordinal without case: `_` is behind all letters.
            [("a_", "{*path}", &[][..]), ("ab", "health", &[][..])],
            [("aa", "{*preflight}", &["options"][..]), approve],
            [("aa", "{*preflight}", &["options"][..]), ("web", "{*path}", &[][..])],
            [("aa", "approvals", &[][..]), approve],
            [("aa", "approvals/{x}", &["delete"][..]), approve],
        ] {
            assert_eq!(conflicts(&harmless), "", "{harmless:?}");
        }
        assert_ne!(conflicts(&[("aa", "{*a}", &[]), ("web", "{*path}", &["get"])]), "");
        assert_ne!(conflicts(&[("API", "{*path}", &[]), approve]), "");
    }

    #[test]
    fn anonymous_function_outside_public_routes_is_exposed() {
        let exposed = |name: &str, route: &str, methods: &[&str]| {
            !find_exposure(&script(&[(name, route, methods, "anonymous")])).is_empty()
        };
        assert!(exposed("web", "{*path}", &[]));
        assert!(exposed("health", "{*path}", &["get"]));
        assert!(exposed("approve", "approvals/{*rest}", &["get"]));
        assert!(exposed("x", "{id:int}", &["get"]));
        assert!(exposed("preflight", "{*preflight}", &["options", "get"]));
        assert!(!exposed("approve", "approvals/{token}", &["get", "post"]));
        assert!(!exposed("alive", "HEALTH", &[]));
        assert!(!exposed("console", "console/{*path}", &["get", "head"]));
        assert!(exposed("console", "{*path}", &["get", "head"]));
        assert!(exposed("openapi", "openapi", &["get"]));
        assert!(!exposed("openapi", "openapi.json", &["get"]));
        assert!(!exposed("openapi-3-0", "openapi-3.0.json", &["get"]));
        assert!(!exposed("preflight", "{*preflight}", &["options"]));
    }

    #[test]
    fn odd_files_count_as_exposed() {
        let exposed = |text: &str| exposure("web", text).is_some();
        let trigger = |level: &str| {
            format!(r#"{{"Bindings":[{{"TYPE":"HttpTrigger","AuthLevel":{level}}}]}}"#)
        };
        for open in [
            &trigger("\"Anonymous\""),
            &trigger("0"),
            &trigger("\"anyone\""),
            r#"{"bindings":[{"type":"httpTrigger","authLevel":"function","AuthLevel":"anonymous"}]}"#,
            r#"{"bindings":[{"type":"httpTrigger","authLevel":"anonymous","route":"health","Route":"{*path}"}]}"#,
            r#"{"bindings":[{"type":"httpTrigger","authLevel":"anonymous","methods":["options"],"Methods":["get"]}]}"#,
            r#"{"bindings":[{"type":"http","Type":"httpTrigger","authLevel":"anonymous"}]}"#,
            r#"{"bindings":[],"Bindings":[{"type":"httpTrigger","authLevel":"anonymous"}]}"#,
            r#"{"bindings":[{"type":"httpTrigger","authLevel":"anonymous","route":5}]}"#,
            r#"{"bindings":[{"type":"httpTrigger","authLevel":"anonymous","route":null,"Route":"health"}]}"#,
            // The Functions host ignores the member.
            r#"{"disabled":true,"bindings":[{"type":"httpTrigger","authLevel":"anonymous"}]}"#,
            "// comment\n{}",
            "[]",
            &format!("\u{feff}{}", trigger("\"anonymous\"")),
        ] {
            assert!(exposed(open), "{open}");
        }
        for keyed in [
            &trigger("null"),
            &trigger("\"Function\""),
            &trigger("\"ADMIN\""),
            r#"{"bindings":[{"type":"queueTrigger"}]}"#,
            r#"{"bindings":[{"type":"httpTrigger","authLevel":"anonymous","route":"health","Route":"Health"}]}"#,
        ] {
            assert!(!exposed(keyed), "{keyed}");
        }
    }

    #[test]
    fn function_that_refuses_signed_in_users_is_found() {
        let is_keyed = |route: &str, level: &str| {
            !find_keyed_functions(&script(&[("x", route, &[], level)])).is_empty()
        };
        for level in ["function", "Function", "system"] {
            assert!(is_keyed("{*path}", level), "{level}");
            assert!(!is_keyed("health", level), "{level}");
        }
        for level in ["anonymous", "admin", "ADMIN"] {
            assert!(!is_keyed("{*path}", level), "{level}");
        }
        let is_keyed = |text: &str| keyed_reason("web", text).is_some();
        assert!(is_keyed(r#"{"bindings":[{"type":"httpTrigger"}]}"#), "the default level");
        assert!(is_keyed(r#"{"bindings":[{"type":"httpTrigger","authLevel":null}]}"#));
        assert!(!is_keyed(r#"{"bindings":[{"type":"queueTrigger"}]}"#));
    }

    #[test]
    fn routes_without_function_json_are_unknown() {
        let unknown = |host_json: &str| {
            let root = ScriptRoot { host_json: host_json.to_owned(), ..ScriptRoot::embedded() };
            lines(&find_unknown_routes(&root, &HostOverrides::default()))
        };
        for plain in [
            ScriptRoot::embedded().host_json.as_str(),
            "{}",
            r#"{"configurationProfile":"default","customHandler":{"http":{"routes":null}}}"#,
            "// The host refuses added routes beside function.json files.\n{}",
        ] {
            assert_eq!(unknown(plain), "", "{plain}");
        }
        for added in [
            r#"{"customHandler":{"http":{"routes":[{"route":"{*path}"}]}}}"#,
            r#"{"CustomHandler":{"description":{},"HTTP":{"Routes":[]}}}"#,
            r#"{"configurationProfile":"mcp-custom-handler"}"#,
            r#"{"ConfigurationProfile":"web-app-custom-handler"}"#,
        ] {
            assert!(unknown(added).starts_with("host.json: adds routes"), "{added}");
        }
        let empty = ScriptRoot { functions: BTreeMap::new(), ..ScriptRoot::embedded() };
        let unknown = lines(&find_unknown_routes(&empty, &HostOverrides::default()));
        assert!(unknown.starts_with("<name>/function.json: "), "{unknown}");
    }

    #[test]
    fn routes_of_an_app_setting_are_unknown() {
        for (setting, value) in [
            ("AzureFunctionsJobHost__customHandler__http__routes__0__route", "{*path}"),
            ("AzureFunctionsJobHost__ConfigurationProfile", "mcp-custom-handler"),
        ] {
            let overrides = HostOverrides::new([(setting.to_owned(), value.to_owned())]);
            for host_json in [ScriptRoot::embedded().host_json.as_str(), "// comment\n{}"] {
                let root = ScriptRoot { host_json: host_json.to_owned(), ..ScriptRoot::embedded() };
                let unknown = lines(&find_unknown_routes(&root, &overrides));
                assert!(unknown.starts_with(&format!("{setting}: remove")), "{unknown}");
                assert!(unknown.contains("adds routes"), "{unknown}");
            }
        }
    }
}
