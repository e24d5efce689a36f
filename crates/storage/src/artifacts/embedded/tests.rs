//! Local artifact files: crashes, restarts and path traversal.

use tempfile::TempDir;

use super::super::contract::{self, test_metadata, test_scope};
use super::*;

const EFFECT: &str = "tw_c_1_2_3";

async fn open_artifacts(folder: &TempDir) -> EmbeddedArtifacts {
    EmbeddedArtifacts::open(&folder.path().join("data/artifacts")).await.unwrap()
}

fn count_entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[tokio::test]
async fn embedded_artifacts_fulfil_contract() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open_artifacts(&folder).await;
    contract::run_contract(&artifacts, "contract").await;
    assert_eq!(count_entries(&artifacts.tree.scopes), 0, "deletion leaves no empty folders");
    assert_eq!(count_entries(&artifacts.tree.unfinished), 0);
}

#[tokio::test]
async fn artifacts_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = Bytes::from_static(b"kept");
    let metadata = test_metadata(EFFECT, &bytes, 1);
    open_artifacts(&folder).await.put(&test_scope("a"), &metadata, bytes.clone()).await.unwrap();
    let artifacts = open_artifacts(&folder).await;
    assert_eq!(artifacts.metadata(&test_scope("a"), &metadata.id).await.unwrap(), metadata);
    assert_eq!(artifacts.get(&test_scope("a"), &metadata.id, None).await.unwrap(), bytes);
}

#[tokio::test]
async fn crash_before_rename_leaves_no_artifact() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open_artifacts(&folder).await;
    let bytes = Bytes::from_static(b"half");
    let metadata = test_metadata(EFFECT, &bytes, 1);
    let left = artifacts.tree.new_unfinished_path();
    write_artifact(&left, &metadata, &bytes).unwrap();
    assert!(artifacts.list(&test_scope("a")).await.unwrap().is_empty());
    assert!(matches!(
        artifacts.metadata(&test_scope("a"), &metadata.id).await,
        Err(ArtifactError::NotFound)
    ));
    drop(artifacts);

    let artifacts = open_artifacts(&folder).await;
    assert!(!left.exists());
    artifacts.put(&test_scope("a"), &metadata, bytes).await.unwrap();
    assert_eq!(artifacts.list(&test_scope("a")).await.unwrap(), [metadata]);
}

#[tokio::test]
async fn crash_during_delete_leaves_no_artifact() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open_artifacts(&folder).await;
    let bytes = Bytes::from_static(b"gone");
    let metadata = test_metadata(EFFECT, &bytes, 1);
    artifacts.put(&test_scope("a"), &metadata, bytes).await.unwrap();
    let scope_folder = artifacts.tree.scope_folder(&test_scope("a")).unwrap();
    std::fs::rename(scope_folder, artifacts.tree.new_unfinished_path()).unwrap();
    assert!(artifacts.list(&test_scope("a")).await.unwrap().is_empty());
    drop(artifacts);
    assert_eq!(count_entries(&open_artifacts(&folder).await.tree.unfinished), 0);
}

#[tokio::test]
async fn damaged_file_gives_error_with_path() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open_artifacts(&folder).await;
    let bytes = Bytes::from_static(b"some bytes");
    let metadata = test_metadata(EFFECT, &bytes, 1);
    artifacts.put(&test_scope("a"), &metadata, bytes).await.unwrap();
    let path = artifacts.tree.file_path(&test_scope("a"), &metadata.id).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for damage in [&whole[..whole.len() - 1], &whole[..20], &whole[..3], b"", &whole[1..]] {
        std::fs::write(&path, damage).unwrap();
        let refused = artifacts.get(&test_scope("a"), &metadata.id, None).await.unwrap_err();
        let ArtifactError::Unavailable(source) = refused else { panic!("{refused:?}") };
        assert!(source.to_string().contains(path.to_str().unwrap()));
    }
}

#[tokio::test]
async fn first_of_two_concurrent_writers_wins() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open_artifacts(&folder).await;
    let tree = &artifacts.tree;
    let first = test_metadata(EFFECT, b"same", 1);
    let target = tree.file_path(&test_scope("a"), &first.id).unwrap();
    for metadata in [first.clone(), test_metadata(EFFECT, b"same", 2)] {
        let unfinished = tree.new_unfinished_path();
        write_artifact(&unfinished, &metadata, b"same").unwrap();
        tree.move_into_place(&unfinished, &target).unwrap();
    }
    assert_eq!(artifacts.list(&test_scope("a")).await.unwrap(), [first]);
}

#[tokio::test]
async fn concurrent_writers_store_one_artifact() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open_artifacts(&folder).await;
    let bytes = Bytes::from(vec![7; 100_000]);
    let puts = (0..16).map(|at| {
        let (artifacts, bytes) = (artifacts.clone(), bytes.clone());
        async move {
            let metadata = test_metadata(EFFECT, &bytes, at);
            artifacts.put(&test_scope("a"), &metadata, bytes).await.unwrap();
            artifacts.metadata(&test_scope("a"), &metadata.id).await.unwrap()
        }
    });
    let mut seen = futures_util::future::join_all(puts).await;
    seen.dedup();
    assert_eq!(seen.len(), 1, "the first write wins");
    let all = artifacts.list(&test_scope("a")).await.unwrap();
    assert_eq!(all, seen);
    assert_eq!(artifacts.get(&test_scope("a"), &all[0].id, None).await.unwrap(), bytes);
    assert_eq!(count_entries(&artifacts.tree.unfinished), 0);
}

#[tokio::test]
async fn concurrent_put_and_delete_do_not_interfere() {
    let folder = tempfile::tempdir().unwrap();
    let artifacts = open_artifacts(&folder).await;
    let rounds = (0..50).map(|round| {
        let artifacts = artifacts.clone();
        async move {
            let scope = test_scope(&format!("c{}", round % 5));
            let bytes = Bytes::from(round.to_string());
            artifacts.put(&scope, &test_metadata(EFFECT, &bytes, round), bytes).await.unwrap();
            artifacts.delete_all(&scope).await.unwrap();
        }
    });
    futures_util::future::join_all(rounds).await;
    assert_eq!(count_entries(&artifacts.tree.scopes), 0);
}

#[tokio::test]
async fn open_fails_if_folder_cannot_be_created() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), "a file blocks the folder").unwrap();
    let refused = EmbeddedArtifacts::open(&folder.path().join("data/artifacts")).await;
    assert!(matches!(refused, Err(ArtifactError::Unavailable(_))));
}
