//! `infra/` against Microsoft's published resource types (github.com/Azure/bicep-types-az), if
//! present.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::bicep::{Bicep, Declaration};
use super::{parse_all_bicep, repository_root};

/// Members of the language, not of the resource.
const BICEP_MEMBERS: [&str; 3] = ["parent", "scope", "dependsOn"];
/// Flags of a member.
const REQUIRED: u64 = 1;
const READ_ONLY: u64 = 2;

/// Types of one version of one provider; they reference each other by position.
struct ProviderTypes(Vec<Value>);

/// Type files of a resource provider, which may be in several folders.
fn type_files(folder: &Path, namespace: &str, version: &str) -> Vec<PathBuf> {
    let groups = std::fs::read_dir(folder.join("generated")).unwrap().flatten();
    let path = |group: PathBuf| group.join(namespace).join(version).join("types.json");
    let mut found: Vec<PathBuf> = groups.map(|group| path(group.path())).collect();
    found.retain(|path| path.is_file());
    found
}

impl ProviderTypes {
    fn resolve(&self, reference: &Value) -> &Value {
        let index = reference["$ref"].as_str().and_then(|text| text.strip_prefix("#/"));
        let index: Option<usize> = index.and_then(|index| index.parse().ok());
        index.and_then(|index| self.0.get(index)).unwrap_or(&Value::Null)
    }

    fn resource(&self, name: &str) -> Option<&Value> {
        let is_it = |one: &&Value| {
            one["$type"] == "ResourceType"
                && one["name"].as_str().is_some_and(|found| found.eq_ignore_ascii_case(name))
        };
        self.0.iter().find(is_it).map(|one| self.resolve(&one["body"]))
    }

    /// Errors for a value that does not match its type. Null stands for a non-literal and always
    /// matches.
    fn type_errors(&self, kind: &Value, value: &Value, at: &str) -> Vec<String> {
        if value.is_null() {
            return Vec::new();
        }
        let wrong = |expected: &str| vec![format!("{at} is {value}: expected {expected}")];
        match kind["$type"].as_str().unwrap_or_default() {
            "ObjectType" => match value.as_object() {
                Some(object) => self.member_errors(&kind["properties"], kind, object, at),
                None => wrong("an object"),
            },
            "DiscriminatedObjectType" => self.discriminated_errors(kind, value, at),
            "ArrayType" => match value.as_array() {
                Some(items) => {
                    let kind = self.resolve(&kind["itemType"]);
                    let of =
                        |(index, item)| self.type_errors(kind, item, &format!("{at}[{index}]"));
                    items.iter().enumerate().flat_map(of).collect()
                }
                None => wrong("an array"),
            },
            "UnionType" => {
                let kinds = kind["elements"].as_array().into_iter().flatten();
                let kinds: Vec<&Value> = kinds.map(|kind| self.resolve(kind)).collect();
                if kinds.iter().any(|kind| self.type_errors(kind, value, at).is_empty()) {
                    return Vec::new();
                }
                let values: Vec<String> =
                    kinds.iter().map(|kind| kind["value"].to_string()).collect();
                wrong(&format!("one of {}", values.join(", ")))
            }
            "StringLiteralType" if *value != kind["value"] => wrong(&kind["value"].to_string()),
            "StringType" if !value.is_string() => wrong("a string"),
            "IntegerType" if !value.is_i64() => wrong("an integer"),
            "BooleanType" if !value.is_boolean() => wrong("true or false"),
            _ => Vec::new(),
        }
    }

    fn discriminated_errors(&self, kind: &Value, value: &Value, at: &str) -> Vec<String> {
        let name = kind["discriminator"].as_str().unwrap_or_default();
        let Some(chosen) = value[name].as_str() else { return Vec::new() };
        match kind["elements"].get(chosen) {
            Some(element) => {
                let element = self.resolve(element);
                let mut members = kind["baseProperties"].as_object().cloned().unwrap_or_default();
                members.extend(element["properties"].as_object().cloned().unwrap_or_default());
                let object = value.as_object().cloned().unwrap_or_default();
                self.member_errors(&Value::Object(members), element, &object, at)
            }
            None => vec![format!("{at}.{name} is {chosen}: there is no such kind")],
        }
    }

    fn member_errors(
        &self,
        members: &Value,
        kind: &Value,
        object: &Map<String, Value>,
        at: &str,
    ) -> Vec<String> {
        let known: BTreeMap<&String, &Value> = members.as_object().into_iter().flatten().collect();
        let mut found = Vec::new();
        for (name, value) in object {
            let here = format!("{at}.{name}");
            match known.get(name) {
                Some(member) if member["flags"].as_u64().unwrap_or(0) & READ_ONLY != 0 => {
                    found.push(format!("{here} is read-only"));
                }
                Some(member) => {
                    found.extend(self.type_errors(self.resolve(&member["type"]), value, &here));
                }
                None if kind["additionalProperties"].is_object() => {
                    let kind = self.resolve(&kind["additionalProperties"]);
                    found.extend(self.type_errors(kind, value, &here));
                }
                None => {
                    let names: Vec<&str> = known.keys().map(|name| name.as_str()).collect();
                    found.push(format!("{here} is no member: there are {}", names.join(", ")));
                }
            }
        }
        for (name, member) in known {
            let flags = member["flags"].as_u64().unwrap_or(0);
            if flags & REQUIRED != 0 && flags & READ_ONLY == 0 && !object.contains_key(name) {
                found.push(format!("{at}.{name} is required and missing"));
            }
        }
        found
    }
}

