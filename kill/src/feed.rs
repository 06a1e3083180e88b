//! What goes in: events through the outbox, repeats and hopeless records straight into the topic. And the
//! list of it, for the checker.

use std::collections::BTreeMap;

use anyhow::Result;
use factum::sqlx::{Connection as _, PgConnection};
use factum_kafka::OutgoingRecord;
use factum_testing::TestBroker;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::ledger::{POISON, Stage, UNMENDED};

const ACCOUNTS: u64 = 4;
const ENTRIES_OF_ACCOUNT: u64 = 6;
const POISONS: usize = 2;
const REFUSALS: usize = 1;
const REPEATS: usize = 6;
/// Events that are dead letters until the handler is mended.
const FAULTY: usize = 6;
/// The header by which a record is known that must be set aside.
const INPUT_ID: &str = "input-id";

/// The checker's list of what went in, in its own words.
#[derive(Debug, Serialize)]
pub struct History {
    consumer: String,
    source: Place,
    derived: Place,
    effects: [&'static str; 2],
    /// The calls that are made, and the other system's book.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<Value>,
    input: Vec<Input>,
    /// The number of the entries to come.
    #[serde(skip)]
    next_seq: u64,
}

/// A topic, and where this run begins in it.
#[derive(Debug, Serialize)]
struct Place {
    topic: &'static str,
    begin: BTreeMap<i32, i64>,
}

#[derive(Debug, Serialize)]
struct Input {
    id: String,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    fate: &'static str,
}

impl History {
    /// Nothing has gone in yet.
    pub fn new(consumer: String, stage: Stage, begin: [BTreeMap<i32, i64>; 2]) -> History {
        let [source, derived] = stage.topics();
        let [source_begin, derived_begin] = begin;
        History {
            consumer,
            source: Place {
                topic: source,
                begin: source_begin,
            },
            derived: Place {
                topic: derived,
                begin: derived_begin,
            },
            effects: ["debit", "credit"],
            calls: None,
            input: Vec::new(),
            next_seq: 1,
        }
    }

    /// The consumer, whose name is also its group's.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Where this run begins in a partition of the source topic.
    pub fn begin(&self, partition: i32) -> i64 {
        self.source.begin.get(&partition).copied().unwrap_or(0)
    }

    /// How many events must have an effect, and how many records must be set aside. What is to be replayed counts
    /// twice.
    pub fn expected(&self) -> (usize, usize) {
        let poison = self.input.iter().filter(|i| i.seq.is_none()).count();
        (self.input.len() - poison, poison + self.faulty())
    }

    /// How many events are to be replayed.
    pub fn faulty(&self) -> usize {
        let replayed = self.input.iter().filter(|i| i.fate == "replayed");
        replayed.count()
    }

    /// What the other system says it has carried out, by idempotency key: one call for each event.
    pub fn calls_were(&mut self, book: &BTreeMap<String, u32>) {
        self.calls = Some(json!({ "steps": [""], "book": book }));
    }

    /// Events that the handler refuses until it is mended, each of an account of its own: a replay keeps no order.
    ///
    /// # Errors
    ///
    /// The database refuses.
    pub async fn feed_faulty(&mut self, stage: Stage, conn: &mut PgConnection) -> Result<()> {
        let entries: Vec<(String, u64)> = (1..=FAULTY)
            .map(|number| (format!("{UNMENDED}{number}"), 1))
            .collect();
        self.publish(stage, conn, entries, "replayed").await
    }

    async fn publish(
        &mut self,
        stage: Stage,
        conn: &mut PgConnection,
        entries: Vec<(String, u64)>,
        fate: &'static str,
    ) -> Result<()> {
        let mut tx = conn.begin().await?;
        let ids = stage.publish(&mut tx, &entries).await?;
        tx.commit().await?;
        let published = ids.into_iter().zip(entries).map(|(id, (key, seq))| Input {
            id: id.to_string(),
            key,
            seq: Some(seq),
            fate,
        });
        self.input.extend(published);
        Ok(())
    }

    /// One portion more: the next entries of every account, repeats of what is in the topic already, some
    /// poison, and an event that the handler refuses.
    ///
    /// A repeat of an event that the relay has not sent yet would stand before its elders, which no relay
    /// would do; so only what is there is repeated.
    ///
    /// # Errors
    ///
    /// The database refuses.
    pub async fn feed(
        &mut self,
        stage: Stage,
        broker: &TestBroker,
        conn: &mut PgConnection,
    ) -> Result<()> {
        let first = self.next_seq;
        self.next_seq += ENTRIES_OF_ACCOUNT;
        let mut entries = Vec::new();
        for seq in first..self.next_seq {
            for account in 1..=ACCOUNTS {
                entries.push((format!("account-{account}"), seq));
            }
        }
        self.publish(stage, conn, entries, "effect").await?;

        let mut repeats = broker.records(self.source.topic).await;
        repeats.retain(|record| {
            let key = record.key.as_deref().unwrap_or_default();
            record.offset >= self.begin(record.partition)
                && record.header(INPUT_ID).is_none()
                // It would be a dead letter that is in no plan.
                && !key.starts_with(UNMENDED.as_bytes())
        });
        fastrand::shuffle(&mut repeats);
        repeats.truncate(REPEATS);
        let mut hopeless: Vec<(String, String, Vec<u8>)> = Vec::new();
        for place in 0..POISONS + REFUSALS {
            let key = format!("account-{}", fastrand::u64(1..=ACCOUNTS));
            let (id, value) = if place < POISONS {
                (Uuid::now_v7(), POISON.to_vec())
            } else {
                stage.refused(&key)?
            };
            hopeless.push((id.to_string(), key, value));
        }
        self.input.extend(hopeless.iter().map(|(id, key, _)| Input {
            id: id.clone(),
            key: key.clone(),
            seq: None,
            fate: "dead-letter",
        }));
        let mut batch: Vec<OutgoingRecord<'_>> = repeats
            .iter()
            .map(|record| OutgoingRecord {
                topic: self.source.topic,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: Vec::new(),
                partition: None,
            })
            .collect();
        batch.extend(hopeless.iter().map(|(id, key, value)| OutgoingRecord {
            topic: self.source.topic,
            key: Some(key.as_bytes()),
            value: Some(value),
            headers: vec![(INPUT_ID, Some(id.as_bytes()))],
            partition: None,
        }));
        broker.send(&batch).await;
        Ok(())
    }
}
