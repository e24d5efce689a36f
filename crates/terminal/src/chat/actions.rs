//! The commands of a chat.

use tokio::time::Instant;
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::raw_object;

use super::command::{ChatCommand, HELP};
use super::session::{READING_TIME, Session};
use crate::approval::{TerminalDecision, parse_value};
use crate::arguments::InputMode;
use crate::client::{ApiRequest, conversation_path};
use crate::decide::decision_request;
use crate::error::TerminalError;
use crate::members::{
    content_text, cost, flag, items, member, member_or_null, number, parse_json, text, text_at,
    texts,
};
use crate::sanitize::{clean_line, clean_text, shorten};
use crate::screen::read_layout;
use crate::style::Style;
use crate::wrap::wrap_text;

/// Characters of a queued input or of a branch in a list.
const PREVIEW_MAX: usize = 100;
/// Column at which the help describes a command.
const HELP_COLUMN: usize = 38;
const LINK_TYPE: &str = "application/vnd.turnwheel.link+json";

impl Session<'_> {
    pub(super) async fn run_command(&mut self, command: ChatCommand) -> Result<(), TerminalError> {
        match command {
            ChatCommand::Why => self.explain().await,
            ChatCommand::Abort => self.abort().await,
            ChatCommand::Queue => self.list_queue().await,
            ChatCommand::Drop(number) => self.drop_queued(number).await,
            ChatCommand::Approve(rest) => self.decide_named("approve", &rest).await,
            ChatCommand::Reject(rest) => self.decide_named("reject", &rest).await,
            ChatCommand::Outcome(rest) => self.settle_outcome(&rest).await,
            ChatCommand::Reply(rest) => self.reply(&rest).await,
            ChatCommand::Tree => self.show_tree().await,
            ChatCommand::Fork(entry) => self.fork(entry).await,
            ChatCommand::Cost => self.show_cost().await,
            ChatCommand::Receipt => self.show_receipt().await,
            ChatCommand::Open(number) => self.save_file(number).await,
            ChatCommand::Console => self.show_console().await,
            ChatCommand::Model(model) => self.change_model(model).await,
            ChatCommand::Compact(topics) => self.compact(&topics).await,
            ChatCommand::Help => self.show_help().await,
            ChatCommand::OfService(line) => self.send_command(&line).await,
            // The thread of the input handles these.
            ChatCommand::Edit(_) | ChatCommand::Quit => Ok(()),
        }
    }

    fn path(&self) -> Result<String, TerminalError> {
        let id = self.conversation.as_deref().ok_or_else(|| {
            TerminalError::Failed(
                "there is no conversation yet: type a text to start one".to_owned(),
            )
        })?;
        conversation_path(id)
    }

    async fn print_plain(&self, line: &str) {
        let rows = self.transcript.notice(line, Style::PLAIN);
        self.print(&rows).await;
    }

    async fn explain(&mut self) -> Result<(), TerminalError> {
        let request = ApiRequest::get(format!("{}/why", self.path()?));
        let view = self.request(&request).await?;
        self.print_plain(&clean_text(text(&view, "why"))).await;
        for request in items(&view, "requests") {
            let command = text(request, "command");
            if !command.is_empty() {
                let line = format!("{}: {command}", text(request, "effect"));
                self.note(&line).await;
            }
        }
        Ok(())
    }

    async fn abort(&mut self) -> Result<(), TerminalError> {
        let request = ApiRequest::post(format!("{}/abort", self.path()?), raw_object!({}));
        let accepted = self.request(&request).await?;
        if text(&accepted, "promptId").is_empty() {
            self.note("nothing runs").await;
        }
        Ok(())
    }

    /// The queued inputs, oldest first, each with its number in the list.
    async fn read_queue(&mut self) -> Result<Vec<ExactJson>, TerminalError> {
        let request = ApiRequest::get(format!("{}/inbox?limit=100", self.path()?));
        let page = self.request(&request).await?;
        let is_input =
            |item: &&ExactJson| matches!(text(item, "kind"), "prompt" | "steer" | "followUp");
        Ok(items(&page, "items").iter().filter(is_input).cloned().collect())
    }

    async fn queued_input(&mut self, number: usize) -> Result<ExactJson, TerminalError> {
        let queue = self.read_queue().await?;
        queue.into_iter().nth(number.saturating_sub(1)).ok_or_else(|| {
            TerminalError::Failed(format!("there is no queued input {number}: /queue lists them"))
        })
    }

    async fn list_queue(&mut self) -> Result<(), TerminalError> {
        let queue = self.read_queue().await?;
        if queue.is_empty() {
            self.note("nothing is queued").await;
        }
        for (number, item) in (1..).zip(&queue) {
            let input = member(item, "input").map(content_text).unwrap_or_default();
            let kind = if text(item, "kind") == "steer" { "steers" } else { "waits" };
            self.print_plain(&format!("{number}. {kind}: {}", shorten(&input, PREVIEW_MAX))).await;
        }
        Ok(())
    }

    async fn drop_queued(&mut self, number: usize) -> Result<(), TerminalError> {
        let item = self.queued_input(number).await?;
        let id = text(&item, "inputId");
        self.request(&ApiRequest::delete(format!("{}/inbox/{id}", self.path()?))).await?;
        self.transcript.queued.remove(id);
        self.note(&format!("removed queued input {number}")).await;
        Ok(())
    }

    pub(super) async fn begin_edit(&mut self, number: usize) -> Result<(), TerminalError> {
        let item = self.queued_input(number).await;
        let input = item.as_ref().ok().and_then(|item| member(item, "input")).map(content_text);
        self.line.edit(input);
        item.map(|_| ())
    }

    pub(super) async fn end_edit(
        &mut self,
        number: usize,
        input: &str,
    ) -> Result<(), TerminalError> {
        let item = self.queued_input(number).await?;
        let path = format!("{}/inbox/{}", self.path()?, text(&item, "inputId"));
        self.request(&ApiRequest::patch(path, raw_object!({ "input": input }))).await?;
        self.note(&format!("changed queued input {number}")).await;
        Ok(())
    }

    /// Approves the request that is on the screen, unless it has just appeared under the key.
    pub(super) async fn approve_shown(&mut self) -> Result<(), TerminalError> {
        let [shown] = self.transcript.approvals.as_slice() else {
            // A late key is no input.
            return Err(if self.transcript.approvals.is_empty() {
                TerminalError::Failed("no request is open: nothing is sent".to_owned())
            } else {
                several_requests()
            });
        };
        check_reading_time(shown.since, Instant::now())?;
        self.decide_named("approve", "").await
    }

    /// The open request that `rest` names at its beginning, or the only one, and the rest.
    fn select_request(&self, rest: &str) -> Result<(ExactJson, String), TerminalError> {
        let (first, others) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let named = self.transcript.approvals.iter().find(|shown| shown.id() == first);
        if let Some(shown) = named {
            return Ok((shown.approval.clone(), others.trim().to_owned()));
        }
        match self.transcript.approvals.as_slice() {
            [] => Err(TerminalError::Failed("no request is open".to_owned())),
            [only] => Ok((only.approval.clone(), rest.to_owned())),
            [..] => Err(several_requests()),
        }
    }

    async fn decide(
        &mut self,
        approval: &ExactJson,
        decision: &TerminalDecision,
    ) -> Result<(), TerminalError> {
        decision.check(approval)?;
        let decided = self.request(&decision_request(approval, decision)?).await;
        if decided.is_ok() {
            let id = text(approval, "id");
            self.transcript.approvals.retain(|shown| shown.id() != id);
            self.follow();
        }
        decided.map(|_| ())
    }

    async fn decide_named(&mut self, name: &str, rest: &str) -> Result<(), TerminalError> {
        let (approval, rest) = self.select_request(rest)?;
        let rest = Some(rest).filter(|rest| !rest.is_empty());
        let mut decision = TerminalDecision::new(name);
        if name == "reject" {
            decision.reason = rest;
        } else if text(&approval, "kind") == "budget" {
            decision.value = rest.as_deref().map(parse_value);
        } else if let Some(rest) = rest {
            return Err(TerminalError::Arguments(format!(
                "there is no open request {}",
                clean_line(&rest)
            )));
        }
        self.decide(&approval, &decision).await
    }

    async fn settle_outcome(&mut self, rest: &str) -> Result<(), TerminalError> {
        let (approval, rest) = self.select_request(rest)?;
        let (word, value) = rest.split_once(char::is_whitespace).unwrap_or((&rest, ""));
        let name = match word {
            "not" | "no" => "did_not_happen",
            word => word,
        };
        let value = Some(value.trim()).filter(|value| !value.is_empty()).map(parse_value);
        self.decide(&approval, &TerminalDecision { value, ..TerminalDecision::new(name) }).await
    }

    /// Sends the decision of a question that is no rejection.
    async fn reply(&mut self, rest: &str) -> Result<(), TerminalError> {
        let (approval, rest) = self.select_request(rest)?;
        if text(&approval, "kind") != "question" {
            return Err(TerminalError::Arguments("the request is no question".to_owned()));
        }
        let names = texts(&approval, "decisions");
        let name = names.into_iter().find(|name| *name != "reject").unwrap_or_default();
        let value = Some(parse_value(&rest));
        self.decide(&approval, &TerminalDecision { value, ..TerminalDecision::new(name) }).await
    }

    async fn show_tree(&mut self) -> Result<(), TerminalError> {
        let request = ApiRequest::get(format!("{}/tree", self.path()?));
        let tree = self.request(&request).await?;
        let leaf = text(&tree, "leafId").to_owned();
        let mut depths: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
        for node in items(&tree, "items") {
            let siblings = items(&tree, "items")
                .iter()
                .filter(|other| member(other, "parentId") == member(node, "parentId"))
                .count();
            let parent = depths.get(text(node, "parentId")).copied().unwrap_or_default();
            // Only forks indent: a path is a column.
            let depth = parent + usize::from(siblings > 1);
            depths.insert(text(node, "id"), depth);
            let mark = if flag(node, "onPath") { '●' } else { '○' };
            let title = [text(node, "label"), text(node, "preview"), text(node, "type")];
            let title = title.into_iter().find(|title| !title.is_empty()).unwrap_or_default();
            let end = if text(node, "id") == leaf { "  ← here" } else { "" };
            let line = format!(
                "{}{mark} {} {}{end}",
                "  ".repeat(depth),
                text(node, "id"),
                shorten(title, PREVIEW_MAX)
            );
            self.print_plain(&line).await;
        }
        Ok(())
    }

    async fn fork(&mut self, entry: Option<String>) -> Result<(), TerminalError> {
        let path = self.path()?;
        let entry = if let Some(entry) = entry {
            entry
        } else {
            let conversation = self.request(&ApiRequest::get(&path)).await?;
            text(&conversation, "leafId").to_owned()
        };
        let body = raw_object!({ "entryId": entry, "position": "at" });
        let forked = self.request(&ApiRequest::post(format!("{path}/fork"), body)).await?;
        self.open(member_or_null(&forked, "conversation")).await
    }

    async fn show_cost(&mut self) -> Result<(), TerminalError> {
        let path = self.path()?;
        let conversation = self.request(&ApiRequest::get(path)).await?;
        let usage = member_or_null(&conversation, "usage");
        let line = format!(
            "{} tokens: {} input, {} cached, {} output · ${:.4}",
            number(usage, "totalTokens"),
            number(usage, "input"),
            number(usage, "cacheRead"),
            number(usage, "output"),
            cost(usage)
        );
        self.print_plain(&line).await;
        Ok(())
    }

    async fn show_receipt(&mut self) -> Result<(), TerminalError> {
        let Some(prompt) = self.prompt_id.clone() else {
            return Err(TerminalError::Failed("there is no prompt yet".to_owned()));
        };
        let path = format!("{}/prompts/{prompt}/receipt", self.path()?);
        let receipt = self.request(&ApiRequest::get(path)).await?;
        let writes = member_or_null(&receipt, "writes");
        let usage = member_or_null(&receipt, "usage");
        let line = format!(
            "prompt {prompt} {}: {} turns, {} model calls, {} tokens, ${:.4}",
            text(&receipt, "state").replace('_', " "),
            number(&receipt, "turns"),
            number(&receipt, "modelCalls"),
            number(usage, "totalTokens"),
            cost(usage)
        );
        self.print_plain(&line).await;
        let counts = ["done", "failed", "unknown", "open", "repeated"]
            .map(|name| format!("{} {name}", number(writes, name)));
        self.print_plain(&format!("writes: {}", counts.join(", "))).await;
        Ok(())
    }

    /// Saves a file in the current folder. It never replaces one, and opens none.
    async fn save_file(&mut self, number: usize) -> Result<(), TerminalError> {
        let file =
            self.transcript.files.get(number.saturating_sub(1)).cloned().ok_or_else(|| {
                TerminalError::Failed(format!("there is no file {number} in this chat"))
            })?;
        let path = format!("{}/artifacts/{}?redirect=false", self.path()?, file.artifact_id);
        let response = self.client.open(&ApiRequest::get(path)).await?;
        let content_type = response.headers().get("content-type");
        let is_link =
            content_type.is_some_and(|it| it.as_bytes().starts_with(LINK_TYPE.as_bytes()));
        let bytes = response.bytes().await.map_err(|source| self.client.unreachable(source))?;
        let bytes = if is_link {
            let link = parse_json(&bytes).unwrap_or(ExactJson::Null);
            self.client.download(text(&link, "url")).await?
        } else {
            bytes.to_vec()
        };
        let name = save_new(&safe_name(&file.name), &bytes)
            .map_err(|source| TerminalError::Io { doing: "save the file", source })?;
        self.note(&format!("saved {name}")).await;
        Ok(())
    }

    async fn show_console(&mut self) -> Result<(), TerminalError> {
        let address = &self.client.address;
        let view = self.conversation.as_ref().map(|id| format!("#/c/{id}")).unwrap_or_default();
        let line = format!("{address}/api/console/{view}");
        self.print_plain(&line).await;
        Ok(())
    }

    async fn change_model(&mut self, model: Option<String>) -> Result<(), TerminalError> {
        let path = self.path()?;
        if let Some(model) = model {
            let body = raw_object!({ "settings": raw_object!({ "model": model }) });
            self.request(&ApiRequest::patch(path, body)).await?;
            self.note(&format!("model {model}, from the next prompt on")).await;
            return Ok(());
        }
        let conversation = self.request(&ApiRequest::get(path)).await?;
        let models = self.request(&ApiRequest::get("/api/models")).await?;
        let current = text_at(&conversation, &["settings", "model"]);
        let names: Vec<&str> =
            items(&models, "items").iter().map(|model| text(model, "id")).collect();
        let current = current.unwrap_or("that of the agent");
        self.print_plain(&clean_line(&format!(
            "model: {current}; there are: {}",
            names.join(", ")
        )))
        .await;
        Ok(())
    }

    async fn compact(&mut self, topics: &str) -> Result<(), TerminalError> {
        let body = if topics.is_empty() {
            raw_object!({})
        } else {
            raw_object!({ "instructions": topics })
        };
        let request = ApiRequest::post(format!("{}/compact", self.path()?), body);
        self.request(&request).await?;
        self.follow();
        Ok(())
    }

    async fn show_help(&mut self) -> Result<(), TerminalError> {
        let indent = " ".repeat(HELP_COLUMN);
        for (usage, effect) in HELP {
            let line = format!("{usage:HELP_COLUMN$}{effect}");
            let layout = read_layout();
            let rows = if line.chars().count() <= layout.width {
                vec![line]
            } else {
                let mut rows = vec![(*usage).to_owned()];
                rows.extend(wrap_text(
                    layout,
                    if layout.width > 60 { &indent } else { "    " },
                    effect,
                    Style::PLAIN,
                ));
                rows
            };
            for row in rows {
                self.line.print(&row).await;
            }
        }
        Ok(())
    }

    /// Sends a command, template or skill of the service as an input.
    async fn send_command(&mut self, line: &str) -> Result<(), TerminalError> {
        let name =
            line.trim_start_matches('/').split_whitespace().next().unwrap_or_default().to_owned();
        let query: String = self
            .agent
            .iter()
            .flat_map(|agent| {
                [
                    "?agent=".to_owned(),
                    url::form_urlencoded::byte_serialize(agent.as_bytes()).collect(),
                ]
            })
            .collect();
        let commands = self.request(&ApiRequest::get(format!("/api/commands{query}"))).await?;
        if !items(&commands, "items").iter().any(|command| text(command, "name") == name) {
            return Err(TerminalError::Arguments(format!(
                "there is no command `/{name}`: /help lists them; `//{name}` sends the text"
            )));
        }
        self.send(line, InputMode::Prompt).await
    }
}

