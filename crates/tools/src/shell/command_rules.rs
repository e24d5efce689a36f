//! Rules of the `shell` tool: one simple command. Its words are quoted again, so that the shell
//! cannot read them in another way.

/// Returns the command with each word quoted.
///
/// # Errors
/// The command is not a simple one. Return the text to the model.
pub(super) fn check_simple_command(command: &str) -> Result<String, String> {
    let words = split_words(command.trim())?;
    if words.is_empty() {
        return Err("Invalid input: the command is empty.".to_owned());
    }
    if let Some(word) = words.iter().skip(1).find(|word| is_absolute(word)) {
        return Err(format!(
            "Invalid input: `{word}` is an absolute path. Use paths from the workspace's root."
        ));
    }
    Ok(words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "))
}

/// `--file=/etc/passwd` also names an absolute path.
fn is_absolute(word: &str) -> bool {
    let value = word.split_once('=').map_or(word, |(_, value)| value);
    word.starts_with('/') || value.starts_with('/') || word.starts_with('~')
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[derive(Clone, Copy, PartialEq)]
enum Quote {
    None,
    Single,
    Double,
}

/// Splits as a POSIX shell does, without expansions.
fn split_words(command: &str) -> Result<Vec<String>, String> {
    let refused = |letter: char| {
        format!(
            "Invalid input: {letter:?} is not allowed. The command must be one simple command: no newline, no `$` outside single \
             quotes, and no unquoted ; & | ` < >."
        )
    };
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = Quote::None;
    let mut letters = command.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\n' | '\r' | '\0', _) => return Err(refused(letter)),
            ('\'', Quote::Single) | ('"', Quote::Double) => quote = Quote::None,
            (_, Quote::Single) => word.get_or_insert_default().push(letter),
            ('$' | '`', _) | (';' | '&' | '|' | '<' | '>' | '；' | '｜', Quote::None) => {
                return Err(refused(letter));
            }
            ('\\', _) => {
                let next = letters.next().ok_or_else(|| refused('\\'))?;
                if matches!(next, '\n' | '\r' | '\0') {
                    return Err(refused(next));
                }
                let word = word.get_or_insert_default();
                if quote == Quote::Double && !matches!(next, '"' | '\\' | '$' | '`') {
                    word.push('\\');
                }
                word.push(next);
            }
            ('\'', Quote::None) => (quote, word) = (Quote::Single, Some(word.unwrap_or_default())),
            ('"', Quote::None) => (quote, word) = (Quote::Double, Some(word.unwrap_or_default())),
            (_, Quote::None) if letter.is_ascii_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if quote != Quote::None {
        return Err("Invalid input: a quote is not closed.".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_commands_keep_their_words() {
        for (command, quoted) in [
            (" ls  -la ", "'ls' '-la'"),
            ("echo 'a $b; `c`' \"x;|&<>y\"", "'echo' 'a $b; `c`' 'x;|&<>y'"),
            (r#"echo "it's" \; a\ b """#, r"'echo' 'it'\''s' ';' 'a b' ''"),
            ("echo *", "'echo' '*'"),
        ] {
            assert_eq!(check_simple_command(command).as_deref(), Ok(quoted), "{command}");
        }
    }

    #[test]
    fn compound_commands_and_absolute_paths_are_refused() {
        for command in [
            "",
            "  ",
            "a; b",
            "a & b",
            "a | b",
            "a `b`",
            "a \"`b`\"",
            "a < b",
            "a > b",
            "a\nb",
            "a '\n'",
            "a \\\nb",
            "a $b",
            "a \"$b\"",
            "a ；b",
            "a ｜ b",
            "a 'b",
            "a \"b",
            "a \\",
            "cat /etc/passwd",
            "grep --file=/etc/passwd x",
            "cat ~/x",
        ] {
            let error = check_simple_command(command).unwrap_err();
            assert!(error.starts_with("Invalid input: "), "{command}: {error}");
        }
    }
}
