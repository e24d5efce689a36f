//! Enums whose kind is a string member of their JSON object.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserializer, Serialize};
use serde_json::value::RawValue;

#[derive(Serialize)]
pub(crate) struct Tagged<'a, T> {
    #[serde(flatten)]
    pub inner: &'a T,
}

/// A value whose kind is a member of its JSON object.
pub trait HasKind {
    /// The kind in JSON. Empty if an unknown value has none.
    fn kind(&self) -> Cow<'static, str>;
}

/// The value of a string member of a JSON object, without parsing the rest to a tree.
pub(crate) fn tag_of(text: &str, name: &str) -> Option<String> {
    struct Finder<'a>(&'a str);

    impl<'de> serde::de::Visitor<'de> for Finder<'_> {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                if key == self.0 {
                    let raw = map.next_value::<&RawValue>()?;
                    found = serde_json::from_str(raw.get()).ok();
                } else {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
            }
            Ok(found)
        }
    }

    let mut deserializer = serde_json::Deserializer::from_str(text);
    Deserializer::deserialize_map(&mut deserializer, Finder(name)).ok().flatten()
}

/// Implements an enum that a string member distinguishes. serde's own tagging buffers the object
/// and would lose unparsed members. This one keeps an unknown kind as its text.
macro_rules! tagged {
    ($name:ident by $tag:literal { $($kind:literal => $variant:ident($inner:ty),)* }) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$variant(inner) => {
                        #[derive(serde::Serialize)]
                        struct Kinded<'a> {
                            #[serde(rename = $tag)]
                            kind: &'static str,
                            #[serde(flatten)]
                            inner: $crate::tagged::Tagged<'a, $inner>,
                        }
                        Kinded { kind: $kind, inner: $crate::tagged::Tagged { inner } }.serialize(serializer)
                    })*
                    Self::Other(raw) => raw.serialize(serializer),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = turnwheel_json::raw::RawJson::deserialize(deserializer)?;
                Self::from_raw(raw).map_err(serde::de::Error::custom)
            }
        }

        impl $crate::tagged::HasKind for $name {
            fn kind(&self) -> std::borrow::Cow<'static, str> {
                match self {
                    $(Self::$variant(_) => $kind.into(),)*
                    Self::Other(raw) => {
                        $crate::tagged::tag_of(raw.text(), $tag).unwrap_or_default().into()
                    }
                }
            }
        }

        impl $name {
            /// # Errors
            /// A member of a known kind is missing or of the wrong type. An unknown kind is no
            /// error.
            pub fn from_raw(raw: turnwheel_json::raw::RawJson) -> Result<Self, serde_json::Error> {
                match $crate::tagged::tag_of(raw.text(), $tag).as_deref() {
                    $(Some($kind) => raw.read().map(Self::$variant),)*
                    _ => Ok(Self::Other(raw)),
                }
            }

            /// Checks that [`Self::from_raw`] succeeds.
            ///
            /// # Errors
            /// The first error with its pointer: report it to the sender.
            pub fn check(raw: &turnwheel_json::raw::RawJson) -> Result<(), turnwheel_json::strict::JsonError> {
                match $crate::tagged::tag_of(raw.text(), $tag).as_deref() {
                    $(Some($kind) => turnwheel_json::strict::from_str::<$inner>(raw.text()).map(drop),)*
                    _ => Ok(()),
                }
            }
        }
    };
}
pub(crate) use tagged;
