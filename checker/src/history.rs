//! What went into a run, as the file tells it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde_json::{Map, Value};
use uuid::Uuid;

/// The most letters of a table's name: PostgreSQL cuts longer ones without a word.
const TABLE_NAME_BYTES_MAX: usize = 63;

/// The most letters of a topic's name, as Kafka has it.
const TOPIC_NAME_BYTES_MAX: usize = 249;

/// What went into a run, and where to look for what came out. In the file:
///
/// ```json
/// {
///   "consumer": "ledger",
///   "source":  { "topic": "posted", "begin": { "0": 120, "1": 118 } },
///   "derived": { "topic": "booked", "begin": { "0": 40 } },
///   "effects": ["debit", "credit"],
///   "business": "entry",
///   "calls":   { "steps": [""], "book": { "0197a3c0-0000-7000-8000-000000000001": 1 } },
///   "input": [
///     { "id": "0197a3c0-0000-7000-8000-000000000001", "key": "account-1", "seq": 1, "fate": "effect" },
///     { "id": "0197a3c0-0000-7000-8000-000000000002", "key": "account-1", "fate": "dead-letter" },
///     { "id": "0197a3c0-0000-7000-8000-000000000003", "key": "account-2", "seq": 1, "fate": "replayed" },
///     { "id": "0197a3c0-0000-7000-8000-000000000004", "key": "account-3", "seq": 1, "fate": "parked" },
///     { "id": "0197a3c0-0000-7000-8000-000000000005", "key": "account-3", "seq": 2, "fate": "rolled-back" }
///   ]
/// }
/// ```
///
/// - An event in the source topic is JSON with `eventId` (the input's id), `account` (its key) and `seq`.
///   A poison record there has the header `input-id`, and any value.
/// - A `replayed` event becomes a dead letter, and later has its effects by a replay, in any order. A `parked` one
///   waits to the end, since its key is held. A `rolled-back` one was published in a transaction that never
///   committed: nothing of it may be anywhere. Of an `unknown` one the publisher never learnt whether it committed.
/// - `business` names the table into which the publisher wrote a row (`event_id`, `account`, `seq`) in the same
///   transaction as each event of fate `effect`. It decides what became of an `unknown` one, which needs it; and at
///   the end every outbox row for the source topic must be marked as sent.
/// - `calls` says which calls each event makes, by their steps, and how often the other system has carried out
///   each idempotency key: its book, read before the check.
/// - An effect table has the columns `id` (ascending), `event_id`, `account` and `seq`, and holds this
///   run's rows only.
/// - A derived event is JSON with an `eventId` of its own, `account` (also the record's key), `seq`, and
///   `cause`, the id of the source event.
/// - `input` lists what was meant to be sent *before* it is sent. A record that is sent first and listed
///   later is a phantom to a check in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The consumer's name in `dead_letter`, which is also Kafka's group id.
    pub consumer: String,
    /// The topic that the consumer reads.
    pub source: TopicRun,
    /// The topic of the events that the handler publishes; `None`: none is checked.
    pub derived: Option<TopicRun>,
    /// The tables into which the handler writes one row each for an event. Each is a plain lower-case
    /// identifier.
    pub effects: Vec<String>,
    /// The table of the rows that were written together with the events; `None`: none is checked. A plain
    /// lower-case identifier.
    pub business: Option<String>,
    /// The calls that each event makes; `None`: none is checked.
    pub calls: Option<Calls>,
    /// Everything that was sent, or may have been.
    pub input: Vec<Input>,
}

/// The calls that each event makes, and what the other system says of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    /// The steps: one call each for an event.
    pub steps: Vec<String>,
    /// How often the other system has carried out each idempotency key.
    pub book: BTreeMap<String, i64>,
}

/// A topic, and where in it the run begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRun {
    /// The topic's name.
    pub topic: String,
    /// Where the run begins.
    pub begin: Begin,
}

/// The first offset of a run in each partition; what is before it belongs to another run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Begin(pub BTreeMap<i32, i64>);

impl Begin {
    /// The first offset of the run in this partition: 0 unless the history says otherwise.
    #[must_use]
    pub fn of(&self, partition: i32) -> i64 {
        self.0.get(&partition).copied().unwrap_or(0)
    }
}

