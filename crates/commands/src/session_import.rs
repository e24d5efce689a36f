//! Command that creates a conversation from a session file, which arrives in parts.

mod documents;

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;
use utoipa::ToSchema;

use self::documents::ImportedDocuments;
use crate::conversation::{
    ConversationInit, append_entry, build_head, find_suitable_incarnation, is_model_configured,
    new_incarnation, resolve_conversation_id,
};
use crate::import::{self, Import};
use crate::key_reservation;
use crate::leaf::plan_change;
use crate::pipeline::{CommandContext, Signal};
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::fork::{PromptSpans, cut_prompt_end, last_name};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::name;
use turnwheel_conversation::path_settings::PathSettings;
use turnwheel_conversation::settings::Settings;
use turnwheel_extensions::SessionStartReason;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::digest::IncrementalSha256;
use turnwheel_platform::ids::{ConversationId, ConversationKey, is_plain_text};
use turnwheel_queries::session_export::IMPORTED_HEADER;
use turnwheel_record::certain_write::receipt_document;
use turnwheel_record::contract::{CommandError, CommandResponse, Owner};
use turnwheel_record::idempotency::{Idempotency, find_previous_request};
use turnwheel_record::services::Services;
use turnwheel_record::session_file::{
    BLANK, FileError, FileHeader, ImportedTree, Line, LineSplitter, ParsedLine, SessionReader,
};

/// Maximum bytes of a session file.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum number of lines that a report lists.
const REPORTED_LINES_MAX: usize = 400;
/// Steps up the tree that all checks of compactions may take.
const ANCESTOR_STEPS_MAX: usize = 10_000_000;

/// The conversation to create.
#[derive(Clone, Debug, Default)]
pub struct SessionImport {
    /// Absent: the agent in the file, or the default agent.
    pub agent: Option<String>,
    pub conversation_id: Option<String>,
}

const NOTHING_KEPT: &str =
    "the compaction keeps no earlier message: its `firstKeptEntryId` is not before it on its path";

/// A line of the file, and what happened to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LineReport {
    /// From 1.
    pub line: u64,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionImported {
    #[schema(value_type = String)]
    pub conversation_id: ConversationId,
    /// Number of imported entries.
    pub imported: u64,
    /// Number of lines that are not imported.
    pub skipped_count: u64,
    /// The first 400 of these lines.
    pub skipped: Vec<LineReport>,
    /// The first 400 lines that are imported with a change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<LineReport>,
    /// The model at the end of the path, if it is not configured. The conversation has that of its
    /// agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_model: Option<String>,
}

/// Creates a conversation from the parts of a file. The whole file is never in memory.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn import_session<S>(
    services: &Services,
    owner: &Owner,
    mut request: SessionImport,
    idempotency: &Idempotency,
    parts: S,
) -> Result<CommandResponse, CommandError>
where
    S: Stream<Item = Result<Bytes, CommandError>> + Send + Unpin,
{
    let given = request.conversation_id.take();
    let is_reserved = given.is_some() && idempotency.is_repeatable;
    let id = resolve_conversation_id(given, owner, idempotency, "?conversationId")?;
    let key = owner.conversation_key(&id);
    let file = FileParts { parts, hash: IncrementalSha256::default(), bytes: 0 };
    let work = FileImport { services, key: &key, request, idempotency, is_reserved };
    let work = Box::pin(work.run(file));
    if is_reserved {
        return key_reservation::run_reserved(services, owner, idempotency, work).await;
    }
    work.await
}

/// The parts of a file, of which all bytes are hashed and counted.
struct FileParts<S> {
    parts: S,
    hash: IncrementalSha256,
    bytes: u64,
}

