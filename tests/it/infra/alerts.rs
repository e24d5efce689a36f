//! Alert rules, diagnostics and what a restore needs.

use std::collections::BTreeSet;

use serde_json::json;
use turnwheel::testing::host::ScriptRoot;

use super::bicep::Declaration;
use super::{parse_bicep, read_file, variable};

const ALERTS: &str = "infra/modules/alerts.bicep";

fn resource(file: &str, symbol: &str) -> Declaration {
    let found = parse_bicep(file).resources().into_iter().find(|one| one.symbol == symbol);
    found.unwrap_or_else(|| panic!("{file} has no {symbol}"))
}

/// Names of the eight rules, as the page lists them.
fn rule_names() -> BTreeSet<String> {
    let rules = variable(ALERTS, "queryRules");
    let queries = rules.as_array().unwrap().iter();
    let mut names: BTreeSet<String> =
        queries.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect();
    for metric in ["throttled", "storageAvailability"] {
        let name = resource(ALERTS, metric).body["name"].as_str().unwrap().to_owned();
        let name = name.strip_prefix("alert-").and_then(|name| name.strip_suffix("-${token}"));
        names.insert(name.unwrap().to_owned());
    }
    names
}

#[test]
fn operating_page_lists_each_alert_rule() {
    let names = rule_names();
    assert_eq!(names.len(), 8, "{names:?}");
    let page = read_file("docs/operating.md");
    let section = page.split("\n## Alerts\n").nth(1).expect("the page has a section about alerts");
    let section = section.split("\n## ").next().unwrap();
    let row = regex::Regex::new(r"(?m)^\| `([a-z-]+)` \|").unwrap();
    let listed: BTreeSet<String> =
        row.captures_iter(section).map(|found| found[1].to_owned()).collect();
    assert_eq!(listed, names);
}

/// A rule that names no metric, function or domain of ours would never fire.
#[test]
fn alert_queries_use_existing_names() {
    let telemetry = read_file("docs/telemetry.md");
    let functions = ScriptRoot::embedded().functions;
    let name = regex::Regex::new(r#"name == "([^"]+)""#).unwrap();
    let domain = regex::Regex::new(r#"fault_domain"\] == "([^"]+)""#).unwrap();
    let mut count = 0;
    for rule in variable(ALERTS, "queryRules").as_array().unwrap() {
        let query = rule["query"].as_str().unwrap();
        for found in name.captures_iter(query) {
            let is_metric = telemetry.contains(&format!("| `{}` |", &found[1]));
            assert!(is_metric || functions.contains_key(&found[1]), "{query}");
            count += 1;
        }
        for found in domain.captures_iter(query) {
            assert!(telemetry.contains(&format!("| `{}` | ", &found[1])), "{query}");
            count += 1;
        }
    }
    assert_eq!(count, 4);
    for metric in ["turnwheel.poison", "turnwheel.due.backlog"] {
        assert!(
            read_file(ALERTS).contains(metric)
                && read_file("crates/platform/src/telemetry/metrics.rs").contains(metric)
        );
    }
}

#[test]
fn alerts_reach_the_receivers() {
    assert_eq!(
        resource(ALERTS, "queryRule").body["properties"]["actions"],
        json!({"actionGroups": ["receivers.id"]})
    );
    for symbol in ["throttled", "storageAvailability"] {
        let actions = &resource(ALERTS, symbol).body["properties"]["actions"];
        assert_eq!(*actions, json!([{"actionGroupId": "receivers.id"}]), "{symbol}");
    }
}

#[test]
fn deleted_and_overwritten_artifacts_come_back() {
    let storage = "infra/modules/storage.bicep";
    let blobs = &resource(storage, "blobService").body["properties"];
    let kept = json!({"enabled": true, "days": "keptDays"});
    assert_eq!(blobs["isVersioningEnabled"], true);
    assert_eq!(blobs["deleteRetentionPolicy"], kept);
    assert_eq!(blobs["containerDeleteRetentionPolicy"], kept);
    // As long as the database goes back.
    let database = &resource("infra/modules/cosmos.bicep", "account").body["properties"];
    let tier = &database["backupPolicy"]["continuousModeProperties"]["tier"];
    assert_eq!(*tier, format!("Continuous{}Days", variable(storage, "keptDays")));
    let lifecycle = &resource(storage, "lifecycle").body["properties"]["policy"]["rules"][0];
    let version = &lifecycle["definition"]["actions"]["version"]["delete"];
    assert_eq!(*version, json!({"daysAfterCreationGreaterThan": "keptDays"}));
}

#[test]
fn diagnostics_go_to_the_workspace() {
    for (module, symbol, categories) in [
        ("vault", "audit", vec!["AuditEvent"]),
        ("cosmos", "diagnostics", vec!["ControlPlaneRequests", "PartitionKeyStatistics"]),
        ("storage", "deletions", vec!["StorageDelete"]),
    ] {
        let settings = resource(&format!("infra/modules/{module}.bicep"), symbol).body;
        assert_eq!(settings["properties"]["workspaceId"], "workspaceId", "{module}");
        let logs = settings["properties"]["logs"].as_array().unwrap();
        let named: Vec<&str> = logs.iter().map(|log| log["category"].as_str().unwrap()).collect();
        assert_eq!(named, categories, "{module}");
        assert!(logs.iter().all(|log| log["enabled"] == true), "{module}");
    }
}

/// Another key would invalidate every open approval link.
#[test]
fn deployment_never_replaces_signing_keys() {
    let vault = read_file("infra/modules/vault.bicep");
    assert!(vault.contains("@onlyIfNotExists()\nresource secret "), "{vault}");
}

/// A user's first `azd up` prints no warning: the linter has one, where the name is meant.
#[test]
fn linter_accepts_name_of_public_cloud() {
    let app = read_file("infra/modules/functionApp.bicep");
    let lines: Vec<&str> = app.lines().collect();
    for (number, line) in
        lines.iter().enumerate().filter(|(_, line)| line.contains("core.windows.net'"))
    {
        assert_eq!(lines[number - 1], "#disable-next-line no-hardcoded-env-urls", "{line}");
    }
}

/// API versions are at most two years old, where the type has a newer stable version.
#[test]
fn api_versions_are_recent() {
    // Types without a newer stable version (Azure/bicep-types-az 1f896de2).
    let newest = [
        "Microsoft.Authorization/roleAssignments@2022-04-01",
        "Microsoft.Insights/actionGroups@2023-01-01",
        "Microsoft.Insights/components@2020-02-02",
        "Microsoft.Insights/diagnosticSettings@2021-05-01-preview",
        "Microsoft.Network/privateDnsZones@2024-06-01",
        "Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01",
    ];
    for file in super::parse_all_bicep() {
        for Declaration { kind, .. } in file.resources() {
            let (_, version) = kind.split_once('@').unwrap();
            let is_recent = version >= "2024-11-27" && !version.contains("preview");
            assert!(is_recent || newest.contains(&kind.as_str()), "{}: {kind}", file.path);
        }
    }
}
