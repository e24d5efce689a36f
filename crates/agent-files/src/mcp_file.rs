//! Reader of `mcp.json`: the MCP servers that agents may use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fields;
use crate::file_context::{AgentFileContext, hash_prefix};
use crate::mcp_http::{Texts, read_http};
use crate::mistakes::{Findings, Mistake, suggest_name};
use crate::text_file::read_text_file;
use crate::yaml::{self, Member, Node, Position, Yaml};
use turnwheel_platform::text_encoding::skip_byte_order_mark;
use turnwheel_tools::mcp::{Connector, McpServer, ServerCommand};

/// Name of the file, beside the folder of the agents.
pub const MCP_FILE: &str = "mcp.json";
const FILE_BYTES_MAX: u64 = 256 * 1024;
const NAME_BYTES_MAX: usize = 32;

const HTTP_KEYS: [&str; 7] = ["type", "transport", "url", "headers", "auth", "session", "trusted"];
/// Of a program in `dev` that is a server with a `url` elsewhere.
const BOTH_KEYS: [&str; 10] =
    ["type", "transport", "command", "args", "env", "url", "headers", "auth", "session", "trusted"];
const STDIO_KEYS: [&str; 6] = ["type", "transport", "command", "args", "env", "trusted"];

/// Servers of `mcp.json` by name.
#[derive(Clone, Debug, Default)]
pub struct McpServers(BTreeMap<String, McpEntry>);

/// A server, or why it cannot be used.
#[derive(Clone, Debug)]
enum McpEntry {
    Usable(Arc<McpServer>),
    /// The entry has mistakes.
    Broken,
    /// A correct entry with app settings that have no value, and their mistakes. No request may be sent
    /// to the server: its texts are stand-ins.
    Unset(Arc<McpServer>, Vec<Mistake>),
    /// A program that may not be started here, with the reason.
    Refused(String),
}

/// Where `mcp.json` is, and which programs it may start.
#[derive(Clone, Debug, Default)]
pub struct McpFile {
    pub path: PathBuf,
    /// Names of servers that may be child processes (`TURNWHEEL_MCP_STDIO`).
    pub stdio: Vec<String>,
    /// True for `dev` only.
    pub may_start_programs: bool,
}

impl McpServers {
    /// An app without MCP servers.
    pub fn none() -> &'static Self {
        static NONE: McpServers = McpServers(BTreeMap::new());
        &NONE
    }

    /// The server that an agent file names. Adds a finding if it cannot be used.
    pub(super) fn find(
        &self,
        name: &str,
        at: Position,
        findings: &mut Findings,
    ) -> Option<Arc<McpServer>> {
        match self.0.get(name) {
            Some(McpEntry::Usable(server)) => return Some(Arc::clone(server)),
            Some(McpEntry::Unset(server, mistakes)) => {
                findings.add_referenced(at, mistakes);
                return Some(Arc::clone(server));
            }
            Some(McpEntry::Refused(reason)) => findings.add(at, reason.clone()),
            Some(McpEntry::Broken) => {
                findings.add(at, format!("the server `{name}` has mistakes in {MCP_FILE}"));
            }
            None => {
                let hint = suggest_name(name, self.0.keys().map(String::as_str));
                findings.add(at, format!("there is no server `{name}` in {MCP_FILE}: {hint}"));
            }
        }
        None
    }

    /// The given names that no entry has.
    pub fn find_unknown<'n>(&self, names: &'n [String]) -> Vec<&'n str> {
        names.iter().map(String::as_str).filter(|name| !self.0.contains_key(*name)).collect()
    }

    /// All usable servers.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<McpServer>> {
        self.0.values().filter_map(|entry| match entry {
            McpEntry::Usable(server) => Some(server),
            McpEntry::Broken | McpEntry::Unset(..) | McpEntry::Refused(_) => None,
        })
    }

    /// Keeps the sessions and definitions of servers whose entries are unchanged.
    fn keep_unchanged(&mut self, earlier: &Self) {
        for entry in self.0.values_mut() {
            let McpEntry::Usable(server) = entry else { continue };
            let same = earlier.iter().find(|it| it.has_same_source(server));
            if let Some(same) = same {
                *server = Arc::clone(same);
            }
        }
    }
}

