//! What a careful person writes by hand for a relay that is alone: claim, send, await, mark.
//!
//! It is the ceiling, so it does less than a relay must: no lease, no second relay, no failed row, no order
//! across a failure of the producer. And its halves alone: the database's, and the broker's.

use std::collections::VecDeque;

use anyhow::{Context as _, Result, anyhow};
use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{ConnectOptions as _, PgConnection, Row as _};

use crate::contender::{CLAIM, Contend, Counters, orders, watch};
use crate::meter::Measured;

/// Batches that the producer alone has on their way.
const BATCHES_ON_THEIR_WAY: usize = 4;

/// Sends all rows of the outbox.
pub(crate) async fn relay(contend: &Contend) -> Result<Measured> {
    drop(orders());
    let mut conn = connect(contend).await?;
    let producer: FutureProducer = config(contend).create().context("making a producer")?;
    let counters = Counters::default();
    let sending = async {
        loop {
            let sent = round(&mut conn, &producer).await?;
            if sent == 0 {
                // All is sent; the watcher ends us.
                return std::future::pending::<Result<()>>().await;
            }
            counters.finish(sent);
        }
    };
    tokio::select! {
        measured = watch(contend, || counters.done(), || counters.done()) => measured,
        failed = sending => Err(failed.err().unwrap_or_else(|| anyhow!("the relay ended"))),
    }
}

/// Claims and marks all rows of the outbox, and sends none: what the database can do.
pub(crate) async fn claim_and_mark(contend: &Contend) -> Result<Measured> {
    drop(orders());
    let mut conn = connect(contend).await?;
    let counters = Counters::default();
    let working = async {
        loop {
            let rows = claim(&mut conn).await?;
            let ids = rows
                .iter()
                .map(|row| row.try_get(0))
                .collect::<Result<Vec<i64>, _>>()?;
            if ids.is_empty() {
                return std::future::pending::<Result<()>>().await;
            }
            mark(&mut conn, &ids).await?;
            counters.finish(ids.len());
        }
    };
    tokio::select! {
        measured = watch(contend, || counters.done(), || counters.done()) => measured,
        failed = working => Err(failed.err().unwrap_or_else(|| anyhow!("the relay ended"))),
    }
}

/// Reads all rows of the outbox, then sends them: what the producer and the broker can do.
pub(crate) async fn send(contend: &Contend) -> Result<Measured> {
    drop(orders());
    let mut conn = connect(contend).await?;
    let rows = sqlx::query("SELECT id, topic, key, payload, headers::text FROM outbox ORDER BY id")
        .fetch_all(&mut conn)
        .await?;
    let producer: FutureProducer = config(contend).create().context("making a producer")?;
    let counters = Counters::default();
    let working = async {
        let mut on_their_way = VecDeque::new();
        for batch in rows.chunks(CLAIM) {
            on_their_way.push_back(enqueue(&producer, batch)?);
            if on_their_way.len() > BATCHES_ON_THEIR_WAY
                && let Some(first) = on_their_way.pop_front()
            {
                counters.finish(acknowledged(first).await?);
            }
        }
        for batch in on_their_way {
            counters.finish(acknowledged(batch).await?);
        }
        std::future::pending::<Result<()>>().await
    };
    tokio::select! {
        measured = watch(contend, || counters.done(), || counters.done()) => measured,
        failed = working => Err(failed.err().unwrap_or_else(|| anyhow!("the producer ended"))),
    }
}

async fn connect(contend: &Contend) -> Result<PgConnection> {
    let options: PgConnectOptions = contend.database_url()?.parse()?;
    Ok(options.disable_statement_logging().connect().await?)
}

/// The settings of Factum's own producer.
fn config(contend: &Contend) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (key, value) in [
        ("bootstrap.servers", contend.brokers.as_str()),
        ("client.id", "bench"),
        ("socket.keepalive.enable", "true"),
        ("enable.idempotence", "true"),
        ("acks", "all"),
        ("max.in.flight.requests.per.connection", "5"),
        ("linger.ms", "0"),
        ("compression.codec", "lz4"),
        ("partitioner", "murmur2_random"),
        ("queue.buffering.max.messages", "20000"),
        ("queue.buffering.max.kbytes", "65536"),
    ] {
        config.set(key, value);
    }
    config
}

async fn round(conn: &mut PgConnection, producer: &FutureProducer) -> Result<usize> {
    let rows = claim(conn).await?;
    let ids = rows
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<Vec<i64>, _>>()?;
    acknowledged(enqueue(producer, &rows)?).await?;
    if !ids.is_empty() {
        mark(conn, &ids).await?;
    }
    Ok(ids.len())
}

async fn claim(conn: &mut PgConnection) -> Result<Vec<PgRow>> {
    let rows = sqlx::query(
        "SELECT id, topic, key, payload, headers::text FROM outbox \
         WHERE published_at IS NULL AND set_aside_at IS NULL \
         ORDER BY id LIMIT $1",
    )
    .bind(CLAIM as i64)
    .fetch_all(conn)
    .await?;
    Ok(rows)
}

async fn mark(conn: &mut PgConnection, ids: &[i64]) -> Result<()> {
    sqlx::query("UPDATE outbox SET published_at = clock_timestamp() WHERE id = ANY($1)")
        .bind(ids)
        .execute(conn)
        .await?;
    Ok(())
}

fn enqueue(producer: &FutureProducer, rows: &[PgRow]) -> Result<Vec<DeliveryFuture>> {
    let mut deliveries = Vec::with_capacity(rows.len());
    for row in rows {
        let headers: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(row.try_get(4)?).context("a row's headers are no object")?;
        let mut sent = OwnedHeaders::new_with_capacity(headers.len());
        for (name, value) in &headers {
            sent = sent.insert(Header {
                key: name,
                value: value.as_str(),
            });
        }
        let record = FutureRecord::to(row.try_get(1)?)
            .key(row.try_get::<&str, _>(2)?)
            .payload(row.try_get::<&[u8], _>(3)?)
            .headers(sent);
        let delivery = producer
            .send_result(record)
            .map_err(|(error, _)| error)
            .context("sending a row")?;
        deliveries.push(delivery);
    }
    Ok(deliveries)
}

async fn acknowledged(deliveries: Vec<DeliveryFuture>) -> Result<usize> {
    let count = deliveries.len();
    for delivery in deliveries {
        delivery
            .await
            .context("the producer has gone")?
            .map_err(|(error, _)| error)
            .context("a row was not acknowledged")?;
    }
    Ok(count)
}