/// # Errors
/// The request may have appeared under a key that was already pressed.
fn check_reading_time(shown_since: Instant, now: Instant) -> Result<(), TerminalError> {
    if now.duration_since(shown_since) >= READING_TIME {
        return Ok(());
    }
    Err(TerminalError::Failed(
        "the request has been on the screen for less than 1 s: read it, then press a and Enter"
            .to_owned(),
    ))
}

fn several_requests() -> TerminalError {
    TerminalError::Failed("several requests are open, name one: /approve ID".to_owned())
}

/// A file name without folders, from an untrusted one.
fn safe_name(name: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = name.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "file".to_owned() } else { name.to_owned() }
}

/// Writes a file that does not exist. Returns its name.
fn save_new(name: &str, bytes: &[u8]) -> std::io::Result<String> {
    for number in 0..100 {
        let candidate = if number == 0 { name.to_owned() } else { format!("{number}-{name}") };
        match std::fs::File::create_new(&candidate) {
            Ok(mut file) => {
                std::io::Write::write_all(&mut file, bytes)?;
                return Ok(candidate);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(std::io::Error::other("a hundred files have this name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_approves_only_a_request_that_was_readable() {
        let shown = Instant::now();
        let after = |ms| check_reading_time(shown, shown + std::time::Duration::from_millis(ms));
        assert!(after(0).is_err() && after(999).is_err());
        assert!(after(1_000).is_ok());
    }

    #[test]
    fn file_names_have_no_folders() {
        assert_eq!(safe_name("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(safe_name(".bashrc"), "bashrc");
        assert_eq!(safe_name("receipt 1.png"), "receipt_1.png");
        assert_eq!(safe_name("…"), "_");
        assert_eq!(safe_name(".."), "file");
    }
}
