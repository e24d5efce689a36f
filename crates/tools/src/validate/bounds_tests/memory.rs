//! Tests of the memory of reported failures and of compiled schemas. They compare what is counted: without
//! the bounds, a case would take gigabytes.

use serde_json::{Map, Value, json};

use super::chain;
use crate::validate::Checker;
use crate::validate::bounded_schema::BoundedSchema;
use crate::validate::bounds::{SchemaIndex, check_schema};
use crate::validate::steps::{
    CheckCost, FAILURE_BYTES_MAX, REPORTED_STEPS_MAX, STEPS_MAX, check_cost,
};
use turnwheel_json::raw::RawJson;

fn cost_of(schema: &Value, value: &Value) -> CheckCost {
    let size = check_schema(schema).unwrap();
    check_cost(schema, &size.patterns, value, STEPS_MAX).unwrap()
}

/// Number of reported mistakes.
fn count_mistakes(schema: &Value, value: &Value) -> usize {
    let bounded = BoundedSchema::new_strict(schema).unwrap();
    let cost = bounded.cost(value).unwrap();
    bounded.mistakes(cost, value, true).len()
}

/// The text that a model reads.
fn problem_of(schema: &Value, value: &Value) -> String {
    Checker::new(schema).unwrap().validate("add", &RawJson::from_value(value)).unwrap_err()
}

/// The last schema of a chain, which applies to each item of `n` 2^levels times.
fn of_items(levels: usize, last: &Value) -> Value {
    let mut schema = chain(levels, "allOf", last);
    schema["properties"]["n"] = json!({"items": {"$ref": "#/$defs/d0"}});
    schema
}

#[test]
fn large_schemas_of_not_are_copied_once() {
    let schema = of_items(11, &json!({"not": {"x": vec![0; 13_000]}}));
    assert!(schema.to_string().len() < 32 * 1024, "as an MCP server may send it");
    let value = json!({"n": [1, 1, 1, 1, 1]});
    let cost = cost_of(&schema, &value);
    assert!(cost.steps <= REPORTED_STEPS_MAX, "{cost:?}");
    assert!(cost.failure_bytes() > 1 << 32, "{cost:?}");
    assert_eq!(count_mistakes(&schema, &value), 1);
    let problem = problem_of(&schema, &value);
    assert_eq!(problem.matches("must NOT be valid").count(), 1, "{problem}");
    let small = of_items(3, &json!({"not": {"type": "integer"}}));
    assert_eq!(count_mistakes(&small, &value), 5 * 8);
}

#[test]
fn values_of_alternatives_are_copied_up_to_a_bound() {
    for (keyword, levels) in [("anyOf", 11), ("oneOf", 5)] {
        let schema = chain(levels, keyword, &json!({"type": "string"}));
        let large = json!({"n": {"a": [vec![1; 5_000]]}});
        let cost = cost_of(&schema, &large);
        assert!(cost.steps <= REPORTED_STEPS_MAX, "{keyword}: {cost:?}");
        assert!(cost.first_failure_bytes() > FAILURE_BYTES_MAX, "{keyword}: {cost:?}");
        assert_eq!(count_mistakes(&schema, &large), 0, "{keyword}");
        let problem = problem_of(&schema, &large);
        assert!(problem.contains("root: must match the schema of the tool"), "{problem}");
        assert_eq!(count_mistakes(&schema, &json!({"n": 5})), 1, "{keyword}");
    }
}

#[test]
fn mistakes_in_ordinary_alternatives_are_reported() {
    let row = json!({"type": "object", "required": ["id"], "additionalProperties": false,
        "properties": {"id": {"type": "integer"}, "name": {"type": "string", "minLength": 1}}});
    let rows = json!({"anyOf": [{"type": "array", "items": row}, {"type": "null"}]});
    let schema = json!({"type": "object", "properties": {"rows": rows}});
    let mut value = json!({"rows": vec![json!({"id": 1, "name": "Ada"}); 500]});
    value["rows"][499]["name"] = json!([]);
    let problem = problem_of(&schema, &value);
    assert!(problem.contains("rows/499/name: must be string"), "{problem}");
}

