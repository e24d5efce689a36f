//! Tests of the checks of `package` and `doctor`: agents whose app settings have no value here.

use super::*;

const TOOL: &str =
    "tools:\n  - http: { name: a, url: \"${OPS_URL}/x\", headers: { x-key: \"${MYKEY}\" } }";

/// Writes the agent `ops` with these lines of front matter.
fn write_agent(root: &Path, front_matter: &str) {
    let agents = root.join("agents");
    std::fs::create_dir_all(&agents).unwrap();
    std::fs::write(agents.join("ops.agent.md"), format!("---\n{front_matter}\n---\nx")).unwrap();
}

/// The settings of the app in this folder, with these app settings.
fn read_app(root: &Path, values: &'static [(&'static str, &'static str)]) -> ServiceSettings {
    let agents = root.join("agents").display().to_string();
    let lookup = move |name: &str| {
        if name == "TURNWHEEL_AGENTS_DIR" {
            return Some(agents.clone());
        }
        values.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    ServiceSettings::read(lookup).unwrap()
}

#[test]
fn package_accepts_app_settings_that_are_not_set() {
    let folder = tempfile::tempdir().unwrap();
    let (app, settings) = (App::new(), read_app(folder.path(), &[]));
    write_agent(folder.path(), &format!("memory: true\n{TOOL}"));
    let loaded = check_agents(&app, &settings).unwrap();
    let note = shared_user_note(&settings, &loaded.catalog).unwrap();
    assert!(note.starts_with("ops: memory, profile"), "{note}");
    write_agent(folder.path(), &format!("modle: x\n{TOOL}"));
    let mistakes = check_agents(&app, &settings).unwrap_err();
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    assert!(mistakes[0].contains("unknown key `modle`"), "{mistakes:?}");
}

#[test]
fn package_loads_agents_whose_servers_lack_settings() {
    let folder = tempfile::tempdir().unwrap();
    let (app, settings) = (App::new(), read_app(folder.path(), &[]));
    let servers = r#"{"servers": {
        "desk": {"url": "https://${DESK_HOST}:${DESK_PORT}/mcp", "headers": {"x-key": "${DESK_KEY}"}},
        "crm": {"url": "${CRM_URL}", "auth": {"oauth": {"tokenUrl": "${CRM_LOGIN}", "clientId": "${CRM_ID}", "clientSecret": "${CRM_SECRET}"}}}
    }}"#;
    std::fs::write(folder.path().join("mcp.json"), servers).unwrap();
    let front_matter = |active: &str| {
        format!(
            "memory: true\nactiveTools: [{active}, mcp__desk__send]\nguardrails: {{ tools: [a] }}\n{TOOL}\n  - mcp: desk\n  - mcp: crm\nplugins:\n  - http: {{ name: p, url: \"${{P_URL}}\", secret: \"${{P_SECRET}}\" }}"
        )
    };
    write_agent(folder.path(), &front_matter("a"));
    let loaded = check_agents(&app, &settings).unwrap();
    let note = shared_user_note(&settings, &loaded.catalog).unwrap();
    assert!(note.starts_with("ops: memory, profile"), "{note}");
    let of_servers = loaded.resource_mistakes.iter().map(|it| it.missing_setting.as_deref());
    let mut names: Vec<&str> = of_servers.map(Option::unwrap).collect();
    names.sort_unstable();
    let expected =
        ["CRM_ID", "CRM_LOGIN", "CRM_SECRET", "CRM_URL", "DESK_HOST", "DESK_KEY", "DESK_PORT"];
    assert_eq!(names, expected);
    write_agent(folder.path(), &front_matter("b"));
    let mistakes = check_agents(&app, &settings).unwrap_err();
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    assert!(mistakes[0].contains("`activeTools` names `b`"), "{mistakes:?}");
}

#[test]
fn empty_settings_and_references_are_not_set_for_package() {
    let cases: [(&'static [(&'static str, &'static str)], &str); 4] = [
        (&[("OPS_URL", "https://ops.example"), ("MYKEY", "")], "MYKEY is not set"),
        (&[("OPS_URL", " "), ("MYKEY", "k")], "OPS_URL is not set"),
        (
            &[
                ("OPS_URL", "https://ops.example"),
                ("MYKEY", "@Microsoft.KeyVault(SecretUri=https://v.vault.azure.net/secrets/s/)"),
            ],
            "MYKEY is a Key Vault reference that is not resolved",
        ),
        (
            &[
                ("OPS_URL", "@microsoft.keyvault(VaultName=v;SecretName=s)"),
                ("MYKEY", "@Microsoft.KeyVault(VaultName=v;SecretName=k)"),
            ],
            "OPS_URL is a Key Vault reference that is not resolved",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    write_agent(folder.path(), &format!("memory: true\n{TOOL}"));
    for (values, problem) in cases {
        let (app, settings) = (App::new(), read_app(folder.path(), values));
        let loaded = check_agents(&app, &settings).unwrap();
        let note = shared_user_note(&settings, &loaded.catalog).unwrap();
        assert!(note.starts_with("ops: memory, profile"), "{problem}: {note}");
        let of_doctor = load_agents(&app, &settings, None, false).unwrap_err().join("\n");
        assert!(of_doctor.contains(problem), "{problem}: {of_doctor}");
    }
}
