//! Problems in AJV's words and order, so that a model reads what it was trained on.

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use serde_json::Value;

use super::coerce::js_text;

/// AJV's order within one schema object; keywords that it does not have come last.
const ORDER: [&str; 38] = [
    "type",
    "$ref",
    "const",
    "enum",
    "not",
    "anyOf",
    "oneOf",
    "allOf",
    "if",
    "then",
    "else",
    "maximum",
    "minimum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "multipleOf",
    "maxLength",
    "minLength",
    "pattern",
    "format",
    "maxItems",
    "minItems",
    "uniqueItems",
    "prefixItems",
    "items",
    "contains",
    "maxProperties",
    "minProperties",
    "required",
    "propertyNames",
    "additionalProperties",
    "dependencies",
    "properties",
    "patternProperties",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// What problems are sorted by: the way to each through the schema, and through the value where the schema branches on it.
pub(super) fn place(schema: &Value, value: &Value, error: &ValidationError<'_>) -> Vec<usize> {
    let mut key = Vec::new();
    let mut at_schema = Some(schema);
    let mut at_value = Some(value);
    let path = pointer_parts(error.evaluation_path().as_str());
    let mut through_value = pointer_parts(error.instance_path().as_str()).into_iter();
    let mut parts = path.iter();
    while let Some(keyword) = parts.next() {
        key.push(ORDER.iter().position(|known| known == keyword).unwrap_or(ORDER.len()));
        let inside = at_schema.and_then(|schema| schema.get(keyword));
        at_schema = match (keyword.as_str(), inside) {
            ("properties" | "patternProperties" | "dependentSchemas", Some(named)) => {
                let Some(name) = parts.next() else { break };
                key.push(position(named, name));
                named.get(name)
            }
            ("prefixItems" | "allOf" | "anyOf" | "oneOf", Some(listed)) => {
                let Some(index) = parts.next() else { break };
                key.push(index.parse().unwrap_or(usize::MAX));
                index.parse::<usize>().ok().and_then(|index| listed.get(index))
            }
            ("$ref", Some(target)) => target
                .as_str()
                .and_then(|target| target.strip_prefix('#'))
                .and_then(|pointer| schema.pointer(pointer)),
            (_, inside) => inside,
        };
        if matches!(
            keyword.as_str(),
            "properties" | "patternProperties" | "additionalProperties" | "items" | "prefixItems"
        ) && let Some(name) = through_value.next()
        {
            key.push(at_value.map_or(0, |value| position(value, &name)));
            at_value = at_value.and_then(|value| match value {
                Value::Array(items) => name.parse::<usize>().ok().and_then(|at| items.get(at)),
                _ => value.get(&name),
            });
        }
    }
    key
}

fn position(container: &Value, name: &str) -> usize {
    match container {
        Value::Object(members) => members.keys().position(|key| key == name).unwrap_or(0),
        _ => name.parse().unwrap_or(0),
    }
}

fn pointer_parts(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
}

/// `path: message`, for each; most errors give one line, a failed `anyOf` also those of its branches.
pub(super) fn lines(schema: &Value, error: &ValidationError<'_>) -> Vec<String> {
    let path = error.instance_path().as_str().strip_prefix('/').unwrap_or_default();
    let path = if path.is_empty() { "root" } else { path };
    let line = |message: &str| format!("{path}: {message}");
    match error.kind() {
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            let keywords = pointer_parts(error.schema_path().as_str());
            let cause = keywords
                .iter()
                .rposition(|keyword| keyword == "dependentRequired")
                .and_then(|at| keywords.get(at + 1));
            let message = match cause {
                Some(cause) => {
                    format!("must have property {name} when property {cause} is present")
                }
                None => format!("must have required property '{name}'"),
            };
            let path = if path == "root" { name } else { path };
            vec![format!("{path}: {message}")]
        }
        Kind::AdditionalProperties { unexpected } => {
            vec![line("must NOT have additional properties"); unexpected.len()]
        }
        Kind::UnevaluatedProperties { unexpected } => {
            vec![line("must NOT have unevaluated properties"); unexpected.len()]
        }
        Kind::AnyOf { context } => {
            with_branches(schema, context, line("must match a schema in anyOf"))
        }
        Kind::OneOfNotValid { context } | Kind::OneOfMultipleValid { context } => {
            with_branches(schema, context, line("must match exactly one schema in oneOf"))
        }
        Kind::PropertyNames { error } => {
            let mut inner = lines(schema, error);
            for inner in &mut inner {
                let message = inner.split_once(": ").map_or(inner.as_str(), |(_, message)| message);
                *inner = line(message);
            }
            inner.push(line("property name must be valid"));
            inner
        }
        kind => vec![line(&message(schema, error, kind))],
    }
}

