//! The frame of a model call: what the model sees beside the messages. This module is the only one
//! that makes it, so that requests, estimates and limits agree.

use std::sync::Arc;

use serde_json::Value;

use crate::agent::compaction::TokenCounter;
use crate::model::ToolOffer;
use crate::tools::CallableTool;
use crate::turn::context::TurnContext;

/// Request of a model call without its messages.
pub(crate) struct Frame<'c> {
    system: &'c str,
    offered: &'c [Arc<dyn CallableTool>],
    response_schema: Option<&'c Value>,
}

impl TurnContext {
    /// The frame of the agent and its active tools. Empty without an agent.
    pub(crate) fn own_frame(&self) -> Frame<'_> {
        let agent = self.agent.as_ref().ok();
        Frame {
            system: agent.map_or("", |agent| &agent.instructions),
            offered: self.tools(),
            response_schema: agent.and_then(|agent| agent.response_schema.as_ref()),
        }
    }
}

impl<'c> Frame<'c> {
    /// The system prompt. `None`: it is empty.
    pub(crate) fn system(&self) -> Option<&'c str> {
        Some(self.system).filter(|text| !text.is_empty())
    }

    /// The tools as the model receives them.
    pub(crate) fn offers(&self) -> impl Iterator<Item = ToolOffer<'c>> + use<'c> {
        self.offered.iter().map(|tool| tool.definition()).map(|definition| ToolOffer {
            name: &definition.name,
            description: &definition.description,
            parameters: &definition.parameters,
            strict: definition.is_strict,
        })
    }

    /// JSON Schema of the final response.
    pub(crate) fn response_schema(&self) -> Option<&'c Value> {
        self.response_schema
    }

    pub(crate) fn tokens(&self, count: TokenCounter<'_>) -> u64 {
        let tools = self.offers().map(|offer| {
            count(offer.name) + count(offer.description) + count(&offer.parameters.to_string())
        });
        count(self.system) + tools.sum::<u64>()
    }

    pub(crate) fn bytes(&self) -> usize {
        let tools = self.offers().map(|offer| {
            offer.name.len() + offer.description.len() + offer.parameters.to_string().len()
        });
        let schema_bytes = self.response_schema.map_or(0, |schema| schema.to_string().len());
        self.system.len() + tools.sum::<usize>() + schema_bytes
    }
}
