//! Tests of the doctor: its checks, its formats and its exit status.

use super::*;
use turnwheel_devhost::program::sample::SampleElf;
use turnwheel_platform::settings::ServiceSettings;

fn check_settings(pairs: &'static [(&'static str, &'static str)]) -> DoctorReport {
    let settings = ServiceSettings::read(move |requested| {
        pairs.iter().find(|(name, _)| *name == requested).map(|(_, value)| (*value).to_owned())
    });
    DoctorReport::new(configuration_checks(&settings))
}

#[test]
fn fresh_clone_has_no_problems() {
    let report = check_settings(&[]);
    assert_eq!(report.exit_status(), 0);
    insta::assert_snapshot!(report.render(Format::Text), @r"
    configuration  ok       settings: all settings are valid
    configuration  ok       model: none: `dev` uses the fake model (scripted); for a real one set TURNWHEEL_MODEL and AZURE_OPENAI_BASE_URL, AZURE_OPENAI_ENDPOINT or AZURE_OPENAI_RESOURCE_NAME
    configuration  ok       auth: keys (`dev`: header)
    configuration  skipped  public address: neither TURNWHEEL_PUBLIC_URL nor WEBSITE_HOSTNAME is set; `dev` uses its own address
    configuration  skipped  signing keys: none: `dev` makes one; to serve, set TURNWHEEL_SIGNING_KEYS (`head -c 32 /dev/urandom | base64`)
    configuration  skipped  webhook: TURNWHEEL_WEBHOOK_URL is not set: no notifications of approval requests are sent
    All completed checks are in order.
    ");
}

#[test]
fn each_setting_mistake_needs_fix() {
    let report =
        check_settings(&[("TURNWHEEL_AUTH", "nobody"), ("TURNWHEEL_SIGNING_KEYS", "short")]);
    assert_eq!(report.exit_status(), 1);
    insta::assert_snapshot!(report.render(Format::Text), @r"
    configuration  fix      TURNWHEEL_AUTH: is `nobody`: expected `keys`, `easyauth` or `header`
    configuration  fix      TURNWHEEL_SIGNING_KEYS: is not usable (its value is kept secret): expected base64 of at least 32 bytes each, separated by spaces (`head -c 32 /dev/urandom | base64` makes one)
    2 problems to fix.
    ");
}

#[test]
fn unencrypted_approval_links_need_fix() {
    let report = check_settings(&[
        ("TURNWHEEL_PUBLIC_URL", "http://agents.example.com"),
        ("TURNWHEEL_WEBHOOK_URL", "http://hooks.example.com/hush"),
        ("TURNWHEEL_WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ]);
    assert_eq!(report.count_to_fix(), 2);
    for format in [Format::Text, Format::Json, Format::Github] {
        assert!(!report.render(format).contains("hush"));
    }
    let local = check_settings(&[("TURNWHEEL_PUBLIC_URL", "http://127.0.0.1:7071")]);
    assert_eq!(local.exit_status(), 0);
}

fn mixed_report() -> DoctorReport {
    DoctorReport::new(vec![
        Check::from_agent_mistake(
            "agents/clerk.agent.md:7: unknown key `efect`: did you mean `effect`?\n100% sure",
        ),
        Check::from_agent_mistake("agents is no folder"),
        Check::ok(Area::Store, "embedded", ".turnwheel"),
        Check::skipped(Area::Model, "reachable", "--offline"),
    ])
}

#[test]
fn github_report_annotates_agent_file_line() {
    insta::assert_snapshot!(mixed_report().render(Format::Github), @r"
    ok store: embedded: .turnwheel
    ::notice title=model%3A reachable::--offline
    ::error file=agents/clerk.agent.md,line=7,title=agents%3A agents/clerk.agent.md::unknown key `efect`: did you mean `effect`?%0A100%25 sure
    ::error title=agents%3A agent file::agents is no folder
    ");
}

#[test]
fn json_report_lists_all_checks() {
    insta::assert_snapshot!(mixed_report().render(Format::Json), @r#"
    {
      "ok": false,
      "checks": [
        {
          "area": "store",
          "name": "embedded",
          "outcome": "ok",
          "detail": ".turnwheel"
        },
        {
          "area": "model",
          "name": "reachable",
          "outcome": "skipped",
          "detail": "--offline"
        },
        {
          "area": "agents",
          "name": "agents/clerk.agent.md",
          "outcome": "fix",
          "detail": "unknown key `efect`: did you mean `effect`?\n100% sure",
          "file": "agents/clerk.agent.md",
          "line": 7
        },
        {
          "area": "agents",
          "name": "agent file",
          "outcome": "fix",
          "detail": "agents is no folder"
        }
      ]
    }
    "#);
}

#[test]
fn program_check_reports_azure_compatibility() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("turnwheel");
    let check = |program: &SampleElf| {
        std::fs::write(&path, program.to_bytes()).unwrap();
        DoctorReport::new(vec![program_check(&path)])
    };
    let report_text =
        |versions| check(&SampleElf { versions, ..SampleElf::default() }).render(Format::Text);
    assert!(report_text(&["GLIBC_2.31"]).contains("program: glibc 2.31: Azure can start it"));
    assert!(
        report_text(&["GLIBC_2.34"])
            .contains("program: it needs glibc 2.34, so it starts on Debian 12")
    );
    // `dev` still runs here.
    let report = check(&SampleElf { versions: &["GLIBC_2.39"], ..SampleElf::default() });
    assert_eq!(report.exit_status(), 0);
    assert!(report.render(Format::Text).contains("not in Azure: it needs glibc 2.39"));
}
