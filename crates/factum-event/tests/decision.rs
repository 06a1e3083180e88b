//! `decide` and its delays, as a user meets them.
//!
//! The walk over every failure stands beside the function: there, a new failure doesn't compile until
//! it has its line in the table.

use std::time::Duration;

use factum_event::{
    DeadLetterReason, Decoded, Failure, HandlerError, Outcome, Poison, PoisonReason, Registry,
    Retry, decide,
};
use proptest::prelude::*;

fn poison() -> Poison {
    match Registry::new().decode(Some(b"[]")) {
        Decoded::Poison(poison) => poison,
        other => panic!("{other:?}"),
    }
}

fn transient_failures() -> Vec<Failure> {
    vec![
        Failure::Transient {
            description: "x".into(),
        },
        Failure::TimedOut,
        Failure::Panicked,
        Failure::SwallowedSqlError,
    ]
}

fn final_failures() -> Vec<(Failure, DeadLetterReason)> {
    vec![
        (
            Failure::Permanent {
                description: "x".into(),
            },
            DeadLetterReason::Permanent,
        ),
        (
            Failure::Poison(poison()),
            DeadLetterReason::Poison(PoisonReason::NotObject),
        ),
        (Failure::OutOfWindow, DeadLetterReason::OutOfWindow),
    ]
}

fn policies() -> impl Iterator<Item = Retry> {
    let durations = [0, 1, 200, 30_000, u64::MAX].map(Duration::from_millis);
    [0, 1, 2, 3, 8, 64, u32::MAX]
        .into_iter()
        .flat_map(move |attempts| {
            durations.into_iter().flat_map(move |first| {
                durations.into_iter().map(move |max| {
                    Retry::pause_partition()
                        .attempts(attempts)
                        .first_delay(first)
                        .max_delay(max)
                })
            })
        })
}

fn attempts() -> impl Iterator<Item = u32> {
    (0..=70).chain([u32::MAX - 1, u32::MAX])
}

#[test]
fn the_whole_table() {
    let mut checked = 0;
    for policy in policies() {
        for attempt in attempts() {
            for (failure, reason) in final_failures() {
                assert_eq!(
                    decide(&failure, attempt, &policy),
                    Outcome::DeadLetter { reason }
                );
                checked += 1;
            }
            for failure in transient_failures() {
                let expected = if attempt.max(1) >= policy.max_attempts() {
                    Outcome::DeadLetter {
                        reason: DeadLetterReason::AttemptsExhausted,
                    }
                } else {
                    Outcome::Retry {
                        after: policy.delay_before(attempt.max(1) + 1),
                        counted: true,
                    }
                };
                assert_eq!(
                    decide(&failure, attempt, &policy),
                    expected,
                    "{failure:?} {attempt}"
                );
                checked += 1;
            }
            let outcome = decide(&Failure::Infrastructure, attempt, &policy);
            let Outcome::Retry { counted: false, .. } = outcome else {
                panic!("{outcome:?}")
            };
            checked += 1;
        }
    }
    assert_eq!(checked, 7 * 25 * 73 * 8);
}

#[test]
fn a_transient_failure_is_tried_as_often_as_the_policy_says_and_no_more() {
    for limit in [0, 1, 2, 8] {
        let policy = Retry::pause_partition().attempts(limit);
        let mut attempt = 1;
        while let Outcome::Retry { counted, .. } = decide(&Failure::TimedOut, attempt, &policy) {
            assert!(counted);
            attempt += 1;
            assert!(attempt <= 100, "retried for ever");
        }
        assert_eq!(attempt, limit.max(1));
        assert_eq!(policy.max_attempts(), limit.max(1));
    }
}

#[test]
fn case_43_a_database_that_is_away_for_hours_makes_no_dead_letter() {
    let policy = Retry::pause_partition();
    for attempt in 1..100_000 {
        let outcome = decide(&Failure::Infrastructure, attempt, &policy);
        let Outcome::Retry {
            after,
            counted: false,
        } = outcome
        else {
            panic!("{outcome:?}")
        };
        assert!(after <= Duration::from_secs(30));
    }
}

#[test]
fn delays_double_up_to_the_limit() {
    let policy = Retry::pause_partition();
    let millis: Vec<u128> = (0..=11)
        .map(|n| policy.delay_before(n).as_millis())
        .collect();
    assert_eq!(
        millis,
        [
            0, 0, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000
        ]
    );
    assert_eq!(policy.delay_before(u32::MAX), Duration::from_secs(30));
    let cut = policy.first_delay(Duration::from_secs(60));
    assert_eq!(cut.delay_before(2), Duration::from_secs(30));
}

