//! Seeded fault injection for simulations. A run can be repeated with a subset of its faults.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An injected fault: the `attempt`-th time, from 1, that the fault was possible at the place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mishap {
    pub what: &'static str,
    pub at: String,
    pub nth: u32,
}

impl fmt::Display for Mishap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {}, chance {})", self.what, self.at, self.nth)
    }
}

/// Callback for each injected fault.
type Teller = Arc<dyn Fn(&Mishap) + Send + Sync>;

/// Decides by one seed, for each place and each attempt there, whether a fault is injected. Places
/// are independent: removing one fault does not move the others, as long as the run stays the same.
#[derive(Clone)]
pub struct Fate(Arc<Mutex<State>>);

struct State {
    seed: u64,
    /// The only faults to inject; `None`: all faults of the seed.
    only: Option<BTreeSet<Mishap>>,
    asked: HashMap<&'static str, HashMap<String, u32>>,
    happened: Vec<Mishap>,
    teller: Option<Teller>,
}

impl Fate {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, None)
    }

    /// Uses the same seed, but injects only these faults.
    pub fn only(seed: u64, these: &[Mishap]) -> Self {
        Self::with(seed, Some(these.iter().cloned().collect()))
    }

    fn with(seed: u64, only: Option<BTreeSet<Mishap>>) -> Self {
        let state = State { seed, only, asked: HashMap::new(), happened: Vec::new(), teller: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Sets a callback for each injected fault.
    pub fn tell(&self, teller: impl Fn(&Mishap) + Send + Sync + 'static) {
        self.state().teller = Some(Arc::new(teller));
    }

    /// Returns the injected faults so far, in order.
    pub fn happened(&self) -> Vec<Mishap> {
        self.state().happened.clone()
    }

    /// True if the fault is injected this time. `share` is its probability, from 0 to 1.
    pub fn says(&self, what: &'static str, at: &str, share: f64) -> bool {
        // Disabled faults are not counted, so that they do not move others.
        if share <= 0.0 {
            return false;
        }
        let (mishap, teller) = {
            let mut state = self.state();
            let nth = state.next(what, at);
            let mishap = Mishap { what, at: at.to_owned(), nth };
            let happens = match &state.only {
                Some(only) => only.contains(&mishap),
                None => state.roll(what, at, nth) < share,
            };
            if !happens {
                return false;
            }
            state.happened.push(mishap.clone());
            (mishap, state.teller.clone())
        };
        if let Some(teller) = teller {
            teller(&mishap);
        }
        true
    }

    /// Like [`Self::should_inject`], for random choices that are no faults and stay if faults are
    /// removed.
    pub fn turns(&self, what: &'static str, at: &str, share: f64) -> bool {
        let mut state = self.state();
        let nth = state.next(what, at);
        state.roll(what, at, nth) < share
    }

    /// Returns the size of the fault, from 0 to `bound - 1`: the same for the same place and
    /// attempt.
    pub fn size(&self, what: &'static str, at: &str, bound: u64) -> u64 {
        let state = self.state();
        let nth = state.asked.get(what).and_then(|places| places.get(at)).copied().unwrap_or(0);
        mixed(state.number(what, at, nth) ^ SIZE) % bound.max(1)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&mut self, what: &'static str, at: &str) -> u32 {
        let places = self.asked.entry(what).or_default();
        if let Some(nth) = places.get_mut(at) {
            *nth += 1;
            return *nth;
        }
        places.insert(at.to_owned(), 1);
        1
    }

    fn number(&self, what: &str, at: &str, nth: u32) -> u64 {
        let text = what.bytes().chain([0]).chain(at.bytes());
        let place = text.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        mixed(mixed(self.seed ^ place).wrapping_add(u64::from(nth)))
    }

    /// Returns a number from 0 to just below 1.
    fn roll(&self, what: &str, at: &str, nth: u32) -> f64 {
        let number = self.number(what, at, nth);
        f64::from(u32::try_from(number >> 32).unwrap_or(0)) / f64::from(u32::MAX).next_up()
    }
}

/// Makes the size of a fault independent of its occurrence.
const SIZE: u64 = 0x5851_f42d_4c95_7f2d;

/// The mixing function of splitmix64.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl fmt::Debug for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultPlan({} injected faults)", self.state().happened.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(fate: &Fate, places: &[&str]) -> Vec<bool> {
        places.iter().map(|at| fate.says("a fall", at, 0.3)).collect()
    }

    #[test]
    fn a_seed_is_told_again_and_a_share_is_kept() {
        let places: Vec<&str> = ["stairs", "street"].into_iter().cycle().take(1_000).collect();
        let fate = Fate::new(3);
        let falls = run(&fate, &places);
        assert_eq!(falls, run(&Fate::new(3), &places));
        assert_ne!(falls, run(&Fate::new(4), &places));
        let count = falls.iter().filter(|fell| **fell).count();
        assert!((240..360).contains(&count), "{count} of 1000");
        assert_eq!(fate.happened().len(), count);
        let sizes = (0..100).map(|_| {
            fate.says("a fall", "stairs", 0.5);
            fate.size("a fall", "stairs", 10)
        });
        assert_eq!(sizes.collect::<BTreeSet<_>>().len(), 10, "every size occurs");
    }

    #[test]
    fn with_less_going_wrong_the_rest_stays_where_it_was() {
        let places: Vec<&str> = ["stairs", "street"].into_iter().cycle().take(100).collect();
        let fate = Fate::new(5);
        run(&fate, &places);
        let kept: Vec<Mishap> = fate.happened().into_iter().step_by(3).collect();
        assert!(kept.len() > 3);
        let less = Fate::only(5, &kept);
        // The places of the street have changed; that does not move the faults of the stairs.
        run(&less, &["stairs"; 50]);
        let stairs = kept.iter().filter(|mishap| mishap.at == "stairs");
        assert!(less.happened().iter().eq(stairs));
    }

    #[test]
    fn each_mishap_is_told_when_it_happens() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let fate = Fate::new(1);
        let list = Arc::clone(&told);
        fate.tell(move |mishap| list.lock().unwrap().push(mishap.to_string()));
        assert!(fate.says("a fall", "stairs", 1.0));
        assert!(!fate.says("a fall", "stairs", 0.0));
        assert_eq!(*told.lock().unwrap(), ["a fall (at stairs, chance 1)"]);
    }
}
