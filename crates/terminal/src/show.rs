//! `turnwheel show` and `tail`: the steps of a conversation as rows.

use turnwheel_json::exact::ExactJson;

use crate::DONE;
use crate::approval::render_request;
use crate::arguments::{ShowArguments, TailArguments};
use crate::client::{ApiRequest, Client, conversation_path};
use crate::error::TerminalError;
use crate::follow::{Follower, OutputForm};
use crate::members::{cost, items, member_or_null, number, text};
use crate::rows::EntryRows;
use crate::sanitize::{clean_line, clean_text};
use crate::screen::{print_json, print_line, read_layout};
use crate::style::Style;
use crate::wrap::{Layout, wrap_text};

/// Rows before those that `tail` follows.
const TAIL_ENTRIES: u16 = 10;

pub(crate) async fn run_show(
    client: &Client,
    arguments: &ShowArguments,
) -> Result<u8, TerminalError> {
    let path = conversation_path(&arguments.id)?;
    let conversation = client.send_once(&ApiRequest::get(&path)).await?;
    let entries = read_newest(client, &path, arguments.limit).await?;
    if arguments.json {
        let _ = entries.iter().all(print_json);
        return Ok(DONE);
    }
    let why = client.send_once(&ApiRequest::get(format!("{path}/why"))).await?;
    let layout = read_layout();
    let mut rows = render_header(layout, &conversation, &why);
    rows.extend(render_entries(layout, &entries));
    for approval in items(&conversation, "pendingApprovals") {
        rows.extend(render_request(layout, approval));
    }
    print_all(&rows);
    Ok(DONE)
}

fn print_all(rows: &[String]) {
    // A reader that has gone needs no further rows.
    let _ = rows.iter().all(|row| print_line(row));
}

/// The state of a conversation in a few rows.
pub(crate) fn render_header(
    layout: Layout,
    conversation: &ExactJson,
    why: &ExactJson,
) -> Vec<String> {
    let usage = member_or_null(conversation, "usage");
    let mut title = format!(
        "{} · {} · {} · {} tokens",
        text(conversation, "id"),
        clean_line(text(conversation, "agent")),
        text(conversation, "state").replace('_', " "),
        number(usage, "totalTokens"),
    );
    if cost(usage) > 0.0 {
        title = format!("{title} · ${:.4}", cost(usage));
    }
    let name = clean_line(text(conversation, "name"));
    if !name.is_empty() {
        title = format!("{name} · {title}");
    }
    let mut rows = wrap_text(layout, "", &title, Style::BOLD);
    rows.extend(wrap_text(layout, "", &clean_text(text(why, "why")), Style::PLAIN));
    rows
}

/// Rows of entries, each with its time.
pub(crate) fn render_entries(layout: Layout, entries: &[ExactJson]) -> Vec<String> {
    let mut rows = EntryRows::default();
    let rendered = entries.iter().filter_map(|entry| {
        rows.row(entry).map(|row| row.render(layout, text(entry, "timestamp")))
    });
    rendered.flatten().collect()
}

/// The newest entries, oldest first.
pub(crate) async fn read_newest(
    client: &Client,
    path: &str,
    limit: u16,
) -> Result<Vec<ExactJson>, TerminalError> {
    let request = ApiRequest::get(format!("{path}/entries?order=desc&limit={limit}"));
    let page = client.send_once(&request).await?;
    let mut entries = items(&page, "items").to_vec();
    entries.reverse();
    Ok(entries)
}

pub(crate) async fn run_tail(
    client: &Client,
    arguments: &TailArguments,
) -> Result<u8, TerminalError> {
    let id = match &arguments.id {
        Some(id) => id.clone(),
        None => find_newest(client).await?,
    };
    let path = conversation_path(&id)?;
    let conversation = client.send_once(&ApiRequest::get(&path)).await?;
    let form = OutputForm::from_flag(arguments.json);
    let mut follower = Follower::new(&path, number(&conversation, "lastEventId"), form);
    follower.has_notices = true;
    if form == OutputForm::Text {
        let entries = read_newest(client, &path, TAIL_ENTRIES).await?;
        let why = client.send_once(&ApiRequest::get(format!("{path}/why"))).await?;
        let layout = read_layout();
        print_all(&render_header(layout, &conversation, &why));
        print_all(&render_entries(layout, &entries));
        for approval in items(&conversation, "pendingApprovals") {
            print_all(&render_request(layout, approval));
        }
    }
    follower.run(client, None).await
}

async fn find_newest(client: &Client) -> Result<String, TerminalError> {
    let request = ApiRequest::get("/api/conversations?order=updatedAt&limit=1");
    let page = client.send_once(&request).await?;
    let newest = items(&page, "items").first().map(|conversation| text(conversation, "id"));
    newest.map(str::to_owned).ok_or_else(|| {
        TerminalError::Failed("there are no conversations: `turnwheel chat` starts one".to_owned())
    })
}
