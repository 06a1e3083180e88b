//! Placing orders: business rows and events in one transaction, some of which are rolled back, through outages of the
//! database. And the list of it, for the checker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use factum::sqlx::{Connection as _, PgConnection};
use factum_kafka::OutgoingRecord;
use factum_testing::TestBroker;
use fastrand::Rng;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use super::account::Accounts;
use super::order::{self, Ordered, POISON};
use super::progress::Progress;

/// Publishers side by side, each with accounts of its own.
const PUBLISHERS: usize = 2;
/// Orders of a transaction.
const ORDERS: usize = 200;
/// Of so many transactions one is rolled back.
const ONE_ROLLED_BACK_IN: u32 = 20;
/// Orders that are placed and have no effect yet, at most: then publishers wait.
const BACKLOG_MAX: u64 = 6_000;
/// The pause of a publisher that has nothing to do, or whose database is away.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the database may be away.
const AWAY_LIMIT: Duration = Duration::from_secs(60);
/// The longest wait for an answer of the database.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The header by which a record is known that must be set aside.
const INPUT_ID: &str = "input-id";

/// Records that are put into the topic past the outbox, at a time.
const REPEATS: usize = 20;
const POISONS: usize = 6;
const REFUSALS: usize = 2;

/// What went in, in the checker's words.
#[derive(Debug, Serialize)]
pub struct Input {
    #[serde(serialize_with = "as_text")]
    id: Uuid,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    fate: &'static str,
}

fn as_text<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// The publishers' common state. A copy is the same.
#[derive(Debug, Clone)]
pub struct Publishers {
    accounts: Arc<Accounts>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// How many orders may be placed for now.
    limit: AtomicU64,
    /// Whether no more come.
    is_over: AtomicBool,
    /// How many are placed.
    placed: AtomicU64,
    /// The last order of each account.
    last: Vec<AtomicU64>,
    input: Mutex<Vec<Input>>,
}

impl Publishers {
    /// Nothing is placed yet, and nothing may be.
    pub fn new(accounts: Arc<Accounts>) -> Publishers {
        let shared = Shared {
            limit: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            placed: AtomicU64::new(0),
            last: (0..accounts.count()).map(|_| AtomicU64::new(0)).collect(),
            input: Mutex::default(),
        };
        Publishers {
            accounts,
            shared: Arc::new(shared),
        }
    }

    /// Lets so many orders be placed in all.
    pub fn allow(&self, orders: u64) {
        self.shared.limit.store(orders, Ordering::Relaxed);
    }

    /// Lets no more be placed: the publishers end.
    pub fn finish(&self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }

    /// How many may be placed for now.
    pub fn limit(&self) -> u64 {
        self.shared.limit.load(Ordering::Relaxed)
    }

    /// How many orders are placed: committed, as far as is known.
    pub fn placed(&self) -> u64 {
        self.shared.placed.load(Ordering::Relaxed)
    }

    /// The last order of each account.
    pub fn last(&self) -> Vec<u64> {
        let last = self.shared.last.iter();
        last.map(|seq| seq.load(Ordering::Relaxed)).collect()
    }

    /// What went in so far.
    pub fn input(&self) -> MutexGuard<'_, Vec<Input>> {
        let input = self.shared.input.lock();
        input.unwrap_or_else(PoisonError::into_inner)
    }

    /// Places orders as they are allowed until there are no more, in tasks.
    pub fn start(
        &self,
        url: &str,
        progress: &Progress,
        rng: &mut Rng,
    ) -> Vec<tokio::task::JoinHandle<Result<()>>> {
        (0..PUBLISHERS)
            .map(|number| {
                let publisher = Publisher {
                    common: self.clone(),
                    progress: progress.clone(),
                    url: url.to_owned(),
                    next: number,
                    rng: rng.fork(),
                };
                tokio::spawn(publisher.run())
            })
            .collect()
    }

    /// Puts into the topic what no relay would: repeats of orders that have their effect, poison, and orders that the
    /// handler refuses.
    ///
    /// # Errors
    ///
    /// The database refuses.
    pub async fn inject(
        &self,
        broker: &TestBroker,
        conn: &mut PgConnection,
        rng: &mut Rng,
    ) -> Result<()> {
        let repeats: Vec<(String, Vec<u8>)> = factum::sqlx::query_as(
            "SELECT outbox.key, outbox.payload
               FROM (SELECT event_id FROM invoice ORDER BY id DESC LIMIT 5000) AS late
               JOIN outbox USING (event_id) WHERE published_at IS NOT NULL
              ORDER BY random() LIMIT $1",
        )
        .bind(i64::try_from(REPEATS)?)
        .fetch_all(conn)
        .await
        .context("looking for events to repeat")?;
        let mut hopeless: Vec<(Uuid, String, Vec<u8>)> = Vec::new();
        for place in 0..POISONS + REFUSALS {
            let key = self.accounts.name(rng.usize(..self.accounts.count()));
            let (id, value) = if place < POISONS {
                (factum::new_event_id().as_uuid(), POISON.to_vec())
            } else {
                order::refused(key)?
            };
            hopeless.push((id, key.to_owned(), value));
        }
        self.input()
            .extend(hopeless.iter().map(|(id, key, _)| Input {
                id: *id,
                key: key.clone(),
                seq: None,
                fate: "dead-letter",
            }));
        let labels: Vec<String> = hopeless.iter().map(|(id, ..)| id.to_string()).collect();
        let record = |key, value, headers| OutgoingRecord {
            topic: <Ordered as factum::Event>::TOPIC,
            key: Some(key),
            value: Some(value),
            headers,
            partition: None,
        };
        let mut batch: Vec<OutgoingRecord<'_>> = repeats
            .iter()
            .map(|(key, value)| record(key.as_bytes(), value.as_slice(), Vec::new()))
            .collect();
        batch.extend(
            hopeless
                .iter()
                .zip(&labels)
                .map(|((_, key, value), label)| {
                    record(
                        key.as_bytes(),
                        value.as_slice(),
                        vec![(INPUT_ID, Some(label.as_bytes()))],
                    )
                }),
        );
        broker.send(&batch).await;
        Ok(())
    }

    fn may_go_on(&self, progress: &Progress) -> bool {
        let placed = self.placed();
        placed < self.limit() && placed.saturating_sub(progress.effects()) < BACKLOG_MAX
    }
}

