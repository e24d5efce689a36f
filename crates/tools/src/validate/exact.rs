//! JSON Schemas that compare numbers exactly. The library compares floats.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;

use jsonschema::json::{Array, Json, JsonNumber, Node, NodeIdentity, Object};
use jsonschema::{JsonType, Keyword, Retrieve, ValidationError, ValidationOptions};
use serde_json::{Number, Value};

use turnwheel_json::decimal::Decimal;
use turnwheel_json::exact::ExactJson;

/// Options of schemas whose instances are [`ExactJson`].
pub(super) fn options<'s>() -> ValidationOptions<'s, std::sync::Arc<dyn Retrieve>, ExactTree> {
    jsonschema::options_for::<ExactTree>()
        .with_keyword("minimum", |parent, limit, _| {
            let is_strict = parent.get("exclusiveMinimum") == Some(&Value::Bool(true));
            Ok(bound(limit, if is_strict { Relation::Above } else { Relation::AtLeast }))
        })
        .with_keyword("maximum", |parent, limit, _| {
            let is_strict = parent.get("exclusiveMaximum") == Some(&Value::Bool(true));
            Ok(bound(limit, if is_strict { Relation::Below } else { Relation::AtMost }))
        })
        .with_keyword("exclusiveMinimum", |_, limit, _| Ok(bound(limit, Relation::Above)))
        .with_keyword("exclusiveMaximum", |_, limit, _| Ok(bound(limit, Relation::Below)))
        .with_keyword("multipleOf", |_, divisor, _| Ok(bound(divisor, Relation::MultipleOf)))
        .with_keyword("const", |_, allowed, _| {
            Ok(Box::new(Allowed(vec![allowed.clone()], "must be equal to constant")))
        })
        .with_keyword("enum", |_, allowed, _| {
            let allowed = allowed.as_array().cloned().unwrap_or_default();
            Ok(Box::new(Allowed(allowed, "must be equal to one of the allowed values")))
        })
}

/// Relation of a number to that of a keyword.
#[derive(Clone, Copy)]
enum Relation {
    AtLeast,
    AtMost,
    Above,
    Below,
    MultipleOf,
}

struct Bound {
    relation: Relation,
    number: Decimal,
    message: String,
}

/// In old drafts `exclusiveMinimum: true` belongs to `minimum`, and says nothing itself.
fn bound(number: &Value, relation: Relation) -> Box<dyn for<'i> Keyword<'i, ExactTree>> {
    let shown = number.as_number();
    let Some((number, shown)) = shown.and_then(|it| Some((Decimal::from_number(it)?, it))) else {
        return Box::new(Anything);
    };
    let shown = super::coerce::format_js_number(shown);
    let message = match relation {
        Relation::AtLeast => format!("must be >= {shown}"),
        Relation::AtMost => format!("must be <= {shown}"),
        Relation::Above => format!("must be > {shown}"),
        Relation::Below => format!("must be < {shown}"),
        Relation::MultipleOf => format!("must be multiple of {shown}"),
    };
    Box::new(Bound { relation, number, message })
}

