//! A circuit breaker: pure, the clock is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many of the last outcomes are looked at.
const WINDOW: usize = 20;
/// Fewer outcomes than this say nothing.
const LEAST: usize = 10;
/// How long it stays open, before one call may try.
const REST: Duration = Duration::from_secs(5);

/// Closed while calls succeed; open when at least half of the last outcomes were failures; half-open after a rest, when
/// one call alone may try: its success closes it, its failure opens it again.
#[derive(Debug)]
pub(crate) struct Breaker {
    failures: VecDeque<bool>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: Instant,
    },
    /// The probe is under way; should it never report, another may try from then on.
    HalfOpen {
        until: Instant,
    },
}

/// How many calls may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    All,
    /// One, as a probe.
    One,
    None,
}

impl Breaker {
    pub(crate) fn new() -> Breaker {
        Breaker {
            failures: VecDeque::with_capacity(WINDOW),
            state: State::Closed,
        }
    }

    /// What may begin now. Nothing changes by asking; who begins a probe says so by [`probe`](Self::probe).
    pub(crate) fn admits(&self, now: Instant) -> Admission {
        match self.state {
            State::Closed => Admission::All,
            State::Open { until } | State::HalfOpen { until } if now >= until => Admission::One,
            State::Open { .. } | State::HalfOpen { .. } => Admission::None,
        }
    }

    /// A probe begins, which reports within `limit`.
    pub(crate) fn probe(&mut self, now: Instant, limit: Duration) {
        self.state = State::HalfOpen { until: now + limit };
    }

    /// One call's outcome.
    pub(crate) fn report(&mut self, now: Instant, failed: bool) {
        match self.state {
            State::HalfOpen { .. } if failed => self.open(now),
            State::HalfOpen { .. } => {
                self.failures.clear();
                self.state = State::Closed;
            }
            // A call that began before it opened.
            State::Open { .. } => {}
            State::Closed => {
                if self.failures.len() == WINDOW {
                    self.failures.pop_front();
                }
                self.failures.push_back(failed);
                let count = self.failures.iter().filter(|failed| **failed).count();
                if self.failures.len() >= LEAST && count * 2 >= self.failures.len() {
                    self.open(now);
                }
            }
        }
    }

    /// Whether it keeps calls back.
    pub(crate) fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    fn open(&mut self, now: Instant) {
        self.failures.clear();
        self.state = State::Open { until: now + REST };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new();
        for _ in 0..LEAST {
            breaker.report(now, true);
        }
        breaker
    }

    #[test]
    fn it_opens_at_half_of_the_last_outcomes_and_not_before_there_are_enough() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        for _ in 1..LEAST {
            breaker.report(now, true);
            assert_eq!(breaker.admits(now), Admission::All);
        }
        breaker.report(now, true);
        assert_eq!(breaker.admits(now), Admission::None);

        let mut breaker = Breaker::new();
        for n in 0..100 {
            breaker.report(now, n % 3 == 0);
        }
        assert_eq!(breaker.admits(now), Admission::All, "a third fails");
        for _ in 0..WINDOW {
            breaker.report(now, true);
        }
        assert_eq!(
            breaker.admits(now),
            Admission::None,
            "the old outcomes are forgotten"
        );
    }

    #[test]
    fn after_its_rest_one_call_tries() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + REST;
        assert_eq!(
            breaker.admits(later - Duration::from_millis(1)),
            Admission::None
        );
        assert_eq!(breaker.admits(later), Admission::One);
        breaker.probe(later, LIMIT);
        assert_eq!(
            breaker.admits(later),
            Admission::None,
            "the probe is under way"
        );
        breaker.report(later, true);
        assert_eq!(breaker.admits(later), Admission::None, "it failed");
        let later = later + REST;
        breaker.probe(later, LIMIT);
        breaker.report(later, false);
        assert_eq!(breaker.admits(later), Admission::All);
        assert!(!breaker.is_open());
        breaker.report(later, true);
        assert_eq!(breaker.admits(later), Admission::All, "it begins anew");
    }

    #[test]
    fn a_probe_that_never_reports_is_followed_by_another() {
        let now = Instant::now();
        let mut breaker = opened(now);
        breaker.probe(now + REST, LIMIT);
        assert_eq!(breaker.admits(now + REST + LIMIT), Admission::One);
    }

    #[test]
    fn late_outcomes_of_calls_that_began_before_it_opened_change_nothing() {
        let now = Instant::now();
        let mut breaker = opened(now);
        breaker.report(now, false);
        assert_eq!(breaker.admits(now), Admission::None);
    }
}
