//! A benchmark case: number of concurrent conversations, tool rounds per conversation, and
//! continuation of turns.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Rounds of one prompt: the service's own limit is one more. Longer conversations have several
/// prompts.
const PROMPT_ROUNDS_MAX: usize = 199;
/// Turns that a case needs for meaningful figures.
const TURNS_MIN: usize = 4_000;

/// The command line of `turnwheel bench`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArguments {
    /// Concurrent conversations; several numbers make several cases.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64", value_parser = parse_positive)]
    pub conversations: Vec<usize>,
    /// Tool rounds per conversation; several numbers make several cases.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10", value_parser = parse_positive)]
    pub rounds: Vec<usize>,
    /// The next turn is a separate delivery (`queue`) or runs in the same one (`inline`).
    #[arg(long, value_delimiter = ',', value_enum, default_value = "queue")]
    pub continuation: Vec<NextTurn>,
    /// Text deltas that the model streams before each of its calls, each sent separately.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub deltas: usize,
    /// Conversations that follow each other in each slot. Default: enough for some thousand turns.
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub repeat: Option<usize>,
    /// Folder for temporary data folders, on the disk to measure. Default: the system's folder for
    /// temporary files.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Writes the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Compares the figures with those in this file.
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
}

fn parse_positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum NextTurn {
    Queue,
    Inline,
}

/// Parameters of a case, as stored with its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    pub conversations: usize,
    pub rounds: usize,
    pub continuation: NextTurn,
    pub deltas: usize,
    /// Conversations that follow each other in each slot. More of them make steadier figures; no
    /// figure should depend on their number.
    pub repeat: usize,
}

impl BenchArguments {
    /// Returns every combination, in the order given.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &continuation in &self.continuation {
            for &conversations in &self.conversations {
                for &rounds in &self.rounds {
                    let repeat = TURNS_MIN.div_ceil(conversations * (rounds + 1));
                    let (deltas, repeat) = (self.deltas, self.repeat.unwrap_or(repeat));
                    cases.push(Case { conversations, rounds, continuation, deltas, repeat });
                }
            }
        }
        cases
    }
}

impl Case {
    /// The rounds of each prompt of a conversation.
    pub fn rounds_per_prompt(&self) -> Vec<usize> {
        let count = self.rounds.div_ceil(PROMPT_ROUNDS_MAX);
        (0..count)
            .map(|number| self.rounds / count + usize::from(number < self.rounds % count))
            .collect()
    }

    /// Tool rounds of all conversations.
    pub fn tool_rounds(&self) -> usize {
        self.conversations * self.repeat * self.rounds
    }

    /// Turns of all conversations: each prompt ends with a turn without calls.
    pub fn turns(&self) -> usize {
        self.conversations * self.repeat * (self.rounds + self.rounds_per_prompt().len())
    }

    /// True if both do the same work, so that their figures are comparable.
    pub fn is_comparable_with(&self, other: &Self) -> bool {
        Self { repeat: 0, ..self.clone() } == Self { repeat: 0, ..other.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_case(rounds: usize) -> Case {
        Case { conversations: 2, rounds, continuation: NextTurn::Queue, deltas: 0, repeat: 3 }
    }

    #[test]
    fn long_conversation_is_split_into_prompts() {
        assert_eq!(new_case(10).rounds_per_prompt(), [10]);
        assert_eq!(new_case(199).rounds_per_prompt(), [199]);
        assert_eq!(new_case(200).rounds_per_prompt(), [100, 100]);
        assert_eq!(new_case(1_000).rounds_per_prompt().iter().sum::<usize>(), 1_000);
        assert_eq!(new_case(10).turns(), 2 * 3 * 11);
        assert_eq!(new_case(200).turns(), 2 * 3 * 202);
    }
}
