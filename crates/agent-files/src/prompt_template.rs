//! Prompt templates: texts with places for arguments, which users send as `/name arguments`.

/// Maximum bytes of an input that a template or a skill expands to.
pub const EXPANDED_BYTES_MAX: usize = 256 * 1024;
/// Characters of a description that is the first line of the template.
const DESCRIPTION_CHARS_MAX: usize = 60;

/// A prompt template of the app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptTemplate {
    /// Without the slash: the file name without `.md`.
    pub name: String,
    pub description: String,
    /// Text for clients to show after the name.
    pub argument_hint: Option<String>,
    /// Path of its file in messages.
    pub location: String,
    pub body: String,
}

impl PromptTemplate {
    /// The template with these arguments in place of `$1`, `$@`, `$ARGUMENTS`, `${@:N}` and
    /// `${@:N:L}`. A place without its argument is empty. Arguments are not expanded again.
    ///
    /// # Errors
    /// The result is larger than [`EXPANDED_BYTES_MAX`].
    pub fn expand(&self, arguments: &str) -> Result<String, ExpansionTooLarge> {
        let arguments = parse_arguments(arguments);
        let mut expanded = String::with_capacity(self.body.len());
        let mut rest = self.body.as_str();
        while let Some((before, after)) = rest.split_once('$') {
            expanded.push_str(before);
            if let Some((place, remaining)) = Place::parse(after) {
                place.push_arguments(&arguments, &mut expanded);
                rest = remaining;
            } else {
                expanded.push('$');
                rest = after;
            }
            if expanded.len() > EXPANDED_BYTES_MAX {
                return Err(ExpansionTooLarge);
            }
        }
        expanded.push_str(rest);
        if expanded.len() > EXPANDED_BYTES_MAX { Err(ExpansionTooLarge) } else { Ok(expanded) }
    }
}

/// An expanded input is larger than [`EXPANDED_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpansionTooLarge;

/// A place for arguments: those from `start` on, counted from 0, at most `count`.
struct Place {
    start: usize,
    count: usize,
}

impl Place {
    const ALL: Self = Self { start: 0, count: usize::MAX };

    /// The place that follows a `$`, and the text after it.
    fn parse(text: &str) -> Option<(Self, &str)> {
        if let Some(rest) = text.strip_prefix("ARGUMENTS").or_else(|| text.strip_prefix('@')) {
            return Some((Self::ALL, rest));
        }
        if let Some(slice) = text.strip_prefix("{@:") {
            let (start, rest) = split_number(slice)?;
            // As in a shell, 0 is the first one, too.
            let start = start.saturating_sub(1);
            if let Some(rest) = rest.strip_prefix('}') {
                return Some((Self { start, ..Self::ALL }, rest));
            }
            let (count, rest) = split_number(rest.strip_prefix(':')?)?;
            return Some((Self { start, count }, rest.strip_prefix('}')?));
        }
        let (number, rest) = split_number(text)?;
        // There is no argument 0.
        let place = match number.checked_sub(1) {
            Some(start) => Self { start, count: 1 },
            None => Self { start: 0, count: 0 },
        };
        Some((place, rest))
    }

    fn push_arguments(&self, arguments: &[String], expanded: &mut String) {
        let places = arguments.iter().skip(self.start).take(self.count);
        for (position, argument) in places.enumerate() {
            if position > 0 {
                expanded.push(' ');
            }
            expanded.push_str(argument);
        }
    }
}

/// The decimal number at the beginning, and the text after it. A number that is too large is the
/// largest one.
fn split_number(text: &str) -> Option<(usize, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end).filter(|(digits, _)| !digits.is_empty())?;
    Some((digits.parse().unwrap_or(usize::MAX), rest))
}

/// Splits arguments at spaces and tabs. Single and double quotes group.
fn parse_arguments(text: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut current = String::new();
    let mut quote = None;
    for character in text.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, ' ' | '\t') => {
                if !current.is_empty() {
                    arguments.push(std::mem::take(&mut current));
                }
            }
            (Some(_) | None, _) => current.push(character),
        }
    }
    if !current.is_empty() {
        arguments.push(current);
    }
    arguments
}

/// The description of a template without one: the beginning of its first line with text.
pub(super) fn describe_by_first_line(body: &str) -> String {
    let line = body.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut description: String = line.chars().take(DESCRIPTION_CHARS_MAX).collect();
    if description.len() < line.len() {
        description.push_str("...");
    }
    description
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expand(body: &str, arguments: &str) -> String {
        let template = PromptTemplate {
            name: "t".to_owned(),
            description: String::new(),
            argument_hint: None,
            location: String::new(),
            body: body.to_owned(),
        };
        template.expand(arguments).unwrap()
    }

    #[test]
    fn places_are_filled_as_in_the_source() {
        for (body, arguments, expected) in [
            ("$1 and $2", "a b", "a and b"),
            ("$1-$2-$3", "a", "a--"),
            ("$@ | $ARGUMENTS", "a b c", "a b c | a b c"),
            ("${@:2}", "a b c", "b c"),
            ("${@:2:1}", "a b c", "b"),
            ("${@:0}", "a b", "a b"),
            ("${@:2:0}|${@:9}", "a b", "|"),
            ("$0|$10", "a b", "|"),
            ("$1", "\"two words\" x", "two words"),
            ("$2", "x 'it is \"so\"'", "it is \"so\""),
            ("$1$2", "a\tb", "ab"),
            ("$1", "\"open quote", "open quote"),
            ("$1", "\"\" b", "b"),
            ("$ $x ${1} $", "a", "$ $x ${1} $"),
            ("${@:x} ${@:1", "a", "${@:x} ${@:1"),
            ("$ARGUMENTSx", "a", "ax"),
            ("$99999999999999999999999", "a", ""),
            ("no places", "a b", "no places"),
        ] {
            assert_eq!(expand(body, arguments), expected, "{body} with {arguments}");
        }
    }

    #[test]
    fn large_expansion_is_an_error() {
        let template = PromptTemplate {
            name: "t".to_owned(),
            description: String::new(),
            argument_hint: None,
            location: String::new(),
            body: "$@".repeat(1000),
        };
        assert_eq!(template.expand(&"x".repeat(1000)), Err(ExpansionTooLarge));
        assert!(template.expand(&"x".repeat(100)).is_ok());
    }

    #[test]
    fn first_line_describes_a_template() {
        assert_eq!(describe_by_first_line("\n\nReview it.\nMore"), "Review it.");
        assert_eq!(describe_by_first_line(&"x".repeat(70)), format!("{}...", "x".repeat(60)));
    }

    proptest! {
        #[test]
        fn arguments_are_not_expanded_again(argument in r"[$@{}:A-Z0-9]{1,12}") {
            prop_assert_eq!(expand("<$1>", &argument), format!("<{argument}>"));
            prop_assert_eq!(expand("<$@>", &argument), format!("<{argument}>"));
        }

        #[test]
        fn any_template_expands(body in ".{0,80}", arguments in ".{0,40}") {
            let expanded = expand(&body, &arguments);
            prop_assert!(body.contains('$') || expanded == body);
        }
    }
}
