//! Schemas as tools and agents have them, and as model services receive them.

use super::*;

fn sent(schema: &Value) -> Value {
    Value::Object(sent_parameters(schema.as_object().unwrap()).into_owned())
}

#[test]
fn plain_schema_is_sent_as_it_is() {
    for schema in [
        json!({}),
        json!({"type": "object", "properties": {"required": {"type": "string", "pattern": "^[(]\\)$"}}, "required": ["required"]}),
        json!({"type": "object", "$defs": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "properties": {"n": {"$ref": "#/$defs/n"}, "t": {"type": "array", "items": {}}}, "additionalProperties": false}),
    ] {
        let members = schema.as_object().unwrap();
        assert!(matches!(sent_parameters(members), Cow::Borrowed(_)), "{schema}");
    }
}

#[test]
fn refused_schema_is_repaired() {
    let string = json!({"type": "string"});
    let object = |names: &[&str], required: Value| {
        let properties: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), string.clone())).collect();
        let mut schema = json!({"type": "object", "properties": properties});
        if required != json!([]) {
            schema["required"] = required;
        }
        schema
    };
    let with = |mut schema: Value, name: &str, value: Value| {
        schema[name] = value;
        schema
    };
    let plain = object(&["id", "slug"], json!([]));
    let one = json!([{"required": ["id"]}, {"required": ["slug"]}]);
    for (given, expected) in [
        (with(plain.clone(), "anyOf", one.clone()), plain.clone()),
        (with(plain.clone(), "not", json!({"required": ["id", "slug"]})), plain.clone()),
        (with(plain.clone(), "enum", json!([{}])), plain.clone()),
        (
            with(
                plain.clone(),
                "allOf",
                json!([{"if": {"required": ["id"]}, "then": {"required": ["slug"]}}]),
            ),
            plain.clone(),
        ),
        (
            json!({"oneOf": [object(&["id"], json!(["id"])), object(&["id", "slug"], json!(["slug", "id"]))]}),
            object(&["id", "slug"], json!(["id"])),
        ),
        (
            json!({"allOf": [object(&["id"], json!(["id"])), {"$ref": "#/$defs/s"}], "$defs": {"s": object(&["slug"], json!(["slug"]))}}),
            with(
                object(&["id", "slug"], json!(["id", "slug"])),
                "$defs",
                json!({"s": object(&["slug"], json!(["slug"]))}),
            ),
        ),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": plain}}),
            with(plain.clone(), "$defs", json!({"a": plain})),
        ),
        (
            json!({"type": ["object", "null"], "properties": null}),
            json!({"type": "object", "properties": {}}),
        ),
    ] {
        assert_eq!(sent(&given), expected, "{given}");
    }
}

#[test]
fn response_schema_is_an_object_or_not_sent() {
    let properties = json!({"a": {"type": "integer"}});
    let object = json!({"type": "object", "properties": properties});
    assert!(matches!(sent_format(&object), Some(Cow::Borrowed(_))));
    for given in [
        json!({"properties": properties}),
        json!({"type": ["object", "null"], "properties": properties}),
        json!({"anyOf": [object]}),
        json!({"type": "object", "properties": properties, "not": {"required": ["b"]}, "oneOf": [{"required": ["b"]}, {}]}),
    ] {
        assert_eq!(sent_format(&given).as_deref(), Some(&object), "{given}");
    }
    for given in [
        json!(true),
        json!({"type": "array", "items": {"type": "integer"}}),
        json!({"type": "string"}),
        json!({"anyOf": [{"type": "array"}, {"type": "null"}]}),
        json!({"enum": ["a", "b"]}),
    ] {
        assert_eq!(sent_format(&given), None, "{given}");
    }
}

