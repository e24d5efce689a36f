//! The hooks of `azd`, run with fake `az` and `azd` tools that record their calls.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{read_file, repository_root};

const AZD: &str = r#"#!/bin/sh
case "$1 $2" in
"env get-values") cat "$PLACE/env" ;;
"env set")
  grep -v "^$3=" "$PLACE/env" >"$PLACE/env.new" || true
  echo "$3=\"$4\"" >>"$PLACE/env.new"
  mv "$PLACE/env.new" "$PLACE/env"
  echo "azd env set $3" >>"$PLACE/calls" ;;
esac
"#;

const AZ: &str = r#"#!/bin/sh
echo "az $*" >>"$PLACE/calls"
case "$*" in
"provider show"*) cat "$PLACE/provider" ;;
"resource list"*) test ! -f "$PLACE/signed-out" && cat "$PLACE/vault" ;;
"ad app create"*) echo 11111111-2222-3333-4444-555555555555 ;;
"ad app show"*) echo the-object ;;
"ad sp show"*) test -f "$PLACE/principal" ;;
"ad sp create"*) touch "$PLACE/principal" ;;
"rest "*)
  for last; do :; done
  cat "${last#@}" >>"$PLACE/bodies"
  test ! -f "$PLACE/graph-is-down" ;;
esac
"#;

const APP: &str = "11111111-2222-3333-4444-555555555555";

/// A folder with the two fake tools and an azd environment.
struct FakeMachine(TempDir);

