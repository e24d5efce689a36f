//! The prompt of the input line, which shows the state of the conversation.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use reedline::{Color, Prompt, PromptEditMode, PromptHistorySearch};
use tokio::time::Instant;

/// USD below which no cost is shown.
const COST_MIN: f64 = 0.0005;

/// The state that the prompt shows.
#[derive(Clone, Debug, Default)]
pub(super) struct ChatStatus {
    pub(super) agent: String,
    pub(super) running_since: Option<Instant>,
    pub(super) is_waiting: bool,
    pub(super) is_lost: bool,
    pub(super) queued: usize,
    /// USD of the prompt.
    pub(super) cost: f64,
    /// True while an editor has the terminal.
    pub(super) is_editing: bool,
}

impl ChatStatus {
    fn render(&self, now: Instant) -> String {
        let mut parts = Vec::new();
        if self.is_lost {
            parts.push("reconnecting".to_owned());
        } else if self.is_waiting {
            parts.push("waiting for a decision".to_owned());
        } else if let Some(since) = self.running_since {
            parts.push(format!("running {} s", now.duration_since(since).as_secs()));
        } else {
            parts.push(self.agent.clone());
        }
        if self.queued > 0 {
            parts.push(format!("{} queued", self.queued));
        }
        if self.cost >= COST_MIN {
            parts.push(format!("${:.3}", self.cost));
        }
        parts.join(" ")
    }
}

/// Shared between the session and the thread of the input.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedStatus(Arc<Mutex<ChatStatus>>);

impl SharedStatus {
    pub(super) fn update(&self, change: impl FnOnce(&mut ChatStatus)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn is_editing(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_editing
    }
}

/// The prompt in plain text: `NO_COLOR` removes its colours.
#[derive(Debug)]
pub(super) struct StatusPrompt(pub(super) SharedStatus);

impl Prompt for StatusPrompt {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        let status = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        Cow::Owned(status.render(Instant::now()))
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _mode: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed(" > ")
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed("… ")
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("(search: {}) ", search.term))
    }

    fn get_prompt_color(&self) -> Color {
        Color::Default
    }

    fn get_indicator_color(&self) -> Color {
        Color::Default
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn prompt_shows_the_state() {
        let now = Instant::now();
        let idle = ChatStatus { agent: "clerk".to_owned(), ..ChatStatus::default() };
        assert_eq!(idle.render(now), "clerk");
        let running = ChatStatus { running_since: Some(now), cost: 0.0031, queued: 2, ..idle };
        assert_eq!(running.render(now + Duration::from_secs(12)), "running 12 s 2 queued $0.003");
        let waiting = ChatStatus { is_waiting: true, queued: 0, ..running };
        assert_eq!(waiting.render(now), "waiting for a decision $0.003");
        assert_eq!(ChatStatus { is_lost: true, cost: 0.0, ..waiting }.render(now), "reconnecting");
    }
}
