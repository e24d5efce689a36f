//! Tests of calls of a program that writes no response.

use super::*;
use crate::http::template::SettingSecret;

/// A program that responds to all requests until a call.
const START: &str = r#"
respond() {
  id=${line#*'"id":'}
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "${id%%[,\}]*}" "$1"
}
while read -r line; do
  case $line in
    *'"tools/call"'*) break ;;
    *'"initialize"'*)
      respond '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"tools/list"'*) respond '{"tools":[{"name":"send","inputSchema":{"type":"object"}}]}' ;;
  esac
done
"#;

/// The outcome of a call, at which the program runs these commands and ends.
async fn outcome_of(commands: &str, rules: McpRules) -> ToolOutcome {
    let secret = SettingSecret { name: "KEY".to_owned(), value: "s3cret-value".to_owned() };
    let command = ServerCommand {
        program: "/bin/sh".to_owned(),
        arguments: vec!["-c".to_owned(), format!("{START}{commands}")],
        environment: Vec::new(),
        folder: std::env::temp_dir(),
        redactor: Redactor::new([&secret].into_iter()),
    };
    let server = McpServer::new("shop", "i".to_owned(), false, Connector::Stdio(command));
    let source = McpToolSource::new(Arc::new(server), rules);
    source.server.refresh(NOW).await.unwrap();
    call(&source, &TestEnv::new()).await
}

#[tokio::test]
async fn unknown_outcome_shows_output_of_the_program() {
    for (commands, shown) in [
        (
            r#"printf '{"jsonrpc":"2.0","result":{"text":"s3cret-value booked 4711 \342\200\256s3cret-v'"#,
            r#"{"jsonrpc":"2.0","result":{"text":"[KEY] booked 4711 [KEY]"#,
        ),
        (
            r#"printf '{\n "id": 2, "result": "booked\t4711 of s3cret-value"'"#,
            r#"{ "id": 2, "result": "booked 4711 of [KEY]""#,
        ),
        ("echo 'Traceback: booked 4711'", "Traceback: booked 4711"),
    ] {
        let reason = reason_of_unknown(outcome_of(commands, rules(Some(Effect::Write))).await);
        let expected = format!("the session ended before the response: {shown}");
        assert!(reason.ends_with(&expected), "{reason}");
    }
    let long = "i=0; while [ $i -lt 900 ]; do printf 'booked 4711 '; i=$((i+1)); done";
    let reason = reason_of_unknown(outcome_of(long, rules(Some(Effect::Write))).await);
    assert!(reason.contains(": booked 4711 booked") && reason.len() < 2_400, "{reason}");
}

/// The model reads no logs of the machine.
#[tokio::test]
async fn failed_read_shows_no_output_of_a_program() {
    let result = returned(outcome_of("echo '/srv/app: no key'", rules(Some(Effect::Read))).await);
    let text = joined_text(&result.content);
    assert!(result.is_error && !text.contains("/srv/app"), "{text}");
}

/// The program is alive, and its session ends before its output is shown.
#[tokio::test]
async fn unknown_outcome_at_the_time_limit_shows_output() {
    let rules = McpRules { timeout: Duration::from_secs(4), ..rules(Some(Effect::Write)) };
    let commands = "printf 'log\\nbooked 4711 of s3cret-v'; read -r line";
    let reason = reason_of_unknown(outcome_of(commands, rules).await);
    let expected = "there was no response in time: log booked 4711 of [KEY]";
    assert!(reason.ends_with(expected), "{reason}");
}

/// The model reads the outcome, and no logs of the machine.
#[tokio::test]
async fn outcome_for_the_model_shows_no_output() {
    let rules = McpRules { on_unknown: OnUnknown::Tell, ..rules(Some(Effect::Write)) };
    let reason = reason_of_unknown(outcome_of("echo '/srv/app: no key'", rules).await);
    assert!(reason.ends_with("the session ended before the response"), "{reason}");
}

/// The child writes to no pipe of the program, so the end of the program does not wait for it.
#[tokio::test]
async fn processes_of_a_program_end_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("process");
    let commands = format!("sleep 600 >/dev/null 2>&1 & echo $! > '{}'", file.display());
    outcome_of(&commands, rules(Some(Effect::Read))).await;
    let process = std::fs::read_to_string(&file).unwrap();
    let ended = async {
        loop {
            let mut ps = tokio::process::Command::new("ps");
            let ps = ps.args(["-o", "stat=", "-p", process.trim()]).output().await.unwrap();
            // A process that its parent has not waited for has the state Z.
            if ps.stdout.is_empty() || ps.stdout.starts_with(b"Z") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(2), ended).await.expect("a child is alive");
}
