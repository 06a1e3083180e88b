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

/// What a consumer does with an event that failed and may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetryStrategy {
    /// The event's key waits in `parked_event`, its later events behind it, in order; other keys flow.
    Park,
    /// The partition waits.
    PausePartition,
    /// The event goes to a topic of its own for each delay. The order of its key is lost.
    Topics,
}

/// What becomes of a parked key whose first event has failed at every attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnExhausted {
    /// The event goes to the dead letters, and the key goes on with the next. The default.
    #[default]
    DeadLetter,
    /// The key is held, with everything behind it, until a person releases it.
    Hold,
}

/// How often and how fast a consumer retries, and where an event waits meanwhile (RTRY-1). The delay doubles from
/// attempt to attempt.
///
/// ```
/// # use factum_event::Retry;
/// use std::time::Duration;
///
/// let retry = Retry::park()
///     .attempts(4)
///     .first_delay(Duration::from_millis(100))
///     .max_delay(Duration::from_secs(1));
/// assert_eq!(retry.delay_before(2), Duration::from_millis(100));
/// assert_eq!(retry.delay_before(3), Duration::from_millis(200));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    strategy: RetryStrategy,
    attempts: u32,
    first_delay: Duration,
    max_delay: Duration,
    on_exhausted: OnExhausted,
    parked_per_key: u32,
    parked_in_all: u32,
    topic_delays: [Duration; Retry::MAX_TOPICS],
    topics: usize,
}

impl Retry {
    /// The most retry topics that a topic can have.
    pub const MAX_TOPICS: usize = 8;

    /// Parks the key: the failed event and the later ones of its key wait in the database, in order, and every
    /// other key goes on. The default. 16 attempts, 1 s before the second, doubling up to 10 min before any; at most
    /// 10,000 events of one key wait, and 100,000 of the consumer.
    ///
    /// The delays add up to 67 min. A parked key waits for a random part of each, half of it on average, so that an
    /// outage of what a handler needs is outlasted for about half an hour. Where it may last longer, give
    /// more [`attempts`](Retry::attempts), or [`hold`](OnExhausted::Hold) the key after the last one.
    ///
    /// ```
    /// # use factum_event::Retry;
    /// use std::time::Duration;
    ///
    /// let retry = Retry::park();
    /// assert_eq!(retry.max_attempts(), 16);
    /// assert_eq!(retry.horizon(), Duration::from_secs(67 * 60 + 3));
    /// ```
    pub const fn park() -> Retry {
        Retry {
            strategy: RetryStrategy::Park,
            attempts: 16,
            first_delay: Duration::from_secs(1),
            max_delay: Duration::from_mins(10),
            on_exhausted: OnExhausted::DeadLetter,
            parked_per_key: 10_000,
            parked_in_all: 100_000,
            topic_delays: [Duration::ZERO; Retry::MAX_TOPICS],
            topics: 0,
        }
    }

    /// Waits with the partition paused: order is kept, and the other partitions go on. 8 attempts,
    /// 200 ms before the second, at most 30 s before any.
    pub const fn pause_partition() -> Retry {
        let mut retry = Retry::park();
        retry.strategy = RetryStrategy::PausePartition;
        retry.attempts = 8;
        retry.first_delay = Duration::from_millis(200);
        retry.max_delay = Duration::from_secs(30);
        retry
    }

    /// Sends a failed event to `<topic>.retry-<delay>` and takes it from there once the delay is over; after the
    /// last topic it is a dead letter. **The order of its key is lost**: later events of the key don't wait for it.
    /// An event is tried once more than there are delays. The start check refuses none and more than
    /// [`MAX_TOPICS`](Retry::MAX_TOPICS).
    ///
    /// ```
    /// # use factum_event::Retry;
    /// use std::time::Duration;
    ///
    /// let retry = Retry::topics([Duration::from_mins(1), Duration::from_mins(10)]);
    /// assert_eq!(retry.max_attempts(), 3);
    /// assert_eq!(retry.horizon(), Duration::from_mins(11));
    /// ```
    pub fn topics(delays: impl IntoIterator<Item = Duration>) -> Retry {
        let mut retry = Retry::park();
        retry.strategy = RetryStrategy::Topics;
        retry.topics = 0;
        for delay in delays {
            if let Some(place) = retry.topic_delays.get_mut(retry.topics) {
                *place = delay;
            }
            retry.topics = retry.topics.saturating_add(1);
        }
        retry.attempts = u32::try_from(retry.topics)
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        retry
    }

