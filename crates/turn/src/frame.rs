//! The frame of a model call: what the model sees beside the messages. This module is the only one
//! that makes it, so that requests, estimates and limits agree.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use crate::context::TurnContext;
use turnwheel_conversation::compaction::TokenCounter;
use turnwheel_conversation::compaction::prospects::FixedPart;
use turnwheel_conversation::frame_entry::{
    Contribution, CurrentFrame, FrameEntry, FrameInput, OfferedTool,
};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::input_repair::{InputRepairs, RefusedTool};
use turnwheel_conversation::settings::LoopKind;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::prepare::{ALL_ITEMS_BYTES_MAX, ITEMS_BYTES_MAX, PrepareOutput};
use turnwheel_model::ToolOffer;
use turnwheel_model::protocol::system_prompt::{FINAL_ITERATION, PromptParts};
use turnwheel_model::tokens::count_tokens;
use turnwheel_platform::digest::{IncrementalSha256, sha256_hex};
use turnwheel_record::frame_documents::FrameDocument;
use turnwheel_tools::CallableTool;

/// Author of the texts of the loop `protocol`.
const PROTOCOL: &str = "protocol";
/// Hex digits of the hash of a response schema.
const HASH_DIGITS: usize = 16;

/// Request of a model call without its messages.
#[derive(Debug)]
pub struct Frame<'c> {
    /// The system prompt of the agent or the run.
    own_text: &'c str,
    /// The active tools of the agent.
    own_tools: &'c [Arc<dyn CallableTool>],
    /// The activated tools of plugins.
    plugin_tools: Vec<&'c Arc<dyn CallableTool>>,
    /// Names of tools that are not offered.
    left_out: Vec<String>,
    /// Texts of plugins, in the order in which the model receives them.
    contributions: Vec<Contribution>,
    /// Number of contributions that are not volatile.
    stable_count: usize,
    response_schema: Option<&'c Value>,
    leaves_out_response_schema: bool,
    /// True in the loop `protocol`: the system prompt describes the tools.
    is_protocol: bool,
    /// `None`: no security section.
    security: Option<&'c str>,
    /// True if the agent has tools whose definitions may change.
    has_remote_tools: bool,
}

impl TurnContext {
    /// The agent's own system prompt. Empty without an agent.
    pub(crate) fn own_system_prompt(&self) -> Arc<str> {
        let agent = self.agent.as_ref();
        agent.map(|agent| agent.system_prompt(self.tools())).unwrap_or_default()
    }

    /// `None`: the run has the agent's own.
    pub(crate) fn set_run_prompt(&mut self, run_prompt: Option<Arc<str>>) {
        self.system_prompt = run_prompt.unwrap_or_else(|| self.own_system_prompt());
    }

    /// The frame of the agent and its active tools. Empty without an agent.
    pub(crate) fn own_frame(&self) -> Frame<'_> {
        let agent = self.agent.as_ref().ok();
        Frame {
            own_text: &self.system_prompt,
            own_tools: self.tools(),
            plugin_tools: Vec::new(),
            left_out: Vec::new(),
            contributions: self.missing_tools(),
            stable_count: 0,
            leaves_out_response_schema: false,
            is_protocol: self.loop_kind() == LoopKind::Protocol,
            security: agent.and_then(|agent| agent.security.text(self.loop_kind())),
            has_remote_tools: self.has_remote_tools(),
            response_schema: agent.and_then(|agent| agent.response_schema.as_ref()),
        }
    }

    /// Tokens of the frame of the next model call, before plugins prepare it: those of the last
    /// frame, or of all tools.
    pub(crate) fn frame_tokens(&self, head: &Head, count: TokenCounter<'_>) -> u64 {
        let prompt_seq = head.prompt.as_ref().and_then(|run| run.system_prompt_seq);
        let is_known =
            |frame: &&CurrentFrame| !frame.is_own && frame.system_prompt_seq == prompt_seq;
        let current = head.frame.as_ref().filter(is_known);
        current.map_or_else(|| self.full_frame().tokens(count), |frame| frame.tokens)
    }

    /// The same tokens, and how they divide among the instructions and the tools.
    pub(crate) fn fixed_part(&self, head: &Head, count: TokenCounter<'_>) -> FixedPart {
        let full = self.full_frame();
        let mut tools: Vec<(String, u64)> = full
            .native_offers()
            .map(|offer| (offer.name.to_owned(), count_offer(&offer, count)))
            .collect();
        tools.sort_by_key(|(_, tokens)| std::cmp::Reverse(*tokens));
        FixedPart {
            total: self.frame_tokens(head, count),
            instructions: count(&full.system().unwrap_or_default()),
            tools,
        }
    }

    /// Bytes of the largest frame that plugins can prepare.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        let items_max = (self.plugins().len() * ITEMS_BYTES_MAX).min(ALL_ITEMS_BYTES_MAX);
        self.full_frame().bytes() + items_max
    }

    /// The frame with all tools of the plugins.
    fn full_frame(&self) -> Frame<'_> {
        let mut frame = self.own_frame();
        frame.add_tools(self.plugins().iter().flat_map(|plugin| plugin.tools()));
        frame
    }
}

