//! Reading the facts: tables by SQL, topics by a reader of its own.

use std::collections::BTreeMap;

use anyhow::Result;
use factum::bigdecimal::BigDecimal;
use factum::sqlx::{self, PgConnection};
use factum::uuid::Uuid;
use factum_kafka::{KafkaSettings, Record, inspect, watermarks};

use super::facts::{
    Content, DeadLetter, Facts, Injected, Invoice, Mail, Order, Partition, Position, Topic,
    Unpublished,
};
use super::injection::{MARK, POISON, TOMBSTONE, UNKNOWN_TYPE};
use super::servers::{BROKER_LIMIT, TOPICS};

/// How far a run has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Orders that are confirmed.
    pub confirmed: u64,
    /// Events that were published and not acknowledged by the broker yet.
    pub waiting: u64,
    /// Events that the broker has acknowledged.
    pub published: u64,
    /// Invoices.
    pub invoices: u64,
    /// Mails.
    pub mails: u64,
    /// Dead letters.
    pub set_aside: u64,
}

impl Progress {
    /// Counts rows.
    ///
    /// # Errors
    ///
    /// The database doesn't answer.
    pub async fn read(conn: &mut PgConnection) -> Result<Progress> {
        let counts: (i64, i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM orders WHERE confirmed_at IS NOT NULL),
                    (SELECT count(*) FROM outbox WHERE published_at IS NULL AND purpose = 'event'),
                    (SELECT count(*) FROM outbox WHERE published_at IS NOT NULL AND purpose = 'event'),
                    (SELECT count(*) FROM invoice),
                    (SELECT count(*) FROM mail),
                    (SELECT count(*) FROM dead_letter)",
        )
        .fetch_one(conn)
        .await?;
        let count = |n: i64| n.unsigned_abs();
        Ok(Progress {
            confirmed: count(counts.0),
            waiting: count(counts.1),
            published: count(counts.2),
            invoices: count(counts.3),
            mails: count(counts.4),
            set_aside: count(counts.5),
        })
    }
}

/// The process whose relay is at work, as it wrote it down when it took the lease. It may be dead.
///
/// # Errors
///
/// The database doesn't answer.
pub async fn relay_pid(conn: &mut PgConnection) -> Result<Option<u32>> {
    // The owner is <service>-<process id>-<random>.
    let owner: Option<String> =
        sqlx::query_scalar("SELECT owner FROM relay_lease WHERE expires_at > now() LIMIT 1")
            .fetch_optional(conn)
            .await?;
    Ok(owner.and_then(|owner| owner.rsplit('-').nth(1)?.parse().ok()))
}

/// How many records of a topic its consumer has still to read, by its committed offsets.
///
/// # Errors
///
/// The broker doesn't answer.
pub async fn lag(kafka: &KafkaSettings, topic: &str, consumer: &str) -> Result<u64> {
    let ends = watermarks(kafka, &[topic], BROKER_LIMIT).await?;
    let committed = inspect::committed_offsets(kafka, consumer, topic, BROKER_LIMIT).await?;
    let behind = ends.iter().map(|range| {
        let committed = committed
            .get(&range.partition)
            .copied()
            .unwrap_or(range.low);
        (range.high - committed).unsigned_abs()
    });
    Ok(behind.sum())
}

/// Everything that the checker looks at. `injected` is what the demo has put into each topic.
///
/// # Errors
///
/// The database or the broker doesn't answer.
pub async fn facts(
    conn: &mut PgConnection,
    kafka: &KafkaSettings,
    injected: &BTreeMap<&'static str, Injected>,
) -> Result<Facts> {
    let mut facts = tables(conn).await?;
    for (name, consumer) in TOPICS {
        let injected = injected.get(name).copied().unwrap_or_default();
        facts
            .topics
            .push(topic(kafka, name, consumer, injected).await?);
    }
    Ok(facts)
}

