//! Tests of schemas that stand for more checks than a process can make.

use std::time::{Duration, Instant};

use serde_json::{Map, json};

use super::bounded_schema::{BoundedSchema, SchemaVerdict};
use super::*;

/// Bound of each case on a busy machine. Without a bound of the checks a case takes hours.
const TIME_MAX: Duration = Duration::from_mins(2);

/// `$defs` with a chain of schemas of which each uses the next one twice.
fn chain(levels: usize, keyword: &str, last: &Value) -> Value {
    let mut defs = Map::new();
    for level in 0..levels {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        defs.insert(format!("d{level}"), json!({keyword: [next, next]}));
    }
    defs.insert(format!("d{levels}"), last.clone());
    json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/d0"}}, "$defs": defs})
}

#[test]
fn exponential_schemas_are_refused() {
    let started = Instant::now();
    for (levels, keyword) in [(40, "allOf"), (22, "anyOf"), (20, "oneOf"), (30, "allOf")] {
        let problem =
            Checker::new(&chain(levels, keyword, &json!({"type": "string"}))).unwrap_err();
        assert!(problem.contains("its references stand for over 20000 schemas"), "{problem}");
    }
    let mut nested = json!({"type": "string"});
    for _ in 0..14 {
        nested = json!({"if": nested, "then": nested, "else": nested});
        if nested.to_string().len() > 200_000 {
            break;
        }
    }
    assert!(Checker::new(&json!({"properties": {"n": nested}})).is_err());
    let loops = [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
        json!({"$id": "http://x.example", "allOf": [{"$ref": "http://x.example/#"}]}),
        json!({"allOf": [{"$ref": "json-schema:///#"}]}),
        json!({"$defs": {"%a": {"not": {"$ref": "./#/$defs/%25a"}}}}),
        json!({"$dynamicAnchor": "me", "allOf": [{"$dynamicRef": "#me"}]}),
        json!({"$defs": {"a": {"$anchor": "x", "dependentSchemas": {"k": {"$ref": "#x"}}}}}),
    ];
    for schema in loops {
        let problem = Checker::new(&schema).unwrap_err();
        assert!(problem.contains("refers to itself without end"), "{schema}: {problem}");
    }
    assert!(started.elapsed() < TIME_MAX, "{:?}", started.elapsed());
}

