//! Names of queues, containers, keys, indexes, settings and roles: equal in `infra/`, functions,
//! code and docs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use turnwheel::testing::azure::cosmos::{CONTAINERS, ContainerShape, EXCLUDED_PATH};
use turnwheel::testing::host::{Function, ScriptRoot, Trigger};
use turnwheel::testing::queue;
use turnwheel::testing::settings::table::SetBy;
use turnwheel::testing::settings::{ServiceSettings, table};

use super::{find_files, parse_bicep, read_file, string_set, variable};

/// Ids from Azure's list of built-in roles and from that of Cosmos DB.
const ROLES: &[(&str, &str)] = &[
    ("Azure ContainerApps Session Executor", "0fb8eba5-a2bb-4abe-b1c1-49dfad359bb0"),
    ("Cognitive Services OpenAI User", "5e0bd9bd-7b93-4f28-af87-19fc36ad61bd"),
    ("Cosmos DB Built-in Data Contributor", "00000000-0000-0000-0000-000000000002"),
    ("Key Vault Secrets User", "4633458b-17de-408a-b874-0445c86b69e6"),
    ("Monitoring Metrics Publisher", "3913510d-42f4-4e42-8a64-420c390055eb"),
    ("Storage Blob Data Contributor", "ba92f5b4-2d11-453d-a403-e96b0029c9fe"),
    ("Storage Blob Data Owner", "b7e6dc6d-f1e8-4753-8033-0f276bb0955b"),
    ("Storage Queue Data Contributor", "974c5e8b-45b9-4653-ba55-5f855dd0fb88"),
    ("Storage Table Data Contributor", "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3"),
];

#[test]
fn queues_match_code_and_functions() {
    let code: BTreeSet<String> = [queue::TURNS, queue::PROMPTS, queue::NOTIFY]
        .into_iter()
        .flat_map(|name| [name.to_owned(), queue::poison_queue(name)])
        .collect();
    assert_eq!(string_set(&variable("infra/modules/storage.bicep", "queues")), code);
    let mut triggered = BTreeSet::new();
    for (name, text) in &ScriptRoot::embedded().functions {
        let function = Function::read(name, name, text).unwrap();
        if let Trigger::Queue { queue } = function.trigger {
            triggered.insert(queue);
        }
    }
    // No function reads the poison queue of `agent-prompts`.
    let untriggered: Vec<&String> = code.difference(&triggered).collect();
    assert_eq!(untriggered, [&queue::poison_queue(queue::PROMPTS)]);
    assert!(triggered.is_subset(&code), "{triggered:?}");
}

/// Name, key, indexed paths and time to live of each container.
type InfraContainer = (String, Vec<String>, Vec<String>, i64);

fn infra_containers() -> Vec<InfraContainer> {
    let containers = variable("infra/modules/cosmos.bicep", "containers");
    let list = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let shape = |one: &Value| {
        let keys = list(&one["keyPaths"]);
        // A key of several parts has its own kind.
        assert_eq!(one["keyKind"], if keys.len() > 1 { "MultiHash" } else { "Hash" });
        let name = one["name"].as_str().unwrap().to_owned();
        (name, keys, list(&one["indexedPaths"]), one["defaultTtl"].as_i64().unwrap())
    };
    containers.as_array().unwrap().iter().map(shape).collect()
}

#[test]
fn artifact_container_matches_code() {
    let container = variable("infra/modules/storage.bicep", "artifactContainer");
    assert_eq!(container, turnwheel::testing::artifacts::CONTAINER);
}

#[test]
fn containers_match_code() {
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let shape = |one: &&ContainerShape| {
        let ttl = i64::from(one.default_ttl_seconds);
        (one.name.to_owned(), owned(one.key_paths), owned(one.indexed_paths), ttl)
    };
    let code: Vec<InfraContainer> = CONTAINERS.iter().map(shape).collect();
    assert_eq!(infra_containers(), code);
    for (name, keys, indexed, _) in &code {
        for key in keys {
            // Without the index a query of one user scans every document.
            assert!(indexed.contains(&format!("{key}/?")), "{name} has no index on {key}");
        }
    }
    let excluded = format!("excludedPaths: [{{ path: '{EXCLUDED_PATH}' }}]");
    assert!(read_file("infra/modules/cosmos.bicep").contains(&excluded), "{excluded}");
    let database = variable("infra/modules/cosmos.bicep", "database");
    let sample = table::find_row("COSMOS__database").map_or("turnwheel", |row| row.example);
    assert_eq!(database, sample);
}

#[test]
fn app_settings_are_in_the_settings_table() {
    let settings = app_settings();
    assert!(settings.contains_key("COSMOS__accountEndpoint"), "{settings:?}");
    for name in settings.keys().filter(|name| *name != "APPLICATIONINSIGHTS_AUTHENTICATION_STRING")
    {
        let row = table::find_row(name).unwrap_or_else(|| panic!("settings::table has no {name}"));
        assert_eq!(row.set_by, SetBy::Operator, "{name}");
    }
}

/// In Azure, with the table's example values: all settings are valid, and none is missing.
#[test]
fn app_starts_with_deployed_settings() {
    let of_platform = ["WEBSITE_SKU", "WEBSITE_HOSTNAME", "IDENTITY_ENDPOINT"];
    let given = app_settings();
    let lookup = move |name: &str| {
        let is_set = given.contains_key(name) || of_platform.contains(&name);
        let example = table::find_row(name).filter(|_| is_set)?.example;
        let key = "c2l4dHkgZm91ciB6ZXJvcyBhbmQgb25lcywgbWFrZSB0aGVtIHJhbmRvbQ==";
        Some(if name == "TURNWHEEL_SIGNING_KEYS" { key } else { example }.to_owned())
    };
    let settings = ServiceSettings::read(lookup).unwrap();
    assert_eq!(settings.missing_required().len(), 0, "{:?}", settings.missing_required());
    assert!(settings.is_in_azure && settings.storage.is_some() && settings.cosmos.is_some());
}