impl<'c> Frame<'c> {
    /// Adds the output of a plugin. Its tools keep the order of their declaration.
    pub fn add(&mut self, plugin: &'c RegisteredPlugin, output: PrepareOutput) {
        let tools = plugin.tools().iter();
        self.add_tools(tools.filter(|tool| output.tools.contains(&tool.definition().name)));
        for item in output.items {
            let contribution = Contribution {
                by: plugin.name().to_owned(),
                text: item.text,
                is_volatile: item.is_volatile,
            };
            if contribution.is_volatile {
                self.contributions.push(contribution);
            } else {
                self.contributions.insert(self.stable_count, contribution);
                self.stable_count += 1;
            }
        }
    }

    /// Adds tools of plugins. A plugin may activate an inactive tool of the agent; an active one is
    /// offered already.
    fn add_tools(&mut self, tools: impl Iterator<Item = &'c Arc<dyn CallableTool>>) {
        let own = self.own_tools;
        let is_own = |name: &str| own.iter().any(|tool| tool.definition().name == name);
        self.plugin_tools.extend(tools.filter(|tool| !is_own(&tool.definition().name)));
    }

    /// The system prompt: the instructions and the texts of plugins, joined by blank lines. In the
    /// loop `protocol` the protocol and the tools, too. `None`: it is empty.
    pub fn system(&self) -> Option<Cow<'c, str>> {
        let (stable, volatile) =
            self.contributions.split_at(self.stable_count.min(self.contributions.len()));
        let mut parts = vec![self.own_text];
        parts.extend(stable.iter().map(|item| item.text.as_str()));
        let volatile = volatile.iter().map(|item| item.text.as_str());
        let system = if self.is_protocol {
            let prompt = PromptParts {
                security: self.security,
                instructions: parts,
                tools: self.offers().collect(),
                response_schema: self.response_schema,
                volatile: volatile.collect(),
            };
            Cow::Owned(prompt.to_text())
        } else if self.contributions.is_empty() && self.security.is_none() {
            Cow::Borrowed(self.own_text)
        } else {
            parts.extend(self.security);
            parts.extend(volatile);
            parts.retain(|text| !text.is_empty());
            Cow::Owned(parts.join("\n\n"))
        };
        Some(system).filter(|text| !text.is_empty())
    }

    /// Adds the text of the last iteration (PC-15).
    pub(crate) fn add_final_iteration(&mut self) {
        let (by, text) = (PROTOCOL.to_owned(), FINAL_ITERATION.to_owned());
        self.contributions.push(Contribution { by, text, is_volatile: true });
    }

    /// Leaves out the tools and the response schema whose schemas the model service refused.
    pub(crate) fn leave_out(&mut self, repairs: &InputRepairs) {
        if self.response_schema_hash().is_some_and(|hash| repairs.refuse_schema(&hash)) {
            self.response_schema = None;
            self.leaves_out_response_schema = true;
        }
        for RefusedTool { name, revision } in repairs.refused_tools() {
            let is_same = |(known, current): (&str, &str)| known == name && current == revision;
            if self.request_tools().any(is_same) {
                self.left_out.push(name.clone());
            }
        }
    }

    fn tools(&self) -> impl Iterator<Item = &'c Arc<dyn CallableTool>> {
        let tools = self.own_tools.iter().chain(self.plugin_tools.iter().copied());
        tools.filter(|tool| !self.left_out.contains(&tool.definition().name))
    }

    /// Name and revision of each tool, in the order of the request.
    pub(crate) fn request_tools(&self) -> impl Iterator<Item = (&'c str, &'c str)> {
        let definitions = self.tools().map(|tool| tool.definition());
        definitions.map(|definition| (definition.name.as_str(), definition.revision.as_str()))
    }

    /// The tools as the model receives them.
    pub fn offers(&self) -> impl Iterator<Item = ToolOffer<'c>> {
        self.tools().map(|tool| tool.definition()).map(|definition| ToolOffer {
            name: &definition.name,
            description: &definition.description,
            parameters: &definition.parameters,
            strict: definition.is_strict,
        })
    }

    /// The tools that are not part of the system prompt.
    fn native_offers(&self) -> impl Iterator<Item = ToolOffer<'c>> {
        self.offers().filter(|_| !self.is_protocol)
    }

    /// Hash of the schema that the request has.
    pub(crate) fn response_schema_hash(&self) -> Option<String> {
        let mut hash = sha256_hex(self.response_schema?.to_string().as_bytes());
        hash.truncate(HASH_DIGITS);
        Some(hash)
    }

    /// JSON Schema of the final response.
    pub fn response_schema(&self) -> Option<&'c Value> {
        self.response_schema
    }

    /// The part of the response's commit that records the frame. `None`: it is the one in the head.
    pub(crate) fn to_input(
        &self,
        head: &Head,
        revision: &str,
        document: &FrameDocument,
    ) -> Option<FrameInput> {
        let system_prompt_seq = head.prompt.as_ref().and_then(|run| run.system_prompt_seq);
        let hash = self.hash(&document.sha256, system_prompt_seq);
        let stored = document.is_storable().then_some(&document.sha256);
        let current = head.frame.as_ref().filter(|frame| frame.hash == hash);
        if current.is_some_and(|frame| frame.document.as_ref() == stored) {
            return None;
        }
        let is_own = !self.has_remote_tools
            && !self.is_protocol
            && self.contributions.is_empty()
            && self.plugin_tools.is_empty()
            && self.left_out.is_empty()
            && system_prompt_seq.is_none();
        let tools = self.request_tools().map(|(name, revision)| OfferedTool {
            name: name.to_owned(),
            revision: revision.to_owned(),
        });
        // The tokens of the agent's own frame are counted when they are needed: the tables of the
        // tokenizer take 60 MB.
        let count = || if is_own { 0 } else { self.tokens(&count_tokens) };
        let tokens = current.map_or_else(count, |frame| frame.tokens);
        let entry = FrameEntry {
            hash,
            document: stored.cloned(),
            revision: revision.to_owned(),
            system_prompt_seq,
            tools: tools.collect(),
            contributions: self.contributions.clone(),
            leaves_out_response_schema: self.leaves_out_response_schema,
            extra: Extra::new(),
        };
        Some(FrameInput { entry, tokens, is_own, changed_tools: Vec::new() })
    }

    /// SHA-256 of the frame: of its document, the offered tools and the contributions.
    fn hash(&self, document: &str, system_prompt_seq: Option<u64>) -> String {
        let mut hash = IncrementalSha256::default();
        let mut add = |part: &[u8]| {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(document.as_bytes());
        // The document has the agent's own text.
        add(system_prompt_seq.map_or("", |_| self.own_text).as_bytes());
        add(&[u8::from(self.leaves_out_response_schema)]);
        for (name, revision) in self.request_tools() {
            add(name.as_bytes());
            add(revision.as_bytes());
        }
        add(&[]);
        for Contribution { by, text, is_volatile } in &self.contributions {
            add(by.as_bytes());
            add(text.as_bytes());
            add(&[u8::from(*is_volatile)]);
        }
        hash.finish()
    }

    pub fn tokens(&self, count: TokenCounter<'_>) -> u64 {
        let tools = self.native_offers().map(|offer| count_offer(&offer, count));
        count(&self.system().unwrap_or_default()) + tools.sum::<u64>()
    }

    pub fn bytes(&self) -> usize {
        let tools = self.native_offers().map(|offer| {
            offer.name.len() + offer.description.len() + offer.parameters.to_string().len()
        });
        let schema_bytes = self.response_schema.map_or(0, |schema| schema.to_string().len());
        self.system().map_or(0, |text| text.len()) + tools.sum::<usize>() + schema_bytes
    }
}

fn count_offer(offer: &ToolOffer<'_>, count: TokenCounter<'_>) -> u64 {
    count(offer.name) + count(offer.description) + count(&offer.parameters.to_string())
}
