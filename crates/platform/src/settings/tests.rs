//! Tests of settings: accepted values, rejected values and error texts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::model::Provider;
use super::table::{self, ReadBy, SetBy};
use super::*;

/// Reads settings from pairs.
fn read(pairs: &[(&'static str, &str)]) -> Result<ServiceSettings, Vec<SettingMistake>> {
    let pairs: Vec<(&'static str, String)> =
        pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    ServiceSettings::read(move |requested| {
        pairs.iter().find(|(name, _)| *name == requested).map(|(_, value)| value.clone())
    })
}

fn mistakes(pairs: &[(&'static str, &str)]) -> String {
    let mistakes = read(pairs).expect_err("the settings must be invalid");
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

const KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

#[test]
fn empty_settings_suffice_only_for_dev() {
    let settings = read(&[]).unwrap();
    assert_eq!(settings.model.provider, Provider::Unset);
    assert_eq!(settings.agents_dir.to_str(), Some("agents"));
    assert_eq!((settings.auth, settings.has_console()), (None, false));
    let missing: Vec<String> =
        settings.missing_required().into_iter().map(|mistake| mistake.name).collect();
    assert_eq!(
        missing,
        ["AZURE_OPENAI_BASE_URL", "TURNWHEEL_PUBLIC_URL", "TURNWHEEL_SIGNING_KEYS"]
    );
}

#[test]
fn complete_settings_are_parsed() {
    let settings = read(&[
        ("AZURE_OPENAI_ENDPOINT", " https://res.openai.azure.com/?api-version=v1\n"),
        ("AZURE_OPENAI_API_KEY", "k-1"),
        ("TURNWHEEL_MODEL", "normal=gpt-5-mini, high=gpt-5.1"),
        ("TURNWHEEL_AUTH", "easyauth"),
        ("TURNWHEEL_CONSOLE", "on"),
        ("WEBSITE_AUTH_ENABLED", "True"),
        ("WEBSITE_HOSTNAME", "my-app.azurewebsites.net"),
        (
            "TURNWHEEL_SIGNING_KEYS",
            &format!("{KEY} {}", KEY.replace("MDEy", "-_Ey").trim_end_matches('=')),
        ),
        ("TURNWHEEL_WEBHOOK_URL", "https://hooks.example.com/t/secret?x=1"),
        (
            "TURNWHEEL_WEBHOOK_SECRET",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        ),
        (
            "TURNWHEEL_HTTP_TOOLS_ALLOW",
            "10.1.0.0/16, payments.internal:8443 [::1]:9000 fd00::/8,::1",
        ),
        ("FUNCTIONS_CUSTOMHANDLER_PORT", "43211"),
        ("TURNWHEEL_HALT_AT", "response.after#2"),
    ])
    .unwrap();
    assert!(settings.missing_required().is_empty());
    assert_eq!(settings.port, Some(43211));
    assert_eq!(settings.public_url.as_deref(), Some("https://my-app.azurewebsites.net"));
    assert!(settings.has_console());
    assert_eq!(settings.signing_keys.len(), 2);
    assert_eq!(settings.webhook.unwrap().secrets.len(), 2);
    assert_eq!(settings.http_tools_allow.len(), 5);
    assert_eq!(settings.model.high.as_deref(), Some("gpt-5.1"));
    assert!(settings.is_sign_in_on && !settings.is_in_azure);
    let armed = settings.armed_fail_point.unwrap();
    assert_eq!((armed.name.as_str(), armed.occurrence.get()), ("response.after", 2));
}

#[test]
fn all_invalid_settings_are_reported_with_expected_value() {
    let text = mistakes(&[
        ("TURNWHEEL_AUTH", "none"),
        ("TURNWHEEL_CONSOLE", "true"),
        ("FUNCTIONS_CUSTOMHANDLER_PORT", "0"),
        ("TURNWHEEL_MODEL", "high="),
        ("TURNWHEEL_PRICES", "[1]"),
        ("AZURE_OPENAI_BASE_URL", "res.openai.azure.com"),
        ("TURNWHEEL_PUBLIC_URL", "host/app"),
        ("TURNWHEEL_DEFAULT_AGENT", "The Clerk"),
        ("TURNWHEEL_HTTP_TOOLS_ALLOW", "http://10.0.0.1"),
        ("RUST_LOG", "turnwheel=loud"),
        ("TURNWHEEL_HALT_AT", "here#0"),
        ("TURNWHEEL_BUDGETS", r#"{"tenant": {"day": {"usd": 0}}}"#),
        ("TURNWHEEL_RATE_LIMITS", "requests=0/min"),
        ("TURNWHEEL_PAUSED", "clerk"),
        ("TURNWHEEL_RETENTION", "30d"),
    ]);
    insta::assert_snapshot!(text, @r#"
    TURNWHEEL_MODEL is `high=`: expected `scripted`, a model id such as `gpt-5.1`, or `normal=MODEL,high=MODEL`
    TURNWHEEL_PRICES is not usable (its value is kept secret): expected a JSON object such as {"gpt-5.1":{"input":1.25,"output":10}}
    AZURE_OPENAI_BASE_URL is `res.openai.azure.com`: expected an address such as https://my-resource.openai.azure.com
    TURNWHEEL_DEFAULT_AGENT is `The Clerk`: expected the name of an agent file: 1 to 64 of a-z, 0-9 and -
    TURNWHEEL_AUTH is `none`: expected `keys`, `easyauth` or `header`
    TURNWHEEL_CONSOLE is `true`: expected `on` or `off`
    TURNWHEEL_PUBLIC_URL is `host/app`: expected an address such as https://host/path
    TURNWHEEL_HTTP_TOOLS_ALLOW is `http://10.0.0.1`: expected hosts, host:port, addresses or ranges such as 10.1.0.0/16, separated by commas, without http://
    TURNWHEEL_BUDGETS cannot be read: each limit of `tenant` has `tokens`, `usd` or both: 0.000000001 to 1000000000 dollars, 1 to 1000000000000000 tokens; expected JSON such as {"user": {"day": {"usd": 5}}, "tenant": {"month": {"usd": 500}}, "agent:clerk": {"total": {"tokens": 1000000}}}
    TURNWHEEL_RATE_LIMITS is `requests=0/min`: expected rates such as `requests=60/min,modelCalls=30/min`, each more than 0 per s, min or h
    TURNWHEEL_PAUSED is `clerk`: expected `*` for everything, or a list of `agent:NAME` and `tool:NAME`, separated by commas
    RUST_LOG is `turnwheel=loud`: expected directives such as `info` or `info,turnwheel=debug`
    FUNCTIONS_CUSTOMHANDLER_PORT is `0`: expected a port from 1 to 65535
    TURNWHEEL_HALT_AT is `here#0`: expected the name of a fail point, or name#n with n from 1
    TURNWHEEL_RETENTION is set, but comes with a later release and would do nothing: remove it
    "#);
}

#[test]
fn secrets_are_absent_from_errors_and_debug_output() {
    let text = mistakes(&[
        ("TURNWHEEL_SIGNING_KEYS", "c2hvcnQtc2VjcmV0"),
        ("TURNWHEEL_WEBHOOK_URL", "hush-url"),
        ("TURNWHEEL_WEBHOOK_SECRET", "whsec_c2hvcnQtc2VjcmV0"),
        ("AZURE_OPENAI_API_KEY", "hush hush"),
        ("TURNWHEEL_PUBLIC_URL", "https://me:hush@host"),
    ]);
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(!text.contains("hush") && !text.contains("c2hvcnQ"), "{text}");

    let settings = read(&[
        ("AZURE_OPENAI_RESOURCE_NAME", "res"),
        ("AZURE_OPENAI_API_KEY", "hush-key"),
        ("TURNWHEEL_SIGNING_KEYS", KEY),
        ("TURNWHEEL_WEBHOOK_URL", "https://hooks.example.com/hush-path"),
        ("TURNWHEEL_WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ])
    .unwrap();
    let shown = format!("{settings:?}");
    assert!(
        !shown.contains("hush") && !shown.contains("48, 49") && !shown.contains("MfKQ"),
        "{shown}"
    );
}

#[test]
fn embedded_store_is_rejected_in_azure() {
    for variable in ["WEBSITE_INSTANCE_ID", "WEBSITE_SKU", "LEGION_SERVICE_HOST"] {
        let text = mistakes(&[(variable, "x"), ("TURNWHEEL_HALT_AT", "here")]);
        assert!(text.contains("TURNWHEEL_HALT_AT stops the process on purpose"), "{text}");
        let missing: Vec<String> = read(&[(variable, "x")])
            .unwrap()
            .missing_required()
            .iter()
            .map(ToString::to_string)
            .collect();
        let text = missing.join("\n");
        assert!(text.contains("COSMOS__accountEndpoint is not set: the embedded store"), "{text}");
    }
    assert!(
        read(&[("WEBSITE_HOSTNAME", "localhost:7071")]).is_ok(),
        "the local host sets this variable"
    );
}

#[test]
fn model_setting_requires_endpoint() {
    const NO_URL: &str = "an address. Azure OpenAI base URL is required. Set AZURE_OPENAI_BASE_URL or AZURE_OPENAI_RESOURCE_NAME, or pass azureBaseUrl, azureResourceName, or model.baseUrl. ";
    let named = mistakes(&[("TURNWHEEL_MODEL", "gpt-5.1")]);
    assert!(
        named.starts_with(&format!("TURNWHEEL_MODEL names a model without {NO_URL}")),
        "{named}"
    );
    let keyed = mistakes(&[("AZURE_OPENAI_API_KEY", "k")]);
    assert!(keyed.starts_with(&format!("AZURE_OPENAI_API_KEY is set without {NO_URL}")), "{keyed}");
    let prices = r#"{"gpt-5.1": {"baseUrl": "http://127.0.0.1:9/v1"}}"#;
    let own = [("TURNWHEEL_MODEL", "gpt-5.1"), ("TURNWHEEL_PRICES", prices)];
    let Provider::Azure(azure) = read(&own).unwrap().model.provider else { panic!() };
    assert_eq!(azure.to_string(), "the addresses of models in TURNWHEEL_PRICES");
    for good in ["gpt-5.1", "normal=a,high=b", "a,high=b"] {
        let pairs = [("TURNWHEEL_MODEL", good), ("AZURE_OPENAI_RESOURCE_NAME", "res")];
        assert!(matches!(read(&pairs).unwrap().model.provider, Provider::Azure(_)), "{good}");
    }
    for bad in ["a,b", "high", "low=a", "normal=scripted", "high=a,high=b"] {
        assert!(mistakes(&[("TURNWHEEL_MODEL", bad)]).starts_with("TURNWHEEL_MODEL is"), "{bad}");
    }
    let scripted = [("TURNWHEEL_MODEL", "scripted"), ("AZURE_OPENAI_RESOURCE_NAME", "res")];
    assert_eq!(read(&scripted).unwrap().model.provider, Provider::Scripted);
}

#[test]
fn webhook_requires_secret() {
    let text = mistakes(&[("TURNWHEEL_WEBHOOK_URL", "https://hooks.example.com")]);
    assert!(text.starts_with("TURNWHEEL_WEBHOOK_SECRET is not set"), "{text}");
}

#[test]
fn public_url_defaults_to_platform_hostname() {
    let public_url = |pairs: &[(&'static str, &str)]| read(pairs).unwrap().public_url.unwrap();
    assert_eq!(public_url(&[("WEBSITE_HOSTNAME", "localhost:7071")]), "http://localhost:7071");
    let both = [("WEBSITE_HOSTNAME", "a.net"), ("TURNWHEEL_PUBLIC_URL", "https://b.net/app/")];
    assert_eq!(public_url(&both), "https://b.net/app");
}

#[test]
fn port_is_that_of_this_machine_only() {
    for (host, port) in [("localhost:7071", 7071), ("127.0.0.1:7072", 7072), ("localhost", 80)] {
        assert_eq!(links::loopback_port(host), Some(port), "{host}");
    }
    for other in ["my-app.azurewebsites.net", "10.0.0.1:7071", "localhost:x", ""] {
        assert_eq!(links::loopback_port(other), None, "{other}");
    }
}

#[test]
fn invalid_http_tool_hosts_are_rejected() {
    for bad in
        ["10.0.0.0/33", "fd00::/129", "a/b", "user@host", "host:99999", "*.internal", "host/8"]
    {
        assert!(read(&[("TURNWHEEL_HTTP_TOOLS_ALLOW", bad)]).is_err(), "{bad}");
    }
}

#[test]
fn settings_table_equals_settings_read() {
    let read_names = Arc::new(Mutex::new(BTreeSet::new()));
    let recorder = Arc::clone(&read_names);
    ServiceSettings::read(move |name| {
        recorder.lock().unwrap().insert(name.to_owned());
        None
    })
    .unwrap();
    let ours: BTreeSet<String> = table::ROWS
        .iter()
        .filter(|row| row.read_by == ReadBy::Turnwheel)
        .map(|row| row.name.to_owned())
        .collect();
    assert_eq!(*read_names.lock().unwrap(), ours);
    assert_eq!(
        table::ROWS.len(),
        table::ROWS.iter().map(|row| row.name).collect::<BTreeSet<_>>().len()
    );
}

/// Other settings that a setting requires.
fn required_settings(name: &str) -> &'static [(&'static str, &'static str)] {
    const ID: &str = "00000000-0000-0000-0000-000000000000";
    match name {
        "AzureWebJobsStorage__queueServiceUri" => {
            &[("AzureWebJobsStorage__blobServiceUri", "https://b.example.com")]
        }
        "AzureWebJobsStorage__blobServiceUri" => {
            &[("AzureWebJobsStorage__queueServiceUri", "https://q.example.com")]
        }
        "AzureWebJobsStorage__credential"
        | "AzureWebJobsStorage__clientId"
        | "TURNWHEEL_ARTIFACT_LINKS" => &[("AzureWebJobsStorage__accountName", "mine")],
        "COSMOS__credential" | "COSMOS__clientId" | "COSMOS__database" => {
            &[("COSMOS__accountEndpoint", "https://a.documents.azure.com")]
        }
        "AZURE_FEDERATED_TOKEN_FILE" => &[("AZURE_TENANT_ID", ID), ("AZURE_CLIENT_ID", ID)],
        "TURNWHEEL_WEBHOOK_URL" => {
            &[("TURNWHEEL_WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
        }
        "TURNWHEEL_MODEL" | "AZURE_OPENAI_API_KEY_SECRET_URL" => {
            &[("AZURE_OPENAI_RESOURCE_NAME", "res")]
        }
        _ => &[],
    }
}

#[test]
fn artifact_links_require_identity() {
    let links = ("TURNWHEEL_ARTIFACT_LINKS", "sas");
    let signed = read(&[links, ("AzureWebJobsStorage__accountName", "mine")]).unwrap();
    assert_eq!(signed.artifact_links, ArtifactLinks::Signed);
    assert_eq!(read(&[]).unwrap().artifact_links, ArtifactLinks::Api);
    for others in [vec![], vec![("AzureWebJobsStorage", "UseDevelopmentStorage=true")]] {
        let text = mistakes(&[vec![links], others].concat());
        assert!(
            text.starts_with("TURNWHEEL_ARTIFACT_LINKS is `sas`, and only an identity"),
            "{text}"
        );
    }
    assert!(mistakes(&[("TURNWHEEL_ARTIFACT_LINKS", "public")]).contains("`api` or `sas`"));
}

#[test]
fn setting_samples_and_examples_are_valid() {
    let sample = |name: &str| table::find_row(name).map(|row| row.sample.to_owned());
    let settings = ServiceSettings::read(sample).unwrap();
    assert_eq!(settings.model.provider, Provider::Unset);
    for row in table::ROWS {
        let is_usable = !row.example.is_empty() && row.set_by != SetBy::FutureRelease;
        if is_usable {
            let mut pairs = vec![(row.name, row.example)];
            pairs.extend(required_settings(row.name));
            assert!(read(&pairs).is_ok(), "{}: {:?}", row.name, read(&pairs).err());
        }
    }
}

#[test]
fn model_api_is_chosen_per_model() {
    use super::model::ModelApi::{ChatCompletions, Responses};
    let found = |text: &str| {
        let apis = read(&[("TURNWHEEL_MODEL_API", text)]).unwrap().model.apis;
        ["gpt-5.1", "DeepSeek-V3.2"].map(|model| apis.find(model))
    };
    for (text, expected) in [
        ("", [Responses, Responses]),
        ("responses", [Responses, Responses]),
        ("chat", [ChatCompletions, ChatCompletions]),
        ("DeepSeek-V3.2=chat", [Responses, ChatCompletions]),
        ("chat, gpt-5.1=responses", [Responses, ChatCompletions]),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
    for wrong in ["completions", "high=chat", "a=b", "=chat", "chat,responses", "a=chat,a=chat"] {
        let text = mistakes(&[("TURNWHEEL_MODEL_API", wrong)]);
        assert!(text.contains("`responses`, `chat`, or a list of `MODEL=API`"), "{wrong}: {text}");
    }
}

#[test]
fn agent_file_settings_are_readable() {
    let settings = read(&[("PAYMENTS_TENANT", "t-1"), ("EMPTY", " ")]).unwrap();
    assert_eq!(settings.app_setting("PAYMENTS_TENANT").as_deref(), Some("t-1"));
    assert_eq!(settings.app_setting("EMPTY"), None);
    let settings = settings
        .with_app_setting("EMPTY", "given".to_owned())
        .with_app_setting("PAYMENTS_TENANT", "never".to_owned());
    assert_eq!(settings.app_setting("EMPTY").as_deref(), Some("given"));
    assert_eq!(settings.app_settings()("PAYMENTS_TENANT").as_deref(), Some("t-1"));
}

/// As `TURNWHEEL_PRICES=$(cat prices.json)` sets it.
#[test]
fn byte_order_mark_before_a_value_is_skipped() {
    for (name, value) in [
        ("TURNWHEEL_PRICES", r#"{"gpt-5.1": {"input": 1.25, "output": 10}}"#),
        ("TURNWHEEL_BUDGETS", r#"{"user": {"day": {"usd": 5}}}"#),
        ("TURNWHEEL_SIGNING_KEYS", KEY),
        ("TURNWHEEL_PUBLIC_URL", "https://my-app.example"),
        ("TURNWHEEL_AUTH", "header"),
        ("TURNWHEEL_AGENTS_DIR", "assistants"),
        ("WEBSITE_AUTH_ENABLED", "true"),
        ("RUST_LOG", "debug"),
    ] {
        let plain = format!("{:?}", read(&[(name, value)]).unwrap());
        for marked in [format!("\u{feff}{value}\r\n"), format!("\n\u{feff} {value}")] {
            let found = read(&[(name, &marked)]).unwrap();
            assert_eq!(format!("{found:?}"), plain, "{name}: {marked:?}");
        }
    }
    let marked = read(&[
        ("TURNWHEEL_PRICES", "\u{feff}{}"),
        ("PLAIN", "\u{feff}t-1"),
        ("EMPTY", "\u{feff}"),
    ]);
    let settings = marked.unwrap();
    assert_eq!(settings.model.prices.as_ref().unwrap().reveal(), "{}");
    assert_eq!(settings.app_setting("PLAIN").as_deref(), Some("t-1"));
    assert_eq!(settings.app_setting("EMPTY"), None);
    let settings = settings.with_app_setting("EMPTY", "given".to_owned());
    assert_eq!(settings.app_setting("EMPTY").as_deref(), Some("given"));
    assert!(mistakes(&[("TURNWHEEL_PRICES", "\u{feff}\u{feff}{}")]).contains("is not usable"));
}

#[test]
fn local_settings_file_is_parsed() {
    let values = local_file::parse(
        "\u{feff}{\"IsEncrypted\":false,\"Values\":{\"A\":\"1\",\"B\":true,\"C\":2}}",
    )
    .unwrap();
    assert_eq!(values["B"], "true");
    assert_eq!(values["C"], "2");
    let wrong = |text: &str| local_file::parse(text).unwrap_err().to_string();
    assert!(wrong("{\"IsEncrypted\":true}").contains("func settings decrypt"));
    assert!(wrong("{\"Values\":{\"A\":[1]}}").contains("no text for `A`"));
    let torn = wrong("{\"Values\":{\"KEY\":\"hush");
    assert!(torn.contains("line 1") && !torn.contains("hush"), "{torn}");
    for (text, start) in [
        (
            "[]",
            "local.settings.json is not a JSON object: expected {\"IsEncrypted\": false, \"Values\"",
        ),
        ("", "local.settings.json is not a JSON object"),
        ("{}", "local.settings.json has no `Values`: expected {"),
        ("{\"values\": {\"A\": \"1\"}}", "local.settings.json has no `Values`"),
        ("{\"Values\": null}", "local.settings.json has no `Values`"),
    ] {
        assert!(wrong(text).starts_with(start), "{text}: {}", wrong(text));
    }
    assert!(local_file::parse("{\"Values\": {}}").unwrap().is_empty());
    let folder = tempfile::tempdir().unwrap();
    assert!(local_file::read(folder.path()).unwrap().is_empty());
}

#[test]
fn settings_of_the_functions_host_are_listed() {
    let settings = read(&[]).unwrap();
    assert!(settings.host_settings().is_empty());
    let settings = settings
        .with_app_setting("azurefunctionsjobhost__a", String::new())
        .with_app_setting("AzureFunctionsJobHost:b__C", "1".to_owned())
        .with_app_setting("OTHER", "2".to_owned());
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = [pair("AzureFunctionsJobHost:b__C", "1"), pair("azurefunctionsjobhost__a", "")];
    assert_eq!(settings.host_settings(), expected);
}

#[test]
fn empty_value_of_local_file_overrides_nothing() {
    let file = r#"{"Values": {"AzureFunctionsJobHost__empty": "", "AzureFunctionsJobHost__null": null,
        "AzureFunctionsJobHost__set": "", "AzureFunctionsJobHost__value": "1"}}"#;
    let values = local_file::parse(file).unwrap();
    let environment = ["AzureFunctionsJobHost__set", "OTHER"].map(str::to_owned);
    let names = find_folder_host_setting_names(environment.into_iter(), &values);
    let expected = ["AzureFunctionsJobHost__set", "AzureFunctionsJobHost__value"];
    assert_eq!(Vec::from_iter(names), expected);
}

#[test]
fn budgets_and_rate_limits_are_parsed() {
    let settings = read(&[
        (
            "TURNWHEEL_BUDGETS",
            r#"{"user": {"day": {"usd": 5, "tokens": 2000000}}, "agent:clerk": {"total": {"usd": 1e-9}}, "approvers": ["role:Finance"]}"#,
        ),
        ("TURNWHEEL_RATE_LIMITS", "modelCalls=30/min"),
    ])
    .unwrap();
    let user = settings.budgets.user.day.unwrap();
    assert_eq!((user.usd, user.tokens), (Some(5.0), Some(2_000_000)));
    let (agent, limits) = &settings.budgets.agents[0];
    assert_eq!((agent.as_str(), limits.total.unwrap().usd), ("clerk", Some(1e-9)));
    assert_eq!(settings.budgets.approvers, ["role:Finance"]);
    assert!(settings.rate_limits.requests.is_none() && settings.rate_limits.model_calls.is_some());
    for wrong in [
        "5",
        r#"{"user": {}}"#,
        r#"{"user": {"week": {"usd": 5}}}"#,
        r#"{"user": {"day": {}}}"#,
        r#"{"user": {"day": {"usd": -5}}}"#,
        r#"{"user": {"day": {"usd": 9.99e-10}}}"#,
        r#"{"user": {"day": {"tokens": 0}}}"#,
        r#"{"agent:": {"day": {"usd": 5}}}"#,
        r#"{"group": {"day": {"usd": 5}}}"#,
        r#"{"approvers": ["everybody"]}"#,
        r#"{"approvers": []}"#,
    ] {
        let text = mistakes(&[("TURNWHEEL_BUDGETS", wrong)]);
        assert!(text.starts_with("TURNWHEEL_BUDGETS cannot be read: "), "{wrong}: {text}");
    }
}

#[test]
fn budgets_reject_lists_and_misspelt_members() {
    for (wrong, named) in [
        (r#"{"user": [{"usd": 5}]}"#, "`user` and its members are objects, not lists"),
        (r#"{"user": {"day": [5]}}"#, "`user` and its members are objects, not lists"),
        (r#"{"agent:clerk": {"total": [5, 1]}}"#, "`agent:clerk` and its members are objects"),
        (r#"{"users": {"day": {"usd": 5}}}"#, "`users` is none of `tenant`, `user`, `agent:NAME`"),
        (r#"{"agents:clerk": {"day": {"usd": 5}}}"#, "`agents:clerk` is none of `tenant`"),
        (
            r#"{"user": {"days": {"usd": 5}}}"#,
            "unknown field `days`, expected one of `day`, `month`",
        ),
        (r#"{"user": {"day": {"USD": 5}}}"#, "unknown field `USD`, expected `tokens` or `usd`"),
        (r#"{"approvers": ["roles:Boss"]}"#, "`approvers` are `owner`, `link` or `role:NAME`"),
        (r#"[{"user": {"day": {"usd": 5}}}]"#, "expected an object of budgets"),
    ] {
        let text = mistakes(&[("TURNWHEEL_BUDGETS", wrong)]);
        assert!(text.contains(named), "{wrong}: {text}");
    }
}
