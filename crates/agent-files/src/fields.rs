//! Readers of members of a YAML map. Unknown keys and wrong kinds become findings, and reading
//! continues.

use std::time::Duration;

use crate::mistakes::{Findings, suggest_name};
use crate::yaml::{Member, Node, Yaml};
use turnwheel_platform::clock::parse_duration;

/// The longest duration that a member may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct DurationMax {
    pub(super) time: Duration,
    /// As files write it.
    pub(super) text: &'static str,
}

/// Keys of other formats, each with its replacement here.
pub(super) type Remedies<'r> = &'r [(&'r str, &'r str)];

/// Returns the members of `node` if it is a map. Keys that are not in `known` become findings.
pub(super) fn read_members<'n>(
    node: &'n Node,
    map_name: &str,
    known: &[&str],
    findings: &mut Findings,
) -> &'n [Member] {
    read_members_with_remedies(node, map_name, known, &[], findings)
}

/// Like [`read_members`]. The finding of a key in `remedies` contains its replacement.
pub(super) fn read_members_with_remedies<'n>(
    node: &'n Node,
    map_name: &str,
    known: &[&str],
    remedies: Remedies<'_>,
    findings: &mut Findings,
) -> &'n [Member] {
    let Yaml::Map(members) = &node.yaml else {
        findings.add(
            node.position,
            format!("{map_name} is a map of keys and values, not {}", node.kind()),
        );
        return &[];
    };
    for member in members {
        if !known.contains(&member.key.as_str()) {
            let hint = find_remedy(&member.key, remedies)
                .unwrap_or_else(|| suggest_name(&member.key, known.iter().copied()));
            findings.add(
                member.position,
                format!("unknown key `{}` of {map_name}: {hint}", member.key),
            );
        }
    }
    members
}

/// Returns the replacement of a word, if it is in `remedies`.
pub(super) fn find_remedy(word: &str, remedies: Remedies<'_>) -> Option<String> {
    let found = remedies.iter().find(|(name, _)| *name == word);
    found.map(|(_, remedy)| (*remedy).to_owned())
}

pub(super) fn read_text<'n>(member: &'n Member, findings: &mut Findings) -> Option<&'n str> {
    if let Yaml::Text(text) = &member.value.yaml {
        return Some(text);
    }
    let hint = match member.value.yaml {
        Yaml::Bool(_) | Yaml::Number(_) => ": write it in quotes",
        Yaml::Null | Yaml::Text(_) | Yaml::List(_) | Yaml::Map(_) => "",
    };
    let kind = member.value.kind();
    findings
        .add(member.value.position, format!("`{}` must be text and is {kind}{hint}", member.key));
    None
}

pub(super) fn read_bool(member: &Member, findings: &mut Findings) -> Option<bool> {
    if let Yaml::Bool(flag) = member.value.yaml {
        return Some(flag);
    }
    findings.add(member.value.position, format!("`{}` must be true or false", member.key));
    None
}

pub(super) fn read_choice<T: Copy>(
    member: &Member,
    choices: &[(&str, T)],
    findings: &mut Findings,
) -> Option<T> {
    let given = read_text(member, findings)?;
    let found = choices.iter().find(|(name, _)| *name == given);
    if found.is_none() {
        let hint = suggest_name(given, choices.iter().map(|(name, _)| *name));
        let reason = format!("`{given}` is not a value of `{}`: {hint}", member.key);
        findings.add(member.value.position, reason);
    }
    found.map(|(_, value)| *value)
}

/// Reads a duration such as `500ms`, `30s`, `2m`, `24h` or `7d`: more than 0, at most `max`.
pub(super) fn read_duration(
    member: &Member,
    max: DurationMax,
    findings: &mut Findings,
) -> Option<Duration> {
    let given = match &member.value.yaml {
        Yaml::Text(given) => given.as_str(),
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::List(_) | Yaml::Map(_) => "",
    };
    let key = &member.key;
    let Some(span) = parse_duration(given) else {
        let units = "write a whole number and its unit, like 500ms, 30s, 2m, 24h or 7d";
        findings.add(member.value.position, format!("`{key}` is not a duration: {units}"));
        return None;
    };
    if span.is_zero() || span > max.time {
        let reason = format!("`{key}` must be more than 0 and at most {}", max.text);
        findings.add(member.value.position, reason);
        return None;
    }
    Some(span)
}

/// The texts of a list with their nodes. `expected` describes the list in a finding.
pub(super) fn read_texts<'n>(
    member: &'n Member,
    expected: &str,
    findings: &mut Findings,
) -> Vec<(&'n str, &'n Node)> {
    let items = match &member.value.yaml {
        Yaml::List(items) => items.as_slice(),
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) | Yaml::Text(_) | Yaml::Map(_) => &[],
    };
    if items.is_empty() {
        findings.add(member.value.position, format!("`{}` is {expected}", member.key));
    }
    let mut texts = Vec::new();
    for item in items {
        match &item.yaml {
            Yaml::Text(text) if !text.is_empty() => texts.push((text.as_str(), item)),
            Yaml::Text(_)
            | Yaml::Null
            | Yaml::Bool(_)
            | Yaml::Number(_)
            | Yaml::List(_)
            | Yaml::Map(_) => {
                let kind = if matches!(item.yaml, Yaml::Text(_)) { "empty" } else { item.kind() };
                let reason = format!("an item of `{}` must be text and is {kind}", member.key);
                findings.add(item.position, reason);
            }
        }
    }
    texts
}