fn with_branches(
    schema: &Value,
    branches: &[Vec<ValidationError<'static>>],
    last: String,
) -> Vec<String> {
    let mut all: Vec<String> =
        branches.iter().flatten().flat_map(|error| lines(schema, error)).collect();
    all.push(last);
    all
}

/// What AJV says of a single problem; what it has no word for, in jsonschema's words without the value.
fn message(schema: &Value, error: &ValidationError<'_>, kind: &Kind) -> String {
    match kind {
        Kind::Type { kind } => format!("must be {}", types(schema, error, kind)),
        Kind::Constant { .. } => "must be equal to constant".to_owned(),
        Kind::Enum { .. } => "must be equal to one of the allowed values".to_owned(),
        Kind::Minimum { limit } => format!("must be >= {}", shown(limit)),
        Kind::Maximum { limit } => format!("must be <= {}", shown(limit)),
        Kind::ExclusiveMinimum { limit } => format!("must be > {}", shown(limit)),
        Kind::ExclusiveMaximum { limit } => format!("must be < {}", shown(limit)),
        Kind::MultipleOf { multiple_of } => format!("must be multiple of {multiple_of}"),
        Kind::MinLength { limit } => format!("must NOT have fewer than {limit} characters"),
        Kind::MaxLength { limit } => format!("must NOT have more than {limit} characters"),
        Kind::MinItems { limit } => format!("must NOT have fewer than {limit} items"),
        Kind::MaxItems { limit } => format!("must NOT have more than {limit} items"),
        Kind::AdditionalItems { limit } => format!("must NOT have more than {limit} items"),
        Kind::MinProperties { limit } => format!("must NOT have fewer than {limit} properties"),
        Kind::MaxProperties { limit } => format!("must NOT have more than {limit} properties"),
        Kind::Pattern { pattern } => format!("must match pattern \"{pattern}\""),
        Kind::Format { format } => format!("must match format \"{format}\""),
        Kind::UniqueItems => unique_items(error.instance()),
        Kind::Contains => "must contain at least 1 valid item(s)".to_owned(),
        Kind::Not { .. } => "must NOT be valid".to_owned(),
        Kind::FalseSchema => "boolean schema is false".to_owned(),
        Kind::UnevaluatedItems { .. } => "must NOT have unevaluated items".to_owned(),
        Kind::BacktrackLimitExceeded { .. } | Kind::RegexEngineFailure { .. } => {
            "takes too long to match against its pattern: send a simpler value".to_owned()
        }
        Kind::ContentEncoding { content_encoding } => {
            format!("must be encoded as {content_encoding}")
        }
        Kind::FromUtf8 { .. } => "must hold UTF-8 text".to_owned(),
        Kind::ContentMediaType { content_media_type } => format!("must be {content_media_type}"),
        Kind::Custom { message, .. } => message.clone(),
        Kind::Referencing(_) => "cannot be checked: its schema refers to nothing".to_owned(),
        Kind::Required { .. }
        | Kind::AdditionalProperties { .. }
        | Kind::UnevaluatedProperties { .. }
        | Kind::AnyOf { .. }
        | Kind::OneOfNotValid { .. }
        | Kind::OneOfMultipleValid { .. }
        | Kind::PropertyNames { .. } => error.masked().to_string(),
    }
}

/// As the schema lists them.
fn types(schema: &Value, error: &ValidationError<'_>, kind: &TypeKind) -> String {
    match schema.pointer(error.schema_path().as_str()) {
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
        }
        _ => match kind {
            TypeKind::Single(name) => name.to_string(),
            TypeKind::Multiple(names) => {
                names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(",")
            }
        },
    }
}

fn shown(limit: &Value) -> String {
    match limit {
        Value::Number(number) => js_text(number),
        other => other.to_string(),
    }
}

/// AJV looks from the end: it names the last item that has an earlier twin, and the last of those.
fn unique_items(items: &Value) -> String {
    let items = items.as_array().map_or(&[][..], Vec::as_slice);
    // Comparing all pairs of a long list would take minutes.
    let few = items.get(..items.len().min(1_000)).unwrap_or_default();
    let twins = few.iter().enumerate().rev().find_map(|(later, item)| {
        let earlier = few.get(..later)?.iter().rposition(|other| other == item)?;
        Some((earlier, later))
    });
    match twins {
        Some((earlier, later)) => {
            format!("must NOT have duplicate items (items ## {earlier} and {later} are identical)")
        }
        None => "must NOT have duplicate items".to_owned(),
    }
}
