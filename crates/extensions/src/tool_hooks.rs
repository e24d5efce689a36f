//! Inputs and results of the hooks of tool calls.

use std::time::Duration;

use serde_json::Value;

use turnwheel_conversation::content::Block;
use turnwheel_json::exact::AmbiguousNumber;
use turnwheel_json::raw::RawJson;
use turnwheel_tools::Arguments;
use turnwheel_tools::code::EXPIRY_DEFAULT;

/// A tool call that is about to start.
#[derive(Debug)]
pub struct PendingToolCall<'a> {
    pub tool_call_id: &'a str,
    pub tool_name: &'a str,
    pub arguments: &'a Arguments,
    /// Number of calls of the same model response.
    pub calls_count: usize,
}

/// Decision of an extension on a tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ToolCallDecision {
    /// The call starts, unless its tool or another extension decides otherwise.
    #[default]
    Allow,
    Block(CallBlock),
    /// The call runs with these arguments, an object of at most 4 KB as JSON. They are not checked
    /// with the schema of the tool. Later extensions, approvals and the tool see them. A number that
    /// is equal to one of the call keeps all its digits, also those beyond a float, and also where it
    /// has moved. If it could be several numbers of the call, the call is blocked.
    Change(Value),
    /// As `Change`, with each number as it is written. Of duplicate members the last one stays. JSON
    /// that some parsers reject blocks the call.
    ChangeText(RawJson),
    /// The call waits for an approval.
    RequireApproval(ApprovalRequest),
}

impl ToolCallDecision {
    /// The changed arguments of a call that has these. `None`: they stay.
    ///
    /// # Errors
    /// A number of the change could be several of the call: block the call.
    pub fn into_arguments(self, before: &Arguments) -> Result<Option<RawJson>, AmbiguousNumber> {
        match self {
            Self::Change(value) => before.changed_text(&value).map(Some),
            Self::ChangeText(text) => Ok(Some(text.with_unique_members())),
            Self::Allow | Self::Block(_) | Self::RequireApproval(_) => Ok(None),
        }
    }
}

/// Decision to block a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallBlock {
    /// Text for the model; `None`: "Tool execution was blocked".
    pub reason: Option<String>,
    /// True if the prompt can end without another model response. The prompt ends if this is true
    /// for every result of the batch.
    pub terminate: bool,
}

/// A tool call that has returned its result or failed.
#[derive(Debug)]
pub struct FinishedToolCall<'a> {
    pub tool_call_id: &'a str,
    pub tool_name: &'a str,
    pub arguments: &'a Arguments,
    /// The result that the model would read. Output beyond the limits of a result is already an
    /// artifact, of which this has the beginning.
    pub content: &'a [Block],
    pub details: Option<&'a RawJson>,
    pub is_error: bool,
}

/// Changes of an extension to the result of a tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultChanges {
    /// Replaces the content, and removes the structured content. `None`: unchanged.
    pub content: Option<Vec<Block>>,
    /// Replaces the details. `None`: unchanged.
    pub details: Option<RawJson>,
    /// `Some(true)` makes the result an error. `Some(false)` changes nothing: an error stands.
    pub is_error: Option<bool>,
}

/// An approval that an extension requires for a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRequest {
    /// Text for the approver. Open requests have 64 KB together, so it must be short.
    pub reason: String,
    /// `owner`, `link`, `role:NAME`. Empty: the approvers that the tool or another extension names,
    /// otherwise the owner. If several name approvers, those that all of them name can decide; if
    /// there is none, those of the tool or else of the first extension.
    pub approvers: Vec<String>,
    /// True if the user who started the prompt may not decide it.
    pub is_requester_excluded: bool,
    /// If several approvals are required, the earliest expiry counts.
    pub expires_after: Duration,
    /// Text for the model if the request is rejected or expires. `None`: the general texts. The
    /// first one counts.
    pub refusal: Option<String>,
}

impl ApprovalRequest {
    /// Requires a decision within seven days of an approver that the tool names, or else of the
    /// owner.
    pub fn because(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            approvers: Vec::new(),
            is_requester_excluded: false,
            expires_after: EXPIRY_DEFAULT,
            refusal: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use turnwheel_test_support::numbers::ANY_NUMBER;

    use super::*;

    /// The text of a call's arguments after a change, or the error.
    fn changed(written: &str, change: &dyn Fn(&mut Value)) -> Result<String, String> {
        let before = Arguments::from_text(RawJson::from_text(written).unwrap());
        let mut value = before.value.clone();
        change(&mut value);
        let changed = ToolCallDecision::Change(value).into_arguments(&before);
        changed.map(|text| text.unwrap().text().to_owned()).map_err(|error| error.to_string())
    }

    proptest::proptest! {
        /// One that has moved stays as written, or the change is refused.
        #[test]
        fn any_number_beside_a_change_stays_as_written(number in ANY_NUMBER) {
            // Validation refuses the call with any other number.
            proptest::prop_assume!(number.parse::<f64>().unwrap().is_finite());
            let both = format!("7,{number}");
            let text = |ids: &str, n: u32| {
                format!("{{\"ids\":[{ids}],\"amount\":{number},\"n\":{n}}}")
            };
            let sets_n = |value: &mut Value| value["n"] = Value::from(6);
            let changed_n = changed(&text(&both, 5), &sets_n);
            proptest::prop_assert_eq!(changed_n, Ok(text(&both, 6)));
            let removes_first = |value: &mut Value| {
                value["ids"].as_array_mut().unwrap().remove(0);
            };
            match changed(&text(&both, 5), &removes_first) {
                Ok(moved) => proptest::prop_assert_eq!(moved, text(&number, 5)),
                // A number that is short as a float may be one of the program's own.
                Err(error) => {
                    let shortest = format!("{:e}", number.parse::<f64>().unwrap());
                    let digits = shortest.split('e').next().unwrap();
                    let count = digits.chars().filter(char::is_ascii_digit).count();
                    proptest::prop_assert!(count <= 15, "{}", error);
                }
            }
        }
    }

    #[test]
    fn moved_items_keep_their_digits() {
        let removes_first = |value: &mut Value| {
            value["ids"].as_array_mut().unwrap().remove(0);
        };
        let ids = r#"{"ids":[12345678901234567890123,98765432109876543210987]}"#;
        let expected = r#"{"ids":[98765432109876543210987]}"#;
        assert_eq!(changed(ids, &removes_first), Ok(expected.to_owned()));
        let same_float = r#"{"ids":[12345678901234567890123,12345678901234567890124]}"#;
        let error = "`ids[0]` could be several numbers that differ only in digits beyond a float";
        assert_eq!(changed(same_float, &removes_first), Err(error.to_owned()));
    }
}
