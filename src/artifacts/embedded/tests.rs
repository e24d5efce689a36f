//! Local artifact files: crashes, restarts and path traversal.

use tempfile::TempDir;

use super::super::contract::{self, facts_of, shelf};
use super::*;

const EFFECT: &str = "tw_c_1_2_3";

async fn open(folder: &TempDir) -> EmbeddedArtifacts {
    EmbeddedArtifacts::open(&folder.path().join("data/artifacts")).await.unwrap()
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[tokio::test]
async fn it_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(&folder).await;
    contract::contract(&artifacts, "contract").await;
    assert_eq!(count(&artifacts.place.shelves), 0, "deletion leaves no empty folders");
    assert_eq!(count(&artifacts.place.unfinished), 0);
}

#[tokio::test]
async fn artifacts_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = Bytes::from_static(b"kept");
    let facts = facts_of(EFFECT, &bytes, 1);
    open(&folder).await.put(&shelf("a"), &facts, bytes.clone()).await.unwrap();
    let artifacts = open(&folder).await;
    assert_eq!(artifacts.facts(&shelf("a"), &facts.id).await.unwrap(), facts);
    assert_eq!(artifacts.get(&shelf("a"), &facts.id, None).await.unwrap(), bytes);
}

#[tokio::test]
async fn a_crash_before_the_rename_leaves_nothing_to_see_and_is_swept() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(&folder).await;
    let bytes = Bytes::from_static(b"half");
    let facts = facts_of(EFFECT, &bytes, 1);
    let left = artifacts.place.unfinished();
    write_new(&left, &facts, &bytes).unwrap();
    assert!(artifacts.list(&shelf("a")).await.unwrap().is_empty());
    assert!(matches!(artifacts.facts(&shelf("a"), &facts.id).await, Err(ArtifactError::NotFound)));
    drop(artifacts);

    let artifacts = open(&folder).await;
    assert!(!left.exists());
    artifacts.put(&shelf("a"), &facts, bytes).await.unwrap();
    assert_eq!(artifacts.list(&shelf("a")).await.unwrap(), [facts]);
}

#[tokio::test]
async fn a_crash_while_deleting_leaves_nothing_to_see_and_is_swept() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(&folder).await;
    let bytes = Bytes::from_static(b"gone");
    let facts = facts_of(EFFECT, &bytes, 1);
    artifacts.put(&shelf("a"), &facts, bytes).await.unwrap();
    let shelved = artifacts.place.folder(&shelf("a")).unwrap();
    std::fs::rename(shelved, artifacts.place.unfinished()).unwrap();
    assert!(artifacts.list(&shelf("a")).await.unwrap().is_empty());
    drop(artifacts);
    assert_eq!(count(&open(&folder).await.place.unfinished), 0);
}

#[tokio::test]
async fn a_damaged_file_is_an_error_that_names_it_and_never_wrong_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(&folder).await;
    let bytes = Bytes::from_static(b"some bytes");
    let facts = facts_of(EFFECT, &bytes, 1);
    artifacts.put(&shelf("a"), &facts, bytes).await.unwrap();
    let path = artifacts.place.file(&shelf("a"), &facts.id).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for damage in [&whole[..whole.len() - 1], &whole[..20], &whole[..3], b"", &whole[1..]] {
        std::fs::write(&path, damage).unwrap();
        let refused = artifacts.get(&shelf("a"), &facts.id, None).await.unwrap_err();
        let ArtifactError::Unavailable(source) = refused else { panic!("{refused:?}") };
        assert!(source.to_string().contains(path.to_str().unwrap()));
    }
}

#[tokio::test]
async fn of_two_writers_who_saw_nothing_the_first_wins() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(&folder).await;
    let place = &artifacts.place;
    let first = facts_of(EFFECT, b"same", 1);
    let target = place.file(&shelf("a"), &first.id).unwrap();
    for facts in [first.clone(), facts_of(EFFECT, b"same", 2)] {
        let unfinished = place.unfinished();
        write_new(&unfinished, &facts, b"same").unwrap();
        place.shelve(&unfinished, &target).unwrap();
    }
    assert_eq!(artifacts.list(&shelf("a")).await.unwrap(), [first]);
}

#[tokio::test]
async fn many_writers_of_one_artifact_leave_one() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(&folder).await;
    let bytes = Bytes::from(vec![7; 100_000]);
    let puts = (0..16).map(|at| {
        let (artifacts, bytes) = (artifacts.clone(), bytes.clone());
        async move {
            let facts = facts_of(EFFECT, &bytes, at);
            artifacts.put(&shelf("a"), &facts, bytes).await.unwrap();
            artifacts.facts(&shelf("a"), &facts.id).await.unwrap()
        }
    });
    let mut seen = futures_util::future::join_all(puts).await;
    seen.dedup();
    assert_eq!(seen.len(), 1, "the first write wins");
    let all = artifacts.list(&shelf("a")).await.unwrap();
    assert_eq!(all, seen);
    assert_eq!(artifacts.get(&shelf("a"), &all[0].id, None).await.unwrap(), bytes);
    assert_eq!(count(&artifacts.place.unfinished), 0);
}

#[tokio::test]
async fn writing_and_deleting_neighbours_at_once_disturbs_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open(&folder).await;
    let rounds = (0..50).map(|round| {
        let artifacts = artifacts.clone();
        async move {
            let shelf = shelf(&format!("c{}", round % 5));
            let bytes = Bytes::from(round.to_string());
            artifacts.put(&shelf, &facts_of(EFFECT, &bytes, round), bytes).await.unwrap();
            artifacts.delete_all(&shelf).await.unwrap();
        }
    });
    futures_util::future::join_all(rounds).await;
    assert_eq!(count(&artifacts.place.shelves), 0);
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), "a file blocks the folder").unwrap();
    let refused = EmbeddedArtifacts::open(&folder.path().join("data/artifacts")).await;
    assert!(matches!(refused, Err(ArtifactError::Unavailable(_))));
}
