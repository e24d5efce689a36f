//! Validation problems with AJV's messages and order, which models know from training.

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use serde_json::Value;

use super::coerce::format_js_number;

/// AJV's order of keywords within one schema object. Keywords that AJV does not have come last.
const KEYWORD_ORDER: [&str; 38] = [
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

/// Sort key of a problem: its path in the schema, and its path in the value at keywords that apply
/// to each member or item.
pub(super) fn sort_key(schema: &Value, value: &Value, error: &ValidationError<'_>) -> Vec<usize> {
    let mut key = Vec::new();
    let mut at_schema = Some(schema);
    let mut at_value = Some(value);
    let path = pointer_parts(error.evaluation_path().as_str());
    let mut through_value = pointer_parts(error.instance_path().as_str()).into_iter();
    let mut parts = path.iter();
    while let Some(keyword) = parts.next() {
        key.push(
            KEYWORD_ORDER.iter().position(|known| known == keyword).unwrap_or(KEYWORD_ORDER.len()),
        );
        let inside = at_schema.and_then(|schema| schema.get(keyword));
        at_schema = match (keyword.as_str(), inside) {
            ("properties" | "patternProperties" | "dependentSchemas", Some(named)) => {
                let Some(name) = parts.next() else { break };
                key.push(member_index(named, name));
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
            key.push(at_value.map_or(0, |value| member_index(value, &name)));
            at_value = at_value.and_then(|value| find_child(value, &name));
        }
    }
    key
}

fn member_index(container: &Value, name: &str) -> usize {
    match container.as_object() {
        Some(members) => members.keys().position(|key| key == name).unwrap_or(0),
        None => name.parse().unwrap_or(0),
    }
}

fn find_child<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    match container.as_array() {
        Some(items) => items.get(name.parse::<usize>().ok()?),
        None => container.get(name),
    }
}

fn pointer_parts(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
}

/// Returns lines `path: message`. Most errors give one line; a failed `anyOf` or `oneOf` also gives
/// the lines of its branches.
pub(super) fn error_lines(schema: &Value, error: &ValidationError<'_>) -> Vec<String> {
    let path = error.instance_path().as_str().strip_prefix('/').unwrap_or_default();
    let path = if path.is_empty() { "root" } else { path };
    let line = |message: &str| format!("{path}: {message}");
    let kind = error.kind();
    if let Kind::Required { property } = kind {
        let name = property.as_str().unwrap_or_default();
        let message = match find_requiring_member(schema, error, name) {
            Some(cause) => format!("must have property {name} when property {cause} is present"),
            None => format!("must have required property '{name}'"),
        };
        let path = if path == "root" { name } else { path };
        return vec![format!("{path}: {message}")];
    }
    let message = line(&ajv_message(schema, error, kind));
    match branches_of(kind) {
        Some(branches) => {
            branches.flat_map(|error| error_lines(schema, error)).chain([message]).collect()
        }
        None => expand_named_members(schema, kind, &line, message),
    }
}

/// Errors of the branches of a failed `anyOf` or `oneOf`.
fn branches_of(kind: &Kind) -> Option<impl Iterator<Item = &ValidationError<'static>>> {
    if let Kind::AnyOf { context }
    | Kind::OneOfNotValid { context }
    | Kind::OneOfMultipleValid { context } = kind
    {
        return Some(context.iter().flatten());
    }
    None
}

/// Expands a problem with member names to one line per name.
fn expand_named_members(
    schema: &Value,
    kind: &Kind,
    line: &impl Fn(&str) -> String,
    message: String,
) -> Vec<String> {
    if let Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } =
        kind
    {
        return vec![message; unexpected.len()];
    }
    let Kind::PropertyNames { error } = kind else { return vec![message] };
    let inner = error_lines(schema, error);
    let about_name =
        |text: &String| line(text.split_once(": ").map_or(text.as_str(), |(_, why)| why));
    inner.iter().map(about_name).chain([message]).collect()
}