    /// How often an event is tried in all, the first time included; 0 counts as 1. With retry topics their number
    /// decides, and this changes nothing.
    #[must_use]
    pub const fn attempts(mut self, attempts: u32) -> Retry {
        if !matches!(self.strategy, RetryStrategy::Topics) {
            self.attempts = if attempts == 0 { 1 } else { attempts };
        }
        self
    }

    /// How long to wait before the second attempt. A parked key waits for a random part of it ("full jitter").
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

    /// What becomes of a parked key after the last attempt. Only parking asks.
    #[must_use]
    pub const fn on_exhausted(mut self, on_exhausted: OnExhausted) -> Retry {
        self.on_exhausted = on_exhausted;
        self
    }

    /// How many events of one key may be parked; 0 counts as 1. At the limit the partition waits until there is
    /// room: order is kept, and nothing is lost.
    #[must_use]
    pub const fn parked_per_key(mut self, events: u32) -> Retry {
        self.parked_per_key = if events == 0 { 1 } else { events };
        self
    }

    /// How many events of the consumer may be parked in all, about; 0 counts as 1. At the limit each partition that
    /// would park another waits until there is room.
    #[must_use]
    pub const fn parked_in_all(mut self, events: u32) -> Retry {
        self.parked_in_all = if events == 0 { 1 } else { events };
        self
    }

    /// Where an event waits.
    pub const fn strategy(&self) -> RetryStrategy {
        self.strategy
    }

    /// What becomes of a parked key after the last attempt.
    pub const fn when_exhausted(&self) -> OnExhausted {
        self.on_exhausted
    }

    /// How many events of one key may be parked.
    pub const fn limit_per_key(&self) -> u32 {
        self.parked_per_key
    }

    /// How many events of the consumer may be parked.
    pub const fn limit_in_all(&self) -> u32 {
        self.parked_in_all
    }

    /// The delays of the retry topics, in order; of more than [`MAX_TOPICS`](Retry::MAX_TOPICS) the first ones.
    pub fn topic_delays(&self) -> &[Duration] {
        &self.topic_delays[..self.topics.min(Retry::MAX_TOPICS)]
    }

    /// How many delays [`topics`](Retry::topics) was given.
    pub const fn topic_count(&self) -> usize {
        self.topics
    }

    /// How often an event is tried in all: 1 or more.
    pub const fn max_attempts(&self) -> u32 {
        self.attempts
    }

    /// How long to wait before an attempt: nothing before the first, then `first_delay` doubled for
    /// every attempt beyond the second, up to `max_delay`. With retry topics it is the topic's delay.
    pub fn delay_before(&self, attempt: u32) -> Duration {
        let Some(mut doublings) = attempt.checked_sub(2) else {
            return Duration::ZERO;
        };
        if self.strategy == RetryStrategy::Topics {
            let place = usize::try_from(doublings).unwrap_or(usize::MAX);
            let delays = self.topic_delays();
            return delays
                .get(place)
                .or(delays.last())
                .copied()
                .unwrap_or(Duration::ZERO);
        }
        let mut delay = self.first_delay.min(self.max_delay);
        // Fewer than 100 rounds: a nanosecond is doubled 94 times until it exceeds any duration.
        while doublings > 0 && !delay.is_zero() && delay < self.max_delay {
            delay = delay.saturating_mul(2).min(self.max_delay);
            doublings -= 1;
        }
        delay
    }

