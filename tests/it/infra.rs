//! The deployment files against the code: queues, containers, keys, indexes, settings, roles,
//! files.
//!
//! There is no Bicep compiler here: the files are parsed, and the names that connect them are
//! checked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use turnwheel::testing::host::{Function, ScriptRoot, Trigger};
use turnwheel::testing::settings::table;

use self::bicep::Bicep;
use self::names::app_settings;

mod alerts;
mod bicep;
#[cfg(unix)]
mod hooks;
mod names;
mod types;

/// Functions and namespaces of the language that `infra/` uses. A name missing here is misspelt or
/// new.
const BICEP_BUILTINS: &[&str] = &[
    "allowed",
    "batchSize",
    "description",
    "empty",
    "environment",
    "export",
    "filter",
    "guid",
    "map",
    "maxLength",
    "maxValue",
    "metadata",
    "minLength",
    "minValue",
    "onlyIfNotExists",
    "resourceGroup",
    "resourceId",
    "secure",
    "split",
    "subscription",
    "subscriptionResourceId",
    "tenant",
    "toLower",
    "trim",
    "union",
    "uniqueString",
];

fn repository_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read_file(path: &str) -> String {
    std::fs::read_to_string(repository_root().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Paths of the project's files with this ending, with `/`; without build output and tool folders.
fn find_files(end: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![repository_root()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            // The corpora are fuzzing inputs, valid or not.
            let is_ignored = ["target", "node_modules", "dist", "corpus"].contains(&name.as_str())
                || (name.starts_with('.') && name != ".ci");
            if path.is_dir() && !is_ignored {
                open.push(path);
            } else if name.ends_with(end) && name != "local.settings.json" {
                let path =
                    path.strip_prefix(repository_root()).unwrap().to_string_lossy().into_owned();
                found.push(path.replace('\\', "/"));
            }
        }
    }
    found.sort();
    found
}

fn parse_bicep(path: &str) -> Bicep {
    Bicep::parse(path, read_file(path))
}

fn parse_all_bicep() -> Vec<Bicep> {
    let found: Vec<Bicep> = find_files(".bicep").iter().map(|path| parse_bicep(path)).collect();
    assert!(found.len() >= 10, "infra/ has its files");
    found
}

fn variable(file: &str, name: &str) -> Value {
    let variables = parse_bicep(file).variables();
    variables.get(name).cloned().unwrap_or_else(|| panic!("{file} has no var {name}"))
}

fn string_set(value: &Value) -> BTreeSet<String> {
    let texts = value.as_array().expect("a list").iter();
    texts.map(|text| text.as_str().expect("a text").to_owned()).collect()
}

#[test]
fn bicep_files_parse_without_errors() {
    let errors: Vec<String> = parse_all_bicep().iter().flat_map(Bicep::errors).collect();
    assert_eq!(errors, [""; 0]);
    let truncated =
        Bicep::parse("torn.bicep", "param name string\nvar list = ['a'\nvar x = 1\n".to_owned());
    assert!(!truncated.errors().is_empty(), "a truncated file is an error");
}

#[test]
fn bicep_names_are_declared() {
    let unknown: Vec<String> =
        parse_all_bicep().iter().flat_map(|file| file.unknown_names(BICEP_BUILTINS)).collect();
    assert_eq!(unknown, [""; 0]);
    let misspelt = "param name string\nvar greeting = toLower(nmae)\n";
    let misspelt = Bicep::parse("slip.bicep", misspelt.to_owned());
    assert_eq!(misspelt.unknown_names(BICEP_BUILTINS), ["slip.bicep: nmae"]);
}

/// Errors for unknown, missing and wrong parameters and outputs of modules.
fn wiring_errors(files: &[Bicep]) -> Vec<String> {
    let mut errors = Vec::new();
    for file in files {
        let folder = Path::new(&file.path).parent().unwrap();
        let mut outputs = BTreeMap::new();
        for module in file.modules() {
            let path = folder.join(&module.kind).to_string_lossy().replace('\\', "/");
            let Some(target) = files.iter().find(|other| other.path == path) else {
                errors.push(format!("{}: there is no {path}", file.path));
                continue;
            };
            outputs.insert(module.symbol.clone(), target.outputs());
            let parameters = target.parameters();
            let given: BTreeSet<String> =
                module.body["params"].as_object().unwrap().keys().cloned().collect();
            for name in given.iter().filter(|name| !parameters.contains_key(*name)) {
                errors.push(format!("{}: {path} takes no `{name}`", file.path));
            }
            let required = parameters.iter().filter(|(_, is_required)| **is_required);
            for (name, _) in required.filter(|(name, _)| !given.contains(*name)) {
                errors.push(format!("{}: {path} needs `{name}`", file.path));
            }
        }
        for (symbol, name) in file.outputs_used() {
            if !outputs.get(&symbol).is_some_and(|outputs| outputs.contains(&name)) {
                errors.push(format!("{}: `{symbol}` has no output `{name}`", file.path));
            }
        }
    }
    errors
}

#[test]
fn modules_get_the_parameters_they_declare() {
    assert_eq!(wiring_errors(&parse_all_bicep()), [""; 0]);
    let inner = "param name string\nparam size int = 1\noutput id string = name\n";
    let outer = "module one 'inner.bicep' = {\n  name: 'one'\n  params: { nam: 'x' }\n}\noutput id string = one.outputs.ident\n";
    let files = [("infra/outer.bicep", outer), ("infra/inner.bicep", inner)]
        .map(|(path, text)| Bicep::parse(path, text.to_owned()));
    assert_eq!(
        wiring_errors(&files),
        [
            "infra/outer.bicep: infra/inner.bicep takes no `nam`",
            "infra/outer.bicep: infra/inner.bicep needs `name`",
            "infra/outer.bicep: `one` has no output `ident`"
        ]
    );
}

#[test]
fn json_files_are_valid() {
    let files = find_files(".json");
    assert!(files.contains(&"infra/main.parameters.json".to_owned()), "{files:?}");
    for path in files {
        serde_json::from_str::<Value>(&read_file(&path))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

#[test]
fn parameter_file_matches_main_bicep() {
    let parameters = parse_bicep("infra/main.bicep").parameters();
    let file: Value = serde_json::from_str(&read_file("infra/main.parameters.json")).unwrap();
    let given: BTreeSet<&String> = file["parameters"].as_object().unwrap().keys().collect();
    for name in &given {
        assert!(parameters.contains_key(*name), "infra/main.bicep has no param {name}");
    }
    for (name, is_required) in &parameters {
        assert!(!is_required || given.contains(name), "infra/main.parameters.json lacks {name}");
    }
}

/// Every secret is a reference to the vault, and settings that the plan rejects are absent.
#[test]
fn app_settings_contain_no_keys() {
    let settings = app_settings();
    for (name, value) in &settings {
        let is_secret = table::find_row(name).is_some_and(|row| row.is_secret);
        let is_harmless = name == "APPLICATIONINSIGHTS_CONNECTION_STRING";
        assert!(!is_secret || is_harmless || value.starts_with("@Microsoft.KeyVault("), "{name}");
    }
    for refused in ["FUNCTIONS_WORKER_RUNTIME", "WEBSITE_RUN_FROM_PACKAGE", "AzureWebJobsStorage"] {
        assert!(!settings.contains_key(refused), "{refused}");
    }
    for file in find_files(".bicep") {
        let text = read_file(&file);
        for call in ["listKeys", "listSecrets", "AccountKey", "primaryMasterKey"] {
            assert!(!text.contains(call), "{file} has {call}");
        }
    }
}

#[test]
fn accounts_accept_no_keys_and_nothing_is_public() {
    let of = |file: &str, kind: &str| {
        let found =
            parse_bicep(file).resources().into_iter().find(|one| one.kind.starts_with(kind));
        found.unwrap_or_else(|| panic!("{file} has no {kind}")).body["properties"].clone()
    };
    let storage = of("infra/modules/storage.bicep", "Microsoft.Storage/storageAccounts@");
    assert_eq!(storage["allowSharedKeyAccess"], false);
    assert_eq!(storage["allowBlobPublicAccess"], false);
    let cosmos = of("infra/modules/cosmos.bicep", "Microsoft.DocumentDB/databaseAccounts@");
    assert_eq!(cosmos["disableLocalAuth"], true);
    assert_eq!(cosmos["enableMultipleWriteLocations"], false);
    assert_eq!(cosmos["capabilities"], json!([{ "name": "EnableServerless" }]));
    assert_eq!(cosmos["locations"].as_array().unwrap().len(), 1);
    let insights = of("infra/modules/monitoring.bicep", "Microsoft.Insights/components@");
    assert_eq!(insights["DisableLocalAuth"], true);
    let model = of("infra/modules/openAi.bicep", "Microsoft.CognitiveServices/accounts@");
    assert_eq!(model["disableLocalAuth"], true);
    let vault = of("infra/modules/vault.bicep", "Microsoft.KeyVault/vaults@");
    assert_eq!(vault["enableRbacAuthorization"], true);
}

/// An account runs one operation at a time and rejects others meanwhile.
#[test]
fn operations_on_one_account_are_sequential() {
    let after = |file: &str, symbol: &str| {
        let file = parse_bicep(file);
        let found = file.resources().into_iter().chain(file.modules());
        let found = found.into_iter().find(|one| one.symbol == symbol);
        string_set(&found.unwrap_or_else(|| panic!("there is no {symbol}")).body["dependsOn"])
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let chain: [(&str, &str, BTreeSet<String>); 4] = [
        ("openAi", "endpoint", names(&["modelDeployment"])),
        ("cosmos", "appRole", names(&["sqlContainer"])),
        ("cosmos", "operatorRole", names(&["appRole"])),
        ("cosmos", "endpoint", names(&["appRole", "operatorRole"])),
    ];
    for (module, symbol, before) in chain {
        assert_eq!(after(&format!("infra/modules/{module}.bicep"), symbol), before, "{symbol}");
    }
    for (module, loops) in [("storage", "module endpoint"), ("cosmos", "resource sqlContainer")] {
        let text = read_file(&format!("infra/modules/{module}.bicep"));
        assert!(text.contains(&format!("@batchSize(1)\n{loops} ")), "{module}: {loops}");
    }
}

#[test]
fn app_runs_custom_handler_on_flex_consumption() {
    let file = parse_bicep("infra/modules/functionApp.bicep");
    let resources = file.resources();
    let of = |symbol: &str| &resources.iter().find(|one| one.symbol == symbol).unwrap().body;
    assert_eq!(of("plan")["sku"], json!({ "name": "FC1", "tier": "FlexConsumption" }));
    let config = &of("app")["properties"]["functionAppConfig"];
    assert_eq!(config["runtime"], json!({ "name": "custom", "version": "1.0" }));
    assert_eq!(config["siteUpdateStrategy"], json!({ "type": "updateStrategy" }));
    let storage = &config["deployment"]["storage"];
    assert_eq!(storage["authentication"]["type"], "UserAssignedIdentity");
    let groups = &of("app")["properties"]["functionAppConfig"]["scaleAndConcurrency"];
    assert!(
        groups["alwaysReady"].as_str().is_some_and(|text| text.starts_with("filter(alwaysReady"))
    );
    for group in variable("infra/modules/functionApp.bicep", "alwaysReady").as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        let function = name.strip_prefix("function:");
        let is_there = |name: &str| ScriptRoot::embedded().functions.contains_key(name);
        assert!(function.map_or(name == "http", is_there), "there is no group {name}");
    }
    let excluded = &of("signIn")["properties"]["globalValidation"]["excludedPaths"];
    let paths = "union(anonymousPaths, console == 'on' ? consolePaths : [])";
    assert_eq!(excluded, &json!(paths));
    let paths = |name| string_set(&variable("infra/modules/functionApp.bicep", name));
    let console = ["/api/console".to_owned(), "/api/console/*".to_owned()];
    assert_eq!(paths("consolePaths"), BTreeSet::from(console.clone()));
    let mut expected = anonymous_paths();
    // The host's own keys guard these.
    expected.insert("/admin/*".to_owned());
    // Its own list, because it may be off.
    expected.retain(|path| !console.contains(path));
    assert_eq!(paths("anonymousPaths"), expected, "the anonymous routes of functions/");
}

/// Paths of the functions that need no key: the health probe, the OpenAPI documents, and approval
/// links with their token.
fn anonymous_paths() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let parameter = regex::Regex::new(r"\{\*?\w+\}").unwrap();
    for (name, text) in &ScriptRoot::embedded().functions {
        let function = Function::read(name, name, text).unwrap();
        // The platform excludes paths of every method, so preflight requests are not among them.
        if let Trigger::Http(http) = &function.trigger
            && http.methods != ["OPTIONS"]
            && function.json["bindings"][0]["authLevel"] == "anonymous"
        {
            paths.insert(format!("/api/{}", parameter.replace(http.route.text(), "*")));
        }
    }
    paths
}

#[test]
fn azd_builds_and_finds_the_app() {
    let azure: Value = serde_saphyr::from_str(&read_file("azure.yaml")).unwrap();
    let services = azure["services"].as_object().unwrap();
    assert_eq!(services.keys().collect::<Vec<_>>(), ["turnwheel"]);
    let service = &services["turnwheel"];
    assert_eq!(service["host"], "function");
    assert_eq!(service["language"], "custom");
    assert_eq!(service["dist"], "dist");
    assert!(service.get("remoteBuild").is_none());
    let tag = "'azd-service-name': 'turnwheel'";
    assert!(read_file("infra/main.bicep").contains(tag), "azd looks for {tag}");
    assert_eq!(
        (&azure["infra"]["path"], &azure["infra"]["module"]),
        (&json!("infra"), &json!("main"))
    );
    for hook in [&azure["hooks"]["preprovision"], &service["hooks"]["prepackage"]] {
        for (system, shell) in [("posix", "sh"), ("windows", "pwsh")] {
            assert_eq!(hook[system]["shell"], shell);
            let script = hook[system]["run"].as_str().unwrap().trim_start_matches("./");
            let text = read_file(script);
            assert!(
                !script.contains("package") || text.contains("package --out dist "),
                "{script}"
            );
            #[cfg(unix)]
            if system == "posix" {
                use std::os::unix::fs::PermissionsExt as _;
                let mode =
                    std::fs::metadata(repository_root().join(script)).unwrap().permissions().mode();
                assert_eq!(mode & 0o111, 0o111, "chmod +x {script}");
            }
        }
    }
}
