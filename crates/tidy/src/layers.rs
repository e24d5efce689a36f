//! The graph of packages, layers of modules, and import circles of files.

use std::collections::{BTreeMap, BTreeSet};

use super::source::SourceFile;
use super::{files, product_sources, read};

/// The graph of packages in `docs/architecture.md`: each row names a package and the packages that it uses.
const PAGE: &str = "docs/architecture.md";

/// Modules of one package that do not use each other, and the exceptions with their reasons.
const SEPARATE: &[(&str, &[&str])] = &[("storage", &["artifacts", "live", "queue", "store"])];
const EXCEPTIONS: &[(&str, &str, &str)] =
    &[("storage::live", "storage::store", "the store is the only channel between instances")];

/// The packages of this workspace that a package uses, without those of its tests.
fn used_packages(manifest: &str) -> BTreeSet<String> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.strip_prefix("turnwheel-"));
    names.map(|line| line.split(['.', ' ']).next().unwrap_or_default().to_owned()).collect()
}

/// The packages, each with those that it uses, as the manifests say.
fn package_graph() -> BTreeMap<String, BTreeSet<String>> {
    let manifests = files("crates", |path| path.ends_with("/Cargo.toml"));
    let packages = manifests.iter().filter_map(|path| path.split('/').nth(1)).map(str::to_owned);
    let read_graph = |name: String| {
        let used = used_packages(&read(&format!("crates/{name}/Cargo.toml")));
        (name, used)
    };
    let root = ("turnwheel".to_owned(), used_packages(&read("Cargo.toml")));
    packages.map(read_graph).chain([root]).collect()
}

/// The rows `| [name](link) | purpose | used packages |` of the page.
fn documented_graph(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let section = page.split("\n## Packages\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let name = regex::Regex::new(r"`([\w-]+)`").unwrap();
    let names = |cell: &str| -> BTreeSet<String> {
        name.captures_iter(cell).map(|found| found[1].to_owned()).collect()
    };
    let mut graph = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [package, _, used] = cells[..] else { panic!("three cells: {row}") };
        let used = names(used);
        graph.extend(names(package).into_iter().map(|package| (package, used.clone())));
    }
    graph
}

/// Uses between modules that must stay separate, as sentences.
fn layer_violations(sources: &[SourceFile]) -> BTreeSet<String> {
    let unit_of = |path: &str| {
        let (package, rest) = path.split_once("::")?;
        let (_, units) = SEPARATE.iter().find(|(name, _)| *name == package)?;
        let first = rest.split("::").next()?;
        units.contains(&first).then(|| format!("{package}::{first}"))
    };
    let mut violations = BTreeSet::new();
    for source in sources {
        let Some(user) = unit_of(&source.module()) else { continue };
        for used in source.paths_used().iter().filter_map(|path| unit_of(path)) {
            let is_exception =
                EXCEPTIONS.iter().any(|(from, to, _)| (*from, *to) == (&*user, &*used));
            if used != user && !is_exception {
                violations.insert(format!("{}: `{user}` must not use `{used}`", source.path));
            }
        }
    }
    violations
}

/// The files that each file imports, as modules. A parent may name its children.
fn import_graph(sources: &[SourceFile]) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeSet<String> = sources.iter().map(SourceFile::module).collect();
    let file_of = |path: &str| {
        let mut path = path;
        while !modules.contains(path) {
            path = path.rsplit_once("::")?.0;
        }
        Some(path.to_owned())
    };
    let imports = |source: &SourceFile| {
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
fn page_shows_the_graph_of_packages() {
    assert_eq!(documented_graph(&read(PAGE)), package_graph(), "{PAGE}, section Packages");
}

#[test]
fn separate_modules_do_not_use_each_other() {
    assert_eq!(layer_violations(&product_sources()), BTreeSet::new());
}

#[test]
fn import_circles_have_at_most_two_files() {
    assert_eq!(import_circles(&import_graph(&product_sources())), Vec::<Vec<String>>::new());
}

#[test]
fn layer_exceptions_are_used() {
    let sources = product_sources();
    for (from, to, why) in EXCEPTIONS {
        let is_below =
            |path: &str, unit: &str| path == unit || path.starts_with(&format!("{unit}::"));
        let mut users = sources.iter().filter(|source| is_below(&source.module(), from));
        let is_used = users.any(|source| source.paths_used().iter().any(|path| is_below(path, to)));
        assert!(is_used, "`{from}` no longer uses `{to}` ({why}): remove the exception");
    }
}

#[test]
fn layer_violations_are_detected() {
    let violations_of = |path: &str, text: &str| -> Vec<String> {
        layer_violations(&[SourceFile::new(path, text)]).into_iter().collect()
    };
    assert_eq!(
        violations_of("crates/storage/src/store/memory.rs", "use crate::{store::A, queue::Queue};"),
        ["crates/storage/src/store/memory.rs: `storage::store` must not use `storage::queue`"]
    );
    assert_eq!(
        violations_of("crates/storage/src/queue.rs", "fn f() { super::store::g() }"),
        ["crates/storage/src/queue.rs: `storage::queue` must not use `storage::store`"]
    );
    for allowed in
        ["use crate::queue::{self, Queue};", "// crate::store\nlet s = \"crate::store\";"]
    {
        assert_eq!(violations_of("crates/storage/src/queue/memory.rs", allowed), [""; 0]);
    }
    assert_eq!(
        violations_of("crates/storage/src/live/shared.rs", "use crate::store::Write;"),
        [""; 0]
    );
    let manifest = "[dependencies]\nserde.workspace = true\nturnwheel-a-b.workspace = true\n\n[dev-dependencies]\nturnwheel-c.workspace = true\n";
    let manifest = format!("[package]\n{manifest}");
    assert_eq!(used_packages(&manifest), BTreeSet::from(["a-b".to_owned()]));
}

#[test]
fn import_circles_are_detected() {
    let of = |files: &[(&str, &str)]| {
        let sources: Vec<SourceFile> =
            files.iter().map(|(path, text)| SourceFile::new(path, text)).collect();
        import_circles(&import_graph(&sources))
    };
    let pair =
        [("crates/x/src/a.rs", "use crate::b::B;"), ("crates/x/src/b.rs", "use crate::{c, a::A};")];
    assert_eq!(of(&pair), Vec::<Vec<String>>::new());
    let circle = [pair[0], pair[1], ("crates/x/src/c.rs", "fn f() { crate::a::f() }")];
    assert_eq!(of(&circle), [["x::a", "x::b", "x::c"]]);
    let family = [
        ("crates/x/src/a.rs", "use self::b::B; use self::c::C;"),
        ("crates/x/src/a/b.rs", "use super::A;"),
        ("crates/x/src/a/c.rs", "use super::A;"),
    ];
    assert_eq!(of(&family), Vec::<Vec<String>>::new());
}
