//! What becomes of an event that failed: one pure function.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::handler_error::HandlerError;
use crate::poison::{Poison, PoisonReason, UnknownReason};

/// How handling a record failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The handler returned an error that a retry may mend.
    Transient {
        /// What is stored: [`HandlerError::describe`].
        description: String,
    },
    /// The handler returned an error that no retry can mend.
    Permanent {
        /// What is stored: [`HandlerError::describe`].
        description: String,
    },
    /// The record can't be read.
    Poison(Poison),
    /// The event's id lies outside the dedup window, so nobody can know whether it was handled
    /// (listing fault 12).
    OutOfWindow,
    /// The handler ran longer than its limit (CONS-6).
    TimedOut,
    /// The handler panicked.
    Panicked,
    /// The handler went on after an SQL error, so its transaction can't commit (the guard).
    SwallowedSqlError,
    /// The database or the broker is away: not the event's fault, and not counted.
    Infrastructure,
}

impl From<&HandlerError> for Failure {
    fn from(error: &HandlerError) -> Failure {
        let description = error.describe();
        if error.is_permanent() {
            Failure::Permanent { description }
        } else {
            Failure::Transient { description }
        }
    }
}

impl From<HandlerError> for Failure {
    fn from(error: HandlerError) -> Failure {
        Failure::from(&error)
    }
}

impl From<Poison> for Failure {
    fn from(poison: Poison) -> Failure {
        Failure::Poison(poison)
    }
}

/// What is stored with a dead letter, without values of the payload.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Transient { description } | Failure::Permanent { description } => {
                f.write_str(description)
            }
            Failure::Poison(poison) => poison.fmt(f),
            Failure::OutOfWindow => f.write_str(
                "the event's id is outside the dedup window, so it may have been handled before: \
                 check the business data before it is handled again",
            ),
            Failure::TimedOut => f.write_str(
                "the handler ran longer than its limit: make it shorter, or raise handler_timeout",
            ),
            Failure::Panicked => f.write_str("the handler panicked: see the service's log"),
            Failure::SwallowedSqlError => f.write_str(
                "the handler went on after an SQL error, so its transaction can't commit: return \
                 the error, or use a savepoint",
            ),
            Failure::Infrastructure => f.write_str("the database or the broker is away"),
        }
    }
}

/// How often and how fast a consumer retries. The delay doubles from attempt to attempt.
///
/// ```
/// # use factum_event::Retry;
/// use std::time::Duration;
///
/// let retry = Retry::pause_partition()
///     .attempts(4)
///     .first_delay(Duration::from_millis(100))
///     .max_delay(Duration::from_secs(1));
/// assert_eq!(retry.delay_before(2), Duration::from_millis(100));
/// assert_eq!(retry.delay_before(3), Duration::from_millis(200));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    attempts: u32,
    first_delay: Duration,
    max_delay: Duration,
}

impl Retry {
    /// Waits with the partition paused: order is kept, and the other partitions go on. 8 attempts,
    /// 200 ms before the second, at most 30 s before any.
    pub const fn pause_partition() -> Retry {
        Retry {
            attempts: 8,
            first_delay: Duration::from_millis(200),
            max_delay: Duration::from_secs(30),
        }
    }

    /// How often an event is tried in all, the first time included; 0 counts as 1.
    #[must_use]
    pub const fn attempts(mut self, attempts: u32) -> Retry {
        self.attempts = if attempts == 0 { 1 } else { attempts };
        self
    }

    /// How long to wait before the second attempt.
    #[must_use]
    pub const fn first_delay(mut self, delay: Duration) -> Retry {
        self.first_delay = delay;
        self
    }

    /// The longest wait before any attempt; the first delay is cut to it too.
    #[must_use]
    pub const fn max_delay(mut self, delay: Duration) -> Retry {
        self.max_delay = delay;
        self
    }

    /// How often an event is tried in all: 1 or more.
    pub const fn max_attempts(&self) -> u32 {
        self.attempts
    }

    /// How long to wait before an attempt: nothing before the first, then `first_delay` doubled for
    /// every attempt beyond the second, up to `max_delay`.
    pub fn delay_before(&self, attempt: u32) -> Duration {
        let Some(mut doublings) = attempt.checked_sub(2) else {
            return Duration::ZERO;
        };
        let mut delay = self.first_delay.min(self.max_delay);
        // Fewer than 100 rounds: a nanosecond is doubled 94 times until it exceeds any duration.
        while doublings > 0 && !delay.is_zero() && delay < self.max_delay {
            delay = delay.saturating_mul(2).min(self.max_delay);
            doublings -= 1;
        }
        delay
    }