/// Type errors in the resources of these files; a type missing in the folder is an error.
fn resource_type_errors(folder: &Path, files: &[Bicep]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for Declaration { kind, mut literal_body, .. } in file.resources() {
            let (name, version) = kind.split_once('@').expect("a type and its version");
            let namespace = name.split('/').next().unwrap_or_default().to_ascii_lowercase();
            let at = format!("{}: {kind}", file.path);
            let object = literal_body.as_object_mut().expect("a resource is an object");
            object.retain(|name, _| !BICEP_MEMBERS.contains(&name.as_str()));
            let read = |path: &PathBuf| -> ProviderTypes {
                ProviderTypes(
                    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap(),
                )
            };
            let types = type_files(folder, &namespace, version);
            let types = types.iter().map(read).find(|types| types.resource(&kind).is_some());
            match &types {
                Some(types) => {
                    let body = types.resource(&kind).expect("it was found");
                    found.extend(types.type_errors(body, &literal_body, &at));
                }
                None => found.push(format!("{at}: there is no such type")),
            }
        }
    }
    found
}

/// A types folder like the published one, with one resource.
fn types_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("generated/any/example.box/2024-01-01");
    std::fs::create_dir_all(&path).unwrap();
    let types = r##"[
        {"$type": "StringType"},
        {"$type": "IntegerType"},
        {"$type": "StringLiteralType", "value": "small"},
        {"$type": "UnionType", "elements": [{"$ref": "#/2"}]},
        {"$type": "ObjectType", "name": "lid", "properties": {
            "colour": {"type": {"$ref": "#/0"}, "flags": 1}, "weight": {"type": {"$ref": "#/1"}, "flags": 0}}},
        {"$type": "ArrayType", "itemType": {"$ref": "#/4"}},
        {"$type": "ObjectType", "name": "body", "properties": {
            "name": {"type": {"$ref": "#/0"}, "flags": 1}, "id": {"type": {"$ref": "#/0"}, "flags": 2},
            "size": {"type": {"$ref": "#/3"}, "flags": 0}, "lids": {"type": {"$ref": "#/5"}, "flags": 0}}},
        {"$type": "ResourceType", "name": "Example.Box/boxes@2024-01-01", "body": {"$ref": "#/6"}},
        {"$type": "DiscriminatedObjectType", "discriminator": "name", "baseProperties": {}, "elements": {"round": {"$ref": "#/6"}}},
        {"$type": "ResourceType", "name": "Example.Box/boxes/config@2024-01-01", "body": {"$ref": "#/8"}}
    ]"##;
    std::fs::write(path.join("types.json"), types).unwrap();
    folder
}

#[test]
fn type_check_finds_errors() {
    let check = |text: &str| {
        let file = Bicep::parse("box.bicep", text.to_owned());
        assert_eq!(file.errors(), [""; 0]);
        resource_type_errors(types_folder().path(), &[file]).join("\n")
    };
    let valid = "param name string\nvar lids = [{ colour: name, weight: 2 }]\nresource one 'Example.Box/boxes@2024-01-01' = {\n  name: name\n  size: 'small'\n  lids: filter(lids, lid => lid.weight > 1)\n  dependsOn: []\n}\n";
    assert_eq!(check(valid), "");
    assert_eq!(
        check(&valid.replace("weight: 2", "weight: 'two'")),
        "box.bicep: Example.Box/boxes@2024-01-01.lids[0].weight is \"two\": expected an integer"
    );
    let invalid = "resource one 'Example.Box/boxes@2024-01-01' = {\n  id: 'x'\n  size: 'large'\n  lid: [{}]\n  lids: [{}]\n}\nresource two 'Example.Box/boxes/config@2024-01-01' = {\n  name: 'square'\n}\nresource three 'Example.Box/bags@2024-01-01' = {\n  name: 'x'\n}\n";
    insta::assert_snapshot!(check(invalid), @r#"
    box.bicep: Example.Box/boxes@2024-01-01.id is read-only
    box.bicep: Example.Box/boxes@2024-01-01.size is "large": expected one of "small"
    box.bicep: Example.Box/boxes@2024-01-01.lid is no member: there are id, lids, name, size
    box.bicep: Example.Box/boxes@2024-01-01.lids[0].colour is required and missing
    box.bicep: Example.Box/boxes@2024-01-01.name is required and missing
    box.bicep: Example.Box/boxes/config@2024-01-01.name is square: there is no such kind
    box.bicep: Example.Box/bags@2024-01-01: there is no such type
    "#);
}

/// `infra/README.md` explains how to get the types. Without `TURNWHEEL_BICEP_TYPES` the test
/// passes.
#[test]
fn resources_match_published_types() {
    let folder =
        std::env::var_os("TURNWHEEL_BICEP_TYPES").map(|folder| repository_root().join(folder));
    let found = folder.map(|folder| resource_type_errors(&folder, &parse_all_bicep()));
    assert_eq!(found.unwrap_or_default(), [""; 0]);
}
