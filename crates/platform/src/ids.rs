//! Id types, and the only source of randomness.

pub mod fault_plan;

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps the text unchecked. Validate external text with [`is_plain_text`] first.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

string_id! {
    /// Unit of billing and isolation: the first part of every key.
    TenantId;
    /// Owner of a conversation: the second part of every key.
    UserId;
    /// 1 to 128 characters that pass [`is_plain_text`]; unique for its owner.
    ConversationId;
    /// One run: `pr_` and the part of its inbox item's id after `in_`.
    PromptId;
    /// An inbox item and the receipt that replaces it.
    InputId;
    /// Eight hex digits, unique in the conversation; never reused.
    EntryId;
    /// `tw_<conversation>_<incarnation>_<seq of the model response>_<index of the call>`; the same
    /// for every attempt.
    EffectId;
    /// An approval request; unique in the conversation.
    RequestId;
    /// 1 to 64 characters that pass [`is_plain_text`]; unique for its owner.
    ScheduleId;
    /// New for every commit. It distinguishes a won commit from a lost one after its response was
    /// lost.
    CommitId;
    /// A process of the service; new at every start.
    WorkerId;
    /// `<effect id>.<sha256 of the bytes>`.
    ArtifactId;
}

/// Owner and id of a conversation: the partition key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationKey {
    pub tenant: TenantId,
    pub user: UserId,
    pub conversation_id: ConversationId,
}

impl fmt::Display for ConversationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.tenant, self.user, self.conversation_id)
    }
}

impl PromptId {
    /// Id of the prompt that an accepted input starts. It is known before a worker runs.
    pub fn from_input(input: &InputId) -> Self {
        let text = input.as_str();
        Self(format!("pr_{}", text.strip_prefix("in_").unwrap_or(text)))
    }
}

impl EntryId {
    /// Id of the entry with this `seq`. The mapping is a bijection on 31 bits, so ids are unique in
    /// a conversation.
    pub fn from_seq(incarnation: &str, seq: u64) -> Self {
        Self::scramble(incarnation, u32::try_from(seq & 0x7fff_ffff).unwrap_or(0))
    }

    /// Id of the response of a conversation's `number`-th model call. It is known before the
    /// response, so that deltas can name their message. No value equals one of [`Self::from_seq`].
    pub fn from_call_number(incarnation: &str, number: u64) -> Self {
        Self::scramble(incarnation, 0x8000_0000 | u32::try_from(number & 0x7fff_ffff).unwrap_or(0))
    }

    /// Odd multiplications and xor-shifts are invertible, so the mapping is one-to-one. The
    /// incarnation only shifts its start.
    fn scramble(incarnation: &str, number: u32) -> Self {
        let mut mixed = number ^ incarnation_salt(incarnation);
        mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x7feb_352d);
        mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
        Self(format!("{:08x}", mixed ^ (mixed >> 16)))
    }

    /// The inverse of [`Self::scramble`] without the salt. `None`: this version makes no such id.
    fn unscramble(&self) -> Option<u32> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if self.0.len() != 8 || !self.0.bytes().all(is_digit) {
            return None;
        }
        let mut mixed = u32::from_str_radix(&self.0, 16).ok()?;
        mixed = (mixed ^ (mixed >> 16)).wrapping_mul(inverse(0x846c_a68b));
        mixed = (mixed ^ (mixed >> 15) ^ (mixed >> 30)).wrapping_mul(inverse(0x7feb_352d));
        Some(mixed ^ (mixed >> 16))
    }
}

/// Multiplicative inverse of an odd number modulo 2^32. Each step doubles the correct bits.
const fn inverse(odd: u32) -> u32 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// Search for an incarnation whose new entry ids differ from those of copied entries.
///
/// The ids of an incarnation are a bijection of numbers, so a copied id has one number in it. An
/// incarnation is suitable if the numbers of all copied ids are beyond the first 2^20. With very
/// many copied ids the bound is smaller: about 2^17 for 100,000 random ones.
#[derive(Debug)]
pub struct IncarnationSearch {
    /// Numbers below 2 to this power are free.
    free_bits: u32,
    /// By the upper bits of the incarnation's salt: true if a copied id has a number in the range.
    taken: Vec<bool>,
}

impl IncarnationSearch {
    const FREE_BITS_MAX: u32 = 20;
    /// At least one of so many incarnations is suitable.
    const SHARE_MIN: usize = 1_024;

    pub fn new<'a>(copied: impl IntoIterator<Item = &'a EntryId>) -> Self {
        let numbers: Vec<u32> = copied.into_iter().filter_map(EntryId::unscramble).collect();
        let mut free_bits = Self::FREE_BITS_MAX;
        loop {
            let mut taken = vec![false; 1 << (31 - free_bits)];
            for number in &numbers {
                if let Some(range) = taken.get_mut(range_of(*number, free_bits)) {
                    *range = true;
                }
            }
            let free = taken.iter().filter(|is_taken| !**is_taken).count();
            if free * Self::SHARE_MIN >= taken.len() || free_bits == 1 {
                return Self { free_bits, taken };
            }
            free_bits -= 1;
        }
    }

    pub fn is_suitable(&self, incarnation: &str) -> bool {
        let range = range_of(incarnation_salt(incarnation), self.free_bits);
        self.taken.get(range) == Some(&false)
    }
}

/// The bits of a number above the free ones. The highest bit separates the ids of model responses.
fn range_of(number: u32, free_bits: u32) -> usize {
    ((number & 0x7fff_ffff) >> free_bits) as usize
}

