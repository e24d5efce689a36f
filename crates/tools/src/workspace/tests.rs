//! Tests of the built-in workspace tools in one conversation.

use serde_json::json;

use super::*;
use crate::test_env::TestEnv;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::message::WorkspaceFile;
use turnwheel_conversation::request::Effect;
use turnwheel_platform::ids::ArtifactId;

pub(super) async fn env_with_files(files: &[(&str, &str)]) -> TestEnv {
    let mut env = TestEnv::new();
    for (path, text) in files {
        env.upload(path, (*text).to_owned()).await;
    }
    env
}

#[test]
fn builtin_tools_declare_their_effects() {
    let effects: Vec<_> = builtins()
        .iter()
        .map(|tool| (tool.definition().name.clone(), tool.definition().effect))
        .collect();
    let expected = [
        ("read", Effect::Read),
        ("write", Effect::Idempotent),
        ("edit", Effect::Idempotent),
        ("ls", Effect::Read),
        ("find", Effect::Read),
        ("grep", Effect::Read),
        ("list", Effect::Read),
        ("replace", Effect::Idempotent),
    ];
    assert_eq!(effects, expected.map(|(name, effect)| (name.to_owned(), effect)));
    assert!(find_builtin("bash").is_none());
    let parameters = |name| find_builtin(name).unwrap().definition().parameters.clone();
    assert_eq!(parameters("edit")["required"], json!(["path", "old_text", "new_text"]));
    assert_eq!(parameters("read")["required"], json!(["path"]));
    assert!(parameters("grep")["properties"]["ignoreCase"].is_object());
}

#[tokio::test]
async fn written_file_is_readable() {
    let mut env = TestEnv::new();
    let args = json!({"path": "./notes/today.md", "content": "Grüße\n"});
    assert_eq!(
        env.call_builtin_text("write", &args).await,
        "Successfully wrote 8 bytes to ./notes/today.md"
    );
    assert_eq!(env.call_builtin_text("read", &json!({"path": "/notes/today.md"})).await, "Grüße\n");
    assert_eq!(env.files.len(), 1);
}

#[tokio::test]
async fn repeated_edit_call_is_idempotent() {
    let env = env_with_files(&[("a.txt", "one two")]).await;
    let edit = find_builtin("edit").unwrap();
    let args = json!({"path": "a.txt", "old_text": "two", "new_text": "three"});
    let arguments = || {
        crate::validate::validate(
            edit.definition(),
            &turnwheel_json::raw::RawJson::from_value(&args),
        )
        .unwrap()
    };
    let context = env.context();
    let first = edit.call(arguments(), context.clone()).await;
    let artifacts_count = env.artifacts.count();
    assert_eq!(edit.call(arguments(), context).await, first);
    assert_eq!(env.artifacts.count(), artifacts_count);
}

#[tokio::test]
async fn long_file_is_read_by_offset() {
    let lines: Vec<String> = (1..=5_000).map(|number| format!("line {number}")).collect();
    let mut env = env_with_files(&[("long.txt", &lines.join("\n"))]).await;
    let text = env.call_builtin_text("read", &json!({"path": "long.txt"})).await;
    assert!(text.starts_with("line 1\nline 2\n"));
    assert!(
        text.ends_with("line 2000\n\n[Showing lines 1-2000 of 5000. Use offset=2001 to continue.]")
    );
    let text = env.call_builtin_text("read", &json!({"path": "long.txt", "offset": 4_001})).await;
    assert!(text.starts_with("line 4001\n") && text.ends_with("\nline 5000"));
    let text =
        env.call_builtin_text("read", &json!({"path": "long.txt", "offset": 3, "limit": 2})).await;
    assert_eq!(text, "line 3\nline 4\n\n[4996 more lines in file. Use offset=5 to continue.]");
    let text = env.call_builtin_text("read", &json!({"path": "long.txt", "offset": 5_001})).await;
    assert_eq!(text, "ERROR Offset 5001 is beyond end of file (5000 lines total)");
}

