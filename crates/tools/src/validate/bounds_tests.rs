//! Tests of schemas that stand for more checks than a process can make.

mod memory;

use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::{Map, json};

use super::bounded_schema::{BoundedSchema, SchemaVerdict};
use super::bounds::{SchemaIndex, check_schema};
use super::coerce::Branches;
use super::steps::{STEPS_MAX, check_cost};
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
fn ordinary_patterns_cost_few_steps() {
    let html_email = r"^[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$";
    let hostname = r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$";
    let short_email = r"^(?=.{1,254}$)[^\s@]+@[^\s@]+\.[^\s@]+$";
    let password = r"^(?=.*\d)(?=.*[A-Z])[A-Za-z\d@$!%*?&]{8,128}$";
    let number = r"^(?!666|000|9\d{2})\d{3}-(?!00)\d{2}-(?!0{4})\d{4}$";
    for (pattern, text) in [
        (html_email, "somebody.with.a.name@mail.example.com"),
        (hostname, "a-rather-long-name-of-a-host.in.some.department.example.com"),
        (short_email, "somebody.with.a.name@mail.example.com"),
        (password, "Abcdefghij1"),
        (number, "123-45-6789"),
    ] {
        let schema = json!({"type": "object", "properties": {
            "list": {"type": "array", "items": {"type": "string", "pattern": pattern}},
            "count": {"type": "integer"},
        }});
        let bounded = BoundedSchema::new_strict(&schema).unwrap();
        assert!(!bounded.is_heavy(), "{pattern}");
        let value = json!({"list": vec![text; 20], "count": 5});
        assert_eq!(bounded.check(&value), SchemaVerdict::Valid, "{pattern}");
        let steps = bounded.cost(&json!({"list": [text]})).unwrap().steps;
        assert!(steps < 25_000, "{pattern}: {steps}");
    }
}

#[test]
fn condition_of_a_right_keeps_each_word() {
    let odd = json!({"properties": {"amount": {"minimum": 5, "exclusiveMinimum": true}}});
    assert!(BoundedSchema::new(&odd).is_ok());
    assert!(BoundedSchema::new_strict(&odd).is_err());
}

#[test]
fn ordinary_patterns_compile() {
    for pattern in [
        r"^[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
        r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})?)?$",
        r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?$",
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{2,}$",
        r"^\w{1,64}$",
        "^.{0,2000}$",
    ] {
        let schema = json!({ "pattern": pattern });
        assert!(BoundedSchema::new_strict(&schema).is_ok(), "{pattern}");
    }
}

#[test]
fn large_patterns_are_left_out_or_refused() {
    let nested = r"[ -~]*[ae]((((([ -~]{7}){7}){7}){7}){7}){7}[\x01\x02]";
    let schema = json!({"type": "object", "properties": {"n": {"pattern": nested}}});
    assert!(Checker::new(&schema).is_ok());
    let problem = BoundedSchema::new_strict(&schema).unwrap_err();
    assert!(problem.reason.contains("is too large"), "{problem}");
    let many: Map<String, Value> = (0..5)
        .map(|n| (format!("p{n}"), json!({ "pattern": format!("^.{{0,2000}}{n}$") })))
        .collect();
    let problem = Checker::new(&json!({ "properties": many })).unwrap_err();
    assert!(problem.contains("too many regular expressions"), "{problem}");
    let named = json!({"$ref": "#/extra/x", "extra": {"x": {"pattern": "^.{0,2000}$"}}});
    assert!(SchemaIndex::of_checked(&named).pattern_states() > 60_000);
}

/// The validator compiles a schema again for each path of references through schemas with `$id`.
#[test]
fn references_through_many_resources_are_refused() {
    let defs = |has_references: bool| -> Map<String, Value> {
        let next = |n: usize| json!({ "$ref": format!("https://x.example/r{n}") });
        let inner = |n: usize| {
            let properties = json!({"a": next(n + 1), "b": next(n + 2)});
            if has_references { properties } else { json!({}) }
        };
        let resource =
            |n: usize| json!({"$id": format!("https://x.example/r{n}"), "properties": inner(n)});
        (0..40).map(|n| (format!("r{n}"), resource(n))).collect()
    };
    let problem = Checker::new(&json!({ "$defs": defs(true) })).unwrap_err();
    assert!(problem.contains("over 6 schemas with `$id`"), "{problem}");
    assert!(check_schema(&json!({ "$defs": defs(false) })).is_ok());
}

