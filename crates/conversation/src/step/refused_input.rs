//! One more model call without the part of the input that the service refused.

use crate::input_repair::RefusedInput;
use crate::phase::Phase;
use crate::step::next::Next;
use crate::transition::Transition;

/// Calls that a prompt may repeat without a tool or response schema. A service refuses one schema after
/// another, and those calls cost nothing.
const SCHEMA_REPAIRS_MAX: u32 = 16;

/// True if one more call without the refused part may complete the prompt: once after each complete
/// response, or [`SCHEMA_REPAIRS_MAX`] times.
pub(super) fn can_repeat(transition: &Transition, refused: &RefusedInput) -> bool {
    let Some(run) = transition.head.prompt.as_ref() else { return false };
    let is_within_bound = if refused.repair.part.is_schema() {
        run.schema_repairs < SCHEMA_REPAIRS_MAX
    } else {
        !run.has_repaired_input
    };
    refused.is_repeatable && is_within_bound
}

pub(super) fn repeat_without_refused_part(
    transition: &mut Transition,
    refused: &RefusedInput,
) -> Next {
    if let Some(run) = &mut transition.head.prompt {
        if refused.repair.part.is_schema() {
            run.schema_repairs += 1;
        } else {
            run.has_repaired_input = true;
        }
    }
    transition.head.phase = Phase::MODEL_CALL;
    Next::Wait
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::PromptState;
    use crate::input_repair::{InputRepair, RefusedPart, RefusedTool};
    use crate::step::Input;
    use crate::tests::{apply_inputs, prompt, response, response_with, transition};

    fn refusal(part: RefusedPart, tool: Option<&str>) -> Input {
        let Input::ResponseReceived(mut response) = response_with(&[], "error") else {
            panic!("not a response")
        };
        let tool = tool.map(|name| RefusedTool { name: name.to_owned(), revision: "1".to_owned() });
        let repair =
            InputRepair { part, from_seq: 0, to_seq: 0, images_max: None, tool, schema: None };
        response.refused = Some(RefusedInput { repair, is_repeatable: true, is_too_large: false });
        Input::ResponseReceived(response)
    }

    fn refused_tools(count: u32) -> impl Iterator<Item = Input> {
        (0..count).map(|number| refusal(RefusedPart::Tool, Some(&format!("t{number}"))))
    }

    /// State of the prompt after these refusals and a complete response, and the number of repairs.
    fn run(refusals: impl Iterator<Item = Input>) -> (PromptState, usize) {
        let mut transition = transition();
        let mut inputs = vec![prompt("go")];
        inputs.extend(refusals);
        inputs.push(response(&["done"]));
        apply_inputs(&mut transition, &inputs);
        let texts = transition.entries.iter().map(|entry| serde_json::to_string(entry).unwrap());
        let repairs = texts.filter(|text| text.contains("inputRepair")).count();
        (transition.head.prompts.last().unwrap().state, repairs)
    }

    #[test]
    fn prompt_leaves_out_many_tools_within_bound() {
        assert_eq!(run(refused_tools(16)), (PromptState::Completed, 16));
        assert_eq!(run(refused_tools(17)), (PromptState::Failed, 17), "the last one is recorded");
    }

    #[test]
    fn refused_schemas_do_not_count_as_refused_content() {
        let schema = refusal(RefusedPart::ResponseSchema, None);
        let result = || refusal(RefusedPart::ToolResults, None);
        let refusals = refused_tools(2).chain([result(), schema]);
        assert_eq!(run(refusals), (PromptState::Completed, 4));
        assert_eq!(run([result(), result()].into_iter()), (PromptState::Failed, 2));
    }
}
