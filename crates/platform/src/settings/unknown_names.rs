//! Detection of unknown setting names, so that a mistyped limit or sign-in is not silently absent.

use super::mistake::SettingMistake;
use super::table;

const PREFIX: &str = "TURNWHEEL_";
/// Variables of this repository's tests and benchmarks, inherited by the programs that they start.
const TEST_VARIABLES: [&str; 10] = [
    "TURNWHEEL_BICEP_TYPES",
    "TURNWHEEL_CLIENTS",
    "TURNWHEEL_CLUSTER",
    "TURNWHEEL_FUZZ",
    "TURNWHEEL_KILLS",
    "TURNWHEEL_RECOVERY",
    "TURNWHEEL_SHARED",
    "TURNWHEEL_TIMING",
    "TURNWHEEL_VALIDATIONS",
    "TURNWHEEL_WEEKS",
];

/// Credentials of the terminal commands, which may be set where a service starts too.
const CLIENT_VARIABLES: [&str; 2] = ["TURNWHEEL_KEY", "TURNWHEEL_TOKEN"];

/// One error for each name that has our prefix and is not in the table, with the most similar known
/// name.
pub(super) fn find_unknown(names: impl IntoIterator<Item = String>) -> Vec<SettingMistake> {
    let mut unknown: Vec<String> = names.into_iter().filter(|name| is_unknown(name)).collect();
    unknown.sort();
    unknown.dedup();
    unknown.into_iter().map(|name| SettingMistake::new(&name, describe_unknown(&name))).collect()
}

fn is_unknown(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    // Windows ignores the case of a variable's name.
    let known = if cfg!(windows) { &upper } else { name };
    upper.starts_with(PREFIX)
        && table::find_row(known).is_none()
        && !TEST_VARIABLES.contains(&known)
        && !CLIENT_VARIABLES.contains(&known)
}

fn describe_unknown(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    let known_names =
        table::ROWS.iter().map(|row| row.name).filter(|known| known.starts_with(PREFIX));
    let nearest =
        known_names.map(|known| (strsim::damerau_levenshtein(&upper, known), known)).min();
    match nearest {
        Some((distance, known)) if distance <= (name.len() - PREFIX.len()).div_ceil(3) => {
            format!("is no setting: did you mean {known}?")
        }
        _ => "is no setting: remove it; docs/settings.md lists all settings".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_unknown_texts(names: &[&str]) -> Vec<String> {
        let names = names.iter().map(|name| (*name).to_owned());
        find_unknown(names).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn mistyped_name_is_reported_with_nearest_name() {
        assert_eq!(
            find_unknown_texts(&[
                "TURNWHEEL_BUDGET",
                "TURNWHEEL_AUHT",
                "TURNWHEEL_AGENT_DIR",
                "TURNWHEEL_COLOUR"
            ]),
            [
                "TURNWHEEL_AGENT_DIR is no setting: did you mean TURNWHEEL_AGENTS_DIR?",
                "TURNWHEEL_AUHT is no setting: did you mean TURNWHEEL_AUTH?",
                "TURNWHEEL_BUDGET is no setting: did you mean TURNWHEEL_BUDGETS?",
                "TURNWHEEL_COLOUR is no setting: remove it; docs/settings.md lists all settings",
            ]
        );
        #[cfg(not(windows))]
        assert_eq!(
            find_unknown_texts(&["turnwheel_auth"]),
            ["turnwheel_auth is no setting: did you mean TURNWHEEL_AUTH?"]
        );
    }

    #[test]
    fn known_and_foreign_names_are_accepted() {
        let names: Vec<&str> = table::ROWS.iter().map(|row| row.name).collect();
        assert_eq!(find_unknown_texts(&names), [""; 0]);
        assert_eq!(find_unknown_texts(&TEST_VARIABLES), [""; 0]);
        assert_eq!(
            find_unknown_texts(&["PATH", "AZURE_OPENAI_ENDPONT", "MY_TURNWHEEL_X", "TURNWHEELS"]),
            [""; 0]
        );
    }
}
