//! The approval of a tool call: one request for the tool and the extensions that require it.

use crate::agent::approval_binding;
use crate::agent::step::ApprovalSpec;
use crate::clock::Timestamp;
use crate::digest::sha256_hex;
use crate::extensions::ApprovalRequest;
use crate::tools::ApprovalRequirement;

/// An approval that an extension requires.
#[derive(Debug)]
pub(crate) struct ExtensionApproval {
    pub(crate) extension: String,
    pub(crate) request: ApprovalRequest,
}

/// Hash of the tool call, and the extensions that require an approval, as one binding.
pub(crate) fn bind(call: &str, required: &[ExtensionApproval]) -> String {
    let name_hash = |it: &ExtensionApproval| {
        sha256_hex(it.extension.as_bytes()).chars().take(16).collect::<String>()
    };
    approval_binding::with_extensions(call, required.iter().map(name_hash))
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
