//! What goes in: events through the outbox, repeats and hopeless records straight into the topic. And the
//! list of it, for the checker.

use std::collections::BTreeMap;

use anyhow::Result;
use factum::sqlx::{Connection as _, PgConnection};
use factum_kafka::OutgoingRecord;
use factum_testing::TestBroker;
use serde::Serialize;
use uuid::Uuid;

use crate::ledger::{POISON, Stage};

const ACCOUNTS: u64 = 4;
const ENTRIES_OF_ACCOUNT: u64 = 6;
const POISONS: usize = 2;
const REFUSALS: usize = 1;
const REPEATS: usize = 6;
/// The header by which a record is known that must be set aside.
const INPUT_ID: &str = "input-id";

/// The checker's list of what went in, in its own words.
#[derive(Debug, Serialize)]
pub struct History {
    consumer: String,
    source: Place,
    derived: Place,
    effects: [&'static str; 2],
    input: Vec<Input>,
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
            input: Vec::new(),
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

    /// How many events must have an effect, and how many records must be set aside.
    pub fn expected(&self) -> (usize, usize) {
        let poison = self.input.iter().filter(|i| i.seq.is_none()).count();
        (self.input.len() - poison, poison)
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
        let first = self.expected().0 as u64 / ACCOUNTS + 1;
        let mut entries = Vec::new();
        for seq in first..first + ENTRIES_OF_ACCOUNT {
            for account in 1..=ACCOUNTS {
                entries.push((format!("account-{account}"), seq));
            }
        }
        let mut tx = conn.begin().await?;
        let ids = stage.publish(&mut tx, &entries).await?;
        tx.commit().await?;
        let published = ids.into_iter().zip(entries).map(|(id, (key, seq))| Input {
            id: id.to_string(),
            key,
            seq: Some(seq),
            fate: "effect",
        });
        self.input.extend(published);

        let mut repeats = broker.records(self.source.topic).await;
        repeats.retain(|record| {
            record.offset >= self.begin(record.partition) && record.header(INPUT_ID).is_none()
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
