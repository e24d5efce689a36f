//! `GET /api/doctor` of a running `dev`: the checks of the command, as the files are at the time of the request.

use serde_json::Value;

use crate::commands::agent_folder;
use crate::support::dev_process::DevProcess;
use crate::support::openapi_check;

async fn read_report(dev: &DevProcess) -> Value {
    let request = reqwest::Client::new().get(dev.url("/api/doctor"));
    openapi_check::send(request).await.unwrap().json()
}

fn find_check<'a>(report: &'a Value, part: &str) -> &'a Value {
    let mut checks = report["checks"].as_array().unwrap().iter();
    let is_found = |check: &&Value| check["detail"].as_str().unwrap().contains(part);
    checks.find(is_found).unwrap_or_else(|| panic!("no `{part}`: {report:#}"))
}

#[tokio::test]
async fn service_reports_the_checks_of_doctor() {
    let folder = agent_folder();
    let root = folder.path();
    let dev = DevProcess::start_in(root, &root.join("data"), &[]);
    let report = read_report(&dev).await;
    assert_eq!(report["ok"], true, "{report:#}");
    assert_eq!(find_check(&report, "every agent can be used")["outcome"], "ok");
    assert_eq!(find_check(&report, "is in use by a running")["area"], "store");
    std::fs::write(root.join("agents/bad.agent.md"), "---\nmodle: x\n---\nYou help.\n").unwrap();
    let report = read_report(&dev).await;
    assert_eq!(report["ok"], false, "{report:#}");
    let check = find_check(&report, "unknown key `modle`");
    assert_eq!((&check["outcome"], &check["line"]), (&"fix".into(), &2.into()), "{check}");
    assert!(check["file"].as_str().unwrap().ends_with("agents/bad.agent.md"), "{check}");
}