    /// The sum of all delays: how long a failing event is kept at the longest, without the time that
    /// its handler takes. Saturates at [`Duration::MAX`].
    pub fn horizon(&self) -> Duration {
        let mut sum = Duration::ZERO;
        for attempt in 2..=self.attempts {
            let delay = self.delay_before(attempt);
            // From here on it stays what it is.
            if delay == self.max_delay || delay.is_zero() {
                let left = self.attempts - attempt + 1;
                return sum.saturating_add(delay.saturating_mul(left));
            }
            sum = sum.saturating_add(delay);
        }
        sum
    }
}

impl Default for Retry {
    fn default() -> Retry {
        Retry::pause_partition()
    }
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "an outcome is acted upon: no record is dropped (RTRY-X2)"]
pub enum Outcome {
    /// Its effect is committed.
    Processed,
    /// Its effect was committed before.
    Duplicate,
    /// It is tried again.
    Retry {
        /// How long to wait.
        after: Duration,
        /// Whether the attempt counts towards the policy's limit.
        counted: bool,
    },
    /// It goes to the dead letters, and the partition moves on.
    DeadLetter {
        /// Why.
        reason: DeadLetterReason,
    },
}

/// Why a record is in the dead letters, as a stable name.
///
/// ```
/// # use factum_event::{DeadLetterReason, PoisonReason};
/// let reason = DeadLetterReason::Poison(PoisonReason::DuplicateKey);
/// assert_eq!(reason.as_str(), "duplicate_key");
/// assert_eq!("duplicate_key".parse(), Ok(reason));
/// assert_eq!("permanent".parse(), Ok(DeadLetterReason::Permanent));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// It can't be read; the reason is the decoder's.
    Poison(PoisonReason),
    /// The handler said that no retry can mend it.
    Permanent,
    /// Every attempt of the policy failed.
    AttemptsExhausted,
    /// The event's id lies outside the dedup window.
    OutOfWindow,
    /// A null value, where the topic's policy wants it here.
    Tombstone,
    /// A type that isn't registered, where the policy wants it here.
    UnknownType,
}

impl DeadLetterReason {
    /// Every reason but the decoder's, which are [`PoisonReason::ALL`].
    pub const ALL: &'static [DeadLetterReason] = &[
        DeadLetterReason::Permanent,
        DeadLetterReason::AttemptsExhausted,
        DeadLetterReason::OutOfWindow,
        DeadLetterReason::Tombstone,
        DeadLetterReason::UnknownType,
    ];

    /// The stable name; for poison it is the decoder's.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeadLetterReason::Poison(reason) => reason.as_str(),
            DeadLetterReason::Permanent => "permanent",
            DeadLetterReason::AttemptsExhausted => "attempts_exhausted",
            DeadLetterReason::OutOfWindow => "out_of_window",
            DeadLetterReason::Tombstone => "tombstone",
            DeadLetterReason::UnknownType => "unknown_type",
        }
    }
}

impl fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DeadLetterReason {
    type Err = UnknownReason;

    fn from_str(name: &str) -> Result<Self, UnknownReason> {
        match Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == name)
        {
            Some(reason) => Ok(reason),
            None => name.parse().map(DeadLetterReason::Poison),
        }
    }
}

