//! Whether dedup remembers events for longer than they may come again (listing fault 12).

use std::fmt;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// For how long after its time an event of one topic may come again, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Horizon<'a> {
    pub(crate) topic: &'a str,
    /// For how long the topic keeps its records; `None` for ever. A reset of offsets brings the oldest back.
    pub(crate) retention: Option<Duration>,
    /// From an event's first failure to its last retry.
    pub(crate) retries: Duration,
    /// How long afterwards a dead letter may be replayed.
    pub(crate) replays: Duration,
}

/// What remembers the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The partitions of the dedup window.
    Window { days: u32 },
    /// The table of foreign ids.
    Foreign { days: u32 },
}

/// The memory is too short: what and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TooShort {
    pub(crate) what: String,
    pub(crate) why: &'static str,
    pub(crate) mend: String,
}

impl Horizon<'_> {
    fn all(&self) -> Option<Duration> {
        let retention = self.retention?;
        Some(
            retention
                .saturating_add(self.retries)
                .saturating_add(self.replays),
        )
    }

    /// The window must be longer than topic, retries and replays together.
    pub(crate) fn compare(&self, memory: Memory) -> Result<(), TooShort> {
        let (days, name, setting, why) = match memory {
            Memory::Window { days } => (
                days,
                "the dedup window is",
                "FACTUM_DEDUP_WINDOW_DAYS",
                "what comes again from before the window, by a reset of offsets or a replay, is refused as out_of_window: \
                 nobody knows whether it was handled",
            ),
            Memory::Foreign { days } => (
                days,
                "foreign ids are remembered for",
                "ForeignIds::Keep",
                "what comes again later than that has a second effect",
            ),
        };
        let kept = DAY * days;
        let all = self.all();
        if all.is_some_and(|all| kept > all) {
            return Ok(());
        }
        let mend_in_kafka = "kafka-configs.sh --alter --entity-type topics --entity-name";
        let topic = self.topic;
        let Some(all) = all else {
            return Err(TooShort {
                what: format!(
                    "{name} {days} d, and `{topic}` keeps its records for ever (retention.ms=-1, or \
                     cleanup.policy=compact alone)"
                ),
                why,
                mend: format!(
                    "give the topic a retention: {mend_in_kafka} {topic} --add-config retention.ms=…; or accept it by \
                     FACTUM_ALLOW_SHORT_DEDUP_WINDOW=true"
                ),
            });
        };
        let retention = self.retention.unwrap_or_default();
        let least = all.as_secs() / DAY.as_secs() + 1;
        let shorter = kept.saturating_sub(self.retries + self.replays);
        let or_shorter = match shorter.as_secs() / DAY.as_secs() {
            // Longer than, and not as long as.
            0 | 1 => String::new(),
            whole => format!(
                ", or keep the topic's records for {0} d: {mend_in_kafka} {topic} --add-config retention.ms={1}",
                whole - 1,
                (DAY * u32::try_from(whole - 1).unwrap_or(u32::MAX)).as_millis()
            ),
        };
        Err(TooShort {
            what: format!(
                "{name} {days} d and must be longer than {}: {} that `{topic}` keeps its records + {} of retries + {} of \
                 replays",
                Span(all),
                Span(retention),
                Span(self.retries),
                Span(self.replays),
            ),
            why,
            mend: format!("{setting} of at least {least} d{or_shorter}"),
        })
    }
}

/// `45 d`, `67 min`, `3 s`: to the next larger whole of the largest unit that has two.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (unit, name) = match seconds {
            0..120 => (1, "s"),
            120..7_200 => (60, "min"),
            7_200..172_800 => (3_600, "h"),
            _ => (86_400, "d"),
        };
        // A day and a second are more than a day.
        let tenths = (seconds * 10).div_ceil(unit);
        match tenths % 10 {
            0 => write!(f, "{} {name}", tenths / 10),
            rest => write!(f, "{}.{rest} {name}", tenths / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn horizon(retention: Option<u32>) -> Horizon<'static> {
        Horizon {
            topic: "orders.confirmed",
            retention: retention.map(|days| DAY * days),
            retries: DAY,
            replays: DAY * 7,
        }
    }

    #[test]
    fn listing_fault_12_the_window_must_be_longer_than_topic_retries_and_replays_together() {
        let refused = horizon(Some(45))
            .compare(Memory::Window { days: 53 })
            .unwrap_err();
        assert_eq!(
            refused.what,
            "the dedup window is 53 d and must be longer than 53 d: 45 d that `orders.confirmed` keeps its records + 24 h \
             of retries + 7 d of replays"
        );
        assert!(
            refused
                .mend
                .starts_with("FACTUM_DEDUP_WINDOW_DAYS of at least 54 d, or keep"),
            "{}",
            refused.mend
        );
        assert!(
            refused.mend.ends_with("retention.ms=3801600000"),
            "{}",
            refused.mend
        );
        assert_eq!(
            horizon(Some(44)).compare(Memory::Window { days: 53 }),
            Ok(())
        );
        // Each mend is one.
        assert_eq!(
            horizon(Some(45)).compare(Memory::Window { days: 54 }),
            Ok(())
        );
    }

    #[test]
    fn no_window_is_long_enough_for_a_topic_that_keeps_everything() {
        let refused = horizon(None)
            .compare(Memory::Window { days: 3650 })
            .unwrap_err();
        assert!(refused.what.contains("for ever"), "{}", refused.what);
    }

    #[test]
    fn foreign_ids_are_compared_by_their_own_days() {
        let refused = horizon(Some(45))
            .compare(Memory::Foreign { days: 30 })
            .unwrap_err();
        assert!(
            refused
                .what
                .starts_with("foreign ids are remembered for 30 d"),
            "{}",
            refused.what
        );
        assert!(refused.why.contains("second effect"));
        assert!(
            refused
                .mend
                .starts_with("ForeignIds::Keep of at least 54 d"),
            "{}",
            refused.mend
        );
        assert_eq!(
            horizon(Some(7)).compare(Memory::Foreign { days: 30 }),
            Ok(())
        );
    }

    #[test]
    fn a_span_is_never_shown_shorter_than_it_is() {
        let shown = |seconds| Span(Duration::from_secs(seconds)).to_string();
        assert_eq!(shown(45 * 86_400), "45 d");
        assert_eq!(shown(4_023), "67.1 min");
        assert_eq!(shown(45 * 86_400 + 1), "45.1 d");
        assert_eq!(shown(0), "0 s");
    }
}
