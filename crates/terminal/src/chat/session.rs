//! A chat: the conversation, its events, and the lines that the user types.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use turnwheel_json::exact::ExactJson;

use super::command::{ChatLine, parse_line};
use super::input::{InputLine, KeyboardEvent};
use super::modes::KeyModes;
use super::status::SharedStatus;
use crate::arguments::{ChatArguments, InputMode};
use crate::client::{ApiRequest, Client, conversation_path};
use crate::error::TerminalError;
use crate::event_stream::{EventFollower, StreamUpdate};
use crate::members::{as_text, items, member, number, text};
use crate::sanitize::clean_line;
use crate::screen::{read_layout, transcript_options};
use crate::send::NewInput;
use crate::show::{read_newest, render_entries};
use crate::style::Style;
use crate::transcript::{Printed, Transcript};

/// Entries of a resumed conversation that are shown.
const HISTORY_ENTRIES: u16 = 20;
/// Time that a request must be on the screen before one key approves it.
pub(super) const READING_TIME: Duration = Duration::from_secs(1);
/// Lines that arrive in this time are one input: a terminal that reports no pastes sends them as typed lines.
const PASTE_TIME: Duration = Duration::from_millis(30);
/// Period of the clock in the prompt.
const TICK: Duration = Duration::from_secs(1);

pub(super) struct Session<'a> {
    pub(super) client: &'a Client,
    /// Agent of a new conversation.
    pub(super) agent: Option<String>,
    /// `None` before the first input.
    pub(super) conversation: Option<String>,
    pub(super) transcript: Transcript,
    /// `None` while nothing runs: an open stream costs money in Azure.
    pub(super) stream: Option<EventFollower>,
    /// The newest event that is shown.
    pub(super) last_event: u64,
    pub(super) prompt_id: Option<String>,
    running_since: Option<Instant>,
    is_lost: bool,
    status: SharedStatus,
    pub(super) line: InputLine,
}

impl<'a> Session<'a> {
    /// # Errors
    /// The service does not respond, or refuses the conversation.
    pub(super) async fn start(
        client: &'a Client,
        arguments: &ChatArguments,
        status: &SharedStatus,
        modes: KeyModes,
    ) -> Result<(Self, UnboundedReceiver<KeyboardEvent>), TerminalError> {
        let conversation = match &arguments.conversation {
            Some(id) => Some(client.send_once(&ApiRequest::get(conversation_path(id)?)).await?),
            // The first request shows whether the service and the agent exist.
            None => None,
        };
        let agents = client.send_once(&ApiRequest::get("/api/agents")).await?;
        let agent = find_agent(&agents, conversation.as_ref(), arguments.agent.as_deref())?;
        let status = status.clone();
        status.update(|status| status.agent = clean_line(agent.as_deref().unwrap_or("agent")));
        let (line, keyboard) = InputLine::start(status.clone(), read_layout().is_coloured, modes)?;
        let mut session = Self {
            client,
            agent,
            conversation: None,
            transcript: Transcript::new(transcript_options()),
            stream: None,
            last_event: 0,
            prompt_id: None,
            running_since: None,
            is_lost: false,
            status,
            line,
        };
        session.greet().await;
        if let Some(conversation) = conversation {
            session.open(&conversation).await?;
        }
        Ok((session, keyboard))
    }

    /// Gives the terminal back. Returns the id of the conversation.
    pub(super) fn end(self) -> Option<String> {
        drop(self.line);
        self.conversation
    }

    async fn greet(&mut self) {
        let agent =
            self.agent.as_deref().map_or_else(|| "the default agent".to_owned(), clean_line);
        let line =
            format!("Chat with {agent} at {}. /help lists the commands.", self.client.address);
        self.note(&line).await;
    }

    /// Continues with this conversation, and shows its newest entries.
    pub(super) async fn open(&mut self, conversation: &ExactJson) -> Result<(), TerminalError> {
        let id = text(conversation, "id").to_owned();
        let path = conversation_path(&id)?;
        let entries = read_newest(self.client, &path, HISTORY_ENTRIES).await?;
        for row in render_entries(read_layout(), &entries) {
            self.line.print(&row).await;
        }
        self.note(&format!("conversation {id}")).await;
        self.transcript = Transcript::new(transcript_options());
        for approval in items(conversation, "pendingApprovals") {
            let rows = self.transcript.show_approval(approval, Instant::now());
            self.print(&rows).await;
        }
        self.conversation = Some(id);
        self.last_event = number(conversation, "lastEventId");
        self.prompt_id =
            items(conversation, "prompts").last().map(|prompt| text(prompt, "id").to_owned());
        self.stream = None;
        if text(conversation, "state") != "idle" {
            self.follow();
        }
        self.show_state();
        Ok(())
    }

    /// Reads events until nothing runs.
    pub(super) fn follow(&mut self) {
        let Some(Ok(path)) = self.conversation.as_deref().map(conversation_path) else { return };
        self.running_since.get_or_insert_with(Instant::now);
        if self.stream.is_none() {
            self.stream = Some(EventFollower::new(&path, self.last_event));
        }
    }

