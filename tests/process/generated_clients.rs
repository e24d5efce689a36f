//! The OpenAPI documents as other programs read them: linters, a validator of JSON Schema, and
//! generators of clients in TypeScript, whose clients run a conversation.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use turnwheel::testing::http::openapi::{DOCUMENT, DOCUMENT_3_0};

use crate::support::dev_process::DevProcess;
use crate::support::npm::{install_pinned, run};

const PACKAGE: &str = include_str!("../../typescript/package.json");
const PACKAGE_LOCK: &str = include_str!("../../typescript/package-lock.json");
const LINTERS_PACKAGE: &str = include_str!("../../typescript/linters/package.json");
const LINTERS_PACKAGE_LOCK: &str = include_str!("../../typescript/linters/package-lock.json");
const GENERATE: &str = include_str!("../../typescript/generate.mjs");
const TYPES: &str = include_str!("../../typescript/client.ts");
const FETCH_CLIENT: &str = include_str!("../../typescript/fetch_client.ts");
const ZOD_CLIENT: &str = include_str!("../../typescript/zod_client.ts");

fn documents() -> [(&'static str, &'static Value); 2] {
    [("openapi.json", &*DOCUMENT), ("openapi-3.0.json", &*DOCUMENT_3_0)]
}

#[test]
fn linters_find_no_error_in_documents() {
    let files = [("package.json", LINTERS_PACKAGE), ("package-lock.json", LINTERS_PACKAGE_LOCK)];
    let tools = install_pinned("openapi-linters", &files).join("node_modules");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.yaml"), "extends: [\"spectral:oas\"]\n").unwrap();
    let node = || {
        let mut node = Command::new("node");
        node.current_dir(folder.path());
        node.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
        node
    };
    for (name, document) in documents() {
        fs::write(folder.path().join(name), document.to_string()).unwrap();
        let redocly = tools.join("@redocly/cli/bin/cli.js");
        run(node().arg(redocly).args(["lint", "--extends", "recommended", name]));
        let spectral = tools.join("@stoplight/spectral-cli/dist/index.js");
        run(node().arg(spectral).args(["lint", "--ruleset", "rules.yaml"]).arg(name));
    }
}

/// Calls `visit` with each schema of the value, outside examples.
fn visit_schemas(value: &Value, visit: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match (name.as_str(), value) {
                    ("example", _) => {}
                    ("schema", _) => visit(value),
                    ("schemas", Value::Object(named)) => named.values().for_each(&mut *visit),
                    _ => visit_schemas(value, visit),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| visit_schemas(value, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn schemas_are_valid_json_schema() {
    let mut count = 0;
    visit_schemas(&DOCUMENT, &mut |schema| {
        let checked = jsonschema::draft202012::meta::validate(schema);
        checked.unwrap_or_else(|error| panic!("{error}: {schema:#}"));
        count += 1;
    });
    assert!(count > 200, "{count}");
}

/// A folder with the document in which Node.js finds the pinned packages.
fn typescript_folder() -> (tempfile::TempDir, PathBuf) {
    let files = [("package.json", PACKAGE), ("package-lock.json", PACKAGE_LOCK)];
    let tools = install_pinned("typescript", &files);
    let folder = tempfile::tempdir_in(&tools).unwrap();
    fs::write(folder.path().join("openapi.json"), DOCUMENT.to_string()).unwrap();
    for (file, text) in [
        ("generate.mjs", GENERATE),
        ("client.ts", TYPES),
        ("fetch_client.ts", FETCH_CLIENT),
        ("zod_client.ts", ZOD_CLIENT),
    ] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    (folder, tools.join("node_modules"))
}

#[test]
fn typescript_clients_run_a_conversation() {
    let (folder, tools) = typescript_folder();
    let node = || {
        let mut node = Command::new("node");
        node.current_dir(folder.path());
        node
    };
    let generator = tools.join("openapi-typescript/bin/cli.js");
    run(node().arg(generator).args(["openapi.json", "--output", "api.ts"]));
    run(node().arg("generate.mjs"));
    run(node()
        .arg(tools.join("typescript/bin/tsc"))
        .args(["--strict", "--skipLibCheck", "--target", "es2022", "--module", "commonjs"])
        .args(["--moduleResolution", "node10", "--types", "node", "--outDir", "built"])
        .args(["--lib", "es2023,dom,dom.iterable,dom.asynciterable"])
        .args(["client.ts", "fetch_client.ts", "zod_client.ts"]));
    let data = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(data.path(), &[]);
    for client in ["built/fetch_client.js", "built/zod_client.js"] {
        let output = node().args([client, &dev.url("")]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{client}: {errors}\n{}", dev.log());
        let mut result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = result["text"].take();
        assert!(text.as_str().unwrap().starts_with("Paid 250 to Ada."), "{client}: {text}");
        let expected = json!({"amount": 250, "state": "completed", "text": null,
            "file": "Invoice 1: 250 to Ada"});
        assert_eq!(result, expected, "{client}");
    }
}
