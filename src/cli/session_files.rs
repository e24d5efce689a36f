//! `turnwheel export` and `turnwheel import`: session files of a running `dev`.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;

use crate::cli::maintenance::{RunningDev, find_running_dev};
use crate::cli::pending_work::DEFAULT_DEV_ADDRESS;
use crate::start::start_error::{StartError, io_error};
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::ids::is_plain_text;

const LARGE_FILE_BYTES: usize = 1_000_000;

/// The service and the caller.
#[derive(Debug)]
pub(crate) struct SessionFileAccess<'a> {
    pub(crate) data: &'a Path,
    pub(crate) tenant: &'a str,
    /// `None`: the user without a name, as `dev` itself uses it.
    pub(crate) user: Option<&'a str>,
}

/// The address of the `dev` that uses the data folder, or the default one if there is no such folder.
///
/// # Errors
/// Print the error and exit; each names the fix.
pub(crate) fn find_dev_address(data: &Path) -> Result<String, StartError> {
    if !data.exists() {
        return Ok(DEFAULT_DEV_ADDRESS.to_owned());
    }
    match find_running_dev(data)? {
        RunningDev::Running(address) => Ok(address),
        RunningDev::NotRunning(_) => Err(io_error("find the service")(format!(
            "no `turnwheel dev` uses the folder {}: start it, or set another folder with `--data`",
            data.display()
        ))),
    }
}

impl SessionFileAccess<'_> {
    /// Sends a request without a time limit: files are large.
    async fn send(
        &self,
        action: &'static str,
        request: impl FnOnce(&Client) -> RequestBuilder,
    ) -> Result<Response, StartError> {
        let client = Client::builder().no_proxy().build().map_err(io_error(action))?;
        let mut request = request(&client).header("turnwheel-tenant", self.tenant);
        if let Some(user) = self.user {
            request = request.header("turnwheel-user", user);
        }
        let response = request.send().await.map_err(io_error(action))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let problem: Value = response.json().await.unwrap_or_default();
        let detail = problem.get("detail").and_then(Value::as_str);
        Err(io_error(action)(detail.unwrap_or("the response has no detail").to_owned()))
    }

    /// Writes the export to `out`, part by part.
    ///
    /// # Errors
    /// Print the error and exit; each names the fix.
    pub(crate) async fn export(
        &self,
        id: &str,
        format: &str,
        out: &mut (dyn std::io::Write + Send),
    ) -> Result<(), StartError> {
        const ACTION: &str = "export the conversation";
        if !is_plain_text(id) {
            let message = format!("`{id}` is no id: ids consist of A-Z a-z 0-9 _ . -");
            return Err(StartError::Arguments(message));
        }
        let mut url = format!(
            "{}/api/conversations/{id}/export?format={format}",
            find_dev_address(self.data)?
        );
        // Pages show local times.
        if let Some(zone) = jiff::tz::TimeZone::system().iana_name() {
            url.push_str("&timeZone=");
            url.extend(url::form_urlencoded::byte_serialize(zone.as_bytes()));
        }
        let mut response = self.send(ACTION, |client| client.get(url)).await?;
        while let Some(part) = response.chunk().await.map_err(io_error(ACTION))? {
            out.write_all(&part).map_err(io_error(ACTION))?;
        }
        out.flush().map_err(io_error(ACTION))
    }

    /// Imports a file, and returns the report.
    ///
    /// # Errors
    /// Print the error and exit; each names the fix.
    pub(crate) async fn import(
        &self,
        file: &Path,
        agent: Option<&str>,
    ) -> Result<Value, StartError> {
        self.send_file(file, agent).await.map_err(|error| match error {
            StartError::Io { doing, source } => {
                let named = format!("{}: {}", file.display(), error_chain(&*source));
                StartError::Io { doing, source: named.into() }
            }
            other @ (StartError::Settings(_)
            | StartError::Agents(_)
            | StartError::Host(_)
            | StartError::Folder(_)
            | StartError::Arguments(_)) => other,
        })
    }

    async fn send_file(&self, file: &Path, agent: Option<&str>) -> Result<Value, StartError> {
        const ACTION: &str = "import the file";
        let content = tokio::fs::read(file)
            .await
            .map_err(|error| io_error(ACTION)(format!("it cannot be read: {error}")))?;
        let mut url = format!("{}/api/conversations/import", find_dev_address(self.data)?);
        report_upload(file, content.len());
        if let Some(agent) = agent {
            url.push_str("?agent=");
            url.extend(url::form_urlencoded::byte_serialize(agent.as_bytes()));
        }
        let response = self.send(ACTION, |client| {
            client.post(url).header("content-type", "application/x-ndjson").body(content)
        });
        response.await?.json().await.map_err(io_error(ACTION))
    }
}

/// Shows on a terminal that a large file is being sent, which takes seconds.
fn report_upload(file: &Path, bytes: usize) {
    let mut errors = std::io::stderr().lock();
    if bytes >= LARGE_FILE_BYTES && errors.is_terminal() {
        let megabytes = bytes / LARGE_FILE_BYTES;
        let _ = writeln!(errors, "importing {} ({megabytes} MB) …", file.display());
    }
}

/// The report of an import as text.
pub(crate) fn render_import(report: &Value) -> String {
    let text = |name: &str| report.get(name).map(ToString::to_string).unwrap_or_default();
    let mut lines = vec![format!(
        "conversation {}: {} entries imported, {} lines skipped",
        text("conversationId").trim_matches('"'),
        text("imported"),
        text("skippedCount"),
    )];
    for (member, label) in [("skipped", "skipped"), ("warnings", "changed")] {
        let reports = report.get(member).and_then(Value::as_array).into_iter().flatten();
        lines.extend(reports.map(|it| {
            let reason = it.get("reason").and_then(Value::as_str).unwrap_or_default();
            let line = it.get("line").and_then(Value::as_u64).unwrap_or_default();
            format!("line {line} {label}: {reason}")
        }));
    }
    if let Some(model) = report.get("unavailableModel").and_then(Value::as_str) {
        lines.push(format!(
            "the model `{model}` is not configured: the conversation has that of its agent"
        ));
    }
    lines.join("\n")
}
