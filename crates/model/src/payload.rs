//! The body of a model request that a hook may change.

use std::fmt;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// Changes the body of a request just before it is sent (AZ-23).
#[async_trait]
pub trait PayloadHook: Send + Sync + fmt::Debug {
    /// # Errors
    /// Do not send the request; the text states the reason.
    async fn on_payload(&self, payload: &mut ModelPayload<'_>) -> Result<(), String>;
}

/// The body of a request. It becomes a JSON value only if a hook asks for it.
pub struct ModelPayload<'a> {
    body: &'a dyn Body,
    json: Option<Value>,
}

impl fmt::Debug for ModelPayload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelPayload").field("json", &self.json).finish_non_exhaustive()
    }
}

trait Body: Send + Sync {
    fn to_json(&self) -> serde_json::Result<Value>;
}

impl<T: Serialize + Send + Sync> Body for T {
    fn to_json(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self)
    }
}

impl<'a> ModelPayload<'a> {
    /// A body that no hook has changed.
    pub fn new<T: Serialize + Send + Sync>(body: &'a T) -> Self {
        Self { body, json: None }
    }

    /// The body, to read or change it.
    ///
    /// # Errors
    /// The body cannot be serialised.
    pub fn json_mut(&mut self) -> serde_json::Result<&mut Value> {
        match &mut self.json {
            Some(json) => Ok(json),
            json @ None => Ok(json.insert(self.body.to_json()?)),
        }
    }

    /// Returns the body if a hook asked for it. `None`: the body is unchanged.
    pub fn into_json(self) -> Option<Value> {
        self.json
    }
}
