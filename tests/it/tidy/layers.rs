//! Layers of modules, and import circles of files.

use std::collections::{BTreeMap, BTreeSet};

use super::product_sources;
use super::source::Source;

/// From the top down. A unit uses only units of later rows, and none of its own row. A unit is a module with all below it,
/// except for units named separately.
const LAYERS: &[&[&str]] = &[
    &["main", "testing"],
    &["app"],
    &["bench", "certify", "doctor", "package"],
    &["azurite", "host", "http"],
    &["turn"],
    &["schedules"],
    &["commands"],
    &["queries"],
    &["commands::idempotency"],
    &["queries::load"],
    &["ledger", "notifications", "turn::expiry", "turn::head_commit"],
    &["turn::error_domain", "turn::event_log", "turn::nudge_sender"],
    &["commands::contract"],
    &["services"],
    &["ledger::spending_limits", "turn::isolator"],
    &["commands::request_locks", "ledger::account", "ledger::locks", "ledger::rate_limit"],
    &[
        "notifications::sender",
        "turn::abort_channel",
        "turn::entry_cache",
        "turn::user_documents",
        "turn::workspace_context::cache",
    ],
    &["turn::documents", "turn::error", "turn::nudge"],
    &["agents", "payments"],
    &["extensions", "fail_points"],
    &["artifacts", "live", "model", "queue", "store", "tools"],
    &["agent", "azure"],
    &["server", "telemetry"],
    &["settings"],
    &["ids"],
    &["clock"],
    &["digest", "error_chain", "shutdown", "text_encoding", "webhook_signature"],
];

/// Allowed uses within a row or upwards, with their reasons.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("tools", "artifacts", "a tool's output is stored before the commit that names it"),
    ("live", "store", "the store is the only channel between instances"),
    ("queries", "schedules", "the backlog recognises the documents of schedules"),
    ("turn::isolator", "services", "an isolator runs a turn with the services that hold it"),
];