#[tokio::test]
async fn wide_lines_are_read_completely_within_byte_limit() {
    let lines: Vec<String> =
        (0..300).map(|number| format!("{number:03}{}", "ä".repeat(600))).collect();
    let whole = format!("{}\n", lines.join("\n"));
    let mut env = env_with_files(&[("wide.txt", &whole)]).await;
    let (mut read, mut offset) = (String::new(), 1);
    loop {
        let text =
            env.call_builtin_text("read", &json!({"path": "wide.txt", "offset": offset})).await;
        let Some((part, note)) = text.split_once("\n\n[Showing ") else {
            read.push_str(&text);
            break;
        };
        assert!(part.len() <= TEXT_BYTES_MAX && note.contains("(50.0KB limit)"), "{note}");
        read.push_str(part);
        read.push('\n');
        offset = number_after(note, "offset=");
    }
    assert_eq!(read, whole);
}

#[tokio::test]
async fn long_line_is_read_by_column() {
    let whole = format!("[{}]", "\"ö\",".repeat(30_000));
    let mut env = env_with_files(&[("min.json", &whole)]).await;
    let (mut read, mut column) = (String::new(), 1);
    loop {
        let text =
            env.call_builtin_text("read", &json!({"path": "min.json", "column": column})).await;
        let Some((part, note)) = text.split_once("\n\n[Line 1 is 146.5KB;") else {
            read.push_str(&text);
            break;
        };
        read.push_str(part);
        column = number_after(note, "column=");
    }
    assert_eq!(read, whole);
    let text = env.call_builtin_text("read", &json!({"path": "min.json", "column": 999_999})).await;
    assert!(text.starts_with("ERROR Column 999999 is beyond the end of line 1"), "{text}");
}

