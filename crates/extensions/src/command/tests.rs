//! Tests of names and texts of commands.

use super::*;

#[derive(Debug)]
struct Offers(&'static str, &'static [&'static str]);

impl Extension for Offers {
    fn name(&self) -> &str {
        self.0
    }

    fn commands(&self) -> Vec<CommandSpec> {
        self.1.iter().map(|name| CommandSpec::new(*name, "")).collect()
    }
}

fn extensions(all: &[(&'static str, &'static [&'static str])]) -> Vec<Arc<dyn Extension>> {
    all.iter().map(|(name, names)| Arc::new(Offers(name, names)) as Arc<dyn Extension>).collect()
}

#[test]
fn equal_command_names_are_a_mistake_naming_both() {
    let all = extensions(&[("one", &["a", "b"]), ("two", &["b"])]);
    assert_eq!(
        find_command_mistakes(&all),
        ["two commands have the name `b`, of the extensions \"one\" and \"two\": rename one"]
    );
    let twice = extensions(&[("one", &["a", "a"])]);
    assert_eq!(find_command_mistakes(&twice).len(), 1);
}

#[test]
fn reserved_and_invalid_command_names_are_left_out() {
    let long: &'static str = Box::leak("x".repeat(65).into_boxed_str());
    let names: &'static [&'static str] =
        Box::leak(Box::new(["model", "", "A", "a b", "ä", long, "ok", "ns:do-it_2"]));
    let all = extensions(&[("one", names), ("two", &["model"])]);
    assert_eq!(find_command_mistakes(&all).len(), 5, "reserved names are no mistake");
    let usable: Vec<String> = commands_of(all.iter()).map(|command| command.spec.name).collect();
    assert_eq!(usable, ["ok", "ns:do-it_2"]);
}

#[test]
fn command_text_is_split_at_first_space() {
    assert_eq!(parse_call("/do  a b "), Some(("do", " a b ")));
    assert_eq!(parse_call("/do"), Some(("do", "")));
    assert_eq!(parse_call("/do\na"), Some(("do\na", "")));
    assert_eq!(parse_call(" /do"), None);
    assert_eq!(parse_call("do"), None);
}
