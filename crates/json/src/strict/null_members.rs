//! Members of a request that are null: they count as absent.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IntoDeserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{ReadMode, Strict};

/// Omits the null members of a struct that has these fields.
pub(super) struct StructVisitor<V> {
    pub(super) visitor: V,
    pub(super) fields: &'static [&'static str],
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StructVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        let Self { visitor, fields } = self;
        visitor.visit_map(StructMembers { members, fields, value: None })
    }
}

struct StructMembers<'de, A> {
    members: A,
    fields: &'static [&'static str],
    /// The value of the last name that was read.
    value: Option<&'de RawValue>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for StructMembers<'de, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        while let Some((name, value)) = self.members.next_entry::<String, &'de RawValue>()? {
            // An unknown name is a mistake with any value.
            if value.get() == "null" && self.fields.contains(&name.as_str()) {
                continue;
            }
            self.value = Some(value);
            return seed.deserialize(name.into_deserializer()).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let value = self.value.take().ok_or_else(|| A::Error::custom("a value is missing"))?;
        let mut source = serde_json::Deserializer::from_str(value.get());
        seed.deserialize(Strict(&mut source, ReadMode::ObjectsWithoutNull))
            .map_err(A::Error::custom)
    }
}
