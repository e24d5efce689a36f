//! `turnwheel agents --url`: the agents of a service, or one with its tools and instructions.

use turnwheel_json::exact::ExactJson;

use crate::client::{ApiRequest, Client, check_id};
use crate::error::TerminalError;
use crate::members::{items, json_line, member, pretty_json, text, texts};
use crate::sanitize::{clean_line, clean_text};
use crate::screen::{print_line, read_layout};
use crate::style::Style;
use crate::wrap::{Layout, wrap_text, wrap_verbatim};

const INDENT: &str = "  ";
const TOOL_INDENT: &str = "      ";

pub(crate) async fn print_agents(
    client: &Client,
    name: Option<&str>,
    is_json: bool,
) -> Result<(), TerminalError> {
    let path = match name {
        Some(name) => {
            check_id(name)?;
            format!("/api/agents/{name}")
        }
        None => "/api/agents".to_owned(),
    };
    let found = client.send_once(&ApiRequest::get(path)).await?;
    let rows = if is_json {
        vec![pretty_json(&found)]
    } else {
        render(read_layout(), &found, name.is_some())
    };
    // A reader that has gone needs no further rows.
    let _ = rows.iter().all(|row| print_line(row));
    Ok(())
}

fn render(layout: Layout, found: &ExactJson, is_detail: bool) -> Vec<String> {
    if is_detail {
        return render_detail(layout, found);
    }
    items(found, "items").iter().flat_map(|agent| render_agent(layout, agent)).collect()
}

fn render_agent(layout: Layout, agent: &ExactJson) -> Vec<String> {
    let mut rows = wrap_text(layout, "", &clean_line(text(agent, "name")), Style::BOLD);
    let facts = [
        ("", clean_text(text(agent, "description"))),
        ("model: ", clean_line(text(agent, "model"))),
        ("tools: ", clean_line(&texts(agent, "tools").join(", "))),
        ("problem: ", clean_text(text(agent, "problem"))),
    ];
    for (label, fact) in facts.iter().filter(|(_, fact)| !fact.is_empty()) {
        let style = if label.starts_with("problem") { Style::ALERT } else { Style::PLAIN };
        rows.extend(wrap_text(layout, INDENT, &format!("{label}{fact}"), style));
    }
    rows
}

fn render_detail(layout: Layout, agent: &ExactJson) -> Vec<String> {
    let mut rows = render_agent(layout, agent);
    for tool in items(agent, "toolDefinitions") {
        let title = format!("{}: {}", text(tool, "name"), text(tool, "description"));
        rows.extend(wrap_text(layout, INDENT, &clean_text(&title), Style::PLAIN));
        let mut facts = vec![format!("effect: {}", text(tool, "effect"))];
        facts.extend(member(tool, "approval").map(describe_approval));
        rows.extend(wrap_text(layout, TOOL_INDENT, &clean_line(&facts.join(" · ")), Style::PLAIN));
        let parameters = member(tool, "parameters").map(json_line).unwrap_or_default();
        rows.extend(wrap_verbatim(layout, TOOL_INDENT, &clean_text(&parameters), Style::CODE));
    }
    let instructions = clean_text(text(agent, "instructions"));
    if !instructions.is_empty() {
        rows.extend(wrap_text(layout, INDENT, "instructions:", Style::PLAIN));
        rows.extend(wrap_verbatim(layout, TOOL_INDENT, &instructions, Style::PLAIN));
    }
    rows
}

fn describe_approval(approval: &ExactJson) -> String {
    let approvers = texts(approval, "approvers").join(" or ");
    let by = if approvers.is_empty() { String::new() } else { format!(", by {approvers}") };
    match text(approval, "rule") {
        "when" => {
            let condition = member(approval, "when").map(json_line).unwrap_or_default();
            format!("approval: when {condition}{by}")
        }
        "code" => "approval: by the tool's code".to_owned(),
        rule => format!("approval: {rule}{by}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::members::exact;

    const LAYOUT: Layout = Layout { width: 60, is_coloured: false };

    #[test]
    fn agents_have_model_tools_and_problem() {
        let found = json!({"items": [
            {"name": "clerk", "description": "Pays.\u{1b}[2J", "model": "normal", "tools": ["pay", "status"]},
            {"name": "broken", "description": "", "model": null, "tools": [], "problem": "a.md:3: no such tool"},
        ]});
        let expected = [
            "clerk",
            "  Pays.",
            "  model: normal",
            "  tools: pay, status",
            "broken",
            "  problem: a.md:3: no such tool",
        ];
        assert_eq!(render(LAYOUT, &exact(&found), false), expected);
    }

    #[test]
    fn one_agent_has_tools_with_rules_and_instructions() {
        let tool = |name: &str, approval: Value| {
            json!({
                "name": name, "description": "Does it.", "effect": "write", "parameters": {"type": "object"},
                "approval": approval,
            })
        };
        let found = json!({
            "name": "clerk", "description": "", "model": "normal", "tools": ["pay"],
            "toolDefinitions": [
                tool("pay", json!({"rule": "when", "when": {"minProperties": 1}, "approvers": ["owner", "role:boss"]})),
                tool("read", json!({"rule": "never"})),
                tool("own", json!({"rule": "code"})),
            ],
            "instructions": "You pay.\nSoon.",
        });
        let expected = [
            "clerk",
            "  model: normal",
            "  tools: pay",
            "  pay: Does it.",
            r#"      effect: write · approval: when {"minProperties":1}, by"#,
            "      owner or role:boss",
            r#"      {"type":"object"}"#,
            "  read: Does it.",
            "      effect: write · approval: never",
            r#"      {"type":"object"}"#,
            "  own: Does it.",
            "      effect: write · approval: by the tool's code",
            r#"      {"type":"object"}"#,
            "  instructions:",
            "      You pay.",
            "      Soon.",
        ];
        assert_eq!(render(LAYOUT, &exact(&found), true), expected);
    }
}
