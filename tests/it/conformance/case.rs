//! A conformance case from its file, and the choice among its expectations.

use serde_json::Value;

use crate::support::shared::shared;

/// Expectations by priority: the first one that a case has applies.
const PROFILES: [&str; 4] = ["source", "required", "both", "today"];

pub(super) struct Case(Value);

impl Case {
    pub(super) fn shared(id: &str) -> Option<Self> {
        let text = std::fs::read_to_string(shared("conformance/cases.json")?).unwrap();
        let found = all(&text).into_iter().find(|case| case.0["id"] == id);
        Some(found.unwrap_or_else(|| panic!("there is no case {id}")))
    }

    /// The case as later releases run it: calls run in parallel and end in the given order.
    pub(super) fn of_later_releases(id: &str, ends: &[&str]) -> Option<Self> {
        let mut case = Self::shared(id)?;
        case.0["expect"] = serde_json::json!({"today": case.0["expect"]["today"]});
        case.0["given"]["ends"] = serde_json::json!(ends);
        Some(case)
    }

    /// Adds `workers` clients that nudge the conversation at random; each nudge starts a worker.
    pub(super) fn among(mut self, workers: u32) -> Self {
        self.0["given"]["workers"] = serde_json::json!(workers);
        self
    }

    /// True if its calls run in parallel.
    pub(super) fn runs_at_once(&self) -> bool {
        self.given("ends").is_array()
    }

    /// Returns all shared cases; `None` without the shared folder.
    pub(super) fn all_shared() -> Option<Vec<Self>> {
        let text = std::fs::read_to_string(shared("conformance/cases.json")?).unwrap();
        Some(all(&text))
    }

    /// The cases beside this file.
    pub(super) fn own() -> Vec<Self> {
        all(include_str!("cases.json"))
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
        let found = PROFILES.iter().map(|profile| &expect[*profile]).find(|expected| {
            let defect = expected["treat_as"].as_str().unwrap_or_default();
            !expected.is_null() && !defect.starts_with("defect")
        });
        found.unwrap_or_else(|| panic!("{}: nothing is expected", self.id()))
    }

    /// An expectation outside the profiles.
    pub(super) fn expected_beside(&self, name: &str) -> &Value {
        &self.0["expect"][name]
    }

    /// True if the expectation is that of later releases, which run calls in parallel.
    pub(super) fn is_of_today(&self) -> bool {
        self.expected() == &self.0["expect"]["today"]
    }
}

/// Replacements for invalid image data of the cases: these start like real images.
const PICTURES: [(&str, &str); 2] = [("AAAA\"", "iVBORw0KGgo=\""), ("BBBB\"", "/9j/4A==\"")];

fn all(text: &str) -> Vec<Case> {
    let mut text = text.to_owned();
    for (no_picture, picture) in PICTURES {
        text = text.replace(no_picture, picture);
    }
    let file: Value = serde_json::from_str(&text).unwrap();
    file["cases"].as_array().unwrap().iter().cloned().map(Case).collect()
}
