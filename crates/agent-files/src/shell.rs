//! The key `shellApproval` of agent files.

use std::sync::Arc;

use crate::fields;
use crate::mistakes::Findings;
use crate::yaml::Node;
use turnwheel_tools::CallableTool;
use turnwheel_tools::shell::tool::{NAMES, ShellTool};

/// Reads `always` or `never`. With `never` the shell tools among `tools` require no approval;
/// guardrails and extensions still may.
pub(super) fn apply_shell_approval(
    node: &Node,
    tools: &mut [Arc<dyn CallableTool>],
    findings: &mut Findings,
) {
    const VALUES: [(&str, bool); 2] = [("always", true), ("never", false)];
    let Some(member) = node.find_member("shellApproval") else { return };
    let is_shell = |tool: &Arc<dyn CallableTool>| NAMES.contains(&tool.definition().name.as_str());
    if !tools.iter().any(is_shell) {
        findings.add(member.position, "`shellApproval` needs `bash` or `shell` among `tools`");
        return;
    }
    if fields::read_choice(member, &VALUES, findings) == Some(false) {
        for tool in tools.iter_mut().filter(|tool| is_shell(tool)) {
            *tool = Arc::new(ShellTool::without_approval(tool));
        }
    }
}