#[test]
fn odd_words_inside_are_repaired() {
    for (given, expected) in [
        (json!({"type": "array"}), json!({"type": "array", "items": {}})),
        (
            json!({"type": ["array", "null"], "items": true}),
            json!({"type": ["array", "null"], "items": {}}),
        ),
        (
            json!({"type": "array", "items": [{"type": "integer"}, {"type": "array"}]}),
            json!({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {}}]}}),
        ),
        (json!({"type": "string", "nullable": true}), json!({"type": ["string", "null"]})),
        (
            json!({"type": "integer", "minimum": 0, "exclusiveMinimum": true}),
            json!({"type": "integer", "exclusiveMinimum": 0}),
        ),
        (json!({"type": "any", "required": true, "xml": {}}), json!({})),
        (json!({"type": "string", "pattern": "[0-9"}), json!({"type": "string"})),
        (json!({"anyOf": [{"type": "array"}]}), json!({"anyOf": [{"type": "array", "items": {}}]})),
    ] {
        let whole = |inner: &Value| json!({"type": "object", "properties": {"a": inner}});
        assert_eq!(sent(&whole(&given)), whole(&expected), "{given}");
        assert!(is_accepted(&whole(&expected)), "{expected}");
    }
}

#[test]
fn endless_schema_is_sent_in_finite_time() {
    let mut defs = Map::new();
    for number in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", number + 1)});
        defs.insert(format!("d{number}"), json!({"allOf": [next, next], "anyOf": [next, next]}));
    }
    let sent = sent(&json!({"allOf": [{"$ref": "#"}, {"$ref": "#/$defs/d0"}], "$defs": defs}));
    assert_eq!(sent["type"], "object");
}

/// The two alternatives of a union, as zod writes them.
fn message_union() -> Value {
    json!({"oneOf": [
        {"properties": {"kind": {"const": "email"}, "to": {"type": "string"}}, "required": ["kind", "to"]},
        {"properties": {"kind": {"const": "sms"}, "phone": {"type": "string"}}, "required": ["kind", "phone"]},
    ]})
}

fn sent_message_union() -> Value {
    json!({
        "type": "object",
        "properties": {"kind": {"enum": ["email", "sms"]}, "to": {"type": "string"}, "phone": {"type": "string"}},
        "required": ["kind"],
    })
}

#[test]
fn union_is_sent_with_each_alternative() {
    assert_eq!(sent(&message_union()), sent_message_union());
    assert_eq!(sent_format(&message_union()).as_deref(), Some(&sent_message_union()));
    let mut closed = message_union();
    for branch in closed["oneOf"].as_array_mut().unwrap() {
        branch["type"] = json!("object");
        branch["additionalProperties"] = json!(false);
    }
    let branches = closed["oneOf"].clone();
    let named = json!({
        "anyOf": [{"$ref": "#/$defs/email"}, {"$ref": "#/$defs/sms"}, {"type": "null"}],
        "discriminator": {"propertyName": "kind", "mapping": {"email": "#/$defs/email"}},
        "$defs": {"email": branches[0], "sms": branches[1]},
    });
    assert_eq!(sent(&closed), sent_message_union());
    let mut with_definitions = sent_message_union();
    with_definitions["$defs"] = named["$defs"].clone();
    assert_eq!(sent(&named), with_definitions);
    for schema in [message_union(), closed, named] {
        let sent = jsonschema::validator_for(&sent(&schema)).unwrap();
        let own = jsonschema::validator_for(&schema).unwrap();
        for call in
            [json!({"kind": "email", "to": "a@b.example"}), json!({"kind": "sms", "phone": "5"})]
        {
            assert!(own.is_valid(&call), "{schema} {call}");
            assert!(sent.is_valid(&call), "{schema} {call}");
        }
    }
}