/// Decides what becomes of a failed record. Pure: no clock, no IO, no randomness.
///
/// `attempt` is how often the record was tried, this time included: 1 after the first failure, and
/// 0 counts as 1.
///
/// | failure | outcome |
/// |---|---|
/// | poison, permanent, out of window | dead letter at once (RTRY-2) |
/// | transient, timed out, panicked, swallowed SQL error | retried with a delay, dead letter after the last attempt (RTRY-1) |
/// | infrastructure | retried, not counted, never a dead letter |
///
/// ```
/// # use factum_event::{DeadLetterReason, Failure, Outcome, Retry, decide};
/// let retry = Retry::pause_partition().attempts(2);
/// assert!(matches!(decide(&Failure::TimedOut, 1, &retry), Outcome::Retry { counted: true, .. }));
/// assert_eq!(
///     decide(&Failure::TimedOut, 2, &retry),
///     Outcome::DeadLetter { reason: DeadLetterReason::AttemptsExhausted },
/// );
/// ```
pub fn decide(failure: &Failure, attempt: u32, policy: &Retry) -> Outcome {
    let attempt = attempt.max(1);
    let after = policy.delay_before(attempt.saturating_add(1));
    match failure {
        Failure::Poison(poison) => Outcome::DeadLetter {
            reason: DeadLetterReason::Poison(poison.reason()),
        },
        Failure::Permanent { .. } => Outcome::DeadLetter {
            reason: DeadLetterReason::Permanent,
        },
        Failure::OutOfWindow => Outcome::DeadLetter {
            reason: DeadLetterReason::OutOfWindow,
        },
        Failure::Infrastructure => Outcome::Retry {
            after,
            counted: false,
        },
        Failure::Transient { .. }
        | Failure::TimedOut
        | Failure::Panicked
        | Failure::SwallowedSqlError => {
            if attempt >= policy.max_attempts() {
                Outcome::DeadLetter {
                    reason: DeadLetterReason::AttemptsExhausted,
                }
            } else {
                Outcome::Retry {
                    after,
                    counted: true,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The failure that follows in the walk over all of them; `None` begins it and ends it. A new
    /// failure doesn't compile until it has its place here, and so its line in `expected`.
    fn after(failure: Option<&Failure>) -> Option<Failure> {
        let description = || "x".to_owned();
        let Some(failure) = failure else {
            return Some(Failure::Transient {
                description: description(),
            });
        };
        match failure {
            Failure::Transient { .. } => Some(Failure::Permanent {
                description: description(),
            }),
            Failure::Permanent { .. } => Some(poison(PoisonReason::ALL[0])),
            Failure::Poison(poisoned) => {
                let place = PoisonReason::ALL
                    .iter()
                    .position(|reason| *reason == poisoned.reason())
                    .expect("ALL holds every reason");
                match PoisonReason::ALL.get(place + 1) {
                    Some(reason) => Some(poison(*reason)),
                    None => Some(Failure::OutOfWindow),
                }
            }
            Failure::OutOfWindow => Some(Failure::TimedOut),
            Failure::TimedOut => Some(Failure::Panicked),
            Failure::Panicked => Some(Failure::SwallowedSqlError),
            Failure::SwallowedSqlError => Some(Failure::Infrastructure),
            Failure::Infrastructure => None,
        }
    }

    fn poison(reason: PoisonReason) -> Failure {
        Failure::Poison(Poison::new(reason, "$", "x"))
    }

    fn every_failure() -> Vec<Failure> {
        std::iter::successors(after(None), |failure| after(Some(failure))).collect()
    }

    /// `first` doubled `attempt - 1` times and cut at `max`, in nanoseconds: the wait after the failure
    /// of `attempt`. Written without the code's own arithmetic, so that the two can disagree.
    fn nanos_after(attempt: u32, first: Duration, max: Duration) -> u128 {
        // No duration has more than 94 bits.
        let factor = 1_u128 << (attempt.max(1) - 1).min(100);
        let doubled = first.as_nanos().checked_mul(factor);
        doubled.unwrap_or(u128::MAX).min(max.as_nanos())
    }

    /// What the documentation of `decide` says, line by line.
    fn expected(failure: &Failure, attempt: u32, limit: u32, wait: Duration) -> Outcome {
        let dead = |reason| Outcome::DeadLetter { reason };
        match failure {
            Failure::Permanent { .. } => dead(DeadLetterReason::Permanent),
            Failure::Poison(poison) => dead(DeadLetterReason::Poison(poison.reason())),
            Failure::OutOfWindow => dead(DeadLetterReason::OutOfWindow),
            Failure::Transient { .. }
            | Failure::TimedOut
            | Failure::Panicked
            | Failure::SwallowedSqlError
                if attempt < limit =>
            {
                Outcome::Retry {
                    after: wait,
                    counted: true,
                }
            }
            Failure::Transient { .. }
            | Failure::TimedOut
            | Failure::Panicked
            | Failure::SwallowedSqlError => dead(DeadLetterReason::AttemptsExhausted),
            Failure::Infrastructure => Outcome::Retry {
                after: wait,
                counted: false,
            },
        }
    }

    #[test]
    fn every_failure_at_every_attempt_under_every_policy() {
        let failures = every_failure();
        assert_eq!(failures.len(), 7 + PoisonReason::ALL.len());
        let delays = [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_micros(1),
            Duration::from_millis(200),
            Duration::from_secs(30),
            Duration::from_hours(10),
            Duration::MAX,
        ];
        let mut checked = 0;
        for limit in [0, 1, 2, 3, 8, 33, 34, 64, 200, u32::MAX - 1, u32::MAX] {
            let attempts = [
                0,
                1,
                2,
                3,
                31,
                32,
                33,
                34,
                35,
                95,
                96,
                u32::MAX - 1,
                u32::MAX,
            ]
            .into_iter()
            .chain([limit.saturating_sub(1), limit, limit.saturating_add(1)]);
            for attempt in attempts {
                for (first, max) in delays
                    .iter()
                    .flat_map(|a| delays.iter().map(move |b| (*a, *b)))
                {
                    let policy = Retry::pause_partition()
                        .attempts(limit)
                        .first_delay(first)
                        .max_delay(max);
                    let wait = Duration::from_nanos_u128(nanos_after(attempt, first, max));
                    for failure in &failures {
                        // 0 counts as 1, of the limit as of the attempt.
                        let (attempt_, limit_) = (attempt.max(1), limit.max(1));
                        assert_eq!(
                            decide(failure, attempt, &policy),
                            expected(failure, attempt_, limit_, wait),
                            "{failure:?}, attempt {attempt}, {policy:?}"
                        );
                        checked += 1;
                    }
                }
            }
        }
        assert_eq!(checked, 11 * 16 * 49 * failures.len());
    }
}