/// Each schema is small, and each value is one that a model can send.
#[test]
fn checks_that_grow_with_the_value_end() {
    let tree = |depth: usize| (0..depth).fold(json!({}), |inner, _| json!({"a": inner}));
    let many = |count: usize| -> Value {
        (0..count)
            .map(|n| (format!("aaaaaaaaaaaaaaaaaaaaaaaa{n}"), json!("x")))
            .collect::<Map<_, _>>()
            .into()
    };
    let twice = json!([{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/t"}]);
    let recursive = |keyword: &str| {
        json!({"properties": {"n": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"type": "object",
            "properties": {"a": {keyword: twice}}}}})
    };
    let patterns: Map<String, Value> =
        (0..100).map(|n| (format!("^(a|b|ab)*(?=c{n})"), json!(true))).collect();
    let branches: Vec<Value> =
        (0..900).map(|n| json!({"properties": {"x": {"const": n}}})).collect();
    for (schema, value) in [
        (recursive("allOf"), tree(90)),
        (recursive("anyOf"), tree(90)),
        (recursive("oneOf"), tree(90)),
        (json!({"properties": {"n": {"patternProperties": patterns}}}), many(5_000)),
        (json!({"properties": {"n": {"pattern": "^(a+)+(?!x)$"}}}), json!("a".repeat(50_000))),
        (json!({"properties": {"n": {"pattern": "^(a|a)*$"}}}), json!("a".repeat(500_000) + "b")),
        (
            json!({"properties": {"n": {"pattern": "(a|b)*a(a|b){200}c"}}}),
            json!("ab".repeat(200_000)),
        ),
        (
            json!({"properties": {"n": {"uniqueItems": true}}}),
            json!((0..200_000).map(|n| json!({"a": [n]})).collect::<Vec<_>>()),
        ),
        (
            json!({"properties": {"n": {"contains": {"anyOf": branches}}}}),
            json!(vec![json!({"x": -1}); 20_000]),
        ),
        (
            json!({"properties": {"n": {"items": {"enum": (0..10_000).collect::<Vec<_>>()}}}}),
            json!(vec![-1; 100_000]),
        ),
        (
            json!({"properties": {"n": {"anyOf": branches, "unevaluatedProperties": false}}}),
            many(20_000),
        ),
        (
            json!({"properties": {"n": {"propertyNames": {"pattern": "^(a*)*(?!b)$"}}}}),
            many(20_000),
        ),
        (
            json!({"properties": {"n": {"items": {"anyOf": branches}}}}),
            json!(vec![json!({"x": -1}); 20_000]),
        ),
    ] {
        let schema_started = Instant::now();
        let Ok(checker) = Checker::new(&schema) else { continue };
        let raw = RawJson::from_value(&json!({"n": value}));
        let _valid_or_not = checker.validate("add", &raw);
        assert!(
            schema_started.elapsed() < TIME_MAX,
            "{:.200}: {:?}",
            schema.to_string(),
            schema_started.elapsed()
        );
    }
    let problem = Checker::new(&recursive("allOf")).unwrap();
    let problem =
        problem.validate("add", &RawJson::from_value(&json!({"n": tree(90)}))).unwrap_err();
    assert!(problem.contains("too large or too complex to be checked"), "{problem}");
}

/// A worker has two megabytes of stack.
#[test]
fn deep_schemas_and_values_fit_the_stack() {
    let chain: Map<String, Value> = (0..390)
        .map(|n| (format!("d{n}"), json!({"allOf": [{"$ref": format!("#/$defs/d{}", n + 1)}]})))
        .chain([("d390".to_owned(), json!({"properties": {"a": {"$ref": "#/$defs/d0"}}}))])
        .collect();
    let long: Map<String, Value> = (0..4_000)
        .map(|n| (format!("d{n}"), json!({"$ref": format!("#/$defs/d{}", n + 1)})))
        .collect();
    let narrow = json!({"properties": {"n": {"$ref": "#/$defs/d200"}}, "$defs": chain});
    let recursive = json!({"properties": {"a": {"$ref": "#"}, "n": {"$ref": "#"}}});
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || {
        let deep = (0..94).fold(json!({}), |inner, _| json!({"a": inner}));
        for schema in [narrow, json!({"$ref": "#/$defs/d0", "$defs": long}), recursive] {
            if let Ok(checker) = Checker::new(&schema) {
                let _valid_or_not =
                    checker.validate("add", &RawJson::from_value(&json!({"n": deep})));
            }
        }
    });
    thread.unwrap().join().unwrap();
}

#[test]
fn ordinary_checks_are_made_in_full() {
    let row = json!({"id": 7, "name": "Ada", "tags": ["a", "b"], "child": null});
    let rows = json!({"rows": vec![row; 5_000]});
    let schema = json!({
        "type": "object", "required": ["rows"],
        "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
        "$defs": {"row": {
            "type": "object", "required": ["id"], "additionalProperties": false,
            "properties": {
                "id": {"type": "integer"}, "name": {"type": "string", "pattern": "^[A-Z]\\w*$"},
                "tags": {"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b", "c"]}},
                "child": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/row"}]}
            }
        }}
    });
    let bounded = BoundedSchema::new(&schema).unwrap();
    assert_eq!(bounded.check(&rows), SchemaVerdict::Valid);
    let mut wrong = rows;
    wrong["rows"][4_999]["tags"][1] = json!("x");
    assert_eq!(bounded.check(&wrong), SchemaVerdict::Invalid);
    let mistakes = bounded.find_mistakes(&wrong, 5);
    assert_eq!(mistakes[0].pointer, "/rows/4999/tags/1");
}

#[test]
fn condition_of_a_right_keeps_each_word() {
    let odd = json!({"properties": {"amount": {"minimum": 5, "exclusiveMinimum": true}}});
    assert!(BoundedSchema::new(&odd).is_ok());
    assert!(BoundedSchema::new_strict(&odd).is_err());
}