impl McpFile {
    /// Reads the file. Without it there are no servers.
    pub fn load(
        &self,
        context: &AgentFileContext<'_>,
        earlier: &McpServers,
    ) -> (McpServers, Vec<Mistake>) {
        if !self.path.exists() {
            return (McpServers::default(), Vec::new());
        }
        match read_text_file(self.folder(), Path::new(MCP_FILE), FILE_BYTES_MAX) {
            Ok(text) => {
                let (mut servers, mistakes) = self.parse(&text, context);
                servers.keep_unchanged(earlier);
                (servers, mistakes)
            }
            Err(reason) => {
                let mut findings = Findings::new(MCP_FILE);
                findings.add(Position::START, reason);
                (McpServers::default(), findings.into_sorted())
            }
        }
    }

    /// The servers in the text of the file.
    pub(super) fn parse(
        &self,
        text: &str,
        context: &AgentFileContext<'_>,
    ) -> (McpServers, Vec<Mistake>) {
        let mut findings = Findings::new(MCP_FILE);
        let mut mistakes = Vec::new();
        let mut servers = McpServers::default();
        for member in read_servers(text, &mut findings).unwrap_or_default() {
            let mut of_server = Findings::new(MCP_FILE);
            let server = self.read_server(&member, context, &mut of_server);
            let server = server.filter(|_| of_server.file_mistakes() == 0);
            let of_server = of_server.into_sorted();
            let entry = match server.map(|server| (self.refusal(&server), Arc::new(server))) {
                None => McpEntry::Broken,
                Some((Some(reason), _)) => McpEntry::Refused(reason),
                Some((None, server)) if of_server.is_empty() => McpEntry::Usable(server),
                Some((None, server)) => McpEntry::Unset(server, of_server.clone()),
            };
            servers.0.insert(member.key.clone(), entry);
            mistakes.extend(of_server);
        }
        mistakes.extend(findings.into_sorted());
        (servers, mistakes)
    }

    fn folder(&self) -> &Path {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    fn read_server(
        &self,
        member: &Member,
        context: &AgentFileContext<'_>,
        findings: &mut Findings,
    ) -> Option<McpServer> {
        let name = member.key.as_str();
        let is_name = |byte: u8| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-');
        let has_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_name);
        if !has_name {
            let reason =
                format!("a server's name is 1 to {NAME_BYTES_MAX} of A-Z, a-z, 0-9 and `-`");
            findings.add(member.position, reason);
        }
        let node = &member.value;
        let has_both = ["command", "url"].iter().all(|key| node.find_member(key).is_some())
            && ["type", "transport"].iter().all(|key| node.find_member(key).is_none());
        let is_stdio = if has_both { self.may_start_programs } else { is_stdio(node, findings)? };
        let (kind, keys) = match (has_both, is_stdio) {
            (true, _) => ("a server", &BOTH_KEYS[..]),
            (false, true) => ("a stdio server", &STDIO_KEYS[..]),
            (false, false) => ("an http server", &HTTP_KEYS[..]),
        };
        fields::read_members(node, kind, keys, findings);
        let is_trusted = node.find_member("trusted").and_then(|it| fields::read_bool(it, findings));
        let mut texts = Texts::new(context);
        let connector = if is_stdio {
            self.read_command(member, &mut texts, findings).map(Connector::Stdio)
        } else {
            read_http(node, &mut texts, findings).map(|it| Connector::Http(Box::new(it)))
        };
        let identity = hash_prefix(&node.to_json().to_string());
        let server = McpServer::new(name, identity, is_trusted.unwrap_or_default(), connector?);
        Some(server.with_address(texts.address()))
    }

    /// Why the program of a server may not be started here.
    fn refusal(&self, server: &McpServer) -> Option<String> {
        let name = &server.name;
        if !server.is_program() {
            None
        } else if !self.may_start_programs {
            Some(format!(
                "the server `{name}` is a program, which only `turnwheel dev` starts: elsewhere there may be no such program, and none outlives the worker; give the server a `url`"
            ))
        } else if !self.stdio.contains(name) {
            Some(format!(
                "the server `{name}` is a program: to let `dev` start it, add its name to TURNWHEEL_MCP_STDIO"
            ))
        } else {
            None
        }
    }

