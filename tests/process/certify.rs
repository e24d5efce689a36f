//! `turnwheel certify` on the bundled agents.

use std::process::{Command, Output};

fn run_certify(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .arg("certify")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

/// Returns the output for an agent, and the number of its `JUnit` cases.
fn certify_agent(agent: &str) -> (String, usize) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("certify.xml");
    let output = run_certify(&[agent, "--junit", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let xml = std::fs::read_to_string(&file).unwrap();
    assert!(!xml.contains("<failure"), "{xml}");
    (text, xml.matches("<testcase ").count())
}

#[test]
fn bundled_agents_certify() {
    let clerk = std::thread::spawn(|| certify_agent("payments-clerk"));
    let assistant = std::thread::spawn(|| certify_agent("assistant"));
    for (agent, run) in
        [("payments-clerk: 2 prompts, ", clerk), ("assistant: 1 prompt, ", assistant)]
    {
        let (text, cases) = run.join().unwrap();
        assert!(text.contains(agent), "{text}");
        assert!(!text.contains("not called"), "every tool is called: {text}");
        assert!(cases > 200, "{cases} cases: {text}");
    }
}

#[test]
fn errors_name_agents_and_unknown_keys() {
    let unknown = run_certify(&["nobody"]);
    assert_eq!(unknown.status.code(), Some(1));
    let error_text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        error_text.contains("there is no agent `nobody`; there are: assistant"),
        "{error_text}"
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.agent.md"), "---\ndescription: A.\n---\nBe good.\n")
        .unwrap();
    std::fs::write(folder.path().join("a.certify.yaml"), "- promt: hi\n").unwrap();
    let wrong = run_certify(&["--agents", folder.path().to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(1));
    let error_text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        error_text.contains("a.certify.yaml: ") && error_text.contains("promt"),
        "{error_text}"
    );
}

#[test]
fn unknown_run_exits_2_and_names_the_choices() {
    for (run, named) in [
        ("tool.aftr", ["no fail point `tool.aftr`", "tool.before, tool-result.before"]),
        ("tool.after#0", ["`0` is not an occurrence", "write 1 or more"]),
        ("tool.after:crash", ["`crash` is not a fault", "the faults are kill"]),
        ("lease.before#99", ["no run lease.before#99", "reaches lease.before"]),
        ("summary.after", ["does not reach summary.after", "it reaches admission.hold-key"]),
    ] {
        let output = run_certify(&["assistant", "--only", run]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{run}: {text}");
        assert!(named.iter().all(|named| text.contains(named)), "{run}: {text}");
    }
}

#[test]
fn agent_certifies_with_real_tools() {
    let folder = tempfile::tempdir().unwrap();
    let clerk = include_str!("../../agents/payments-clerk.agent.md");
    std::fs::write(folder.path().join("clerk.agent.md"), clerk).unwrap();
    std::fs::write(folder.path().join("clerk.certify.yaml"), "- prompt: Pay 40 to Ada\n").unwrap();
    // The run starts the example's payments server and pays repeatedly.
    let agents = folder.path().to_str().unwrap();
    let output = run_certify(&["--agents", agents, "--tools", "real", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["tools"], &report["broken"]), (&"real".into(), &0.into()));
}