#[test]
fn schemas_of_one_property_are_alternatives() {
    let string = json!({"type": "string"});
    for (alternatives, expected) in [
        (json!([{"type": "string"}, {"type": "string"}]), string.clone()),
        (
            json!([{"type": "string"}, {"type": "integer"}, {"type": "string"}]),
            json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ),
        (
            json!([{"type": "integer", "enum": [1, 2]}, {"type": "integer", "enum": [2, 3]}]),
            json!({"type": "integer", "enum": [1, 2, 3]}),
        ),
        (
            json!([
                {"const": "a", "default": "a", "title": "Kind", "type": "string"},
                {"const": "b", "default": "b", "title": "Kind", "type": "string"},
            ]),
            json!({"type": "string", "title": "Kind", "enum": ["a", "b"]}),
        ),
        (json!([{"type": "string", "const": "a"}, {"const": "b"}]), json!({"enum": ["a", "b"]})),
        (
            json!([{"const": "a", "description": "A."}, {"const": "b", "description": "B."}]),
            json!({"anyOf": [{"const": "a", "description": "A."}, {"const": "b", "description": "B."}]}),
        ),
        (
            json!([{"type": "string", "const": "1"}, {"type": "integer", "const": 1}]),
            json!({"anyOf": [{"type": "string", "const": "1"}, {"type": "integer", "const": 1}]}),
        ),
        (
            json!([{"const": "a"}, {"type": "null"}]),
            json!({"anyOf": [{"const": "a"}, {"type": "null"}]}),
        ),
        (json!([{"type": "string"}, {"not": {}}, false]), string),
        (json!([{"type": "string"}, {"description": "Any."}]), json!({"description": "Any."})),
        (json!([{"type": "string", "nullable": true}]), json!({"type": ["string", "null"]})),
    ] {
        for keyword in ["anyOf", "oneOf"] {
            let branches: Vec<Value> = alternatives
                .as_array()
                .unwrap()
                .iter()
                .map(|schema| json!({"properties": {"a": schema}, "required": ["a"]}))
                .collect();
            assert_eq!(
                sent(&json!({keyword: branches})),
                json!({"type": "object", "properties": {"a": expected}, "required": ["a"]}),
                "{alternatives}"
            );
        }
    }
}

#[test]
fn own_schema_of_a_property_is_narrowed() {
    let sent_property = |own: Value, alternatives: [Value; 2]| {
        let branches = alternatives.map(|schema| json!({"properties": {"a": schema}}));
        let schema = json!({"type": "object", "properties": {"a": own}, "oneOf": branches});
        let mut sent = sent(&schema);
        assert_eq!(sent["required"], Value::Null);
        sent["properties"]["a"].take()
    };
    let values = || [json!({"const": "a"}), json!({"const": "b"})];
    let objects =
        || [json!({"properties": {"x": {}}}), json!({"properties": {"y": {}}, "maxProperties": 1})];
    for (own, alternatives, expected) in [
        (
            json!({"type": "string", "description": "Kind."}),
            values(),
            json!({"type": "string", "description": "Kind.", "enum": ["a", "b"]}),
        ),
        (json!({"enum": ["a", "b", "c"]}), values(), json!({"enum": ["a", "b"]})),
        (json!({"const": "b"}), values(), json!({"const": "b"})),
        (json!({"enum": ["b", "c"]}), values(), json!({"enum": ["b"]})),
        (json!({"enum": ["c"]}), values(), json!({"enum": ["c"]})),
        (json!({"title": "A"}), values(), json!({"title": "A", "enum": ["a", "b"]})),
        (json!(true), values(), json!({"enum": ["a", "b"]})),
        (json!({"$ref": "#/properties/b"}), values(), json!({"enum": ["a", "b"]})),
        (json!({"type": "object"}), objects(), json!({"type": "object", "anyOf": objects()})),
        (json!({"title": "A"}), objects(), json!({"title": "A", "anyOf": objects()})),
        (
            json!({"type": "object", "anyOf": [{}]}),
            objects(),
            json!({"type": "object", "anyOf": [{}]}),
        ),
        (
            json!({"type": "string"}),
            [json!({"type": "string"}), json!({"type": "string", "maxLength": 9})],
            json!({"type": "string"}),
        ),
    ] {
        assert_eq!(sent_property(own.clone(), alternatives), expected, "{own}");
    }
}

