//! Counters of structures and words that the project removes step by step. A number may only fall: a change that lowers it
//! writes the new one here.

use std::collections::{BTreeMap, BTreeSet};

use super::source::SourceFile;
use super::{find_matches, package_files, product_sources, read};

/// Structures of product files, with their exact numbers.
const STRUCTURES: &[(&str, Count, usize)] = &[
    ("parameters that are tuples", count_tuple_parameters, 0),
    ("files with `impl LeasedConversation`", count_files_of_leased_conversation, 12),
    ("stored members of `Head`", count_members_of_head, 56),
    ("files of `turn` that name MCP", count_files_of_turn_with_mcp, 1),
    ("files with `Box::pin`", count_files_with_boxed_futures, 81),
    ("names of types that several files declare", count_repeated_types, 0),
];

/// Words that have a better one in the vocabulary, with the most uses that the packages may have, tests included, and
/// what to write. Names in stored documents and in the public API keep theirs.
const WORDS: &[(&str, usize, &str)] = &[
    ("answer", 708, "response, result"),
    ("answered", 94, "responded"),
    ("answers", 212, "responses, results"),
    ("asked", 204, "requested"),
    ("asking", 43, "requesting"),
    ("asks", 98, "requests"),
    ("books", 7, "ledger"),
    ("boundary", 22, "fail point"),
    ("claim", 79, "lease"),
    ("fate", 1, "injected fault"),
    ("halt", 14, "fail point"),
    ("heard", 17, "read, received"),
    ("hold", 97, "lease, keep"),
    ("look", 299, "read, poll, scan"),
    ("looked", 5, "read"),
    ("nobody", 31, "a noun"),
    ("owed", 23, "pending"),
    ("probe", 10, "fail point"),
    ("raise", 9, "limit increase"),
    ("said", 62, "emitted, returned"),
    ("say", 55, "emit, return, report"),
    ("says", 41, "returns, reports"),
    ("shelf", 2, "ledger"),
    ("tell", 16, "emit, report"),
    ("what", 264, "a noun"),
    ("who", 78, "a noun"),
];

type Count = fn(&[SourceFile]) -> usize;

fn count_files(sources: &[SourceFile], pattern: &str) -> usize {
    sources
        .iter()
        .filter(|source| !find_matches(std::slice::from_ref(source), pattern).is_empty())
        .count()
}

fn count_files_of_leased_conversation(sources: &[SourceFile]) -> usize {
    count_files(sources, r"\bimpl\b.*\bLeasedConversation\b.*\{")
}

fn count_files_with_boxed_futures(sources: &[SourceFile]) -> usize {
    count_files(sources, r"\bBox::pin\b")
}

fn count_files_of_turn_with_mcp(sources: &[SourceFile]) -> usize {
    let of_turn = sources.iter().filter(|source| source.path.starts_with("crates/turn/"));
    of_turn.filter(|source| source.code.to_ascii_lowercase().contains("mcp")).count()
}

fn count_members_of_head(sources: &[SourceFile]) -> usize {
    let definitions =
        sources.iter().filter_map(|source| source.code.split_once("pub struct Head {"));
    definitions
        .map(|(_, rest)| rest.split_once("\n}").map_or(rest, |(members, _)| members))
        .flat_map(|members| members.split("pub ").zip(members.split("pub ").skip(1)))
        .filter(|(before, _)| !before.trim_end().ends_with("#[serde(skip)]"))
        .count()
}

fn count_repeated_types(sources: &[SourceFile]) -> usize {
    let declaration =
        regex::Regex::new(r"(?m)^pub(?:\([a-z]+\))? (?:struct|enum|trait|type) (\w+)")
            .expect("the pattern must be valid");
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        for (_, [name]) in declaration.captures_iter(&source.code).map(|found| found.extract()) {
            files.entry(name).or_default().insert(&source.path);
        }
    }
    files.values().filter(|paths| paths.len() > 1).count()
}

fn count_tuple_parameters(sources: &[SourceFile]) -> usize {
    let tuple =
        regex::Regex::new(r":\s*&?(mut )?\(\s*([^)\s]\w*)").expect("the pattern must be valid");
    let parameters = sources.iter().flat_map(|source| parameter_lists(&source.code));
    let is_tuple = |found: &regex::Captures<'_>| !matches!(&found[2], "dyn" | "impl");
    parameters.map(|list| tuple.captures_iter(list).filter(is_tuple).count()).sum()
}

/// The texts between the parentheses of functions.
fn parameter_lists(code: &str) -> Vec<&str> {
    let function = regex::Regex::new(r"\bfn \w+").expect("the pattern must be valid");
    function.find_iter(code).filter_map(|name| parameter_list(code.get(name.end()..)?)).collect()
}

/// The first parenthesised text that stands outside of angle brackets.
fn parameter_list(signature: &str) -> Option<&str> {
    let mut angles = 0_u32;
    let mut depth = 0_u32;
    let mut start = None;
    let mut before = ' ';
    for (at, c) in signature.char_indices() {
        match c {
            '<' if start.is_none() => angles += 1,
            '>' if start.is_none() && before != '-' => angles = angles.saturating_sub(1),
            '(' if angles == 0 => {
                depth += 1;
                start = start.or(Some(at + 1));
            }
            ')' if angles == 0 => {
                depth -= 1;
                if depth == 0 {
                    return signature.get(start?..at);
                }
            }
            _ => {}
        }
        before = c;
    }
    None
}

#[test]
fn counted_structures_only_fall() {
    let sources = product_sources();
    let numbers = |(name, count, limit): &(&str, Count, usize)| {
        let number = count(&sources);
        (number != *limit).then(|| format!("{name}: {number}, the list says {limit}"))
    };
    let differences: Vec<String> = STRUCTURES.iter().filter_map(numbers).collect();
    assert!(
        differences.is_empty(),
        "{}\nA higher number needs another design. Write a lower one into the list.",
        differences.join("\n")
    );
}

#[test]
fn counted_words_only_fall() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    // The words of these checks are no names of the product.
    for path in package_files().into_iter().filter(|path| !path.starts_with("crates/tidy/")) {
        let text = read(&path).to_ascii_lowercase();
        for word in text.split(|c: char| !c.is_ascii_alphabetic()) {
            *counts.entry(word.to_owned()).or_default() += 1;
        }
    }
    let numbers = |(word, limit, instead): &(&str, usize, &str)| {
        let number = counts.get(*word).copied().unwrap_or(0);
        (number > *limit)
            .then(|| format!("`{word}`: {number} uses, at most {limit}: write {instead}"))
    };
    let found: Vec<String> = WORDS.iter().filter_map(numbers).collect();
    assert_eq!(found, [""; 0]);
}

#[test]
fn tuple_parameters_are_counted() {
    let count = |text: &str| count_tuple_parameters(&[SourceFile::new("src/x.rs", text)]);
    assert_eq!(
        count("fn f(a: u8, (b, c): (&str, u8)) {}\nfn g<T: Fn(u8) -> u8>(pair: &(u8, u8)) {}"),
        2
    );
    assert_eq!(
        count(
            "fn f(run: impl Fn((u8, u8)) -> u8, none: (), e: &(dyn A + B)) -> (u8, u8) { let x: (u8, u8) = y; }"
        ),
        0
    );
}