impl<S: Stream<Item = Result<Bytes, CommandError>> + Send + Unpin> FileParts<S> {
    async fn next(&mut self) -> Result<Option<Bytes>, CommandError> {
        let Some(part) = self.parts.next().await.transpose()? else { return Ok(None) };
        self.bytes += part.len() as u64;
        if self.bytes > FILE_BYTES_MAX {
            return Err(CommandError::TooLarge(
                "The file is longer than 64 MB. Split it, or remove entries that you do not need."
                    .to_owned(),
            ));
        }
        self.hash.update(&part);
        Ok(Some(part))
    }

    /// The request with the hash of the whole file.
    fn identify(self, idempotency: &Idempotency) -> Idempotency {
        let body_hash = format!("{} {}", idempotency.body_hash, self.hash.finish());
        Idempotency { body_hash, ..idempotency.clone() }
    }
}

struct FileImport<'a> {
    services: &'a Services,
    key: &'a ConversationKey,
    request: SessionImport,
    idempotency: &'a Idempotency,
    is_reserved: bool,
}

impl<'a> FileImport<'a> {
    async fn run<S>(self, mut file: FileParts<S>) -> Result<CommandResponse, CommandError>
    where
        S: Stream<Item = Result<Bytes, CommandError>> + Send + Unpin,
    {
        let Self { services, key, idempotency, .. } = self;
        let input_id = idempotency.input_id(key);
        let previous = find_previous_request(services, key, input_id.as_str()).await?;
        if let Some(previous) = previous {
            while file.next().await?.is_some() {}
            return previous.replay(&file.identify(idempotency));
        }
        import::check_id_available(services, key, &input_id).await?;
        let mut conversation = ImportedConversation::new(services);
        let mut splitter = LineSplitter::default();
        while let Some(part) = conversation.next_part(&mut file).await? {
            let mut rest = part.as_ref();
            while let Some(line) = splitter.next_line(&mut rest) {
                Box::pin(self.import_line(&mut conversation, &line)).await?;
            }
        }
        if let Some(line) = splitter.finish() {
            Box::pin(self.import_line(&mut conversation, &line)).await?;
        }
        conversation.reader.header()?;
        conversation.reject_unusable_file()?;
        let identified = file.identify(idempotency);
        let context =
            CommandContext { services, key, idempotency: &identified, signal: Signal::None };
        let (head, response) = Box::pin(conversation.finish(context)).await?;
        context.observe_start(&head, SessionStartReason::Import).await;
        Ok(response)
    }

    async fn import_line(
        &self,
        conversation: &mut ImportedConversation<'a>,
        line: &Line,
    ) -> Result<(), CommandError> {
        for parsed in conversation.reader.read(line)? {
            match parsed {
                ParsedLine::Header => {
                    let (head, unavailable) = self.build_head(conversation.reader.header()?)?;
                    conversation.unavailable_model = unavailable.filter(|model| !model.is_empty());
                    let input_id = self.idempotency.input_id(self.key);
                    let import = Box::pin(Import::begin(self.services, &head, &input_id)).await?;
                    conversation.target = Some((Box::new(head), import));
                }
                ParsedLine::Skipped(reason) => conversation.skip(reason),
                ParsedLine::FrameDocument { sha256, document } => {
                    conversation.add_frame_document(sha256, &document).await?;
                }
                ParsedLine::Entry(imported) => {
                    conversation.add(&imported.entry).await?;
                    imported.warnings.into_iter().for_each(|reason| conversation.warn(reason));
                }
            }
        }
        Ok(())
    }