#[test]
fn partly_named_property_restricts_nothing() {
    let own = json!({"enum": ["a", "b"]});
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let when_a = json!({"properties": {"k": {"const": "a"}}});
    for (given, expected) in [
        (
            json!({"properties": {"k": own}, "anyOf": [when_a, {"required": ["x"]}]}),
            object(json!({"k": own})),
        ),
        (
            json!({"properties": {"k": own}, "allOf": [
                {"if": when_a, "then": {"properties": {"k": {"const": "a"}, "x": {"const": 1}}, "required": ["x"]}},
                {"if": {"properties": {"k": {"const": "b"}}}, "then": {"properties": {"x": {"const": 2}}}},
            ]}),
            object(json!({"k": own, "x": {"enum": [1, 2]}})),
        ),
        (
            json!({"oneOf": [{"properties": {"k": {"const": "a"}, "x": false}}, {"properties": {"k": {"const": "b"}}}]}),
            object(json!({"k": own})),
        ),
        (
            json!({"oneOf": [
                {"anyOf": [when_a, {"properties": {"k": {"const": "b"}}}], "properties": {"x": {}}},
                {"type": ["string", "array"], "properties": {"y": {}}},
            ]}),
            object(json!({"k": own, "x": {}})),
        ),
    ] {
        assert_eq!(sent(&given), expected, "{given}");
    }
}

