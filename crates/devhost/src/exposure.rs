//! Requests that the Functions host lets through: functions that take another function's requests,
//! and functions that require no key.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::Function;
use super::function::{HttpTrigger, PREFLIGHT_METHOD};
use super::problem::HostProblem;
use super::root::{self, ScriptRoot};
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
    let problem = |(name, text): (&String, &String)| {
        let reason = exposure(name, text)?;
        Some(HostProblem::new(root.function_file(name), reason))
    };
    root.functions.iter().filter_map(problem).collect()
}

/// As [`find_exposure`], for the folder that the Functions host runs.
pub fn find_deployed_exposure(dir: &Path) -> Vec<HostProblem> {
    let files: Result<BTreeMap<String, String>, HostProblem> = root::read_function_files(dir, "");
    match files {
        Ok(functions) => {
            find_exposure(&ScriptRoot { host_json: String::new(), functions, parent: "" })
        }
        Err(problem) => vec![problem],
    }
}

/// True if requests to a function with this trigger need no key in any mode.
pub fn is_public(name: &str, trigger: &Map<String, Value>) -> bool {
    let methods = member(trigger, "methods").and_then(Value::as_array);
    let is_preflight = |method: &Value| {
        method.as_str().is_some_and(|method| method.eq_ignore_ascii_case(PREFLIGHT_METHOD))
    };
    if methods.is_some_and(|methods| !methods.is_empty() && methods.iter().all(is_preflight)) {
        return true;
    }
    let route = member(trigger, "route").and_then(Value::as_str).unwrap_or(name);
    let Ok(route) = RouteTemplate::read(route) else { return false };
    PUBLIC_ROUTES
        .iter()
        .filter_map(|public| RouteTemplate::read(public).ok())
        .any(|public| route.is_within(&public))
}

fn exposure(name: &str, text: &str) -> Option<String> {
    let Ok(json) = serde_json::from_str::<Map<String, Value>>(skip_byte_order_mark(text)) else {
        return Some("is not a JSON object, so the key that it requires is unknown".to_owned());
    };
    if member(&json, "disabled").and_then(Value::as_bool) == Some(true) {
        return None;
    }
    let bindings = member(&json, "bindings").and_then(Value::as_array)?;
    let is_open = bindings.iter().filter_map(Value::as_object).any(|binding| {
        let kind = member(binding, "type").and_then(Value::as_str).unwrap_or_default();
        kind.eq_ignore_ascii_case("httpTrigger")
            && !members(binding, "authLevel").all(requires_key)
            && !is_public(name, binding)
    });
    is_open.then(|| "requires no key (`authLevel` anonymous)".to_owned())
}

/// Null counts as absent, and an absent level is `function`.
fn requires_key(level: &Value) -> bool {
    match level {
        Value::Null => true,
        Value::String(level) => {
            ["function", "system", "admin"].iter().any(|keyed| level.eq_ignore_ascii_case(keyed))
        }
        // A number of the host's enumeration, in which 0 is anonymous; nobody writes it.
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    members(object, name).next()
}

/// The host finds members without regard to case, so an object may have several of one name.
fn members<'a>(object: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a Value> {
    object.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
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
            r#"{"disabled":true,"bindings":[{"type":"httpTrigger","authLevel":"anonymous"}]}"#,
        ] {
            assert!(!exposed(keyed), "{keyed}");
        }
    }
}