impl<'i> Keyword<'i, ExactTree> for Bound {
    fn validate(&self, instance: &'i ExactJson) -> Result<(), ValidationError<'i>> {
        let is_valid = Keyword::<ExactTree>::is_valid(self, instance);
        if is_valid { Ok(()) } else { Err(ValidationError::custom(self.message.clone())) }
    }

    fn is_valid(&self, instance: &'i ExactJson) -> bool {
        let ExactJson::Number(text) = instance else { return true };
        let Some(number) = Decimal::parse(text) else { return false };
        let order = number.cmp(&self.number);
        match self.relation {
            Relation::AtLeast => order != Ordering::Less,
            Relation::AtMost => order != Ordering::Greater,
            Relation::Above => order == Ordering::Greater,
            Relation::Below => order == Ordering::Less,
            Relation::MultipleOf => number.is_multiple_of(&self.number),
        }
    }
}

struct Allowed(Vec<Value>, &'static str);

impl<'i> Keyword<'i, ExactTree> for Allowed {
    fn validate(&self, instance: &'i ExactJson) -> Result<(), ValidationError<'i>> {
        let is_valid = Keyword::<ExactTree>::is_valid(self, instance);
        if is_valid { Ok(()) } else { Err(ValidationError::custom(self.1)) }
    }

    fn is_valid(&self, instance: &'i ExactJson) -> bool {
        self.0.iter().any(|allowed| instance.is_equal_to(allowed))
    }
}

struct Anything;

impl<'i> Keyword<'i, ExactTree> for Anything {
    fn validate(&self, _instance: &'i ExactJson) -> Result<(), ValidationError<'i>> {
        Ok(())
    }

    fn is_valid(&self, _instance: &'i ExactJson) -> bool {
        true
    }
}

/// The representation of instances.
pub(super) struct ExactTree;

impl Json for ExactTree {
    type Node<'a> = &'a ExactJson;
    type PreparedKey = String;
    type StringBuffer = Option<ExactJson>;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>(
        buffer: &mut Option<ExactJson>,
        string: &str,
        f: impl FnOnce(&ExactJson) -> T,
    ) -> T {
        f(buffer.insert(ExactJson::Text(string.to_owned())))
    }
}

/// A number as it was written.
pub(super) struct WrittenNumber<'a>(&'a str);

impl JsonNumber for WrittenNumber<'_> {
    fn as_u64(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    fn as_i64(&self) -> Option<i64> {
        self.0.parse().ok()
    }

    fn as_f64(&self) -> Option<f64> {
        self.0.parse().ok()
    }

    fn as_str(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.0)
    }

    fn to_number(&self) -> Cow<'_, Number> {
        Cow::Owned(serde_json::from_str(self.0).unwrap_or_else(|_| 0.into()))
    }

    fn is_integer(&self) -> bool {
        Decimal::parse(self.0).is_some_and(|number| number.is_integer())
    }

    fn is_written_as_integer(&self) -> bool {
        !self.0.contains(['.', 'e', 'E'])
    }
}

impl<'a> Node<'a, ExactTree> for &'a ExactJson {
    type Object = &'a [(String, ExactJson)];
    type Array = &'a [ExactJson];
    type Number = WrittenNumber<'a>;

    fn as_object(&self) -> Option<&'a [(String, ExactJson)]> {
        if let ExactJson::Object(members) = self { Some(members) } else { None }
    }

    fn as_array(&self) -> Option<&'a [ExactJson]> {
        if let ExactJson::List(items) = self { Some(items) } else { None }
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        if let ExactJson::Text(text) = self { Some(Cow::Borrowed(text)) } else { None }
    }

    fn as_number(&self) -> Option<WrittenNumber<'a>> {
        if let ExactJson::Number(text) = self { Some(WrittenNumber(text)) } else { None }
    }

    fn as_boolean(&self) -> Option<bool> {
        if let ExactJson::Bool(flag) = self { Some(*flag) } else { None }
    }

    fn is_null(&self) -> bool {
        matches!(self, ExactJson::Null)
    }

    fn json_type(&self) -> JsonType {
        match self {
            ExactJson::Null => JsonType::Null,
            ExactJson::Bool(_) => JsonType::Boolean,
            ExactJson::Number(_) => JsonType::Number,
            ExactJson::Text(_) => JsonType::String,
            ExactJson::List(_) => JsonType::Array,
            ExactJson::Object(_) => JsonType::Object,
        }
    }

    fn equals_value(&self, expected: &Value) -> bool {
        self.is_equal_to(expected)
    }

    fn to_value(&self) -> Cow<'a, Value> {
        Cow::Owned(ExactJson::to_value(self))
    }

    fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(std::ptr::from_ref::<ExactJson>(self).addr()))
    }
}

impl<'a> Object<'a, ExactTree> for &'a [(String, ExactJson)] {
    type Node = &'a ExactJson;
    type MemberName = &'a str;
    type MembersIter = Members<'a>;

    fn len(&self) -> usize {
        <[(String, ExactJson)]>::len(self)
    }

    fn get(&self, key: &String) -> Option<&'a ExactJson> {
        self.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    fn members(&self) -> Members<'a> {
        Members(self.iter())
    }
}

/// Members in order.
pub(super) struct Members<'a>(std::slice::Iter<'a, (String, ExactJson)>);

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, &'a ExactJson);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(name, value)| (name.as_str(), value))
    }
}

impl<'a> Array<'a, ExactTree> for &'a [ExactJson] {
    type Node = &'a ExactJson;
    type ElementsIter = std::slice::Iter<'a, ExactJson>;

    fn len(&self) -> usize {
        <[ExactJson]>::len(self)
    }

    fn elements(&self) -> std::slice::Iter<'a, ExactJson> {
        self.iter()
    }

    fn is_unique(&self) -> bool {
        let mut seen = HashSet::new();
        self.iter().all(|item| seen.insert(item.normal_text()))
    }
}
