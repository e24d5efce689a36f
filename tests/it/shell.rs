//! Shell tools: the sandbox against hostile commands, and the tools through the built binary.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dev_client::DevClient;
use crate::support::openapi_check::SendValidated as _;

/// Response of the sandbox: its header, then output and files as text.
struct Response {
    header: Value,
    body: String,
}

impl Response {
    fn finished(&self) -> &Value {
        let finished = &self.header["Finished"];
        assert!(finished.is_object(), "allow user namespaces on this machine: {}", self.header);
        finished
    }

    fn changes(&self) -> &Value {
        &self.finished()["changes"]["Ok"]
    }
}

/// Like [`run_within`], with a time limit that no command here reaches on a busy machine.
fn run(command: &str) -> Response {
    run_within(command, 120)
}

/// Runs a command with the files `a.txt` and `d/b.txt`, and a secret in the environment.
fn run_within(command: &str, seconds: u64) -> Response {
    let files = [("a.txt", "hello"), ("d/b.txt", "bee")];
    let header = json!({
        "command": command, "folder": "",
        "limits": {
            "time": {"secs": seconds, "nanos": 0}, "memory_bytes": 256 << 20, "processes": 32, "output_bytes": 65_536,
            "flood_bytes": 4 << 20, "file_bytes": 1 << 20, "workspace_bytes": 32 << 20, "files": 500,
        },
        "files": files.map(|(path, text)| (path, text.len())),
    });
    let mut child = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(["shell-sandbox", "outer"])
        .env("SECRET_OF_TEST", "kee-p-this-secret")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let header = header.to_string();
    input.write_all(&(header.len() as u64).to_be_bytes()).unwrap();
    input.write_all(header.as_bytes()).unwrap();
    for (_, text) in files {
        input.write_all(text.as_bytes()).unwrap();
    }
    let mut response = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut response).unwrap();
    drop(input);
    child.wait().unwrap();
    let (length, rest) = response.split_at(8);
    let length = usize::try_from(u64::from_be_bytes(length.try_into().unwrap())).unwrap();
    let header = serde_json::from_slice(&rest[..length]).unwrap();
    Response { header, body: String::from_utf8_lossy(&rest[length..]).into_owned() }
}

#[test]
fn command_sees_and_changes_its_files() {
    let response =
        run("cat a.txt d/b.txt; echo new > n.txt; echo more >> d/b.txt; rm a.txt; exit 3");
    assert_eq!(response.finished()["end"], json!({"Exited": 3}));
    assert!(response.body.starts_with("hellobee"), "{}", response.body);
    let mut written = response.changes()["written"].as_array().unwrap().clone();
    written.sort_by_key(Value::to_string);
    assert_eq!(json!(written), json!([["d/b.txt", 8], ["n.txt", 4]]));
    assert_eq!(response.changes()["deleted"], json!(["a.txt"]));
}

#[test]
fn host_files_and_secrets_are_not_visible() {
    assert!(std::path::Path::new("/etc/passwd").exists(), "control");
    let response = run(
        "for f in /etc/passwd /root /home /work /workspace/../etc/shadow /dev/shm /dev/zero /dev/mem; do \
         test -e $f && echo visible $f; done; env; cat /proc/1/environ /proc/*/environ; ls /proc; cat a.txt",
    );
    assert!(!response.body.contains("visible"), "{}", response.body);
    assert!(!response.body.contains("kee-p-this-secret"), "{}", response.body);
    assert!(response.body.contains("hello"), "control: {}", response.body);
}

#[test]
fn writes_outside_of_the_workspace_fail() {
    let response = run(
        "for f in /x /usr/x /bin/x /etc/x /dev/x /proc/sys/kernel/hostname; do (echo 1 > $f) && echo wrote $f; done; \
         echo 1 > /tmp/x && echo 1 > x && echo control",
    );
    assert!(!response.body.contains("wrote"), "{}", response.body);
    assert!(response.body.contains("control"), "{}", response.body);
}

#[test]
fn links_devices_and_large_files_are_refused_by_name() {
    let response = run(
        "ln -s /etc/passwd l; mkfifo p; head -c 2000000 /dev/urandom > big; mknod n c 1 3; rm -r d; ln -s /usr d",
    );
    let refused =
        json!({"big": "TooLarge", "d": "SymbolicLink", "l": "SymbolicLink", "p": "SpecialFile"});
    assert_eq!(response.changes()["refused"], refused, "{}", response.body);
    let response = run("for i in $(seq 30); do ln -s x l$i; done");
    let named = response.changes()["refused"].as_object().unwrap().len();
    assert_eq!(named as u64 + response.changes()["further_refused"].as_u64().unwrap(), 30);
}

