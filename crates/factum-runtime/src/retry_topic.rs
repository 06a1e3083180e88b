//! Retry topics, for a consumer that chose them: an event that failed goes to `<topic>.retry-<delay>`, and is taken
//! from there once its delay is over (RTRY-1, `docs/retry-topics.md`).
//!
//! The record keeps its key, its value and its own headers. What it has behind it stands in headers that each hop
//! replaces and none appends to (public case 41), so that it is as small after the last hop as after the first.
//!
//! Nothing is produced here: the record is an outbox row, written in a transaction of its own before the lane moves
//! on. A crash in between handles the event once more, and dedup stops what had taken effect.

use std::time::Duration;

use factum_event::{Retry, RetryStrategy};
use factum_kafka::{HEADER_BYTES_MAX, HEADERS_MAX, Record};
use factum_postgres::{DatabaseError, RawRecord, RecordPurpose, Session};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::problem::Problem;
use crate::worker::Entry;

/// How often the event was tried.
pub(crate) const ATTEMPT: &str = "x-attempt";
/// When it is to be tried again: RFC 3339, UTC.
pub(crate) const NOT_BEFORE: &str = "x-not-before";
/// When it failed first: RFC 3339, UTC.
pub(crate) const FIRST_FAILURE: &str = "x-first-failure";
/// Where the event was published.
pub(crate) const ORIGINAL_TOPIC: &str = "x-original-topic";
/// Where the event was published.
pub(crate) const ORIGINAL_PARTITION: &str = "x-original-partition";
/// Where the event was published.
pub(crate) const ORIGINAL_OFFSET: &str = "x-original-offset";
/// Whose retry it is.
pub(crate) const CONSUMER: &str = "x-consumer";
/// How it failed last, without values.
pub(crate) const ERROR: &str = "x-error";

/// What a record in a retry topic has beside the event's own headers.
const HEADERS: [&str; 8] = [
    ATTEMPT,
    NOT_BEFORE,
    FIRST_FAILURE,
    ORIGINAL_TOPIC,
    ORIGINAL_PARTITION,
    ORIGINAL_OFFSET,
    CONSUMER,
    ERROR,
];

/// The most bytes of an error in a header.
const ERROR_BYTES: usize = 1024;
/// librdkafka's own limit on a record, where `KAFKA_PRODUCER_MESSAGE_MAX_BYTES` says nothing else.
const MESSAGE_MAX_BYTES: usize = 1_000_000;
/// What the framing of a record and its batch may take of that.
const FRAMING_BYTES: usize = 1024;
/// The shortest delay that a topic's name can tell.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// Headers as the outbox takes them.
pub(crate) type HeaderList = Vec<(String, Option<Vec<u8>>)>;

/// A topic in which failed events wait for one delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RetryTopic {
    /// Its name.
    pub(crate) name: String,
    /// The topic whose events wait here.
    pub(crate) of: &'static str,
    /// Its place among the delays, from 0.
    place: usize,
    delay: Duration,
}

impl RetryTopic {
    /// When a record is due. Unreadable means now; and nobody waits longer than the topic's delay, whatever a header
    /// or another machine's clock says.
    pub(crate) fn due(&self, record: &Record, received: OffsetDateTime) -> OffsetDateTime {
        let Some(not_before) = time_of(record, NOT_BEFORE) else {
            return received;
        };
        let latest = |from: OffsetDateTime| from.checked_add(self.delay.try_into().ok()?);
        let written = record
            .timestamp_ms
            .and_then(|ms| {
                OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok()
            })
            .and_then(latest);
        [written, latest(received)]
            .into_iter()
            .flatten()
            .fold(not_before, OffsetDateTime::min)
    }
}

/// Whose a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressee {
    /// It lies in no retry topic, or says nothing.
    Anyone,
    /// This consumer sent it to its retry topic.
    ThisConsumer,
    /// Another consumer of the same topic did.
    AnotherConsumer,
}

/// What a record from a retry topic has behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Journey {
    /// How often it was tried, at least once.
    pub(crate) attempts: u32,
    /// When it failed first, if it says so.
    pub(crate) first_failure: Option<OffsetDateTime>,
    /// Where it was published, if it says so.
    pub(crate) origin: Option<Origin>,
}

/// Where an event was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
}

/// The retry topics of one consumer: of each of its topics, one for each delay.
#[derive(Debug, Default)]
pub(crate) struct RetryTopics {
    topics: Vec<RetryTopic>,
    message_bytes: usize,
}

