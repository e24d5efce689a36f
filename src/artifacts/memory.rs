//! Artifacts for simulations: in memory, with calls that fail drawn from one seed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    ARTIFACT_BYTES_MAX, ArtifactError, ArtifactFacts, Artifacts, Shelf, cut, is_nameable,
    oldest_first,
};
use crate::ids::ArtifactId;

pub struct MemoryArtifacts(Mutex<State>);

struct State {
    shelves: HashMap<Shelf, BTreeMap<ArtifactId, (ArtifactFacts, Bytes)>>,
    dice: fastrand::Rng,
    unavailable: u8,
}

impl MemoryArtifacts {
    /// `unavailable`: calls in a hundred that fail; half of these have done their work, all of it, and only the answer
    /// was lost.
    pub fn new(seed: u64, unavailable: u8) -> Self {
        let dice = fastrand::Rng::with_seed(seed);
        Self(Mutex::new(State { shelves: HashMap::new(), dice, unavailable }))
    }

    /// How many calls in a hundred fail from now on.
    pub fn set_unavailable(&self, unavailable: u8) {
        self.state().unavailable = unavailable;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn act<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, ArtifactError>,
    ) -> Result<T, ArtifactError> {
        let mut state = self.state();
        let fails = state.dice.u8(0..100) < state.unavailable;
        if fails && state.dice.bool() {
            return Err(ArtifactError::Unavailable("simulated: the call was lost".into()));
        }
        let answer = work(&mut state);
        if fails {
            return Err(ArtifactError::Unavailable("simulated: the answer was lost".into()));
        }
        answer
    }
}

impl State {
    fn find(
        &self,
        shelf: &Shelf,
        id: &ArtifactId,
    ) -> Result<&(ArtifactFacts, Bytes), ArtifactError> {
        self.shelves.get(shelf).and_then(|all| all.get(id)).ok_or(ArtifactError::NotFound)
    }
}

#[async_trait]
impl Artifacts for MemoryArtifacts {
    async fn put(
        &self,
        shelf: &Shelf,
        facts: &ArtifactFacts,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        let size = bytes.len() as u64;
        if size > ARTIFACT_BYTES_MAX {
            return Err(ArtifactError::TooLarge(size));
        }
        if !is_nameable(shelf) || facts.id.parts().is_none() {
            return Err(ArtifactError::NotFound);
        }
        self.act(|state| {
            state
                .shelves
                .entry(shelf.clone())
                .or_default()
                .entry(facts.id.clone())
                .or_insert_with(|| (ArtifactFacts { size, ..facts.clone() }, bytes));
            Ok(())
        })
    }

    async fn facts(&self, shelf: &Shelf, id: &ArtifactId) -> Result<ArtifactFacts, ArtifactError> {
        self.act(|state| state.find(shelf, id).map(|(facts, _)| facts.clone()))
    }

    async fn get(
        &self,
        shelf: &Shelf,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        self.act(|state| {
            let (facts, bytes) = state.find(shelf, id)?;
            let range = cut(range, facts.size);
            // Both fit: the size is that of bytes in memory.
            let [start, end] =
                [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(bytes.len()));
            Ok(bytes.slice(start..end))
        })
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<ArtifactFacts>, ArtifactError> {
        self.act(|state| {
            let all = state.shelves.get(shelf).into_iter().flatten();
            Ok(oldest_first(all.map(|(_, (facts, _))| facts.clone()).collect()))
        })
    }

    async fn delete_all(&self, shelf: &Shelf) -> Result<(), ArtifactError> {
        self.act(|state| {
            state.shelves.remove(shelf);
            Ok(())
        })
    }
}

impl fmt::Debug for MemoryArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("MemoryArtifacts")
            .field("shelves", &state.shelves.len())
            .field("unavailable", &state.unavailable)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::{self, facts_of, shelf};
    use super::*;

    #[tokio::test]
    async fn it_keeps_the_contract() {
        contract::contract(&MemoryArtifacts::new(1, 0), "contract").await;
    }

    /// Puts 200 artifacts through a store of which every second call fails; what was answered, and what is there.
    async fn shaky(seed: u64) -> (Vec<bool>, usize) {
        let artifacts = MemoryArtifacts::new(seed, 50);
        let shelf = shelf("shaky");
        let mut answers = Vec::new();
        for number in 0..200 {
            let bytes = Bytes::from(number.to_string());
            answers.push(
                artifacts.put(&shelf, &facts_of("tw_c_1_2_3", &bytes, 1), bytes).await.is_ok(),
            );
        }
        artifacts.set_unavailable(0);
        let all = artifacts.list(&shelf).await.unwrap();
        for facts in &all {
            let bytes = artifacts.get(&shelf, &facts.id, None).await.unwrap();
            assert_eq!(bytes.len() as u64, facts.size, "never half of one");
        }
        (answers, all.len())
    }

    #[tokio::test]
    async fn a_failed_put_may_have_happened_and_the_seed_says_which() {
        let (answers, there) = shaky(5).await;
        let answered = answers.iter().filter(|is_ok| **is_ok).count();
        assert!((70..130).contains(&answered), "{answered} of 200 were answered");
        assert!(answered < there && there < 200, "{answered} were answered, {there} are there");
        assert_eq!(shaky(5).await, (answers.clone(), there));
        assert_ne!(shaky(6).await.0, answers);
    }
}
