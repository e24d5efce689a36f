//! Argument validation with the error texts of the source.

use serde_json::Value;
use turnwheel::messages::RawJson;
use turnwheel::testing::tools::validate::Checker;

use crate::support::shared_data::find_shared_data;

#[test]
fn invalid_arguments_get_the_error_of_the_source() {
    let Some(path) = find_shared_data("conformance/cases.json") else { return };
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let case = find_by_id(&cases, "L07").expect("the case is there");
    let tool = &case["given"]["tools"][0];
    let call = &case["given"]["model_script"][0]["calls"][0];
    let expected = case["expect"]["source"]["events"]
        .as_array()
        .unwrap()
        .iter()
        .find(|event| event["type"] == "tool_execution_end")
        .unwrap();
    let problem = Checker::new(&tool["parameters"])
        .unwrap()
        .validate(tool["name"].as_str().unwrap(), &RawJson::from_value(&call["arguments"]))
        .unwrap_err();
    assert_eq!(problem, expected["text"]);
}

fn find_by_id<'a>(value: &'a Value, id: &str) -> Option<&'a Value> {
    match value {
        Value::Object(members) if members.get("id").is_some_and(|found| found == id) => Some(value),
        Value::Object(members) => members.values().find_map(|member| find_by_id(member, id)),
        Value::Array(items) => items.iter().find_map(|item| find_by_id(item, id)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}
