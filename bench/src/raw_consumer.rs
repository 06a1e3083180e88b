//! What a careful person writes by hand: one thread that polls, one task per partition, and for each batch one
//! transaction with the dedup statement and the effects.
//!
//! It is the ceiling, so it does less than a service must: no group, no rebalance, no poison, no outage, no
//! guard against a failed transaction, no drain.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, DefaultConsumerContext};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::contender::{BATCH, Contend, Counters, LANES, Work, orders, watch};
use crate::effect::{self, Effect};
use crate::meter::Measured;
use crate::order::{OrderConfirmed, RawOrder};
use factum::Event as _;

/// How long a poll of the client may wait.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// How often offsets are committed.
const COMMIT_EVERY: Duration = Duration::from_secs(1);

/// Reads all partitions, each in a lane.
pub(crate) async fn consume(contend: &Contend) -> Result<Measured> {
    drop(orders());
    let consumer: Arc<BaseConsumer> = Arc::new(config(contend).create().context("a consumer")?);
    let topic = OrderConfirmed::TOPIC;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..LANES {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    let counters = Counters::default();
    let (failed, mut failures) = tokio::sync::mpsc::unbounded_channel();
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        // A handler's statements belong in no log, as in a service.
        let options: PgConnectOptions = contend.database_url()?.parse()?;
        let conn = options.disable_statement_logging().connect().await?;
        lanes.push((conn, Arc::new(AtomicI64::new(-1))));
    }
    consumer.assign(&assignment)?;
    let mut progress = Vec::new();
    for (partition, (conn, next_offset)) in (0..LANES).zip(lanes) {
        let mut queue = consumer
            .split_partition_queue(topic, partition)
            .context("a partition has no queue")?;
        let ready = Arc::new(Notify::new());
        let waker = ready.clone();
        queue.set_nonempty_callback(move || waker.notify_one());
        progress.push((partition, next_offset.clone()));
        let lane = Lane {
            queue,
            ready,
            conn,
            next_offset,
            consumer: contend.consumer.clone(),
            work: contend.work,
            counters: counters.clone(),
        };
        let failed = failed.clone();
        tokio::spawn(async move {
            if let Err(error) = lane.run().await {
                // The main task listens to the end.
                let _ = failed.send(error);
            }
        });
    }
    std::thread::spawn(move || poll(&consumer, topic, &progress));
    tokio::select! {
        measured = watch(contend, || counters.taken(), || counters.done()) => measured,
        Some(error) = failures.recv() => Err(error),
    }
}

/// The settings of Factum's own consumer.
fn config(contend: &Contend) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (key, value) in [
        ("bootstrap.servers", contend.brokers.as_str()),
        ("client.id", "bench"),
        ("group.id", &contend.consumer),
        ("socket.keepalive.enable", "true"),
        ("queued.min.messages", "20000"),
        ("queued.max.messages.kbytes", "16384"),
        ("fetch.queue.backoff.ms", "5"),
        ("fetch.wait.max.ms", "500"),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
    ] {
        config.set(key, value);
    }
    config
}

/// Serves the client, and commits offsets now and then.
fn poll(consumer: &BaseConsumer, topic: &str, progress: &[(i32, Arc<AtomicI64>)]) {
    let mut committed_at = Instant::now();
    loop {
        // Every partition has a queue of its own: nothing but events of the client comes here.
        drop(consumer.poll(POLL_WAIT));
        if committed_at.elapsed() < COMMIT_EVERY {
            continue;
        }
        committed_at = Instant::now();
        let mut offsets = TopicPartitionList::new();
        for (partition, next) in progress {
            let next = next.load(Ordering::Acquire);
            if next >= 0 {
                // Fails for negative offsets alone.
                let _ = offsets.add_partition_offset(topic, *partition, Offset::Offset(next));
            }
        }
        if offsets.count() > 0 {
            // Refused offsets are sent again.
            let _ = consumer.commit(&offsets, CommitMode::Sync);
        }
    }
}

struct Lane {
    queue: PartitionQueue<DefaultConsumerContext>,
    ready: Arc<Notify>,
    conn: PgConnection,
    next_offset: Arc<AtomicI64>,
    consumer: String,
    work: Work,
    counters: Counters,
}

impl Lane {
    async fn run(mut self) -> Result<()> {
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            let mut last = 0;
            while batch.len() < BATCH {
                match self.queue.poll(Duration::ZERO) {
                    Some(Ok(message)) => {
                        last = message.offset();
                        batch.push(RawOrder::read(message.payload())?);
                    }
                    Some(Err(error)) => bail!("reading a partition: {error}"),
                    None => break,
                }
            }
            if batch.is_empty() {
                self.ready.notified().await;
                continue;
            }
            let taken = batch.len();
            self.counters.take(taken);
            self.handle(batch).await?;
            self.next_offset.store(last + 1, Ordering::Release);
            self.counters.finish(taken);
        }
    }

    async fn handle(&mut self, mut batch: Vec<RawOrder>) -> Result<()> {
        let mut ids: Vec<Uuid> = batch.iter().map(|order| order.event_id).collect();
        // Sorted, or two consumers of one group deadlock.
        ids.sort_unstable();
        ids.dedup();
        let mut tx = self.conn.begin().await?;
        let fresh: Vec<Uuid> = sqlx::query_scalar(
            "INSERT INTO processed_event (consumer_group, event_id) \
             SELECT $1, id FROM unnest($2::uuid[]) AS given (id) \
             ON CONFLICT (consumer_group, event_id) DO NOTHING \
             RETURNING event_id",
        )
        .bind(&self.consumer)
        .bind(&ids)
        .fetch_all(&mut *tx)
        .await?;
        let mut fresh: HashSet<Uuid> = fresh.into_iter().collect();
        batch.retain(|order| fresh.remove(&order.event_id));
        match self.work {
            Work::Batch => effect::write_all(&mut tx, batch.iter().map(of)).await?,
            _ => {
                for order in &batch {
                    of(order).write(&mut tx).await?;
                }
            }
        }
        tx.commit().await?;
        Ok(())
    }
}

fn of(order: &RawOrder) -> Effect<'_> {
    Effect {
        event_id: order.event_id,
        order_id: order.order_id,
        customer_id: order.customer_id,
        amount: &order.total.amount,
        currency: &order.total.currency,
        items: order.items.len(),
        occurred_at: order.occurred_at,
    }
}