#[test]
fn branches_with_large_patterns_are_not_compiled() {
    let schema_of = |branches: usize| {
        json!({
            "type": "object",
            "properties": {"n": {"anyOf": vec![json!({"$ref": "#/$defs/p"}); branches]}},
            "$defs": {"p": {"type": "string", "pattern": "^\\p{L}{20}$"}},
        })
    };
    for (branches, expected) in [(3, true), (900, false)] {
        let schema = schema_of(branches);
        let size = check_schema(&schema).unwrap();
        let index = SchemaIndex::of_checked(&schema);
        assert_eq!(index.has_light_branches(&size.patterns), expected, "{branches}");
    }
    let checker = Checker::new(&schema_of(900)).unwrap();
    assert!(checker.validate("add", &RawJson::from_value(&json!({"n": 5}))).is_err());
}

#[test]
fn branches_refer_to_the_whole_schema() {
    let of_n = |branch: Value| {
        let other = json!({"type": "integer"});
        json!({"type": "object", "properties": {"n": {"anyOf": [branch, other]}}})
    };
    let mut named = of_n(json!({"$ref": "#/$defs/a%20b"}));
    named["$defs"] = json!({"a b": {"type": "boolean"}});
    let mut old = of_n(json!({"$ref": "#/definitions/flag"}));
    old["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    old["$id"] = json!("https://x.example/tool");
    old["definitions"] = json!({"flag": {"type": "boolean"}});
    let odd_name = json!({"type": "object", "properties": {"a/b %": {"oneOf": [{"type": "null"}, {"type": "integer"}]}}});
    for (schema, given, expected) in [
        (&named, json!({"n": "true"}), json!({"n": true})),
        (&old, json!({"n": "true"}), json!({"n": true})),
        (&odd_name, json!({"a/b %": "5"}), json!({"a/b %": 5})),
        (&of_n(json!({"$ref": "#"})), json!({"n": "5"}), json!({"n": 5})),
        (&of_n(json!({"$ref": "json-schema:///#"})), json!({"n": "5"}), json!({"n": 5})),
    ] {
        let checker = Checker::new(schema).unwrap();
        let arguments = checker.validate("add", &RawJson::from_value(&given)).unwrap();
        assert_eq!(arguments.value, expected, "{schema}");
    }
    let mut own = of_n(json!({"$ref": "turnwheel-branch:///"}));
    own["$defs"] = json!({"x": {"$id": "turnwheel-branch:///", "type": "object"}});
    let raw = RawJson::from_value(&json!({"n": "5"}));
    assert!(Checker::new(&own).and_then(|checker| checker.validate("add", &raw)).is_err());
}

#[test]
fn texts_are_copied_by_their_bytes() {
    let schema = json!({"properties": {"n": {"anyOf": vec![false; 5_000]}}});
    let size = check_schema(&schema).unwrap();
    let copies = |text: &str| {
        let value = json!({"n": {"big": text}});
        check_cost(&schema, &size.patterns, &value, STEPS_MAX).unwrap().copies
    };
    assert!(copies("x") < COERCED_COPIES_MAX);
    assert!(copies(&"x".repeat(1_000_000)) > COERCED_COPIES_MAX);
}

#[test]
fn large_value_of_many_alternatives_is_counted_once() {
    let branches: Vec<Value> = (0..30)
        .map(|n| json!({"type": "object", "properties": {"kind": {"const": format!("a{n}")}}}))
        .collect();
    let schema = json!({"type": "object",
        "properties": {"n": {"anyOf": branches}, "limit": {"type": "integer"}}});
    let value = json!({"n": {"kind": "a3", "rows": vec![1; 70_000]}, "limit": "5"});
    let checker = Checker::new(&schema).unwrap();
    let arguments = checker.validate("add", &RawJson::from_value(&value)).unwrap();
    assert_eq!(arguments.value["limit"], 5);
    let names: Map<String, Value> = (0..1_450).map(|n| (format!("p{n}"), json!(1))).collect();
    let named = json!({"anyOf": [{"propertyNames": {"minLength": 1}}, {"type": "null"}]});
    let size = check_schema(&named).unwrap();
    let cost = check_cost(&named, &size.patterns, &json!(names), STEPS_MAX).unwrap();
    assert!(cost.copies < COERCED_COPIES_MAX, "{cost:?}");
}

/// Branches of which none is valid.
struct CountedBranches(Cell<usize>);

impl Branches for CountedBranches {
    fn are_usable(&self) -> bool {
        true
    }

    fn is_valid(&self, _pointer: &str, _branch: &Value, _value: &Value) -> bool {
        self.0.set(self.0.get() + 1);
        false
    }
}

#[test]
fn branches_that_convert_nothing_are_checked_once() {
    let schema =
        json!({"anyOf": [false, {"minLength": 5}, {"type": "boolean"}, {"type": "integer"}]});
    let branches = CountedBranches(Cell::new(0));
    let mut value = ExactJson::Text("5".to_owned());
    coerce::coerce(&schema, &branches, &mut value);
    assert_eq!(branches.0.get(), 5, "each branch once, and the integer");
}
