//! Keys of which no claim may return rows now.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::trouble::jittered;

/// Keys held at the same time. Beyond, the relay pauses as a whole.
pub(super) const HELD_KEYS_MAX: usize = 2_000;
/// How long a key that nobody asked for again is remembered after its pause.
const HELD_KEY_FORGOTTEN: Duration = Duration::from_secs(600);
/// A held key's first pause; it doubles up to the last.
const HOLD_FIRST: Duration = Duration::from_millis(100);
pub(super) const HOLD_LAST: Duration = Duration::from_secs(30);

/// Keys that wait because a row of theirs failed, and keys that have rows on their way while their slot is free for
/// others.
#[derive(Debug, Default)]
pub(super) struct HeldKeys {
    failed: HashMap<String, HeldKey>,
    flying: HashMap<String, FlyingKey>,
}

#[derive(Debug)]
struct HeldKey {
    until: Instant,
    pause: Duration,
    /// Whether the next row goes alone. A broker refuses a batch as a whole, so the rows that stood beside
    /// the culprit are told apart by sending each by itself.
    alone: bool,
}

#[derive(Debug)]
struct FlyingKey {
    slot: i16,
    rows: usize,
}

impl HeldKeys {
    /// The keys that no claim may return now: those that fly, those whose pause lasts, and those that go alone unless
    /// they may be tried now.
    pub(super) fn waiting(&mut self, now: Instant, may_try_alone: bool) -> Vec<String> {
        self.failed.retain(|_, held| {
            now < held.until || (held.alone && now < held.until + HELD_KEY_FORGOTTEN)
        });
        let failed = self
            .failed
            .iter()
            .filter(|(_, held)| now < held.until || (held.alone && !may_try_alone))
            .map(|(key, _)| key);
        failed.chain(self.flying.keys()).cloned().collect()
    }

    /// Whether the key's next row is to go alone.
    pub(super) fn goes_alone(&self, key: &str) -> bool {
        self.failed.get(key).is_some_and(|held| held.alone)
    }

    /// Holds a key for a while: twice as long each time it comes here before it is let go. `false` when too
    /// many are held already: its rows come back with the next claim.
    pub(super) fn hold(&mut self, key: &str, alone: bool) -> bool {
        let (pause, alone) = match self.failed.get(key) {
            Some(held) => ((held.pause * 2).min(HOLD_LAST), alone || held.alone),
            None if !self.has_room(1) => return false,
            None => (HOLD_FIRST, alone),
        };
        self.failed.insert(
            key.to_owned(),
            HeldKey {
                until: Instant::now() + jittered(pause),
                pause,
                alone,
            },
        );
        true
    }

    pub(super) fn let_go(&mut self, key: &str) {
        self.failed.remove(key);
    }

    /// Whether so many keys more can be held.
    pub(super) fn has_room(&self, keys: usize) -> bool {
        self.failed.len() + self.flying.len() + keys <= HELD_KEYS_MAX
    }

    /// A row of this key is on its way while its slot is free.
    pub(super) fn take_off(&mut self, key: &str, slot: i16) {
        let flying = self.flying.entry(key.to_owned());
        flying.or_insert(FlyingKey { slot, rows: 0 }).rows += 1;
    }

    /// One of those rows was answered.
    pub(super) fn land(&mut self, key: &str) {
        if let Some(flying) = self.flying.get_mut(key) {
            flying.rows -= 1;
            if flying.rows == 0 {
                self.flying.remove(key);
            }
        }
    }

    /// Whether rows of this slot are on their way although it is free.
    pub(super) fn fly_of(&self, slot: i16) -> bool {
        self.flying.values().any(|flying| flying.slot == slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_key_waits_longer_each_time_up_to_a_limit() {
        let mut held = HeldKeys::default();
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            assert!(held.hold("a", true));
            let pause = held.failed["a"].pause;
            assert!(pause > last || pause == HOLD_LAST);
            last = pause;
            let now = Instant::now();
            assert_eq!(held.waiting(now, true), ["a"]);
            assert!(held.waiting(now + HOLD_LAST, true).is_empty());
            assert_eq!(held.waiting(now + HOLD_LAST, false), ["a"]);
        }
        assert_eq!(last, HOLD_LAST);
        assert!(held.goes_alone("a") && !held.goes_alone("b"));
        held.let_go("a");
        assert!(held.failed.is_empty());
    }

    #[test]
    fn not_more_keys_are_held_than_the_limit_and_none_for_ever() {
        let mut held = HeldKeys::default();
        for i in 0..HELD_KEYS_MAX {
            assert!(held.hold(&i.to_string(), true));
        }
        assert!(!held.hold("one more", true));
        assert!(held.hold("7", true), "one that is held already");
        let later = Instant::now() + Duration::from_secs(3600);
        assert!(held.waiting(later, true).is_empty());
        assert!(held.failed.is_empty());
    }

    #[test]
    fn a_key_flies_until_its_last_row_has_landed() {
        let mut held = HeldKeys::default();
        held.take_off("a", 7);
        held.take_off("a", 7);
        assert!(held.fly_of(7) && !held.fly_of(8));
        held.land("a");
        assert_eq!(held.waiting(Instant::now(), true), ["a"]);
        held.land("a");
        assert!(held.waiting(Instant::now(), true).is_empty() && !held.fly_of(7));
    }
}
