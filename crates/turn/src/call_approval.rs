//! The approval of a tool call: what it is bound to, and one request for the tool and the extensions
//! that require it.

use turnwheel_conversation::approval_binding::CallHashes;
use turnwheel_conversation::content::ToolCall;
use turnwheel_conversation::step::ApprovalSpec;
use turnwheel_extensions::ApprovalRequest;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_tools::{ApprovalRequirement, CallableTool};

/// An approval that an extension requires.
#[derive(Debug)]
pub(crate) struct ExtensionApproval {
    pub extension: String,
    pub request: ApprovalRequest,
}

/// The binding of a call, as its tool would send it now, to the extensions that require an approval.
pub(crate) fn bind(
    tool: &dyn CallableTool,
    call: &ToolCall,
    required: &[ExtensionApproval],
) -> String {
    let revision = tool.definition().revision.as_str();
    let arguments = call.arguments.canonical_text();
    let hashes = CallHashes {
        call: sha256_hex(format!("{}\n{revision}\n{arguments}", call.name).as_bytes()),
        definition: hash_prefix(revision),
        arguments: hash_prefix(&arguments),
        destination: tool.destination().hash,
    };
    hashes.bind(required.iter().map(|it| hash_prefix(&it.extension)))
}

/// Identifies calls of a tool with equal arguments in every deployment.
pub(crate) fn call_fingerprint(call: &ToolCall) -> String {
    sha256_hex(format!("{}\n{}", call.name, call.arguments.canonical_text()).as_bytes())
}

/// The first 16 hex digits of the text's SHA-256.
fn hash_prefix(text: &str) -> String {
    sha256_hex(text.as_bytes()).chars().take(16).collect()
}

/// One request for all required approvals: the tool's comes first, then those of the extensions in
/// their order. `None` if none is required.
pub(crate) fn merge(
    tool: Option<ApprovalRequirement>,
    extensions: Vec<ExtensionApproval>,
    now: Timestamp,
) -> Option<ApprovalSpec> {
    let of_tool = tool.map(|tool| ApprovalRequest {
        reason: tool.reason,
        approvers: tool.approvers,
        is_requester_excluded: tool.is_requester_excluded,
        expires_after: tool.expires_after,
        refusal: None,
    });
    let all = of_tool.into_iter().chain(extensions.into_iter().map(|it| it.request));
    let merged = all.reduce(merge_two)?;
    let owner = || vec!["owner".to_owned()];
    Some(ApprovalSpec {
        reason: merged.reason,
        approvers: if merged.approvers.is_empty() { owner() } else { merged.approvers },
        not_requester: merged.is_requester_excluded,
        expires_at: now.plus(merged.expires_after),
        refusal: merged.refusal,
    })
}

fn merge_two(first: ApprovalRequest, second: ApprovalRequest) -> ApprovalRequest {
    ApprovalRequest {
        reason: format!("{}\n\n{}", first.reason, second.reason),
        approvers: common_approvers(first.approvers, second.approvers),
        is_requester_excluded: first.is_requester_excluded || second.is_requester_excluded,
        expires_after: first.expires_after.min(second.expires_after),
        refusal: first.refusal.or(second.refusal),
    }
}

/// Never contains more than `first`, unless `first` is empty.
fn common_approvers(first: Vec<String>, second: Vec<String>) -> Vec<String> {
    if first.is_empty() {
        return second;
    }
    let common: Vec<String> = first.iter().filter(|it| second.contains(it)).cloned().collect();
    if common.is_empty() { first } else { common }
}
