//! Command-line arguments of the terminal commands.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

/// Default data folder of `dev`.
const DATA_DIR: &str = ".turnwheel";

/// Commands that use the public API of a service.
#[derive(Debug, Subcommand)]
pub enum TerminalCommand {
    /// Chat with an agent: stream, steer, approve. It resumes after a lost connection.
    #[command(after_help = CHAT_EXAMPLES)]
    Chat(ChatArguments),
    /// Send an input, follow the prompt to its end, and print the response.
    #[command(after_help = SEND_EXAMPLES)]
    Send(SendArguments),
    /// Show a conversation: its state, and one row for each step.
    #[command(after_help = "Example:\n  turnwheel show c_1 --limit 20")]
    Show(ShowArguments),
    /// Follow a conversation until nothing runs in it.
    #[command(after_help = "Example:\n  turnwheel tail --json | jq .type")]
    Tail(TailArguments),
    /// Approve an open request.
    #[command(after_help = "Example:\n  turnwheel approve rq_c1_ae07281b_1")]
    Approve(ApproveArguments),
    /// Reject an open request.
    #[command(after_help = "Example:\n  turnwheel reject rq_c1_ae07281b_1 \"The amount is wrong\"")]
    Reject(RejectArguments),
    /// Decide an open request of any kind, such as the unknown outcome of a write.
    #[command(after_help = DECIDE_EXAMPLES)]
    Decide(DecideArguments),
    /// End the prompt that runs or waits.
    #[command(after_help = "Example:\n  turnwheel abort c_1")]
    Abort(AbortArguments),
    /// Continue a conversation without a new input, such as after a failed prompt.
    #[command(after_help = "Example:\n  turnwheel continue c_1")]
    Continue(ContinueArguments),
}

const CHAT_EXAMPLES: &str = "Examples:
  turnwheel chat payments-clerk
  turnwheel chat --conversation c_1
  turnwheel chat --url https://my-app.azurewebsites.net
  git diff | turnwheel chat reviewer

Text that is typed while the agent works steers it; a line that begins with `>` waits for its end. `/help` lists the commands.";

const SEND_EXAMPLES: &str = "Examples:
  turnwheel send --agent payments-clerk \"Pay 40 to Ada\"
  turnwheel send --conversation c_1 \"And 20 to Bob\"
  turnwheel send --conversation c_1 --mode steer \"Only 20\"
  turnwheel send --json \"Hello\" | jq .type";

const DECIDE_EXAMPLES: &str = "Examples:
  turnwheel decide rq_c1_ae07281b_1 happened --value '{\"receipt\": \"r1\"}'
  turnwheel decide rq_c1_ae07281b_1 did_not_happen
  turnwheel decide rq_c1_ae07281b_1 again";

impl TerminalCommand {
    pub fn service(&self) -> &ServiceArguments {
        match self {
            Self::Chat(arguments) => &arguments.service,
            Self::Send(arguments) => &arguments.service,
            Self::Show(arguments) => &arguments.service,
            Self::Tail(arguments) => &arguments.service,
            Self::Approve(arguments) => &arguments.service,
            Self::Reject(arguments) => &arguments.service,
            Self::Decide(arguments) => &arguments.service,
            Self::Abort(arguments) => &arguments.service,
            Self::Continue(arguments) => &arguments.service,
        }
    }
}

/// The service, and the caller.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Service")]
pub struct ServiceArguments {
    /// Address of the service. Default: the `dev` that uses the data folder. Credentials are in `TURNWHEEL_KEY` (a function
    /// key) or `TURNWHEEL_TOKEN` (an Entra token).
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// File with a function key.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) key_file: Option<PathBuf>,
    /// Tenant, for `dev` and services behind a gateway.
    #[arg(long, value_name = "ID")]
    pub tenant: Option<String>,
    /// User, for `dev` and services behind a gateway.
    #[arg(long, value_name = "ID")]
    pub user: Option<String>,
    /// Data folder of `dev`.
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    pub data: PathBuf,
}