/// One thing that went in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The event's id, or that of the header `input-id` of a poison record.
    pub id: Uuid,
    /// The account, within which order holds.
    pub key: String,
    /// Its place within the key; an event always has one.
    pub seq: Option<i64>,
    /// What must become of it.
    pub fate: Fate,
}

/// What must become of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// An event: one row in each effect table, and one derived event.
    Effect,
    /// A poison record: one dead letter for each of its records, and no effect.
    DeadLetter,
    /// An event that becomes a dead letter, and by a replay has what [`Fate::Effect`] has, in any order.
    Replayed,
    /// An event whose key is held: it is parked to the end.
    Parked,
    /// An event whose transaction did not commit: it is nowhere.
    RolledBack,
    /// An event whose transaction committed or did not: [`Fate::Effect`] if its business row is there, else
    /// [`Fate::RolledBack`].
    Unknown,
}

impl Fate {
    /// Whether it has effects, sooner or later.
    #[must_use]
    pub fn has_effects(self) -> bool {
        matches!(self, Fate::Effect | Fate::Replayed)
    }
}

/// Why a file is no history: the place in it and what is expected there, never what stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryError {
    path: String,
    expected: String,
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.expected)
    }
}

impl std::error::Error for HistoryError {}

impl History {
    /// Reads a history, strictly: a field that is misspelt would leave something unchecked, in silence.
    ///
    /// # Errors
    ///
    /// It isn't JSON, or something in it is missing, unknown, of another type, or contradicts the rest.
    pub fn parse(text: &str) -> Result<History, HistoryError> {
        let root: Value = serde_json::from_str(text).map_err(|error| HistoryError {
            path: format!("line {} column {}", error.line(), error.column()),
            expected: "this is no JSON".to_owned(),
        })?;
        let root = Node {
            path: "$".to_owned(),
            value: &root,
        };
        let fields = root.fields(&[
            "consumer", "source", "derived", "effects", "business", "calls", "input",
        ])?;
        let consumer = fields.needed("consumer")?.name(usize::MAX)?;
        let source = fields.needed("source")?.topic_run()?;
        let derived = fields.optional("derived");
        let derived = derived.as_ref().map(Node::topic_run).transpose()?;
        if derived.as_ref().is_some_and(|d| d.topic == source.topic) {
            return Err(root.wrong("the derived topic is the source topic"));
        }
        let business = fields.optional("business");
        let business = business.as_ref().map(Node::table).transpose()?;
        let input = fields.needed("input")?;
        let inputs = input.input()?;
        if business.is_none() && inputs.iter().any(|known| known.fate == Fate::Unknown) {
            return Err(input.wrong("has an `unknown` fate, which only a `business` table decides"));
        }
        Ok(History {
            consumer,
            source,
            derived,
            effects: fields.needed("effects")?.tables()?,
            business,
            calls: fields
                .optional("calls")
                .as_ref()
                .map(Node::calls)
                .transpose()?,
            input: inputs,
        })
    }
}

/// A value, and where it stands in the file.
struct Node<'a> {
    path: String,
    value: &'a Value,
}

/// An object whose fields are all known by name.
struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn needed(&self, name: &str) -> Result<Node<'a>, HistoryError> {
        self.optional(name).ok_or_else(|| HistoryError {
            path: format!("{}.{name}", self.path),
            expected: "is missing".to_owned(),
        })
    }

    /// `null` is the same as nothing.
    fn optional(&self, name: &str) -> Option<Node<'a>> {
        self.map
            .get(name)
            .filter(|value| !value.is_null())
            .map(|value| Node {
                path: format!("{}.{name}", self.path),
                value,
            })
    }
}

impl<'a> Node<'a> {
    fn wrong(&self, expected: &str) -> HistoryError {
        HistoryError {
            path: self.path.clone(),
            expected: expected.to_owned(),
        }
    }

