//! One function: its folder's name and the trigger that `function.json` declares.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use super::output::FunctionOutput;
use super::problem::HostProblem;
use super::routes::RouteTemplate;
use super::schedule::TimerSchedule;

/// The setting that names the storage account: also the host's default.
const CONNECTION_SETTING: &str = "AzureWebJobsStorage";
pub(super) const PREFLIGHT_METHOD: &str = "OPTIONS";
/// Members of a binding that are read here.
const BINDING_MEMBERS: [&str; 9] = [
    "type",
    "direction",
    "name",
    "authLevel",
    "methods",
    "route",
    "queueName",
    "connection",
    "schedule",
];

#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    /// The trigger binding's name: the key of the input in the envelope.
    pub binding: String,
    pub trigger: Trigger,
    /// Queue outputs; none beside an HTTP trigger.
    pub outputs: Vec<FunctionOutput>,
    /// `function.json`, unchanged.
    pub json: Value,
}

#[derive(Clone, Debug)]
pub enum Trigger {
    Http(HttpTrigger),
    Queue { queue: String },
    Timer { schedule: Box<TimerSchedule> },
}

#[derive(Clone, Debug)]
pub struct HttpTrigger {
    pub route: RouteTemplate,
    /// In upper case; empty: every method.
    pub methods: Vec<String>,
    pub level: AuthLevel,
}

/// The key that an HTTP trigger requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthLevel {
    Anonymous,
    /// A key of the function or of the host.
    Function,
    /// The master key.
    Admin,
}

impl HttpTrigger {
    pub(super) fn accepts_method(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|one| one == method)
    }

    /// True if a method exists that both triggers accept.
    pub(super) fn shares_method(&self, other: &Self) -> bool {
        self.methods.is_empty()
            || other.methods.is_empty()
            || self.methods.iter().any(|method| other.methods.contains(method))
    }

    /// True if this trigger accepts preflight requests only.
    pub(super) fn is_preflight(&self) -> bool {
        self.methods == [PREFLIGHT_METHOD]
    }
}

impl Function {
    /// A sort key: the Functions host tries routes in the order of the functions' names, ordinal
    /// and without case.
    pub(super) fn order(&self) -> String {
        self.name.to_ascii_uppercase()
    }

    pub(super) fn http(&self) -> Option<&HttpTrigger> {
        match &self.trigger {
            Trigger::Http(http) => Some(http),
            Trigger::Queue { .. } | Trigger::Timer { .. } => None,
        }
    }

    /// # Errors
    /// All problems of the file. `file` is its name in the messages.
    pub fn read(name: &str, file: &str, text: &str) -> Result<Self, Vec<HostProblem>> {
        let one = |message: String| vec![HostProblem::new(file, message)];
        if let Some(reason) = name_problem(name) {
            return Err(one(reason));
        }
        let json: Value =
            serde_json::from_str(text).map_err(|error| one(format!("is not JSON: {error}")))?;
        let bindings = json.get("bindings").and_then(Value::as_array).cloned().unwrap_or_default();
        let misread = find_misread_members(name, &json, &bindings);
        if !misread.is_empty() {
            return Err(misread.into_iter().map(|text| HostProblem::new(file, text)).collect());
        }
        let (triggers, others): (Vec<_>, Vec<_>) =
            bindings.iter().partition(|binding| text_at(binding, "type").ends_with("Trigger"));
        let [trigger] = triggers.as_slice() else {
            return Err(one(format!(
                "has {} triggers in `bindings`: one is needed",
                triggers.len()
            )));
        };
        let mut problems = Vec::new();
        let binding = text_at(trigger, "name");
        if binding.is_empty() {
            problems.push(HostProblem::new(file, "the trigger has no `name`"));
        }
        let read = match text_at(trigger, "type") {
            "httpTrigger" => {
                read_http_trigger(name, trigger, &others).map(|http| (http, Vec::new()))
            }
            "queueTrigger" => read_queue_trigger(trigger)
                .and_then(|queue| Ok((queue, read_queue_outputs(binding, &others)?))),
            "timerTrigger" => read_timer_trigger(trigger)
                .and_then(|timer| Ok((timer, read_queue_outputs(binding, &others)?))),
            other => Err(format!(
                "the local host supports httpTrigger, queueTrigger and timerTrigger, not `{other}`"
            )),
        };
        match read {
            Ok((trigger, outputs)) if problems.is_empty() => {
                let (name, binding) = (name.to_owned(), binding.to_owned());
                Ok(Self { name, binding, trigger, outputs, json })
            }
            Ok(_) => Err(problems),
            Err(message) => {
                problems.push(HostProblem::new(file, message));
                Err(problems)
            }
        }
    }
}