/// Returns the present member that requires the missing one, if the error is from
/// `dependentRequired`.
fn find_requiring_member<'a>(
    schema: &'a Value,
    error: &ValidationError<'_>,
    name: &str,
) -> Option<&'a str> {
    let path = error.schema_path().as_str();
    let rules = schema.pointer(path).filter(|_| path.ends_with("/dependentRequired"))?;
    let requires = |listed: &Value| {
        listed.as_array().is_some_and(|listed| listed.iter().any(|other| other == name))
    };
    rules.as_object()?.iter().find_map(|(cause, listed)| {
        (requires(listed) && error.instance().get(cause).is_some()).then_some(cause.as_str())
    })
}

/// AJV's message for one problem. Problems that AJV does not have get a message of the same style,
/// without the value.
fn ajv_message(schema: &Value, error: &ValidationError<'_>, kind: &Kind) -> String {
    match kind {
        Kind::Type { kind } => format!("must be {}", allowed_types(schema, error, kind)),
        Kind::Constant { .. } => "must be equal to constant".to_owned(),
        Kind::Enum { .. } => "must be equal to one of the allowed values".to_owned(),
        Kind::Minimum { limit } => format!("must be >= {}", format_limit(limit)),
        Kind::Maximum { limit } => format!("must be <= {}", format_limit(limit)),
        Kind::ExclusiveMinimum { limit } => format!("must be > {}", format_limit(limit)),
        Kind::ExclusiveMaximum { limit } => format!("must be < {}", format_limit(limit)),
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
        Kind::UniqueItems => duplicate_items_message(error.instance()),
        Kind::Contains => "must contain at least 1 valid item(s)".to_owned(),
        Kind::Not { .. } => "must NOT be valid".to_owned(),
        Kind::FalseSchema => "boolean schema is false".to_owned(),
        Kind::UnevaluatedItems { .. } => "must NOT have unevaluated items".to_owned(),
        Kind::BacktrackLimitExceeded { .. } | Kind::RegexEngineFailure { .. } => {
            "takes too long to match its pattern: send a simpler value".to_owned()
        }
        Kind::ContentEncoding { content_encoding } => {
            format!("must be encoded as {content_encoding}")
        }
        Kind::FromUtf8 { .. } => "must hold UTF-8 text".to_owned(),
        Kind::ContentMediaType { content_media_type } => format!("must be {content_media_type}"),
        Kind::Custom { message, .. } => message.clone(),
        Kind::Referencing(_) => "cannot be checked: its schema has a broken reference".to_owned(),
        Kind::AdditionalProperties { .. } => "must NOT have additional properties".to_owned(),
        Kind::UnevaluatedProperties { .. } => "must NOT have unevaluated properties".to_owned(),
        Kind::AnyOf { .. } => "must match a schema in anyOf".to_owned(),
        Kind::OneOfNotValid { .. } | Kind::OneOfMultipleValid { .. } => {
            "must match exactly one schema in oneOf".to_owned()
        }
        Kind::PropertyNames { .. } => "property name must be valid".to_owned(),
        Kind::Required { .. } => "must have required properties".to_owned(),
    }
}

/// Allowed types, in the order of the schema.
fn allowed_types(schema: &Value, error: &ValidationError<'_>, kind: &TypeKind) -> String {
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

fn format_limit(limit: &Value) -> String {
    limit.as_number().map_or_else(|| limit.to_string(), format_js_number)
}

/// Message for duplicate items. Like AJV, it searches from the end: it names the last item with an
/// earlier duplicate, and the last such duplicate.
fn duplicate_items_message(items: &Value) -> String {
    let items = items.as_array().map_or(&[][..], Vec::as_slice);
    // Limits the comparison of all pairs, which would take minutes for a long list.
    let few = items.get(..items.len().min(1_000)).unwrap_or_default();
    let duplicates = few.iter().enumerate().rev().find_map(|(later, item)| {
        let earlier = few.get(..later)?.iter().rposition(|other| other == item)?;
        Some((earlier, later))
    });
    match duplicates {
        Some((earlier, later)) => {
            format!("must NOT have duplicate items (items ## {earlier} and {later} are identical)")
        }
        None => "must NOT have duplicate items".to_owned(),
    }
}