    fn read_command(
        &self,
        member: &Member,
        texts: &mut Texts<'_>,
        findings: &mut Findings,
    ) -> Option<ServerCommand> {
        let node = &member.value;
        let command = node.find_member("command");
        if command.is_none() {
            findings.add(node.position, "a stdio server needs `command`");
        }
        let program = command.and_then(|member| fields::read_text(member, findings));
        if let Some(member) = command
            && program.is_some_and(|text| text.contains("${"))
        {
            let reason = "`command` is without app settings: write them into `args` or `env`";
            findings.add(member.value.position, reason);
        }
        let has_items =
            |it: &&Member| !matches!(&it.value.yaml, Yaml::List(items) if items.is_empty());
        let arguments = node.find_member("args").filter(has_items).map(|it| {
            let items = fields::read_texts(it, "a list of arguments", findings);
            items
                .into_iter()
                .filter_map(|(text, node)| texts.resolve("args", text, node, findings))
                .collect()
        });
        let mut environment = Vec::new();
        for variable in ["PATH", "HOME"] {
            environment
                .extend((texts.context.app_settings)(variable).map(|it| (variable.to_owned(), it)));
        }
        for variable in members(node.find_member("env"), findings) {
            let value = fields::read_text(variable, findings)
                .and_then(|text| texts.resolve(&variable.key, text, &variable.value, findings));
            environment.extend(value.map(|value| (variable.key.clone(), value)));
        }
        Some(ServerCommand {
            program: program?.to_owned(),
            arguments: arguments.unwrap_or_default(),
            environment,
            folder: self.folder().to_owned(),
            redactor: texts.redactor(),
        })
    }
}

/// Parses the file and returns the members of `servers` or `mcpServers`.
fn read_servers(text: &str, findings: &mut Findings) -> Option<Vec<Member>> {
    let text = skip_byte_order_mark(text);
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        let at = |number: usize| u64::try_from(number).unwrap_or(1).max(1);
        let position = Position { line: at(error.line()), column: at(error.column()) };
        findings.add(position, format!("the file is not JSON: {error}"));
        return None;
    }
    // JSON is YAML, except for tabs, which JSON allows only between values.
    let node = match yaml::parse(&text.replace('\t', " ")) {
        Ok(node) => node,
        Err((position, reason)) => {
            findings.add(position, reason);
            return None;
        }
    };
    let found: Vec<&Member> =
        ["servers", "mcpServers"].iter().filter_map(|key| node.find_member(key)).collect();
    fields::read_members(&node, MCP_FILE, &["servers", "mcpServers", "$schema"], findings);
    match found.as_slice() {
        [] => findings.add(node.position, "the file needs `servers`, a map of names and servers"),
        [only] => return Some(members(Some(only), findings).to_vec()),
        [_, second, ..] => {
            findings.add(second.position, "write one of `servers` and `mcpServers`, not both");
        }
    }
    None
}

pub(super) fn members<'n>(member: Option<&'n Member>, findings: &mut Findings) -> &'n [Member] {
    match member.map(|member| (&member.value.yaml, member)) {
        None => &[],
        Some((Yaml::Map(members), _)) => members,
        Some((_, member)) => {
            let reason = format!("`{}` is a map, not {}", member.key, member.value.kind());
            findings.add(member.value.position, reason);
            &[]
        }
    }
}

/// True for a stdio server. `type`, or `transport`, is optional if `url` or `command` shows it.
fn is_stdio(node: &Node, findings: &mut Findings) -> Option<bool> {
    const KINDS: [(&str, bool); 4] =
        [("http", false), ("streamable-http", false), ("streamableHttp", false), ("stdio", true)];
    if !matches!(node.yaml, Yaml::Map(_)) {
        findings.add(node.position, format!("a server is a map, not {}", node.kind()));
        return None;
    }
    let named = node.find_member("type").or_else(|| node.find_member("transport"));
    match named {
        Some(member) if matches!(&member.value.yaml, Yaml::Text(text) if text == "sse") => {
            let reason =
                "the transport `sse` is obsolete: use the server's streamable HTTP url and `http`";
            findings.add(member.value.position, reason);
            None
        }
        Some(member) => fields::read_choice(member, &KINDS, findings),
        None if node.find_member("url").is_some() => Some(false),
        None if node.find_member("command").is_some() => Some(true),
        None => {
            findings.add(node.position, "a server needs `url`, or `command` for a program");
            None
        }
    }
}
