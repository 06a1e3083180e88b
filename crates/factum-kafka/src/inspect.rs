//! Looking at what a broker holds, without joining a group and without moving anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError as RdError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use crate::consumer::to_record;
use crate::error::{KafkaError, KafkaErrorKind};
use crate::record::Record;
use crate::settings::KafkaSettings;
use crate::topology::{PartitionRange, blocking, watermarks};

/// The longest single wait for the next record.
const POLL_WAIT: Duration = Duration::from_millis(50);

const READING: &str = "reading a topic";

/// All records that the topic holds at the time of the call, by partition and offset. A topic that
/// does not exist gives nothing.
///
/// For tests and for looking at small topics: everything is read into memory. No offset moves, and
/// no group learns of it (CONS-2).
///
/// # Errors
///
/// No broker answered, or not everything was read, within `timeout`.
pub async fn read_topic(
    settings: &KafkaSettings,
    topic: &str,
    timeout: Duration,
) -> Result<Vec<Record>, KafkaError> {
    let deadline = Instant::now() + timeout;
    let ranges = watermarks(settings, &[topic], timeout).await?;
    blocking(settings, READING, move |settings| {
        read_ranges(settings, &ranges, deadline)
    })
    .await
}

/// The offsets that a group has committed, by partition: the next record that it would get. A
/// partition without one is left out.
///
/// # Errors
///
/// No broker answered within `timeout`, or the brokers refuse to tell.
pub async fn committed_offsets(
    settings: &KafkaSettings,
    group: &str,
    topic: &str,
    timeout: Duration,
) -> Result<BTreeMap<i32, i64>, KafkaError> {
    let deadline = Instant::now() + timeout;
    let ranges = watermarks(settings, &[topic], timeout).await?;
    if ranges.is_empty() {
        return Ok(BTreeMap::new());
    }
    const WHAT: &str = "reading a group's committed offsets";
    let group = group.to_owned();
    blocking(settings, WHAT, move |settings| {
        let failed = |error: &RdError| KafkaError::new(WHAT, settings, error, None);
        let consumer = client(settings, &group).map_err(|error| failed(&error))?;
        let mut asked = TopicPartitionList::with_capacity(ranges.len());
        for range in &ranges {
            asked.add_partition(&range.topic, range.partition);
        }
        let told = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match consumer.committed_offsets(asked.clone(), left) {
                Ok(told) => break told,
                // A cluster that is young, or that has just lost a broker, is still finding the
                // group's coordinator.
                Err(error) if !left.is_zero() && coordinator_moves(&error) => {
                    let _ = consumer.poll(POLL_WAIT);
                }
                Err(error) => return Err(failed(&error)),
            }
        };
        Ok(told
            .elements()
            .iter()
            .filter_map(|element| match element.offset() {
                Offset::Offset(offset) => Some((element.partition(), offset)),
                _ => None,
            })
            .collect())
    })
    .await
}

/// Sets the offsets at which a group begins, by partition. The group must have no members: the brokers
/// refuse it else.
///
/// # Errors
///
/// No broker answered within `timeout`, the group has members, or an offset is negative.
pub async fn commit_offsets(
    settings: &KafkaSettings,
    group: &str,
    topic: &str,
    offsets: &BTreeMap<i32, i64>,
    timeout: Duration,
) -> Result<(), KafkaError> {
    const WHAT: &str = "setting a group's offsets";
    let deadline = Instant::now() + timeout;
    let (group, topic, offsets) = (group.to_owned(), topic.to_owned(), offsets.clone());
    blocking(settings, WHAT, move |settings| {
        let failed = |error: &RdError| KafkaError::new(WHAT, settings, error, None);
        let consumer = client(settings, &group).map_err(|error| failed(&error))?;
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        for (partition, offset) in &offsets {
            list.add_partition_offset(&topic, *partition, Offset::Offset(*offset))
                .map_err(|error| failed(&error))?;
        }
        loop {
            match consumer.commit(&list, CommitMode::Sync) {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() < deadline && coordinator_moves(&error) => {
                    let _ = consumer.poll(POLL_WAIT);
                }
                Err(error) => return Err(failed(&error)),
            }
        }
    })
    .await
}

fn coordinator_moves(error: &RdError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::NotCoordinator
                | RDKafkaErrorCode::CoordinatorNotAvailable
                | RDKafkaErrorCode::CoordinatorLoadInProgress
        )
    )
}

fn read_ranges(
    settings: &KafkaSettings,
    ranges: &[PartitionRange],
    deadline: Instant,
) -> Result<Vec<Record>, KafkaError> {
    let failed = |error: &RdError| KafkaError::new(READING, settings, error, None);
    let consumer = client(settings, "nobody").map_err(|error| failed(&error))?;
    // What each partition still owes: its end as it was when we were asked.
    let mut open: BTreeMap<i32, i64> = BTreeMap::new();
    let mut assignment = TopicPartitionList::new();
    for range in ranges.iter().filter(|range| range.low < range.high) {
        open.insert(range.partition, range.high);
        assignment
            .add_partition_offset(&range.topic, range.partition, Offset::Offset(range.low))
            .map_err(|error| failed(&error))?;
    }
    consumer
        .assign(&assignment)
        .map_err(|error| failed(&error))?;
    let topic: Arc<str> = Arc::from(ranges.first().map_or("", |range| range.topic.as_str()));
    let mut records = Vec::new();
    while !open.is_empty() {
        if Instant::now() > deadline {
            return Err(KafkaError::told(
                KafkaErrorKind::Unreachable,
                READING,
                settings,
                format!(
                    "{} partitions were not read to their end in time",
                    open.len()
                ),
            ));
        }
        let Some(polled) = consumer.poll(POLL_WAIT) else {
            continue;
        };
        let message = match polled {
            Ok(message) => message,
            // Also where the last offsets hold no record, such as a transaction's marker.
            Err(RdError::PartitionEOF(partition)) => {
                open.remove(&partition);
                continue;
            }
            Err(error) => return Err(failed(&error)),
        };
        let Some(end) = open.get(&message.partition()).copied() else {
            continue;
        };
        if message.offset() < end {
            records.push(to_record(&message, &topic));
        }
        if message.offset() + 1 >= end {
            open.remove(&message.partition());
        }
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    Ok(records)
}

/// A consumer that never joins its group: it asks and reads, and stores nothing.
fn client(settings: &KafkaSettings, group: &str) -> Result<BaseConsumer, RdError> {
    let mut config = settings.admin_config();
    config
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("enable.partition.eof", "true");
    config.create()
}