async fn tables(conn: &mut PgConnection) -> Result<Facts> {
    let orders: Vec<(i64, String, BigDecimal, String, bool)> = sqlx::query_as(
        "SELECT id, order_ref, total_amount, currency, confirmed_at IS NOT NULL FROM orders ORDER BY id",
    )
    .fetch_all(&mut *conn)
    .await?;
    let invoices: Vec<(i64, Uuid, String, i64, BigDecimal, String)> = sqlx::query_as(
        "SELECT id, event_id, order_ref, order_id, total_amount, currency FROM invoice ORDER BY id",
    )
    .fetch_all(&mut *conn)
    .await?;
    let mails: Vec<(i64, Uuid, String, i64)> =
        sqlx::query_as("SELECT id, event_id, invoice_ref, invoice_id FROM mail ORDER BY id")
            .fetch_all(&mut *conn)
            .await?;
    let letters: Vec<(String, String, i32, i64, String)> =
        sqlx::query_as("SELECT consumer, topic, partition, record_offset, reason FROM dead_letter")
            .fetch_all(&mut *conn)
            .await?;
    let unpublished: Vec<(Uuid, String, bool)> = sqlx::query_as(
        "SELECT event_id, event_type, set_aside_at IS NOT NULL FROM outbox
         WHERE published_at IS NULL AND purpose = 'event' ORDER BY id",
    )
    .fetch_all(&mut *conn)
    .await?;
    let outbox_rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM outbox WHERE purpose = 'event'")
            .fetch_one(&mut *conn)
            .await?;

    Ok(Facts {
        orders: orders
            .into_iter()
            .map(|(id, order_ref, total_amount, currency, confirmed)| Order {
                id,
                order_ref,
                total_amount,
                currency,
                confirmed,
            })
            .collect(),
        invoices: invoices
            .into_iter()
            .map(
                |(id, event_id, order_ref, order_id, total_amount, currency)| Invoice {
                    id,
                    event_id,
                    order_ref,
                    order_id,
                    total_amount,
                    currency,
                },
            )
            .collect(),
        mails: mails
            .into_iter()
            .map(|(id, event_id, invoice_ref, invoice_id)| Mail {
                id,
                event_id,
                invoice_ref,
                invoice_id,
            })
            .collect(),
        dead_letters: letters
            .into_iter()
            .map(|(consumer, topic, partition, offset, reason)| DeadLetter {
                consumer,
                topic,
                position: Position { partition, offset },
                reason,
            })
            .collect(),
        unpublished: unpublished
            .into_iter()
            .map(|(event_id, event_type, set_aside)| Unpublished {
                event_id,
                event_type,
                set_aside,
            })
            .collect(),
        outbox_rows: usize::try_from(outbox_rows)?,
        topics: Vec::new(),
    })
}

async fn topic(
    kafka: &KafkaSettings,
    name: &str,
    consumer: &str,
    injected: Injected,
) -> Result<Topic> {
    let committed = inspect::committed_offsets(kafka, consumer, name, BROKER_LIMIT).await?;
    let partitions = watermarks(kafka, &[name], BROKER_LIMIT)
        .await?
        .into_iter()
        .map(|range| {
            let committed = committed.get(&range.partition).copied();
            (
                range.partition,
                Partition {
                    low: range.low,
                    high: range.high,
                    committed,
                },
            )
        })
        .collect();
    let records = inspect::read_topic(kafka, name, BROKER_LIMIT)
        .await?
        .into_iter()
        .map(|record| super::facts::Record {
            position: Position {
                partition: record.partition,
                offset: record.offset,
            },
            key: String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned(),
            content: content(&record),
        })
        .collect();
    Ok(Topic {
        name: name.to_owned(),
        consumer: consumer.to_owned(),
        partitions,
        records,
        injected,
    })
}

/// What a record holds: by the demo's mark if it has one, else by a plain reading of its JSON.
pub fn content(record: &Record) -> Content {
    if let Some(mark) = record.header(MARK) {
        let mark = String::from_utf8_lossy(mark);
        return match (&*mark, mark.strip_prefix(POISON)) {
            (UNKNOWN_TYPE, _) => Content::UnknownType,
            (TOMBSTONE, _) => Content::Tombstone,
            (_, Some(reason)) => Content::Poison {
                reason: reason.to_owned(),
            },
            _ => Content::Foreign,
        };
    }
    event(record).unwrap_or(Content::Foreign)
}

fn event(record: &Record) -> Option<Content> {
    let value: serde_json::Value = serde_json::from_slice(record.value.as_deref()?).ok()?;
    // The key is the aggregate's id.
    if value["aggregateId"].as_str()?.as_bytes() != record.key.as_deref()? {
        return None;
    }
    let number = match value["eventType"].as_str()? {
        "order.confirmed.v1" => &value["orderId"],
        "invoice.issued.v1" => &value["invoiceId"],
        _ => return None,
    };
    Some(Content::Event {
        event_id: value["eventId"].as_str()?.parse().ok()?,
        number: number.as_i64()?,
    })
}