impl ServiceArguments {
    /// The same arguments, for a command to copy: empty, or with a blank before each.
    pub fn to_options(&self) -> String {
        let data = (self.url.is_none() && self.data != Path::new(DATA_DIR))
            .then(|| self.data.display().to_string());
        let key_file = self.key_file.as_ref().map(|file| file.display().to_string());
        let options = [
            ("url", self.url.clone()),
            ("key-file", key_file),
            ("tenant", self.tenant.clone()),
            ("user", self.user.clone()),
            ("data", data),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let words = given.flat_map(|(name, value)| [format!(" --{name} "), quote_word(&value)]);
        words.collect()
    }
}

/// Quotes a text as one word of a POSIX shell.
fn quote_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[derive(Debug, Args)]
pub struct ChatArguments {
    /// Agent of a new conversation. Default: the default agent, or the only one.
    #[arg(value_name = "AGENT")]
    pub(crate) agent: Option<String>,
    /// Continue this conversation.
    #[arg(long, value_name = "ID", conflicts_with = "agent")]
    pub(crate) conversation: Option<String>,
    /// Without a terminal: print the events, one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputMode {
    /// Start a prompt; refused while one runs.
    #[default]
    Prompt,
    /// Join the running prompt before its next model call.
    Steer,
    /// Start a prompt after the running one.
    FollowUp,
}

impl InputMode {
    /// Its name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Steer => "steer",
            Self::FollowUp => "followUp",
        }
    }
}

#[derive(Debug, Args)]
pub struct SendArguments {
    /// Input; `-` reads it from the standard input.
    #[arg(value_name = "TEXT")]
    pub(crate) input: String,
    /// Agent of a new conversation. Default: the default agent, or the only one.
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Conversation. Default: a new one.
    #[arg(long, value_name = "ID", conflicts_with = "agent")]
    pub(crate) conversation: Option<String>,
    /// Effect of the input while a prompt runs.
    #[arg(long, value_enum, default_value_t, requires = "conversation")]
    pub(crate) mode: InputMode,
    /// Continue from this entry, or from `root`: another branch.
    #[arg(long, value_name = "ENTRY", requires = "conversation")]
    pub(crate) at: Option<String>,
    /// Return when the input is accepted.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Print the events, one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[derive(Debug, Args)]
pub struct ShowArguments {
    /// Conversation id.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Number of the newest entries.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) limit: u16,
    /// Print the entries, one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[derive(Debug, Args)]
pub struct TailArguments {
    /// Conversation id. Default: the conversation that changed last.
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Print the events, one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[derive(Debug, Args)]
pub struct ApproveArguments {
    /// Id of the request, or of a conversation with one open request.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// For a budget: the new limit.
    #[arg(long, value_name = "JSON")]
    pub(crate) value: Option<String>,
    /// Print the decided request as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[derive(Debug, Args)]
pub struct RejectArguments {
    /// Id of the request, or of a conversation with one open request.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Reason, which the model reads.
    #[arg(value_name = "REASON")]
    pub(crate) reason: Option<String>,
    /// Print the decided request as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[derive(Debug, Args)]
pub struct DecideArguments {
    /// Id of the request, or of a conversation with one open request.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// One of the request's decisions: `turnwheel show` lists them.
    #[arg(value_name = "DECISION")]
    pub(crate) decision: String,
    /// Value of the decision: the response of a call that happened, or the reply to a question.
    #[arg(long, value_name = "JSON")]
    pub(crate) value: Option<String>,
    /// Reason.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print the decided request as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[derive(Debug, Args)]
pub struct AbortArguments {
    /// Conversation id.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Also remove the queued inputs.
    #[arg(long)]
    pub(crate) clear_inbox: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[derive(Debug, Args)]
pub struct ContinueArguments {
    /// Conversation id.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Return when the request is accepted.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Print the events, one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArguments,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_repeat_the_service() {
        let mut service =
            ServiceArguments { data: PathBuf::from(DATA_DIR), ..ServiceArguments::default() };
        assert_eq!(service.to_options(), "");
        service.data = PathBuf::from("my data");
        service.user = Some("ada".to_owned());
        assert_eq!(service.to_options(), " --user ada --data 'my data'");
        service.url = Some("https://a.example".to_owned());
        assert_eq!(service.to_options(), " --url https://a.example --user ada");
    }
}
