//! Contract test of [`Artifacts`], run on every implementation.

use bytes::Bytes;

use super::frame_documents::{delete_all_artifacts, get_frame_document, put_frame_document};
use super::{ARTIFACT_BYTES_MAX, ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{
    ArtifactId, ConversationId, ConversationKey, EffectId, TenantId, UserId,
};

const EFFECT: &str = "tw_c_1_2_3";

pub(crate) fn test_scope(conversation: &str) -> ArtifactScope {
    ArtifactScope {
        key: ConversationKey {
            tenant: TenantId::new("tenant"),
            user: UserId::new("user"),
            conversation_id: ConversationId::new(conversation),
        },
        incarnation: "0a1b2c3d".to_owned(),
    }
}

pub(crate) fn test_metadata(effect: &str, bytes: &[u8], at: u64) -> ArtifactMetadata {
    ArtifactMetadata {
        id: ArtifactId::from_hash(&EffectId::new(effect), &sha256_hex(bytes)),
        name: Some("notes/ü \"1\".md".to_owned()),
        mime_type: "text/markdown; charset=utf-8".to_owned(),
        size: bytes.len() as u64,
        created_at: Timestamp(at),
    }
}

fn assert_not_found<T: std::fmt::Debug>(answer: &Result<T, ArtifactError>) {
    assert!(matches!(answer, Err(ArtifactError::NotFound)), "{answer:?}");
}

/// Tests the port in conversations whose ids begin with `name`, and leaves them empty.
pub(crate) async fn run_contract(artifacts: &dyn Artifacts, name: &str) {
    let scope = test_scope(name);
    scope_is_empty_at_first(artifacts, &scope).await;
    content_and_metadata_round_trip(artifacts, &scope).await;
    ranges_are_clamped_to_size(artifacts, &scope).await;
    first_put_wins(artifacts, &scope).await;
    list_is_oldest_first(artifacts, &scope).await;
    scopes_are_isolated(artifacts, &scope).await;
    invalid_ids_are_not_found(artifacts, &scope).await;
    oversized_artifact_is_rejected(artifacts, &scope).await;
    frame_documents_are_apart_and_deleted(artifacts, &scope).await;
}

async fn scope_is_empty_at_first(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let id = test_metadata(EFFECT, b"absent", 1).id;
    assert_eq!(artifacts.list(scope).await.unwrap(), []);
    assert_not_found(&artifacts.metadata(scope, &id).await);
    assert_not_found(&artifacts.get(scope, &id, None).await);
    artifacts.delete_all(scope).await.unwrap();
}

async fn frame_documents_are_apart_and_deleted(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let (bytes, now) = (Bytes::from_static(b"{\"a\":1}"), Timestamp(1));
    let sha256 = sha256_hex(&bytes);
    assert_eq!(get_frame_document(artifacts, scope, &sha256).await.unwrap(), None);
    for _ in 0..2 {
        put_frame_document(artifacts, scope, &sha256, bytes.clone(), now).await.unwrap();
    }
    let stored = get_frame_document(artifacts, scope, &sha256).await.unwrap();
    assert_eq!(stored, Some(bytes.clone()));
    // No id of an artifact names it, and it is in no list.
    let id = ArtifactId::from_hash(&EffectId::new("frame"), &sha256);
    assert_not_found(&artifacts.get(scope, &id, None).await);
    assert_eq!(artifacts.list(scope).await.unwrap(), []);
    for hash in ["", "..", "../x", "0"] {
        assert_eq!(get_frame_document(artifacts, scope, hash).await.unwrap(), None, "{hash}");
    }
    let metadata = test_metadata(EFFECT, b"kept", 1);
    artifacts.put(scope, &metadata, Bytes::from_static(b"kept")).await.unwrap();
    for _ in 0..2 {
        delete_all_artifacts(artifacts, scope).await.unwrap();
    }
    assert_eq!(get_frame_document(artifacts, scope, &sha256).await.unwrap(), None);
    assert_eq!(artifacts.list(scope).await.unwrap(), []);
}

async fn content_and_metadata_round_trip(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let large = (0..5 * 1024 * 1024_u32).map(|at| at.to_le_bytes()[1]).collect::<Vec<_>>();
    for bytes in [Bytes::new(), Bytes::from_static(b"\0\xff\r\n"), Bytes::from(large)] {
        let full = test_metadata(EFFECT, &bytes, 1);
        let nameless = ArtifactMetadata { name: None, ..test_metadata("tw_c_1_2_4", &bytes, 2) };
        for metadata in [full, nameless] {
            artifacts.put(scope, &metadata, bytes.clone()).await.unwrap();
            assert_eq!(artifacts.metadata(scope, &metadata.id).await.unwrap(), metadata);
            assert!(artifacts.get(scope, &metadata.id, None).await.unwrap() == bytes);
        }
    }
    artifacts.delete_all(scope).await.unwrap();
}

async fn ranges_are_clamped_to_size(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let bytes = Bytes::from_static(b"0123456789");
    let metadata = test_metadata(EFFECT, &bytes, 1);
    artifacts.put(scope, &metadata, bytes).await.unwrap();
    let nothing = Bytes::from_static(b"").to_vec();
    for (start, end, expected) in [
        (0, 10, b"0123456789".to_vec()),
        (0, 1, b"0".to_vec()),
        (3, 6, b"345".to_vec()),
        (8, 99, b"89".to_vec()),
        (0, u64::MAX, b"0123456789".to_vec()),
        (10, 20, nothing.clone()),
        (99, 100, nothing.clone()),
        (4, 4, nothing.clone()),
        (6, 3, nothing.clone()),
        (u64::MAX, u64::MAX, nothing),
    ] {
        let part = artifacts.get(scope, &metadata.id, Some(start..end)).await.unwrap();
        assert_eq!(part.to_vec(), expected, "{start}..{end}");
    }
    artifacts.delete_all(scope).await.unwrap();
}

async fn first_put_wins(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let bytes = Bytes::from_static(b"the same");
    let first = test_metadata(EFFECT, &bytes, 1);
    let second =
        ArtifactMetadata { name: Some("renamed".to_owned()), ..test_metadata(EFFECT, &bytes, 2) };
    assert_eq!(first.id, second.id);
    artifacts.put(scope, &first, bytes.clone()).await.unwrap();
    artifacts.put(scope, &second, bytes.clone()).await.unwrap();
    assert_eq!(artifacts.list(scope).await.unwrap(), [first]);
    assert_eq!(artifacts.get(scope, &second.id, None).await.unwrap(), bytes);
    artifacts.delete_all(scope).await.unwrap();
}

async fn list_is_oldest_first(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let mut expected = Vec::new();
    for (effect, text, at) in
        [("z", "new", 30), ("a", "newest", 40), ("m", "old", 10), ("b", "mid", 20)]
    {
        let bytes = Bytes::from(text);
        let metadata = test_metadata(effect, &bytes, at);
        artifacts.put(scope, &metadata, bytes).await.unwrap();
        expected.push(metadata);
    }
    expected.sort_by_key(|metadata| metadata.created_at);
    assert_eq!(artifacts.list(scope).await.unwrap(), expected);
    artifacts.delete_all(scope).await.unwrap();
    assert_eq!(artifacts.list(scope).await.unwrap(), []);
    for metadata in expected {
        assert_not_found(&artifacts.get(scope, &metadata.id, None).await);
    }
}

async fn scopes_are_isolated(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let mut others = [(); 4].map(|()| scope.clone());
    let [tenant, user, conversation, incarnation] = &mut others;
    tenant.key.tenant = TenantId::new("tenant2");
    user.key.user = UserId::new("user2");
    conversation.key.conversation_id =
        ConversationId::new(format!("{}2", scope.key.conversation_id));
    incarnation.incarnation = "0a1b2c3d4".to_owned();

    let bytes = Bytes::from_static(b"mine");
    let metadata = test_metadata(EFFECT, &bytes, 1);
    artifacts.put(scope, &metadata, bytes.clone()).await.unwrap();
    for other in &others {
        assert_eq!(artifacts.list(other).await.unwrap(), []);
        assert_not_found(&artifacts.metadata(other, &metadata.id).await);
        assert_not_found(&artifacts.get(other, &metadata.id, None).await);
        artifacts.put(other, &metadata, bytes.clone()).await.unwrap();
    }
    artifacts.delete_all(scope).await.unwrap();
    for other in &others {
        assert_eq!(artifacts.get(other, &metadata.id, None).await.unwrap(), bytes);
        artifacts.delete_all(other).await.unwrap();
    }
}

async fn invalid_ids_are_not_found(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let bytes = Bytes::from_static(b"x");
    let good = test_metadata(EFFECT, &bytes, 1);
    let sha256 = sha256_hex(&bytes);
    for bad in [
        String::new(),
        "..".to_owned(),
        sha256.clone(),
        format!("../{EFFECT}.{sha256}"),
        format!("...{sha256}"),
        format!("{EFFECT}.{sha256}/../x"),
        format!("{EFFECT}.{}", sha256.to_uppercase().replace('A', "g")),
        format!("{EFFECT}.{sha256}0"),
    ] {
        let metadata = ArtifactMetadata { id: ArtifactId::new(bad.clone()), ..good.clone() };
        assert_not_found(&artifacts.put(scope, &metadata, bytes.clone()).await);
        assert_not_found(&artifacts.get(scope, &metadata.id, None).await);
        assert_not_found(&artifacts.metadata(scope, &metadata.id).await);
    }
    for bad in ["", ".", "..", "a/b", "../..", "a\\b", "a?b", "ü"] {
        let mut scopes = [(); 4].map(|()| scope.clone());
        let [tenant, user, conversation, incarnation] = &mut scopes;
        tenant.key.tenant = TenantId::new(bad);
        user.key.user = UserId::new(bad);
        conversation.key.conversation_id = ConversationId::new(bad);
        bad.clone_into(&mut incarnation.incarnation);
        for scope in &scopes {
            assert_not_found(&artifacts.put(scope, &good, bytes.clone()).await);
            assert_not_found(&artifacts.get(scope, &good.id, None).await);
            assert_eq!(artifacts.list(scope).await.unwrap(), []);
            artifacts.delete_all(scope).await.unwrap();
        }
    }
    assert_eq!(artifacts.list(scope).await.unwrap(), []);
}

async fn oversized_artifact_is_rejected(artifacts: &dyn Artifacts, scope: &ArtifactScope) {
    let size = ARTIFACT_BYTES_MAX + 1;
    let bytes = Bytes::from(vec![0; usize::try_from(size).unwrap()]);
    // The hash need not match: the size is checked first.
    let metadata = test_metadata(EFFECT, b"too much", 1);
    let refused = artifacts.put(scope, &metadata, bytes).await;
    assert!(matches!(refused, Err(ArtifactError::TooLarge(bytes)) if bytes == size), "{refused:?}");
    assert_eq!(artifacts.list(scope).await.unwrap(), []);
}
