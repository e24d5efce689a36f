//! Lines that a user types in a chat: inputs and commands.

/// A line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatLine {
    /// Starts a prompt, or steers the running one.
    Send(String),
    /// Waits for the end of the running prompt.
    Queue(String),
    /// `a` alone: approves the request that is on the screen.
    QuickApprove,
    Command(ChatCommand),
    /// A line without a request to the service.
    Empty,
    /// A mistake, with the remedy.
    Wrong(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    Why,
    Abort,
    Queue,
    /// Number of a queued input to edit; `None`: a new input.
    Edit(Option<usize>),
    Drop(usize),
    Approve(String),
    Reject(String),
    /// The rest of the line: a name, and a value.
    Outcome(String),
    Reply(String),
    Tree,
    /// Entry to fork at; `None`: the newest one.
    Fork(Option<String>),
    Cost,
    Receipt,
    Open(usize),
    Console,
    Model(Option<String>),
    Compact(String),
    Help,
    Quit,
    /// A command, template or skill of the service.
    OfService(String),
}

/// Names with their arguments and effects, as `/help` shows them.
pub(super) const HELP: &[(&str, &str)] = &[
    ("TEXT", "starts a prompt; while one runs, steers it"),
    ("> TEXT", "queues TEXT until the running prompt ends"),
    ("a", "approves the request, once it has been on the screen for 1 s"),
    ("/approve [ID] [LIMIT]", "approves a request; a budget needs the new limit"),
    ("/reject [ID] REASON", "rejects a request"),
    ("/outcome happened|not|again [JSON]", "settles a write whose response was lost"),
    ("/reply TEXT", "replies to a question of an extension"),
    ("/why", "explains why the conversation waits"),
    ("/abort", "ends the running prompt"),
    ("/queue", "lists the queued inputs"),
    ("/edit [N]", "edits queued input N, or writes an input, in $EDITOR"),
    ("/drop N", "removes queued input N"),
    ("/tree", "shows the branches"),
    ("/fork [ENTRY]", "continues in a copy of the conversation"),
    ("/cost", "shows tokens and cost"),
    ("/receipt", "sums up the last prompt"),
    ("/open N", "saves file N in this folder"),
    ("/console", "shows the address of the web console"),
    ("/model [ID]", "shows or sets the model"),
    ("/compact [TOPICS]", "replaces older messages by a summary"),
    ("/help", "lists the commands; other names are commands of the agent"),
    ("/quit", "leaves; the conversation continues"),
];

/// Parses a line. A text that begins with `//` is an input that begins with `/`.
pub(super) fn parse_line(line: &str) -> ChatLine {
    let line = join_continued(line);
    let line = line.trim_end();
    if line.trim().is_empty() {
        return ChatLine::Empty;
    }
    if line == "a" {
        return ChatLine::QuickApprove;
    }
    if let Some(text) = line.strip_prefix('>') {
        let text = text.trim();
        return if text.is_empty() {
            ChatLine::Wrong("`>` queues a text: > TEXT".to_owned())
        } else {
            ChatLine::Queue(text.to_owned())
        };
    }
    if line.starts_with("//") {
        return ChatLine::Send(line.strip_prefix('/').unwrap_or(line).to_owned());
    }
    let Some(command) = line.strip_prefix('/') else { return ChatLine::Send(line.to_owned()) };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    parse_command(name, rest.trim(), line)
}

/// Joins the lines of a text in which a `\` ends a line that continues.
fn join_continued(line: &str) -> String {
    line.replace("\\\n", "\n")
}