    /// The head, and the model of the header if it is not configured.
    fn build_head(&self, header: &FileHeader) -> Result<(Head, Option<String>), CommandError> {
        let services = self.services;
        let mut init =
            ConversationInit { agent: self.request.agent.clone(), ..ConversationInit::default() };
        let (mut parent, mut pi, mut base_settings) = (None, None, None);
        match header {
            FileHeader::Pi(header) => {
                pi = Some(header.clone());
                init.settings = settings_of_header(header);
            }
            FileHeader::Turnwheel(header) => {
                init.agent = init.agent.or_else(|| Some(header.agent.clone()));
                init.settings.clone_from(&header.settings);
                init.metadata.clone_from(&header.metadata);
                parent = header
                    .parent
                    .clone()
                    .filter(|parent| is_plain_text(parent.conversation_id.as_str()));
                pi.clone_from(&header.pi);
                base_settings.clone_from(&header.base_settings);
            }
        }
        let is_configured = |model: &String| is_model_configured(services, model);
        let unavailable = init.settings.model.take_if(|model| !is_configured(model));
        let mut head = build_head(services, self.key, init)?;
        head.base_settings = base_settings.map(|mut base: PathSettings| {
            base.model = base.model.filter(is_configured);
            Box::new(base)
        });
        head.parent = parent;
        if let Some(pi) = pi {
            head.extra.insert_raw(IMPORTED_HEADER.to_owned(), pi);
        }
        if self.is_reserved {
            let owner = Owner::from_key(self.key);
            key_reservation::add_to_head(&mut head, &owner, self.idempotency);
        }
        Ok((head, unavailable))
    }
}

/// Model and thinking level that the header of a version 1 file has.
fn settings_of_header(header: &RawJson) -> Settings {
    let member = |name: &str| header.string_member(name);
    let level = member("thinkingLevel").map(serde_json::Value::String);
    Settings {
        model: member("modelId"),
        thinking_level: level.and_then(|level| serde_json::from_value(level).ok()),
        ..Settings::default()
    }
}

/// The latest name of the path that is not empty, as it can be one here.
fn find_imported_name(facts: &[Arc<Entry>]) -> Option<String> {
    facts.iter().rev().find_map(|entry| {
        let EntryBody::SessionInfo(info) = &entry.body else { return None };
        name::adapt(info.name.as_deref()?)
    })
}

/// A conversation that is being created from a file.
struct ImportedConversation<'a> {
    services: &'a Services,
    reader: SessionReader,
    /// The head and the writer, once the header is read.
    target: Option<(Box<Head>, Import<'a>)>,
    tree: ImportedTree,
    /// Steps up the tree that checks of compactions may still take.
    steps_left: usize,
    unavailable_model: Option<String>,
    spans: PromptSpans,
    documents: ImportedDocuments,
    skipped_count: u64,
    skipped: Vec<LineReport>,
    warnings: Vec<LineReport>,
}