#[test]
fn the_horizon_is_the_sum_of_the_delays() {
    for policy in policies().filter(|policy| policy.max_attempts() <= 64) {
        let sum = (2..=policy.max_attempts()).fold(Duration::ZERO, |sum, attempt| {
            sum.saturating_add(policy.delay_before(attempt))
        });
        assert_eq!(policy.horizon(), sum, "{policy:?}");
    }
    assert_eq!(
        Retry::pause_partition().horizon(),
        Duration::from_millis(25_400)
    );
    for first in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        // Known at once, however many attempts there are.
        let endless = Retry::pause_partition()
            .attempts(u32::MAX)
            .first_delay(first);
        assert_eq!(endless.horizon().is_zero(), first.is_zero());
    }
    let endless = Retry::pause_partition().attempts(u32::MAX);
    assert!(endless.horizon() > Duration::from_secs(30 * 4_000_000_000));
}

#[test]
fn a_handlers_error_becomes_its_failure() {
    let transient = HandlerError::transient("the register is closed");
    let description = "the register is closed".to_owned();
    assert_eq!(
        Failure::from(&transient),
        Failure::Transient {
            description: description.clone()
        }
    );
    assert_eq!(
        Failure::from(transient.into_permanent()),
        Failure::Permanent { description }
    );
}

#[test]
fn every_reason_has_one_stable_name() {
    let poison = PoisonReason::ALL
        .iter()
        .copied()
        .map(DeadLetterReason::Poison);
    let all: Vec<DeadLetterReason> = DeadLetterReason::ALL
        .iter()
        .copied()
        .chain(poison)
        .collect();
    let names: Vec<&str> = all.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(
        names,
        [
            "permanent",
            "attempts_exhausted",
            "out_of_window",
            "tombstone",
            "unknown_type",
            "set_aside",
            "empty",
            "too_large",
            "too_deep",
            "not_utf8",
            "framed",
            "malformed_json",
            "not_object",
            "duplicate_key",
            "nul",
            "event_type",
            "event_id",
            "occurred_at",
            "aggregate_type",
            "aggregate_id",
            "missing_field",
            "invalid_field",
            "upcast",
        ],
    );
    for reason in all {
        assert_eq!(reason.to_string().parse(), Ok(reason));
    }
    assert!("Permanent".parse::<DeadLetterReason>().is_err());
    assert!("".parse::<PoisonReason>().is_err());
}

#[test]
fn what_is_stored_with_a_dead_letter_says_what_to_do() {
    for failure in transient_failures()
        .into_iter()
        .chain([Failure::OutOfWindow])
        .skip(1)
    {
        assert!(failure.to_string().contains(':'), "{failure}");
    }
    assert_eq!(
        Failure::Poison(poison()).to_string(),
        "not_object at $: expected a JSON object",
    );
}

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0_u64..=10).prop_map(Duration::from_nanos),
        any::<u32>().prop_map(|micros| Duration::from_micros(micros.into())),
        any::<u64>().prop_map(Duration::from_nanos),
        any::<u64>().prop_map(Duration::from_secs),
        Just(Duration::MAX),
    ]
}

fn any_attempt() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..=200, any::<u32>(), Just(u32::MAX)]
}

proptest! {
    #[test]
    fn delays_never_shrink_and_never_exceed_the_limit(
        first in durations(), max in durations(), attempt in any_attempt(), later in any_attempt(),
    ) {
        let policy = Retry::pause_partition().first_delay(first).max_delay(max);
        let (earlier, later) = (attempt.min(later), attempt.max(later));
        let delay = policy.delay_before(earlier);
        prop_assert!(delay <= policy.delay_before(later));
        prop_assert!(policy.delay_before(later) <= max);
        // A step doubles, unless the limit is reached or it is the first.
        let next = policy.delay_before(earlier.saturating_add(1));
        match earlier {
            0 => prop_assert_eq!(next, Duration::ZERO),
            1 => prop_assert_eq!(next, first.min(max)),
            u32::MAX => prop_assert_eq!(next, delay),
            _ => prop_assert_eq!(next, delay.saturating_mul(2).min(max)),
        }
    }

    #[test]
    fn a_failing_event_ends_after_exactly_the_policys_attempts(limit in 1_u32..=300, first in durations()) {
        let policy = Retry::pause_partition().attempts(limit).first_delay(first);
        let mut waited = Duration::ZERO;
        let mut attempt = 1;
        while let Outcome::Retry { after, counted } = decide(&Failure::Panicked, attempt, &policy) {
            prop_assert!(counted && attempt < limit);
            waited = waited.saturating_add(after);
            attempt += 1;
        }
        prop_assert_eq!(attempt, limit);
        prop_assert_eq!(waited, policy.horizon());
    }
}

/// `docs/metrics.md` has an alert for a key that has failed for a quarter of an hour: the default must get there.
#[test]
fn the_default_outlasts_a_quarter_of_an_hour_with_half_of_each_wait() {
    let (parking, pausing) = (Retry::park(), Retry::pause_partition());
    assert_eq!(Retry::default(), parking);
    assert_eq!(parking.horizon(), Duration::from_secs(4023));
    assert!(parking.horizon() / 2 > Duration::from_mins(15));
    assert_eq!(parking.delay_before(16), Duration::from_mins(10));
    assert_eq!((parking.max_attempts(), pausing.max_attempts()), (16, 8));
    assert_eq!(pausing.horizon(), Duration::from_millis(25_400));
}
