//! Seeded fault injection for simulations. A run can be repeated with a subset of its faults.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fail_points::earlier_name;

/// An injected fault: the `attempt`-th time, from 1, that the fault was possible at the place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InjectedFault {
    pub kind: &'static str,
    pub place: String,
    pub attempt: u32,
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {}, chance {})", self.kind, self.place, self.attempt)
    }
}

/// Callback for each injected fault.
type FaultObserver = Arc<dyn Fn(&InjectedFault) + Send + Sync>;

/// Decides by one seed, for each place and each attempt there, whether a fault is injected. Places
/// are independent: removing one fault does not move the others, as long as the run stays the same.
#[derive(Clone)]
pub struct FaultPlan(Arc<Mutex<State>>);

struct State {
    seed: u64,
    /// The only faults to inject; `None`: all faults of the seed.
    only: Option<BTreeSet<InjectedFault>>,
    attempts: HashMap<&'static str, HashMap<String, u32>>,
    injected: Vec<InjectedFault>,
    observer: Option<FaultObserver>,
}

impl FaultPlan {
    pub fn new(seed: u64) -> Self {
        Self::new_with(seed, None)
    }

    /// Uses the same seed, but injects only these faults.
    pub fn with_only(seed: u64, these: &[InjectedFault]) -> Self {
        Self::new_with(seed, Some(these.iter().cloned().collect()))
    }

    fn new_with(seed: u64, only: Option<BTreeSet<InjectedFault>>) -> Self {
        let state =
            State { seed, only, attempts: HashMap::new(), injected: Vec::new(), observer: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Sets a callback for each injected fault.
    pub fn set_observer(&self, observer: impl Fn(&InjectedFault) + Send + Sync + 'static) {
        self.lock_state().observer = Some(Arc::new(observer));
    }

    /// Returns the injected faults so far, in order.
    pub fn injected(&self) -> Vec<InjectedFault> {
        self.lock_state().injected.clone()
    }

    /// True if the fault is injected this time. `share` is its probability, from 0 to 1.
    pub fn should_inject(&self, kind: &'static str, at: &str, share: f64) -> bool {
        // Disabled faults are not counted, so that they do not move others.
        if share <= 0.0 {
            return false;
        }
        let (fault, observer) = {
            let mut state = self.lock_state();
            let nth = state.next_attempt(kind, at);
            let fault = InjectedFault { kind, place: at.to_owned(), attempt: nth };
            let is_injected = match &state.only {
                Some(only) => only.contains(&fault),
                None => state.draw(kind, at, nth) < share,
            };
            if !is_injected {
                return false;
            }
            state.injected.push(fault.clone());
            (fault, state.observer.clone())
        };
        if let Some(observer) = observer {
            observer(&fault);
        }
        true
    }

    /// Like [`Self::should_inject`], for random choices that are no faults and stay if faults are
    /// removed.
    pub fn should_happen(&self, kind: &'static str, at: &str, share: f64) -> bool {
        let mut state = self.lock_state();
        let nth = state.next_attempt(kind, at);
        state.draw(kind, at, nth) < share
    }

    /// Returns the size of the fault, from 0 to `bound - 1`: the same for the same place and
    /// attempt.
    pub fn fault_size(&self, kind: &'static str, at: &str, bound: u64) -> u64 {
        let state = self.lock_state();
        let nth = state.attempts.get(kind).and_then(|places| places.get(at)).copied().unwrap_or(0);
        mix(state.hash_number(kind, at, nth) ^ SIZE_SALT) % bound.max(1)
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_attempt(&mut self, kind: &'static str, at: &str) -> u32 {
        let places = self.attempts.entry(kind).or_default();
        if let Some(nth) = places.get_mut(at) {
            *nth += 1;
            return *nth;
        }
        places.insert(at.to_owned(), 1);
        1
    }

    fn hash_number(&self, kind: &str, at: &str, nth: u32) -> u64 {
        let renamed = DRAWN_AS.iter().find(|(name, _)| *name == kind);
        let kind = renamed.map_or(kind, |(_, drawn)| drawn);
        // A place may end with a fail point.
        let (place, last) = at.split_at(at.rfind(' ').map_or(0, |space| space + 1));
        let text = kind.bytes().chain([0]).chain(place.bytes()).chain(earlier_name(last).bytes());
        let place = text.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        mix(mix(self.seed ^ place).wrapping_add(u64::from(nth)))
    }

    /// Returns a number from 0 to just below 1.
    fn draw(&self, kind: &str, at: &str, nth: u32) -> f64 {
        let number = self.hash_number(kind, at, nth);
        f64::from(u32::try_from(number >> 32).unwrap_or(0)) / f64::from(u32::MAX).next_up()
    }
}

/// Faults with the words of their draws: a seed keeps its faults if they get other names.
const DRAWN_AS: [(&str, &str); 14] = [
    ("a batch was written and its response lost", "a batch was written and its answer lost"),
    ("a batch was written and sent twice", "a batch was written, sent twice, and met itself"),
    ("a client repeated its request", "a client repeated itself"),
    ("a tool's response was lost", "a tool's answer was lost"),
    ("a worker stalled", "a worker stood still"),
    ("an artifact was stored and its response lost", "an artifact was kept unheard"),
    ("an artifact was stored, then delayed", "an artifact was done, then slow"),
    ("an artifact was delayed, then stored", "an artifact was slow, then done"),
    ("an artifact was truncated", "an artifact was cut"),
    ("an older version took over", "an older one came"),
    ("a request stayed undecided", "nobody ever answered"),
    ("a client patched the conversation", "somebody changed the conversation"),
    ("a client sent an input", "somebody spoke up"),
    ("a client used the tree", "somebody used the tree"),
];

/// Makes the size of a fault independent of its occurrence.
const SIZE_SALT: u64 = 0x5851_f42d_4c95_7f2d;

/// The mixing function of splitmix64.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultPlan({} injected faults)", self.lock_state().injected.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inject_falls(plan: &FaultPlan, places: &[&str]) -> Vec<bool> {
        places.iter().map(|at| plan.should_inject("a fall", at, 0.3)).collect()
    }

    #[test]
    fn seed_keeps_its_faults_under_other_names() {
        let draws = |kind: &'static str, at: &str| -> Vec<bool> {
            let plan = FaultPlan::new(7);
            (0..64).map(|_| plan.should_inject(kind, at, 0.5)).collect()
        };
        assert_eq!(
            draws("a worker stalled", "c response.after"),
            draws("a worker stood still", "c answer.after")
        );
        assert_ne!(draws("a worker stalled", "c"), draws("a worker crashed", "c"));
    }

