//! What came out of a run, as plain data.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use uuid::Uuid;

/// Everything that the verdict rests on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The rows of each effect table, in the order of the history's `effects`.
    pub effects: Vec<Vec<Effect>>,
    /// The consumer's dead letters.
    pub dead_letters: Vec<DeadLetter>,
    /// What of the consumer is parked.
    pub parked: Vec<Parked>,
    /// The keys of the source topic that are parked for the consumer; what is no text is lost in them.
    pub parked_keys: Vec<String>,
    /// The consumer's calls; empty if the history says nothing of any.
    pub calls: Vec<Call>,
    /// The rows that were written together with the events; empty if the history names no table of them.
    pub business: Vec<BusinessRow>,
    /// The outbox rows for the source topic that are not marked as sent; likewise.
    pub unsent: Vec<Unsent>,
    /// The topic that the consumer reads.
    pub source: Topic,
    /// The topic of the events that the handler publishes; empty if the history names none.
    pub derived: Topic,
}

/// A row of an effect table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// Its place in the order of writing.
    pub id: i64,
    /// The event that caused it.
    pub event_id: Uuid,
    /// That event's account.
    pub account: String,
    /// That event's place within the account.
    pub seq: i64,
}

/// A row that a publisher wrote in the transaction in which it published an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusinessRow {
    /// That event.
    pub event_id: Uuid,
    /// That event's account.
    pub account: String,
    /// That event's place within the account.
    pub seq: i64,
}

/// A row of the outbox that no relay has marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsent {
    /// Its place in the order of sending.
    pub id: i64,
    /// Its event.
    pub event_id: Uuid,
}

/// A record that the consumer gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The record's topic.
    pub topic: String,
    /// The record's place in it.
    pub position: Position,
    /// Why; a stable name.
    pub reason: String,
    /// Whether a replay has handled it since.
    pub is_replayed: bool,
}

/// An event that waits in the database, because an earlier one of its key failed, or it did itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// Its place in the order of waiting.
    pub id: i64,
    /// The event.
    pub event_id: Uuid,
    /// Its record's topic.
    pub topic: String,
    /// Its record's place in it.
    pub position: Position,
}

/// A call to another system, decided together with an event's effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its place in the order of writing.
    pub id: i64,
    /// The event that caused it.
    pub event_id: Uuid,
    /// Which of the event's calls it is; empty for the only one.
    pub step: String,
    /// The idempotency key that the other system sees.
    pub key: String,
    /// How far it is.
    pub state: CallState,
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallState {
    /// It is still to be sent, or its answer to be handled.
    Open,
    /// The other system has done it.
    Done,
    /// A person must look, or has looked: nobody can say from here whether it was done.
    InDoubt,
}

/// A place in a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The partition, from 0.
    pub partition: i32,
    /// The offset in it.
    pub offset: i64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}

/// A topic, from where the run begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topic {
    /// Every partition of it.
    pub partitions: BTreeMap<i32, Partition>,
    /// Every record from the run's begin to the partition's end.
    pub records: Vec<Record>,
}

/// A partition, and how far the consumer is in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Partition {
    /// The offset after the last record.
    pub end: i64,
    /// The group's committed offset: the next record that it would get.
    pub committed: Option<i64>,
}

/// A record, as far as the verdict needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where it stands.
    pub position: Position,
    /// Its key, if there is one and it is text.
    pub key: Option<String>,
    /// The header `input-id`.
    pub label: Label,
    /// What its value says; `None` if it isn't JSON with an `eventId`.
    pub body: Option<Body>,
}

/// The header `input-id` of a record, by which poison is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// There is none.
    Absent,
    /// It is there, and no UUID.
    Illegible,
    /// It names an input.
    Names(Uuid),
}

/// What an event's JSON says. A field that is missing or of another type is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// `eventId`
    pub event_id: Uuid,
    /// `account`
    pub account: Option<String>,
    /// `seq`
    pub seq: Option<i64>,
    /// `cause`: the id of the event that caused a derived one.
    pub cause: Option<Uuid>,
}

impl Label {
    /// From the header's value, if the record has the header.
    #[must_use]
    pub fn parse(header: Option<&[u8]>) -> Label {
        match header {
            None => Label::Absent,
            Some(value) => Uuid::try_parse_ascii(value).map_or(Label::Illegible, Label::Names),
        }
    }
}

impl Body {
    /// From a record's value; `None` if it isn't JSON with an `eventId`. Tolerant: what is wrong with a
    /// record is a finding, never a reason to stop.
    #[must_use]
    pub fn parse(value: Option<&[u8]>) -> Option<Body> {
        let body: Value = serde_json::from_slice(value?).ok()?;
        let id = |name: &str| Uuid::parse_str(body.get(name)?.as_str()?).ok();
        Some(Body {
            event_id: id("eventId")?,
            account: body
                .get("account")
                .and_then(Value::as_str)
                .map(str::to_owned),
            seq: body.get("seq").and_then(Value::as_i64),
            cause: id("cause"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0197a3c0-0000-7000-8000-000000000001";

    #[test]
    fn a_body_is_read_as_far_as_it_goes() {
        let whole =
            format!(r#"{{"eventId":"{ID}","account":"a","seq":3,"cause":"{ID}","more":[1]}}"#);
        let id = Uuid::parse_str(ID).expect("an id");
        let expected = Body {
            event_id: id,
            account: Some("a".to_owned()),
            seq: Some(3),
            cause: Some(id),
        };
        assert_eq!(Body::parse(Some(whole.as_bytes())), Some(expected));
        let odd = format!(r#"{{"eventId":"{ID}","account":7,"seq":"3","cause":"x"}}"#);
        let expected = Body {
            event_id: id,
            account: None,
            seq: None,
            cause: None,
        };
        assert_eq!(Body::parse(Some(odd.as_bytes())), Some(expected));
    }

    #[test]
    fn what_is_no_event_gives_no_body() {
        for value in [
            &b"no json"[..],
            b"",
            b"\xff\xfe",
            b"[1]",
            b"7",
            b"{}",
            b"{\"eventId\":7}",
            b"{\"eventId\":\"x\"}",
            b"{\"eventId\":\"0197a3c0-0000-7000-8000-000000000001\"",
        ] {
            assert_eq!(Body::parse(Some(value)), None);
        }
        assert_eq!(Body::parse(None), None);
    }

    #[test]
    fn a_label_is_absent_illegible_or_an_id() {
        assert_eq!(Label::parse(None), Label::Absent);
        assert_eq!(Label::parse(Some(b"poison-7")), Label::Illegible);
        assert_eq!(Label::parse(Some(b"\xff")), Label::Illegible);
        let id = Uuid::parse_str(ID).expect("an id");
        assert_eq!(Label::parse(Some(ID.as_bytes())), Label::Names(id));
    }
}
