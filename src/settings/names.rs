//! Detection of unknown setting names, so that a mistyped limit or sign-in is not silently absent.

use super::mistake::Mistake;
use super::table;

const PREFIX: &str = "TURNWHEEL_";
/// Variables of this repository's tests and benchmarks, inherited by the programs that they start.
const OF_TESTS: [&str; 6] = [
    "TURNWHEEL_BICEP_TYPES",
    "TURNWHEEL_CLUSTER",
    "TURNWHEEL_FUZZ",
    "TURNWHEEL_KILLS",
    "TURNWHEEL_SHARED",
    "TURNWHEEL_WEEKS",
];

/// One error for each name that has our prefix and is not in the table, with the most similar known
/// name.
pub(super) fn unknown(names: impl IntoIterator<Item = String>) -> Vec<Mistake> {
    let mut unknown: Vec<String> = names.into_iter().filter(|name| is_unknown(name)).collect();
    unknown.sort();
    unknown.dedup();
    unknown.into_iter().map(|name| Mistake::of(&name, problem(&name))).collect()
}

fn is_unknown(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    // Windows ignores the case of a variable's name.
    let known = if cfg!(windows) { &upper } else { name };
    upper.starts_with(PREFIX) && table::row(known).is_none() && !OF_TESTS.contains(&known)
}

fn problem(name: &str) -> String {
    let upper = name.to_ascii_uppercase();
    let ours = table::ROWS.iter().map(|row| row.name).filter(|known| known.starts_with(PREFIX));
    let nearest = ours.map(|known| (strsim::damerau_levenshtein(&upper, known), known)).min();
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

    fn of(names: &[&str]) -> Vec<String> {
        let names = names.iter().map(|name| (*name).to_owned());
        unknown(names).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn mistyped_names_are_reported_with_the_nearest() {
        assert_eq!(
            of(&["TURNWHEEL_BUDGET", "TURNWHEEL_AUHT", "TURNWHEEL_AGENT_DIR", "TURNWHEEL_COLOUR"]),
            [
                "TURNWHEEL_AGENT_DIR is no setting: did you mean TURNWHEEL_AGENTS_DIR?",
                "TURNWHEEL_AUHT is no setting: did you mean TURNWHEEL_AUTH?",
                "TURNWHEEL_BUDGET is no setting: did you mean TURNWHEEL_BUDGETS?",
                "TURNWHEEL_COLOUR is no setting: remove it; docs/settings.md lists all settings",
            ]
        );
        #[cfg(not(windows))]
        assert_eq!(
            of(&["turnwheel_auth"]),
            ["turnwheel_auth is no setting: did you mean TURNWHEEL_AUTH?"]
        );
    }

    #[test]
    fn names_of_the_table_of_tests_and_of_others_pass() {
        let names: Vec<&str> = table::ROWS.iter().map(|row| row.name).collect();
        assert_eq!(of(&names), [""; 0]);
        assert_eq!(of(&OF_TESTS), [""; 0]);
        assert_eq!(of(&["PATH", "AZURE_OPENAI_ENDPONT", "MY_TURNWHEEL_X", "TURNWHEELS"]), [""; 0]);
    }
}