#[test]
fn inherited_property_keeps_the_base() {
    let base = json!({
        "properties": {"id": {"type": "integer"}, "k": {"type": "string"}}, "required": ["id", "k"],
    });
    let derived = |name: &str| json!({"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"k": {"const": name}}}]});
    let schema = json!({"oneOf": [derived("a"), derived("b")], "$defs": {"base": base}});
    let expected = json!({
        "type": "object",
        "properties": {"id": {"type": "integer"}, "k": {"type": "string", "enum": ["a", "b"]}},
        "required": ["id", "k"],
        "$defs": {"base": base},
    });
    assert_eq!(sent(&schema), expected);
}

#[test]
fn nested_union_is_sent_as_it_is() {
    let mut nested = message_union();
    nested["description"] = json!("The message.");
    let schema = json!({"type": "object", "properties": {"message": nested, "more": {"type": "array", "items": nested}}});
    assert_eq!(sent(&schema), schema);
    let mut refused = schema.clone();
    refused["not"] = json!({"required": ["more"]});
    assert_eq!(sent(&refused), schema);
}

#[test]
fn references_have_targets_after_the_repair() {
    let of_branch = |properties: Value| json!({"anyOf": [{"properties": properties}]});
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let mail = json!({"type": "string", "format": "email"});
    for (given, expected) in [
        (
            of_branch(json!({"from": mail, "to": {"$ref": "#/anyOf/0/properties/from"}})),
            object(json!({"from": mail, "to": mail})),
        ),
        (
            of_branch(json!({"a b": mail, "to": {"$ref": "#/anyOf/0/properties/a%20b"}})),
            object(json!({"a b": mail, "to": mail})),
        ),
        (
            of_branch(
                json!({"a": mail, "b": {"$ref": "#/anyOf/0/properties/a", "description": "B."}}),
            ),
            object(
                json!({"a": mail, "b": {"type": "string", "format": "email", "description": "B."}}),
            ),
        ),
        (
            object(
                json!({"t": {"type": "array", "items": [mail, {"$ref": "#/properties/t/items/0"}]}}),
            ),
            object(json!({"t": {"type": "array", "items": {"anyOf": [mail, mail]}}})),
        ),
        (
            object(
                json!({"t": {"type": "array", "prefixItems": [mail]}, "u": {"$ref": "#/properties/t/prefixItems/0"}}),
            ),
            object(json!({"t": {"type": "array", "items": {"anyOf": [mail]}}, "u": mail})),
        ),
        (
            of_branch(
                json!({"a": {"$ref": "#/nowhere", "description": "A."}, "b": {"$ref": "#c"}}),
            ),
            object(json!({"a": {"description": "A."}, "b": {}})),
        ),
        (
            of_branch(
                json!({"$ref": {"const": {"$ref": "#/nowhere"}}, "default": {"$ref": "#/nowhere"}}),
            ),
            object(json!({"$ref": {"const": {"$ref": "#/nowhere"}}, "default": {}})),
        ),
        (
            json!({"$id": "https://x.example/s", "$defs": {"m": mail}, "anyOf": [{"properties": {
                "a": {"$ref": "#/$defs/m"}, "b": {"$ref": "#"}, "c": {"$ref": "https://x.example/t#/a"},
            }}]}),
            json!({"$id": "https://x.example/s", "$defs": {"m": mail}, "type": "object", "properties": {
                "a": {"$ref": "#/$defs/m"}, "b": {"$ref": "#"}, "c": {"$ref": "https://x.example/t#/a"},
            }}),
        ),
    ] {
        assert_eq!(sent(&given), expected, "{given}");
    }
}

#[test]
fn large_and_recursive_targets_become_definitions() {
    let node = |target: &str| json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": target}}}});
    let own = "#/oneOf/0/properties/node";
    assert_eq!(
        sent(&json!({"oneOf": [{"properties": {"node": node(own)}}]})),
        json!({"type": "object", "properties": {"node": node("#/$defs/part1")}, "$defs": {"part1": node("#/$defs/part1")}})
    );
    assert_eq!(
        sent(&json!({"oneOf": [{"$anchor": "x", "properties": {"n": {"$ref": "#x"}}}]})),
        json!({
            "type": "object", "properties": {"n": {"$ref": "#/$defs/part1"}},
            "$defs": {"part1": {"properties": {"n": {"$ref": "#/$defs/part1"}}}},
        })
    );
    let large = json!({"type": "string", "description": "d".repeat(600)});
    let first = json!({"$ref": "#/oneOf/0/properties/a"});
    let encoded = json!({"$ref": "#/oneOf/0/properties/%61"});
    let defined = json!({"$ref": "#/$defs/part2"});
    assert_eq!(
        sent(&json!({
            "oneOf": [{"properties": {"a": large, "b": first, "c": encoded}}], "$defs": {"part1": {}},
        })),
        json!({
            "type": "object", "properties": {"a": large, "b": defined, "c": defined},
            "$defs": {"part1": {}, "part2": large},
        })
    );
}

#[test]
fn draft_4_is_sent_as_current_draft() {
    let address = "http://json-schema.org/draft-04/schema#";
    let number = json!({"type": "number", "minimum": 0, "exclusiveMinimum": true});
    let given = json!({"$schema": address, "type": "object", "properties": {"n": number}});
    let expected =
        json!({"type": "object", "properties": {"n": {"type": "number", "exclusiveMinimum": 0}}});
    assert_eq!(sent(&given), expected);
    assert_eq!(sent_format(&given).as_deref(), Some(&expected));
    let given = json!({
        "$schema": address, "id": "http://x.example/s.json", "type": "object",
        "properties": {
            "id": {"type": "string"}, "k": {"$ref": "#k"},
            "m": {"$ref": "http://x.example/s.json#/definitions/m"},
        },
        "definitions": {
            "k": {"id": "#k", "type": "string"},
            "m": {"type": "integer", "maximum": 9, "exclusiveMaximum": false},
        },
    });
    let expected = json!({
        "type": "object",
        "properties": {"id": {"type": "string"}, "k": {"type": "string"}, "m": {"$ref": "#/definitions/m"}},
        "definitions": {"k": {"type": "string"}, "m": {"type": "integer", "maximum": 9}},
    });
    assert_eq!(sent(&given), expected);
    assert_eq!(sent(&json!({"$schema": address, "type": "object"}))["$schema"], Value::Null);
    let later = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"});
    assert_eq!(sent(&later), later);
}

#[test]
fn response_schema_of_a_list_is_not_sent() {
    for given in [
        json!({"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {}}}}),
        json!({"properties": {}, "anyOf": [{"type": "array"}, {"$ref": "#/$defs/l"}], "$defs": {"l": {"type": "null"}}}),
    ] {
        assert_eq!(sent_format(&given), None, "{given}");
    }
}

#[test]
fn repeated_references_have_bounds() {
    let properties: Map<String, Value> =
        (0..200).map(|number| (format!("p{number}"), json!({"type": "string"}))).collect();
    let branches = vec![json!({"$ref": "#/$defs/large"}); 1_000];
    let sent = sent(&json!({"anyOf": branches, "$defs": {"large": {"properties": properties}}}));
    assert_eq!(sent["properties"], Value::Object(properties));
}