fn incarnation_salt(incarnation: &str) -> u32 {
    incarnation
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl EffectId {
    pub fn from_call(
        conversation: &ConversationId,
        incarnation: &str,
        response_seq: u64,
        index: usize,
    ) -> Self {
        Self(format!("tw_{conversation}_{incarnation}_{response_seq}_{index}"))
    }
}

impl ArtifactId {
    pub fn from_hash(effect: &EffectId, sha256: &str) -> Self {
        Self(format!("{effect}.{sha256}"))
    }

    /// Returns the effect that created the artifact and the hash of its bytes; `None` if the text
    /// is no artifact id.
    pub fn parts(&self) -> Option<(EffectId, &str)> {
        let (effect, sha256) = self.0.rsplit_once('.')?;
        let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_hash && is_plain_text(effect)).then(|| (EffectId::new(effect), sha256))
    }
}

/// True if an external text may be part of a key or a document id: 1 to 255 characters of `A-Z a-z
/// 0-9 _ . -`, and not only dots. Cosmos accepts `/ \ ? #` and cannot read them back, and blob
/// paths must not traverse upwards.
pub fn is_plain_text(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
        && !text.bytes().all(|byte| byte == b'.')
}

/// Source of new ids: the operating system in production, a seed in simulations.
pub trait Ids: Send + Sync + fmt::Debug {
    /// Returns a new id: 128 bits that sort by time, as 32 hex digits.
    fn new_id(&self) -> String;

    /// Returns a uniform random number from 0 to below 1, from the last digits of a new id, which
    /// do not depend on the time.
    fn random_fraction(&self) -> f64 {
        let id = self.new_id();
        let digits = id.get(id.len().saturating_sub(8)..).unwrap_or_default();
        f64::from(u32::from_str_radix(digits, 16).unwrap_or_default()) / (f64::from(u32::MAX) + 1.0)
    }
}

/// Version 7 UUIDs without hyphens.
#[derive(Debug, Default)]
pub struct SystemIds;

impl Ids for SystemIds {
    #[expect(clippy::disallowed_methods, reason = "this is the one source of randomness")]
    fn new_id(&self) -> String {
        uuid::Uuid::now_v7().simple().to_string()
    }
}

/// Ids from a seed, for tests and simulations: the same seed gives the same ids.
#[derive(Debug)]
pub struct SeededIds {
    seed: u64,
    next: std::sync::atomic::AtomicU64,
}

impl SeededIds {
    pub fn new(seed: u64) -> Self {
        Self { seed, next: std::sync::atomic::AtomicU64::new(1) }
    }
}

impl Ids for SeededIds {
    fn new_id(&self) -> String {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("{number:016x}{:016x}", self.seed)
    }
}

/// Returns `bytes_count` random bytes from the operating system, for keys and signatures.
///
/// # Errors
/// The operating system has no randomness. Stop: a guessable key is worse than none.
pub fn secret_bytes(bytes_count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; bytes_count];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn entry_ids_are_unique_hex_digits() {
        let mut seen = HashSet::new();
        for number in 0..50_000 {
            for id in [
                EntryId::from_seq("0a1b2c3d", number),
                EntryId::from_call_number("0a1b2c3d", number),
            ] {
                assert_eq!(id.as_str().len(), 8);
                assert!(seen.insert(id), "the id of {number} is not unique");
            }
        }
    }

    #[test]
    fn new_ids_differ_from_copied_ids() {
        for count in [0, 10, 3_000, 40_000] {
            let copied: Vec<EntryId> =
                (0..count).map(|number| EntryId::from_seq("0a1b2c3d", number)).collect();
            let foreign = (0..count).map(|number| {
                EntryId::new(format!("{:08x}", (number * 0x9e37_79b1) & 0xffff_ffff))
            });
            let copied: HashSet<EntryId> =
                copied.into_iter().chain(foreign).chain([EntryId::new("m1")]).collect();
            let search = IncarnationSearch::new(&copied);
            let found: Vec<String> = (0..20_000)
                .map(|number| format!("{number:08x}"))
                .filter(|incarnation| search.is_suitable(incarnation))
                .take(3)
                .collect();
            assert_eq!(found.len(), 3, "{count}");
            for incarnation in &found {
                for number in 0..1 << 17 {
                    assert!(!copied.contains(&EntryId::from_seq(incarnation, number)));
                    assert!(!copied.contains(&EntryId::from_call_number(incarnation, number)));
                }
            }
        }
        let own = EntryId::from_seq("0a1b2c3d", 7);
        assert!(!IncarnationSearch::new([&own]).is_suitable("0a1b2c3d"));
    }

    #[test]
    fn random_fraction_is_in_range_and_varies() {
        let drawn: Vec<f64> = (0..100).map(|_| SystemIds.random_fraction()).collect();
        assert!(drawn.iter().all(|share| (0.0..1.0).contains(share)), "{drawn:?}");
        assert!(drawn.iter().any(|share| *share > 0.5) && drawn.iter().any(|share| *share < 0.5));
    }

    #[test]
    fn keys_accept_only_plain_text() {
        assert!(is_plain_text("a-b_c.9"));
        for bad in ["", ".", "..", "a/b", "a\\b", "a?b", "a#b", "a b", "ü", &"x".repeat(256)] {
            assert!(!is_plain_text(bad), "{bad:?} was accepted");
        }
    }

    #[test]
    fn artifact_id_splits_into_effect_and_hash() {
        let id = ArtifactId::from_hash(&EffectId::new("tw_c_1_2_3"), &"ab".repeat(32));
        let (effect, sha256) = id.parts().unwrap();
        assert_eq!((effect.as_str(), sha256), ("tw_c_1_2_3", "ab".repeat(32).as_str()));
        assert!(ArtifactId::new("../x.zz").parts().is_none());
    }
}
