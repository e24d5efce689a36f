//! Reasoning effort of a model for a thinking level.

use turnwheel_conversation::settings::ThinkingLevel;

/// Returns the effort that the model supports and that is nearest to the level, by the provider's
/// table of September 2026. `None` if the model family has no value for it: nothing is sent and the
/// model's default applies.
pub fn nearest_effort(model: &str, level: ThinkingLevel) -> Option<&'static str> {
    let steps = supported_efforts(model);
    if level == ThinkingLevel::Off {
        return steps.contains(&"none").then_some("none");
    }
    let wanted = effort_rank(effort_name(level));
    steps.iter().copied().filter(|step| *step != "none").min_by_key(|step| {
        let distance = effort_rank(step).abs_diff(wanted);
        // Of two equally near efforts the lower wins: it costs less.
        (distance, effort_rank(step))
    })
}

/// Returns the levels with an effort of their own, and `off`.
pub(crate) fn supported_levels(model: &str) -> Vec<ThinkingLevel> {
    use ThinkingLevel::{High, Low, Max, Medium, Minimal, Off, Xhigh};
    let steps = supported_efforts(model);
    let has_effort = |level: &ThinkingLevel| *level == Off || steps.contains(&effort_name(*level));
    [Off, Minimal, Low, Medium, High, Xhigh, Max].into_iter().filter(has_effort).collect()
}

/// True if a request with this effort may ask for parallel tool calls.
pub(crate) fn allows_parallel_calls(effort: Option<&str>) -> bool {
    effort != Some("minimal")
}

fn supported_efforts(model: &str) -> &'static [&'static str] {
    let version = gpt_version(model);
    if model.starts_with("gpt-5-pro") {
        &["high"]
    } else if model.contains("-pro") && version.is_some() {
        &["medium", "high", "xhigh"]
    } else if model.contains("codex") && version < Some((5, 2)) {
        if model.contains("codex-max") {
            &["none", "low", "medium", "high", "xhigh"]
        } else {
            &["low", "medium", "high"]
        }
    } else {
        match version {
            None => &["low", "medium", "high"],
            Some((5, 0)) => &["minimal", "low", "medium", "high"],
            Some((5, 1)) => &["none", "low", "medium", "high"],
            Some((5, minor)) if minor < 6 => &["none", "low", "medium", "high", "xhigh"],
            Some(_) => &["none", "low", "medium", "high", "xhigh", "max"],
        }
    }
}

/// Parses the version of a GPT model: `gpt-5.4-mini` is (5, 4), `gpt-6-sol` is (6, 0).
fn gpt_version(model: &str) -> Option<(u32, u32)> {
    let rest = model.strip_prefix("gpt-")?;
    let number = rest.split('-').next()?;
    let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
    Some((major.parse().ok().filter(|major| *major >= 5)?, minor.parse().ok()?))
}

fn effort_name(level: ThinkingLevel) -> &'static str {
    match level {
        ThinkingLevel::Off => "none",
        ThinkingLevel::Minimal => "minimal",
        ThinkingLevel::Low => "low",
        ThinkingLevel::Medium => "medium",
        ThinkingLevel::High => "high",
        ThinkingLevel::Xhigh => "xhigh",
        ThinkingLevel::Max => "max",
    }
}

fn effort_rank(step: &str) -> usize {
    ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
        .iter()
        .position(|known| *known == step)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_level_becomes_nearest_supported_effort() {
        use ThinkingLevel::{High, Low, Max, Medium, Minimal, Off, Xhigh};
        let cases = [
            ("gpt-5", Off, None),
            ("gpt-5", Minimal, Some("minimal")),
            ("gpt-5-mini", Xhigh, Some("high")),
            ("gpt-5-codex", Minimal, Some("low")),
            ("gpt-5-pro", Low, Some("high")),
            ("gpt-5.4-pro", Minimal, Some("medium")),
            ("gpt-5.1", Off, Some("none")),
            ("gpt-5.1", Minimal, Some("low")),
            ("gpt-5.1", Xhigh, Some("high")),
            ("gpt-5.1-codex-max", Max, Some("xhigh")),
            ("gpt-5.3-codex", Xhigh, Some("xhigh")),
            ("gpt-5.4", Max, Some("xhigh")),
            ("gpt-5.6-sol", Max, Some("max")),
            ("gpt-6.1-terra", Off, Some("none")),
            ("o3", Off, None),
            ("o3", Max, Some("high")),
            ("deepseek-v4-pro", Medium, Some("medium")),
            ("gpt-5.10", High, Some("high")),
        ];
        for (model, level, expected) in cases {
            assert_eq!(nearest_effort(model, level), expected, "{model} {level:?}");
        }
    }
}
