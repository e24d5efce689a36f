//! Which result belongs to which call. Other programs store messages between the two.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use crate::message::Message;

/// A call by its response and its number there.
#[derive(Clone, Copy)]
struct CallPlace {
    response: usize,
    number: usize,
}

/// Calls with one id that have no result yet, and results that came before any call with it.
#[derive(Default)]
struct OpenCalls {
    /// One queue for each response, the newest last. Services may use an id again in a later
    /// response.
    calls: Vec<VecDeque<CallPlace>>,
    has_call: bool,
    early: VecDeque<usize>,
}

impl OpenCalls {
    fn add(&mut self, call: CallPlace) {
        self.has_call = true;
        match self.calls.last_mut() {
            Some(calls) if calls.back().is_some_and(|last| last.response == call.response) => {
                calls.push_back(call);
            }
            Some(_) | None => self.calls.push(VecDeque::from([call])),
        }
    }

    /// The first open call of the newest response.
    fn take(&mut self) -> Option<CallPlace> {
        let calls = self.calls.last_mut()?;
        let call = calls.pop_front();
        if calls.is_empty() {
            self.calls.pop();
        }
        call
    }
}

/// The index of the result of each call, by the index of its response. A call gets a later result
/// with its id, or else a result that came before all calls with its id. After a compaction such a
/// result belongs to a summarised call.
pub(super) fn find_results(messages: &[Cow<'_, Message>]) -> HashMap<usize, Vec<Option<usize>>> {
    let mut found: HashMap<usize, Vec<Option<usize>>> = HashMap::new();
    let mut open: HashMap<&str, OpenCalls> = HashMap::new();
    let is_compacted =
        messages.first().is_some_and(|it| matches!(**it, Message::CompactionSummary(_)));
    let set = |found: &mut HashMap<usize, Vec<Option<usize>>>, call: CallPlace, result| {
        let results = found.get_mut(&call.response);
        if let Some(place) = results.and_then(|results| results.get_mut(call.number)) {
            *place = Some(result);
        }
    };
    for (at, message) in messages.iter().enumerate() {
        match message.as_ref() {
            Message::Assistant(response) if !response.is_failed() => {
                let mut count = 0;
                for (number, call) in response.tool_calls().enumerate() {
                    let calls = open.entry(&call.id).or_default();
                    calls.add(CallPlace { response: at, number });
                    count = number + 1;
                }
                found.insert(at, vec![None; count]);
            }
            Message::ToolResult(result) => {
                let calls = open.entry(&result.tool_call_id).or_default();
                match calls.take() {
                    Some(call) => set(&mut found, call, at),
                    None if !calls.has_call && !is_compacted => calls.early.push_back(at),
                    None => {}
                }
            }
            Message::Assistant(_)
            | Message::User(_)
            | Message::BashExecution(_)
            | Message::Custom(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_)
            | Message::Other(_) => {}
        }
    }
    for calls in open.values_mut() {
        while let Some(result) = calls.early.pop_front()
            && let Some(call) = calls.take()
        {
            set(&mut found, call, result);
        }
    }
    found
}
