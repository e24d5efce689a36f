//! Contract test of [`Artifacts`], run on every implementation.

use bytes::Bytes;

use super::{ARTIFACT_BYTES_MAX, ArtifactError, ArtifactFacts, Artifacts, Shelf};
use crate::clock::Timestamp;
use crate::ids::{ArtifactId, ConversationId, ConversationKey, EffectId, TenantId, UserId};
use crate::tools::sha256_hex;

const EFFECT: &str = "tw_c_1_2_3";

pub(crate) fn shelf(conversation: &str) -> Shelf {
    Shelf {
        key: ConversationKey {
            tenant: TenantId::new("tenant"),
            user: UserId::new("user"),
            conversation_id: ConversationId::new(conversation),
        },
        incarnation: "0a1b2c3d".to_owned(),
    }
}

pub(crate) fn facts_of(effect: &str, bytes: &[u8], at: u64) -> ArtifactFacts {
    ArtifactFacts {
        id: ArtifactId::of(&EffectId::new(effect), &sha256_hex(bytes)),
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
pub(crate) async fn contract(artifacts: &dyn Artifacts, name: &str) {
    let shelf = shelf(name);
    nothing_is_there_at_first(artifacts, &shelf).await;
    bytes_and_facts_come_back(artifacts, &shelf).await;
    ranges_are_cut_at_the_end(artifacts, &shelf).await;
    the_first_put_wins(artifacts, &shelf).await;
    the_oldest_is_listed_first(artifacts, &shelf).await;
    shelves_do_not_see_each_other(artifacts, &shelf).await;
    bad_ids_lead_nowhere(artifacts, &shelf).await;
    too_much_is_refused(artifacts, &shelf).await;
}

async fn nothing_is_there_at_first(artifacts: &dyn Artifacts, shelf: &Shelf) {
    let id = facts_of(EFFECT, b"absent", 1).id;
    assert_eq!(artifacts.list(shelf).await.unwrap(), []);
    assert_not_found(&artifacts.facts(shelf, &id).await);
    assert_not_found(&artifacts.get(shelf, &id, None).await);
    artifacts.delete_all(shelf).await.unwrap();
}

async fn bytes_and_facts_come_back(artifacts: &dyn Artifacts, shelf: &Shelf) {
    let large = (0..5 * 1024 * 1024_u32).map(|at| at.to_le_bytes()[1]).collect::<Vec<_>>();
    for bytes in [Bytes::new(), Bytes::from_static(b"\0\xff\r\n"), Bytes::from(large)] {
        let full = facts_of(EFFECT, &bytes, 1);
        let nameless = ArtifactFacts { name: None, ..facts_of("tw_c_1_2_4", &bytes, 2) };
        for facts in [full, nameless] {
            artifacts.put(shelf, &facts, bytes.clone()).await.unwrap();
            assert_eq!(artifacts.facts(shelf, &facts.id).await.unwrap(), facts);
            assert!(artifacts.get(shelf, &facts.id, None).await.unwrap() == bytes);
        }
    }
    artifacts.delete_all(shelf).await.unwrap();
}

async fn ranges_are_cut_at_the_end(artifacts: &dyn Artifacts, shelf: &Shelf) {
    let bytes = Bytes::from_static(b"0123456789");
    let facts = facts_of(EFFECT, &bytes, 1);
    artifacts.put(shelf, &facts, bytes).await.unwrap();
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
        let part = artifacts.get(shelf, &facts.id, Some(start..end)).await.unwrap();
        assert_eq!(part.to_vec(), expected, "{start}..{end}");
    }
    artifacts.delete_all(shelf).await.unwrap();
}

async fn the_first_put_wins(artifacts: &dyn Artifacts, shelf: &Shelf) {
    let bytes = Bytes::from_static(b"the same");
    let first = facts_of(EFFECT, &bytes, 1);
    let second = ArtifactFacts { name: Some("renamed".to_owned()), ..facts_of(EFFECT, &bytes, 2) };
    assert_eq!(first.id, second.id);
    artifacts.put(shelf, &first, bytes.clone()).await.unwrap();
    artifacts.put(shelf, &second, bytes.clone()).await.unwrap();
    assert_eq!(artifacts.list(shelf).await.unwrap(), [first]);
    assert_eq!(artifacts.get(shelf, &second.id, None).await.unwrap(), bytes);
    artifacts.delete_all(shelf).await.unwrap();
}

async fn the_oldest_is_listed_first(artifacts: &dyn Artifacts, shelf: &Shelf) {
    let mut expected = Vec::new();
    for (effect, text, at) in
        [("z", "new", 30), ("a", "newest", 40), ("m", "old", 10), ("b", "mid", 20)]
    {
        let bytes = Bytes::from(text);
        let facts = facts_of(effect, &bytes, at);
        artifacts.put(shelf, &facts, bytes).await.unwrap();
        expected.push(facts);
    }
    expected.sort_by_key(|facts| facts.created_at);
    assert_eq!(artifacts.list(shelf).await.unwrap(), expected);
    artifacts.delete_all(shelf).await.unwrap();
    assert_eq!(artifacts.list(shelf).await.unwrap(), []);
    for facts in expected {
        assert_not_found(&artifacts.get(shelf, &facts.id, None).await);
    }
}

async fn shelves_do_not_see_each_other(artifacts: &dyn Artifacts, shelf: &Shelf) {
    let mut others = [(); 4].map(|()| shelf.clone());
    let [tenant, user, conversation, incarnation] = &mut others;
    tenant.key.tenant = TenantId::new("tenant2");
    user.key.user = UserId::new("user2");
    conversation.key.conversation_id =
        ConversationId::new(format!("{}2", shelf.key.conversation_id));
    incarnation.incarnation = "0a1b2c3d4".to_owned();

    let bytes = Bytes::from_static(b"mine");
    let facts = facts_of(EFFECT, &bytes, 1);
    artifacts.put(shelf, &facts, bytes.clone()).await.unwrap();
    for other in &others {
        assert_eq!(artifacts.list(other).await.unwrap(), []);
        assert_not_found(&artifacts.facts(other, &facts.id).await);
        assert_not_found(&artifacts.get(other, &facts.id, None).await);
        artifacts.put(other, &facts, bytes.clone()).await.unwrap();
    }
    artifacts.delete_all(shelf).await.unwrap();
    for other in &others {
        assert_eq!(artifacts.get(other, &facts.id, None).await.unwrap(), bytes);
        artifacts.delete_all(other).await.unwrap();
    }
}

async fn bad_ids_lead_nowhere(artifacts: &dyn Artifacts, shelf: &Shelf) {
    let bytes = Bytes::from_static(b"x");
    let good = facts_of(EFFECT, &bytes, 1);
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
        let facts = ArtifactFacts { id: ArtifactId::new(bad.clone()), ..good.clone() };
        assert_not_found(&artifacts.put(shelf, &facts, bytes.clone()).await);
        assert_not_found(&artifacts.get(shelf, &facts.id, None).await);
        assert_not_found(&artifacts.facts(shelf, &facts.id).await);
    }
    for bad in ["", ".", "..", "a/b", "../..", "a\\b", "a?b", "ü"] {
        let mut shelves = [(); 4].map(|()| shelf.clone());
        let [tenant, user, conversation, incarnation] = &mut shelves;
        tenant.key.tenant = TenantId::new(bad);
        user.key.user = UserId::new(bad);
        conversation.key.conversation_id = ConversationId::new(bad);
        bad.clone_into(&mut incarnation.incarnation);
        for shelf in &shelves {
            assert_not_found(&artifacts.put(shelf, &good, bytes.clone()).await);
            assert_not_found(&artifacts.get(shelf, &good.id, None).await);
            assert_eq!(artifacts.list(shelf).await.unwrap(), []);
            artifacts.delete_all(shelf).await.unwrap();
        }
    }
    assert_eq!(artifacts.list(shelf).await.unwrap(), []);
}

async fn too_much_is_refused(artifacts: &dyn Artifacts, shelf: &Shelf) {
    let size = ARTIFACT_BYTES_MAX + 1;
    let bytes = Bytes::from(vec![0; usize::try_from(size).unwrap()]);
    // The hash need not match: the size is checked first.
    let facts = facts_of(EFFECT, b"too much", 1);
    let refused = artifacts.put(shelf, &facts, bytes).await;
    assert!(matches!(refused, Err(ArtifactError::TooLarge(bytes)) if bytes == size), "{refused:?}");
    assert_eq!(artifacts.list(shelf).await.unwrap(), []);
}