impl RetryTopics {
    /// None, unless the policy is one of topics.
    pub(crate) fn new(of: &[&'static str], retry: &Retry) -> RetryTopics {
        let delays = match retry.strategy() {
            RetryStrategy::Topics => retry.topic_delays(),
            _ => &[],
        };
        let of_topic = |of: &'static str| {
            delays
                .iter()
                .enumerate()
                .map(move |(place, delay)| RetryTopic {
                    name: format!("{of}.retry-{}", in_words(*delay)),
                    of,
                    place,
                    delay: *delay,
                })
        };
        RetryTopics {
            topics: of.iter().flat_map(|of| of_topic(of)).collect(),
            message_bytes: MESSAGE_MAX_BYTES,
        }
    }

    /// With what the producer's settings say about the size of a record.
    pub(crate) fn with_message_max_bytes(mut self, setting: Option<&String>) -> RetryTopics {
        if let Some(bytes) = setting.and_then(|text| text.parse().ok()) {
            self.message_bytes = bytes;
        }
        self
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.topics.iter().map(|topic| topic.name.as_str())
    }

    /// The retry topic of that name.
    pub(crate) fn find(&self, name: &str) -> Option<&RetryTopic> {
        self.topics.iter().find(|topic| topic.name == name)
    }

    pub(crate) fn addressee(&self, record: &Record, consumer: &str) -> Addressee {
        if self.find(&record.topic).is_none() {
            return Addressee::Anyone;
        }
        match record.header(CONSUMER) {
            None => Addressee::Anyone,
            Some(name) if name == consumer.as_bytes() => Addressee::ThisConsumer,
            Some(_) => Addressee::AnotherConsumer,
        }
    }

    /// Nothing for a record from another topic than these.
    pub(crate) fn journey(&self, record: &Record) -> Option<Journey> {
        let topic = self.find(&record.topic)?;
        // A record in the n-th topic was tried n times, however another language counts: so each hop leads on.
        let least = u32::try_from(topic.place).unwrap_or(u32::MAX) + 1;
        let attempts = number_of::<u32>(record, ATTEMPT).unwrap_or(0).max(least);
        let origin = || {
            // A place in a topic that has no retries here would be another record's dead letter. (A record of another
            // language may have begun its way in a retry topic.)
            let published_to = text_of(record, ORIGINAL_TOPIC)?;
            if self.published_to(published_to) != topic.of {
                return None;
            }
            let partition = number_of(record, ORIGINAL_PARTITION)?;
            let offset = number_of(record, ORIGINAL_OFFSET)?;
            (partition >= 0 && offset >= 0).then(|| Origin {
                topic: published_to.to_owned(),
                partition,
                offset,
            })
        };
        Some(Journey {
            attempts,
            first_failure: time_of(record, FIRST_FAILURE),
            origin: origin(),
        })
    }

    /// The event's own headers: without those of a retry, if the record comes from a retry topic.
    pub(crate) fn own_headers(&self, record: &Record) -> HeaderList {
        let from_retry = self.find(&record.topic).is_some();
        without(record, if from_retry { &HEADERS } else { &[] })
    }

    /// The topic whose events a topic holds: a retry topic's own one, or the topic itself.
    pub(crate) fn published_to<'a>(&self, topic: &'a str) -> &'a str {
        self.find(topic).map_or(topic, |retry| retry.of)
    }

    /// A record that has failed, on its way to the retry topic of that place. Nothing if it doesn't fit there, with
    /// the headers that are added: then it can't be sent.
    pub(crate) fn hop<'a>(&'a self, failed: &Failed<'a>, place: usize) -> Option<Hop<'a>> {
        let record = failed.record;
        let of = self.published_to(&record.topic);
        let topic = self
            .topics
            .iter()
            .find(|topic| topic.of == of && topic.place == place)?;
        let not_before = failed.at.checked_add(topic.delay.try_into().ok()?)?;
        let mut headers = without(record, &HEADERS);
        headers.extend(
            [
                (ATTEMPT, failed.attempts.to_string()),
                (NOT_BEFORE, in_rfc_3339(not_before)),
                (FIRST_FAILURE, in_rfc_3339(failed.first_failure)),
                (ORIGINAL_TOPIC, failed.origin.0.to_owned()),
                (ORIGINAL_PARTITION, failed.origin.1.to_string()),
                (ORIGINAL_OFFSET, failed.origin.2.to_string()),
                (CONSUMER, failed.consumer.to_owned()),
                (ERROR, cut(failed.error, ERROR_BYTES)),
            ]
            .map(|(name, value)| (name.to_owned(), Some(value.into_bytes()))),
        );
        let header_bytes = bytes_of(&headers);
        let bytes = header_bytes
            + record.key.as_ref().map_or(0, Vec::len)
            + record.value.as_ref().map_or(0, Vec::len)
            + FRAMING_BYTES;
        let fits = headers.len() <= HEADERS_MAX
            && header_bytes <= HEADER_BYTES_MAX
            && bytes <= self.message_bytes;
        fits.then_some(Hop {
            record,
            topic: &topic.name,
            headers,
        })
    }
}