    fn map(&self) -> Result<&'a Map<String, Value>, HistoryError> {
        self.value
            .as_object()
            .ok_or_else(|| self.wrong("must be an object"))
    }

    fn fields(&self, known: &[&str]) -> Result<Fields<'a>, HistoryError> {
        let map = self.map()?;
        if map.keys().any(|name| !known.contains(&name.as_str())) {
            let expected = format!("has an unknown field; the fields are {}", known.join(", "));
            return Err(self.wrong(&expected));
        }
        Ok(Fields {
            path: self.path.clone(),
            map,
        })
    }

    fn items(&self) -> Result<impl Iterator<Item = Node<'a>>, HistoryError> {
        let path = self.path.clone();
        let items = self
            .value
            .as_array()
            .ok_or_else(|| self.wrong("must be an array"))?;
        Ok(items.iter().enumerate().map(move |(place, value)| Node {
            path: format!("{path}[{place}]"),
            value,
        }))
    }

    fn text(&self) -> Result<&'a str, HistoryError> {
        self.value
            .as_str()
            .ok_or_else(|| self.wrong("must be a text"))
    }

    fn integer(&self) -> Result<i64, HistoryError> {
        self.value
            .as_i64()
            .ok_or_else(|| self.wrong("must be an integer of 64 bits"))
    }

    fn name(&self, bytes_max: usize) -> Result<String, HistoryError> {
        let text = self.text()?;
        // Neither PostgreSQL nor librdkafka takes a text with a NUL in it.
        if text.is_empty() || text.len() > bytes_max || text.contains('\0') {
            return Err(self.wrong("must be a name: not empty, not too long, no NUL"));
        }
        Ok(text.to_owned())
    }

    fn topic_run(&self) -> Result<TopicRun, HistoryError> {
        let fields = self.fields(&["topic", "begin"])?;
        let mut begin = Begin::default();
        if let Some(node) = fields.optional("begin") {
            for (partition, value) in node.map()? {
                let partition = partition
                    .parse()
                    .ok()
                    .filter(|number: &i32| *number >= 0 && number.to_string() == *partition)
                    .ok_or_else(|| node.wrong("its names must be partitions, from 0"))?;
                let offset = Node {
                    path: format!("{}.{partition}", node.path),
                    value,
                };
                let first = offset.integer()?;
                if first < 0 {
                    return Err(offset.wrong("must be an offset, from 0"));
                }
                begin.0.insert(partition, first);
            }
        }
        Ok(TopicRun {
            topic: fields.needed("topic")?.name(TOPIC_NAME_BYTES_MAX)?,
            begin,
        })
    }

    fn table(&self) -> Result<String, HistoryError> {
        let table = self.text()?;
        // These names go into SQL as they are.
        let is_identifier = table.len() <= TABLE_NAME_BYTES_MAX
            && table.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && table
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !is_identifier {
            return Err(self.wrong(
                "must be a table's name: lower-case letters, digits and underscores, \
                 not a digit first, at most 63",
            ));
        }
        Ok(table.to_owned())
    }

    fn tables(&self) -> Result<Vec<String>, HistoryError> {
        let mut tables = Vec::new();
        for node in self.items()? {
            let table = node.table()?;
            if tables.contains(&table) {
                return Err(node.wrong("stands there twice"));
            }
            tables.push(table);
        }
        if tables.is_empty() {
            return Err(self.wrong("must name at least one table"));
        }
        Ok(tables)
    }

    fn calls(&self) -> Result<Calls, HistoryError> {
        let fields = self.fields(&["steps", "book"])?;
        let mut calls = Calls::default();
        for node in fields.needed("steps")?.items()? {
            let step = node.text()?.to_owned();
            if calls.steps.contains(&step) {
                return Err(node.wrong("stands there twice"));
            }
            calls.steps.push(step);
        }
        let book = fields.needed("book")?;
        for (key, value) in book.map()? {
            // Its name may be anything, so it is not in the path.
            let times = value.as_i64().filter(|times| *times >= 0);
            let times =
                times.ok_or_else(|| book.wrong("must say how often, from 0, for each key"))?;
            calls.book.insert(key.clone(), times);
        }
        Ok(calls)
    }

    fn input(&self) -> Result<Vec<Input>, HistoryError> {
        let mut ids = HashSet::new();
        let mut places = HashSet::new();
        let mut inputs = Vec::new();
        for node in self.items()? {
            let fields = node.fields(&["id", "key", "seq", "fate"])?;
            let id = fields.needed("id")?;
            let input = Input {
                id: Uuid::parse_str(id.text()?).map_err(|_| id.wrong("must be a UUID"))?,
                key: fields.needed("key")?.text()?.to_owned(),
                seq: fields
                    .optional("seq")
                    .map(|seq| seq.integer())
                    .transpose()?,
                fate: fields.needed("fate")?.fate()?,
            };
            if !ids.insert(input.id) {
                return Err(id.wrong("is the id of an earlier input"));
            }
            if input.fate != Fate::DeadLetter {
                let seq = fields.needed("seq")?.integer()?;
                // Two of one place would make every order of them right.
                if !places.insert((fields.needed("key")?.text()?, seq)) {
                    return Err(node.wrong("has key and seq of an earlier input"));
                }
            }
            inputs.push(input);
        }
        Ok(inputs)
    }

    fn fate(&self) -> Result<Fate, HistoryError> {
        match self.text()? {
            "effect" => Ok(Fate::Effect),
            "dead-letter" => Ok(Fate::DeadLetter),
            "replayed" => Ok(Fate::Replayed),
            "parked" => Ok(Fate::Parked),
            "rolled-back" => Ok(Fate::RolledBack),
            "unknown" => Ok(Fate::Unknown),
            _ => Err(self.wrong(
                "must be `effect`, `dead-letter`, `replayed`, `parked`, `rolled-back` or `unknown`",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "0197a3c0-0000-7000-8000-000000000001";
    const OTHER: &str = "0197a3c0-0000-7000-8000-000000000002";

    fn sound() -> Value {
        json!({
            "consumer": "kill-c17",
            "source": { "topic": "kill-1.posted", "begin": { "0": 120, "11": 118 } },
            "derived": { "topic": "kill-1.booked", "begin": {} },
            "effects": ["debit", "credit_2"],
            "business": "entry",
            "calls": { "steps": ["", "capture"], "book": { "some-key": 1 } },
            "input": [
                { "id": ID, "key": "account-1", "seq": 1, "fate": "effect" },
                { "id": OTHER, "key": "account-1", "fate": "dead-letter" },
            ],
        })
    }

    #[test]
    fn a_sound_history_is_read() {
        let history = History::parse(&sound().to_string()).expect("it is sound");
        assert_eq!(history.consumer, "kill-c17");
        assert_eq!(history.source.topic, "kill-1.posted");
        let begins = [0, 1, 11].map(|partition| history.source.begin.of(partition));
        assert_eq!(begins, [120, 0, 118]);
        let derived = history.derived.expect("there is one");
        assert_eq!(
            (derived.topic.as_str(), derived.begin.of(0)),
            ("kill-1.booked", 0)
        );
        assert_eq!(history.effects, ["debit", "credit_2"]);
        assert_eq!(history.business.as_deref(), Some("entry"));
        let calls = history.calls.expect("there are some");
        assert_eq!(calls.steps, ["", "capture"]);
        assert_eq!(calls.book, BTreeMap::from([("some-key".to_owned(), 1)]));
        let [event, poison] = history.input.try_into().expect("two");
        assert_eq!((event.fate, event.seq), (Fate::Effect, Some(1)));
        assert_eq!((poison.fate, poison.seq), (Fate::DeadLetter, None));
        assert_eq!(event.id.to_string(), ID);
    }

    #[test]
    fn every_fate_has_its_word() {
        for (word, fate) in [
            ("effect", Fate::Effect),
            ("dead-letter", Fate::DeadLetter),
            ("replayed", Fate::Replayed),
            ("parked", Fate::Parked),
            ("rolled-back", Fate::RolledBack),
            ("unknown", Fate::Unknown),
        ] {
            let mut value = sound();
            value["input"][0]["fate"] = json!(word);
            let history = History::parse(&value.to_string()).expect("it is sound");
            assert_eq!(history.input[0].fate, fate);
        }
    }

    #[test]
    fn only_a_business_table_decides_an_unknown_fate() {
        let mut value = sound();
        value["input"][0]["fate"] = json!("unknown");
        assert!(History::parse(&value.to_string()).is_ok());
        value["business"] = Value::Null;
        let refused = History::parse(&value.to_string()).expect_err("there is no table");
        assert_eq!(refused.path, "$.input");
    }

    #[test]
    fn calls_are_not_needed() {
        let mut value = sound();
        value.as_object_mut().expect("an object").remove("calls");
        let history = History::parse(&value.to_string()).expect("it is sound");
        assert_eq!(history.calls, None);
    }

    #[test]
    fn a_derived_topic_is_not_needed() {
        for derived in [Some(Value::Null), None] {
            let mut value = sound();
            let root = value.as_object_mut().expect("an object");
            root.remove("derived");
            if let Some(derived) = derived {
                root.insert("derived".to_owned(), derived);
            }
            let history = History::parse(&value.to_string()).expect("it is sound");
            assert_eq!(history.derived, None);
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place_and_not_quoted() {
        let secret = "s3cret-value";
        for (pointer, wrong, place) in [
            ("/consumer", json!(""), "$.consumer"),
            ("/consumer", json!("a\0b"), "$.consumer"),
            ("/consumer", Value::Null, "$.consumer"),
            ("/source", json!([secret]), "$.source"),
            ("/source", json!({ "begin": {} }), "$.source.topic"),
            ("/source/topic", json!("t".repeat(250)), "$.source.topic"),
            ("/source/begin", json!({ "-1": 0 }), "$.source.begin"),
            ("/source/begin", json!({ "01": 0 }), "$.source.begin"),
            ("/source/begin", json!({ secret: 0 }), "$.source.begin"),
            ("/source/begin/0", json!(-1), "$.source.begin.0"),
            ("/source/begin/0", json!(0.5), "$.source.begin.0"),
            ("/derived", json!({ "topic": "d", "from": {} }), "$.derived"),
            ("/derived/topic", json!("kill-1.posted"), "$"),
            ("/effects", json!([]), "$.effects"),
            ("/effects/1", json!("debit"), "$.effects[1]"),
            (
                "/effects/0",
                json!("debit; DROP TABLE debit"),
                "$.effects[0]",
            ),
            ("/effects/0", json!("Debit"), "$.effects[0]"),
            ("/effects/0", json!("1debit"), "$.effects[0]"),
            ("/effects/0", json!("d\"ebit"), "$.effects[0]"),
            ("/effects/0", json!("débit"), "$.effects[0]"),
            ("/effects/0", json!(""), "$.effects[0]"),
            ("/effects/0", json!("d".repeat(64)), "$.effects[0]"),
            ("/business", json!("Entry"), "$.business"),
            ("/business", json!(["entry"]), "$.business"),
            ("/calls", json!({ "steps": [] }), "$.calls.book"),
            ("/calls/steps/1", json!(""), "$.calls.steps[1]"),
            ("/calls/steps/0", json!(7), "$.calls.steps[0]"),
            ("/calls/book", json!({ secret: -1 }), "$.calls.book"),
            ("/calls/book", json!({ secret: secret }), "$.calls.book"),
            ("/input/0/id", json!(secret), "$.input[0].id"),
            ("/input/1/id", json!(ID), "$.input[1].id"),
            ("/input/1/key", json!(7), "$.input[1].key"),
            ("/input/0/seq", Value::Null, "$.input[0].seq"),
            ("/input/0/seq", json!(secret), "$.input[0].seq"),
            ("/input/0/fate", json!(secret), "$.input[0].fate"),
            ("/input/1", json!({ secret: 1 }), "$.input[1]"),
            (
                "/input/1",
                json!({ "id": OTHER, "key": "account-1", "seq": 1, "fate": "effect" }),
                "$.input[1]",
            ),
        ] {
            let mut value = sound();
            *value.pointer_mut(pointer).expect("it is there") = wrong;
            let error = History::parse(&value.to_string()).expect_err(place);
            assert_eq!(error.path, place, "{error}");
            assert!(!error.to_string().contains(secret), "{error}");
        }
        let mut value = sound();
        value["derved"] = value["derived"].take();
        assert!(History::parse(&value.to_string()).is_err());
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_line() {
        let error = History::parse("{\n  \"consumer\": s3cret").expect_err("no JSON");
        assert_eq!(error.to_string(), "line 2 column 15: this is no JSON");
    }
}