fn parse_command(name: &str, rest: &str, line: &str) -> ChatLine {
    let optional = || (!rest.is_empty()).then(|| rest.to_owned());
    let command = match name {
        "why" => ChatCommand::Why,
        "abort" => ChatCommand::Abort,
        "queue" if rest.is_empty() => ChatCommand::Queue,
        "queue" => return ChatLine::Queue(rest.to_owned()),
        "edit" if rest.is_empty() => ChatCommand::Edit(None),
        "edit" => return with_number(name, rest, |number| ChatCommand::Edit(Some(number))),
        "drop" => return with_number(name, rest, ChatCommand::Drop),
        "open" => return with_number(name, rest, ChatCommand::Open),
        "approve" => ChatCommand::Approve(rest.to_owned()),
        "reject" => ChatCommand::Reject(rest.to_owned()),
        "outcome" if rest.is_empty() => {
            return ChatLine::Wrong(
                "`/outcome` needs one of happened, not, again: /outcome again".to_owned(),
            );
        }
        "outcome" => ChatCommand::Outcome(rest.to_owned()),
        "reply" => ChatCommand::Reply(rest.to_owned()),
        "tree" => ChatCommand::Tree,
        "fork" => ChatCommand::Fork(optional()),
        "cost" => ChatCommand::Cost,
        "receipt" => ChatCommand::Receipt,
        "console" => ChatCommand::Console,
        "model" => ChatCommand::Model(optional()),
        "compact" => ChatCommand::Compact(rest.to_owned()),
        "help" | "?" => ChatCommand::Help,
        "quit" | "exit" | "q" => ChatCommand::Quit,
        _ => ChatCommand::OfService(line.to_owned()),
    };
    ChatLine::Command(command)
}

fn with_number(name: &str, rest: &str, command: fn(usize) -> ChatCommand) -> ChatLine {
    match rest.parse() {
        Ok(number) if number > 0 => ChatLine::Command(command(number)),
        Ok(_) | Err(_) => ChatLine::Wrong(format!("`/{name}` needs a number: /{name} 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> ChatCommand {
        let parsed = parse_line(line);
        let ChatLine::Command(command) = parsed else { panic!("{line}: {parsed:?}") };
        command
    }

    #[test]
    fn texts_are_inputs() {
        assert_eq!(parse_line("Pay Ada "), ChatLine::Send("Pay Ada".to_owned()));
        assert_eq!(
            parse_line("  indented\n  code"),
            ChatLine::Send("  indented\n  code".to_owned())
        );
        assert_eq!(parse_line("one \\\ntwo"), ChatLine::Send("one \ntwo".to_owned()));
        assert_eq!(parse_line("//etc"), ChatLine::Send("/etc".to_owned()));
        assert_eq!(parse_line("> later"), ChatLine::Queue("later".to_owned()));
        assert_eq!(parse_line("/queue later"), ChatLine::Queue("later".to_owned()));
        assert_eq!(parse_line("a"), ChatLine::QuickApprove);
        assert_eq!(parse_line("a b"), ChatLine::Send("a b".to_owned()));
        assert_eq!(parse_line(" \n "), ChatLine::Empty);
        assert!(matches!(parse_line(">"), ChatLine::Wrong(_)));
    }

    #[test]
    fn each_command_of_the_help_is_parsed() {
        for (usage, _) in HELP.iter().filter(|(usage, _)| usage.starts_with('/')) {
            let name = usage.split(' ').next().unwrap_or_default();
            let line = if matches!(name, "/drop" | "/open") {
                format!("{name} 1")
            } else {
                format!("{name} again")
            };
            let line = if matches!(name, "/edit" | "/queue") { name.to_owned() } else { line };
            assert!(!matches!(command(&line), ChatCommand::OfService(_)), "{line}");
        }
        assert_eq!(command("/edit"), ChatCommand::Edit(None));
        assert_eq!(command("/drop 2"), ChatCommand::Drop(2));
        assert_eq!(
            command("/reject rq_1 too late"),
            ChatCommand::Reject("rq_1 too late".to_owned())
        );
        assert_eq!(command("/title Bills"), ChatCommand::OfService("/title Bills".to_owned()));
        for wrong in ["/drop", "/drop 0", "/open x", "/outcome"] {
            assert!(matches!(parse_line(wrong), ChatLine::Wrong(_)), "{wrong}");
        }
    }
}
