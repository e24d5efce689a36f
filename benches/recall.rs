//! Speed of the search behind the tool `recall` on the embedded store: one user with 10,000
//! conversations of four messages each.
//!
//! `cargo bench --bench recall` prints one line for each search. `-- PARENT` names the parent of the data
//! folder, on the disk to measure.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use turnwheel::testing::agent::raw::RawJson;
use turnwheel::testing::clock::Timestamp;
use turnwheel::testing::ids::{ConversationId, ConversationKey, TenantId, UserId};
use turnwheel::testing::store::embedded::EmbeddedStore;
use turnwheel::testing::store::{
    ConversationStore as _, Document, DocumentKind, Partition, SearchQuery, SearchText, Write,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = Result<T, Box<dyn Error>>;

const CONVERSATIONS: u64 = 10_000;
const MESSAGES: u64 = 4;
/// Characters of a message.
const TEXT_CHARS: usize = 300;
/// Hits that the tool asks for: four for each of three messages.
const HITS: usize = 12;
/// Times that a search is measured.
const REPEAT: usize = 20;

fn document(id: String, kind: DocumentKind, created_at: u64, body: &str) -> Outcome<Document> {
    let (body, created_at) = (RawJson::from_text(body)?, Some(Timestamp(created_at)));
    Ok(Document { body, created_at, ..Document::new(id, kind, &(), None) })
}

/// A message of a user. Words repeat as in texts; each message has its own number.
fn message(number: u64, seq: u64) -> Outcome<Document> {
    let mut text = format!("message {number} ");
    while text.len() < TEXT_CHARS {
        text.push_str("please look up the state of my order and tell me the date. ");
    }
    text.truncate(TEXT_CHARS);
    let body = format!(r#"{{"type":"message","seq":{seq},"text":"{text}"}}"#);
    let entry = document(format!("{seq:012}"), DocumentKind::Entry, number, &body)?;
    Ok(Document { search: SearchText::new(&text).map(Box::new), ..entry })
}

fn key(conversation: u64) -> ConversationKey {
    ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("ada"),
        conversation_id: ConversationId::new(format!("c{conversation}")),
    }
}

async fn fill(store: &EmbeddedStore) -> Outcome<()> {
    for conversation in 0..CONVERSATIONS {
        let head = document("head".to_owned(), DocumentKind::Head, conversation, "{}")?;
        let mut writes = vec![Write::Create(Document { state: Some("idle".to_owned()), ..head })];
        for seq in 1..=MESSAGES {
            writes.push(Write::Create(message(conversation * MESSAGES + seq, seq)?));
        }
        store.write(&Partition::Conversation(key(conversation)), writes).await?;
    }
    Ok(())
}

/// Times of a search, sorted, and its number of hits.
async fn measure(store: &EmbeddedStore, text: &str) -> Outcome<(Vec<Duration>, usize)> {
    let query = SearchQuery::new(&key(0), text, HITS);
    let (mut times, mut hits) = (Vec::new(), 0);
    for _ in 0..REPEAT {
        let began = Instant::now();
        hits = store.search(&query).await?.hits.len();
        times.push(began.elapsed());
    }
    times.sort();
    Ok((times, hits))
}

fn main() -> Outcome<()> {
    let parent = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(parent)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let store = EmbeddedStore::open_unsynced(folder.path())?;
    runtime.block_on(fill(&store))?;
    let mut out = std::io::stdout();
    let oldest = format!("message {} please", MESSAGES + 1);
    for (name, text) in [
        ("no message", "words of nobody"),
        ("the oldest message", oldest.as_str()),
        ("many messages", "the date"),
    ] {
        let (times, hits) = runtime.block_on(measure(&store, text))?;
        let median = times.get(REPEAT / 2).copied().unwrap_or_default();
        let slowest = times.last().copied().unwrap_or_default();
        writeln!(out, "{name}: {hits} hits, median {median:.1?}, slowest {slowest:.1?}")?;
    }
    Ok(())
}