/// Returns the reason why the host would reject a folder's name as a function name.
pub(crate) fn name_problem(name: &str) -> Option<String> {
    static VALID: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[A-Za-z][A-Za-z0-9_\-]{0,127}$").ok());
    let is_valid = VALID.as_ref().is_some_and(|valid| valid.is_match(name));
    if is_valid && !name.eq_ignore_ascii_case("host") {
        return None;
    }
    Some(format!(
        "`{name}` is not a valid function name: a letter, then letters, digits, `_` and `-`, at most 128, not `host`"
    ))
}

/// Returns a message for each member that the Functions host reads otherwise than the checks here.
fn find_misread_members(name: &str, json: &Value, bindings: &[Value]) -> Vec<String> {
    let member_problem = |(key, value): (&String, &Value)| {
        if key != "bindings" && key.eq_ignore_ascii_case("bindings") {
            return Some(format!(
                "has the member `{key}`: write `bindings`, because the Functions host reads `bindings` only"
            ));
        }
        let is_disabled = key.eq_ignore_ascii_case("disabled") && *value != Value::Bool(false);
        is_disabled.then(|| {
            format!("`{key}` has no effect on the host: remove it or the folder; the app setting AzureWebJobs.{name}.Disabled disables a function")
        })
    };
    let members = json.as_object().into_iter().flatten();
    let mut problems: Vec<String> = members.filter_map(member_problem).collect();
    problems.extend(bindings.iter().flat_map(spelling_problems));
    problems
}

/// Returns a message for each known member of a binding in another spelling.
fn spelling_problems(binding: &Value) -> impl Iterator<Item = String> {
    binding.as_object().into_iter().flat_map(Map::keys).filter_map(|key| {
        let name = BINDING_MEMBERS.iter().find(|name| key.eq_ignore_ascii_case(name))?;
        (key != name).then(|| {
            format!("has the member `{key}`: write `{name}`, because the Functions host reads names in any case and the checks read this one only")
        })
    })
}

fn text_at<'a>(binding: &'a Value, name: &str) -> &'a str {
    binding.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn read_http_trigger(name: &str, trigger: &Value, others: &[&Value]) -> Result<Trigger, String> {
    let is_http_output =
        |other: &&Value| text_at(other, "type") == "http" && text_at(other, "direction") == "out";
    let [output] = others else {
        return Err("a proxied HTTP function has two bindings: httpTrigger and http out".into());
    };
    if !is_http_output(output) {
        return Err(
            "the binding beside httpTrigger must be http with \"direction\": \"out\"".into()
        );
    }
    let level = match text_at(trigger, "authLevel").to_lowercase().as_str() {
        "anonymous" => AuthLevel::Anonymous,
        "" | "function" => AuthLevel::Function,
        "admin" => AuthLevel::Admin,
        other => return Err(format!("`authLevel` is `{other}`: anonymous, function or admin")),
    };
    let methods = match trigger.get("methods") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(methods)) if methods.iter().all(Value::is_string) => {
            methods.iter().filter_map(Value::as_str).map(str::to_uppercase).collect()
        }
        Some(_) => return Err("`methods` is not an array of strings".into()),
    };
    let route = trigger.get("route").and_then(Value::as_str).unwrap_or(name);
    Ok(Trigger::Http(HttpTrigger { route: RouteTemplate::read(route)?, methods, level }))
}

fn read_queue_trigger(trigger: &Value) -> Result<Trigger, String> {
    Ok(Trigger::Queue { queue: read_queue_name(trigger)? })
}