    /// The sum of all delays: how long a failing event is kept at the longest, without the time that
    /// its handler takes. Saturates at [`Duration::MAX`]. A held key waits for a person, beyond this.
    pub fn horizon(&self) -> Duration {
        if self.strategy == RetryStrategy::Topics {
            return self
                .topic_delays()
                .iter()
                .fold(Duration::ZERO, |sum, delay| sum.saturating_add(*delay));
        }
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
        Retry::park()
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
    /// It is tried again, and its partition waits.
    Retry {
        /// How long to wait.
        after: Duration,
        /// Whether the attempt counts towards the policy's limit.
        counted: bool,
    },
    /// Its key is parked: it waits with everything behind it, and other keys go on.
    Park {
        /// How long to wait at the longest; a random part of it is waited for.
        up_to: Duration,
    },
    /// Its key stays parked until a person releases it.
    Hold,
    /// It goes to a retry topic.
    RetryTopic {
        /// The topic's place among [`Retry::topic_delays`], and so its delay.
        step: usize,
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
    /// It was parked, and a person set it aside.
    SetAside,
}

impl DeadLetterReason {
    /// Every reason but the decoder's, which are [`PoisonReason::ALL`].
    pub const ALL: &'static [DeadLetterReason] = &[
        DeadLetterReason::Permanent,
        DeadLetterReason::AttemptsExhausted,
        DeadLetterReason::OutOfWindow,
        DeadLetterReason::Tombstone,
        DeadLetterReason::UnknownType,
        DeadLetterReason::SetAside,
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
            DeadLetterReason::SetAside => "set_aside",
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
/// | transient, timed out, panicked, swallowed SQL error | parked, retried or sent to a retry topic, as the policy says; after the last attempt a dead letter, or held (RTRY-1) |
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
                return match (policy.strategy, policy.on_exhausted) {
                    (RetryStrategy::Park, OnExhausted::Hold) => Outcome::Hold,
                    _ => Outcome::DeadLetter {
                        reason: DeadLetterReason::AttemptsExhausted,
                    },
                };
            }
            match policy.strategy {
                RetryStrategy::PausePartition => Outcome::Retry {
                    after,
                    counted: true,
                },
                RetryStrategy::Park => Outcome::Park { up_to: after },
                RetryStrategy::Topics => Outcome::RetryTopic {
                    step: usize::try_from(attempt - 1).unwrap_or(usize::MAX),
                },
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

    /// What the documentation of `decide` says, line by line. `later` is what the policy does while attempts are left,
    /// `last` what it does after them.
    fn expected(
        failure: &Failure,
        attempt: u32,
        limit: u32,
        (wait, later, last): (Duration, Outcome, Outcome),
    ) -> Outcome {
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
                later
            }
            Failure::Transient { .. }
            | Failure::TimedOut
            | Failure::Panicked
            | Failure::SwallowedSqlError => last,
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
                    let wait = Duration::from_nanos_u128(nanos_after(attempt, first, max));
                    let exhausted = Outcome::DeadLetter {
                        reason: DeadLetterReason::AttemptsExhausted,
                    };
                    let retried = Outcome::Retry {
                        after: wait,
                        counted: true,
                    };
                    let parked = Outcome::Park { up_to: wait };
                    let holding = Retry::park().on_exhausted(OnExhausted::Hold);
                    for (policy, later, last) in [
                        (Retry::pause_partition(), retried, exhausted),
                        (Retry::park(), parked, exhausted),
                        (holding, parked, Outcome::Hold),
                    ] {
                        let policy = policy.attempts(limit).first_delay(first).max_delay(max);
                        for failure in &failures {
                            // 0 counts as 1, of the limit as of the attempt.
                            let (attempt_, limit_) = (attempt.max(1), limit.max(1));
                            assert_eq!(
                                decide(failure, attempt, &policy),
                                expected(failure, attempt_, limit_, (wait, later, last)),
                                "{failure:?}, attempt {attempt}, {policy:?}"
                            );
                            checked += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(checked, 3 * 11 * 16 * 49 * failures.len());
    }
    #[test]
    fn every_failure_at_every_attempt_with_retry_topics() {
        let delays = |count: u64| (1..=count).map(Duration::from_secs);
        for count in 0..=8 {
            // How often to try is the topics' affair.
            let policy = Retry::topics(delays(count)).attempts(99);
            assert_eq!(u64::from(policy.max_attempts()), count + 1);
            assert_eq!(policy.horizon(), delays(count).sum::<Duration>());
            for attempt in 0..12_u32 {
                for failure in every_failure() {
                    let step = attempt.max(1) - 1;
                    let later = Outcome::RetryTopic {
                        step: step as usize,
                    };
                    let last = Outcome::DeadLetter {
                        reason: DeadLetterReason::AttemptsExhausted,
                    };
                    // Beyond the topics an outage waits as long as before the last.
                    let wait = Duration::from_secs(u64::from(step + 1).min(count));
                    let (attempt_, limit) = (attempt.max(1), policy.max_attempts());
                    assert_eq!(
                        decide(&failure, attempt, &policy),
                        expected(&failure, attempt_, limit, (wait, later, last)),
                        "{failure:?}, attempt {attempt}, {count} topics"
                    );
                }
            }
        }
        let many = Retry::topics(delays(9));
        assert_eq!((many.topic_count(), many.topic_delays().len()), (9, 8));
    }
}
