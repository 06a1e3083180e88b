//! How fast a retrier wakes keys: what thousands of keys wait for may be one call, which a rush would only fell again.

use std::time::Duration;

/// Keys that are woken per second, at the least and at the most.
const LEAST: f64 = 4.0;
const MOST: f64 = 1000.0;
/// What a success adds, as a factor.
const GROWTH: f64 = 1.25;

/// Halves with each failure of a retried key, grows with each success. Pure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace(f64);

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace(MOST)
    }

    pub(crate) fn failed(&mut self) {
        self.0 = (self.0 / 2.0).max(LEAST);
    }

    pub(crate) fn succeeded(&mut self) {
        self.0 = (self.0 * GROWTH).min(MOST);
    }

    /// The time between two keys.
    pub(crate) fn gap(self) -> Duration {
        Duration::from_secs_f64(1.0 / self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_slow_it_down_to_a_floor_and_successes_speed_it_up_to_a_ceiling() {
        let mut pace = Pace::new();
        assert_eq!(pace.gap(), Duration::from_millis(1));
        pace.failed();
        assert_eq!(pace.gap(), Duration::from_millis(2));
        for _ in 0..100 {
            pace.failed();
        }
        assert_eq!(
            pace.gap(),
            Duration::from_millis(250),
            "it never stands still"
        );
        pace.succeeded();
        assert_eq!(pace.gap(), Duration::from_millis(200));
        for _ in 0..100 {
            pace.succeeded();
        }
        assert_eq!(pace, Pace::new());
    }

    #[test]
    fn a_rush_of_failing_keys_is_over_after_a_handful() {
        let mut pace = Pace::new();
        let mut woken = 0;
        let mut passed = Duration::ZERO;
        while passed < Duration::from_secs(10) {
            passed += pace.gap();
            pace.failed();
            woken += 1;
        }
        assert!(woken < 50, "{woken} of ten thousand keys in ten seconds");
    }

    #[test]
    fn one_bad_key_among_good_ones_slows_nobody() {
        let mut pace = Pace::new();
        for _ in 0..100 {
            for _ in 0..4 {
                pace.succeeded();
            }
            pace.failed();
        }
        assert!(pace.gap() <= Duration::from_millis(2));
    }
}