#[test]
fn folders_without_rights_are_not_deleted() {
    let response = run("chmod 000 d");
    assert_eq!(response.changes()["deleted"], json!([]), "{}", response.header);
}

#[test]
fn limits_end_the_command() {
    let end = |command: &str| run(command).finished()["end"].clone();
    assert_eq!(end("yes"), "OutputLimit");
    assert_eq!(run_within("sleep 60", 1).finished()["end"], "TimeLimit");
    let hog = "for i in 1 2 3; do (x=$(head -c 100000000 /dev/urandom | base64 -w0); sleep 90) & done; wait";
    assert_eq!(end(hog), "MemoryLimit");
    assert_eq!(
        end("x=$(head -c 1000000 /dev/urandom | base64 -w0); true"),
        json!({"Exited": 0}),
        "control"
    );
}

#[test]
fn processes_are_bounded_and_end_with_the_command() {
    let response = run_within(":(){ :|:& };:; sleep 1", 8);
    assert!(response.body.contains("Resource temporarily unavailable"), "{}", response.body);
    let [seconds, control] = [unique_seconds(3), unique_seconds(4)];
    let response = run(&format!(
        "for i in $(seq 5); do true & done; wait; setsid sleep {seconds} & echo control"
    ));
    assert_eq!(response.finished()["end"], json!({"Exited": 0}));
    assert!(!process_exists(&seconds), "it outlived the command");
    let mut process = Command::new("sleep").arg(&control).spawn().unwrap();
    // The kernel sets the arguments shortly after the start.
    wait_for_process(&control, true);
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Seconds for `sleep` that no other process has, such as that of another run of this test.
fn unique_seconds(number: u32) -> String {
    (number * 10_000_000 + std::process::id()).to_string()
}

fn process_exists(argument: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    })
}

#[test]
fn network_of_the_host_is_not_reachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let command = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached");
    let outside = Command::new("bash").args(["-c", &command]).output().unwrap();
    assert!(String::from_utf8_lossy(&outside.stdout).contains("reached"), "control");
    let response = run(&command);
    assert!(!response.body.contains("reached"), "{}", response.body);
    // Its own network has one interface, although sockets are refused already.
    let response = run("tail -n +3 /proc/self/net/dev");
    let interfaces: Vec<&str> =
        response.body.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    assert_eq!(interfaces, ["lo"], "{}", response.body);
}

#[test]
fn rights_and_namespaces_are_refused() {
    let response = run(
        "unshare -r true && echo gained; unshare -m true && echo gained; mount -t tmpfs x /tmp && echo gained; \
         mknod n c 1 3 && echo gained; chroot /usr true && echo gained; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; \
         kill -9 1; kill -9 -1; echo alive",
    );
    assert!(!response.body.contains("gained"), "{}", response.body);
    for line in [
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "alive",
    ] {
        assert!(response.body.contains(line), "{line}: {}", response.body);
    }
}

#[test]
fn sandbox_ends_with_its_parent() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
        .args(["shell-sandbox", "outer"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let seconds = unique_seconds(5);
    let header = json!({
        "command": format!("sleep {seconds}"), "folder": "", "files": [],
        "limits": {
            "time": {"secs": 120, "nanos": 0}, "memory_bytes": 256 << 20, "processes": 32, "output_bytes": 65_536,
            "flood_bytes": 4 << 20, "file_bytes": 1 << 20, "workspace_bytes": 32 << 20, "files": 500,
        },
    })
    .to_string();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&(header.len() as u64).to_be_bytes()).unwrap();
    input.write_all(header.as_bytes()).unwrap();
    wait_for_process(&seconds, true);
    drop(input);
    // Long before the time limit of the command.
    wait_for_process(&seconds, false);
    child.wait().unwrap();
}