/// An event that failed, and what is known of it.
pub(crate) struct Failed<'a> {
    pub(crate) record: &'a Record,
    pub(crate) consumer: &'a str,
    /// How often it was tried, this time included.
    pub(crate) attempts: u32,
    /// Topic, partition and offset.
    pub(crate) origin: (&'a str, i32, i64),
    pub(crate) first_failure: OffsetDateTime,
    /// When it failed last.
    pub(crate) at: OffsetDateTime,
    pub(crate) error: &'a str,
}

/// A record on its way to a retry topic.
pub(crate) struct Hop<'a> {
    record: &'a Record,
    pub(crate) topic: &'a str,
    headers: HeaderList,
}

impl Entry for Hop<'_> {
    async fn write(&self, session: &mut Session) -> Result<(), DatabaseError> {
        let event_type = text_of(self.record, "event-type").unwrap_or_default();
        session
            .send_record(&RawRecord {
                purpose: RecordPurpose::Retry,
                topic: self.topic,
                key: self.record.key.as_deref(),
                value: self.record.value.as_deref(),
                headers: &self.headers,
                event_type,
            })
            .await
    }
}

/// What is wrong with a policy's retry topics (RTRY-1).
pub(crate) fn problems(consumer: &str, retry: &Retry) -> Vec<Problem> {
    if retry.strategy() != RetryStrategy::Topics {
        return Vec::new();
    }
    let delays = retry.topic_delays();
    let (what, mend) = if delays.is_empty() {
        (
            "its retries go to topics, and it names no delay".to_owned(),
            "write Retry::topics([…]) with at least one delay, or take another strategy",
        )
    } else if retry.topic_count() > Retry::MAX_TOPICS {
        (
            format!(
                "it names {} retry topics; at most {} are read",
                retry.topic_count(),
                Retry::MAX_TOPICS
            ),
            "take fewer and longer delays",
        )
    } else if !delays.is_sorted_by(|a, b| a < b) {
        (
            "the delays of its retry topics do not ascend".to_owned(),
            "write them from the shortest to the longest, each once",
        )
    } else if delays
        .iter()
        .any(|delay| *delay < DELAY_MIN || delay.subsec_nanos() % 1_000_000 != 0)
    {
        (
            "a delay of its retry topics is not a whole number of milliseconds".to_owned(),
            "take delays of at least 1 ms in whole milliseconds: they name the topics",
        )
    } else {
        return Vec::new();
    };
    vec![Problem::new(
        "RTRY-1",
        format!("consumer `{consumer}`"),
        what,
        mend,
    )]
}

/// A delay in the largest unit that it is a whole number of: `30s`, `10m`, `2h`, `1d`, `250ms`.
fn in_words(delay: Duration) -> String {
    const UNITS: [(u128, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
    ];
    let millis = delay.as_millis();
    UNITS
        .into_iter()
        .find(|(unit, _)| millis >= *unit && millis.is_multiple_of(*unit))
        .map_or_else(
            || format!("{millis}ms"),
            |(unit, letter)| format!("{}{letter}", millis / unit),
        )
}

/// All headers but those of these names.
pub(crate) fn without(record: &Record, names: &[&str]) -> HeaderList {
    record
        .headers
        .iter()
        .filter(|(name, _)| !names.contains(name))
        .map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
        .collect()
}

pub(crate) fn bytes_of(headers: &HeaderList) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len))
        .sum()
}

/// To the millisecond, in UTC.
pub(crate) fn in_rfc_3339(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let whole = at
        .replace_nanosecond(at.nanosecond() / 1_000_000 * 1_000_000)
        .unwrap_or(at);
    // Years beyond 9999 have no such text.
    whole.format(&Rfc3339).unwrap_or_default()
}

/// The first so many bytes of a text, up to a whole character.
pub(crate) fn cut(text: &str, max_bytes: usize) -> String {
    text[..text.floor_char_boundary(max_bytes)].to_owned()
}

fn text_of<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    std::str::from_utf8(record.header(name)?).ok()
}

fn number_of<T: std::str::FromStr>(record: &Record, name: &str) -> Option<T> {
    text_of(record, name)?.trim().parse().ok()
}

fn time_of(record: &Record, name: &str) -> Option<OffsetDateTime> {
    let at = OffsetDateTime::parse(text_of(record, name)?.trim(), &Rfc3339).ok()?;
    Some(at.to_offset(time::UtcOffset::UTC))
}

#[cfg(test)]
mod tests;