struct Publisher {
    common: Publishers,
    progress: Progress,
    url: String,
    /// The account whose turn it is.
    next: usize,
    rng: Rng,
}

/// How a transaction ended.
enum End {
    Committed,
    RolledBack,
    /// Nobody answered.
    Unknown,
}

impl Publisher {
    async fn run(mut self) -> Result<()> {
        let mut conn: Option<PgConnection> = None;
        let mut answered = Instant::now();
        while !self.common.shared.is_over.load(Ordering::Relaxed) {
            if !self.common.may_go_on(&self.progress) {
                answered = Instant::now();
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let connected = match conn.take() {
                Some(open) => Ok(open),
                None => self.connect().await,
            };
            let failure = match connected {
                Err(failure) => failure,
                Ok(mut open) => match self.publish(&mut open).await {
                    Ok(()) => {
                        conn = Some(open);
                        answered = Instant::now();
                        continue;
                    }
                    Err(failure) => failure,
                },
            };
            if answered.elapsed() > AWAY_LIMIT {
                return Err(failure.context("no order could be placed for too long"));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<PgConnection> {
        let connecting = PgConnection::connect(&self.url);
        Ok(tokio::time::timeout(ANSWER_LIMIT, connecting).await??)
    }

    /// One transaction, and its entry in the list whatever came of it.
    async fn publish(&mut self, conn: &mut PgConnection) -> Result<()> {
        let orders = self.next_orders();
        let commits = self.rng.u32(..ONE_ROLLED_BACK_IN) > 0;
        let mut ids = Vec::new();
        let publishing = transaction(conn, &orders, commits, &mut ids);
        let ended = match tokio::time::timeout(ANSWER_LIMIT, publishing).await {
            Ok(ended) => ended,
            Err(late) => Err(late.into()),
        };
        let end = match &ended {
            Err(_) => End::Unknown,
            Ok(()) if commits => End::Committed,
            Ok(()) => End::RolledBack,
        };
        let fate = match end {
            End::Committed => "effect",
            End::RolledBack => "rolled-back",
            End::Unknown => "unknown",
        };
        if matches!(end, End::Committed) {
            let placed = &self.common.shared.placed;
            placed.fetch_add(orders.len() as u64, Ordering::Relaxed);
        }
        // Where the ids were never told, nothing was committed.
        let inputs = ids.into_iter().zip(orders).map(|(id, (key, seq))| Input {
            id,
            key,
            seq: Some(seq),
            fate,
        });
        self.common.input().extend(inputs);
        ended
    }

    /// One order each of the next accounts.
    fn next_orders(&mut self) -> Vec<(String, u64)> {
        let accounts = &self.common.accounts;
        let allowed = self.common.limit().saturating_sub(self.common.placed());
        let count = ORDERS
            .min(usize::try_from(allowed).unwrap_or(ORDERS))
            .max(1);
        let mut orders = Vec::with_capacity(count);
        for _ in 0..count {
            let last = &self.common.shared.last[self.next];
            let seq = last.fetch_add(1, Ordering::Relaxed) + 1;
            orders.push((accounts.name(self.next).to_owned(), seq));
            self.next += PUBLISHERS;
            if self.next >= accounts.count() {
                self.next %= PUBLISHERS;
            }
        }
        orders
    }
}

async fn transaction(
    conn: &mut PgConnection,
    orders: &[(String, u64)],
    commits: bool,
    ids: &mut Vec<Uuid>,
) -> Result<()> {
    let mut tx = conn.begin().await?;
    *ids = order::place(&mut tx, orders).await?;
    if commits {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    Ok(())
}