#[test]
fn each_kind_of_failure_is_counted() {
    let names: Vec<String> = (0..5_000).map(|number| format!("p{number}")).collect();
    let few: Map<String, Value> =
        names.iter().take(500).map(|name| (name.clone(), json!(1))).collect();
    let of_n = |schema: Value| json!({"type": "object", "properties": {"n": schema}});
    let long = |bytes: usize| "x".repeat(bytes);
    let chain_of = |levels: usize, last: Value| chain(levels, "allOf", &last);
    for (schema, value) in [
        (of_n(json!({"items": {"required": names}})), json!(vec![json!({}); 30])),
        (
            of_n(json!({"items": {"dependentRequired": {"a": names}}})),
            json!(vec![json!({"a": 1}); 30]),
        ),
        (
            of_n(json!({"$schema": "http://json-schema.org/draft-07/schema#",
                "items": {"dependencies": {"a": names}}})),
            json!(vec![json!({"a": 1}); 30]),
        ),
        (chain_of(8, json!({"additionalProperties": false})), json!({long(100_000): 1})),
        (
            of_n(json!({"additionalProperties": {"items": {"type": "string"}}})),
            json!({long(20_000): vec![1; 1_000]}),
        ),
        (of_n(json!({"anyOf": [{"propertyNames": {"maxLength": 1}}]})), json!(few)),
        (of_n(json!({"anyOf": [{"required": names}]})), json!({"a": vec![1; 100]})),
        (
            of_n(json!({"items": {"pattern": format!("^{}", long(10_000))}})),
            json!(vec!["b"; 2_000]),
        ),
        (
            of_n(json!({"patternProperties": {format!("^{}|a", long(10_000)): {"items": false}}})),
            json!({"a": vec![1; 2_000]}),
        ),
    ] {
        let cost = cost_of(&schema, &json!({"n": value}));
        assert!(cost.failure_bytes() > FAILURE_BYTES_MAX, "{:.200}: {cost:?}", schema.to_string());
        assert!(cost.steps <= REPORTED_STEPS_MAX, "{:.200}: {cost:?}", schema.to_string());
    }
    let decides = json!({"if": {"anyOf": [false, false]}, "contains": {"maximum": 0}});
    let cost = cost_of(&of_n(json!({ "items": decides })), &json!({"n": [vec![1; 10_000]]}));
    assert!(cost.failure_bytes() < 10_000, "schemas that only decide have no failures: {cost:?}");
}

/// The validator makes the check again for each combination of outcomes, and keeps all failures.
#[test]
fn unfinished_searches_repeat_failures() {
    let cost = |pattern: &str| {
        let schema = json!({"properties": {"n": {"items": {"pattern": pattern}}}});
        cost_of(&schema, &json!({"n": vec!["x".repeat(100); 10]}))
    };
    let (plain, around) = (cost("^(a|aa)+$"), cost("^(?=(a+)+$)(a|aa)+$"));
    assert!(around.failure_bytes() > 64 * plain.failure_bytes(), "{around:?}");
    assert_eq!(around.first_failure_bytes(), around.failure_bytes());
    assert_eq!(plain.first_failure_bytes(), 0);
    let schema = json!({"properties": {"p": {"items": {"pattern": "^(?=(a+)+$)(a|aa)+$"}},
        "n": {"items": {"type": "integer"}}}});
    let large = json!({"p": vec!["x".repeat(64); 6], "n": vec![1; 20_000]});
    let size = check_schema(&schema).unwrap();
    assert!(check_cost(&schema, &size.patterns, &large, STEPS_MAX).is_err(), "40,000 × 64");
}

#[test]
fn long_text_is_one_unfinished_search() {
    let rows = json!({"items": {"type": "integer"}});
    let schema_of = |text: Value| json!({"properties": {"text": text, "rows": rows}});
    let schema = schema_of(json!({"pattern": "^(?!-)[a-z0-9 -]+$"}));
    let large = json!({"text": "x".repeat(3_000), "rows": vec![1; 20_000]});
    let cost = cost_of(&schema, &large);
    let plain = cost_of(&schema_of(json!({"pattern": "^[a-z0-9 -]+$"})), &large);
    assert!(cost.failure_bytes() < 4 * plain.failure_bytes(), "{cost:?}");
    let words = schema_of(json!({"items": {"pattern": "^(?!-)[a-z]+$"}}));
    let bytes_of = |count: usize| {
        cost_of(&words, &json!({"text": vec!["x".repeat(64); count]})).failure_bytes()
    };
    assert_eq!(bytes_of(5) / 5 / 63, bytes_of(1) / 3, "63 checks for five searches, 3 for one");
}

#[test]
fn nested_copies_are_refused() {
    let nest = |levels: usize| {
        let inner = json!({"x": vec![0; 4_000]});
        (0..levels).fold(inner, |schema, _| json!({ "not": schema }))
    };
    assert!(check_schema(&nest(3)).is_ok());
    let problem = check_schema(&nest(30)).err().unwrap();
    assert!(problem.contains("copy over 100000 values"), "{problem}");
    let schema_of = |branches: usize| {
        let branches = vec![json!({"$ref": "#/$defs/p"}); branches];
        json!({"anyOf": branches, "$defs": {"p": {"not": {"x": vec![0; 2_000]}}}})
    };
    for (branches, expected) in [(3, true), (900, false)] {
        let schema = schema_of(branches);
        let size = check_schema(&schema).unwrap();
        let index = SchemaIndex::of_checked(&schema);
        assert_eq!(index.has_light_branches(&size.patterns), expected, "{branches}");
    }
}