/// Reads the queue name of a trigger or an output.
fn read_queue_name(binding: &Value) -> Result<String, String> {
    let connection = text_at(binding, "connection");
    if !["", CONNECTION_SETTING].contains(&connection) {
        return Err(format!(
            "`connection` is `{connection}`: Turnwheel's queues are those of `{CONNECTION_SETTING}`"
        ));
    }
    let queue = text_at(binding, "queueName");
    if !turnwheel_storage::queue::is_queue_name(queue) {
        return Err(format!(
            "`queueName` is `{queue}`: 3 to 63 of a-z, 0-9 and single hyphens between them"
        ));
    }
    Ok(queue.to_owned())
}

fn read_timer_trigger(trigger: &Value) -> Result<Trigger, String> {
    Ok(Trigger::Timer { schedule: Box::new(TimerSchedule::read(text_at(trigger, "schedule"))?) })
}

/// The bindings beside a queue or timer trigger.
fn read_queue_outputs(trigger: &str, others: &[&Value]) -> Result<Vec<FunctionOutput>, String> {
    let mut outputs: Vec<FunctionOutput> = Vec::with_capacity(others.len());
    for other in others {
        let name = text_at(other, "name");
        let is_queue = text_at(other, "type") == "queue" && text_at(other, "direction") == "out";
        if !is_queue || name.is_empty() || name.starts_with('$') {
            return Err(format!(
                "the binding `{name}` beside the trigger: the local host supports queue with \"direction\": \"out\" and a \
                 `name`; for others use the service's own API"
            ));
        }
        if name == trigger || outputs.iter().any(|output| output.name == name) {
            return Err(format!("two bindings have the name `{name}`"));
        }
        outputs.push(FunctionOutput { name: name.to_owned(), queue: read_queue_name(other)? });
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScriptRoot;

    fn problem_lines(name: &str, text: &str) -> String {
        let problems = Function::read(name, "functions/x/function.json", text).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn shipped_functions_are_the_expected_ones() {
        let mut lines = Vec::new();
        for (name, text) in &ScriptRoot::embedded().functions {
            let function = Function::read(name, name, text).unwrap();
            let trigger = match &function.trigger {
                Trigger::Http(http) => {
                    format!("{} {} {:?}", http.methods.join(","), http.route.text(), http.level)
                }
                Trigger::Queue { queue } => format!("queue {queue}"),
                Trigger::Timer { schedule } => format!("timer {}", schedule.text()),
            };
            let outputs = function.outputs.iter();
            let outputs = outputs.map(|output| format!(", {} to {}", output.name, output.queue));
            let outputs: String = outputs.collect();
            lines.push(format!("{name}({}): {trigger}{outputs}", function.binding));
        }
        insta::assert_snapshot!(lines.join("\n"), @r"
        approve(req): GET,HEAD,POST approvals/{token} Anonymous
        console(req): GET,HEAD console/{*path} Anonymous
        health(req): GET,HEAD health Anonymous
        notify(message): queue agent-notify, nudges to agent-turns
        notify-poison(message): queue agent-notify-poison, nudges to agent-turns
        openapi(req): GET,HEAD openapi.json Anonymous
        openapi-3-0(req): GET,HEAD openapi-3.0.json Anonymous
        preflight(req): OPTIONS {*preflight} Anonymous
        prompt(message): queue agent-prompts, nudges to agent-turns
        sweep(timer): timer 0 * * * * *, nudges to agent-turns
        turn(message): queue agent-turns, nudges to agent-turns
        turn-poison(message): queue agent-turns-poison, nudges to agent-turns
        web(req):  {*path} Function
        ");
    }

    #[test]
    fn function_json_problems_state_the_fix() {
        let queue = |queue: &str| {
            format!(
                r#"{{"bindings":[{{"type":"queueTrigger","name":"m","queueName":"{queue}"}}]}}"#
            )
        };
        let lines = [
            problem_lines("9lives", "{}"),
            problem_lines("host", "{}"),
            problem_lines("a", "{"),
            problem_lines("a", "{}"),
            problem_lines("a", r#"{"bindings":[{"type":"blobTrigger","name":"b"}]}"#),
            problem_lines("a", r#"{"bindings":[{"type":"queueTrigger","queueName":"Big"}]}"#),
            problem_lines("a", &queue("a--b")),
            problem_lines("a", &queue("agent-turns\",\"connection\":\"Other")),
            problem_lines(
                "a",
                r#"{"bindings":[{"type":"timerTrigger","name":"t","schedule":"0 * * * * *"},{"type":"blob","direction":"out","name":"b"}]}"#,
            ),
            problem_lines(
                "a",
                r#"{"bindings":[{"type":"queueTrigger","name":"m","queueName":"jobs"},{"type":"queue","direction":"out","name":"m","queueName":"jobs"}]}"#,
            ),
            problem_lines(
                "a",
                r#"{"bindings":[{"type":"queueTrigger","name":"m","queueName":"jobs"},{"type":"queue","direction":"out","name":"o","queueName":"%JOBS%"}]}"#,
            ),
            problem_lines("a", r#"{"bindings":[{"type":"httpTrigger","name":"req"}]}"#),
            problem_lines(
                "a",
                r#"{"bindings":[{"type":"timerTrigger","name":"t","schedule":"* * * *"}]}"#,
            ),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn disabled_function_is_refused() {
        let text = |disabled: &str| {
            format!(
                r#"{{"disabled":{disabled},"bindings":[{{"type":"queueTrigger","name":"m","queueName":"jobs"}}]}}"#
            )
        };
        let is_accepted = |text: &str| Function::read("a", "a", text).is_ok();
        assert!(is_accepted(&text("false")));
        assert!(is_accepted(&text("false").replace("disabled", "Disabled")));
        insta::assert_snapshot!(problem_lines("a", &text("true")), @"functions/x/function.json: `disabled` has no effect on the host: remove it or the folder; the app setting AzureWebJobs.a.Disabled disables a function");
        for value in ["\"true\"", "\"%DISABLED%\"", "null", "1"] {
            assert!(
                problem_lines("a", &text(value)).contains("AzureWebJobs.a.Disabled"),
                "{value}"
            );
        }
        let report = problem_lines("a", &text("true").replace("disabled", "Disabled"));
        assert!(report.contains("`Disabled` has no effect on the host"), "{report}");
        assert_eq!(report.lines().count(), 1, "{report}");
    }

    /// The Functions host takes members of bindings in any case, and `bindings` in one only.
    #[test]
    fn members_in_other_spellings_are_refused() {
        let http = |members: &str| {
            format!(
                r#"{{"bindings":[{{"type":"httpTrigger","name":"req",{members}}},{{"type":"http","direction":"out","name":"res"}}]}}"#
            )
        };
        assert!(Function::read("aaa", "aaa", &http(r#""route":"health","order":1"#)).is_ok());
        insta::assert_snapshot!(problem_lines("aaa", &http(r#""Route":"{*path}""#)), @"functions/x/function.json: has the member `Route`: write `route`, because the Functions host reads names in any case and the checks read this one only");
        for (text, spelling) in [
            (http(r#""route":"health","Route":"{*path}""#), "Route"),
            (http(r#""methods":["options"],"METHODS":["get"]"#), "METHODS"),
            (http(r#""AuthLevel":"anonymous""#), "AuthLevel"),
            (http(r#""Type":"httpTrigger""#), "Type"),
            (http(r#""x":1"#).replace("direction", "Direction"), "Direction"),
            (http(r#""x":1"#).replace("bindings", "Bindings"), "Bindings"),
        ] {
            let expected = format!("has the member `{spelling}`: write `");
            assert!(problem_lines("aaa", &text).contains(&expected), "{text}");
        }
        let report = problem_lines("aaa", r#"{"Bindings":[]}"#);
        assert!(report.contains("the Functions host reads `bindings` only"), "{report}");
        let both = http(r#""Route":"a","Methods":[]"#);
        assert_eq!(problem_lines("aaa", &both).lines().count(), 2, "all are reported");
    }
}
