//! Members of an object that its type does not have. They survive a rewrite and keep their text,
//! digits included.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use turnwheel_json::raw::RawJson;

/// Unknown members of an object. They are read as values, and written as the text that was read.
#[derive(Clone, Debug, Default)]
pub struct Extra {
    members: Map<String, Value>,
    /// The JSON of members whose value has another text.
    texts: BTreeMap<String, RawJson>,
}

impl Extra {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a member that keeps its text.
    pub fn insert_raw(&mut self, name: String, raw: RawJson) {
        let value = raw.to_value();
        let text = value.to_string();
        if text != raw.text() {
            self.texts.insert(name.clone(), raw);
        }
        self.members.insert(name, value);
    }

    /// The JSON of a member.
    pub fn raw(&self, name: &str) -> Option<RawJson> {
        let value = self.members.get(name)?;
        Some(self.text_of(name, value).cloned().unwrap_or_else(|| RawJson::from_value(value)))
    }

    /// The text of a member that still has the value of that text.
    fn text_of(&self, name: &str, value: &Value) -> Option<&RawJson> {
        self.texts.get(name).filter(|raw| raw.to_value() == *value)
    }
}

impl std::ops::Deref for Extra {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.members
    }
}

impl std::ops::DerefMut for Extra {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.members
    }
}

impl PartialEq for Extra {
    fn eq(&self, other: &Self) -> bool {
        let has_no_texts = self.texts.is_empty() && other.texts.is_empty();
        self.members == other.members
            && (has_no_texts || self.keys().all(|name| self.raw(name) == other.raw(name)))
    }
}

impl Serialize for Extra {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// A value, or its text.
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Member<'a> {
            Value(&'a Value),
            Text(&'a RawJson),
        }
        serializer.collect_map(self.members.iter().map(|(name, value)| {
            let text = self.text_of(name, value);
            (name, text.map_or(Member::Value(value), Member::Text))
        }))
    }
}

/// A value in an entry, with the members that its type does not have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WithUnknownMembers<T> {
    // Requests and decisions would double the size of every entry.
    #[serde(flatten)]
    value: Box<T>,
    #[serde(flatten)]
    extra: Extra,
}

impl<T> From<T> for WithUnknownMembers<T> {
    fn from(value: T) -> Self {
        Self { value: Box::new(value), extra: Extra::new() }
    }
}

impl<T> std::ops::Deref for WithUnknownMembers<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> std::ops::DerefMut for WithUnknownMembers<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for WithUnknownMembers<T> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let mut extra = Extra::new();
        let value = T::deserialize(StructReader { source, others: &[], extra: &mut extra })?;
        Ok(Self { value: Box::new(value), extra })
    }
}

/// Reads a struct whose unknown members go to `extra`, with their text. A flattened field would
/// receive them as floats. `others`: members of the object that belong to an enclosing type.
pub(crate) struct StructReader<'a, D> {
    pub source: D,
    pub others: &'static [&'static str],
    pub extra: &'a mut Extra,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for StructReader<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.source.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { source, others, extra } = self;
        source.deserialize_struct(
            name,
            fields,
            KnownMembers { inner: visitor, fields, others, extra },
        )
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The visitor of a struct, and then the members that the struct has.
struct KnownMembers<'a, T> {
    inner: T,
    fields: &'static [&'static str],
    others: &'static [&'static str],
    extra: &'a mut Extra,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for KnownMembers<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        let Self { inner, fields, others, extra } = self;
        inner.visit_map(KnownMembers { inner: members, fields, others, extra })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KnownMembers<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        while let Some(name) = self.inner.next_key::<String>()? {
            if self.fields.contains(&name.as_str()) {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            if self.others.contains(&name.as_str()) {
                self.inner.next_value::<serde::de::IgnoredAny>()?;
            } else {
                let value = self.inner.next_value()?;
                self.extra.insert_raw(name, value);
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }
}

/// Implements reading and writing of structs with a field `extra` and serde's `remote = "Self"`.
/// First come the members of their objects that belong to an enclosing type.
macro_rules! keep_unknown_members {
    ([$($other:literal),*] $($name:ident),*) => {
        $crate::unknown_members::keep_unknown_members!(@ &[$($other),*]; $($name),*);
    };
    ($others:path; $($name:ident),*) => {
        $crate::unknown_members::keep_unknown_members!(@ &$others; $($name),*);
    };
    (@ $others:expr; $($name:ident),*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
                let mut extra = $crate::unknown_members::Extra::new();
                let others = $others;
                let mut read = Self::deserialize($crate::unknown_members::StructReader {
                    source,
                    others,
                    extra: &mut extra,
                })?;
                read.extra = extra;
                Ok(read)
            }
        }
    )*};
}
pub(crate) use keep_unknown_members;