impl FakeMachine {
    fn new(environment: &str) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for (name, text) in [("azd", AZD), ("az", AZ)] {
            machine.write(name, text);
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(machine.0.path().join(name), mode).unwrap();
        }
        for name in ["calls", "bodies", "vault", "provider"] {
            machine.write(name, "");
        }
        let environment = environment.replace(' ', "\n");
        machine.write(
            "env",
            &format!(
                "AZURE_ENV_NAME=\"my-agents\"\nAZURE_SUBSCRIPTION_ID=\"sub\"\n{environment}\n"
            ),
        );
        machine
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// Returns true for success, and the text of stderr.
    fn run(&self, hook: &str) -> (bool, String) {
        let path = format!("{}:/usr/bin:/bin", self.0.path().display());
        let output = Command::new("sh")
            .arg(repository_root().join("infra/hooks").join(hook))
            .env_clear()
            .env("PATH", path)
            .env("PLACE", self.0.path())
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn calls(&self) -> Vec<String> {
        self.read("calls").lines().map(str::to_owned).collect()
    }

    /// Value of a variable of the azd environment.
    fn value(&self, name: &str) -> Option<String> {
        let text = self.read("env");
        let value = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")))?;
        Some(value.trim_matches('"').to_owned())
    }
}

#[test]
fn private_network_registers_resource_provider_once() {
    let machine = FakeMachine::new("PRIVATE_NETWORK=\"true\"");
    machine.write("provider", "NotRegistered\n");
    assert!(machine.run("providers.sh").0);
    assert!(
        machine.calls().contains(
            &"az provider register --namespace Microsoft.App --subscription sub --wait".to_owned()
        ),
        "{:?}",
        machine.calls()
    );
    let registered = FakeMachine::new("PRIVATE_NETWORK=\"true\"");
    registered.write("provider", "Registered\n");
    assert!(registered.run("providers.sh").0);
    assert_eq!(registered.calls().len(), 1, "the hook only reads the state");
    let public = FakeMachine::new("PRIVATE_NETWORK=\"false\"");
    assert!(public.run("providers.sh").0);
    assert_eq!(public.calls(), [""; 0]);
}

#[test]
fn signing_key_is_created_for_first_deployment_only() {
    let machine = FakeMachine::new("");
    assert!(machine.run("signing-keys.sh").0);
    let key = machine.value("TURNWHEEL_SIGNING_KEYS").unwrap();
    assert_eq!(key.len(), 44, "32 bytes in base64");
    assert!(machine.run("signing-keys.sh").0);
    assert_eq!(machine.value("TURNWHEEL_SIGNING_KEYS"), Some(key), "the key does not change");

    // The key is removed from the disk after the deployment; the vault keeps its copy.
    let deployed = FakeMachine::new("KEY_VAULT_NAME=\"kv\" TURNWHEEL_SIGNING_KEYS=\"\"");
    assert!(deployed.run("signing-keys.sh").0);
    assert_eq!(deployed.value("TURNWHEEL_SIGNING_KEYS").as_deref(), Some(""));

    // Another machine, whose environment lacks the deployment.
    let fresh = FakeMachine::new("");
    fresh.write("vault", "kv-abc\n");
    let (is_success, errors) = fresh.run("signing-keys.sh");
    assert!(!is_success && errors.contains("kv-abc: run `azd env refresh`"), "{errors}");
    assert_eq!(fresh.value("TURNWHEEL_SIGNING_KEYS"), None);
    // The tag finds the vault in a resource group of any name.
    let call = "az resource list --subscription sub --tag azd-env-name=my-agents ";
    assert!(fresh.calls()[0].starts_with(call), "{:?}", fresh.calls());
}

/// In a pipeline `azd` is signed in and `az` is not.
#[test]
fn no_signing_key_is_created_when_vault_cannot_be_seen() {
    let signed_out = FakeMachine::new("");
    signed_out.write("signed-out", "");
    let without_az = FakeMachine::new("");
    std::fs::remove_file(without_az.0.path().join("az")).unwrap();
    for machine in [signed_out, without_az] {
        let (is_success, errors) = machine.run("signing-keys.sh");
        assert!(!is_success);
        for remedy in ["az login", "azd env refresh", "azd env set TURNWHEEL_SIGNING_KEYS"] {
            assert!(errors.contains(remedy), "{remedy}: {errors}");
        }
        assert_eq!(machine.value("TURNWHEEL_SIGNING_KEYS"), None);
    }
}

#[test]
fn app_registration_issues_accepted_tokens() {
    let machine = FakeMachine::new("TURNWHEEL_AUTH=\"easyauth\"");
    let (is_success, errors) = machine.run("entra-app.sh");
    assert!(is_success, "{errors}");
    let bodies: Vec<Value> = serde_json::Deserializer::from_str(&machine.read("bodies"))
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap();
    let [first, second] = bodies.as_slice() else { panic!("{bodies:?}") };
    assert_eq!(first["identifierUris"], json!([format!("api://{APP}")]));
    assert_eq!(first["api"]["requestedAccessTokenVersion"], 2);
    assert_eq!(first["appRoles"][0]["value"], "Turnwheel.Operator");
    assert_eq!(first["api"]["preAuthorizedApplications"], json!([]));
    let scope = &first["api"]["oauth2PermissionScopes"][0];
    assert_eq!(scope["value"], "access_as_user");
    let cli = "04b07795-8ddb-461a-bbee-02f9e1bf7b46";
    assert_eq!(
        second["api"]["preAuthorizedApplications"],
        json!([{"appId": cli, "delegatedPermissionIds": [scope["id"]]}])
    );
    assert_eq!(machine.value("ENTRA_CLIENT_ID").as_deref(), Some(APP));
    assert_eq!(machine.value("ENTRA_ALLOWED_CLIENTS").as_deref(), Some(cli));
    assert!(machine.read("calls").contains("az ad sp create --id"));

    let calls = machine.calls().len();
    assert!(machine.run("entra-app.sh").0);
    assert_eq!(machine.calls().len(), calls, "the second time it does nothing");
}

#[test]
fn interrupted_app_registration_is_completed_by_next_run() {
    let machine = FakeMachine::new("TURNWHEEL_AUTH=\"easyauth\" ENTRA_ALLOWED_CLIENTS=\"mine\"");
    machine.write("graph-is-down", "");
    assert!(!machine.run("entra-app.sh").0);
    assert_eq!(machine.value("ENTRA_CLIENT_ID"), None);
    std::fs::remove_file(machine.0.path().join("graph-is-down")).unwrap();
    assert!(machine.run("entra-app.sh").0);
    let creations =
        machine.calls().iter().filter(|call| call.starts_with("az ad app create")).count();
    assert_eq!(creations, 1);
    assert_eq!(machine.value("ENTRA_CLIENT_ID").as_deref(), Some(APP));
    assert_eq!(machine.value("ENTRA_ALLOWED_CLIENTS").as_deref(), Some("mine"));
}

#[test]
fn no_app_registration_without_sign_in() {
    for environment in
        ["", "TURNWHEEL_AUTH=\"keys\"", "TURNWHEEL_AUTH=\"easyauth\" ENTRA_CLIENT_ID=\"mine\""]
    {
        let machine = FakeMachine::new(environment);
        assert!(machine.run("entra-app.sh").0);
        assert_eq!(machine.calls(), [""; 0], "{environment}");
    }
}

/// The calls of both tools in a script: commands, options and the names of set variables.
fn tool_calls(text: &str) -> BTreeSet<String> {
    let call =
        regex::Regex::new(r"\b(az|azd) ((?:[a-z]+ )+[A-Z_]{3,}|(?:[a-z]+(?: |$))+)").unwrap();
    let option = regex::Regex::new(r" (--[a-z-]+)").unwrap();
    let code = text.lines().filter(|line| !line.trim_start().starts_with(['#']));
    let code = code.filter(|line| {
        !["echo", "Write-", "throw"].iter().any(|word| line.trim_start().starts_with(word))
    });
    let code = code.collect::<Vec<_>>().join("\n") + "\n";
    let calls = call.find_iter(&code).map(|found| found.as_str().trim().to_owned());
    calls.chain(option.find_iter(&code).map(|found| found.as_str().trim().to_owned())).collect()
}

#[test]
fn posix_and_windows_hooks_make_equal_calls() {
    for name in ["preprovision", "providers", "signing-keys", "entra-app"] {
        let [posix, windows] =
            ["sh", "ps1"].map(|end| tool_calls(&read_file(&format!("infra/hooks/{name}.{end}"))));
        assert_eq!(posix, windows, "{name}");
        assert!(name == "preprovision" || posix.len() > 3, "{name}: {posix:?}");
    }
    let steps = |end: &str| {
        let text = read_file(&format!("infra/hooks/preprovision.{end}"));
        let step = regex::Regex::new(&format!(r"([a-z-]+)\.{end}")).unwrap();
        step.captures_iter(&text).map(|found| found[1].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(steps("sh"), ["providers", "signing-keys", "entra-app"]);
    assert_eq!(steps("sh"), steps("ps1"));
    for step in steps("sh") {
        assert!(Path::new(&repository_root()).join(format!("infra/hooks/{step}.sh")).is_file());
    }
}
