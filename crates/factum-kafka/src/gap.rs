//! Where a partition is read from, and what is missing there. Decided here and not by the client
//! library, which would jump in silence.

use std::fmt;

use crate::StartAt;

/// What a consumer does when records are gone that it had not read (CONS-4): dropped by the topic's
/// retention, deleted by hand, or gone with a topic that was deleted and made anew.
///
/// Whichever is chosen, the gap is told: nothing is skipped in silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GapPolicy {
    /// The consumer stops with an error that names the partition and the offsets. So it does at every
    /// start, until somebody has set the group's offset. The default.
    #[default]
    Stop,
    /// It goes on at the earliest record that the topic has, logs the gap as an error and counts it.
    /// After a topic that was made anew that is its first record: what was processed before has no
    /// second effect. A topic that is deleted is waited for.
    Earliest,
}

/// Records of a partition that were gone before the group read them.
///
/// `Display` names the partition and the offsets.
///
/// ```
/// use factum_kafka::Gap;
///
/// let gap = Gap { topic: "orders".to_owned(), partition: 0, expected: 5, low: 9, high: 20 };
/// assert!(gap.to_string().starts_with("the records 5 to 8 of `orders`/0 are gone"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The topic.
    pub topic: String,
    /// The partition, from 0.
    pub partition: i32,
    /// The offset of the record that the group would have read next.
    pub expected: i64,
    /// The oldest offset that is there.
    pub low: i64,
    /// The offset after the newest record.
    pub high: i64,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gap {
            topic,
            partition,
            expected,
            low,
            high,
        } = self;
        if expected < low {
            let last = low - 1;
            write!(
                f,
                "the records {expected} to {last} of `{topic}`/{partition} are gone: its retention or \
                 somebody's hand dropped them before they were read"
            )
        } else {
            write!(
                f,
                "`{topic}`/{partition} is not what it was: record {expected} was to be read next, and the \
                 offsets go from {low} to {high} now. The topic was deleted and made anew, or it lost \
                 records; what was not read of the old one is gone"
            )
        }
    }
}

/// What is known of a partition when its beginning is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// The next record that the group would read; nothing if it has read none.
    pub(crate) expected: Option<i64>,
    /// Whether the brokers know no offset of this group in this topic, in none of its partitions.
    pub(crate) is_new: bool,
    pub(crate) low: i64,
    pub(crate) high: i64,
}

/// The offset to read from, and whether records before it are missing.
///
/// A partition that the group does not know in a topic that it knows was added later: it is read from
/// its first record, whatever `start_at` says, or what was published to it meanwhile would be lost.
pub(crate) fn begin(position: Position, start_at: StartAt) -> (i64, bool) {
    let Position {
        expected,
        is_new,
        low,
        high,
    } = position;
    match (expected, start_at) {
        (None, StartAt::Latest) if is_new => (high, false),
        (None, _) => (low, !is_new && low > 0),
        (Some(expected), _) if (low..=high).contains(&expected) => (expected, false),
        (Some(_), _) => (low, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(expected: Option<i64>, is_new: bool, start_at: StartAt) -> (i64, bool) {
        let position = Position {
            expected,
            is_new,
            low: 10,
            high: 20,
        };
        begin(position, start_at)
    }

    #[test]
    fn a_new_group_begins_where_it_was_told_to() {
        assert_eq!(at(None, true, StartAt::Earliest), (10, false));
        assert_eq!(at(None, true, StartAt::Latest), (20, false));
    }

    #[test]
    fn a_partition_that_was_added_is_read_from_its_first_record() {
        for start_at in [StartAt::Earliest, StartAt::Latest] {
            assert_eq!(at(None, false, start_at), (10, true));
            let fresh = Position {
                expected: None,
                is_new: false,
                low: 0,
                high: 20,
            };
            assert_eq!(begin(fresh, start_at), (0, false));
        }
    }

    #[test]
    fn what_is_outside_the_partition_is_a_gap_and_never_a_jump_to_the_end() {
        for start_at in [StartAt::Earliest, StartAt::Latest] {
            for expected in [10, 15, 20] {
                assert_eq!(at(Some(expected), false, start_at), (expected, false));
            }
            for expected in [0, 9, 21, i64::MAX] {
                assert_eq!(at(Some(expected), false, start_at), (10, true));
            }
        }
    }

    #[test]
    fn a_gap_names_partition_and_offsets() {
        let mut gap = Gap {
            topic: "orders".to_owned(),
            partition: 3,
            expected: 5,
            low: 9,
            high: 20,
        };
        assert!(gap.to_string().contains("records 5 to 8 of `orders`/3"));
        gap.expected = 30;
        assert!(gap.to_string().contains("record 30 was to be read next"));
        assert!(gap.to_string().contains("from 9 to 20"));
    }

    #[test]
    fn the_operators_page_quotes_what_is_said() {
        let page = include_str!("../../../docs/operate/kafka.md");
        let mut gap = Gap {
            topic: "orders.confirmed".to_owned(),
            partition: 0,
            expected: 5,
            low: 10,
            high: 20,
        };
        for expected in [5, 30] {
            gap.expected = expected;
            let text = gap.to_string();
            let beginning = text.split(':').next().unwrap_or_default();
            assert!(page.contains(beginning), "{beginning}");
        }
    }
}
