//! A service's own work, which goes on while servers fall: events published through the outbox, several keys at a
//! time, and what must have become of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use factum::sqlx::{self, Connection as _, PgConnection};
use factum::{Consumer, Outbox, Retry};
use factum_testing::eventually;
use tokio_util::sync::CancellationToken;

use crate::{Entry, LIMIT, Recorder, Scene};

/// Keys that have an event in each round; enough to be on every partition.
const ACCOUNTS: u64 = 12;
/// The pace of the rounds, and of the tries while the database is away.
const PACE: Duration = Duration::from_millis(20);
/// In so many rounds one, the first account's handler fails once: then the key is parked and retried.
const FAILS_EACH: u64 = 10;

/// Publishes rounds of events, one for each account in one transaction, until it is stopped. An outage of the
/// database is waited out; a round is written once, whatever becomes of its commit's answer.
pub struct Workload {
    rounds: Arc<AtomicU64>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Workload {
    /// Begins, in the scene's database.
    pub async fn start<E: Entry>(scene: &Scene) -> Workload {
        scene
            .execute("CREATE TABLE written (round bigint PRIMARY KEY)")
            .await;
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let (told, url) = (rounds.clone(), scene.database.url().to_owned());
        let task = tokio::spawn({
            let stop = stop.clone();
            async move {
                let mut pace = tokio::time::interval(PACE);
                while !stop.is_cancelled() {
                    // A failure is an outage: what was written is asked for at the next try.
                    let _ = write::<E>(&url, &told, &stop, &mut pace).await;
                    pace.tick().await;
                }
            }
        });
        Workload { rounds, stop, task }
    }

    /// The rounds that are in the outbox for sure.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }

    /// Waits until a consumer has handled an event of every account that was published after this call; says how long
    /// that took.
    pub async fn goes_on(&self, scene: &Scene, consumer: &str) -> Duration {
        let (start, seen) = (Instant::now(), self.rounds());
        eventually(LIMIT, "work that goes on", async || {
            accounts_beyond(scene, consumer, seen).await == Ok(ACCOUNTS as i64)
        })
        .await;
        start.elapsed()
    }

    /// Stops, and gives the number of rounds.
    pub async fn stop(self) -> u64 {
        self.stop.cancel();
        self.task.await.expect("the workload doesn't panic");
        self.rounds.load(Ordering::Acquire)
    }
}

async fn write<E: Entry>(
    url: &str,
    rounds: &AtomicU64,
    stop: &CancellationToken,
    pace: &mut tokio::time::Interval,
) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    let written: i64 = sqlx::query_scalar("SELECT coalesce(max(round), 0) FROM written")
        .fetch_one(&mut connection)
        .await?;
    let mut round = written as u64;
    rounds.store(round, Ordering::Release);
    while !stop.is_cancelled() {
        pace.tick().await;
        round += 1;
        let mut tx = connection.begin().await?;
        sqlx::query("INSERT INTO written VALUES ($1)")
            .bind(round as i64)
            .execute(&mut *tx)
            .await?;
        for account in 0..ACCOUNTS {
            let fails = account == 0 && round.is_multiple_of(FAILS_EACH);
            let note = if fails { "transient 2" } else { "" };
            let entry = E::entry(&format!("a{account}"), round, note);
            let now = time::OffsetDateTime::now_utc();
            if Outbox::new()
                .publish(&mut tx, entry.occurred_at(now))
                .await
                .is_err()
            {
                return Ok(());
            }
        }
        tx.commit().await?;
        rounds.store(round, Ordering::Release);
    }
    // Its round may be committed, and is counted.
    connection.close().await
}

/// A consumer of the workload: it parks what fails.
pub fn consumer<E: Entry>(name: &'static str) -> Consumer {
    let retry = Retry::park().first_delay(Duration::from_millis(50));
    Consumer::named(name)
        .handler::<E>(Recorder::of(name))
        .retry(retry)
}

async fn accounts_beyond(scene: &Scene, consumer: &str, seen: u64) -> Result<i64, ()> {
    let look = async {
        let mut connection = PgConnection::connect(scene.database.url()).await?;
        let accounts = sqlx::query_scalar(
            "SELECT count(DISTINCT account) FROM effect WHERE consumer = $1 AND seq > $2",
        )
        .bind(consumer)
        .bind(seen as i64)
        .fetch_one(&mut connection)
        .await?;
        connection.close().await?;
        Ok::<i64, sqlx::Error>(accounts)
    };
    look.await.map_err(|_| ())
}

/// Checks that a consumer handles all of these rounds, each event once and in the order of its key, and that nothing
/// is set aside, parked or left in the outbox.
pub async fn assert_exact(scene: &Scene, consumer: &str, rounds: u64) {
    eventually(LIMIT, "every round's effects", async || {
        scene.effects(consumer).await.len() as u64 >= rounds * ACCOUNTS
    })
    .await;
    let mut by_account: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for effect in scene.effects(consumer).await {
        let (account, seq) = effect.split_once(':').expect("account and number");
        let seq = seq.parse().expect("a number");
        by_account.entry(account.to_owned()).or_default().push(seq);
    }
    assert_eq!(by_account.len() as u64, ACCOUNTS);
    let expected: Vec<u64> = (1..=rounds).collect();
    for (account, seqs) in by_account {
        assert_eq!(seqs, expected, "{consumer}, {account}");
    }
    assert!(scene.dead_letters(consumer).await.is_empty());
    let unpublished = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
    eventually(LIMIT, "an outbox that is sent", async || {
        scene.count(unpublished).await == 0
    })
    .await;
}
