//! Items that are public although no other package uses them.

use std::collections::BTreeSet;

use super::{TEST_PACKAGES, files, is_rust, package_files, read};

/// Functions of the library's API, which only programs of users call.
const API: &[&str] = &[
    "add_file",
    "display_output",
    "display_widget",
    "into_json",
    "not_by_requester",
    "result_text",
    "save_artifact",
];

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn package_of(path: &str) -> &str {
    path.strip_prefix("crates/").and_then(|path| path.split('/').next()).unwrap_or("turnwheel")
}

/// Names of the functions, constants and modules that are public without restriction. Types can be
/// part of a signature without being named elsewhere.
fn public_names(text: &str) -> BTreeSet<String> {
    let item = regex::Regex::new(
        r"(?m)^[ \t]*pub (?:(?:const|async) )*(?:fn|const|static|mod) ([A-Za-z]\w*)",
    )
    .unwrap();
    item.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

#[test]
fn public_items_are_used_in_another_package() {
    let of_root = ["tests", "benches", "examples"].iter().flat_map(|folder| files(folder, is_rust));
    let pages = files("docs", super::root::is_markdown);
    let texts: Vec<(String, String)> = package_files()
        .into_iter()
        .chain(of_root)
        .chain(pages)
        .map(|path| (path.clone(), read(&path)))
        .collect();
    let mut unused = BTreeSet::new();
    let packages: BTreeSet<&str> = texts.iter().map(|(path, _)| package_of(path)).collect();
    let checked =
        packages.into_iter().filter(|name| *name != "turnwheel" && !TEST_PACKAGES.contains(name));
    for package in checked {
        let (own, others): (Vec<_>, Vec<_>) =
            texts.iter().partition(|(path, _)| package_of(path) == package);
        let used: BTreeSet<&str> = others.iter().flat_map(|(_, text)| words(text)).collect();
        for (path, text) in own {
            let names = public_names(text).into_iter();
            let names = names.filter(|name| !used.contains(&**name) && !API.contains(&&**name));
            unused.extend(names.map(|name| format!("{path}: `{name}`")));
        }
    }
    assert_eq!(unused, BTreeSet::new(), "write `pub(crate)`");
}

#[test]
fn public_names_are_found() {
    let text = "pub fn a() {}\n    pub async fn b() {}\npub const C: u8 = 1;\npub(crate) fn d() {}\nfn e() {}\npub struct F;";
    assert_eq!(public_names(text), ["C", "a", "b"].map(str::to_owned).into());
}
