//! Prompts for the model that writes a summary.

/// System prompt, instead of the agent's instructions.
pub const SYSTEM_PROMPT: &str = "You are a context summarization assistant. Your task is to read a conversation between a user and an AI \
     assistant, then produce a structured summary following the exact format specified.\n\nDo NOT continue the conversation. Do NOT \
     respond to any questions in the conversation. ONLY output the structured summary.";

/// Separates the summary of the history from that of the divided turn.
pub(crate) const SPLIT_TURN: &str = "\n\n---\n\n**Turn Context (split turn):**\n\n";

/// Replaces the history's summary if the divided turn is the first.
pub const NO_HISTORY: &str = "No prior history.";

const FIRST: &str = "The messages above are a conversation to summarize. Create a structured context checkpoint summary that another LLM \
     will use to continue the work.";

const UPDATE: &str = "The messages above are NEW conversation messages to incorporate into the existing summary provided in \
     <previous-summary> tags.\n\nUpdate the existing structured summary with new information. RULES:\n\
     - PRESERVE all existing information from the previous summary\n\
     - ADD new progress, decisions, and context from the new messages\n\
     - UPDATE the Progress section: move items from \"In Progress\" to \"Done\" when completed\n\
     - UPDATE \"Next Steps\" based on what was accomplished\n\
     - PRESERVE exact file paths, function names, and error messages\n\
     - If something is no longer relevant, you may remove it";

const FORMAT: &str = "Use this EXACT format:

## Goal
[What is the user trying to accomplish? Can be multiple items if the session covers different tasks.]

## Constraints & Preferences
- [Any constraints, preferences, or requirements mentioned by user]
- [Or \"(none)\" if none were mentioned]

## Progress
### Done
- [x] [Completed tasks/changes]

### In Progress
- [ ] [Current work]

### Blocked
- [Issues preventing progress, if any]

## Key Decisions
- **[Decision]**: [Brief rationale]

## Next Steps
1. [Ordered list of what should happen next]

## Critical Context
- [Any data, examples, or references needed to continue]
- [Or \"(none)\" if not applicable]

Keep each section concise. Preserve exact file paths, function names, and error messages.";

const PREFIX: &str =
    "This is the PREFIX of a turn that was too large to keep. The SUFFIX (recent work) is retained.

Summarize the prefix to provide context for the retained suffix:

## Original Request
[What did the user ask for in this turn?]

## Early Progress
- [Key decisions and work done in the prefix]

## Context for Suffix
- [Information needed to understand the retained recent work]

Be concise. Focus on what's needed to understand the kept suffix.";

const BRANCH: &str =
    "Create a structured summary of this conversation branch for context when returning later.

Use this EXACT format:

## Goal
[What was the user trying to accomplish in this branch?]

## Constraints & Preferences
- [Any constraints, preferences, or requirements mentioned]
- [Or \"(none)\" if none were mentioned]

## Progress
### Done
- [x] [Completed tasks/changes]

### In Progress
- [ ] [Work that was started but not finished]

### Blocked
- [Issues preventing progress, if any]

## Key Decisions
- **[Decision]**: [Brief rationale]

## Next Steps
1. [What should happen next to continue this work]

Keep each section concise. Preserve exact file paths, function names, and error messages.";

/// Precedes the model's summary of a branch.
pub const BRANCH_PREAMBLE: &str = "The user explored a different conversation branch before returning here.\nSummary of that exploration:\n\n";

/// The task of a summary of a branch, without the conversation.
pub fn branch_prompt(focus: Option<&str>) -> String {
    let focus = focus.map(|focus| format!("\n\nAdditional focus: {focus}")).unwrap_or_default();
    format!("{BRANCH}{focus}")
}

/// The task of a summary, without the conversation.
pub fn summary_prompt(previous: Option<&str>, focus: Option<&str>) -> String {
    let (task, previous) = match previous {
        Some(previous) => {
            (UPDATE, format!("<previous-summary>\n{previous}\n</previous-summary>\n\n"))
        }
        None => (FIRST, String::new()),
    };
    let focus = focus.map(|focus| format!("\n\nAdditional focus: {focus}")).unwrap_or_default();
    format!("{previous}{task}\n\n{FORMAT}{focus}")
}

/// The task of a summary of a divided turn's first part.
pub fn prefix_prompt() -> String {
    PREFIX.to_owned()
}

/// The user message of a summary request.
pub fn request_text(conversation: &str, asked: &str) -> String {
    format!("<conversation>\n{conversation}\n</conversation>\n\n{asked}")
}