    /// Runs until the user leaves.
    ///
    /// # Errors
    /// The conversation cannot be continued.
    pub(super) async fn run(
        &mut self,
        keyboard: &mut UnboundedReceiver<KeyboardEvent>,
    ) -> Result<(), TerminalError> {
        loop {
            let stream = self.stream.as_mut();
            let client = self.client;
            let is_running = stream.is_some();
            let next = async move {
                match stream {
                    Some(stream) => stream.next(client).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = keyboard.recv() => match event {
                    None | Some(KeyboardEvent::Left) => return Ok(()),
                    Some(event) => {
                        if self.handle_or_leave(event, keyboard).await {
                            return Ok(());
                        }
                    }
                },
                item = next => self.apply(item?).await,
                () = tokio::time::sleep(TICK), if is_running => {}
            }
            self.show_state();
        }
    }

    /// Handles an event of the keyboard. Returns true if the user leaves meanwhile: a request may be repeated for a minute.
    async fn handle_or_leave(
        &mut self,
        event: KeyboardEvent,
        keyboard: &mut UnboundedReceiver<KeyboardEvent>,
    ) -> bool {
        let mut events = VecDeque::from(join_pasted(event, keyboard).await);
        while let Some(event) = events.pop_front() {
            if event == KeyboardEvent::Left {
                return true;
            }
            let handled = self.handle(event);
            tokio::pin!(handled);
            loop {
                tokio::select! {
                    () = &mut handled => break,
                    next = keyboard.recv() => match next {
                        None | Some(KeyboardEvent::Left) => return true,
                        Some(event) => events.push_back(event),
                    },
                }
            }
        }
        false
    }

    async fn handle(&mut self, event: KeyboardEvent) {
        let outcome = match event {
            KeyboardEvent::Line(line) => self.handle_line(&line).await,
            KeyboardEvent::EditRequested(number) => self.begin_edit(number).await,
            KeyboardEvent::Edited(number, text) => self.end_edit(number, &text).await,
            KeyboardEvent::Cleared => {
                self.note("Ctrl-C again leaves; /abort ends the running prompt").await;
                Ok(())
            }
            KeyboardEvent::Left => Ok(()),
        };
        if let Err(error) = outcome {
            let text = clean_line(&error.to_string());
            let rows = self.transcript.notice(&format!("✗ {text}"), Style::BAD);
            self.print(&rows).await;
        }
    }

    async fn handle_line(&mut self, line: &str) -> Result<(), TerminalError> {
        match parse_line(line) {
            ChatLine::Empty => Ok(()),
            ChatLine::Wrong(reason) => Err(TerminalError::Arguments(reason)),
            // A steer starts a prompt if nothing runs. Another client may have started one.
            ChatLine::Send(text) => self.send(&text, InputMode::Steer).await,
            ChatLine::Queue(text) => self.send(&text, InputMode::FollowUp).await,
            ChatLine::QuickApprove => self.approve_shown().await,
            ChatLine::Command(command) => self.run_command(command).await,
        }
    }

    /// Sends an input, and follows its prompt.
    pub(super) async fn send(&mut self, input: &str, mode: InputMode) -> Result<(), TerminalError> {
        let new_input = NewInput {
            text: input,
            agent: self.agent.as_deref(),
            conversation: self.conversation.as_deref(),
            // Without a conversation there is nothing to join.
            mode: if self.conversation.is_some() { mode } else { InputMode::Prompt },
            at: None,
        };
        let accepted = self.request(&new_input.request()?).await?;
        let id = text(&accepted, "conversationId").to_owned();
        if self.conversation.is_none() {
            self.note(&format!("conversation {id}")).await;
            self.conversation = Some(id);
        }
        let is_queued = text(&accepted, "disposition") == "queued";
        self.transcript.add_own_input(text(&accepted, "inputId"), is_queued);
        let output = [text(&accepted, "commandOutput"), text(&accepted, "commandError")];
        for output in output.into_iter().filter(|output| !output.is_empty()) {
            self.note(output).await;
        }
        if is_queued {
            let effect = if mode == InputMode::Steer {
                "steers: joins the prompt before its next model call"
            } else {
                "queued: waits for the end of the prompt"
            };
            self.note(effect).await;
        }
        if let Some(prompt) = member(&accepted, "promptId").and_then(as_text) {
            self.prompt_id = Some(prompt.to_owned());
        }
        // Without a stream, the newest event before the input is the newest one that is shown.
        if self.stream.is_none() {
            self.last_event = self.last_event.max(number(&accepted, "lastEventId"));
        }
        self.follow();
        Ok(())
    }

    /// Sends a request, and again after temporary failures, with one notice of the loss.
    pub(super) async fn request(
        &mut self,
        request: &ApiRequest,
    ) -> Result<ExactJson, TerminalError> {
        let mut lost_since = None;
        let client = self.client;
        let status = self.status.clone();
        let response = client
            .send_repeatedly(request, &mut |_| {
                lost_since.get_or_insert_with(Instant::now);
                status.update(|status| status.is_lost = true);
            })
            .await;
        // The stream reports the same loss, if there is one.
        if let Some(since) = lost_since.filter(|_| self.stream.is_none() && response.is_ok()) {
            self.report_resumed(since.elapsed()).await;
        }
        self.show_state();
        response
    }

    async fn apply(&mut self, item: StreamUpdate) {
        match item {
            StreamUpdate::Event(event) => {
                self.transcript.set_layout(read_layout());
                let rows = self.transcript.apply(&event, Instant::now());
                self.print(&rows).await;
            }
            StreamUpdate::Lost => {
                self.is_lost = true;
                self.note("… reconnecting").await;
            }
            StreamUpdate::Resumed(after) => {
                self.is_lost = false;
                self.report_resumed(after).await;
            }
            StreamUpdate::Settled => {
                self.last_event = self.stream.take().map_or(self.last_event, |it| it.last_id());
                self.running_since = None;
            }
        }
        if let Some(stream) = &self.stream {
            self.last_event = stream.last_id();
        }
    }

    async fn report_resumed(&self, after: Duration) {
        self.note(&format!("resumed after {:.1} s", after.as_secs_f64())).await;
    }

    /// Prints a line about the chat itself.
    pub(super) async fn note(&self, line: &str) {
        let rows = self.transcript.notice(&crate::sanitize::clean_text(line), Style::DIM);
        self.print(&rows).await;
    }

    pub(super) async fn print(&self, rows: &[Printed]) {
        if !rows.is_empty() {
            let rows: Vec<&str> = rows.iter().map(Printed::row).collect();
            self.line.print(&rows.join("\n")).await;
        }
    }

    fn show_state(&self) {
        self.status.update(|status| {
            status.running_since = self.running_since.filter(|_| self.stream.is_some());
            status.is_waiting = self.stream.is_some() && !self.transcript.approvals.is_empty();
            status.is_lost = self.is_lost;
            status.queued = self.transcript.queued.len();
            status.cost = self.transcript.cost;
        });
        self.line.repaint();
    }
}

/// The agent of the conversation, or of a new one. `None`: the service chooses, or refuses the first input.
fn find_agent(
    agents: &ExactJson,
    conversation: Option<&ExactJson>,
    wanted: Option<&str>,
) -> Result<Option<String>, TerminalError> {
    if let Some(conversation) = conversation {
        return Ok(Some(text(conversation, "agent").to_owned()));
    }
    let names: Vec<&str> = items(agents, "items").iter().map(|agent| text(agent, "name")).collect();
    match (wanted, names.as_slice()) {
        (Some(wanted), names) if !names.contains(&wanted) => Err(TerminalError::Arguments(
            format!("there is no agent `{wanted}`; there are: {}", names.join(", ")),
        )),
        (Some(wanted), _) => Ok(Some(wanted.to_owned())),
        (None, [only]) => Ok(Some((*only).to_owned())),
        (None, _) => Ok(None),
    }
}

/// Joins the lines that arrive at once. Returns the input, and the event that followed it.
async fn join_pasted(
    event: KeyboardEvent,
    keyboard: &mut UnboundedReceiver<KeyboardEvent>,
) -> Vec<KeyboardEvent> {
    let KeyboardEvent::Line(mut text) = event else { return vec![event] };
    // A command ends with its line.
    if text.starts_with('/') || text.trim().is_empty() {
        return vec![KeyboardEvent::Line(text)];
    }
    loop {
        match tokio::time::timeout(PASTE_TIME, keyboard.recv()).await {
            Ok(Some(KeyboardEvent::Line(next))) => {
                text.push('\n');
                text.push_str(&next);
            }
            Ok(Some(other)) => return vec![KeyboardEvent::Line(text), other],
            Ok(None) => return vec![KeyboardEvent::Line(text), KeyboardEvent::Left],
            Err(_) => return vec![KeyboardEvent::Line(text)],
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::members::exact;

    fn line(text: &str) -> KeyboardEvent {
        KeyboardEvent::Line(text.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_arrive_at_once_are_one_input() {
        let (sender, mut keyboard) = unbounded_channel();
        sender.send(line("two")).unwrap();
        sender.send(line("/three")).unwrap();
        assert_eq!(join_pasted(line("one"), &mut keyboard).await, [line("one\ntwo\n/three")]);
        sender.send(line("one")).unwrap();
        assert_eq!(join_pasted(line("/why"), &mut keyboard).await, [line("/why")]);
        sender.send(KeyboardEvent::Left).unwrap();
        let events = join_pasted(line("zero"), &mut keyboard).await;
        assert_eq!(events, [line("zero\none"), KeyboardEvent::Left]);
    }

    #[test]
    fn unknown_agent_is_refused_with_the_names() {
        let agents = serde_json::json!({"items": [{"name": "clerk"}, {"name": "ops"}]});
        let agents = exact(&agents);
        let error = find_agent(&agents, None, Some("cleark")).unwrap_err().to_string();
        assert!(error.ends_with("there are: clerk, ops"), "{error}");
        assert_eq!(find_agent(&agents, None, Some("ops")).unwrap().as_deref(), Some("ops"));
        assert_eq!(find_agent(&agents, None, None).unwrap(), None);
    }
}