fn sandbox() -> [(&'static str, String); 1] {
    [("TURNWHEEL_SHELL", "sandbox".to_owned())]
}

/// A folder with an agent that has the tools and this front matter.
fn agent_folder(front_matter: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let agents = folder.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    let text = format!("---\ntools: [read, write, bash, shell]\n{front_matter}---\nHelp.");
    std::fs::write(agents.join("builder.agent.md"), text).unwrap();
    folder
}

#[tokio::test]
async fn agent_runs_an_approved_command_on_its_files() {
    let folder = agent_folder("");
    let app = DevClient::start(folder.path(), &sandbox());
    let command = "tr a-z A-Z < in.txt > out.txt; echo $((40 + 2)); pwd";
    let arguments = json!({"command": command});
    let write = r#"use write with {"path": "in.txt", "content": "hello"}"#;
    let read = r#"use read with {"path": "out.txt"}"#;
    let input = format!("{write} then use bash with {arguments} then {read} then say done");
    app.prompt("c", &input).await;
    let request = app.decide("c", "approve").await;
    assert_eq!(request["arguments"], arguments);
    app.wait_until_idle("c").await;
    let messages = app.get("/api/conversations/c/messages").await.to_string();
    assert!(messages.contains(r"42\n/workspace"), "{messages}");
    assert!(messages.contains("HELLO"), "{messages}");
    app.prompt("d", r#"use shell with {"command": "ls; ls"} then say done"#).await;
    let messages = app.get("/api/conversations/d/messages").await.to_string();
    assert!(messages.contains("Invalid input: ';' is not allowed"), "{messages}");
}

#[tokio::test]
async fn agent_file_can_waive_the_approval() {
    let folder = agent_folder("shellApproval: never\n");
    let app = DevClient::start(folder.path(), &sandbox());
    app.prompt("c", r#"use shell with {"command": "echo '$HOME'"} then say done"#).await;
    app.wait_until_idle("c").await;
    let messages = app.get("/api/conversations/c/messages").await.to_string();
    assert!(messages.contains(r#""text":"$HOME"#), "{messages}");
}

#[tokio::test]
async fn killed_worker_ends_its_command_which_is_not_repeated() {
    let folder = agent_folder("shellApproval: never\n");
    let mut app = DevClient::start(folder.path(), &sandbox());
    let url = app.dev.url("/api/prompts");
    let seconds = unique_seconds(1);
    let input = format!(r#"use bash with {{"command": "sleep {seconds}"}} then say done"#);
    let body = json!({"conversationId": "c", "input": input});
    app.http.post(url).json(&body).send_validated().await.unwrap();
    wait_for_process(&seconds, true);
    app.dev.kill();
    wait_for_process(&seconds, false);
    let app = app.restart(folder.path(), &sandbox());
    app.wait_for("c", |seen| seen["pendingApprovals"][0].is_object()).await;
    assert!(!process_exists(&seconds), "it was repeated");
    let request = app.decide("c", "happened").await;
    assert_eq!(request["kind"], "outcome", "{request}");
    app.wait_until_idle("c").await;
}

#[tokio::test]
async fn abort_ends_the_command_of_a_prompt() {
    let folder = agent_folder("shellApproval: never\n");
    let app = DevClient::start(folder.path(), &sandbox());
    let seconds = unique_seconds(2);
    let input = format!(r#"use bash with {{"command": "sleep {seconds}"}} then say done"#);
    let body = json!({"conversationId": "c", "input": input});
    app.http.post(app.dev.url("/api/prompts")).json(&body).send_validated().await.unwrap();
    wait_for_process(&seconds, true);
    let abort = app.dev.url("/api/conversations/c/abort");
    assert!(
        app.http.post(abort).json(&json!({})).send_validated().await.unwrap().status().is_success()
    );
    wait_for_process(&seconds, false);
    app.wait_until_idle("c").await;
}

fn wait_for_process(argument: &str, exists: bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while process_exists(argument) != exists {
        assert!(Instant::now() < deadline, "a process with {argument} exists: {}", !exists);
        std::thread::yield_now();
    }
}

#[test]
fn doctor_tries_the_sandbox_and_names_a_missing_pool() {
    let folder = agent_folder("");
    let doctor = |settings: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_turnwheel"))
            .args(["doctor", "--offline"])
            .current_dir(folder.path())
            .env_clear()
            .envs(settings.iter().copied())
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let text = doctor(&[("TURNWHEEL_SHELL", "sandbox")]);
    assert!(text.contains("the sandbox can be set up"), "{text}");
    let text = doctor(&[("TURNWHEEL_SHELL", "sessions")]);
    assert!(text.contains("TURNWHEEL_SHELL_POOL"), "{text}");
    let pool = [("TURNWHEEL_SHELL", "sessions"), ("TURNWHEEL_SHELL_POOL", "http://127.0.0.1:1")];
    let text = doctor(&pool);
    assert!(text.contains("not checked (--offline)"), "{text}");
    let text = doctor(&[]);
    assert!(text.contains("there is no tool `bash`: shell tools need TURNWHEEL_SHELL"), "{text}");
}
