//! Strict reading of JSON from clients: each error has a pointer and a plain message. An object is
//! never read from a list, except in the mode `ExactNumbers`.

mod exact_numbers;
mod message;
mod null_members;

use std::fmt;

use crate::decimal::is_exact_as;
use crate::strict::exact_numbers::{is_exact, read_number_text};
use crate::strict::message::{json_error, to_pointer};
use crate::strict::null_members::StructVisitor;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

pub use message::plain_message;
pub(crate) use message::truncate;

/// Precedes the pointer of an error inside a value that is parsed separately.
const POINTER_PREFIX: &str = " (at ";

/// An error in JSON, with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// RFC 6901; empty: the whole document.
    pub pointer: String,
    pub detail: String,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pointer.is_empty() {
            return f.write_str(&self.detail);
        }
        write!(f, "{}{POINTER_PREFIX}{})", self.detail, self.pointer)
    }
}

impl std::error::Error for JsonError {}

impl JsonError {
    /// Prefixes the pointer with that of the enclosing value.
    #[must_use]
    pub fn with_parent_pointer(mut self, pointer: &str) -> Self {
        self.pointer.insert_str(0, pointer);
        self
    }
}

/// Rules of reading beyond those of the types.
#[derive(Clone, Copy, Debug)]
enum ReadMode {
    /// Structs are objects.
    Objects,
    /// Also, members of structs that are null are absent. Text only: values are borrowed from it.
    ObjectsWithoutNull,
    /// No float rounds a number. Text only: numbers are borrowed from it.
    ExactNumbers,
}

/// Reads JSON text into a type whose objects must be JSON objects.
///
/// # Errors
/// Returns the first error in the JSON: report it to the sender.
pub fn from_str<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, JsonError> {
    read_text(text, ReadMode::Objects)
}

/// Like [`from_str`], for a request: a member of an object that is null counts as absent, because
/// clients of typed languages write absent members as null.
///
/// # Errors
/// Returns the first error in the JSON: report it to the sender.
pub fn from_request<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, JsonError> {
    read_text(text, ReadMode::ObjectsWithoutNull)
}

/// Reads JSON text of bounded depth into any type. A number that a float of the type would round is an
/// error.
pub(crate) fn from_exact_str<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, JsonError> {
    read_text(text, ReadMode::ExactNumbers)
}

/// Reads a member whose null stands for its default.
///
/// # Errors
/// The value has another type.
pub fn null_is_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn read_text<'de, T: Deserialize<'de>>(text: &'de str, mode: ReadMode) -> Result<T, JsonError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = read(Strict(&mut deserializer, mode))?;
    deserializer.end().map_err(|error| JsonError {
        pointer: String::new(),
        detail: plain_message(&error.to_string()),
    })?;
    Ok(value)
}

/// Like [`from_str`], from any deserializer, such as a JSON tree.
///
/// # Errors
/// Returns the first error in the JSON: report it to the sender.
pub fn from_deserializer<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    source: D,
) -> Result<T, JsonError> {
    read(Strict(source, ReadMode::Objects))
}

fn read<'de, T: Deserialize<'de>, D: Deserializer<'de>>(source: D) -> Result<T, JsonError> {
    serde_path_to_error::deserialize(source).map_err(|error| {
        let pointer = to_pointer(error.path());
        json_error(pointer, &error.inner().to_string())
    })
}

/// Escapes one segment of an RFC 6901 pointer.
pub fn pointer_token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Wraps a deserializer and everything that it returns. serde's derive accepts a list for a struct,
/// member by member in source order; a request for a map prevents that.
struct Strict<T>(T, ReadMode);

macro_rules! deserialize {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        fn $name<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$name($($argument,)* Strict(visitor, self.1))
        }
    )*};
}

/// Methods whose visitors accept floats, each with its condition of exact numbers.
macro_rules! deserialize_number {
    ($($name:ident($is_exact:expr);)*) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            match self.1 {
                ReadMode::Objects | ReadMode::ObjectsWithoutNull => self.0.$name(Strict(visitor, self.1)),
                ReadMode::ExactNumbers => {
                    let text = read_number_text(self.0, $is_exact)?;
                    let mut source = serde_json::Deserializer::from_str(text);
                    source.$name(Strict(visitor, self.1)).map_err(D::Error::custom)
                }
            }
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    deserialize_number! {
        deserialize_any(is_exact); deserialize_f32(is_exact_as::<f32>); deserialize_f64(is_exact_as::<f64>);
    }

    deserialize! {
        deserialize_bool(); deserialize_i8(); deserialize_i16(); deserialize_i32(); deserialize_i64();
        deserialize_i128(); deserialize_u8(); deserialize_u16(); deserialize_u32(); deserialize_u64(); deserialize_u128();
        deserialize_char(); deserialize_str(); deserialize_string();
        deserialize_bytes(); deserialize_byte_buf(); deserialize_option(); deserialize_unit(); deserialize_seq();
        deserialize_map(); deserialize_identifier(); deserialize_ignored_any();
        deserialize_unit_struct(name: &'static str); deserialize_newtype_struct(name: &'static str);
        deserialize_tuple(len: usize); deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        match self.1 {
            ReadMode::Objects => self.0.deserialize_map(Strict(visitor, self.1)),
            ReadMode::ObjectsWithoutNull => {
                self.0.deserialize_map(Strict(StructVisitor { visitor, fields }, self.1))
            }
            ReadMode::ExactNumbers => {
                self.0.deserialize_struct(name, fields, Strict(visitor, self.1))
            }
        }
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($name:ident($kind:ty);)*) => {$(
        fn $name<E: serde::de::Error>(self, value: $kind) -> Result<V::Value, E> {
            self.0.$name(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<V> {
    type Value = V::Value;

    visit! {
        visit_bool(bool); visit_i8(i8); visit_i16(i16); visit_i32(i32); visit_i64(i64); visit_i128(i128); visit_u8(u8);
        visit_u16(u16); visit_u32(u32); visit_u64(u64); visit_u128(u128); visit_f32(f32); visit_f64(f64); visit_char(char);
        visit_str(&str); visit_borrowed_str(&'de str); visit_string(String); visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]); visit_byte_buf(Vec<u8>);
    }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Strict(source, self.1))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, source: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Strict(source, self.1))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Strict(items, self.1))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Strict(members, self.1))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Strict(variant, self.1))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(source, self.1))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed, self.1))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Strict(seed, self.1))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed, self.1))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let mode = self.1;
        let (value, variant) = self.0.variant_seed(Strict(seed, mode))?;
        Ok((value, Strict(variant, mode)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed, self.1))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, Strict(visitor, self.1))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Strict(visitor, self.1))
    }
}
