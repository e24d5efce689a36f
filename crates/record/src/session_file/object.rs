//! A JSON object whose values keep their text.

use serde::Serialize;

use turnwheel_conversation::entry::EntryBase;
use turnwheel_json::raw::RawJson;

#[derive(Clone, Debug, Default)]
pub(super) struct Object(Vec<(String, RawJson)>);

impl Object {
    /// `None`: the value is no object. Of members with one name the last counts.
    pub(super) fn from_raw(raw: &RawJson) -> Option<Self> {
        let mut object = Self::default();
        for (name, value) in raw.members()? {
            object.set_raw(&name, value);
        }
        Some(object)
    }

    pub(super) fn get(&self, name: &str) -> Option<&RawJson> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The value of a member, if it is a string.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name)?.read().ok()
    }

    pub(super) fn set_raw(&mut self, name: &str, value: RawJson) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    pub(super) fn set(&mut self, name: &str, value: &impl Serialize) {
        self.set_raw(name, RawJson::from_value(value));
    }

    pub(super) fn set_default(&mut self, name: &str, value: &impl Serialize) {
        if !self.has(name) {
            self.set(name, value);
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<RawJson> {
        let index = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(index).1)
    }

    pub(super) fn rename(&mut self, name: &str, new_name: &str) {
        if let Some(value) = self.remove(name) {
            self.set_raw(new_name, value);
        }
    }

    /// The members that are not in the list.
    pub(super) fn without(mut self, names: &[&str]) -> Self {
        self.0.retain(|(name, _)| !names.contains(&name.as_str()));
        self
    }

    pub(super) fn extend(&mut self, other: Self) {
        for (name, value) in other.0 {
            self.set_raw(&name, value);
        }
    }

    /// The members of an entry at this position.
    pub(super) fn with_base(mut self, base: &EntryBase) -> Self {
        self.extend(Self::from_raw(&RawJson::from_value(base)).unwrap_or_default());
        self
    }

    pub(super) fn into_raw(self) -> RawJson {
        RawJson::from_members(self.0)
    }
}
