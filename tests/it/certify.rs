//! `turnwheel certify` on the bundled agents.

use std::process::{Command, Output};

fn certify(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .arg("certify")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

/// Returns the output for an agent, and the number of its JUnit cases.
fn certified(agent: &str) -> (String, usize) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("certify.xml");
    let output = certify(&[agent, "--junit", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let xml = std::fs::read_to_string(&file).unwrap();
    assert!(!xml.contains("<failure"), "{xml}");
    (said, xml.matches("<testcase ").count())
}

#[test]
fn the_agents_that_come_along_certify() {
    let clerk = std::thread::spawn(|| certified("payments-clerk"));
    let assistant = std::thread::spawn(|| certified("assistant"));
    for (agent, run) in
        [("payments-clerk: 2 prompts, ", clerk), ("assistant: 1 prompt, ", assistant)]
    {
        let (said, cases) = run.join().unwrap();
        assert!(said.contains(agent), "{said}");
        assert!(!said.contains("not called"), "every tool is called: {said}");
        assert!(cases > 200, "{cases} cases: {said}");
    }
}

#[test]
fn mistakes_say_what_to_do() {
    let unknown = certify(&["nobody"]);
    assert_eq!(unknown.status.code(), Some(1));
    let told = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(told.contains("there is no agent `nobody`; there are: assistant"), "{told}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.agent.md"), "---\ndescription: A.\n---\nBe good.\n")
        .unwrap();
    std::fs::write(folder.path().join("a.certify.yaml"), "- promt: hi\n").unwrap();
    let wrong = certify(&["--agents", folder.path().to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(1));
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(told.contains("a.certify.yaml: ") && told.contains("promt"), "{told}");
}

#[test]
fn unknown_run_exits_2_and_names_the_choices() {
    for (run, named) in [
        ("tool.aftr", ["no fail point `tool.aftr`", "tool.before, tool.after"]),
        ("tool.after#0", ["`0` is not an occurrence", "write 1 or more"]),
        ("tool.after:crash", ["`crash` is not a fault", "the faults are kill"]),
        ("claim.before#99", ["no run claim.before#99", "reaches claim.before"]),
        ("summary.after", ["does not reach summary.after", "it reaches admission.hold-key"]),
    ] {
        let output = certify(&["assistant", "--only", run]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{run}: {said}");
        assert!(named.iter().all(|named| said.contains(named)), "{run}: {said}");
    }
}

#[test]
fn real_tools_are_called_and_certify() {
    let folder = tempfile::tempdir().unwrap();
    let clerk = include_str!("../../agents/payments-clerk.agent.md");
    std::fs::write(folder.path().join("clerk.agent.md"), clerk).unwrap();
    std::fs::write(folder.path().join("clerk.certify.yaml"), "- prompt: Pay 40 to Ada\n").unwrap();
    // The run starts the example's payments server and pays repeatedly.
    let agents = folder.path().to_str().unwrap();
    let output = certify(&["--agents", agents, "--tools", "real", "--json"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["tools"], &report["broken"]), (&"real".into(), &0.into()));
}