/// azd takes a parameter's default from the parameter file, `az deployment` from the main file.
#[test]
fn parameter_defaults_match_in_both_files() {
    let main = read_file("infra/main.bicep");
    let file: Value = serde_json::from_str(&read_file("infra/main.parameters.json")).unwrap();
    let default = regex::Regex::new(r"^\$\{[A-Z_]+=(.*)\}$").unwrap();
    let mut count = 0;
    for (name, given) in file["parameters"].as_object().unwrap() {
        let Some(text) = given["value"].as_str().and_then(|text| default.captures(text)) else {
            continue;
        };
        let declared =
            regex::Regex::new(&format!(r"(?m)^param {name} \w+ = '?([^'\n]*)'?$")).unwrap();
        let declared = declared.captures(&main).unwrap_or_else(|| panic!("{name} has no default"));
        assert_eq!(&declared[1], &text[1], "{name}");
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

/// A higher minimum would keep costs from being capped below it.
#[test]
fn app_can_be_limited_to_one_instance() {
    let declared = regex::Regex::new(r"@minValue\((\d+)\)\n(?:@.*\n)*param instancesMax int\b");
    let main = read_file("infra/main.bicep");
    let minimum = declared.unwrap().captures(&main).expect("instancesMax has a minimum");
    assert_eq!(&minimum[1], "1");
}

/// A region may lack the model or session pools.
#[test]
fn model_and_session_pool_have_regions_of_their_own() {
    let main = read_file("infra/main.bicep");
    for (module, region) in [("openAi", "modelLocation"), ("sessionPool", "sessionPoolLocation")] {
        let wiring = format!(
            r"module {module} .*\n(?:  .*\n)*    location: empty\({region}\) \? location : {region}\n"
        );
        assert!(regex::Regex::new(&wiring).unwrap().is_match(&main), "{module} is not in {region}");
    }
}

#[test]
fn deployed_model_has_a_price() {
    let main = read_file("infra/main.bicep");
    let name = regex::Regex::new(r"param deployedModelName string = '(.*)'").unwrap();
    let name = name.captures(&main).unwrap()[1].to_owned();
    let record = turnwheel::testing::model::catalogue::Catalogue::default().record(&name, &name);
    assert!(record.cost.input > 0.0, "{name}: {record:?}");
    for file in ["docs/deploy.md", "infra/main.parameters.json"] {
        assert!(read_file(file).contains(&name), "{file} names another model");
    }
}

/// The app's `var …Settings`, unresolved.
pub(super) fn app_settings() -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    // `empty(x) ? {} : { NAME: x }`
    let conditional = regex::Regex::new(r"\{ (\w+):").unwrap();
    for (name, value) in parse_bicep("infra/modules/functionApp.bicep").variables() {
        if !name.ends_with("Settings") {
            continue;
        }
        if let Value::Object(object) = value {
            settings.extend(
                object.into_iter().map(|(name, value)| (name, value.as_str().unwrap().to_owned())),
            );
            continue;
        }
        let text = value.as_str().unwrap();
        let found = conditional.captures(text).unwrap_or_else(|| panic!("{name} is {text}"));
        settings.insert(found[1].to_owned(), String::new());
    }
    settings
}

#[test]
fn roles_match_azure_and_are_used() {
    let roles: BTreeMap<String, String> =
        serde_json::from_value(variable("infra/modules/roles.bicep", "roles")).unwrap();
    let known: BTreeMap<String, String> =
        ROLES.iter().map(|(name, id)| ((*name).to_owned(), (*id).to_owned())).collect();
    assert_eq!(roles, known);
    let used: String = find_files(".bicep").iter().map(|path| read_file(path)).collect();
    for name in roles.keys() {
        assert!(used.contains(&format!("roles['{name}']")), "the role {name} is not assigned");
    }
    let named = regex::Regex::new(r"roles\['([^']+)'\]").unwrap();
    for found in named.captures_iter(&used) {
        assert!(roles.contains_key(&found[1]), "there is no role {}", &found[1]);
    }
}

/// The deployment page names every role, queue, container and parameter.
#[test]
fn deployment_page_names_deployed_resources() {
    let page = read_file("docs/deploy.md");
    let mut expected: Vec<String> = ROLES.iter().map(|(name, _)| (*name).to_owned()).collect();
    expected.extend(string_set(&variable("infra/modules/storage.bicep", "queues")));
    expected.push(
        variable("infra/modules/storage.bicep", "artifactContainer").as_str().unwrap().to_owned(),
    );
    expected.extend(parse_bicep("infra/main.bicep").parameters().into_keys());
    expected.extend(["conversations", "scopes", "turnwheel"].map(str::to_owned));
    let missing: Vec<&String> =
        expected.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/deploy.md does not name {missing:?}");
    let named = regex::Regex::new(r"`(agent-[a-z-]+)`").unwrap();
    let mut known: BTreeSet<String> = expected.into_iter().collect();
    // A package of this repository.
    known.insert("agent-files".to_owned());
    for path in find_files(".md") {
        for found in named.captures_iter(&read_file(&path)) {
            assert!(known.contains(&found[1]), "{path} names {}, which is not deployed", &found[1]);
        }
    }
}
