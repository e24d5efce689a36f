//! Declared and undeclared hosts, settings, tools and stored types.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::context::Anchor;
use crate::runner::tests::new_site;

#[derive(Debug)]
struct Declared(Permissions);

impl Extension for Declared {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn permissions(&self) -> Permissions {
        self.0.clone()
    }
}

fn context(permissions: Permissions) -> HookContext {
    let settings = json!({"clock": {"opens": 9, "zone": "Europe/Berlin"}, "other": {"opens": 1}});
    let settings: ExtensionSettings = serde_json::from_value(settings).unwrap();
    let mut site = new_site("c", "i", Hook::ToolCall, Anchor::Response(1));
    site.access.extension_settings = Some(Arc::new(settings));
    HookContext::new(Arc::new(site), Arc::new(Declared(permissions)))
}

#[test]
fn undeclared_hosts_do_not_match() {
    let permissions =
        Permissions::new().with_hosts(["api.example", "API.other:8443", "[::1]:80", "10.0.0.1"]);
    for (url, is_allowed) in [
        ("https://api.example/x", true),
        ("http://api.example:81/", true),
        ("https://API.example./", true),
        ("https://user@api.example/", true),
        ("https://api.other:8443/", true),
        ("https://api.other/", false),
        ("http://[::1]/", true),
        ("http://[::1]:81/", false),
        ("http://10.0.0.1:9/", true),
        ("http://0x0a000001/", true),
        ("https://evil.example/", false),
        ("https://api.example.evil.example/", false),
        ("https://evil.example/api.example", false),
        ("https://api.example@evil.example/", false),
    ] {
        assert_eq!(permissions.allows_host(&Url::parse(url).unwrap()), is_allowed, "{url}");
    }
    assert!(!Permissions::new().allows_host(&Url::parse("https://api.example/").unwrap()));
}

#[test]
fn setting_is_refused_unless_declared() {
    let cx = context(Permissions::new().with_settings(["opens", "closes", "zone"]));
    assert_eq!(cx.setting::<u8>("opens"), Ok(Some(9)));
    assert_eq!(cx.setting::<u8>("closes"), Ok(None));
    assert_eq!(
        cx.setting::<u8>("zone").unwrap_err().to_string(),
        "the setting `zone` of the agent file does not have the type that \"clock\" reads"
    );
    assert_eq!(
        context(Permissions::new()).setting::<u8>("opens").unwrap_err().to_string(),
        "the extension \"clock\" has no permission for the setting `opens`: declare it in `permissions` with `Permissions::with_settings`"
    );
}

#[test]
fn tools_and_entry_types_are_limited_once_declared() {
    let cx = context(Permissions::new());
    assert_eq!(cx.append_entry("any", &1), Ok(()));
    assert_eq!(cx.set_active_tools(["any"]), Ok(()));
    let cx = context(Permissions::new().with_tools(["read"]).with_storage(["clock/note"]));
    assert_eq!(cx.append_entry("clock/note", &1), Ok(()));
    assert_eq!(cx.set_active_tools(["read"]), Ok(()));
    let refused = cx.append_entry("other/note", &1).unwrap_err().to_string();
    assert!(refused.contains("no permission for the entry type `other/note`"), "{refused}");
    assert!(refused.contains("Permissions::with_storage"), "{refused}");
    let refused = cx.set_active_tools(["read", "write"]).unwrap_err().to_string();
    assert!(refused.contains("no permission for the tool `write`"), "{refused}");
}

#[test]
fn hosts_make_an_extension_remote() {
    assert!(!Declared(Permissions::new()).is_remote());
    assert!(Declared(Permissions::new().with_hosts(["api.example"])).is_remote());
}

#[test]
fn equal_names_and_wrong_hosts_are_mistakes() {
    let extension = |hosts: &[&str]| -> Arc<dyn Extension> {
        Arc::new(Declared(Permissions::new().with_hosts(hosts.iter().copied())))
    };
    assert_eq!(find_extension_mistakes(&[extension(&["a.example:1"])], &["rules"]), [""; 0]);
    let extensions = [extension(&["https://a.example"]), extension(&["a.example:x", "", "a b"])];
    let mistakes = find_extension_mistakes(&extensions, &[]);
    assert_eq!(
        mistakes,
        [
            "extension \"clock\": the permission for the host `https://a.example` must be `host` or `host:port`",
            "two extensions are called `clock`: rename one",
            "extension \"clock\": the permission for the host `a.example:x` must be `host` or `host:port`",
            "extension \"clock\": the permission for the host `` must be `host` or `host:port`",
            "extension \"clock\": the permission for the host `a b` must be `host` or `host:port`",
        ]
    );
}

#[test]
fn extension_and_plugin_of_one_name_are_a_mistake() {
    let extension: Arc<dyn Extension> = Arc::new(Declared(Permissions::new()));
    assert_eq!(
        find_extension_mistakes(&[extension], &["rules", "clock"]),
        ["an extension and a plugin are both called `clock`: rename one"]
    );
}

#[test]
fn settings_that_nobody_declares_are_mistakes() {
    let declared = BTreeMap::from([("clock", Permissions::new().with_settings(["zone"]))]);
    let settings = |owner: &str, name: &str| {
        let values = BTreeMap::from([(name.to_owned(), Value::from(1))]);
        find_setting_mistakes(&BTreeMap::from([(owner.to_owned(), values)]), &declared)
    };
    assert_eq!(settings("clock", "zone"), [""; 0]);
    assert_eq!(
        settings("clock", "zoom"),
        [
            "`clock` does not declare the setting `zoom`: declare it in `permissions` with `Permissions::with_settings`"
        ]
    );
    assert_eq!(
        settings("clocks", "zone"),
        ["the settings of `clocks` belong to no extension or plugin of this agent"]
    );
}