/// The unit of a module or of a path below it.
fn unit_of(path: &str) -> Option<(usize, &'static str)> {
    let rows = LAYERS.iter().enumerate();
    let units = rows.flat_map(|(row, units)| units.iter().map(move |unit| (row, *unit)));
    let is_in = |unit: &str| {
        path.strip_prefix(unit).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    units.filter(|(_, unit)| is_in(unit)).max_by_key(|(_, unit)| unit.len())
}

/// Violations of the layer rules, as sentences.
fn layer_violations(sources: &[Source]) -> Vec<String> {
    let mut violations = BTreeSet::new();
    for source in sources.iter().filter(|source| !source.module().is_empty()) {
        let Some((user_row, user)) = unit_of(&source.module()) else {
            violations.insert(format!("{}: put its module into LAYERS", source.path));
            continue;
        };
        for path in source.paths_used() {
            let Some((used_row, used)) = unit_of(&path) else { continue };
            let is_exception = EXCEPTIONS.iter().any(|(from, to, _)| (*from, *to) == (user, used));
            if used != user && used_row <= user_row && !is_exception {
                violations.insert(format!("{}: `{user}` must not use `{used}`", source.path));
            }
        }
    }
    violations.into_iter().collect()
}

/// The files that each file imports, as modules. A parent may name its children.
fn import_graph(sources: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeSet<String> = sources.iter().map(Source::module).collect();
    let file_of = |path: &str| {
        let mut path = path;
        while !modules.contains(path) {
            path = path.rsplit_once("::")?.0;
        }
        Some(path.to_owned())
    };
    let imports = |source: &Source| {
        let module = source.module();
        let below = format!("{module}::");
        let files =
            source.paths_used().iter().filter_map(|path| file_of(path)).collect::<BTreeSet<_>>();
        files.into_iter().filter(|file| *file != module && !file.starts_with(&below)).collect()
    };
    sources.iter().map(|source| (source.module(), imports(source))).collect()
}

/// Groups of more than two files that import each other, directly or through others.
fn import_circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reachable = |from: &String| {
        let mut seen: BTreeSet<&String> = BTreeSet::new();
        let mut open = vec![from];
        while let Some(module) = open.pop() {
            for next in graph.get(module).into_iter().flatten() {
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|module| (module, reachable(module))).collect();
    let group = |module: &String| -> Vec<String> {
        let mutual = reach.get(module).into_iter().flatten();
        mutual
            .filter(|other| reach.get(*other).is_some_and(|back| back.contains(module)))
            .map(|other| (*other).clone())
            .collect()
    };
    let groups: BTreeSet<Vec<String>> = graph.keys().map(group).collect();
    groups.into_iter().filter(|group| group.len() > 2).collect()
}

#[test]
fn modules_use_only_lower_layers() {
    assert_eq!(layer_violations(&product_sources()), [""; 0]);
}

#[test]
fn import_circles_have_at_most_two_files() {
    assert_eq!(import_circles(&import_graph(&product_sources())), Vec::<Vec<String>>::new());
}

#[test]
fn layer_exceptions_are_used() {
    let used: BTreeSet<(String, String)> = product_sources()
        .iter()
        .flat_map(|source| {
            let user = unit_of(&source.module()).map_or("", |(_, unit)| unit);
            let used = source.paths_used();
            let pairs = used
                .iter()
                .filter_map(|path| unit_of(path))
                .map(|(_, unit)| (user.to_owned(), unit.to_owned()));
            pairs.collect::<Vec<_>>()
        })
        .collect();
    for (from, to, why) in EXCEPTIONS {
        let is_used = used.contains(&((*from).to_owned(), (*to).to_owned()));
        assert!(is_used, "`{from}` no longer uses `{to}` ({why}): remove the exception");
    }
}

#[test]
fn layer_violations_are_detected() {
    let violations_of = |path: &str, text: &str| layer_violations(&[Source::new(path, text)]);
    assert_eq!(
        violations_of("src/turn.rs", "use crate::{agent::head::Head, clock, ids::{A, B}};"),
        [""; 0]
    );
    assert_eq!(
        violations_of("src/agent/step.rs", "// crate::store\nlet s = \"crate::store\";"),
        [""; 0]
    );
    assert_eq!(violations_of("src/tools/run.rs", "use crate::artifacts::Shelf;"), [""; 0]);
    assert_eq!(
        violations_of("src/store/memory.rs", "use crate::{ids::A, queue::Queue};"),
        ["src/store/memory.rs: `store` must not use `queue`"]
    );
    assert_eq!(
        violations_of("src/turn/nudge.rs", "use super::{super::store::Store, delivery::handle};"),
        ["src/turn/nudge.rs: `turn::nudge` must not use `turn`"]
    );
    assert_eq!(
        violations_of("src/agent/step.rs", "fn f() { crate::turn::handle() }"),
        ["src/agent/step.rs: `agent` must not use `turn`"]
    );
    assert_eq!(violations_of("src/misc.rs", ""), ["src/misc.rs: put its module into LAYERS"]);
}

#[test]
fn import_circles_are_detected() {
    let of = |files: &[(&str, &str)]| {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        import_circles(&import_graph(&sources))
    };
    let pair = [("src/a.rs", "use crate::b::B;"), ("src/b.rs", "use crate::{c, a::A};")];
    assert_eq!(of(&pair), Vec::<Vec<String>>::new());
    let circle = [pair[0], pair[1], ("src/c.rs", "fn f() { crate::a::f() }")];
    assert_eq!(of(&circle), [["a", "b", "c"]]);
    let family = [
        ("src/a.rs", "use self::b::B; use self::c::C;"),
        ("src/a/b.rs", "use super::A;"),
        ("src/a/c.rs", "use super::A;"),
    ];
    assert_eq!(of(&family), Vec::<Vec<String>>::new());
}