impl<'a> ImportedConversation<'a> {
    fn new(services: &'a Services) -> Self {
        Self {
            services,
            reader: SessionReader::new(&new_incarnation(services), services.clock.now()),
            target: None,
            tree: ImportedTree::default(),
            steps_left: ANCESTOR_STEPS_MAX,
            unavailable_model: None,
            spans: PromptSpans::default(),
            documents: ImportedDocuments::default(),
            skipped_count: 0,
            skipped: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The next part of the file. If it is not here yet, a write that runs is completed first.
    async fn next_part<S>(&mut self, file: &mut FileParts<S>) -> Result<Option<Bytes>, CommandError>
    where
        S: Stream<Item = Result<Bytes, CommandError>> + Send + Unpin,
    {
        let mut part = std::pin::pin!(file.next());
        if let Poll::Ready(part) = futures_util::poll!(part.as_mut()) {
            return part;
        }
        if let Some((_, import)) = &mut self.target {
            import.settle().await?;
        }
        part.await
    }

    /// # Errors
    /// No line of the file can be used.
    fn reject_unusable_file(&self) -> Result<(), CommandError> {
        let first = self.skipped.iter().find(|skipped| skipped.reason != BLANK);
        match first.filter(|_| self.tree.is_empty()) {
            Some(LineReport { line, reason }) => {
                let reason = format!("{reason}, and no other line is an entry of a session");
                Err(FileError { line: *line, reason }.into())
            }
            None => Ok(()),
        }
    }

    fn skip(&mut self, reason: String) {
        self.skipped_count += 1;
        if self.skipped.len() < REPORTED_LINES_MAX {
            self.skipped.push(LineReport { line: self.reader.line_number(), reason });
        }
    }

    fn warn(&mut self, reason: String) {
        if self.warnings.len() < REPORTED_LINES_MAX {
            self.warnings.push(LineReport { line: self.reader.line_number(), reason });
        }
    }

    /// Stores a frame document before the entries that name it.
    async fn add_frame_document(
        &mut self,
        sha256: String,
        document: &RawJson,
    ) -> Result<(), CommandError> {
        let Some((_, import)) = &mut self.target else { return Ok(()) };
        if let Some(reason) = self.documents.add(self.services, import, sha256, document).await? {
            self.skip(reason);
        }
        Ok(())
    }

    async fn add(&mut self, entry: &Entry) -> Result<(), CommandError> {
        self.tree.add(entry);
        self.spans.add(entry);
        if let Some(compaction) = entry.body.compaction()
            && !self.tree.is_on_path(
                &compaction.first_kept_entry_id,
                &entry.base.entry_id,
                &mut self.steps_left,
            )
        {
            self.warn(NOTHING_KEPT.to_owned());
        }
        let Some((head, import)) = &mut self.target else { return Ok(()) };
        head.record_copied_entry(&entry.body);
        (head.seq, head.leaf_id) = (entry.base.seq, Some(entry.base.entry_id.clone()));
        import.add(entry).await?;
        if let EntryBody::Label(label) = &entry.body
            && let Err(reason) = head.set_label(&label.target_id, label.label.as_deref())
        {
            self.warn(reason);
        }
        Ok(())
    }

    /// Completes the head and writes it.
    async fn finish(
        self,
        context: CommandContext<'_>,
    ) -> Result<(Box<Head>, CommandResponse), CommandError> {
        let Self {
            services,
            reader,
            target,
            tree,
            mut spans,
            documents,
            mut unavailable_model,
            skipped_count,
            skipped,
            warnings,
            ..
        } = self;
        let Some((mut head, mut import)) = target else { return Err(CommandError::contended()) };
        let own = import.artifact_scope().incarnation;
        head.incarnation = find_suitable_incarnation(services, Some(own.clone()), reader.ids())?;
        if head.incarnation != own {
            documents.move_to(services, &mut import, &head).await?;
        }
        let imported = head.seq;
        let last = head.leaf_id.clone();
        if let Ok(FileHeader::Turnwheel(header)) = reader.header() {
            let place = match &header.leaf_id {
                Some(id) => reader.find_place(id),
                None => Some(None),
            };
            head.leaf_id = place.unwrap_or_else(|| last.clone());
        }
        let path = tree.path(head.leaf_id.as_ref());
        if let Some(open) = spans.open().cloned()
            && head.leaf_id == last
        {
            let now = head.created_at;
            let mut end = append_entry(&mut head, cut_prompt_end(), now);
            end.base.prompt_id = Some(open.id);
            spans.add(&end);
            import.add(&end).await?;
        }
        head.prompts = spans.into_ended();
        head.name = last_name(&path.facts);
        head.is_compacted = path.is_compacted;
        // A file of Turnwheel has the settings in its header.
        if let Ok(FileHeader::Pi(_)) = reader.header() {
            head.name = find_imported_name(&path.facts);
            let (change, unavailable) =
                plan_change(services, &head, head.leaf_id.clone(), &path.facts);
            head.move_leaf(&change);
            unavailable_model = unavailable.or(unavailable_model);
        }
        // The move knows only the facts of the path.
        head.set_context(&path.context);
        head.min_reader = head.min_reader.max(head.required_reader());
        let body = SessionImported {
            conversation_id: head.conversation_id.clone(),
            imported,
            skipped_count,
            skipped,
            warnings,
            unavailable_model,
        };
        let response = CommandResponse::new(201, &body)
            .with_location(format!("conversations/{}", head.conversation_id));
        let receipt =
            receipt_document(context.idempotency, context.key, &response, head.created_at);
        Box::pin(import.finish(Head::clone(&head), receipt)).await?;
        Ok((head, response))
    }
}