    #[test]
    fn seed_repeats_faults_and_probability_holds() {
        let places: Vec<&str> = ["stairs", "street"].into_iter().cycle().take(1_000).collect();
        let plan = FaultPlan::new(3);
        let falls = inject_falls(&plan, &places);
        assert_eq!(falls, inject_falls(&FaultPlan::new(3), &places));
        assert_ne!(falls, inject_falls(&FaultPlan::new(4), &places));
        let count = falls.iter().filter(|fell| **fell).count();
        assert!((240..360).contains(&count), "{count} of 1000");
        assert_eq!(plan.injected().len(), count);
        let sizes = (0..100).map(|_| {
            plan.should_inject("a fall", "stairs", 0.5);
            plan.fault_size("a fall", "stairs", 10)
        });
        assert_eq!(sizes.collect::<BTreeSet<_>>().len(), 10, "every size occurs");
    }

    #[test]
    fn removed_faults_do_not_move_others() {
        let places: Vec<&str> = ["stairs", "street"].into_iter().cycle().take(100).collect();
        let plan = FaultPlan::new(5);
        inject_falls(&plan, &places);
        let kept: Vec<InjectedFault> = plan.injected().into_iter().step_by(3).collect();
        assert!(kept.len() > 3);
        let less = FaultPlan::with_only(5, &kept);
        // The places of the street have changed; that does not move the faults of the stairs.
        inject_falls(&less, &["stairs"; 50]);
        let stairs = kept.iter().filter(|fault| fault.place == "stairs");
        assert!(less.injected().iter().eq(stairs));
    }

    #[test]
    fn observer_gets_each_injected_fault() {
        let observed = Arc::new(Mutex::new(Vec::new()));
        let plan = FaultPlan::new(1);
        let list = Arc::clone(&observed);
        plan.set_observer(move |fault| list.lock().unwrap().push(fault.to_string()));
        assert!(plan.should_inject("a fall", "stairs", 1.0));
        assert!(!plan.should_inject("a fall", "stairs", 0.0));
        assert_eq!(*observed.lock().unwrap(), ["a fall (at stairs, chance 1)"]);
    }
}
