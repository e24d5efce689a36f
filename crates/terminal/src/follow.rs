//! Follows a conversation without a terminal: prints its events until a prompt ends.

use tokio::time::Instant;
use turnwheel_json::exact::ExactJson;

use crate::client::Client;
use crate::error::TerminalError;
use crate::event_stream::{EventFollower, StreamUpdate};
use crate::members::{member_or_null, text};
use crate::screen::{print_json, print_line, print_notice, print_rows, transcript_options};
use crate::style::Style;
use crate::transcript::Transcript;
use crate::{DONE, FAILED, WAITING};

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputForm {
    Text,
    /// One JSON object a line.
    Json,
}

impl OutputForm {
    pub(crate) fn from_flag(is_json: bool) -> Self {
        if is_json { Self::Json } else { Self::Text }
    }
}

/// The events to print.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) stream: EventFollower,
    pub(crate) transcript: Transcript,
    pub(crate) form: OutputForm,
    /// Notices are on the standard output too.
    pub(crate) has_notices: bool,
}

impl Follower {
    /// Follows the conversation at `path` after stored event `after`.
    pub(crate) fn new(path: &str, after: u64, form: OutputForm) -> Self {
        let transcript = Transcript::new(transcript_options());
        Self { stream: EventFollower::new(path, after), transcript, form, has_notices: false }
    }

    /// Prints events until the prompt ends or waits, or until nothing runs if there is no id. Returns the exit code.
    pub(crate) async fn run(
        &mut self,
        client: &Client,
        prompt_id: Option<&str>,
    ) -> Result<u8, TerminalError> {
        loop {
            let event = match self.stream.next(client).await? {
                StreamUpdate::Event(event) => event,
                StreamUpdate::Settled => return Ok(self.exit_code()),
                StreamUpdate::Lost => {
                    print_notice("… reconnecting");
                    continue;
                }
                StreamUpdate::Resumed(after) => {
                    print_notice(&format!("resumed after {:.1} s", after.as_secs_f64()));
                    continue;
                }
            };
            if !self.print(&event) {
                return Ok(DONE);
            }
            let is_of_prompt = prompt_id.is_some_and(|id| text(&event, "promptId") == id);
            if !is_of_prompt {
                continue;
            }
            match text(&event, "type") {
                "prompt.completed" | "prompt.error" => return Ok(self.exit_code()),
                "prompt.approval-requested" => {
                    self.explain_wait(member_or_null(&event, "approval"));
                    return Ok(WAITING);
                }
                _ => {}
            }
        }
    }

    /// Returns false if the reader of the output has gone.
    fn print(&mut self, event: &ExactJson) -> bool {
        let rows = self.transcript.apply(event, Instant::now());
        match self.form {
            OutputForm::Json => print_json(event),
            OutputForm::Text if self.has_notices => rows.iter().all(|row| print_line(row.row())),
            OutputForm::Text => print_rows(&rows),
        }
    }

    fn exit_code(&self) -> u8 {
        let outcome = self.transcript.last_outcome.as_ref();
        if outcome.is_none_or(|outcome| outcome.state == "completed") { DONE } else { FAILED }
    }

    /// Names the commands that decide the request.
    pub(crate) fn explain_wait(&self, approval: &ExactJson) {
        let id = text(approval, "id");
        let commands = match text(approval, "kind") {
            "tool" => format!("turnwheel approve {id}    or    turnwheel reject {id} REASON"),
            "budget" => {
                format!("turnwheel approve {id} --value LIMIT    or    turnwheel reject {id}")
            }
            _ => format!("turnwheel decide {id} DECISION"),
        };
        if self.form == OutputForm::Text {
            print_rows(&self.transcript.notice(&format!("Decide: {commands}"), Style::DIM));
        }
    }
}
