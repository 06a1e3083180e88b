//! Says in the database which versions of its events a consumer takes, now and then.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use factum_event::TakenType;
use factum_postgres::{Database, Reading, ReadingConsumer, record_readers};
use tokio_util::sync::CancellationToken;

use crate::stats::{ConsumerStats, TypeStats};

/// How often a consumer says what it takes.
const INTERVAL: Duration = Duration::from_secs(30);
/// How long the last word may take: the service is stopping.
const LAST_LIMIT: Duration = Duration::from_secs(1);

/// What one consumer says. It touches no lane: it has a task and a connection of its own for one short statement,
/// and a failure is logged and tried again at the next interval.
pub(crate) struct Readers {
    pub(crate) consumer: String,
    pub(crate) group: String,
    pub(crate) retry_horizon: Duration,
    pub(crate) foreign_days: Option<u32>,
    /// The types of records, each with the newest version that has a handler.
    pub(crate) taken: Vec<(TakenType, &'static str)>,
    pub(crate) stats: Arc<ConsumerStats>,
    pub(crate) db: Database,
}

impl Readers {
    /// At once, then at every interval, and once more at the end.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut told = HashMap::new();
        loop {
            let turn = async {
                self.tell(&mut told).await;
                tokio::time::sleep(INTERVAL).await;
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = turn => {}
            }
        }
        // Best effort: what isn't said now is missing in a count, and nowhere else.
        let _ = tokio::time::timeout(LAST_LIMIT, self.tell(&mut told)).await;
    }

    /// Says what has changed since it was last said.
    async fn tell(&self, told: &mut HashMap<&'static str, TypeStats>) {
        let now: HashMap<&'static str, TypeStats> = self
            .stats
            .by_type()
            .into_iter()
            .map(|stats| (stats.event_type, stats))
            .collect();
        let readings: Vec<Reading<'_>> = self
            .taken
            .iter()
            .map(|(taken, newest)| {
                let stats = now.get(taken.event_type);
                let before = told.get(taken.event_type);
                let since = |of: fn(&TypeStats) -> u64| stats.map_or(0, of) - before.map_or(0, of);
                Reading {
                    event_type: taken.event_type,
                    taken_as: taken.taken_as,
                    newest,
                    topic: taken.topic,
                    taken: since(|stats| stats.taken),
                    duplicates: since(|stats| stats.duplicates),
                    last_taken_at: stats.and_then(|stats| stats.last_taken_at),
                }
            })
            .collect();
        let consumer = ReadingConsumer {
            name: &self.consumer,
            group: &self.group,
            retry_horizon: self.retry_horizon,
            foreign_days: self.foreign_days,
        };
        match record_readers(&self.db, &consumer, &readings).await {
            Ok(()) => *told = now,
            Err(error) => tracing::warn!(consumer = %self.consumer, %error,
                "could not say which event types it takes; nothing else is affected"),
        }
    }
}
