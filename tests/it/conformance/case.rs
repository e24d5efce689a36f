//! A conformance case from its file, and the choice among its expectations.

use serde_json::Value;

use crate::support::shared_data::find_shared_data;

/// Expectations by priority: the first one that a case has applies.
const EXPECTATION_PRIORITY: [&str; 4] = ["source", "required", "both", "today"];

pub(super) struct Case(Value);

impl Case {
    pub(super) fn find_shared(id: &str) -> Option<Self> {
        let text = std::fs::read_to_string(find_shared_data("conformance/cases.json")?).unwrap();
        let found = parse_cases(&text).into_iter().find(|case| case.0["id"] == id);
        Some(found.unwrap_or_else(|| panic!("there is no case {id}")))
    }

    /// The case as later releases run it: calls run in parallel and end in the given order.
    pub(super) fn with_parallel_calls(id: &str, ends: &[&str]) -> Option<Self> {
        let mut case = Self::find_shared(id)?;
        case.0["expect"] = serde_json::json!({"today": case.0["expect"]["today"]});
        case.0["given"]["ends"] = serde_json::json!(ends);
        Some(case)
    }

    /// Adds `workers` clients that nudge the conversation at random; each nudge starts a worker.
    pub(super) fn with_extra_workers(mut self, workers: u32) -> Self {
        self.0["given"]["workers"] = serde_json::json!(workers);
        self
    }

    /// The case with a model without native tool calls, in the loop `protocol`.
    pub(super) fn through_protocol(mut self) -> Self {
        self.0["given"]["protocol"] = serde_json::json!(true);
        self
    }

    /// The id that a call of the case has in the run. In protocol mode the model gives none, and
    /// the id has the number of messages of the request.
    pub(super) fn call_id(&self, id: &str) -> String {
        let script = self.given("model_script").as_array().cloned().unwrap_or_default();
        let position = script.iter().enumerate().find_map(|(request, item)| {
            let calls = item["calls"].as_array()?;
            Some((request, calls.iter().position(|call| call["id"] == id)? + 1))
        });
        let Some((request, number)) = position.filter(|_| self.is_protocol()) else {
            return id.to_owned();
        };
        let messages = self.expected()["model_requests"][request].as_array().unwrap().len();
        format!("call_{messages}_{number}")
    }

    pub(super) fn is_protocol(&self) -> bool {
        self.given("protocol") == true
    }

    /// True if its calls run in parallel.
    pub(super) fn is_parallel(&self) -> bool {
        self.given("ends").is_array()
    }

    /// Returns all shared cases; `None` without the shared folder.
    pub(super) fn load_shared() -> Option<Vec<Self>> {
        let text = std::fs::read_to_string(find_shared_data("conformance/cases.json")?).unwrap();
        Some(parse_cases(&text))
    }

    /// The cases beside this file.
    pub(super) fn load_local() -> Vec<Self> {
        parse_cases(include_str!("cases.json"))
    }

    pub(super) fn id(&self) -> &str {
        self.0["id"].as_str().unwrap()
    }

    pub(super) fn system(&self) -> &str {
        self.0["system"].as_str().unwrap()
    }

    /// A precondition of the case; null if absent.
    pub(super) fn given(&self, name: &str) -> &Value {
        &self.0["given"][name]
    }

    pub(super) fn actions(&self) -> &[Value] {
        self.0["actions"].as_array().unwrap()
    }

    /// The expectation that applies. Skips behaviour that the case calls a defect.
    pub(super) fn expected(&self) -> &Value {
        let expect = &self.0["expect"];
        let found = EXPECTATION_PRIORITY.iter().map(|profile| &expect[*profile]).find(|expected| {
            let defect = expected["treat_as"].as_str().unwrap_or_default();
            !expected.is_null() && !defect.starts_with("defect")
        });
        found.unwrap_or_else(|| panic!("{}: nothing is expected", self.id()))
    }

    /// An expectation outside the profiles.
    pub(super) fn other_expectation(&self, name: &str) -> &Value {
        &self.0["expect"][name]
    }

    /// True if the expectation is that of later releases, which run calls in parallel.
    pub(super) fn is_from_later_release(&self) -> bool {
        self.expected() == &self.0["expect"]["today"]
    }
}

/// Replacements for invalid image data of the cases: these start like real images.
const IMAGE_REPLACEMENTS: [(&str, &str); 2] =
    [("AAAA\"", "iVBORw0KGgo=\""), ("BBBB\"", "/9j/4A==\"")];

fn parse_cases(text: &str) -> Vec<Case> {
    let mut text = text.to_owned();
    for (invalid, image) in IMAGE_REPLACEMENTS {
        text = text.replace(invalid, image);
    }
    let file: Value = serde_json::from_str(&text).unwrap();
    file["cases"].as_array().unwrap().iter().cloned().map(Case).collect()
}