fn number_after(note: &str, name: &str) -> u64 {
    let (_, rest) = note.split_once(name).unwrap();
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[tokio::test]
async fn read_accepts_numbers_as_text_and_null() {
    let mut env = env_with_files(&[("a.txt", "1\n2\n3")]).await;
    let args = json!({"path": "a.txt", "offset": "2", "limit": null});
    assert_eq!(env.call_builtin_text("read", &args).await, "2\n3");
}

#[tokio::test]
async fn binary_files_are_not_read_as_text() {
    let mut env = env_with_files(&[("empty", "")]).await;
    env.upload("doc.pdf", b"%PDF\0\x01\x02".to_vec()).await;
    env.upload("latin.txt", b"caf\xe9".to_vec()).await;
    assert_eq!(
        env.call_builtin_text("read", &json!({"path": "doc.pdf"})).await,
        "[Binary file doc.pdf: 7B, application/pdf. It holds no text, so it is not shown.]"
    );
    let text = env.call_builtin_text("read", &json!({"path": "latin.txt"})).await;
    assert!(text.starts_with("caf\u{fffd}\n\n[The file is not valid UTF-8"), "{text}");
    assert_eq!(
        env.call_builtin_text("read", &json!({"path": "empty"})).await,
        "[The file empty is empty.]"
    );
}

#[tokio::test]
async fn image_type_comes_from_its_bytes() {
    let mut env = TestEnv::new();
    env.upload("photo.txt", b"\x89PNG\r\n\x1a\n....".to_vec()).await;
    let result = env.call_builtin("read", &json!({"path": "photo.txt"})).await;
    let Block::Image(image) = &result.content[1] else { panic!("{result:?}") };
    assert_eq!(image.mime_type, "image/png");
}

#[tokio::test]
async fn missing_file_error_suggests_similar_path() {
    let mut env = env_with_files(&[("notes/Today.md", "x"), ("other.bin", "x")]).await;
    let text = env.call_builtin_text("read", &json!({"path": "today.md"})).await;
    assert_eq!(text, "ERROR File not found: today.md. Did you mean notes/Today.md?");
    let text = env.call_builtin_text("read", &json!({"path": "zzz"})).await;
    assert_eq!(text, "ERROR File not found: zzz. The ls tool lists what there is.");
    let text = env.call_builtin_text("read", &json!({"path": "notes"})).await;
    assert_eq!(text, "ERROR notes is a folder: give the path of a file in it.");
}

#[tokio::test]
async fn paths_outside_the_workspace_are_rejected() {
    let mut env = TestEnv::new();
    for path in ["../x", "a/../../x", "..", "a\\..\\x", "/", "", "a/\0", "a\u{202e}b"] {
        for (tool, args) in [
            ("read", json!({"path": path})),
            ("write", json!({"path": path, "content": "x"})),
            ("edit", json!({"path": path, "old_text": "a", "new_text": "b"})),
        ] {
            let text = env.call_builtin_text(tool, &args).await;
            assert!(text.starts_with("ERROR Invalid input: the path "), "{tool} {path:?}: {text}");
        }
    }
    for tool in ["ls", "grep", "find"] {
        let text = env.call_builtin_text(tool, &json!({"path": "../..", "pattern": "x"})).await;
        assert!(text.contains("`..` is not allowed"), "{tool}: {text}");
    }
    let text = env
        .call_builtin_text("write", &json!({"path": ".turnwheel/outputs/x", "content": ""}))
        .await;
    assert!(text.contains("is reserved for Turnwheel"), "{text}");
    assert!(env.files.is_empty());
}

#[tokio::test]
async fn path_cannot_be_both_file_and_folder() {
    let mut env = env_with_files(&[("a", "x"), ("b/c", "x")]).await;
    let text = env.call_builtin_text("write", &json!({"path": "a/d", "content": ""})).await;
    assert_eq!(text, "ERROR a is a file, so a/d cannot be below it.");
    let text = env.call_builtin_text("write", &json!({"path": "b", "content": ""})).await;
    assert_eq!(text, "ERROR b is a folder: choose another name for the file.");
}

#[tokio::test]
async fn workspace_limits_are_reported() {
    let mut env = TestEnv::new();
    let text = env
        .call_builtin_text("write", &json!({"path": "a", "content": "x".repeat(20 * 1024 * 1024)}))
        .await;
    assert_eq!(text, "ERROR The file would have 20.0MB: at most 10.0MB are allowed. Split it.");
    assert_eq!(env.artifacts.count(), 0, "no artifact is saved");

    let file = |size| WorkspaceFile { artifact_id: ArtifactId::new("x"), size };
    env.files = (0..1_000).map(|number| (format!("f{number}"), file(1))).collect();
    let text = env.call_builtin_text("write", &json!({"path": "one-more", "content": ""})).await;
    assert_eq!(text, "ERROR The workspace has its 1000 files: write to one of them.");
    let text = env.call_builtin_text("write", &json!({"path": "f7", "content": ""})).await;
    assert_eq!(text, "Successfully wrote 0 bytes to f7");

    env.files.remove("f8");
    env.files.insert(".turnwheel/outputs/tw_c_0a1b2c3d_1_0.txt".to_owned(), file(1));
    let text = env.call_builtin_text("write", &json!({"path": "f8", "content": ""})).await;
    assert_eq!(text, "Successfully wrote 0 bytes to f8", "outputs do not count");

    env.files = (0..10).map(|number| (format!("f{number}"), file(FILE_BYTES_MAX))).collect();
    let text = env.call_builtin_text("write", &json!({"path": "f11", "content": "x"})).await;
    assert!(text.starts_with("ERROR The workspace would have 100.0MB: at most 100.0MB"), "{text}");
    env.files = [("big".to_owned(), file(50_000_000))].into();
    let text = env.call_builtin_text("read", &json!({"path": "big"})).await;
    assert_eq!(text, "ERROR The file big has 47.7MB: files up to 10.0MB can be read.");
}

#[tokio::test]
async fn edit_changes_one_place_and_returns_diff() {
    let mut env = env_with_files(&[("a.txt", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n")]).await;
    let args = json!({"path": "a.txt", "old_text": "6\n7\n", "new_text": "six\n"});
    let result = env.call_builtin("edit", &args).await;
    assert_eq!(env.read_file("a.txt").await, "1\n2\n3\n4\n5\nsix\n8\n9\n10\n11\n12\n");
    let details = result.details.unwrap().to_value();
    assert_eq!(details["firstChangedLine"], json!(6));
    let shown = [
        "  2 2", "  3 3", "  4 4", "  5 5", "- 6 6", "- 7 7", "+ 6 six", "  8 8", "  9 9",
        " 10 10", " 11 11",
    ];
    assert_eq!(details["diff"], json!(shown.join("\n")));
}

#[tokio::test]
async fn ambiguous_edit_is_rejected() {
    let mut env = env_with_files(&[("a.txt", "aaa b b ä")]).await;
    for (old, new, problem) in [
        ("c", "x", "Could not find the exact text in a.txt"),
        ("b", "x", "Found 2 occurrences of the text in a.txt"),
        ("aa", "x", "Found 2 occurrences of the text in a.txt"),
        ("", "x", "old_text is empty"),
        ("ä", "ä", "No changes made to a.txt"),
    ] {
        let args = json!({"path": "a.txt", "old_text": old, "new_text": new});
        let text = env.call_builtin_text("edit", &args).await;
        assert!(text.starts_with(&format!("ERROR {problem}")), "{old:?}: {text}");
    }
    assert_eq!(env.read_file("a.txt").await, "aaa b b ä");
    env.upload("b.bin", vec![0xff, 0xfe, b'a']).await;
    let text = env
        .call_builtin_text("edit", &json!({"path": "b.bin", "old_text": "a", "new_text": "b"}))
        .await;
    assert_eq!(text, "ERROR b.bin is not UTF-8 text, so it cannot be edited.");
}

#[tokio::test]
async fn edit_keeps_line_endings() {
    for (before, old, new, after) in [
        ("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\nc\r\n"),
        ("a\r\nb\r\nc", "\nc", "", "a\r\nb"),
        ("a\nb\n", "b", "x\r\ny", "a\nx\r\ny\n"),
        ("a\r\nb\nc\r\n", "b\nc", "d", "a\r\nd\r\n"),
        ("\u{feff}a\r\nb", "a\r\nb", "c", "\u{feff}c"),
        ("ä\r\nö\r\n", "ö", "ü", "ä\r\nü\r\n"),
    ] {
        let mut env = env_with_files(&[("a", before)]).await;
        let args = json!({"path": "a", "old_text": old, "new_text": new});
        let text = env.call_builtin_text("edit", &args).await;
        assert_eq!(env.read_file("a").await, after, "{before:?}: {text}");
    }
}

#[tokio::test]
async fn edit_of_repetitive_file_terminates() {
    let mut env = env_with_files(&[("a", &"a".repeat(400_000))]).await;
    let args = json!({"path": "a", "old_text": "a".repeat(200_000), "new_text": "b"});
    assert!(env.call_builtin_text("edit", &args).await.contains("occurrences"));
}

#[tokio::test]
async fn folders_are_derived_from_paths() {
    let mut env =
        env_with_files(&[("b.txt", ""), ("A/x", ""), ("A/y/z", ""), (".hidden", "")]).await;
    assert_eq!(env.call_builtin_text("ls", &json!({})).await, ".hidden\nA/\nb.txt");
    assert_eq!(env.call_builtin_text("ls", &json!({"path": "A/"})).await, "x\ny/");
    assert_eq!(
        env.call_builtin_text("ls", &json!({"path": "nope"})).await,
        "ERROR Path not found: nope"
    );
    let text = env.call_builtin_text("ls", &json!({"path": "b.txt"})).await;
    assert_eq!(text, "ERROR Not a directory: b.txt. The read tool shows it.");
    let text = env.call_builtin_text("ls", &json!({"limit": 1})).await;
    assert_eq!(text, ".hidden\n\n[1 entries limit reached. Use limit=2 for more]");
    assert_eq!(TestEnv::new().call_builtin_text("ls", &json!({})).await, "(empty directory)");
}

#[tokio::test]
async fn find_matches_names_and_paths() {
    let files = [("a.md", ""), ("src/b.md", ""), ("src/deep/c.md", ""), ("src/d.rs", "")];
    let mut env = env_with_files(&files).await;
    for (args, expected) in [
        (json!({"pattern": "*.md"}), "a.md\nsrc/b.md\nsrc/deep/c.md"),
        (json!({"pattern": "src/*.md"}), "src/b.md"),
        (json!({"pattern": "**/*.md"}), "a.md\nsrc/b.md\nsrc/deep/c.md"),
        (json!({"pattern": "/src/**"}), "src/b.md\nsrc/d.rs\nsrc/deep/c.md"),
        (json!({"pattern": "deep/*", "path": "src"}), "src/deep/c.md"),
        (json!({"pattern": "*.{rs,py}"}), "src/d.rs"),
        (json!({"pattern": "x"}), "No files found matching pattern"),
        (
            json!({"pattern": "*", "limit": 1}),
            "a.md\n\n[1 results limit reached. Use limit=2 for more]",
        ),
    ] {
        assert_eq!(env.call_builtin_text("find", &args).await, expected, "{args}");
    }
    for pattern in ["", "[", "{a", &"{a,b}".repeat(300)] {
        let text = env.call_builtin_text("find", &json!({"pattern": pattern})).await;
        assert!(text.starts_with("ERROR The glob pattern"), "{pattern}: {text}");
    }
}

#[tokio::test]
async fn grep_returns_matches_with_context() {
    let text = "one\ntwo\nthree\nfour\nfive\nTWO\nseven\r\neight";
    let mut env =
        env_with_files(&[("a.txt", text), ("src/b.rs", "let two = 2;"), ("c.md", "none")]).await;
    for (args, expected) in [
        (json!({"pattern": "two"}), "a.txt:2: two\nsrc/b.rs:1: let two = 2;"),
        (json!({"pattern": "two", "glob": "*.rs"}), "src/b.rs:1: let two = 2;"),
        (
            json!({"pattern": "^TWO$", "ignoreCase": true, "path": "a.txt"}),
            "a.txt:2: two\na.txt:6: TWO",
        ),
        (json!({"pattern": "seven$"}), "a.txt:7: seven"),
        (
            json!({"pattern": "two|three", "context": 1, "path": "a.txt"}),
            "a.txt-1- one\na.txt:2: two\na.txt:3: three\na.txt-4- four",
        ),
        (
            json!({"pattern": "two|four", "context": 2, "path": "a.txt"}),
            "a.txt-1- one\na.txt:2: two\na.txt-3- three\na.txt:4: four\na.txt-5- five\na.txt-6- TWO",
        ),
        (json!({"pattern": "= 2;", "literal": true, "path": "src"}), "src/b.rs:1: let two = 2;"),
        (json!({"pattern": "(", "literal": true}), "No matches found"),
        (
            json!({"pattern": "o", "limit": 1}),
            "a.txt:1: one\n\n[1 matches limit reached. Use a larger limit (at most 1000), or refine pattern]",
        ),
        (json!({"pattern": r"^\w{1,64}!$"}), "No matches found"),
        (json!({"pattern": "x", "path": "nope"}), "ERROR Path not found: nope"),
    ] {
        assert_eq!(env.call_builtin_text("grep", &args).await, expected, "{args}");
    }
}

#[tokio::test]
async fn grep_bounds_its_time_and_output() {
    let mut env = env_with_files(&[("a", &format!("{}\n", "a".repeat(400)).repeat(3_000))]).await;
    env.upload("b.bin", vec![0, 1, 2]).await;
    for pattern in ["(a{1000}){1000}", "(a", "(?=a)", "(a)\\1", ""] {
        let text = env.call_builtin_text("grep", &json!({"pattern": pattern})).await;
        assert!(text.starts_with("ERROR The pattern "), "{pattern}: {text}");
    }
    let text = env.call_builtin_text("grep", &json!({"pattern": "(a+)+$", "limit": 1_000})).await;
    assert!(text.len() < TEXT_BYTES_MAX + 500, "{}", text.len());
    assert!(
        text.contains("Output limit reached: 125 of 1000 lines shown"),
        "{}",
        text.rsplit('\n').next().unwrap()
    );
    env.upload("a", "é".repeat(10_000)).await;
    let text = env.call_builtin_text("grep", &json!({"pattern": "é"})).await;
    assert!(text.starts_with(&format!("a:1: {}... [truncated]\n", "é".repeat(500))));
    assert!(text.ends_with("[Some lines truncated to 500 chars. Use read tool to see full lines. 1 binary files were not searched]"));
}

#[tokio::test]
async fn unavailable_artifact_store_is_reported_to_model() {
    let mut env = env_with_files(&[("a", "x")]).await;
    env.artifacts.is_down.store(true, std::sync::atomic::Ordering::SeqCst);
    let text = env.call_builtin_text("read", &json!({"path": "a"})).await;
    assert!(
        text.starts_with("ERROR The file a could not be read now") && text.ends_with("try again."),
        "{text}"
    );
    let text = env.call_builtin_text("write", &json!({"path": "b", "content": "x"})).await;
    assert!(text.starts_with("ERROR the artifact store is unavailable"), "{text}");
    let text = env.call_builtin_text("grep", &json!({"pattern": "x"})).await;
    assert!(text.contains("1 files were not searched"), "{text}");
    assert_eq!(env.files.len(), 1);
}