#[test]
fn keywords_of_newer_drafts_are_copied_in_older_ones() {
    let nested = (0..30).fold(json!({}), |rest, level| {
        json!({"if": {"properties": {"kind": {"const": level}}},
            "then": {"enum": vec![0; 300]}, "else": rest})
    });
    for (draft, expected) in [
        ("https://json-schema.org/draft/2020-12/schema", true),
        ("http://json-schema.org/draft-07/schema#", true),
        ("http://json-schema.org/draft-06/schema#", false),
        ("http://json-schema.org/draft-04/schema#", false),
    ] {
        let mut schema = nested.clone();
        assert!(check_schema(&schema).is_ok(), "without a draft");
        schema["$schema"] = json!(draft);
        assert_eq!(check_schema(&schema).is_ok(), expected, "{draft}");
    }
}

#[test]
fn unevaluated_keywords_compile_few_schemas() {
    let reference = |number: usize| json!({"$ref": format!("#/$defs/d{number}"), "unevaluatedProperties": false});
    let schema_of = |defs: Vec<Value>| -> Value {
        let defs = defs.into_iter().enumerate().map(|(number, it)| (format!("d{number}"), it));
        let defs: Map<String, Value> = defs.collect();
        json!({"properties": {"n": reference(0)}, "$defs": defs})
    };
    // Each path through the definitions is compiled by itself.
    let every: Map<String, Value> = (0..9).map(|it| (format!("p{it}"), reference(it))).collect();
    let all = json!({"allOf": [{"properties": every}], "unevaluatedProperties": false});
    let nested = (0..200).map(|it| json!({"additionalProperties": reference(it + 1)}));
    let nested = nested.chain([json!({})]).collect();
    for defs in [vec![all; 9], nested] {
        let problem = check_schema(&schema_of(defs)).err().unwrap();
        assert!(problem.contains("`unevaluatedProperties` and"), "{problem}");
    }
    let variant = json!({"allOf": [{"$ref": "#/$defs/d0"}], "unevaluatedProperties": false,
        "properties": {"kind": {"const": "a"}, "next": {"$ref": "#/$defs/d1"}}});
    let base = json!({"type": "object", "properties": {"id": {"type": "integer"}}});
    let ordinary = schema_of([vec![base], vec![variant; 40]].concat());
    let bounded = BoundedSchema::new_strict(&ordinary).unwrap();
    assert!(bounded.cost(&json!({"n": {"id": 1}})).is_some());
}

#[test]
fn each_reference_to_a_metaschema_is_counted() {
    let metaschema = "http://json-schema.org/draft-07/schema#";
    let schema = json!({
        "$id": "https://x.example/t", "type": "object",
        "properties": {"n": {"allOf": vec![json!({"$ref": "#/$defs/m"}); 1_400]}},
        "$defs": {"m": {"$ref": metaschema}},
    });
    assert!(cost_of(&schema, &json!({"n": {}})).steps > 1_400 * 300);
    let size = check_schema(&schema).unwrap();
    let large = json!({"n": {"allOf": vec![json!({}); 10_000]}});
    assert!(check_cost(&schema, &size.patterns, &large, STEPS_MAX).is_err());
    for (id, reference, is_metaschema) in [
        ("http://x.example/", "//json-schema.org/draft-07/schema", true),
        ("http://x.example/", "http://json%2Dschema.org/draft-07/schema", true),
        ("http://JSON-schema.org/draft-07/x", "schema", true),
        ("https://x.example/t", "#/$defs/m", false),
        ("https://x.example/t", "https://x.example/t#/$defs/m", false),
        ("https://x.example/t", "t#/$defs/m", false),
    ] {
        let schema = json!({"$id": id, "properties": {"n": {"$ref": reference}},
            "$defs": {"m": {"type": "object"}}});
        let steps = cost_of(&schema, &json!({"n": {}})).steps;
        assert_eq!(steps > 300, is_metaschema, "{id} {reference}: {steps}");
    }
    let own = json!({"$dynamicAnchor": "meta",
        "allOf": [{"$ref": "https://json-schema.org/draft/2020-12/schema"}]});
    let problem = check_schema(&own).err().unwrap();
    assert!(problem.contains("dynamic anchors"), "{problem}");
}
